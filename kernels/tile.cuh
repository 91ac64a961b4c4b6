// A group of tiles in shared memory: decoded from either index encoding, then ordered by row of the target mode.
#pragma once
#include "image.cuh"

// How a thread block is laid out: THREADS threads take TILES tiles at a time, each thread PER of their nonzeros.
template <int TILES_, int THREADS_> struct Shape {
    static constexpr int TILES = TILES_, THREADS = THREADS_, NNZ = TILES * BLCO_TILE_NNZ, PER = NNZ / THREADS;
    // Threads that decode a tile.
    static constexpr int OF_TILE = THREADS / TILES;
    static_assert(THREADS % (32 * TILES) == 0 && NNZ % THREADS == 0, "whole warps for each tile");
    static_assert(THREADS <= 1024, "as many as a thread block can have");
};

// The nonzeros of a group, ordered, in shared memory. They are read in shares of SHARE nonzeros, a run of RUN at a time, the same run of
// every share at the same time. If a warp reads more than two shares, these runs would be in the same banks, so the runs of each share
// of a warp are permuted differently.
template <class T, int ORDER, class SHAPE, class S> struct alignas(16) Group {
    static constexpr u32 SHARE = SHAPE::PER * S::LANES, SHARES = 32 / S::LANES, RUN = S::BATCH < 4 ? 4 : S::BATCH;
    static constexpr u32 TURNS = SHARES <= 2 ? 1 : SHARES < SHARE / RUN ? SHARES : SHARE / RUN;
    static_assert(SHARE <= S::SHARE_MOST && SHARE % RUN == 0 && RUN % S::BATCH == 0, "shares of whole batches");
    static_assert((TURNS & (TURNS - 1)) == 0 && SHARE / RUN % TURNS == 0, "runs stay in their share");

    T value[SHAPE::NNZ];
    // Rows of the target mode come first: it is swapped with mode 0.
    u32 index[ORDER][SHAPE::NNZ];

    // The place of nonzero `at` is `at ^ turn(at)`; `turn` is the same for a whole share.
    static __device__ __forceinline__ u32 turn(u32 at) { return at / SHARE % TURNS * RUN; }
    static __device__ __forceinline__ u32 place(u32 at) { return at ^ turn(at); }

    // Before there are nonzeros: their number for each row modulo NNZ, and the sums of warps.
    __device__ __forceinline__ u32* count() { return index[1]; }
    __device__ __forceinline__ u32* warps() { return (u32*)value; }
};

// The nonzeros that a thread decodes: `first + k * step` for k < PER, of a tile of `nnz`. Beyond nnz it repeats the last nonzero with
// the value 0.
struct Slots {
    u32 first, step, nnz;

    __device__ __forceinline__ bool real(u32 k) const { return first + k * step < nnz; }
    __device__ __forceinline__ u32 operator()(u32 k) const { return real(k) ? first + k * step : nnz - 1; }
};

// Tile t of a `tiled` chunk.
struct Tiled {
    static __device__ __forceinline__ Header header_of(const u8* image)
    {
        return header(image, SECTION_TILES, SECTION_COLUMNS);
    }

    // Whether rows of a mode ascend in every chunk. If so, ordering would only cost time; rows in another order, only updates.
    static __device__ __forceinline__ bool is_ordered_by(const MttkrpArgs&, u32) { return false; }

