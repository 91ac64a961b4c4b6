// The engine's kernels for the mock driver, unmodified.
#include "cuda_cpu.h"
#include "../../kernels/blco.cu"
#include "../../kernels/matrices.cu"

#define KNOWN(name, layout, real, order, tiles, ...) MOCK_KERNEL(name, tiles * BLCO_TILE_THREADS)
BLCO_INSTANCES(KNOWN)
BLCO_TREE_INSTANCES(KNOWN)
#define KNOWN_BUILD(name, threads, ...) MOCK_KERNEL(build_##name, threads)
BLCO_BUILD_KERNELS(KNOWN_BUILD)
#define KNOWN_SORTED(name, ...) MOCK_KERNEL(name, BLCO_SORTED_TILES * BLCO_TILE_THREADS)
BLCO_SORTED_INSTANCES(KNOWN_SORTED)
#define KNOWN_WIDE(name, layout, order, tiles, times) MOCK_KERNEL(name, tiles * BLCO_TILE_THREADS)
BLCO_WIDE_INSTANCES(KNOWN_WIDE)
#define KNOWN_WIDE_TREE(name, order, tiles, times) MOCK_KERNEL(name, tiles * BLCO_TILE_THREADS)
BLCO_WIDE_TREE_INSTANCES(KNOWN_WIDE_TREE)
#define KNOWN_WIDE_SORTED(name, order) MOCK_KERNEL(name, BLCO_SORTED_TILES * BLCO_TILE_THREADS)
BLCO_WIDE_SORTED_INSTANCES(KNOWN_WIDE_SORTED)
#define KNOWN_TTMC(name, layout, real, order, tiles) MOCK_KERNEL(name, tiles * BLCO_TILE_THREADS)
BLCO_TTMC_INSTANCES(KNOWN_TTMC)
#define KNOWN_TTMC_TREE(name, real, order, tiles) MOCK_KERNEL(name, tiles * BLCO_TILE_THREADS)
BLCO_TTMC_TREE_INSTANCES(KNOWN_TTMC_TREE)
#define KNOWN_TTMC_SORTED(name, ...) MOCK_KERNEL(name, BLCO_SORTED_TILES * BLCO_TILE_THREADS)
BLCO_TTMC_SORTED_INSTANCES(KNOWN_TTMC_SORTED)
#define KNOWN_MATRICES(name, ...) MOCK_KERNEL(name, BLCO_SORTED_TILES * BLCO_TILE_THREADS)
BLCO_TTMC_MATRIX_INSTANCES(KNOWN_MATRICES)
#define KNOWN_ROWS(name, threads, ...) MOCK_KERNEL(finish_##name, 1024) MOCK_KERNEL(fix_up_##name, threads) MOCK_KERNEL(clear_##name, threads)
BLCO_ROW_KERNELS(KNOWN_ROWS)
#define KNOWN_DENSE(name, ...) MOCK_KERNEL(dense_##name, BLCO_DENSE_THREADS)
BLCO_DENSE_KERNELS(KNOWN_DENSE)
#define KNOWN_TTV(name, ...) \
    MOCK_KERNEL(ttv_two_level_##name, BLCO_TTV_THREADS) \
    MOCK_KERNEL(ttv_balanced_##name, BLCO_TTV_THREADS) MOCK_KERNEL(ttv_fix_up_##name, BLCO_TTV_THREADS)
BLCO_TTV_KERNELS(KNOWN_TTV)
#define KNOWN_TTM_READ(name, tag) \
    MOCK_KERNEL(ttm_append_##tag##_##name, BLCO_TILE_THREADS) MOCK_KERNEL(ttm_take_##tag##_##name, BLCO_TILE_THREADS)
#define KNOWN_TTM(name, ...) \
    KNOWN_TTM_READ(name, tiled) KNOWN_TTM_READ(name, raw) KNOWN_TTM_READ(name, tree) KNOWN_TTM_READ(name, segments) \
    MOCK_KERNEL(ttm_rows_##name, BLCO_TILE_THREADS) MOCK_KERNEL(ttm_fix_up_##name, BLCO_ROW_THREADS)
BLCO_TTM_KERNELS(KNOWN_TTM)
#define KNOWN_TTM_COUNT(tag) MOCK_KERNEL(ttm_count_##tag, BLCO_TILE_THREADS) MOCK_KERNEL(ttm_within_##tag, BLCO_TILE_THREADS)
KNOWN_TTM_COUNT(tiled)
KNOWN_TTM_COUNT(raw)
KNOWN_TTM_COUNT(tree)
KNOWN_TTM_COUNT(segments)
MOCK_KERNEL(ttm_places, BLCO_SORT_THREADS)
MOCK_KERNEL(ttm_keys, BLCO_ROW_THREADS)
MOCK_KERNEL(ttm_ends, BLCO_TILE_THREADS)
#define KNOWN_EXPAND(layout) MOCK_KERNEL(expand_##layout, BLCO_TILE_THREADS)
BLCO_EXPAND_KERNELS(KNOWN_EXPAND)
MOCK_KERNEL(count_segments, BLCO_SORT_THREADS)
