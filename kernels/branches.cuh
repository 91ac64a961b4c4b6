// MTTKRP from trees as they lie in their images (formats-spec/hocfs.md).
//
// A thread block takes a few tiles of leaves and finds the nodes above them, level by level. Shared memory then holds a group of nonzeros in
// the tree's order (tile.cuh), and for each inner level a bit for each slot in which a node begins. All target modes are computed from it
// (those of SpTTMc in kronecker.cuh):
//
// * Where fibers are long, those above the leaves along the tree (Nisa et al., SC 2019, section 5), together: a leaf reads one factor
//   row, a fiber's sum is multiplied once, and so on up the levels. Of each level's open node, a group of threads holds the product of the
//   rows above and the sum of what is below in registers.
// * Others nonzero by nonzero, ordered by target row, like tiles (mttkrp.cuh). Slices are in order of their own mode already.
#pragma once
#include "mttkrp.cuh"
#include "tree.cuh"

// Leaves of a fiber, on average in a group, from which modes above the leaves are computed along the tree.
constexpr u32 LONG_FIBER = 4;

// What a thread block holds of a tree. Levels are counted so that the last inner one is INNER - 1, whatever the order is.
template <class T, int ORDER, class SHAPE, class S> struct alignas(16) Branches {
    static constexpr int INNER = ORDER - 1;
    static constexpr u32 WORDS = SHAPE::NNZ / 32;
    static_assert(SHAPE::PER == 4, "a thread unpacks four numbers at a time");
    static_assert(sizeof(T) >= 2 * sizeof(u16), "slots of two levels");

    // Its columns are those of modes. Before it has nonzeros, they hold the indices of nodes. The place of values holds the slots with
    // which nodes begin, of two levels in turn.
    Group<T, ORDER, SHAPE, S> group;
    // A bit for each slot in which a node of an inner level begins, or that is the first.
    u32 marks[INNER][WORDS];
    // The ancestors of the first slot and of the last.
    u32 ends[2][ORDER];
    // Addresses of the sums of each level's mode that is computed along the tree, or 0.
    u64 sums[ORDER];
    Frame frame;

    __device__ __forceinline__ u16* slots(int level) { return (u16*)group.value + level % 2 * SHAPE::NNZ; }
};

// The level of slices.
template <int ORDER> __device__ __forceinline__ int root_of(const MttkrpArgs& a) { return ORDER < BLCO_ORDER_MAX ? 0 : ORDER - (int)a.order; }

// The index of the last leaf before `slot`, 0 if there is none. A whole warp calls it.
static __device__ __noinline__ u32 leaf_before(const Header& h, const Level& leaves, u32 slot)
{
    const u32 lane = threadIdx.x % 32;
    while (slot > 0) {
        const LeafTile tile(h, leaves, slot - 1);
        // The padding of a fiber can be longer than a tile.
        for (u32 left = tile.behind == tile.before ? 0 : slot - tile.first; left > 0; left -= left < 32 ? left : 32) {
            const u32 number = lane < left ? unpack32(tile.words, tile.width, left - 1 - lane) : ~0u;
            const u32 found = __ballot_sync(~0u, number <= tile.span && lane < left);
            if (found != 0) return tile.low + __shfl_sync(~0u, number, __ffs((int)found) - 1);
        }
        slot = tile.first;
    }
    return 0;
}

// Four leaves of a thread. Slots beyond the last, and those without a leaf, have the value 0 and the index of the leaf before. Whole
// warps make them, whose slots are in one tile.
template <class T> struct Leaves {
    u32 index[4];
    T value[4];

    __device__ __forceinline__ Leaves(const Frame& f, const Level& leaves, u32 at, bool& bad)
    {
        const u32 last = leaves.nodes - 1, i = at % BLCO_TILE_NNZ, lane = threadIdx.x % 32;
        const LeafTile tile(f.h, leaves, at < last ? at : last);
        double stored[4];
        unpack_four(index, tile.words, tile.width, i);
        four_values(stored, f.h, tile.words, 16 * tile.width, tile.record + 24, tile.record + 16, tile.first, i,
                    at <= last ? tile.slots : 0, bad);
        // The last leaf among the four.
        u32 own = 0, reals = 0;
#pragma unroll
        for (u32 k = 0; k < 4; ++k) {
            const bool there = at + k <= last, real = there && index[k] <= tile.span;
            bad |= there && index[k] > tile.span + tile.padded;
            value[k] = real ? (T)stored[k] : T(0);
            index[k] = real ? tile.low + index[k] : own;
            own = index[k];
            reals |= real ? 1u << k : 0;
        }
        // Whatever the columns hold, whole warps come here together.
        const u32 with = __ballot_sync(~0u, reals != 0);
        const u32 without = __ballot_sync(~0u, (reals & 1) == 0);
        if (without == 0) return;
        const u32 before = with & ((1u << lane) - 1), from = before != 0 ? 31 - __clz((int)before) : 0;
        u32 taken = __shfl_sync(~0u, own, from);
        if ((without & 1) != 0) {
            const u32 other = leaf_before(f.h, leaves, at - 4 * lane <= last ? at - 4 * lane : 0);
            if (before == 0) taken = other;
        }
#pragma unroll
        for (u32 k = 0; k < 4; ++k) {
            if ((reals & ((2u << k) - 1)) == 0) index[k] = taken;
        }
    }
};

