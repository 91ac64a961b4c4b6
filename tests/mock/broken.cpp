// Kernels for the self-test: correct ones that use features which the engine's kernels do not, and wrong ones with one fault each.
#include "cuda_cpu.h"
typedef unsigned u32;

extern "C" __global__ void sums_of_warps(const u32* in, u32* out)
{
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    u32 sum = in[i], prefix = in[i];
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    for (u32 d = 1; d < 32; d *= 2) {
        const u32 before = __shfl_up_sync(~0u, prefix, d);
        if (lane >= d) prefix += before;
    }
    const u32 odd = __ballot_sync(~0u, in[i] & 1);
    const u32 first = __shfl_sync(~0u, in[i], 0), next = __shfl_down_sync(~0u, in[i], 1);
    u32 half = 0;
    if (lane < 16) half = __shfl_sync(0xffffu, prefix, 15);
    else half = __shfl_sync(0xffff0000u, prefix, 31);
    const u32 many = __syncthreads_count(in[i] & 1), some = __syncthreads_or(in[i] == 1000000);
    out[i] = sum + 3 * prefix + 5 * (u32)__popc(odd) + 7 * first + 11 * next + 13 * half + 17 * many + 19 * some;
}

extern "C" __global__ void turned(const u32* in, u32* out)
{
    __shared__ u32 line[128];
    atomicExch(&line[threadIdx.x], in[threadIdx.x]);
    __syncthreads();
    out[threadIdx.x] = line[127 - threadIdx.x];
}

extern "C" __global__ void no_barrier(const u32* in, u32* out)
{
    __shared__ u32 line[128];
    line[threadIdx.x] = in[threadIdx.x];
    out[threadIdx.x] = line[127 - threadIdx.x];
}

extern "C" __global__ void two_barriers(const u32*, u32* out)
{
    if (threadIdx.x < 64) {
        __syncthreads();
        out[threadIdx.x] = 1;
    } else {
        __syncthreads();
        out[threadIdx.x] = 2;
    }
}

extern "C" __global__ void barrier_of_some(const u32*, u32* out)
{
    if (threadIdx.x % 5 == 3) return;
    __syncthreads();
    out[threadIdx.x] = 1;
}

extern "C" __global__ void mask_excludes_caller(const u32* in, u32* out)
{
    out[threadIdx.x] = __shfl_sync(0xffffu, in[threadIdx.x], 0);
}

extern "C" __global__ void mask_names_absent(const u32* in, u32* out)
{
    if (threadIdx.x % 32 < 16) out[threadIdx.x] = __shfl_sync(~0u, in[threadIdx.x], 0);
}

extern "C" __global__ void mask_excludes_source(const u32* in, u32* out)
{
    if (threadIdx.x % 32 < 16) out[threadIdx.x] = __shfl_sync(0xffffu, in[threadIdx.x], 20);
}

extern "C" __global__ void reads_outside(const u32* in, u32* out)
{
    out[threadIdx.x] = in[threadIdx.x + 1];
}

extern "C" __global__ void loads_outside(const u32* in, u32* out)
{
    out[threadIdx.x] = __ldg(in + threadIdx.x + 1);
}

extern "C" __global__ void loads_shared(const u32* in, u32* out)
{
    __shared__ u32 line[128];
    line[127 - threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = __ldg(line + threadIdx.x);
}

extern "C" __global__ void adds_outside(const u32*, u32* out)
{
    atomicAdd(out + threadIdx.x + 1, 1u);
}

extern "C" __global__ void misaligned(const u32* in, u32* out)
{
    out[threadIdx.x] = (u32) * (const unsigned long long*)(in + (threadIdx.x | 1));
}

extern "C" __global__ void outside_of_shared(const u32* in, u32* out)
{
    __shared__ u32 line[128], other[128];
    other[threadIdx.x] = in[threadIdx.x];
    line[threadIdx.x + (in[0] != 0)] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = line[threadIdx.x] + other[threadIdx.x];
}

MOCK_KERNEL(sums_of_warps, 1024)
MOCK_KERNEL(turned, 128)
MOCK_KERNEL(no_barrier, 128)
MOCK_KERNEL(two_barriers, 128)
MOCK_KERNEL(barrier_of_some, 128)
MOCK_KERNEL(mask_excludes_caller, 128)
MOCK_KERNEL(mask_names_absent, 128)
MOCK_KERNEL(mask_excludes_source, 128)
MOCK_KERNEL(reads_outside, 128)
MOCK_KERNEL(loads_outside, 128)
MOCK_KERNEL(loads_shared, 128)
MOCK_KERNEL(adds_outside, 128)
MOCK_KERNEL(misaligned, 128)
MOCK_KERNEL(outside_of_shared, 128)
