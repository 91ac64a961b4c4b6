// SpTTMc: the columns of a Kronecker product (Liu et al., CLUSTER 2017, equation 4), and what computes them from trees as they lie.
//
// Tiles are reduced like those of MTTKRP (mttkrp.cuh). From trees (branches.cuh), where fibers are long, it goes fiber by fiber: a row of the
// leaf mode's rank holds the sum of values times rows along a fiber, and is multiplied once by the rows of the other modes. Fibers are cut into
// pieces, which are ordered by target row unless they are in order of it; their sums are in shared memory, as many at a time as have room. Where
// fibers are short, and for the leaves' own mode, it goes nonzero by nonzero.
#pragma once
#include "branches.cuh"

// Nonzeros of a fiber, on average in a group, from which its sum is worth while.
constexpr u32 SHARED_FIBER = 3;
// Nonzeros of a piece, and pieces that are added up in T, at most: together as many additions as elsewhere.
constexpr u32 PIECE = BLCO_SHARE / 2, PIECES = BLCO_SHARE / 2;
// Fibers whose sums are in shared memory at a time, at least. Wider rows go nonzero by nonzero.
constexpr u32 ROUND_LEAST = 8;
// Bytes of sums for each tile (`kronecker_tree_bytes` in src/backend/cuda/kernels.rs).
constexpr u32 SUM_BYTES = 8 << 10;

// Columns of a Kronecker product instead of those of one rank (`Sweep`): column j of the product takes element
// `j / stride % width` of each factor's row. All columns of a thread take the same elements but of one factor, the *near* one, whose
// elements vary second fastest: of that they take COLUMNS that follow one another. So each thread multiplies the other elements once a
// nonzero, and adjacent threads update adjacent columns. WHOLE is of no use here.
template <class S, bool WHOLE> struct KroneckerSweep {
    // The rank, the group's column of the near factor, and for each other column the element of its factor's row.
    u32 rank, near, number[BLCO_ORDER_MAX];
    // The thread's first column of the product, how far apart they are, how many there are, and the first one's element of the near
    // factor's row.
    u32 first, stride, count, element;
    // The thread's place in its group.
    u32 lane;

    // The mode whose elements vary second fastest; fastest if there is no other.
    static __device__ __forceinline__ u32 near_mode(const MttkrpArgs& a, u32 target)
    {
        const u32 fastest = target + 1 == a.order ? a.order - 2 : a.order - 1;
        if (a.order == 2) return fastest;
        return fastest - 1 != target ? fastest - 1 : fastest - 2;
    }

    // A thread takes consecutive elements of the near factor: one of `runs_of` runs of nearly the same length, up to COLUMNS.
    static __device__ __forceinline__ u32 runs_of(u32 width) { return (width + S::COLUMNS - 1) / S::COLUMNS; }

    static __device__ __forceinline__ u32 end(const MttkrpArgs& a, u32 target, u32 rank)
    {
        const u32 width = a.widths[near_mode(a, target)];
        return rank / width * runs_of(width) * S::COLUMNS;
    }

    __device__ __forceinline__ KroneckerSweep(const MttkrpArgs& a, u32 target, u32 start, u32 rank_, u32 lane_ = threadIdx.x % S::LANES)
        : rank(rank_), lane(lane_)
    {
        const u32 mode = near_mode(a, target), width = a.widths[mode], runs = runs_of(width), unit = start / S::COLUMNS + lane;
        near = mode == 0 ? target : mode;
        stride = a.strides[mode];
        const u32 slower = unit / stride, length = (width + runs - 1) / runs;
        element = slower % runs * length;
        first = (slower / runs * width + element) * stride + unit % stride;
        count = first >= rank || element >= width ? 0 : width - element < length ? width - element : length;
        // Lanes that have no columns load what lies in all rows.
        if (count == 0) element = 0;
#pragma unroll
        for (u32 k = 1; k < BLCO_ORDER_MAX; ++k) {
            if (k >= a.order) break;
            const u32 m = k == target ? 0 : k;
            number[k] = count == 0 ? 0 : first / a.strides[m] % a.widths[m];
        }
    }

    static __device__ __forceinline__ u32 column_of(const MttkrpArgs& a, u32 target, u32 start, u32 i, u32 rank)
    {
        const KroneckerSweep of(a, target, start, rank, i % S::LANES);
        return i / S::LANES < of.count ? of.first + i / S::LANES * of.stride : rank;
    }

    template <class T> __device__ __forceinline__ T* base(T* matrix) const { return matrix + first; }

    // The mode whose indices are the group's column k, if it has been ordered by row of the target mode.
    static __device__ __forceinline__ u32 mode_of(u32 target, u32 k) { return k == target ? 0 : k; }

    // The first element that a thread takes of that mode's rows.
    template <int ORDER> __device__ __forceinline__ u32 element_of(u32 k) const
    {
        u32 own = element;
#pragma unroll
        for (u32 i = 1; i < ORDER; ++i) own = i == k && k != near ? number[i] : own;
        return own;
    }

    // What a thread takes of the rows of a factor, whose indices are the group's column k: COLUMNS elements if it is the near one, or one.
    template <class FACTOR, int ORDER> struct Elements {
        const FACTOR* first;
        u32 width, count;

        __device__ __forceinline__ Elements(const KroneckerSweep& sweep, const MttkrpArgs& a, u32 mode, u32 k) : count(sweep.count)
        {
            const u32 m = mode_of(mode, k);
            first = (const FACTOR*)a.factors[m] + sweep.element_of<ORDER>(k);
            width = a.widths[m];
        }

        template <class T, int N> __device__ __forceinline__ void take(u32 index, T (&x)[N]) const
        {
            const FACTOR* const row = first + (u64)index * width;
            if (N == 1) {
                x[0] = __ldg(row);
            } else if (width % N == 0) {
                take_read_only(row, x);
            } else {
#pragma unroll
                for (int c = 0; c < N; ++c) x[c] = __ldg(row + (c < (int)count ? c : 0));
            }
        }
    };

    template <class FACTOR, class T, int ORDER, class SHAPE>
    __device__ __forceinline__ void terms(const Group<T, ORDER, SHAPE, S>& group, const MttkrpArgs& a, u32 mode, u32 i,
                                          T (&product)[S::BATCH][S::COLUMNS], T (&last)[S::BATCH][S::COLUMNS]) const
    {
        u32 index[S::BATCH];
        T value[S::BATCH];
        take(group.value + i, value);
#pragma unroll
        for (int k = 1; k < ORDER; ++k) {
            if (ORDER == BLCO_ORDER_MAX && k >= (int)a.order) break;
            if (k == (int)near) continue;
            const Elements<FACTOR, ORDER> elements(*this, a, mode, k);
            take(group.index[k] + i, index);
#pragma unroll
            for (int b = 0; b < S::BATCH; ++b) {
                T x[1];
                elements.take(index[b], x);
                value[b] *= x[0];
            }
        }
        const Elements<FACTOR, ORDER> elements(*this, a, mode, near);
        take(group.index[near] + i, index);
#pragma unroll
        for (int b = 0; b < S::BATCH; ++b) {
            elements.take(index[b], last[b]);
#pragma unroll
            for (int c = 0; c < S::COLUMNS; ++c) product[b][c] = value[b];
        }
    }

    // Adds a thread's sums to a row, of which `row` is the base.
    template <class T> __device__ __forceinline__ void add(double* row, const T (&sum)[S::COLUMNS]) const
    {
#pragma unroll
        for (int c = 0; c < S::COLUMNS; ++c) {
            if (c < (int)count) atomicAdd(row + c * stride, (double)sum[c]);
        }
    }

    // Writes the sums there.
    template <class T> __device__ __forceinline__ void write(T* row, const T (&sum)[S::COLUMNS]) const
    {
#pragma unroll
        for (int c = 0; c < S::COLUMNS; ++c) {
            if (c < (int)count) row[c * stride] = sum[c];
        }
    }
};

