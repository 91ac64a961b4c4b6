// Reads a tree's image in place (formats-spec/hocfs.md). The host has checked the records before the copy. Numbers inside columns
// are brought into range here, and `bad` is set if one was not: every index is within the dims, and every place within its level.
#pragma once
#include "image.cuh"

// The tiles of one level: records of 32 bytes.
struct Level {
    const u8* records;
    const u8* columns;
    u32 nodes;

    __device__ __forceinline__ const u8* record(u32 node) const { return records + 32ull * (node / BLCO_TILE_NNZ); }
    __device__ __forceinline__ const u32* words(const u8* record) const
    {
        return (const u32*)(columns + 64ull * load<u32>(record));
    }
};

// A record's largest index minus its smallest.
__device__ __forceinline__ u32 level_span(const u8* record)
{
    return load<u32>(record + 8) - load<u32>(record + 4);
}

struct Tree {
    Header h;

    __device__ __forceinline__ explicit Tree(const u8* image) : h(header(image, SECTION_LEVELS, SECTION_COLUMNS)) {}

    __device__ __forceinline__ u32 nodes(u32 level) const { return load<u32>(h.first.at + 16 + 4 * level); }

    __device__ __forceinline__ Level level(u32 number) const
    {
        Level l = {h.first.at + 64, h.second.at, nodes(0)};
        for (u32 i = 0; i < number; ++i) {
            l.records += 32ull * ((l.nodes + BLCO_TILE_NNZ - 1) / BLCO_TILE_NNZ);
            l.nodes = nodes(i + 1);
        }
        return l;
    }
};

// The first child of a node of an inner level; the next level has `children` nodes. For the node after the last, the end of its children.
__device__ __forceinline__ u32 start_of(const Level& l, u32 node, u32 children, bool& bad)
{
    if (node >= l.nodes) return children;
    const u8* record = l.record(node);
    const u32 i = node % BLCO_TILE_NNZ, width = load<u32>(record + 24);
    const u32 number = unpack32(l.words(record) + 16 * width_of(level_span(record)), width, i);
    const u64 start = (u64)load<i64>(record + 16) + (u64)load<u32>(record + 12) * i + number;
    bad |= start >= children || (i == 0 && number != 0);
    return start < children ? (u32)start : children;
}

// The parent of `child` in an inner level.
__device__ __forceinline__ u32 parent_of(const Level& l, u32 child, u32 children, bool& bad)
{
    u32 low = 0, high = l.nodes - 1;
    while (low / BLCO_TILE_NNZ < high / BLCO_TILE_NNZ) {
        const u32 middle = (low / BLCO_TILE_NNZ + high / BLCO_TILE_NNZ + 1) / 2 * BLCO_TILE_NNZ;
        if (load<i64>(l.record(middle) + 16) <= (i64)child) low = middle;
        else high = middle - 1;
    }
    while (low < high) {
        const u32 middle = low + (high - low + 1) / 2;
        if (start_of(l, middle, children, bad) <= child) low = middle;
        else high = middle - 1;
    }
    return low;
}

// The tile of leaves that a slot is in.
struct LeafTile {
    const u8* record;
    const u32* words;
    // Its first slot and how many it has; of the nonzeros, those before it and up to its end.
    u32 first, slots, before, behind;
    // Whether some slots have no leaf: the number there is one more than the span.
    bool padded;
    // The column of indices.
    u32 low, span, width;

    __device__ __forceinline__ LeafTile(const Header& h, const Level& leaves, u32 slot)
        : record(leaves.record(slot)), words(leaves.words(record)), first(slot / BLCO_TILE_NNZ * BLCO_TILE_NNZ)
    {
        const u32 rest = leaves.nodes - first;
        slots = rest < BLCO_TILE_NNZ ? rest : BLCO_TILE_NNZ;
        before = load<u32>(record + 12);
        behind = rest > BLCO_TILE_NNZ ? load<u32>(record + 32 + 12) : h.nnz;
        padded = behind - before != slots;
        low = load<u32>(record + 4);
        span = level_span(record);
        width = width_of(span + padded);
    }
};

// A leaf: its index, and its value in T. `padding` if the slot has no leaf.
template <class T> struct Leaf {
    u32 index;
    T value;
    bool padding;
};

// The leaf in a slot.
template <class T> __device__ __forceinline__ Leaf<T> leaf_of(const Tree& tree, const Level& leaves, u32 slot, bool& bad)
{
    const LeafTile tile(tree.h, leaves, slot);
    const u32 i = slot - tile.first, number = unpack32(tile.words, tile.width, i);
    Leaf<T> leaf = {0, T(0), tile.padded && number == tile.span + 1};
    if (leaf.padding) return leaf;
    leaf.index = tile.low + inside(number, tile.span, bad);
    T value[1];
    tile_values(value, tree.h, tile.words, 16 * tile.width, tile.record + 24, tile.record + 16, tile.first, [&](int) { return i; }, bad);
    leaf.value = value[0];
    return leaf;
}