    template <class T, int ORDER, int PER>
    static __device__ __forceinline__ void decode(u32 (&index)[PER][ORDER], T (&value)[PER], const MttkrpArgs& a, const Header& h,
                                                  u32 t, const Slots& slots, bool& bad)
    {
        const u8* record = h.first.at + (u64)t * (16 + 8 * a.order);
        const u32* const words = (const u32*)(h.second.at + 64ull * load<u32>(record));
        u32 start = 0;
#pragma unroll
        for (int m = 0; m < ORDER; ++m) {
            if (ORDER == BLCO_ORDER_MAX && m >= (int)a.order) break;
            const u32 low = load<u32>(record + 16 + 8 * m), span = load<u32>(record + 20 + 8 * m) - low;
            const u32 width = width_of(span);
#pragma unroll
            for (int k = 0; k < PER; ++k) index[k][m] = low + inside(unpack32(words, width, slots(k), start), span, bad);
            start += 16 * width;
        }
        tile_values(value, h, words, start, record + 4, record + 8, t * BLCO_TILE_NNZ, slots, bad);
    }
};

// Nonzeros from 512 t on of a `raw` chunk: shift and mask, with the key's bits above (Nguyen et al., ICS 2022, section 4.2).
// Nonzeros of several BLCO blocks can share a tile, so that small BLCO blocks are batched into one launch.
struct Raw {
    static __device__ __forceinline__ Header header_of(const u8* image)
    {
        return header(image, SECTION_BLOCKS, SECTION_INDEX);
    }

    static __device__ __forceinline__ bool is_ordered_by(const MttkrpArgs&, u32) { return false; }

    // The last of the BLCO blocks that starts at or before nonzero i.
    static __device__ __forceinline__ u32 block_of(const Header& h, u32 i)
    {
        u32 low = 0, high = h.first.bytes / 16 - 1;
        while (low < high) {
            const u32 middle = (low + high + 1) / 2;
            if (load<u32>(h.first.at + 16ull * middle + 8) <= i) low = middle;
            else high = middle - 1;
        }
        return low;
    }

    template <class T, int ORDER, int PER>
    static __device__ __forceinline__ void decode(u32 (&index)[PER][ORDER], T (&value)[PER], const MttkrpArgs& a, const Header& h,
                                                  u32 t, const Slots& slots, bool& bad)
    {
#pragma unroll
        for (int k = 0; k < PER; ++k) {
            const u32 i = t * BLCO_TILE_NNZ + slots(k);
            u64 re_encoded = load<u64>(h.second.at + 8ull * i);
#pragma unroll
            for (int m = 0; m < ORDER; ++m) {
                if (ORDER == BLCO_ORDER_MAX && m >= (int)a.order) break;
                const u32 bits = a.block_bits[m];
                index[k][m] = (u32)(re_encoded & ((1ull << bits) - 1));
                re_encoded >>= bits;
            }
            bad |= re_encoded != 0;
            if (a.key_bits > 0) {
                const u64 key = load<u64>(h.first.at + 16ull * block_of(h, i));
#pragma unroll
                for (int m = 0; m < ORDER; ++m) {
                    if (ORDER == BLCO_ORDER_MAX && m >= (int)a.order) break;
                    u32 place = a.block_bits[m];
#pragma unroll 1
                    for (u32 b = 0; b < a.key_bits; ++b) {
                        if (a.key_modes[b] == m) index[k][m] |= (u32)(key >> b & 1) << place++;
                    }
                }
            }
#pragma unroll
            for (int m = 0; m < ORDER; ++m) {
                if (ORDER == BLCO_ORDER_MAX && m >= (int)a.order) break;
                index[k][m] = inside(index[k][m], a.dims[m] - 1, bad);
            }
            value[k] = (T)section_value(h, i, bad);
        }
    }
};

// Replaces each of NNZ counts by the sum of the counts before it. The whole thread block calls it and sees the sums on return.
template <class SHAPE> __device__ __forceinline__ void add_up(u32* count, u32* warp)
{
    u32* mine = count + threadIdx.x * SHAPE::PER;
    u32 before[SHAPE::PER], sum = 0;
#pragma unroll
    for (int k = 0; k < SHAPE::PER; ++k) {
        before[k] = sum;
        sum += mine[k];
    }
    const u32 upto = sum_upto(sum), lane = threadIdx.x % 32, warps = threadIdx.x / 32;
    if (lane == 31) warp[warps] = upto;
    __syncthreads();
    // The sum of the warps before this one.
    u32 start = lane < warps ? warp[lane] : 0;
#pragma unroll
    for (u32 distance = 1; distance < SHAPE::THREADS / 32; distance *= 2) start += __shfl_xor_sync(~0u, start, distance);
    start = __shfl_sync(~0u, start, 0) + upto - sum;
#pragma unroll
    for (int k = 0; k < SHAPE::PER; ++k) mine[k] = start + before[k];
    __syncthreads();
}