// Pieces of a group's fibers and their sums.
template <class T, class SHAPE> struct alignas(16) Pieces {
    static constexpr u32 MOST = SHAPE::NNZ / SHARED_FIBER + SHAPE::NNZ / PIECE, SUMS = SUM_BYTES * SHAPE::TILES / sizeof(T);
    static_assert(PIECE == 32, "a piece is within the bits of a word");

    // What there is before there are sums: the pieces of each row modulo NNZ, the sums of warps, and where pieces begin in the tree's order.
    struct Before {
        u32 count[SHAPE::NNZ], warps[32];
        u16 slot[MOST + 1];
    };

    // In order of target rows: the first slot, and 2^16 times the slot behind the last.
    u32 piece[MOST];
    union {
        // A row for each piece of a round.
        T sum[SUMS];
        Before before;
    };
    static_assert(sizeof(before) <= sizeof(sum), "they share their place");
};

// Cuts the fibers of a group of `slots` into pieces, in order of rows of `mode`, which they are in if they are `ordered`. `marks` has a bit for
// each slot in which a fiber begins; then also for pieces. Returns how many there are. The whole thread block calls it and sees them on return.
template <class T, int ORDER, class SHAPE, class S>
__device__ __forceinline__ u32 cut(Pieces<T, SHAPE>& p, const Group<T, ORDER, SHAPE, S>& group, u32* marks, u32 mode, u32 slots, bool ordered)
{
    constexpr int PER = SHAPE::PER;
    const u32 first = PER * threadIdx.x, words = (slots + 31) / 32;
    // Damaged starts lie anywhere.
    if (threadIdx.x < SHAPE::NNZ / 32) {
        const u32 there = threadIdx.x + 1 < words ? ~0u : threadIdx.x < words ? ~0u >> (32 * words - slots) : 0;
        marks[threadIdx.x] = (marks[threadIdx.x] | 1) & there;
    }
#pragma unroll
    for (int k = 0; k < PER; ++k) p.before.count[threadIdx.x + k * SHAPE::THREADS] = 0;
    __syncthreads();
    u32 rank[PER], row[PER], at[PER], all = 0;
    ranks_of<SHAPE>(marks, rank);
    const u32 begins = marks[threadIdx.x / 8] >> threadIdx.x % 8 * 4;
    for (u32 w = 0; w < words; ++w) all += __popc(marks[w]);
    take(group.index[mode] + group.place(first), row);
#pragma unroll
    for (int k = 0; k < PER; ++k) {
        if ((begins >> k & 1) == 0) continue;
        at[k] = rank[k] - 1;
        p.before.slot[at[k]] = (u16)(first + k);
        if (!ordered) at[k] = atomicAdd(&p.before.count[row[k] % SHAPE::NNZ], 1u);
    }
    if (threadIdx.x == 0) p.before.slot[all] = (u16)slots;
    __syncthreads();
    if (!ordered) add_up<SHAPE>(p.before.count, p.before.warps);
#pragma unroll
    for (int k = 0; k < PER; ++k) {
        if ((begins >> k & 1) == 0) continue;
        const u32 place = ordered ? at[k] : at[k] + p.before.count[row[k] % SHAPE::NNZ];
        p.piece[place] = first + k + ((u32)p.before.slot[rank[k]] << 16);
    }
    __syncthreads();
    return all;
}