// How many of the bits of `marks` are set up to each of the thread's four slots. Whole warps call it.
template <class SHAPE> __device__ __forceinline__ void ranks_of(const u32* marks, u32 (&rank)[4])
{
    constexpr u32 WORDS = SHAPE::NNZ / 32, EACH = WORDS > 32 ? WORDS / 32 : 1;
    const u32 lane = threadIdx.x % 32, own = threadIdx.x / 8;
    u32 sum = 0;
#pragma unroll
    for (u32 k = 0; k < EACH; ++k) sum += EACH * lane + k < WORDS ? __popc(marks[EACH * lane + k]) : 0;
    const u32 upto = sum_upto(sum);
    u32 before = __shfl_sync(~0u, upto - sum, own / EACH);
#pragma unroll
    for (u32 k = 1; k < EACH; ++k) before += own % EACH >= k ? __popc(marks[own - k]) : 0;
    const u32 word = marks[own];
#pragma unroll
    for (u32 k = 0; k < 4; ++k) rank[k] = before + __popc(word << (31 - (threadIdx.x % 8 * 4 + k)));
}

// Puts the leaves of an image from tile `tile` on into `b`, with their ancestors' indices, and returns how many slots there are. The
// whole thread block calls it and sees it on return. `fibers` becomes the number of their fibers.
template <class T, int ORDER, class SHAPE, class S>
__device__ __forceinline__ u32 climb(Branches<T, ORDER, SHAPE, S>& b, const MttkrpArgs& a, const u8* image, u32 tile, u32& fibers, bool& bad)
{
    constexpr u32 ROUND = 4 * SHAPE::THREADS, NNZ = SHAPE::NNZ;
    constexpr int INNER = ORDER - 1;
    const int root = root_of<ORDER>(a);
    const u32 warp = threadIdx.x / 32;
    if (threadIdx.x < a.order) b.frame.read(image, threadIdx.x, root + threadIdx.x, a.dims);
    for (u32 i = threadIdx.x; i < INNER * b.WORDS; i += SHAPE::THREADS) (&b.marks[0][0])[i] = 0;
    if (threadIdx.x < ORDER) b.sums[threadIdx.x] = 0;
    __syncthreads();
    const Level leaves = b.frame.levels[INNER];
    const u32 first = tile * BLCO_TILE_NNZ;
    if (first >= leaves.nodes) return 0;
    const u32 slots = leaves.nodes - first < NNZ ? leaves.nodes - first : NNZ;
    if (warp < 2) {
        // A warp for each end.
        u32 child = warp == 0 ? first : first + slots - 1, below = leaves.nodes;
        for (int l = INNER; l-- > root;) {
            child = find_parent(b.frame.levels[l], child, below, bad);
            below = b.frame.levels[l].nodes;
            if (threadIdx.x % 32 == 0) b.ends[warp][l] = child;
        }
    }
    const Leaves<T> mine(b.frame, leaves, first + 4 * threadIdx.x, bad);
    // Of the level before: the indices of the slots' ancestors, which replace those of nodes once all threads have read them.
    u32 index[4], *above = nullptr;
    const u32 place = b.group.place(4 * threadIdx.x);
    __syncthreads();
#pragma unroll 1
    for (int l = INNER; l-- > root;) {
        const Level level = b.frame.levels[l];
        const u32 begin = b.ends[0][l], all = b.ends[1][l] - begin + 1, below = b.frame.levels[l + 1].nodes;
        const u32 nodes = all < NNZ ? all : NNZ, first_child = l + 1 == INNER ? first : b.ends[0][l + 1];
        bad |= all == 0 || all > NNZ;
        u32* const column = b.group.index[b.frame.mode[l]];
        const u16* const of_children = b.slots(l + 1);
        u16* const of_nodes = b.slots(l);
        for (u32 node = begin / 4 * 4 + 4 * threadIdx.x; node < begin + nodes; node += ROUND) {
            const Nodes four(level, node, below, bad);
#pragma unroll
            for (u32 k = 0; k < 4; ++k) {
                const u32 number = node + k - begin;
                if (node + k < begin || number >= nodes) continue;
                const u32 child = number == 0 ? 0 : four.start[k] - first_child;
                // Damaged starts lie anywhere.
                bad |= child >= NNZ;
                const u32 slot = (l + 1 == INNER ? child : of_children[child % NNZ]) % NNZ;
                column[number] = four.index[k];
                of_nodes[number] = (u16)slot;
                atomicOr(&b.marks[l][slot / 32], 1u << slot % 32);
            }
        }
        __syncthreads();
        if (above != nullptr) put(above + place, index);
        above = column;
        u32 rank[4];
        ranks_of<SHAPE>(b.marks[l], rank);
        const u32 highest = b.frame.highest[l];
#pragma unroll
        for (u32 k = 0; k < 4; ++k) {
            const u32 found = column[(rank[k] - 1) % NNZ];
            index[k] = found < highest ? found : highest;
        }
        if (l == INNER - 1) fibers = nodes;
    }
    __syncthreads();
    put(above + place, index);
    put(b.group.index[b.frame.mode[INNER]] + place, mine.index);
    put(b.group.value + place, mine.value);
    __syncthreads();
    return slots;
}

