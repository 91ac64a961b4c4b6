// The embedded MTTKRP kernels: X(name, layout, real, order, tiles, lanes, columns, vector, batch, rank). A name says all that
// chooses it: layout, precision, order (8: any), tiles of a thread block, lanes, columns of a lane in a sweep over the rank,
// columns loaded at once, batch.
#pragma once

#define BLCO_ANY_RANK(X, layout, tag, real, type, order, tiles, wide)                                                  \
    X(mttkrp_##tag##_##type##_o##order##_t##tiles##l8c1v1b4, layout, real, order, tiles, 8, 1, 1, 4, 0)                \
    X(mttkrp_##tag##_##type##_o##order##_t##tiles##l16c1v1b4, layout, real, order, tiles, 16, 1, 1, 4, 0)              \
    X(mttkrp_##tag##_##type##_o##order##_t##tiles##l16c2v1b##wide, layout, real, order, tiles, 16, 2, 1, wide, 0)

// Four tiles where shared memory holds them.
#define BLCO_ORDERS(X, layout, tag, real, type, wide)                                                                  \
    BLCO_ANY_RANK(X, layout, tag, real, type, 3, 4, wide)                                                              \
    BLCO_ANY_RANK(X, layout, tag, real, type, 4, 4, wide)                                                              \
    BLCO_ANY_RANK(X, layout, tag, real, type, 8, 2, wide)

#define BLCO_INSTANCES(X)                                                                                              \
    BLCO_ORDERS(X, Tiled, tiled, double, f64, 2)                                                                          \
    BLCO_ORDERS(X, Tiled, tiled, float, f32, 4)                                                                           \
    BLCO_ORDERS(X, Raw, raw, double, f64, 2)                                                                              \
    BLCO_ORDERS(X, Raw, raw, float, f32, 4)

// The kernels that derive target-major orders: X(name, threads, thread blocks of a multiprocessor, arguments). They serve
// every order and encoding.
#define BLCO_ORDER_KERNELS(X)                                                                                          \
    X(keys, BLCO_TILE_THREADS, 8, OrderArgs)                                                                                \
    X(count, BLCO_SORT_THREADS, 4, SortArgs)                                                                           \
    X(scan, BLCO_SORT_THREADS, 1, ScanArgs)                                                                            \
    X(scatter, BLCO_SORT_THREADS, 4, SortArgs)                                                                         \
    X(measure, BLCO_TILE_THREADS, 8, OrderArgs)                                                                             \
    X(pack, BLCO_TILE_THREADS, 6, OrderArgs)