// Clears the counts of rows.
template <class T, int ORDER, class SHAPE, class S> __device__ __forceinline__ void clear_counts(Group<T, ORDER, SHAPE, S>& group)
{
#pragma unroll
    for (int k = 0; k < SHAPE::PER; ++k) group.count()[threadIdx.x + k * SHAPE::THREADS] = 0;
}

// The places `at` of a thread's nonzeros, those that are `there`, ordered by `row` modulo NNZ, in any order inside a bucket. Rows that
// share a bucket alternate, which only costs updates. The whole thread block calls it, once counts are cleared.
template <class T, int ORDER, class SHAPE, class S, class THERE>
__device__ __forceinline__ void order_by_row(Group<T, ORDER, SHAPE, S>& group, const u32 (&row)[SHAPE::PER], const THERE& there,
                                             u32 (&at)[SHAPE::PER])
{
    u32* const count = group.count();
    __syncthreads();
#pragma unroll
    for (int k = 0; k < SHAPE::PER; ++k) {
        if (there(k)) at[k] = atomicAdd(&count[row[k] % SHAPE::NNZ], 1u);
    }
    __syncthreads();
    add_up<SHAPE>(count, group.warps());
#pragma unroll
    for (int k = 0; k < SHAPE::PER; ++k) {
        if (there(k)) at[k] += count[row[k] % SHAPE::NNZ];
    }
    __syncthreads();
}

// Decodes the SHAPE::TILES tiles of an image from tile t on, or as many as there are, into `group`. Those that are in order of the target
// `mode` by their layout keep their order; others are ordered by its row (order_by_row). Returns the number of nonzeros, padded with zeros to
// whole batches. The whole thread block calls it and sees the group on return.
template <class LAYOUT, class T, int ORDER, class SHAPE, class S>
__device__ __forceinline__ u32 gather(Group<T, ORDER, SHAPE, S>& group, const MttkrpArgs& a, u32 mode, const u8* image, u32 t,
                                      bool& bad)
{
    constexpr int PER = SHAPE::PER;
    const Header h = LAYOUT::header_of(image);
    const u32 mine = threadIdx.x / SHAPE::OF_TILE, left = h.nnz - t * BLCO_TILE_NNZ;
    const u32 all = left < SHAPE::NNZ ? left : SHAPE::NNZ, padded = (all + S::BATCH - 1) / S::BATCH * S::BATCH;
    // Threads without a tile have no slots.
    const u32 start = mine * BLCO_TILE_NNZ, end = start + BLCO_TILE_NNZ;
    const u32 nnz = all <= start ? 0 : all < end ? all - start : BLCO_TILE_NNZ;
    const u32 slots_end = nnz == 0 ? 0 : padded < end ? padded - start : BLCO_TILE_NNZ;
    const Slots slots = {threadIdx.x % SHAPE::OF_TILE, SHAPE::OF_TILE, nnz};
    const bool ordered = LAYOUT::is_ordered_by(a, mode);
    if (!ordered) clear_counts(group);
    u32 index[PER][ORDER], at[PER], row[PER];
    T value[PER];
    if (nnz > 0) LAYOUT::template decode<T, ORDER, PER>(index, value, a, h, t + mine, slots, bad);
#pragma unroll
    for (int k = 0; k < PER; ++k) {
        // Masks, because compilers put the alternatives into an array in local memory.
        row[k] = 0;
#pragma unroll
        for (int m = 0; m < ORDER; ++m) row[k] |= index[k][m] & (m == (int)mode ? ~0u : 0);
        at[k] = start + slots.first + k * slots.step;
    }
    // The places of the modes' columns.
    u32 column[ORDER];
#pragma unroll
    for (int m = 0; m < ORDER; ++m) column[m] = (m == (int)mode ? 0 : m == 0 ? mode : m) * SHAPE::NNZ;
    const auto there = [&](int k) { return slots.first + k * slots.step < slots_end; };
    if (!ordered) order_by_row(group, row, there, at);
#pragma unroll
    for (int k = 0; k < PER; ++k) {
        if (!there(k)) continue;
        const u32 place = group.place(at[k]);
        group.value[place] = slots.real(k) ? value[k] : T(0);
#pragma unroll
        for (int m = 0; m < ORDER; ++m) {
            if (ORDER == BLCO_ORDER_MAX && m >= (int)a.order) break;
            (&group.index[0][0])[column[m] + place] = index[k][m];
        }
    }
    __syncthreads();
    return padded;
}

