// Turns the image of a tree, of segments or of coordinates into a `tiled` one, which every kernel reads (image.cuh), on the device after
// the copy. Its columns are not packed: indices are 32-bit numbers from 0 and values are f64. Every offset therefore follows from the
// number of nonzeros. Nonzeros keep their order. Even if columns are damaged, every nonzero of the image is written, with indices within
// the dims.
#pragma once
#include "segments.cuh"
#include "tree.cuh"

namespace expand {

// A warp takes a tile. Each of its threads takes four numbers that follow one another in a column, in each of ROUNDS rounds: they lie side
// by side in its words.
constexpr u32 THREADS = BLCO_TILE_THREADS, WARPS = THREADS / 32, ROUND = 4 * 32, ROUNDS = BLCO_TILE_NNZ / ROUND;

// The place of the nonzero at `position`.
__device__ __forceinline__ u32* index_at(const ExpandArgs& a, u32 position, u32 mode)
{
    const u64 column = (u64)(position / BLCO_TILE_NNZ) * a.order + mode;
    return (u32*)(a.image + a.columns_at) + column * BLCO_TILE_NNZ + position % BLCO_TILE_NNZ;
}

__device__ __forceinline__ double* value_at(const ExpandArgs& a, u32 position)
{
    return (double*)(a.image + a.values_at) + position;
}

// The fields of the header that kernels read. One thread.
__device__ __forceinline__ void write_header(const ExpandArgs& a, u32 nnz)
{
    u8* const image = (u8*)a.image;
    // Version 1 has a shorter table.
    *(u32*)(image + 8) = 1;
    *(u32*)(image + 32) = nnz;
    image[46] = VALUES_F64;
    const u32 sections[4][3] = {{SECTION_TILES, a.tiles_at, a.columns_at - a.tiles_at},
                                {SECTION_COLUMNS, a.columns_at, a.values_at - a.columns_at},
                                {SECTION_VALUES, a.values_at, 8 * nnz},
                                {0, 0, 0}};
    for (u32 i = 0; i < 4; ++i) {
        for (u32 k = 0; k < 3; ++k) *(u32*)(image + 56 + 16 * i + 4 * k) = sections[i][k];
    }
}

// The record of a tile. One thread.
__device__ __forceinline__ void write_record(const ExpandArgs& a, u32 tile)
{
    u8* const record = (u8*)a.image + a.tiles_at + (u64)tile * (16 + 8 * a.order);
    // In units of 64 bytes.
    *(u32*)record = tile * a.order * (BLCO_TILE_NNZ * 4 / 64);
    *(u32*)(record + 4) = 0;
    *(i64*)(record + 8) = 0;
    for (u32 m = 0; m < a.order; ++m) {
        *(u32*)(record + 16 + 8 * m) = 0;
        *(u32*)(record + 20 + 8 * m) = ~0u;
    }
}

// Bits 0 to BLCO_TILE_NNZ in shared memory, and one word beyond.
struct Bits {
    static constexpr u32 WORDS = BLCO_TILE_NNZ / 32 + 1;
    u32 words[WORDS];

    __device__ __forceinline__ void clear()
    {
        if (threadIdx.x % 32 < WORDS) words[threadIdx.x % 32] = 0;
    }
    __device__ __forceinline__ void set(u32 i) { atomicOr(&words[i / 32], 1u << i % 32); }
    // The lane's word.
    __device__ __forceinline__ u32 own() const { return threadIdx.x % 32 < WORDS ? words[threadIdx.x % 32] : 0; }
};

// Writes header and records. All thread blocks take part.
__device__ __forceinline__ void write_frame(const ExpandArgs& a, u32 nnz)
{
    if (blockIdx.x == 0 && threadIdx.x == 0) write_header(a, nnz);
    for (u32 t = blockIdx.x * THREADS + threadIdx.x; t < (nnz + BLCO_TILE_NNZ - 1) / BLCO_TILE_NNZ; t += gridDim.x * THREADS) {
        write_record(a, t);
    }
}

// A warp's memory.
struct Place {
    Bits marks;
    // Where each slot's nonzero goes, from the tile's first on; NOWHERE for padding. Not used where all slots hold nonzeros.
    alignas(16) u16 to[BLCO_TILE_NNZ];
    // Each slot's ancestor in the level that was looked at last, from the first slot's on.
    u16 child[BLCO_TILE_NNZ];
    // The indices of nodes of the level that is looked at, from the first slot's ancestor on.
    u32 index[BLCO_TILE_NNZ];
};

constexpr u16 NOWHERE = 0xffff;

// Where the nonzeros of a tile of leaves go. If all slots hold nonzeros that go to one tile, they go there four at a time.
struct Targets {
    u32 before;
    bool whole;
    const u16* to;