// Adds up pieces `from` to `end` along their fibers: each one's sum of values times rows of the leaf mode's factor, which is `rank` wide.
template <class T, int ORDER, class SHAPE, class S>
__device__ __forceinline__ void add_up_pieces(Pieces<T, SHAPE>& p, const Group<T, ORDER, SHAPE, S>& group, const u32* leaves, const T* factor,
                                              u32 rank, u32 from, u32 end)
{
    const u32 lane = threadIdx.x % S::LANES;
    for (u32 n = from + threadIdx.x / S::LANES; n < end; n += SHAPE::THREADS / S::LANES) {
        const u32 begin = p.piece[n] & 0xffff, behind = p.piece[n] >> 16;
        for (u32 r = lane; r < rank; r += S::LANES) {
            T sum = T(0);
#pragma unroll 4
            for (u32 i = begin; i < behind; ++i) {
                const u32 at = group.place(i);
                sum += group.value[at] * __ldg(factor + (u64)leaves[at] * rank + r);
            }
            p.sum[(n - from) * rank + r] = sum;
        }
    }
}

// Multiplies the sums of pieces `from` to `end` by the rows of the other modes, and adds them to rows of `mode`. The groups of LANES threads
// divide the sweeps over the columns first, then the pieces.
template <class SWEEP, class T, int ORDER, class SHAPE, class S>
__device__ __forceinline__ void multiply_pieces(const Pieces<T, SHAPE>& p, const Group<T, ORDER, SHAPE, S>& group, const MttkrpArgs& a, u32 mode,
                                                u32 leaf, u32 from, u32 end, double* sums)
{
    constexpr u32 BATCH = S::BATCH, COLUMNS = S::COLUMNS, GROUPS = SHAPE::THREADS / S::LANES;
    const u32 columns = SWEEP::end(a, mode, a.rank), sweeps = (columns + S::SWEEP - 1) / S::SWEEP;
    const u32 of_sweeps = sweeps < GROUPS ? sweeps : GROUPS, of_pieces = GROUPS / of_sweeps, own = threadIdx.x / S::LANES;
    const u32 each = (end - from + of_pieces - 1) / of_pieces, begin = from + own % of_pieces * each;
    const u32 behind = begin + each < end ? begin + each : end, width = a.widths[leaf];
    if (own / of_pieces >= of_sweeps || begin >= behind) return;
    const u32 first = own / of_pieces + blockIdx.y * of_sweeps;
    for (u32 start = first * S::SWEEP; start < columns; start += gridDim.y * of_sweeps * S::SWEEP) {
        const SWEEP sweep(a, mode, start, a.rank);
        double* const out = sweep.base(sums);
        const bool is_near = sweep.mode_of(mode, sweep.near) == leaf;
        const typename SWEEP::template Elements<T, ORDER> near(sweep, a, mode, sweep.near);
        const u32 element = sweep.template element_of<ORDER>(leaf == 0 ? mode : leaf);
        T sum[COLUMNS] = {};
        u32 row = group.index[mode][group.place(p.piece[begin] & 0xffff)], added = 0;
#pragma unroll 1
        for (u32 n = begin; n < behind; n += BATCH) {
            T product[BATCH], last[BATCH][COLUMNS];
            u32 rows[BATCH];
#pragma unroll
            for (u32 b = 0; b < BATCH; ++b) {
                // What is beyond the last piece repeats it, and is not added.
                const u32 number = n + b < behind ? n + b : behind - 1, at = group.place(p.piece[number] & 0xffff);
                const T* const of_fiber = p.sum + (number - from) * width + element;
                rows[b] = group.index[mode][at];
                product[b] = is_near ? T(1) : of_fiber[0];
#pragma unroll
                for (u32 k = 1; k < ORDER; ++k) {
                    if (ORDER == BLCO_ORDER_MAX && k >= a.order) break;
                    const u32 m = sweep.mode_of(mode, k);
                    if (k == sweep.near || m == leaf) continue;
                    T x[1];
                    typename SWEEP::template Elements<T, ORDER>(sweep, a, mode, k).take(group.index[m][at], x);
                    product[b] *= x[0];
                }
                if (is_near) {
#pragma unroll
                    for (u32 c = 0; c < COLUMNS; ++c) last[b][c] = of_fiber[c < sweep.count ? c : 0];
                } else {
                    near.take(group.index[sweep.mode_of(mode, sweep.near)][at], last[b]);
                }
            }
#pragma unroll
            for (u32 b = 0; b < BATCH; ++b) {
                if (n + b >= behind) break;
                if (rows[b] != row || added == PIECES) {
                    sweep.add(out + (u64)row * a.rank, sum);
                    row = rows[b];
                    added = 0;
#pragma unroll
                    for (u32 c = 0; c < COLUMNS; ++c) sum[c] = T(0);
                }
                ++added;
#pragma unroll
                for (u32 c = 0; c < COLUMNS; ++c) sum[c] += product[b] * last[b][c];
            }
        }
        sweep.add(out + (u64)row * a.rank, sum);
    }
}

