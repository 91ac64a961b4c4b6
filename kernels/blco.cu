// The kernels by name. Without options: the instances that are embedded as PTX and serve every order and rank.
// With BLCO_ORDER, BLCO_RANK, BLCO_LAYOUT, BLCO_REAL, BLCO_LANES, BLCO_COLUMNS: `mttkrp` and `finish_real` made for them.
#include "mttkrp.cuh"

#define MTTKRP(name, layout, real, order, lanes, columns, rank)                                                        \
    extern "C" __global__ void __launch_bounds__(BLCO_THREADS) name(const MttkrpArgs args)                             \
    {                                                                                                                  \
        mttkrp<layout, real, order, lanes, columns, rank>(args);                                                       \
    }

#define FINISH(name, real)                                                                                             \
    extern "C" __global__ void name(const double* sums, u32 copies, u64 elements, real* result)                        \
    {                                                                                                                  \
        finish(sums, copies, elements, result);                                                                        \
    }

#ifdef BLCO_RANK
MTTKRP(mttkrp, BLCO_LAYOUT, BLCO_REAL, BLCO_ORDER, BLCO_LANES, BLCO_COLUMNS, BLCO_RANK)
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