// Goes through a group's share of the slots for all target modes above the leaves: those of levels `lowest` to `highest` whose sums
// `b` has.
template <class FACTOR, class SWEEP, class T, int ORDER, class SHAPE, class S>
__device__ __forceinline__ void descend(const Branches<T, ORDER, SHAPE, S>& b, const MttkrpArgs& a, int lowest, int highest, u32 slots,
                                        u32 rank)
{
    constexpr int BATCH = S::BATCH, COLUMNS = S::COLUMNS, INNER = ORDER - 1;
    constexpr u32 SHARE = Group<T, ORDER, SHAPE, S>::SHARE;
    const int root = root_of<ORDER>(a);
    const u32 begin = threadIdx.x / S::LANES * SHARE, turn = b.group.turn(begin);
    if (begin >= slots) return;
    const u32 end = slots - begin < SHARE ? slots : begin + SHARE;
    const u32* const leaves = b.group.index[b.frame.mode[INNER]];
    for (u32 start = blockIdx.y * S::SWEEP; start < rank; start += gridDim.y * S::SWEEP) {
        const SWEEP sweep(a, 0, start, rank);
        const FACTOR* const leaf_factor = sweep.base((const FACTOR*)a.factors[b.frame.mode[INNER]]);
        // Of each level's open node: the product of its row and those above, and the sum of what is below.
        T product[INNER][COLUMNS], sum[INNER][COLUMNS];
        const auto index_of = [&](int l, u32 slot) { return (u64)b.group.index[b.frame.mode[l]][slot ^ turn] * rank; };
        const auto row = [&](int l, u32 slot, T (&x)[COLUMNS]) {
            sweep.load(sweep.base((const FACTOR*)a.factors[b.frame.mode[l]]) + index_of(l, slot), x);
        };
        // Nodes from level `top` down begin with a slot.
        const auto open = [&](int top, u32 slot) {
#pragma unroll
            for (int l = 0; l < INNER; ++l) {
                if (l < top) continue;
#pragma unroll
                for (int c = 0; c < COLUMNS; ++c) sum[l][c] = T(0);
                if (l >= highest) continue;
                T x[COLUMNS];
                row(l, slot, x);
#pragma unroll
                for (int c = 0; c < COLUMNS; ++c) product[l][c] = l > root ? product[l > 0 ? l - 1 : 0][c] * x[c] : x[c];
            }
        };
        // They end with a slot.
        const auto close = [&](int top, u32 slot) {
#pragma unroll
            for (int l = INNER - 1; l >= 0; --l) {
                if (l < top || l < lowest) continue;
                if (b.sums[l] != 0) {
                    T result[COLUMNS];
#pragma unroll
                    for (int c = 0; c < COLUMNS; ++c) result[c] = l > root ? product[l > 0 ? l - 1 : 0][c] * sum[l][c] : sum[l][c];
                    sweep.add(sweep.base((double*)b.sums[l]) + index_of(l, slot), result);
                }
                if (l > lowest && l > 0) {
                    T x[COLUMNS];
                    row(l, slot, x);
#pragma unroll
                    for (int c = 0; c < COLUMNS; ++c) sum[l > 0 ? l - 1 : 0][c] += sum[l][c] * x[c];
                }
            }
        };
        // Also those that no level needs: if they were undefined, NVRTC would make different code of the same source.
#pragma unroll
        for (int l = 0; l < INNER; ++l) {
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c) product[l][c] = sum[l][c] = T(0);
        }
        open(root, begin);
#pragma unroll 1
        for (u32 i = begin; i < end; i += BATCH) {
            u32 index[BATCH];
            T value[BATCH], rows[BATCH][COLUMNS];
            take(leaves + (i ^ turn), index);
            take(b.group.value + (i ^ turn), value);
#pragma unroll
            for (int k = 0; k < BATCH; ++k) sweep.load(leaf_factor + (u64)index[k] * rank, rows[k]);
            // A share begins with a node of each level, whether or not that is its first slot.
            u32 marks = b.marks[INNER - 1][i / 32] >> i % 32 & ((1u << BATCH) - 1) & (i == begin ? ~1u : ~0u), from = 0;
#pragma unroll 1
            while (true) {
                const u32 until = marks != 0 ? __ffs((int)marks) - 1 : BATCH;
#pragma unroll
                for (int k = 0; k < BATCH; ++k) {
                    if (k < (int)from || k >= (int)until) continue;
#pragma unroll
                    for (int c = 0; c < COLUMNS; ++c) sum[INNER - 1][c] += value[k] * rows[k][c];
                }
                if (marks == 0) break;
                const u32 slot = i + until;
                int top = INNER - 1;
#pragma unroll
                for (int l = INNER - 2; l >= 0; --l) {
                    if (l >= root && (b.marks[l][slot / 32] >> slot % 32 & 1)) top = l;
                }
                close(top, slot - 1);
                open(top, slot);
                marks &= marks - 1;
                from = until;
            }
        }
        close(root, end - 1);
    }
}

