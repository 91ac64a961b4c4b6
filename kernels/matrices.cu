// The embedded kernels that multiply matrices on tensor cores, apart from the others because their PTX is for compute capability 8.0 at least.
#include "instances.h"
#include "tensor_cores.cuh"

BLCO_TTMC_MATRIX_INSTANCES(MATRICES_OF)
