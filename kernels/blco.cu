// The kernels by name. Without options: the instances that are embedded as PTX and serve every order and rank.
// With BLCO_RANK and what stands beside it below: `mttkrp`, with BLCO_SHORT
// `mttkrp_short` (sums in BLCO_REAL, for sorted nonzeros and short rows), and `finish_real` made for them.
#include "mttkrp.cuh"

// Thread blocks that share a multiprocessor hold 1024 threads of 64 registers.
#define MTTKRP(name, layout, real, sum, order, tiles, lanes, columns, batch, rank)                                     \
    extern "C" __global__ void __launch_bounds__(tiles * BLCO_TILE_THREADS, 1024 / (tiles * BLCO_TILE_THREADS))        \
        name(const MttkrpArgs args)                                                                                    \
    {                                                                                                                  \
        typedef Shape<tiles, tiles * BLCO_TILE_THREADS> OfBlock;                                                       \
        mttkrp<layout, real, sum, order, OfBlock, Lanes<lanes, columns, batch>, rank>(args);                           \
    }

#define FINISH(name, real)                                                                                             \
    extern "C" __global__ void name(const double* sums, u32 copies, u64 elements, real* result)                        \
    {                                                                                                                  \
        finish(sums, copies, elements, result);                                                                        \
    }

#ifdef BLCO_RANK
MTTKRP(mttkrp, BLCO_LAYOUT, BLCO_REAL, double, BLCO_ORDER, BLCO_TILES, BLCO_LANES, BLCO_COLUMNS, BLCO_BATCH, BLCO_RANK)
#ifdef BLCO_SHORT
MTTKRP(mttkrp_short, BLCO_LAYOUT, BLCO_REAL, BLCO_REAL, BLCO_ORDER, BLCO_TILES, BLCO_LANES, BLCO_COLUMNS, BLCO_BATCH, BLCO_RANK)
#endif
FINISH(finish_real, BLCO_REAL)
#else
#include "instances.h"
#include "order.cuh"

#define ORDER(name, threads, blocks, arguments)                                                                        \
    extern "C" __global__ void __launch_bounds__(threads, blocks) order_##name(const arguments args)                   \
    {                                                                                                                  \
        order::name(args);                                                                                             \
    }

BLCO_INSTANCES(MTTKRP)
BLCO_ORDER_KERNELS(ORDER)
FINISH(finish_f64, double)
FINISH(finish_f32, float)
#endif