    // Writes numbers of slots i to i + 3, each to `where` its position.
    template <class T, class WHERE> __device__ __forceinline__ void write(u32 i, const T (&number)[4], const WHERE& where) const
    {
        if (whole) {
            put(where(before + i), number);
            return;
        }
        u16 at[4];
        take(to + i, at);
#pragma unroll
        for (u32 k = 0; k < 4; ++k) {
            if (at[k] != NOWHERE) *where(before + at[k]) = number[k];
        }
    }
    __device__ __forceinline__ void write_indices(const ExpandArgs& a, u32 mode, u32 i, const u32 (&index)[4]) const
    {
        write(i, index, [&](u32 position) { return index_at(a, position, mode); });
    }
    __device__ __forceinline__ void write_values(const ExpandArgs& a, u32 i, const double (&value)[4]) const
    {
        write(i, value, [&](u32 position) { return value_at(a, position); });
    }
};

// Finds where the nonzeros of a tile of `slots` slots go: slot i holds none where number i of `words` is `padding`. If there are not as
// many as the records say, `nonzeros`, zeros are written for all of them. A whole warp calls it.
__device__ __forceinline__ void find_targets(const ExpandArgs& a, Place& place, u32 before, u32 nonzeros, const u32* words, u32 width,
                                             u32 slots, u32 padding, bool& bad)
{
    const u32 lane = threadIdx.x % 32;
    u32 found = 0;
    for (u32 i = lane; i < BLCO_TILE_NNZ; i += 32) {
        const bool real = i < slots && unpack32(words, width, i) != padding;
        const u32 there = __ballot_sync(~0u, real);
        place.to[i] = real ? found + __popc(there & ((1u << lane) - 1)) : NOWHERE;
        found += __popc(there);
    }
    if (found != nonzeros) {
        bad = true;
        for (u32 i = lane; i < BLCO_TILE_NNZ; i += 32) place.to[i] = NOWHERE;
        for (u32 i = lane; i < nonzeros; i += 32) {
            for (u32 m = 0; m < a.order; ++m) *index_at(a, before + i, m) = 0;
            *value_at(a, before + i) = 0;
        }
    }
    __syncwarp();
}

// Goes through the nodes of a level from `begin`, the parent of node `first` of the next level, to the parent of node `next`, at most a
// tile's nodes later. Marks first children from node `first` on, but for that of `begin`, and puts the nodes' indices into `place`. The
// next level has `below` nodes. A whole warp calls it.
__device__ __forceinline__ void walk(Place& place, const Level& level, u32 begin, u32 first, u32 next, u32 below, bool& bad)
{
    u32 round = begin / 4 * 4;
    bool more;
    do {
        const u32 node = round + threadIdx.x % 32 * 4;
        const Nodes nodes(level, node, below, bad);
#pragma unroll
        for (u32 k = 0; k < 4; ++k) {
            const u32 number = node + k - begin;
            const bool own = node + k > begin && node + k < level.nodes && nodes.start[k] <= next;
            if ((own || node + k == begin) && number < BLCO_TILE_NNZ) place.index[number] = nodes.index[k];
            if (own && nodes.start[k] > first && nodes.start[k] - first <= BLCO_TILE_NNZ) place.marks.set(nodes.start[k] - first);
        }
        more = __shfl_sync(~0u, node + 3 < level.nodes && nodes.start[3] <= next, 31);
        round += ROUND;
        // Damaged starts may never reach `next`.
    } while (more && round - begin <= BLCO_TILE_NNZ);
}

// Writes the nonzeros of a tile of leaves. A warp climbs from level to level: its threads look at the nodes, and each slot's ancestor is the
// first one's plus the number of marks up to the slot. Nonzeros keep the order of the leaves, without padding.
__device__ __forceinline__ void write_nonzeros(const ExpandArgs& a, const Frame& f, Place& place, u32 tile, bool& bad)
{
    const Level leaves = f.levels[a.order - 1];
    const u32 lane = threadIdx.x % 32;
    const LeafTile t(f.h, leaves, tile * BLCO_TILE_NNZ);
    const Targets targets = {t.before, t.slots == BLCO_TILE_NNZ && t.before % BLCO_TILE_NNZ == 0 && !t.padded, place.to};
    if (!targets.whole) {
        find_targets(a, place, t.before, t.behind - t.before, t.words, t.width, t.slots, t.padded ? t.span + 1 : ~0u, bad);
    }
#pragma unroll
    for (u32 round = 0; round < ROUNDS; ++round) {
        const u32 i = round * ROUND + 4 * lane;
        u32 index[4];
        double value[4];
        unpack_four(index, t.words, t.width, i);
        four_values(value, f.h, t.words, 16 * t.width, t.record + 24, t.record + 16, t.first, i, t.slots, bad);
#pragma unroll
        for (u32 k = 0; k < 4; ++k) {
            bad |= i + k < t.slots && index[k] > t.span + t.padded;
            index[k] = t.low + (index[k] > t.span ? t.span : index[k]);
        }
        targets.write_indices(a, f.mode[a.order - 1], i, index);
        targets.write_values(a, i, value);
        put(place.child + i, {(u16)i, (u16)(i + 1), (u16)(i + 2), (u16)(i + 3)});
    }
    // Of the next level: the node from which the slots' ancestors are counted, the next tile's, and the number of nodes.
    u32 first_child = t.first, next = t.first + t.slots, below = leaves.nodes;
    for (u32 l = a.order - 1; l-- > 0;) {
        const Level level = f.levels[l];
        place.marks.clear();
        const u32 begin = find_parent(level, first_child, below, bad);
        __syncwarp();
        walk(place, level, begin, first_child, next, below, bad);
        __syncwarp();
        const Ranks ranks(place.marks.own());
        const u32 mode = f.mode[l], highest = f.highest[l];
#pragma unroll
        for (u32 round = 0; round < ROUNDS; ++round) {
            const u32 i = round * ROUND + 4 * lane;
            u16 child[4];
            u32 index[4];
            take(place.child + i, child);
#pragma unroll
            for (u32 k = 0; k < 4; ++k) {
                child[k] = ranks.upto_bit(child[k]);
                // Damaged starts leave out nodes.
                const u32 found = place.index[child[k] % BLCO_TILE_NNZ];
                index[k] = found < highest ? found : highest;
            }
            targets.write_indices(a, mode, i, index);
            put(place.child + i, child);
        }
        first_child = begin;
        next = begin + ranks.all();
        below = level.nodes;
        __syncwarp();
    }
}

// A grid of any size.
__device__ inline void tree(const ExpandArgs& a)
{
    __shared__ Frame frame;
    __shared__ Place places[WARPS];
    if (threadIdx.x < a.order) frame.read((const u8*)a.from, threadIdx.x, threadIdx.x, a.dims);
    __syncthreads();
    write_frame(a, frame.h.nnz);
    const u32 leaves = frame.levels[a.order - 1].nodes, tiles = (leaves + BLCO_TILE_NNZ - 1) / BLCO_TILE_NNZ;
    bool bad = false;
    for (u32 t = blockIdx.x * WARPS + threadIdx.x / 32; t < tiles; t += gridDim.x * WARPS) {
        write_nonzeros(a, frame, places[threadIdx.x / 32], t, bad);
    }
    check_starts<WARPS>(frame, 0, a.order, blockIdx.x, gridDim.x, bad);
    if (bad) atomicMin((u32*)a.fault, a.number);
}

// Columns of indices, one after the other. A record gives their beginning in units of 64 bytes, and `ranges` the low and high of each.
struct Columns {
    const u32* words;
    const u8* ranges;
    u32 start;

