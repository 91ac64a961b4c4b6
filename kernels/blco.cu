// The kernels by name. Without options: the instances that are embedded as PTX and serve every order and rank.
// With BLCO_RANK and the options beside it below: `mttkrp`, `finish_real`, `fix_up_real`, `clear_real`, and with BLCO_SORTED
// `mttkrp_sorted`, for that rank (0: any) and these options. BLCO_SWEEP is Sweep, or KroneckerSweep for SpTTMc; BLCO_TREES, of trees as they
// lie, mttkrp_tree or ttmc_tree. With BLCO_MATRIX_ROWS and the like, sorted nonzeros are multiplied on tensor cores (tensor_cores.cuh).
#include "segments.cuh"
#include "tensor_cores.cuh"

// Thread blocks that share a multiprocessor hold 1024 threads of 64 registers.
#define BOUNDS(tiles) __launch_bounds__(tiles * BLCO_TILE_THREADS, 1024 / (tiles * BLCO_TILE_THREADS))
#define TILES_OF(sweep, name, layout, real, order, tiles, lanes, columns, batch, rank)                                 \
    extern "C" __global__ void BOUNDS(tiles) name(const MttkrpArgs args)                                               \
    {                                                                                                                  \
        typedef Shape<tiles, tiles * BLCO_TILE_THREADS> OfBlock;                                                       \
        mttkrp<layout, real, order, OfBlock, Lanes<lanes, columns, batch>, rank, real, 1, sweep>(args);                \
    }

#define SORTED_OF(sweep, name, real, order, lanes, columns, batch, rank)                                               \
    extern "C" __global__ void BOUNDS(BLCO_SORTED_TILES) name(const MttkrpArgs args)                                   \
    {                                                                                                                  \
        typedef Shape<BLCO_SORTED_TILES, BLCO_SORTED_TILES * BLCO_TILE_THREADS> OfBlock;                               \
        mttkrp_sorted<real, order, OfBlock, Lanes<lanes, columns, batch>, rank, real, sweep>(args);                    \
    }

#define TREE_OF(kernel, name, real, order, tiles, lanes, columns, batch, rank)                                         \
    extern "C" __global__ void BOUNDS(tiles) name(const MttkrpArgs args)                                               \
    {                                                                                                                  \
        typedef Shape<tiles, tiles * BLCO_TILE_THREADS> OfBlock;                                                       \
        kernel<real, order, OfBlock, Lanes<lanes, columns, batch>, rank>(args);                                        \
    }

#define MTTKRP(...) TILES_OF(Sweep, __VA_ARGS__)
#define TREE(name, layout, ...) TREE_OF(mttkrp_tree, name, __VA_ARGS__)
#define SORTED(...) SORTED_OF(Sweep, __VA_ARGS__)

#define WIDE(name, layout, order, tiles, times)                                                                        \
    extern "C" __global__ void __launch_bounds__(tiles * BLCO_TILE_THREADS, times > 1 ? 1 : 1024 / (tiles * BLCO_TILE_THREADS))   \
    name(const MttkrpArgs args)                                                                                        \
    {                                                                                                                  \
        typedef Shape<tiles, tiles * BLCO_TILE_THREADS> OfBlock;                                                       \
        mttkrp<layout, double, order, OfBlock, Lanes<16, 1, 4>, 0, float, times>(args);                                \
    }

#define WIDE_TREE(name, order, tiles, times)                                                                           \
    extern "C" __global__ void __launch_bounds__(tiles * BLCO_TILE_THREADS, times > 1 ? 1 : 1024 / (tiles * BLCO_TILE_THREADS))   \
    name(const MttkrpArgs args)                                                                                        \
    {                                                                                                                  \
        typedef Shape<tiles, tiles * BLCO_TILE_THREADS> OfBlock;                                                       \
        mttkrp_tree<double, order, OfBlock, Lanes<16, 1, 4>, 0, float, times>(args);                                   \
    }

#define WIDE_SORTED(name, order)                                                                                       \
    extern "C" __global__ void BOUNDS(BLCO_SORTED_TILES) name(const MttkrpArgs args)                                   \
    {                                                                                                                  \
        typedef Shape<BLCO_SORTED_TILES, BLCO_SORTED_TILES * BLCO_TILE_THREADS> OfBlock;                               \
        mttkrp_sorted<double, order, OfBlock, Lanes<16, 1, 4>, 0, float>(args);                                        \
    }

