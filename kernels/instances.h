// The embedded kernels. A name says all that chooses it: layout, precision, order (8: any), tiles of a thread block, lanes, columns
// of a lane in a sweep over the rank, batch.
#pragma once

// MTTKRP: X(name, layout, real, order, tiles, lanes, columns, batch, rank).
#define BLCO_ANY_RANK(X, tag, layout, real, order, tiles, wide)                                                        \
    X(mttkrp_##tag##_o##order##_t##tiles##l8c1b4, layout, real, order, tiles, 8, 1, 4, 0)                              \
    X(mttkrp_##tag##_o##order##_t##tiles##l16c1b4, layout, real, order, tiles, 16, 1, 4, 0)                            \
    X(mttkrp_##tag##_o##order##_t##tiles##l16c2b##wide, layout, real, order, tiles, 16, 2, wide, 0)

// Four tiles where shared memory holds them.
#define BLCO_ORDERS(X, tag, layout, real, wide)                                                                        \
    BLCO_ANY_RANK(X, tag, layout, real, 3, 4, wide)                                                                    \
    BLCO_ANY_RANK(X, tag, layout, real, 4, 4, wide)                                                                    \
    BLCO_ANY_RANK(X, tag, layout, real, 8, 2, wide)

#define BLCO_INSTANCES(X)                                                                                              \
    BLCO_ORDERS(X, tiled_f64, Tiled, double, 2)                                                                        \
    BLCO_ORDERS(X, tiled_f32, Tiled, float, 4)                                                                         \
    BLCO_ORDERS(X, raw_f64, Raw, double, 2)                                                                            \
    BLCO_ORDERS(X, raw_f32, Raw, float, 4)                                                                             \
    BLCO_ORDERS(X, segments_f64, Segments, double, 2)                                                                  \
    BLCO_ORDERS(X, segments_f32, Segments, float, 4)

// The same from trees as they lie.
#define BLCO_TREE_INSTANCES(X)                                                                                         \
    BLCO_ANY_RANK(X, tree_f64, Tree, double, 3, 4, 2)                                                                  \
    BLCO_ANY_RANK(X, tree_f64, Tree, double, 4, 2, 2)                                                                  \
    BLCO_ANY_RANK(X, tree_f64, Tree, double, 8, 2, 2)                                                                  \
    BLCO_ANY_RANK(X, tree_f32, Tree, float, 3, 4, 4)                                                                   \
    BLCO_ANY_RANK(X, tree_f32, Tree, float, 4, 4, 4)                                                                   \
    BLCO_ANY_RANK(X, tree_f32, Tree, float, 8, 2, 4)

// The same of sorted nonzeros: X(name, real, order, lanes, columns, batch, rank). Sums of fibers have order 2.
#define BLCO_SORTED_RANKS(X, tag, real, order, wide)                                                                   \
    X(sorted_##tag##_o##order##_l8c1b4, real, order, 8, 1, 4, 0)                                                       \
    X(sorted_##tag##_o##order##_l16c1b4, real, order, 16, 1, 4, 0)                                                     \
    X(sorted_##tag##_o##order##_l16c2b##wide, real, order, 16, 2, wide, 0)

#define BLCO_SORTED_ORDERS(X, tag, real, wide)                                                                         \
    BLCO_SORTED_RANKS(X, tag, real, 2, wide)                                                                           \
    BLCO_SORTED_RANKS(X, tag, real, 3, wide)                                                                           \
    BLCO_SORTED_RANKS(X, tag, real, 4, wide)                                                                           \
    BLCO_SORTED_RANKS(X, tag, real, 8, wide)

#define BLCO_SORTED_INSTANCES(X)                                                                                       \
    BLCO_SORTED_ORDERS(X, f64, double, 2)                                                                              \
    BLCO_SORTED_ORDERS(X, f32, float, 4)

// Products in f64 of factors in f32, for every number of tiles that a kernel in f32 has: X(name, layout, order, tiles, times). They
// serve systems of equations too ill-conditioned for f32: few variants, of any rank.
#define BLCO_WIDE_LAYOUT(X, layout, tag)                                                                               \
    X(wide_##tag##_o3_t4, layout, 3, 4, 1)                                                                             \
    X(wide_##tag##_o4_t4, layout, 4, 4, 1)                                                                             \
    X(wide_##tag##_o8_t4, layout, 8, 2, 2)                                                                             \
    X(wide_##tag##_o8_t2, layout, 8, 2, 1)                                                                             \
    X(wide_##tag##_o8_t1, layout, 8, 1, 1)

#define BLCO_WIDE_INSTANCES(X)                                                                                         \
    BLCO_WIDE_LAYOUT(X, Tiled, tiled)                                                                                  \
    BLCO_WIDE_LAYOUT(X, Raw, raw)                                                                                      \
    BLCO_WIDE_LAYOUT(X, Segments, segments)

// The same from trees as they lie: X(name, order, tiles, times).
#define BLCO_WIDE_TREE_INSTANCES(X)                                                                                    \
    X(wide_tree_o3_t4, 3, 4, 1)                                                                                        \
    X(wide_tree_o4_t4, 4, 2, 2)                                                                                        \
    X(wide_tree_o8_t4, 8, 2, 2)                                                                                        \
    X(wide_tree_o8_t2, 8, 2, 1)                                                                                        \
    X(wide_tree_o8_t1, 8, 1, 1)

// The same of sorted nonzeros: X(name, order).
#define BLCO_WIDE_SORTED_INSTANCES(X)                                                                                  \
    X(wide_sorted_o3, 3)                                                                                               \
    X(wide_sorted_o4, 4)                                                                                               \
    X(wide_sorted_o8, 8)

// SpTTMc: X(name, layout, real, order, tiles).
#define BLCO_TTMC_ORDERS(X, tag, layout, real)                                                                         \
    X(ttmc_##tag##_o3, layout, real, 3, 4)                                                                             \
    X(ttmc_##tag##_o4, layout, real, 4, 4)                                                                             \
    X(ttmc_##tag##_o8, layout, real, 8, 2)

#define BLCO_TTMC_INSTANCES(X)                                                                                         \
    BLCO_TTMC_ORDERS(X, tiled_f64, Tiled, double)                                                                      \
    BLCO_TTMC_ORDERS(X, tiled_f32, Tiled, float)                                                                       \
    BLCO_TTMC_ORDERS(X, raw_f64, Raw, double)                                                                          \
    BLCO_TTMC_ORDERS(X, raw_f32, Raw, float)                                                                           \
    BLCO_TTMC_ORDERS(X, segments_f64, Segments, double)                                                                \
    BLCO_TTMC_ORDERS(X, segments_f32, Segments, float)

// The same from trees as they lie: X(name, real, order, tiles).
#define BLCO_TTMC_TREE_INSTANCES(X)                                                                                    \
    X(ttmc_tree_f64_o3, double, 3, 2)                                                                                  \
    X(ttmc_tree_f64_o4, double, 4, 2)                                                                                  \
    X(ttmc_tree_f64_o8, double, 8, 1)                                                                                  \
    X(ttmc_tree_f32_o3, float, 3, 2)                                                                                   \
    X(ttmc_tree_f32_o4, float, 4, 2)                                                                                   \
    X(ttmc_tree_f32_o8, float, 8, 1)

// The same of sorted nonzeros: X(name, real, order).
#define BLCO_TTMC_SORTED_INSTANCES(X)                                                                                  \
    X(ttmc_sorted_f64_o3, double, 3)                                                                                   \
    X(ttmc_sorted_f64_o4, double, 4)                                                                                   \
    X(ttmc_sorted_f64_o8, double, 8)                                                                                   \
    X(ttmc_sorted_f32_o3, float, 3)                                                                                    \
    X(ttmc_sorted_f32_o4, float, 4)                                                                                    \
    X(ttmc_sorted_f32_o8, float, 8)

// The same by products of matrices (matrices.cu): X(name, real, order, rows, cols, scaling, threads, steps, whole).
#define BLCO_TTMC_MATRIX_INSTANCES(X)                                                                                  \
    X(ttmc_matrices_f64_o3, double, 3, 2, 2, 1, 512, 2, false)                                                         \
    X(ttmc_matrices_f64_o4, double, 4, 1, 1, 8, 384, 1, false)                                                         \
    X(ttmc_matrices_f64_o8, double, 8, 1, 1, 4, 384, 1, false)                                                         \
    X(ttmc_matrices_f32_o3, float, 3, 2, 2, 1, 512, 2, false)                                                          \
    X(ttmc_matrices_f32_o4, float, 4, 1, 1, 8, 512, 1, false)                                                          \
    X(ttmc_matrices_f32_o8, float, 8, 1, 1, 4, 512, 1, false)

// What clears, fixes up and finishes results: X(name, threads, real).
#define BLCO_ROW_KERNELS(X)                                                                                            \
    X(f64, BLCO_ROW_THREADS, double)                                                                                   \
    X(f32, BLCO_ROW_THREADS, float)

// The kernels that build mode-sorted copies: X(name, threads, thread blocks of a multiprocessor, arguments). They serve
// every order and encoding.
#define BLCO_BUILD_KERNELS(X)                                                                                          \
    X(keys, BLCO_TILE_THREADS, 8, BuildArgs)                                                                           \
    X(count, BLCO_SORT_THREADS, 4, SortArgs)                                                                           \
    X(scan, BLCO_SORT_THREADS, 1, ScanArgs)                                                                            \
    X(scatter, BLCO_SORT_THREADS, 4, SortArgs)                                                                         \
    X(measure, BLCO_TILE_THREADS, 8, BuildArgs)                                                                        \
    X(pack, BLCO_TILE_THREADS, 6, BuildArgs)                                                                           \
    X(estimate, BLCO_TILE_THREADS, 8, BuildArgs)                                                                       \
    X(next_keys, BLCO_TILE_THREADS, 8, BuildArgs)                                                                      \
    X(begins, BLCO_TILE_THREADS, 8, BuildArgs)                                                                         \
    X(number, BLCO_TILE_THREADS, 8, BuildArgs)

// SpTTM: X(name, real).
#define BLCO_TTM_KERNELS(X)                                                                                            \
    X(f64, double)                                                                                                     \
    X(f32, float)

// TTV: X(name, real).
#define BLCO_TTV_KERNELS(X)                                                                                            \
    X(f64, double)                                                                                                     \
    X(f32, float)