    __device__ __forceinline__ Columns(const Header& h, const u8* record, const u8* ranges_)
        : words((const u32*)(h.second.at + 64ull * load<u32>(record))), ranges(ranges_), start(0)
    {
    }

    // Moves on to the next column.
    __device__ __forceinline__ void pass()
    {
        start += 16 * width_of(load<u32>(ranges + 4) - load<u32>(ranges));
        ranges += 8;
    }
    // Numbers i to i + 3 of this column of `count`.
    __device__ __forceinline__ void four(u32 (&index)[4], u32 i, u32 count, bool& bad) const
    {
        const u32 low = load<u32>(ranges), span = load<u32>(ranges + 4) - low;
        unpack_four(index, words, width_of(span), i, start);
#pragma unroll
        for (u32 k = 0; k < 4; ++k) {
            bad |= i + k < count && index[k] > span;
            index[k] = low + (index[k] > span ? span : index[k]);
        }
    }
};

// The number of segments that begin in words `begin` to `end`, both even, of the flags. All `of` threads of a warp or thread block count,
// and each warp gets its part.
__device__ __forceinline__ u32 begin_in(const SegmentParts& s, u32 begin, u32 end, u32 of)
{
    constexpr u32 LOADS = 8;
    u32 sum = 0;
    for (u32 from = begin + threadIdx.x % of * 2; from < end; from += 2 * LOADS * of) {
        u32 words[LOADS][2] = {};
#pragma unroll
        for (u32 k = 0; k < LOADS; ++k) {
            if (from + 2 * k * of < end) take_read_only(s.flags + (from + 2 * k * of), words[k]);
        }
#pragma unroll
        for (u32 k = 0; k < LOADS; ++k) sum += __popc(words[k][0]) + __popc(words[k][1]);
    }
#pragma unroll
    for (u32 distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
    return sum;
}

// Writes four numbers, the first of which is number i of `count`; none beyond.
template <class T> __device__ __forceinline__ void put_there(T* to, const T (&number)[4], u32 i, u32 count)
{
    if (i + 3 < count) {
        put(to, number);
        return;
    }
#pragma unroll
    for (u32 k = 0; k < 4; ++k) {
        if (i + k < count) to[k] = number[k];
    }
}

// A grid of any size. A thread block takes consecutive tiles, so it counts the segments before them only once, and so does each of its warps.
__device__ inline void segments(const ExpandArgs& a)
{
    constexpr u32 WORDS = BLCO_TILE_NNZ / 32;
    // Of each warp: the indices of its tile's segments, from a multiple of four on, and the segments that it has counted.
    alignas(16) __shared__ u32 indices[WARPS][BLCO_TILE_NNZ + 8];
    __shared__ u32 of_warps[WARPS];
    const SegmentParts s(a.from, a.product, a.order);
    const u32 tiles = (s.h.nnz + BLCO_TILE_NNZ - 1) / BLCO_TILE_NNZ, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 first_tile = (u64)tiles * blockIdx.x / gridDim.x, of_block = (u32)((u64)tiles * (blockIdx.x + 1) / gridDim.x) - first_tile;
    const u32 begin = first_tile + of_block * warp / WARPS, end = first_tile + of_block * (warp + 1) / WARPS;
    u32* const index_of = indices[warp];
    bool bad = false;
    write_frame(a, s.h.nnz);
    const u32 counted = begin_in(s, 0, first_tile * WORDS, THREADS);
    if (lane == 0) of_warps[warp] = counted;
    __syncthreads();
    u32 before = begin_in(s, first_tile * WORDS, begin * WORDS, 32);
    for (u32 w = 0; w < WARPS; ++w) before += of_warps[w];
    for (u32 t = begin; t < end; ++t) {
        const u32 word = t * WORDS + lane, first = t * BLCO_TILE_NNZ, rest = s.h.nnz - first;
        const u32 slots = rest < BLCO_TILE_NNZ ? rest : BLCO_TILE_NNZ;
        const Ranks ranks(lane < WORDS && word < s.flag_words() ? __ldg(s.flags + word) : 0);
        const u8* const record = s.tiles + (u64)s.tile_record * t;
        Columns columns(s.h, record, record + 16);
        for (u32 m = 0; m < a.order; ++m) {
            if ((a.product >> m & 1) == 0) continue;
#pragma unroll
            for (u32 round = 0; round < ROUNDS; ++round) {
                const u32 i = round * ROUND + 4 * lane;
                u32 index[4];
                columns.four(index, i, slots, bad);
                put_there(index_at(a, first + i, m), index, i, slots);
            }
            columns.pass();
        }
#pragma unroll
        for (u32 round = 0; round < ROUNDS; ++round) {
            const u32 i = round * ROUND + 4 * lane;
            double value[4];
            four_values(value, s.h, columns.words, columns.start, record + 4, record + 8, first, i, slots, bad);
            put_there(value_at(a, first + i), value, i, slots);
        }
        // The segments of the first and the last nonzero.
        u32 low = before + (__shfl_sync(~0u, ranks.word, 0) & 1) - 1, high = before + ranks.all() - 1;
        if (low > high || high >= s.count) {
            bad = true;
            low = 0;
            high = s.count - 1 < BLCO_TILE_NNZ ? s.count - 1 : BLCO_TILE_NNZ;
        }
        const u32 from = low / 4 * 4;
        for (u32 m = 0, number = 0; m < a.order; ++m) {
            if (a.product >> m & 1) continue;
            __syncwarp();
            for (u32 segment = from + 4 * lane; segment <= high; segment += ROUND) {
                const u32 of_group = segment % BLCO_TILE_NNZ, left = s.count - (segment - of_group);
                const u8* const group = s.groups + (u64)s.group_record * (segment / BLCO_TILE_NNZ);
                Columns of_segments(s.h, group, group + 8);
                for (u32 n = 0; n < number; ++n) of_segments.pass();
                u32 index[4];
                of_segments.four(index, of_group, left, bad);
                put(index_of + (segment - from), index);
            }
            __syncwarp();
#pragma unroll
            for (u32 round = 0; round < ROUNDS; ++round) {
                const u32 i = round * ROUND + 4 * lane;
                u32 index[4];
#pragma unroll
                for (u32 k = 0; k < 4; ++k) {
                    const u32 segment = before + ranks.upto_bit(i + k) - 1;
                    index[k] = index_of[segment < low ? low - from : segment > high ? high - from : segment - from];
                }
                put_there(index_at(a, first + i, m), index, i, slots);
            }
            ++number;
        }
        before += ranks.all();
    }
    if (bad) atomicMin((u32*)a.fault, a.number);
}

// Counts the segments that begin before each tile, for kernels that read them as they lie. One thread block.
__device__ inline void count(const ExpandArgs& a)
{
    // A round takes a tile for each thread; neighbours load what follows in the flags.
    constexpr u32 WORDS = BLCO_TILE_NNZ / 32, OF_TILE = WORDS / 2, ALL_WARPS = BLCO_SORT_THREADS / 32;
    __shared__ u32 of_tiles[BLCO_SORT_THREADS], of_warps[ALL_WARPS];
    const SegmentParts s(a.from, a.product, a.order);
    u32* const counts = s.before();
    const u32 tiles = (s.h.nnz + BLCO_TILE_NNZ - 1) / BLCO_TILE_NNZ, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 before = 0;
    for (u32 first = 0; first < tiles; first += BLCO_SORT_THREADS) {
        u32 words[OF_TILE][2] = {};
#pragma unroll
        for (u32 k = 0; k < OF_TILE; ++k) {
            const u32 at = first * WORDS + 2 * (k * BLCO_SORT_THREADS + threadIdx.x);
            if (at + 1 < s.flag_words()) take_read_only(s.flags + at, words[k]);
            else if (at < s.flag_words()) words[k][0] = __ldg(s.flags + at);
        }
#pragma unroll
        for (u32 k = 0; k < OF_TILE; ++k) {
            u32 sum = __popc(words[k][0]) + __popc(words[k][1]);
#pragma unroll
            for (u32 distance = OF_TILE / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
            if (threadIdx.x % OF_TILE == 0) of_tiles[(k * BLCO_SORT_THREADS + threadIdx.x) / OF_TILE] = sum;
        }
        __syncthreads();
        const u32 own = of_tiles[threadIdx.x], upto = sum_upto(own);
        if (lane == 31) of_warps[warp] = upto;
        __syncthreads();
        u32 start = before + upto - own;
#pragma unroll
        for (u32 w = 0; w < ALL_WARPS; ++w) {
            start += w < warp ? of_warps[w] : 0;
            before += of_warps[w];
        }
        if (first + threadIdx.x < tiles) counts[first + threadIdx.x] = start;
    }
    // The host has seen that there are as many as the section says.
    if (threadIdx.x == 0 && before != s.count) atomicMin((u32*)a.fault, a.number);
}

// A grid of any size.
__device__ inline void coordinates(const ExpandArgs& a)
{
    const Header h = header((const u8*)a.from, SECTION_COORDINATES, SECTION_VALUES);
    bool bad = false;
    write_frame(a, h.nnz);
    for (u32 i = blockIdx.x * THREADS + threadIdx.x; i < h.nnz; i += gridDim.x * THREADS) {
        for (u32 m = 0; m < a.order; ++m) {
            *index_at(a, i, m) = inside(load<u32>(h.first.at + 4 * ((u64)m * h.nnz + i)), a.dims[m] - 1, bad);
        }
        *value_at(a, i) = section_value(h, i, bad);
    }
    if (bad) atomicMin((u32*)a.fault, a.number);
}

}  // namespace expand

// Kernels for every order and encoding: X(layout).
#define BLCO_EXPAND_KERNELS(X) X(tree) X(segments) X(coordinates)

#define BLCO_EXPAND(layout)                                                                                            \
    extern "C" __global__ void __launch_bounds__(BLCO_TILE_THREADS, 6) expand_##layout(const ExpandArgs args)          \
    {                                                                                                                  \
        expand::layout(args);                                                                                          \
    }

#define BLCO_COUNT                                                                                                     \
    extern "C" __global__ void __launch_bounds__(BLCO_SORT_THREADS) count_segments(const ExpandArgs args)              \
    {                                                                                                                  \
        expand::count(args);                                                                                           \
    }
