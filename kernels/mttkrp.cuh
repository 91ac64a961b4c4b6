// MTTKRP of one mode from encoded chunks: out[i_m, :] += value * product over k != m of A_k[i_k, :].
//
// A thread block takes a tile: decodes it into shared memory, orders it by row of the target mode, and hands each
// group of LANES threads an equal part of the ordered nonzeros. A group holds a row's sums in registers and
// updates memory once per row that it meets (register-based conflict resolution; Nguyen et al., ICS 2022,
// section 5.1). With several copies of the result, thread block b adds to copy b mod copies (hierarchical, section
// 5.2); `finish` adds the copies up. Products are in T, chains of at most BLCO_CHAIN additions too; sums are
// in f64. Lane l of a group holds columns l, l + LANES, …: each load and each update covers contiguous bytes.
#pragma once
#include "tile.cuh"

// Nonzeros whose factor rows a group loads before it adds any of them.
#define BATCH 4

// The chunk of a launch that tile `t` belongs to.
__device__ __forceinline__ Chunk chunk_of(const MttkrpArgs& a, u32 t)
{
    if (a.chunks == 0) return a.one;
    const Chunk* chunks = (const Chunk*)a.chunks;
    u32 low = 0, high = a.chunk_count - 1;
    while (low < high) {
        const u32 middle = (low + high + 1) / 2;
        if (chunks[middle].first_tile <= t) low = middle;
        else high = middle - 1;
    }
    return chunks[low];
}

// Multiplies `products` by the rows of mode k's factor at `at`. Columns beyond the rank read its last one.
template <class T, int LANES, int COLUMNS>
__device__ __forceinline__ void multiply(T (&product)[BATCH][COLUMNS], const T* factor, const u32* index,
                                         const u32 (&at)[BATCH], u32 first, u32 rank)
{
#pragma unroll
    for (int b = 0; b < BATCH; ++b) {
        const T* row = factor + (u64)index[at[b]] * rank;
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
            const u32 column = first + c * LANES;
            product[b][c] *= __ldg(row + (column < rank ? column : rank - 1));
        }
    }
}

template <class T, int ORDER, int LANES, int COLUMNS>
__device__ __forceinline__ void accumulate(const MttkrpArgs& a, const Tile<T, ORDER>& tile, const Order& order, u32 nnz,
                                           u32 rank, double* sums)
{
    constexpr u32 GROUPS = BLCO_THREADS / LANES;
    const u32 group = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const u32 begin = nnz * group / GROUPS, end = nnz * (group + 1) / GROUPS;
    if (begin == end) return;
    for (u32 first = lane; first < rank + lane; first += LANES * COLUMNS) {
        T sum[COLUMNS] = {};
        u32 row = Order::row(order.key[begin]);
        const auto update = [&] {
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c) {
                const u32 column = first + c * LANES;
                if (column < rank) atomicAdd(sums + (u64)row * rank + column, (double)sum[c]);
                sum[c] = T(0);
            }
        };
        for (u32 i = begin; i < end; i += BATCH) {
            // A short last batch repeats its last nonzero with the value 0.
            T product[BATCH][COLUMNS];
            u32 at[BATCH], rows[BATCH];
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
                const u64 key = order.key[i + b < end ? i + b : end - 1];
                at[b] = Order::position(key);
                rows[b] = Order::row(key);
                const T value = i + b < end ? tile.value[at[b]] : T(0);
#pragma unroll
                for (int c = 0; c < COLUMNS; ++c) product[b][c] = value;
            }
            if (ORDER < BLCO_ORDER_MAX) {
#pragma unroll
                for (int k = 0; k < ORDER - 1; ++k) {
                    const u32 m = k + (k >= (int)a.mode);
                    multiply<T, LANES, COLUMNS>(product, (const T*)a.factors[m], tile.index[m], at, first, rank);
                }
            } else {
                for (u32 m = 0; m < a.order; ++m) {
                    if (m == a.mode) continue;
                    multiply<T, LANES, COLUMNS>(product, (const T*)a.factors[m], tile.index[m], at, first, rank);
                }
            }
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
                if (rows[b] != row) {
                    update();
                    row = rows[b];
                }
#pragma unroll
                for (int c = 0; c < COLUMNS; ++c) sum[c] += product[b][c];
            }
        }
        update();
    }
}

// RANK 0 takes the rank from the arguments. ORDER is the tensor's, or BLCO_ORDER_MAX, which serves every order.
template <class LAYOUT, class T, int ORDER, int LANES, int COLUMNS, int RANK>
__device__ __forceinline__ void mttkrp(const MttkrpArgs& a)
{
    __shared__ Tile<T, ORDER> tile;
    __shared__ Order order;
    const Chunk chunk = chunk_of(a, blockIdx.x);
    bool bad = false;
    Rows rows;
    const u32 nnz = LAYOUT::decode(tile, rows, a, (const u8*)chunk.image, blockIdx.x - chunk.first_tile, bad);
    if (bad) atomicMin((u32*)a.fault, chunk.number);
    __syncthreads();
    sort_tile(order, tile.index[a.mode], nnz, rows.low, rows.span);
    const u32 rank = RANK > 0 ? RANK : a.rank;
    double* sums = (double*)a.sums + (u64)(blockIdx.x % a.copies) * a.dims[a.mode] * rank;
    accumulate<T, ORDER, LANES, COLUMNS>(a, tile, order, nnz, rank, sums);
}

// The result of a mode: its copies added up in order, in the precision of the factors. May work in place.
template <class T> __device__ __forceinline__ void finish(const double* sums, u32 copies, u64 elements, T* result)
{
    const u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < elements; i += step) {
        double sum = sums[i];
        for (u32 copy = 1; copy < copies; ++copy) sum += sums[copy * elements + i];
        result[i] = (T)sum;
    }
}
