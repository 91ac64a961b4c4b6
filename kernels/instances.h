// The embedded MTTKRP kernels: X(name, layout, real, sum, order, tiles, lanes, columns, batch, rank). A name says all that
// chooses it: layout, precision, order (8: any), tiles of a thread block, lanes, columns of a lane in a sweep over the rank,
// batch; `short`: sums in f32.
#pragma once

#define BLCO_ANY_RANK(X, tag, layout, real, sum, order, tiles, wide)                                                   \
    X(mttkrp_##tag##_o##order##_t##tiles##l8c1b4, layout, real, sum, order, tiles, 8, 1, 4, 0)                         \
    X(mttkrp_##tag##_o##order##_t##tiles##l16c1b4, layout, real, sum, order, tiles, 16, 1, 4, 0)                       \
    X(mttkrp_##tag##_o##order##_t##tiles##l16c2b##wide, layout, real, sum, order, tiles, 16, 2, wide, 0)

// Four tiles where shared memory holds them.
#define BLCO_ORDERS(X, tag, layout, real, sum, wide)                                                                   \
    BLCO_ANY_RANK(X, tag, layout, real, sum, 3, 4, wide)                                                               \
    BLCO_ANY_RANK(X, tag, layout, real, sum, 4, 4, wide)                                                               \
    BLCO_ANY_RANK(X, tag, layout, real, sum, 8, 2, wide)

#define BLCO_INSTANCES(X)                                                                                              \
    BLCO_ORDERS(X, tiled_f64, Tiled, double, double, 2)                                                                \
    BLCO_ORDERS(X, tiled_f32, Tiled, float, double, 4)                                                                 \
    BLCO_ORDERS(X, tiled_f32_short, Tiled, float, float, 4)                                                            \
    BLCO_ORDERS(X, raw_f64, Raw, double, double, 2)                                                                    \
    BLCO_ORDERS(X, raw_f32, Raw, float, double, 4)

// The kernels that derive target-major orders: X(name, threads, thread blocks of a multiprocessor, arguments). They serve
// every order and encoding.
#define BLCO_ORDER_KERNELS(X)                                                                                          \
    X(keys, BLCO_TILE_THREADS, 8, OrderArgs)                                                                           \
    X(count, BLCO_SORT_THREADS, 4, SortArgs)                                                                           \
    X(scan, BLCO_SORT_THREADS, 1, ScanArgs)                                                                            \
    X(scatter, BLCO_SORT_THREADS, 4, SortArgs)                                                                         \
    X(measure, BLCO_TILE_THREADS, 8, OrderArgs)                                                                        \
    X(pack, BLCO_TILE_THREADS, 6, OrderArgs)
