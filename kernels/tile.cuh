// A tile in shared memory: decoded from either index encoding, then ordered by row of the target mode.
#pragma once
#include "image.cuh"

// What a slot without a nonzero sorts as: behind all that are there.
#define NO_NONZERO (~0ull)

// The nonzeros of a tile: a column of indices for each mode, and the values.
template <class T, int ORDER> struct Tile {
    u32 index[ORDER][BLCO_TILE_NNZ];
    T value[BLCO_TILE_NNZ];
};

// Puts an index that a damaged file holds inside its mode.
__device__ __forceinline__ u32 inside(u32 index, u32 highest, bool& bad)
{
    bad |= index > highest;
    return index > highest ? highest : index;
}

// Where a tile's rows of the target mode lie: from `low` to `low + span`.
struct Rows {
    u32 low, span;
};

// Tile t of a `tiled` chunk. Returns its nonzeros.
struct Tiled {
    template <class T, int ORDER>
    static __device__ u32 decode(Tile<T, ORDER>& tile, Rows& rows, const MttkrpArgs& a, const u8* image, u32 t, bool& bad)
    {
        const Header h = header(image, SECTION_TILES, SECTION_COLUMNS);
        const u8* record = h.first.at + (u64)t * (16 + 8 * a.order);
        const u32* words = (const u32*)(h.second.at + 64ull * load<u32>(record));
        const u32 rest = h.nnz - t * BLCO_TILE_NNZ, nnz = rest < BLCO_TILE_NNZ ? rest : BLCO_TILE_NNZ;
        rows.low = load<u32>(record + 16 + 8 * a.mode);
        rows.span = load<u32>(record + 20 + 8 * a.mode) - rows.low;
#pragma unroll
        for (int m = 0; m < ORDER; ++m) {
            if (ORDER == BLCO_ORDER_MAX && m >= (int)a.order) break;
            const u32 low = load<u32>(record + 16 + 8 * m), span = load<u32>(record + 20 + 8 * m) - low;
            const u32 width = width_of(span);
            for (u32 i = threadIdx.x; i < nnz; i += BLCO_THREADS) {
                tile.index[m][i] = low + inside(unpack32(words, width, i), span, bad);
            }
            words += 16 * width;
        }
        const u32 width = load<u32>(record + 4);
        const i64 base = load<i64>(record + 8);
        for (u32 i = threadIdx.x; i < nnz; i += BLCO_THREADS) {
            double v;
            if (h.value_encoding == VALUES_INTEGER) {
                v = (double)(base + (i64)unpack64(words, width, i));
            } else if (h.value_encoding == VALUES_DICTIONARY) {
                v = ((const double*)h.values.at)[inside(unpack32(words, width, i), h.values.bytes / 8 - 1, bad)];
            } else {
                v = section_value(h, t * BLCO_TILE_NNZ + i, bad);
            }
            tile.value[i] = (T)v;
        }
        return nnz;
    }
};

// Tile t of a `raw` chunk: shift and mask, with the key's bits above (Nguyen et al., ICS 2022, section 4.2).
// Nonzeros of several BLCO blocks can share a tile, so that small BLCO blocks are batched into one launch.
struct Raw {
    // The last of the BLCO blocks from `low` to `high` that starts at or before nonzero i.
    static __device__ __forceinline__ u32 block_of(const u8* blocks, u32 low, u32 high, u32 i)
    {
        while (low < high) {
            const u32 middle = (low + high + 1) / 2;
            if (load<u32>(blocks + 16ull * middle + 8) <= i) low = middle;
            else high = middle - 1;
        }
        return low;
    }

    template <class T, int ORDER>
    static __device__ u32 decode(Tile<T, ORDER>& tile, Rows& rows, const MttkrpArgs& a, const u8* image, u32 t, bool& bad)
    {
        const Header h = header(image, SECTION_BLOCKS, SECTION_INDEX);
        const u32 from = t * BLCO_TILE_NNZ, rest = h.nnz - from, nnz = rest < BLCO_TILE_NNZ ? rest : BLCO_TILE_NNZ;
        const u32 last = h.first.bytes / 16 - 1;
        rows.low = 0;
        rows.span = a.dims[a.mode] - 1;
        const u32 first_block = block_of(h.first.at, 0, last, from);
        const u32 last_block = block_of(h.first.at, first_block, last, from + nnz - 1);
        for (u32 i = threadIdx.x; i < nnz; i += BLCO_THREADS) {
            u64 re_encoded = ((const u64*)h.second.at)[from + i];
            u32 at[ORDER];
#pragma unroll
            for (int m = 0; m < ORDER; ++m) {
                if (ORDER == BLCO_ORDER_MAX && m >= (int)a.order) break;
                const u32 bits = a.block_bits[m];
                at[m] = (u32)(re_encoded & ((1ull << bits) - 1));
                re_encoded >>= bits;
            }
            bad |= re_encoded != 0;
            if (a.key_bits > 0) {
                const u64 key = load<u64>(h.first.at + 16ull * block_of(h.first.at, first_block, last_block, from + i));
#pragma unroll
                for (int m = 0; m < ORDER; ++m) {
                    if (ORDER == BLCO_ORDER_MAX && m >= (int)a.order) break;
                    u32 place = a.block_bits[m];
                    #pragma unroll 1
                    for (u32 b = 0; b < a.key_bits; ++b) {
                        if (a.key_modes[b] == m) at[m] |= (u32)(key >> b & 1) << place++;
                    }
                }
            }
#pragma unroll
            for (int m = 0; m < ORDER; ++m) {
                if (ORDER == BLCO_ORDER_MAX && m >= (int)a.order) break;
                tile.index[m][i] = inside(at[m], a.dims[m] - 1, bad);
            }
            tile.value[i] = (T)section_value(h, from + i, bad);
        }
        return nnz;
    }
};