// A thread block takes its tiles of a tree, for one target mode. ORDER is the tensor's, or BLCO_ORDER_MAX, which serves every order. The rank
// is an argument.
template <class T, int ORDER, class SHAPE, class S, int> __device__ __forceinline__ void ttmc_tree(const MttkrpArgs& a)
{
    typedef KroneckerSweep<S, false> Columns;
    __shared__ Branches<T, ORDER, SHAPE, S> b;
    __shared__ Pieces<T, SHAPE> pieces;
    static_assert(sizeof(b) + sizeof(pieces) <= 48 << 10, "what every device lets a thread block have");
    const Chunk chunk = a.chunks == 0 ? a.one : chunk_of((const Chunk*)a.chunks, a.chunk_count, blockIdx.x);
    const u32 number = blockIdx.x - chunk.first_block;
    bool bad = false;
    u32 fibers = 0;
    const u32 slots = climb(b, a, (const u8*)chunk.image, number * SHAPE::TILES, fibers, bad);
    if (slots == 0) return;
    const Target target = a.targets[0];
    const u32 mode = target.mode, leaf = b.frame.mode[ORDER - 1], rank = a.widths[leaf], round = pieces.SUMS / rank;
    const bool ordered = mode == b.frame.mode[root_of<ORDER>(a)];
    double* const sums = sums_of<0>(a, target);
    if (mode == leaf || slots < SHARED_FIBER * fibers || round < ROUND_LEAST) {
        const u32 nnz = ordered ? put_first(b.group, mode, slots) : reorder(b.group, a, 0, mode, slots);
        reduce<T, Columns>(b.group, a, mode, nnz, a.rank, sums);
    } else {
        const u32 all = cut(pieces, b.group, b.marks[ORDER - 2], mode, slots, ordered);
#pragma unroll 1
        for (u32 from = 0; from < all; from += round) {
            const u32 end = all - from < round ? all : from + round;
            add_up_pieces(pieces, b.group, b.group.index[leaf], (const T*)a.factors[leaf], rank, from, end);
            __syncthreads();
            multiply_pieces<Columns>(pieces, b.group, a, mode, leaf, from, end, sums);
            __syncthreads();
        }
    }
    // Last, because registers are short before.
    if (blockIdx.y == 0) {
        const u32 leaves = b.frame.levels[ORDER - 1].nodes;
        check_starts<SHAPE::THREADS / 32>(b.frame, root_of<ORDER>(a), ORDER, number, (leaves + SHAPE::NNZ - 1) / SHAPE::NNZ, bad);
    }
    if (bad) atomicMin((u32*)a.fault, chunk.number);
}