// Where the sums of a target go.
template <int RANK> __device__ __forceinline__ double* sums_of(const MttkrpArgs& a, const Target& target)
{
    return (double*)target.sums + (u64)(blockIdx.x % target.copies) * a.dims[target.mode] * (RANK > 0 ? RANK : a.rank);
}

// With RANK 0, the rank is an argument. ORDER is the tensor's, or BLCO_ORDER_MAX, which serves every order. A thread block takes its
// tiles in TIMES steps, and computes all target modes.
template <class T, int ORDER, class SHAPE, class S, int RANK, class FACTOR = T, u32 TIMES = 1>
__device__ __forceinline__ void mttkrp_tree(const MttkrpArgs& a)
{
    typedef Sweep<S, (RANK > 0 && RANK % S::SWEEP == 0)> Columns;
    __shared__ Branches<T, ORDER, SHAPE, S> branches;
    const Chunk chunk = a.chunks == 0 ? a.one : chunk_of((const Chunk*)a.chunks, a.chunk_count, blockIdx.x);
    const u32 number = blockIdx.x - chunk.first_block, rank = RANK > 0 ? RANK : a.rank;
    bool bad = false;
#pragma unroll 1
    for (u32 time = 0; time < TIMES; ++time) {
        if (time > 0) __syncthreads();
        u32 fibers = 0;
        const u32 slots = climb(branches, a, (const u8*)chunk.image, (number * TIMES + time) * SHAPE::TILES, fibers, bad);
        if (slots == 0) break;
        if (time == 0 && blockIdx.y == 0) {
            const u32 leaves = branches.frame.levels[ORDER - 1].nodes, per = TIMES * SHAPE::NNZ;
            check_starts<SHAPE::THREADS / 32>(branches.frame, root_of<ORDER>(a), ORDER, number, (leaves + per - 1) / per, bad);
        }
        const bool is_long = slots >= LONG_FIBER * fibers;
        const u32 leaves = branches.frame.mode[ORDER - 1];
        int lowest = ORDER, highest = -1;
        for (u32 t = 0; is_long && t < a.target_count; ++t) {
            const Target target = a.targets[t];
            if (target.mode == leaves) continue;
            int level = root_of<ORDER>(a);
            while (level + 2 < ORDER && branches.frame.mode[level] != target.mode) ++level;
            lowest = level < lowest ? level : lowest;
            highest = level > highest ? level : highest;
            if (threadIdx.x == 0) branches.sums[level] = (u64)sums_of<RANK>(a, target);
        }
        if (highest >= 0) {
            __syncthreads();
            descend<FACTOR, Columns>(branches, a, lowest, highest, slots, rank);
        }
        // The mode whose column is swapped with that of mode 0.
        u32 front = 0;
#pragma unroll 1
        for (u32 i = 0; i < a.target_count; ++i) {
            // Thread blocks that run at the same time ask for different factors.
            const Target target = a.targets[(i + blockIdx.x) % a.target_count];
            if (is_long && target.mode != leaves) continue;
            __syncthreads();
            // Only the first target meets the tree's order.
            const bool ordered = i == 0 && target.mode == branches.frame.mode[root_of<ORDER>(a)];
            const u32 nnz = ordered ? put_first(branches.group, target.mode, slots) : reorder(branches.group, a, front, target.mode, slots);
            front = target.mode;
            reduce<FACTOR, Columns>(branches.group, a, target.mode, nnz, rank, sums_of<RANK>(a, target));
        }
    }
    if (bad) atomicMin((u32*)a.fault, chunk.number);
}