// Orders a group that is there by row of another `mode`: of the first `nnz` nonzeros, whose columns of modes `front` and 0 are swapped.
// Returns their number, padded to whole batches. The whole thread block calls it and sees the group on return.
template <class T, int ORDER, class SHAPE, class S>
__device__ __forceinline__ u32 reorder(Group<T, ORDER, SHAPE, S>& group, const MttkrpArgs& a, u32 front, u32 mode, u32 nnz)
{
    constexpr int PER = SHAPE::PER;
    const u32 padded = (nnz + S::BATCH - 1) / S::BATCH * S::BATCH, first = PER * threadIdx.x, own = group.place(first);
    u32 index[ORDER][PER], row[PER] = {}, at[PER];
    T value[PER];
    const auto mode_of = [&](int column) { return column == 0 ? front : column == (int)front ? 0 : (u32)column; };
    take(group.value + own, value);
#pragma unroll
    for (int c = 0; c < ORDER; ++c) {
        if (ORDER == BLCO_ORDER_MAX && c >= (int)a.order) break;
        take(group.index[c] + own, index[c]);
#pragma unroll
        for (int k = 0; k < PER; ++k) row[k] |= index[c][k] & (mode_of(c) == mode ? ~0u : 0);
    }
    __syncthreads();
    clear_counts(group);
    const auto there = [&](int k) { return first + k < padded; };
    order_by_row(group, row, there, at);
#pragma unroll
    for (int k = 0; k < PER; ++k) {
        if (!there(k)) continue;
        const u32 place = group.place(at[k]);
        group.value[place] = value[k];
#pragma unroll
        for (int c = 0; c < ORDER; ++c) {
            if (ORDER == BLCO_ORDER_MAX && c >= (int)a.order) break;
            const u32 of = mode_of(c);
            group.index[of == mode ? 0 : of == 0 ? mode : of][place] = index[c][k];
        }
    }
    __syncthreads();
    return padded;
}

// Leaves a group that is there in its order, but lets the rows of `mode` come first. The whole thread block calls it and sees the group on
// return. Returns the number of its first `nnz` nonzeros, padded to whole batches.
template <class T, int ORDER, class SHAPE, class S>
__device__ __forceinline__ u32 put_first(Group<T, ORDER, SHAPE, S>& group, u32 mode, u32 nnz)
{
    constexpr int PER = SHAPE::PER;
    if (mode != 0) {
        const u32 own = group.place(PER * threadIdx.x);
        u32 rows[PER], others[PER];
        take(group.index[mode] + own, rows);
        take(group.index[0] + own, others);
        put(group.index[0] + own, rows);
        put(group.index[mode] + own, others);
        __syncthreads();
    }
    return (nnz + S::BATCH - 1) / S::BATCH * S::BATCH;
}
