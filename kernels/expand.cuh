// Turns the image of a tree, of segments or of coordinates into a `tiled` one, which every kernel reads (image.cuh), on the device after
// the copy. Its columns are not packed: indices are 32-bit numbers from 0 and values are f64. Every offset therefore follows from the
// number of nonzeros. Nonzeros keep their order. Even if columns are damaged, every nonzero of the image is written, with indices within
// the dims.
#pragma once
#include "tree.cuh"

namespace expand {

constexpr u32 THREADS = BLCO_TILE_THREADS, OWN = BLCO_TILE_NNZ / THREADS;

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

// The parent of `child` in an inner level, which the whole thread block looks for: a thread for each of many nodes at a time. All threads
// see the same, in range even if starts are damaged.
__device__ __forceinline__ u32 find_parent(const Level& level, u32 child, u32 below, bool& bad)
{
    u32 tile = 0, tiles = (level.nodes + BLCO_TILE_NNZ - 1) / BLCO_TILE_NNZ;
    while (tiles > 1) {
        const u32 step = (tiles + THREADS - 1) / THREADS, own = threadIdx.x * step;
        const bool starts = own < tiles && load<i64>(level.records + 32ull * (tile + own) + 16) <= (i64)child;
        const u32 before = __syncthreads_count(starts), at = before > 0 ? (before - 1) * step : 0;
        tile += at;
        tiles = tiles - at < step ? tiles - at : step;
    }
    const u32 first = tile * BLCO_TILE_NNZ, rest = level.nodes - first;
    u32 before = 0;
#pragma unroll
    for (u32 k = 0; k < OWN; ++k) {
        const u32 i = threadIdx.x + k * THREADS;
        const bool there = i < rest;
        before += __syncthreads_count(there && start_of(level, first + i, below, bad) <= child);
    }
    return first + (before > 0 ? before - 1 : 0);
}

// Finds the parents of `children` nodes of the level below, from node `first` on; that level has `below` nodes. At most a tile's nodes.
// The whole thread block calls it and sees the parents on return.
__device__ __forceinline__ void find_parents(u32 (&parents)[BLCO_TILE_NNZ], const Level& level, u32 first, u32 children, u32 below,
                                             bool& bad)
{
    const u32 begin = find_parent(level, first, below, bad);
    // Nodes that damaged starts leave out.
    for (u32 i = threadIdx.x; i < BLCO_TILE_NNZ; i += THREADS) parents[i] = begin;
    __syncthreads();
    for (u32 node = begin + threadIdx.x; node < level.nodes; node += THREADS) {
        const u32 start = start_of(level, node, below, bad), end = start_of(level, node + 1, below, bad);
        if (start >= first + children) break;
        for (u32 child = start > first ? start : first; child < end && child < first + children; ++child) {
            // One thread for each node; several if damaged starts overlap.
            atomicMax(&parents[child - first], node);
        }
    }
    __syncthreads();
}

// The number of nonzeros in the tile's slots before slot i. `present` has a bit for each slot that holds one.
__device__ __forceinline__ u32 nonzeros_before(const u32 (&present)[BLCO_TILE_NNZ / 32], u32 i)
{
    u32 count = __popc(present[i / 32] & ((1u << i % 32) - 1));
    for (u32 word = 0; word < i / 32; ++word) count += __popc(present[word]);
    return count;
}

// Writes header and records. All thread blocks take part.
__device__ __forceinline__ void write_frame(const ExpandArgs& a, u32 nnz)
{
    if (blockIdx.x == 0 && threadIdx.x == 0) write_header(a, nnz);
    for (u32 t = blockIdx.x * THREADS + threadIdx.x; t < (nnz + BLCO_TILE_NNZ - 1) / BLCO_TILE_NNZ; t += gridDim.x * THREADS) {
        write_record(a, t);
    }
}

// Writes the nonzeros of a tile of leaves. A thread block climbs from level to level: each thread takes a node and tells its children, at
// most a tile's number in all, who their parent is. Nonzeros keep the order of the leaves, without padding.
__device__ __forceinline__ void write_nonzeros(const ExpandArgs& a, const Tree& tree, u32 tile, bool& bad)
{
    __shared__ u32 present[BLCO_TILE_NNZ / 32], parents[BLCO_TILE_NNZ];
    const Level leaves = tree.level(a.order - 1);
    const u8* modes = tree.h.first.at;
    const u32 first = tile * BLCO_TILE_NNZ, rest = leaves.nodes - first, slots = rest < BLCO_TILE_NNZ ? rest : BLCO_TILE_NNZ;
    Leaf<double> leaf[OWN];
#pragma unroll
    for (u32 k = 0; k < OWN; ++k) {
        const u32 slot = threadIdx.x + k * THREADS;
        leaf[k].padding = true;
        if (slot < slots) leaf[k] = leaf_of<double>(tree, leaves, first + slot, bad);
        const u32 word = __ballot_sync(~0u, !leaf[k].padding);
        if (threadIdx.x % 32 == 0) present[slot / 32] = word;
    }
    __syncthreads();
    const u8* record = leaves.record(first);
    const u32 before = load<u32>(record + 12), behind = rest > BLCO_TILE_NNZ ? load<u32>(record + 32 + 12) : tree.h.nnz;
    const bool padded = behind - before != slots;
    if (nonzeros_before(present, BLCO_TILE_NNZ - 1) + (present[BLCO_TILE_NNZ / 32 - 1] >> 31) != behind - before) {
        bad = true;
        for (u32 p = before + threadIdx.x; p < behind; p += THREADS) {
            for (u32 m = 0; m < a.order; ++m) *index_at(a, p, m) = 0;
            *value_at(a, p) = 0;
        }
        __syncthreads();
        return;
    }
    u32 position[OWN], child[OWN];
#pragma unroll
    for (u32 k = 0; k < OWN; ++k) {
        child[k] = threadIdx.x + k * THREADS;
        position[k] = before + (padded ? nonzeros_before(present, child[k]) : child[k]);
        if (leaf[k].padding) continue;
        *index_at(a, position[k], modes[a.order - 1]) = leaf[k].index;
        *value_at(a, position[k]) = leaf[k].value;
    }
    // The nodes of the level below whose parents are wanted, and the number of nodes in that level.
    u32 first_child = first, children = slots, below = leaves.nodes;
    for (u32 l = a.order - 1; l-- > 0;) {
        const Level level = tree.level(l);
        find_parents(parents, level, first_child, children, below, bad);
        const u32 begin = parents[0], end = parents[children - 1];
        bad |= end < begin || end - begin >= children;
#pragma unroll
        for (u32 k = 0; k < OWN; ++k) {
            if (leaf[k].padding) continue;
            const u32 node = parents[child[k]];
            *index_at(a, position[k], modes[l]) = index_of(level, node, bad);
            child[k] = inside(node - begin, children - 1, bad);
        }
        children = end - begin < children ? end - begin + 1 : children;
#pragma unroll
        for (u32 k = 0; k < OWN; ++k) child[k] = child[k] < children ? child[k] : children - 1;
        first_child = begin;
        below = level.nodes;
        __syncthreads();
    }
}

// Every node of the inner levels has children: this also finds damaged starts that the climb passes by.
__device__ __forceinline__ void check_starts(const ExpandArgs& a, const Tree& tree, bool& bad)
{
    for (u32 l = 0; l + 1 < a.order; ++l) {
        const Level level = tree.level(l);
        const u32 below = tree.nodes(l + 1);
        for (u32 node = blockIdx.x * THREADS + threadIdx.x; node < level.nodes; node += gridDim.x * THREADS) {
            bad |= start_of(level, node, below, bad) >= start_of(level, node + 1, below, bad);
        }
    }
}

// A grid of any size.
__device__ inline void tree(const ExpandArgs& a)
{
    const Tree tree((const u8*)a.from);
    const u32 slots = tree.nodes(a.order - 1);
    bool bad = false;
    write_frame(a, tree.h.nnz);
    check_starts(a, tree, bad);
    for (u32 t = blockIdx.x; t < (slots + BLCO_TILE_NNZ - 1) / BLCO_TILE_NNZ; t += gridDim.x) write_nonzeros(a, tree, t, bad);
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
    // Number i of this column.
    __device__ __forceinline__ u32 index(u32 i, bool& bad) const
    {
        const u32 low = load<u32>(ranges), span = load<u32>(ranges + 4) - low;
        return low + inside(unpack32(words, width_of(span), i, start), span, bad);
    }
};

// The parts of the layout `segments` (formats-spec/formats.md) that all tiles share.
struct Segments {
    Header h;
    u32 count, tile_record, group_record;
    const u8 *tiles, *groups;
    const u32* flags;