// Row of the target mode and position of each nonzero, ordered by both: `row << 9 | position`.
struct Order {
    u64 key[BLCO_TILE_NNZ];

    static __device__ __forceinline__ u32 row(u64 key) { return (u32)(key >> 9); }
    static __device__ __forceinline__ u32 position(u64 key) { return (u32)key & (BLCO_TILE_NNZ - 1); }
};

// Keys of a thread in sort_keys: key i of the tile is key i mod KEYS of thread i / KEYS.
#define KEYS (BLCO_TILE_NNZ / BLCO_THREADS)
static_assert(KEYS == 4, "sort_keys has a step for each distance inside a thread");

template <class K> __device__ __forceinline__ void exchange(K& x, K& y, bool up)
{
    const K low = x < y ? x : y, high = x < y ? y : x;
    x = up ? low : high;
    y = up ? high : low;
}

// Sorts a tile's keys: a bitonic network whose steps stay inside a thread up to distance 2, inside a warp up to 64, and go
// through `shared` beyond.
template <class K> __device__ __forceinline__ void sort_keys(K (&key)[KEYS], K* shared)
{
    const u32 first = threadIdx.x * KEYS;
    exchange(key[0], key[1], true);
    exchange(key[2], key[3], false);
#pragma unroll 1
    for (u32 size = 4; size <= BLCO_TILE_NNZ; size *= 2) {
        const bool up = (first & size) == 0;
#pragma unroll 1
        for (u32 distance = size / 2; distance >= KEYS; distance /= 2) {
            const bool keeps_low = ((first & distance) == 0) == up;
            K other[KEYS];
            if (distance < 32 * KEYS) {
#pragma unroll
                for (int k = 0; k < KEYS; ++k) other[k] = __shfl_xor_sync(~0u, key[k], distance / KEYS);
            } else {
#pragma unroll
                for (int k = 0; k < KEYS; ++k) shared[k * BLCO_THREADS + threadIdx.x] = key[k];
                __syncthreads();
#pragma unroll
                for (int k = 0; k < KEYS; ++k) other[k] = shared[k * BLCO_THREADS + (threadIdx.x ^ distance / KEYS)];
                __syncthreads();
            }
#pragma unroll
            for (int k = 0; k < KEYS; ++k) key[k] = (key[k] < other[k]) == keeps_low ? key[k] : other[k];
        }
        exchange(key[0], key[2], up);
        exchange(key[1], key[3], up);
        exchange(key[0], key[1], up);
        exchange(key[2], key[3], up);
    }
}

// Orders a tile's nonzeros by `rows`, which lie from `low` to `low + span`, in linear order where rows are equal. Called by
// the whole thread block, after the tile is complete; `order` is complete on return.
__device__ inline void sort_tile(Order& order, const u32* rows, u32 nnz, u32 low, u32 span)
{
    bool sorted = true;
    const u32 first = threadIdx.x * KEYS;
#pragma unroll
    for (u32 i = first; i < first + KEYS; ++i) sorted &= i == 0 || i >= nnz || rows[i - 1] <= rows[i];
    if (__syncthreads_and(sorted)) {
        for (u32 i = threadIdx.x; i < nnz; i += BLCO_THREADS) order.key[i] = (u64)rows[i] << 9 | i;
    } else if (span < 1u << 23) {
        u32 key[KEYS];
#pragma unroll
        for (int k = 0; k < KEYS; ++k) key[k] = first + k < nnz ? (rows[first + k] - low) << 9 | (first + k) : ~0u;
        sort_keys(key, (u32*)order.key);
#pragma unroll
        for (int k = 0; k < KEYS; ++k) order.key[first + k] = ((u64)low << 9) + key[k];
    } else {
        u64 key[KEYS];
#pragma unroll
        for (int k = 0; k < KEYS; ++k) key[k] = first + k < nnz ? (u64)rows[first + k] << 9 | (first + k) : NO_NONZERO;
        sort_keys(key, order.key);
#pragma unroll
        for (int k = 0; k < KEYS; ++k) order.key[first + k] = key[k];
    }
    __syncthreads();
}
