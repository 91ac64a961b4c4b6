// MTTKRP of one mode from encoded chunks: out[i_m, :] += value * product over k != m of A_k[i_k, :].
//
// A thread block takes a few tiles: decodes them into shared memory, ordered by row of the target mode (tile.cuh), and
// hands each group of LANES threads an equal part of the ordered nonzeros. Such a group holds a row's sums in registers
// and updates memory once per row that it meets (register-based conflict resolution; Nguyen et al., ICS 2022,
// section 5.1). Where the nonzeros are sorted by row, a row that begins and ends inside a part is written, not added: nobody
// else has it. With several copies of the result, thread block b adds to copy b mod copies (hierarchical, section
// 5.2); `finish` adds the copies up. Products are in T, parts of at most BLCO_PART additions too; sums in memory are in SUM:
// f64, or T where the nonzeros are sorted and no row lies in more than BLCO_PART parts.
#pragma once
#include "tile.cuh"

// The chunk of a launch that thread block `block` works on.
__device__ __forceinline__ Chunk chunk_of(const MttkrpArgs& a, u32 block)
{
    if (a.chunks == 0) return a.one;
    const Chunk* chunks = (const Chunk*)a.chunks;
    u32 low = 0, high = a.chunk_count - 1;
    while (low < high) {
        const u32 middle = (low + high + 1) / 2;
        if (chunks[middle].first_block <= block) low = middle;
        else high = middle - 1;
    }
    return chunks[low];
}

// How a row is shared: LANES threads, each with COLUMNS columns in a sweep over the rank, loaded VECTOR at a time: one, or four
// floats. BATCH is the number of nonzeros whose factor rows are loaded before any of them is added.
template <int LANES_, int COLUMNS_, int VECTOR_, int BATCH_> struct Lanes {
    static constexpr int LANES = LANES_, COLUMNS = COLUMNS_, VECTOR = VECTOR_, BATCH = BATCH_, SWEEP = LANES * COLUMNS;
    static_assert(VECTOR == 1 || (VECTOR == 4 && COLUMNS % 4 == 0 && LANES % 4 == 0), "whole vectors, lanes to transpose them");

    // Which column of a sweep lane 0 loads as its number c; lane l loads that l * VECTOR further.
    static __device__ constexpr u32 loaded(int c) { return c / VECTOR * LANES * VECTOR + c % VECTOR; }
};

// Exchanges x[c] of lane l with x[l mod 4] of the c-th of the four lanes that l is among, all of which call it.
template <class T> __device__ __forceinline__ void transpose(T* x, u32 lane, u32 lanes)
{
#pragma unroll
    for (u32 distance = 2; distance > 0; distance /= 2) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            if (i & distance) continue;
            const bool upper = lane & distance;
            const T other = __shfl_xor_sync(lanes, upper ? x[i] : x[i + distance], distance);
            if (upper) x[i] = other;
            else x[i + distance] = other;
        }
    }
}

// N numbers of shared memory from a multiple of 16 bytes on.
template <class T, int N> __device__ __forceinline__ void take(const T* from, T (&to)[N])
{
    struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Numbers {
        T x[N];
    };
    const Numbers numbers = *(const Numbers*)from;
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = numbers.x[i];
}

// The columns of a thread in one sweep over the rank. WHOLE: all of them are there.
template <class S, bool WHOLE> struct Sweep {
    // The sweep's first column, and how many the rank has from there on.
    u32 start, left;
    u32 lane;
    // The lanes of the group.
    u32 lanes;

    __device__ __forceinline__ Sweep(u32 start_, u32 rank) : start(start_), left(rank - start_), lane(threadIdx.x % S::LANES)
    {
        lanes = ((1u << S::LANES) - 1) << (threadIdx.x % 32 / S::LANES * S::LANES);
    }

    // The column where a thread's loads start.
    __device__ __forceinline__ u32 first() const { return WHOLE ? start + lane * S::VECTOR : 0; }

    // Loads a thread's columns of a row, whose column `first` is at `row`. Columns beyond the rank repeat others.
    template <class T> __device__ __forceinline__ void load(const T* row, T (&x)[S::COLUMNS]) const
    {
#pragma unroll
        for (int c = 0; c < S::COLUMNS; c += S::VECTOR) {
            const u32 column = lane * S::VECTOR + S::loaded(c);
            const T* at = row + (WHOLE ? S::loaded(c) : start + (column < left ? column : 0));
            if (S::VECTOR == 1) {
                x[c] = __ldg(at);
            } else {
                const float4 v = __ldg((const float4*)at);
                x[c] = v.x, x[c + 1] = v.y, x[c + 2] = v.z, x[c + 3] = v.w;
            }
        }
    }

    // The column where a thread's updates start. Each update of a group covers whole sectors of 32 bytes: vectors are
    // transposed first, so that lane l has column l mod 4 of each four.
    __device__ __forceinline__ u32 home() const { return start + (S::VECTOR == 1 ? lane : lane / 4 * 16 + lane % 4); }

    // Adds a thread's sums to a row, whose column `home` is at `row`, or writes them there where the row is the group's alone;
    // clears them. Called by all lanes of a group.
    template <class T, class SUM> __device__ __forceinline__ void update(SUM* row, T (&sum)[S::COLUMNS], bool alone) const
    {
#pragma unroll
        for (int c = 0; c < S::COLUMNS; c += S::VECTOR) {
            if (S::VECTOR == 4) transpose(sum + c, lane, lanes);
#pragma unroll
            for (int v = 0; v < S::VECTOR; ++v) {
                const u32 further = S::loaded(c) + 4 * v;
                if (WHOLE || home() - start + further < left) {
                    if (alone) row[further] = (SUM)sum[c + v];
                    else atomicAdd(row + further, (SUM)sum[c + v]);
                }
                sum[c + v] = T(0);
            }
        }
    }
};