    __device__ __forceinline__ explicit Segments(const ExpandArgs& a) : h(header((const u8*)a.from, SECTION_SEGMENTS, SECTION_COLUMNS))
    {
        const u32 products = __popc(a.product);
        count = load<u32>(h.first.at);
        tile_record = 16 + 8 * products;
        group_record = 8 + 8 * (a.order - products);
        tiles = h.first.at + 8;
        groups = tiles + (u64)tile_record * ((h.nnz + BLCO_TILE_NNZ - 1) / BLCO_TILE_NNZ);
        flags = (const u32*)(groups + (u64)group_record * ((count + BLCO_TILE_NNZ - 1) / BLCO_TILE_NNZ));
    }

    __device__ __forceinline__ u32 flag_words() const { return (h.nnz + 31) / 32; }
};

// The number of segments that begin in the first `words` words of flags. The whole thread block calls it.
__device__ __forceinline__ u32 segments_before(const Segments& s, u32 words)
{
    __shared__ u32 sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    u32 own = 0;
    for (u32 w = threadIdx.x; w < words; w += THREADS) own += __popc(__ldg(s.flags + w));
    if (own > 0) atomicAdd(&sum, own);
    __syncthreads();
    return sum;
}

// A grid of any size. A thread block takes consecutive tiles, so it counts the segments before them only once.
__device__ inline void segments(const ExpandArgs& a)
{
    __shared__ u32 flags[BLCO_TILE_NNZ / 32];
    const Segments s(a);
    const u32 tiles = (s.h.nnz + BLCO_TILE_NNZ - 1) / BLCO_TILE_NNZ;
    const u32 begin = (u64)tiles * blockIdx.x / gridDim.x, end = (u64)tiles * (blockIdx.x + 1) / gridDim.x;
    bool bad = false;
    write_frame(a, s.h.nnz);
    u32 before = segments_before(s, begin * (BLCO_TILE_NNZ / 32));
    for (u32 t = begin; t < end; ++t) {
        __syncthreads();
        const u32 word = t * (BLCO_TILE_NNZ / 32) + threadIdx.x;
        if (threadIdx.x < BLCO_TILE_NNZ / 32) flags[threadIdx.x] = word < s.flag_words() ? __ldg(s.flags + word) : 0;
        __syncthreads();
        const u32 first = t * BLCO_TILE_NNZ, slots = s.h.nnz - first < BLCO_TILE_NNZ ? s.h.nnz - first : BLCO_TILE_NNZ;
        const u8* const record = s.tiles + (u64)s.tile_record * t;
        const auto slot = [&](u32 k) {
            const u32 i = threadIdx.x + k * THREADS;
            return i < slots ? i : slots - 1;
        };
        Columns columns(s.h, record, record + 16);
        for (u32 m = 0; m < a.order; ++m) {
            if ((a.product >> m & 1) == 0) continue;
#pragma unroll
            for (u32 k = 0; k < OWN; ++k) *index_at(a, first + slot(k), m) = columns.index(slot(k), bad);
            columns.pass();
        }
        double value[OWN];
        tile_values(value, s.h, columns.words, columns.start, record + 4, record + 8, first, slot, bad);
#pragma unroll
        for (u32 k = 0; k < OWN; ++k) {
            const u32 i = slot(k);
            *value_at(a, first + i) = value[k];
            u32 segment = before + __popc(flags[i / 32] & ~0u >> (31 - i % 32)) - 1;
            for (u32 w = 0; w < i / 32; ++w) segment += __popc(flags[w]);
            segment = inside(segment, s.count - 1, bad);
            const u8* const group = s.groups + (u64)s.group_record * (segment / BLCO_TILE_NNZ);
            Columns of_segment(s.h, group, group + 8);
            for (u32 m = 0; m < a.order; ++m) {
                if (a.product >> m & 1) continue;
                *index_at(a, first + i, m) = of_segment.index(segment % BLCO_TILE_NNZ, bad);
                of_segment.pass();
            }
        }
        for (u32 w = 0; w < BLCO_TILE_NNZ / 32; ++w) before += __popc(flags[w]);
    }
    if (bad) atomicMin((u32*)a.fault, a.number);
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
