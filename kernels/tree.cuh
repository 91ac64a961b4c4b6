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

// A leaf: its index, and its value in T. `padding` if the slot has no leaf.
template <class T> struct Leaf {
    u32 index;
    T value;
    bool padding;
};

// The leaf in a slot.
template <class T> __device__ __forceinline__ Leaf<T> leaf_of(const Tree& tree, const Level& leaves, u32 slot, bool& bad)
{
    const u32 i = slot % BLCO_TILE_NNZ, first = slot - i, rest = leaves.nodes - first;
    const u8* record = leaves.record(slot);
    const u32 before = load<u32>(record + 12), behind = rest > BLCO_TILE_NNZ ? load<u32>(record + 32 + 12) : tree.h.nnz;
    const bool padded = behind - before != (rest < BLCO_TILE_NNZ ? rest : BLCO_TILE_NNZ);
    const u32 span = level_span(record), width = width_of(span + padded);
    const u32* words = leaves.words(record);
    const u32 number = unpack32(words, width, i);
    Leaf<T> leaf = {0, T(0), padded && number == span + 1};
    if (leaf.padding) return leaf;
    leaf.index = load<u32>(record + 4) + inside(number, span, bad);
    T value[1];
    tile_values(value, tree.h, words, 16 * width, record + 24, record + 16, first, [&](int) { return i; }, bad);
    leaf.value = value[0];
    return leaf;
}