// Loads into `rows` what nonzeros i to i + BATCH - 1 ask of the factor whose indices are the group's column k, and
// multiplies `product` by it where `more` factors follow.
template <class T, int ORDER, class SHAPE, class S, bool WHOLE>
__device__ __forceinline__ void load_rows(const Sweep<S, WHOLE>& sweep, const Group<T, ORDER, SHAPE>& group, const MttkrpArgs& a,
                                          u32 k, u32 i, u32 rank, bool more, T (&product)[S::BATCH][S::COLUMNS],
                                          T (&rows)[S::BATCH][S::COLUMNS])
{
    const T* const factor = (const T*)a.factors[k - (k <= a.mode)] + sweep.first();
    u32 index[S::BATCH];
    take(group.index[k] + i, index);
#pragma unroll
    for (int b = 0; b < S::BATCH; ++b) {
        sweep.load(factor + (u64)index[b] * rank, rows[b]);
#pragma unroll
        for (int c = 0; c < S::COLUMNS; ++c) {
            if (more) product[b][c] *= rows[b][c];
        }
    }
}

// Adds a group of `nnz` nonzeros, a multiple of BATCH, to `sums`. WHOLE: the rank is a multiple of SWEEP.
template <class T, class SUM, int ORDER, class SHAPE, class S, bool WHOLE>
__device__ __forceinline__ void accumulate(const Group<T, ORDER, SHAPE>& group, const MttkrpArgs& a, u32 nnz, u32 rank, SUM* sums)
{
    constexpr int BATCH = S::BATCH, COLUMNS = S::COLUMNS;
    constexpr u32 PARTS = SHAPE::THREADS / S::LANES;
    static_assert(SHAPE::NNZ / PARTS <= BLCO_PART, "a thread adds up so many");
    const u32 part = threadIdx.x / S::LANES;
    const u32 begin = nnz / BATCH * part / PARTS * BATCH, end = nnz / BATCH * (part + 1) / PARTS * BATCH;
    if (begin == end) return;
    for (u32 start = 0; start < rank; start += S::SWEEP) {
        const Sweep<S, WHOLE> sweep(start, rank);
        SUM* const out = sums + sweep.home();
        T sum[COLUMNS] = {};
        const u32 first = group.index[0][begin];
        u32 row = first;
#pragma unroll 1
        for (u32 i = begin; i < end; i += BATCH) {
            T product[BATCH][COLUMNS], last[BATCH][COLUMNS];
            u32 rows[BATCH];
            take(group.index[0] + i, rows);
            {
                T value[BATCH];
                take(group.value + i, value);
#pragma unroll
                for (int b = 0; b < BATCH; ++b) {
#pragma unroll
                    for (int c = 0; c < COLUMNS; ++c) product[b][c] = value[b];
                }
            }
            if (ORDER < BLCO_ORDER_MAX) {
#pragma unroll
                for (int k = 1; k < ORDER; ++k) load_rows(sweep, group, a, k, i, rank, k + 1 < ORDER, product, last);
            } else {
                for (u32 k = 1; k < a.order; ++k) load_rows(sweep, group, a, k, i, rank, k + 1 < a.order, product, last);
            }
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
                if (rows[b] != row) {
                    // The part's first row can begin before it, and its last one end behind it.
                    sweep.update(out + (u64)row * rank, sum, a.sorted && row != first);
                    row = rows[b];
                }
#pragma unroll
                for (int c = 0; c < COLUMNS; ++c) sum[c] += product[b][c] * last[b][c];
            }
        }
        sweep.update(out + (u64)row * rank, sum, false);
    }
}

// RANK 0 takes the rank from the arguments. ORDER is the tensor's, or BLCO_ORDER_MAX, which serves every order.
template <class LAYOUT, class T, class SUM, int ORDER, class SHAPE, class S, int RANK>
__device__ __forceinline__ void mttkrp(const MttkrpArgs& a)
{
    __shared__ Group<T, ORDER, SHAPE> group;
    const Chunk chunk = chunk_of(a, blockIdx.x);
    const u32 tile = (blockIdx.x - chunk.first_block) * SHAPE::TILES;
    bool bad = false;
    const u32 nnz = gather<LAYOUT, S::BATCH>(group, a, (const u8*)chunk.image, tile, bad);
    if (bad) atomicMin((u32*)a.fault, chunk.number);
    const u32 rank = RANK > 0 ? RANK : a.rank;
    SUM* sums = (SUM*)a.sums + (u64)(blockIdx.x % a.copies) * a.dims[a.mode] * rank;
    accumulate<T, SUM, ORDER, SHAPE, S, (RANK > 0 && RANK % S::SWEEP == 0)>(group, a, nnz, rank, sums);
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
