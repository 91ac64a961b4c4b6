// Finds the fibers of resident `tiled` chunks along a mode, the *leaf* mode (src/backend/cuda/mode_sorted/fibers.rs).
//
//   estimate   estimates the number of fibers along each mode
//   next_keys  puts the rows of a further mode in the order that the sort (sort.cuh) has reached
//   begins     marks each fiber's first nonzero and counts them in each tile of the sorted nonzeros; a scan adds the counts up
//   number     replaces the rows by the numbers of the fibers
//
// `measure` and `pack` (mode_sorted.cuh) then write two lists: all nonzeros with their fiber and leaf, and an entry for each fiber, whose index in
// the leaf mode is the fiber's number.
#pragma once
#include "mode_sorted.cuh"

namespace mode_sorted {

// The finalizer of MurmurHash3 (Appleby).
__device__ __forceinline__ u64 mixed(u64 x)
{
    x = (x ^ x >> 33) * 0xff51afd7ed558ccdull;
    x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53ull;
    return x ^ x >> 33;
}

// A thread block of BLCO_TILE_THREADS for each tile of the chunks, after `keys`. HyperLogLog (Flajolet et al., AofA 2007): a fiber's hash is that
// of its other indices, and each register keeps the largest number of zeros that a hash begins with, plus 1.
__device__ inline void estimate(const BuildArgs& a)
{
    Damage damage = {NO_DAMAGE};
    for (u32 i = threadIdx.x; i < BLCO_TILE_NNZ; i += BLCO_TILE_THREADS) {
        const u32 position = blockIdx.x * BLCO_TILE_NNZ + i;
        if (position >= a.positions_end || ((const u32*)a.rows)[position] == ~0u) break;
        Nonzero x = nonzero_at(a, position);
        u64 of_mode[BLCO_ORDER_MAX], all = 0;
#pragma unroll
        for (u32 m = 0; m < BLCO_ORDER_MAX; ++m) {
            if (m >= a.order) break;
            of_mode[m] = mixed((u64)(m + 1) << 32 | next_index(x, m, damage));
            all += of_mode[m];
        }
#pragma unroll
        for (u32 m = 0; m < BLCO_ORDER_MAX; ++m) {
            if (m >= a.order) break;
            const u64 hash = mixed(all - of_mode[m]);
            const u32 zeros = __clzll((i64)(hash | 1)) + 1;
            u32* const kept = (u32*)a.registers + m * BLCO_FIBER_REGISTERS + hash % BLCO_FIBER_REGISTERS;
            // What a cache still holds is too small at worst.
            if (*kept < zeros) atomicMax(kept, zeros);
        }
    }
    note(a, damage);
}

// A grid of thread blocks of BLCO_TILE_THREADS: a thread for each position.
__device__ inline void next_keys(const BuildArgs& a)
{
    const u64 i = (u64)blockIdx.x * BLCO_TILE_THREADS + threadIdx.x;
    Damage damage = {NO_DAMAGE};
    if (i >= a.positions_end) return;
    u32 row = ~0u;
    if (i < a.nnz) {
        Nonzero x = nonzero_at(a, ((const u32*)a.positions)[i]);
        for (u32 m = 0; m < a.mode; ++m) skip_index(x, m);
        row = next_index(x, a.mode, damage);
    }
    ((u32*)a.rows)[i] = row;
    note(a, damage);
}

// Whether two nonzeros belong to different fibers.
__device__ __forceinline__ bool differ(const BuildArgs& a, u32 position, u32 other, Damage& damage)
{
    Nonzero x = nonzero_at(a, position), y = nonzero_at(a, other);
    bool differs = false;
    for (u32 m = 0; m < a.order; ++m) {
        const u32 of_x = next_index(x, m, damage), of_y = next_index(y, m, damage);
        differs |= m != a.leaf && of_x != of_y;
    }
    return differs;
}

// A thread block of BLCO_TILE_THREADS for each tile of the sorted nonzeros. The marks take the place of the rows.
__device__ inline void begins(const BuildArgs& a)
{
    const u32* const positions = (const u32*)a.positions;
    const u32 nnz = nnz_of(a, blockIdx.x), first = blockIdx.x * BLCO_TILE_NNZ;
    Damage damage = {NO_DAMAGE};
    u32 count = 0;
    for (u32 begin = 0; begin < BLCO_TILE_NNZ; begin += BLCO_TILE_THREADS) {
        const u32 i = begin + threadIdx.x, at = first + i;
        const bool is_first = i < nnz && (at == 0 || differ(a, positions[at], positions[at - 1], damage));
        if (i < nnz) ((u32*)a.rows)[at] = is_first;
        count += __syncthreads_count(is_first);
    }
    if (threadIdx.x == 0) ((u32*)a.offsets)[blockIdx.x] = count;
    note(a, damage);
}

// The same grid.
__device__ inline void number(const BuildArgs& a)
{
    __shared__ u32 of_warp[BLCO_TILE_THREADS / 32];
    u32* const rows = (u32*)a.rows;
    u32* const firsts = (u32*)a.firsts;
    const u32 nnz = nnz_of(a, blockIdx.x), first = blockIdx.x * BLCO_TILE_NNZ, warp = threadIdx.x / 32;
    // Fibers that begin before.
    u32 before = ((const u32*)a.offsets)[blockIdx.x];
    for (u32 begin = 0; begin < BLCO_TILE_NNZ; begin += BLCO_TILE_THREADS) {
        const u32 i = begin + threadIdx.x, at = first + i;
        const bool is_first = i < nnz && rows[at] != 0;
        const u32 word = __ballot_sync(~0u, is_first);
        if (threadIdx.x % 32 == 0) of_warp[warp] = __popc(word);
        __syncthreads();
        u32 upto = before + __popc(word & (~0u >> (31 - threadIdx.x % 32)));
        for (u32 w = 0; w < BLCO_TILE_THREADS / 32; ++w) {
            if (w < warp) upto += of_warp[w];
            before += of_warp[w];
        }
        __syncthreads();
        if (i >= nnz) continue;
        const u32 fiber = upto - 1;
        rows[at] = fiber;
        if (is_first && fiber < a.fibers) {
            firsts[fiber] = ((const u32*)a.positions)[at];
            firsts[(u64)a.fibers + fiber] = fiber;
        }
    }
}

}  // namespace mode_sorted
