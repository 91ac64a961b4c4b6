// The embedded MTTKRP kernels: X(name, layout, real, order, lanes, columns, rank). A name says all that
// chooses it: layout, precision, order (8: any), lanes and columns of a lane in a sweep over the rank.
#pragma once

#define BLCO_RANKS(X, layout, tag, real, type, order)                                                                  \
    X(mttkrp_##tag##_##type##_o##order##_l8c1, layout, real, order, 8, 1, 0)                                           \
    X(mttkrp_##tag##_##type##_o##order##_l16c1, layout, real, order, 16, 1, 0)                                         \
    X(mttkrp_##tag##_##type##_o##order##_l16c2, layout, real, order, 16, 2, 0)

#define BLCO_ORDERS(X, layout, tag, real, type)                                                                        \
    BLCO_RANKS(X, layout, tag, real, type, 3)                                                                          \
    BLCO_RANKS(X, layout, tag, real, type, 4)                                                                          \
    BLCO_RANKS(X, layout, tag, real, type, 8)

#define BLCO_INSTANCES(X)                                                                                              \
    BLCO_ORDERS(X, Tiled, tiled, double, f64)                                                                          \
    BLCO_ORDERS(X, Tiled, tiled, float, f32)                                                                           \
    BLCO_ORDERS(X, Raw, raw, double, f64)                                                                              \
    BLCO_ORDERS(X, Raw, raw, float, f32)

// The kernels that derive target-major orders: X(name, threads, thread blocks of a multiprocessor, arguments). They serve
// every order and encoding.
#define BLCO_ORDER_KERNELS(X)                                                                                          \
    X(keys, BLCO_THREADS, 8, OrderArgs)                                                                                \
    X(count, BLCO_SORT_THREADS, 4, SortArgs)                                                                           \
    X(scan, BLCO_SORT_THREADS, 1, ScanArgs)                                                                            \
    X(scatter, BLCO_SORT_THREADS, 4, SortArgs)                                                                         \
    X(measure, BLCO_THREADS, 8, OrderArgs)                                                                             \
    X(pack, BLCO_THREADS, 6, OrderArgs)