#define TTMC(name, layout, real, order, tiles)                                                                         \
    TILES_OF(KroneckerSweep, name, layout, real, order, tiles, 8, 8, 8 / sizeof(real), 0)
#define TTMC_TREE(name, real, order, tiles)                                                                            \
    TREE_OF(ttmc_tree, name, real, order, tiles, 8, 32 / sizeof(real), 8 / sizeof(real), 0)
#define TTMC_SORTED(name, real, order) SORTED_OF(KroneckerSweep, name, real, order, 8, 8, 8 / sizeof(real), 0)

#define OF_ROWS(name, threads, real)                                                                                   \
    extern "C" __global__ void finish_##name(const double* sums, u32 copies, u64 elements, real* result)               \
    {                                                                                                                  \
        finish(sums, copies, elements, result);                                                                        \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(threads) fix_up_##name(const FixUpArgs args)                          \
    {                                                                                                                  \
        fix_up<real>(args);                                                                                            \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(threads) clear_##name(const ClearArgs args)                           \
    {                                                                                                                  \
        clear_rows<real>(args);                                                                                        \
    }

#ifdef BLCO_RANK
#ifdef BLCO_TREES
TREE_OF(BLCO_TREES, mttkrp, BLCO_REAL, BLCO_ORDER, BLCO_TILES, BLCO_LANES, BLCO_COLUMNS, BLCO_BATCH, BLCO_RANK)
#else
TILES_OF(BLCO_SWEEP, mttkrp, BLCO_LAYOUT, BLCO_REAL, BLCO_ORDER, BLCO_TILES, BLCO_LANES, BLCO_COLUMNS, BLCO_BATCH, BLCO_RANK)
#endif
OF_ROWS(real, BLCO_ROW_THREADS, BLCO_REAL)
#ifdef BLCO_MATRIX_ROWS
MATRICES_OF(mttkrp_sorted, BLCO_REAL, BLCO_ORDER, BLCO_MATRIX_ROWS, BLCO_MATRIX_COLS, BLCO_MATRIX_SCALING, BLCO_MATRIX_THREADS,
            BLCO_MATRIX_STEPS, BLCO_MATRIX_WHOLE)
#elif defined(BLCO_SORTED)
SORTED_OF(BLCO_SWEEP, mttkrp_sorted, BLCO_REAL, BLCO_ORDER, BLCO_LANES, BLCO_COLUMNS, BLCO_BATCH, BLCO_RANK)
#endif
#else
#include "dense.cuh"
#include "expand.cuh"
#include "fibers.cuh"
#include "instances.h"
#include "ttm.cuh"
#include "ttv.cuh"

#define BUILD(name, threads, blocks, arguments)                                                                        \
    extern "C" __global__ void __launch_bounds__(threads, blocks) build_##name(const arguments args)                   \
    {                                                                                                                  \
        mode_sorted::name(args);                                                                                             \
    }

BLCO_INSTANCES(MTTKRP)
BLCO_TREE_INSTANCES(TREE)
BLCO_SORTED_INSTANCES(SORTED)
BLCO_WIDE_INSTANCES(WIDE)
BLCO_WIDE_TREE_INSTANCES(WIDE_TREE)
BLCO_WIDE_SORTED_INSTANCES(WIDE_SORTED)
BLCO_TTMC_INSTANCES(TTMC)
BLCO_TTMC_TREE_INSTANCES(TTMC_TREE)
BLCO_TTMC_SORTED_INSTANCES(TTMC_SORTED)
BLCO_BUILD_KERNELS(BUILD)
BLCO_ROW_KERNELS(OF_ROWS)
BLCO_DENSE_KERNELS(BLCO_DENSE)
BLCO_TTV_KERNELS(BLCO_TTV)
BLCO_TTM_KERNELS(BLCO_TTM)
BLCO_TTM_SORT
BLCO_EXPAND_KERNELS(BLCO_EXPAND)
BLCO_COUNT
#endif
