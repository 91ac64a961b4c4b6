// MTTKRP from encoded chunks: out[i_m, :] += value * product over k != m of A_k[i_k, :], for each target mode m.
//
// A thread block takes a few tiles and one target mode. It decodes them into shared memory, ordered by row of the target mode
// (tile.cuh), and gives each group of LANES threads a share of the ordered nonzeros. A group keeps a row's sums in registers
// and updates memory once per row that it meets (register-based conflict resolution; Nguyen et al., ICS 2022,
// section 5.1). With several copies of the result, group g of tiles adds to copy g mod copies (hierarchical, section
// 5.2); `finish` adds the copies up. Products and shares of at most BLCO_SHARE additions are in T, sums in memory in f64. Factors
// are in FACTOR: wide kernels have products in f64 of factors in f32.
//
// Thread blocks with the same tiles and different targets are adjacent, so caches hold what they share. The grid's second
// dimension divides the sweeps over the rank; each sweep covers all tiles before the next begins. Sorted nonzeros have a kernel of
// their own (sorted.cuh).
#pragma once
#include "tile.cuh"

// How a row is divided among LANES threads: each has COLUMNS columns in a sweep over the rank, LANES apart, so each load and each
// update of a group covers contiguous bytes. BATCH is the number of nonzeros whose factor rows are loaded before any of
// them is added.
template <int LANES_, int COLUMNS_, int BATCH_> struct Lanes {
    static constexpr int LANES = LANES_, COLUMNS = COLUMNS_, BATCH = BATCH_, SWEEP = LANES * COLUMNS;
    // Nonzeros of a share, at most.
    static constexpr u32 SHARE_MOST = BLCO_SHARE;
};

// The columns of a thread in one sweep over the rank: column(0) and others at distances of LANES. WHOLE: none is beyond the rank.
template <class S, bool WHOLE> struct Sweep {
    // The sweep's first column, the rank, and the thread's place in its group.
    u32 start, rank, lane;

    __device__ __forceinline__ Sweep(const MttkrpArgs&, u32, u32 start_, u32 rank_)
        : start(start_), rank(rank_), lane(threadIdx.x % S::LANES)
    {
    }

    __device__ __forceinline__ u32 column(int c) const { return start + lane + c * S::LANES; }

    // The base of loads and updates of a matrix row: the thread's first column, so that the addresses of rows differ by multiples
    // of the rank, or column 0 if columns can be missing.
    template <class T> __device__ __forceinline__ T* base(T* matrix) const { return matrix + (WHOLE ? column(0) : 0); }

    // Loads a thread's columns of a row, of which `row` is the base. Columns beyond the rank repeat column 0.
    template <class FACTOR, class T> __device__ __forceinline__ void load(const FACTOR* row, T (&x)[S::COLUMNS]) const
    {
#pragma unroll
        for (int c = 0; c < S::COLUMNS; ++c) x[c] = __ldg(row + (WHOLE ? c * S::LANES : column(c) < rank ? column(c) : 0));
    }

    // Sweeps over a rank begin below this column, and their column number `i` is this one of the result, if it is below the rank.
    static __device__ __forceinline__ u32 end(const MttkrpArgs&, u32, u32 rank) { return rank; }
    static __device__ __forceinline__ u32 column_of(const MttkrpArgs&, u32, u32 start, u32 i, u32) { return start + i; }

    // Loads into `rows` the factor rows of BATCH nonzeros, from place i on; the factor's indices are the group's column k.
    // Multiplies `product` by them if `more` factors follow.
    template <class FACTOR, class GROUP, class T>
    __device__ __forceinline__ void load_rows(const GROUP& group, const MttkrpArgs& a, u32 mode, u32 k, u32 i, bool more,
                                              T (&product)[S::BATCH][S::COLUMNS], T (&rows)[S::BATCH][S::COLUMNS]) const
    {
        const FACTOR* const factor = base((const FACTOR*)a.factors[k == mode ? 0 : k]);
        u32 index[S::BATCH];
        take(group.index[k] + i, index);
#pragma unroll
        for (int b = 0; b < S::BATCH; ++b) {
            load(factor + (u64)index[b] * rank, rows[b]);
#pragma unroll
            for (int c = 0; c < S::COLUMNS; ++c) {
                if (more) product[b][c] *= rows[b][c];
            }
        }
    }

    // Of BATCH nonzeros from place i on: their values times the rows of all factors but the last, and the rows of that.
    template <class FACTOR, class T, int ORDER, class SHAPE>
    __device__ __forceinline__ void terms(const Group<T, ORDER, SHAPE, S>& group, const MttkrpArgs& a, u32 mode, u32 i,
                                          T (&product)[S::BATCH][S::COLUMNS], T (&last)[S::BATCH][S::COLUMNS]) const
    {
        {
            T value[S::BATCH];
            take(group.value + i, value);
#pragma unroll
            for (int b = 0; b < S::BATCH; ++b) {
#pragma unroll
                for (int c = 0; c < S::COLUMNS; ++c) product[b][c] = value[b];
            }
        }
        if (ORDER < BLCO_ORDER_MAX) {
#pragma unroll
            for (int k = 1; k < ORDER; ++k) load_rows<FACTOR>(group, a, mode, k, i, k + 1 < ORDER, product, last);
        } else {
            for (u32 k = 1; k < a.order; ++k) load_rows<FACTOR>(group, a, mode, k, i, k + 1 < a.order, product, last);
        }
    }

    // Adds a thread's sums to a row, of which `row` is the base.
    template <class T> __device__ __forceinline__ void add(double* row, const T (&sum)[S::COLUMNS]) const
    {
#pragma unroll
        for (int c = 0; c < S::COLUMNS; ++c) {
            if (WHOLE || column(c) < rank) atomicAdd(row + (WHOLE ? c * S::LANES : column(c)), (double)sum[c]);
        }
    }

    // Writes the sums there.
    template <class T> __device__ __forceinline__ void write(T* row, const T (&sum)[S::COLUMNS]) const
    {
#pragma unroll
        for (int c = 0; c < S::COLUMNS; ++c) {
            if (WHOLE || column(c) < rank) row[WHOLE ? c * S::LANES : column(c)] = sum[c];
        }
    }
};

