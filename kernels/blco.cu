// The kernels by name. Without options: the instances that are embedded as PTX and serve every order and rank.
// With BLCO_ORDER, BLCO_RANK, BLCO_LAYOUT, BLCO_REAL, BLCO_LANES, BLCO_COLUMNS: the one kernel `mttkrp` made for them.
#include "mttkrp.cuh"

#define MTTKRP(name, layout, real, order, lanes, columns, rank)                                                        \
    extern "C" __global__ void __launch_bounds__(BLCO_THREADS) name(const MttkrpArgs args)                             \
    {                                                                                                                  \
        mttkrp<layout, real, order, lanes, columns, rank>(args);                                                       \
    }

#ifdef BLCO_RANK
MTTKRP(mttkrp, BLCO_LAYOUT, BLCO_REAL, BLCO_ORDER, BLCO_LANES, BLCO_COLUMNS, BLCO_RANK)
#else
#include "instances.h"
BLCO_INSTANCES(MTTKRP)

extern "C" __global__ void finish_f64(const double* sums, u32 copies, u64 elements, double* result)
{
    finish(sums, copies, elements, result);
}

extern "C" __global__ void finish_f32(const double* sums, u32 copies, u64 elements, float* result)
{
    finish(sums, copies, elements, result);
}
#endif
