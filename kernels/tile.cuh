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

// Tile t of a `tiled` chunk. Returns its nonzeros.
struct Tiled {
    template <class T, int ORDER>
    static __device__ u32 decode(Tile<T, ORDER>& tile, const MttkrpArgs& a, const u8* image, u32 t, bool& bad)
    {
        const Header h = header(image, SECTION_TILES, SECTION_COLUMNS);
        const u8* record = h.first.at + (u64)t * (16 + 8 * a.order);
        const u32* words = (const u32*)(h.second.at + 64ull * load<u32>(record));
        const u32 rest = h.nnz - t * BLCO_TILE_NNZ, nnz = rest < BLCO_TILE_NNZ ? rest : BLCO_TILE_NNZ;
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
    static __device__ u32 decode(Tile<T, ORDER>& tile, const MttkrpArgs& a, const u8* image, u32 t, bool& bad)
    {
        const Header h = header(image, SECTION_BLOCKS, SECTION_INDEX);
        const u32 from = t * BLCO_TILE_NNZ, rest = h.nnz - from, nnz = rest < BLCO_TILE_NNZ ? rest : BLCO_TILE_NNZ;
        const u32 last = h.first.bytes / 16 - 1;
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

// Orders a tile's nonzeros by `rows`, in linear order where rows are equal: a bitonic network over the whole tile.
// Called by the whole thread block, after the tile is complete; `order` is complete on return.
__device__ inline void sort_tile(Order& order, const u32* rows, u32 nnz)
{
    bool sorted = true;
    for (u32 i = threadIdx.x; i < BLCO_TILE_NNZ; i += BLCO_THREADS) {
        order.key[i] = i < nnz ? (u64)rows[i] << 9 | i : NO_NONZERO;
        sorted &= i == 0 || i >= nnz || rows[i - 1] <= rows[i];
    }
    if (__syncthreads_and(sorted)) return;
#pragma unroll 1
    for (u32 size = 2; size <= BLCO_TILE_NNZ; size *= 2) {
#pragma unroll 1
        for (u32 distance = size / 2; distance > 0; distance /= 2) {
            for (u32 pair = threadIdx.x; pair < BLCO_TILE_NNZ / 2; pair += BLCO_THREADS) {
                const u32 low = (pair & ~(distance - 1)) * 2 | (pair & (distance - 1)), high = low | distance;
                const u64 x = order.key[low], y = order.key[high];
                if ((x > y) == ((low & size) == 0)) {
                    order.key[low] = y;
                    order.key[high] = x;
                }
            }
            __syncthreads();
        }
    }
}
