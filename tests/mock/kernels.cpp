// The engine's kernels for the mock driver, unmodified.
#include "cuda_cpu.h"
#include "../../kernels/blco.cu"

#define KNOWN(name, layout, real, sum, order, tiles, ...) MOCK_KERNEL(name, tiles * BLCO_TILE_THREADS)
BLCO_INSTANCES(KNOWN)
#define KNOWN_ORDER(name, threads, ...) MOCK_KERNEL(order_##name, threads)
BLCO_ORDER_KERNELS(KNOWN_ORDER)
MOCK_KERNEL(finish_f64, 1024)
MOCK_KERNEL(finish_f32, 1024)