// The last of `count` numbers that `holds`, where it holds for some number and all before it; 0 if for none. A whole warp calls it.
template <class HOLDS> __device__ __forceinline__ u32 last_that(u32 count, const HOLDS& holds)
{
    u32 low = 0, high = count;
    while (high - low > 1) {
        const u32 step = (high - low + 31) / 32, at = low + threadIdx.x % 32 * step;
        const u32 before = __popc(__ballot_sync(~0u, at < high && holds(at)));
        low += (before > 0 ? before - 1 : 0) * step;
        high = high < low + step ? high : low + step;
    }
    return low;
}

// The parent of `child` in an inner level; the next level has `children` nodes. A whole warp calls it.
__device__ __forceinline__ u32 find_parent(const Level& level, u32 child, u32 children, bool& bad)
{
    const u32 tiles = (level.nodes + BLCO_TILE_NNZ - 1) / BLCO_TILE_NNZ;
    const u32 first = BLCO_TILE_NNZ * last_that(tiles, [&](u32 tile) { return load<i64>(level.records + 32ull * tile + 16) <= (i64)child; });
    const u32 rest = level.nodes - first, nodes = rest < BLCO_TILE_NNZ ? rest : BLCO_TILE_NNZ;
    return first + last_that(nodes, [&](u32 i) { return start_of(level, first + i, children, bad) <= child; });
}

// Nodes `node` to `node` + 3 of an inner level, `node` being a multiple of four: where their children start, and their indices. The next
// level has `children` nodes; what is beyond the last node starts there.
struct Nodes {
    u32 start[4], index[4];

    __device__ __forceinline__ Nodes(const Level& level, u32 node, u32 children, bool& bad)
    {
        const u32 last = level.nodes - 1, i = node % BLCO_TILE_NNZ;
        u32 record[8];
        take_read_only((const u32*)level.record(node <= last ? node : last), record);
        const u32* const words = (const u32*)(level.columns + 64ull * record[0]);
        const u32 low = record[1], span = record[2] - low, width = width_of(span), stride = record[3];
        // The host has seen that these, without the numbers, are below `children`.
        u32 above = record[4] + stride * i;
        unpack_four(index, words, width, i);
        unpack_four(start, words, record[6], i, 16 * width);
        bad |= node <= last && i == 0 && start[0] != 0;
#pragma unroll
        for (u32 k = 0; k < 4; ++k) {
            const bool there = node + k <= last;
            const u32 rest = children - 1 - above;
            bad |= there && (start[k] > rest || index[k] > span);
            start[k] = !there || start[k] > rest ? children : above + start[k];
            index[k] = low + (index[k] > span ? span : index[k]);
            above += stride;
        }
    }
};

// What a thread block knows of a tree.
struct Frame {
    Header h;
    Level levels[BLCO_ORDER_MAX];
    // Each level's mode, and that mode's largest index.
    u32 mode[BLCO_ORDER_MAX], highest[BLCO_ORDER_MAX];

    // Reads level `level`, as entry `at`.
    __device__ __forceinline__ void read(const u8* image, u32 level, u32 at, const u32 (&dims)[BLCO_ORDER_MAX])
    {
        const Tree tree(image);
        const u32 m = tree.h.first.at[level];
        if (level == 0) h = tree.h;
        levels[at] = tree.level(level);
        mode[at] = m;
        u32 dim = 1;
#pragma unroll
        for (u32 k = 0; k < BLCO_ORDER_MAX; ++k) dim = k == m ? dims[k] : dim;
        highest[at] = dim - 1;
    }
};

// Starts ascend: this also finds damaged ones that a climb passes by. Entries `from` to `end` are the levels. Thread block `block` of
// `blocks`, of WARPS warps, looks at its part of them.
template <u32 WARPS>
__device__ __forceinline__ void check_starts(const Frame& f, u32 from, u32 end, u32 block, u32 blocks, bool& bad)
{
    // Each warp shares its last thread's nodes with the next warp.
    constexpr u32 NEW = 4 * 32 - 4;
    const u32 own = (block * WARPS + threadIdx.x / 32) * NEW + threadIdx.x % 32 * 4;
    const bool last = threadIdx.x % 32 == 31;
    for (u32 l = from; l + 1 < end; ++l) {
        const Level level = f.levels[l];
        const u32 below = f.levels[l + 1].nodes;
        for (u32 node = own; node - threadIdx.x % 32 * 4 < level.nodes; node += blocks * WARPS * NEW) {
            const Nodes nodes(level, node, below, bad);
            const u32 next = __shfl_down_sync(~0u, nodes.start[0], 1);
#pragma unroll
            for (u32 k = 0; k < 4; ++k) bad |= !last && node + k < level.nodes && nodes.start[k] >= (k < 3 ? nodes.start[(k + 1) % 4] : next);
        }
    }
}