// Adds up nonzeros `begin` to `end` of a group, in whole batches. `done` gets the sums of each row, and whether the row is
// the last.
template <class FACTOR, class T, int ORDER, class SHAPE, class S, class SWEEP, class DONE>
__device__ __forceinline__ void accumulate(const SWEEP& sweep, const Group<T, ORDER, SHAPE, S>& group, const MttkrpArgs& a,
                                           u32 mode, u32 begin, u32 end, const DONE& done)
{
    constexpr int BATCH = S::BATCH, COLUMNS = S::COLUMNS;
    T sum[COLUMNS] = {};
    const u32 turn = group.turn(begin);
    u32 row = group.index[0][begin ^ turn];
#pragma unroll 1
    for (u32 at = begin; at < end; at += BATCH) {
        const u32 i = at ^ turn;
        T product[BATCH][COLUMNS], last[BATCH][COLUMNS];
        u32 rows[BATCH];
        take(group.index[0] + i, rows);
        sweep.template terms<FACTOR>(group, a, mode, i, product, last);
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            if (rows[b] != row) {
                done(row, sum, false);
                row = rows[b];
#pragma unroll
                for (int c = 0; c < COLUMNS; ++c) sum[c] = product[b][c] * last[b][c];
            } else {
#pragma unroll
                for (int c = 0; c < COLUMNS; ++c) sum[c] += product[b][c] * last[b][c];
            }
        }
    }
    done(row, sum, true);
}

// Adds up the ordered nonzeros of a thread block.
template <class FACTOR, class SWEEP, class T, int ORDER, class SHAPE, class S>
__device__ __forceinline__ void reduce(const Group<T, ORDER, SHAPE, S>& group, const MttkrpArgs& a, u32 mode, u32 nnz, u32 rank,
                                       double* sums)
{
    constexpr u32 SHARE = Group<T, ORDER, SHAPE, S>::SHARE;
    const u32 begin = threadIdx.x / S::LANES * SHARE, end = begin + SHARE < nnz ? begin + SHARE : nnz;
    if (begin >= end) return;
    const u32 columns = SWEEP::end(a, mode, rank);
    for (u32 start = blockIdx.y * S::SWEEP; start < columns; start += gridDim.y * S::SWEEP) {
        const SWEEP sweep(a, mode, start, rank);
        double* const out = sweep.base(sums);
        accumulate<FACTOR>(sweep, group, a, mode, begin, end,
                   [&](u32 row, const T (&sum)[S::COLUMNS], bool) { sweep.add(out + (u64)row * rank, sum); });
    }
}

// With RANK 0, the rank is an argument. ORDER is the tensor's, or BLCO_ORDER_MAX, which serves every order. A thread block takes its
// tiles in TIMES steps.
template <class LAYOUT, class T, int ORDER, class SHAPE, class S, int RANK, class FACTOR = T, u32 TIMES = 1,
          template <class, bool> class SWEEP = Sweep>
__device__ __forceinline__ void mttkrp(const MttkrpArgs& a)
{
    __shared__ Group<T, ORDER, SHAPE, S> group;
    const u32 of_tiles = blockIdx.x / a.target_count;
    const Target target = a.targets[blockIdx.x % a.target_count];
    const Chunk chunk = a.chunks == 0 ? a.one : chunk_of((const Chunk*)a.chunks, a.chunk_count, of_tiles);
    const u32 first = (of_tiles - chunk.first_block) * (TIMES * SHAPE::TILES);
    const u32 rank = RANK > 0 ? RANK : a.rank;
#pragma unroll 1
    for (u32 time = 0; time < TIMES; ++time) {
        const u32 tile = first + time * SHAPE::TILES;
        if (time > 0) {
            if (tile >= (LAYOUT::header_of((const u8*)chunk.image).nnz + BLCO_TILE_NNZ - 1) / BLCO_TILE_NNZ) break;
            __syncthreads();
        }
        bool bad = false;
        const u32 nnz = gather<LAYOUT>(group, a, target.mode, (const u8*)chunk.image, tile, bad);
        if (bad) atomicMin((u32*)a.fault, chunk.number);
        double* sums = (double*)target.sums + (u64)(of_tiles % target.copies) * a.dims[target.mode] * rank;
        reduce<FACTOR, SWEEP<S, (RANK > 0 && RANK % S::SWEEP == 0)>>(group, a, target.mode, nnz, rank, sums);
    }
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
