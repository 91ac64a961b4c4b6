// Reading a chunk's image where it lies: header and sections (formats-spec/container.md). The host has checked the
// header, the sections' lengths and every tile record before the image was copied; numbers inside columns,
// indices and values are checked here.
#pragma once
#include "abi.h"

// Codes of sections and encodings (formats-spec/container.md, encodings.md).
enum {
    SECTION_BLOCKS = 2,
    SECTION_INDEX = 3,
    SECTION_TILES = 4,
    SECTION_COLUMNS = 5,
    SECTION_VALUES = 6,
    SECTION_LEVELS = 7
};
enum { VALUES_INTEGER = 1, VALUES_F32 = 2, VALUES_F64 = 3, VALUES_DICTIONARY = 4 };

template <class T> __device__ __forceinline__ T load(const u8* at)
{
    return *(const T*)at;
}

// The chunk of a launch's list that thread block `block` works on.
__device__ __forceinline__ Chunk chunk_of(const Chunk* chunks, u32 count, u32 block)
{
    u32 low = 0, high = count - 1;
    while (low < high) {
        const u32 middle = (low + high + 1) / 2;
        if (chunks[middle].first_block <= block) low = middle;
        else high = middle - 1;
    }
    return chunks[low];
}

// A section of an image: its address and bytes; 0 and 0 where there is none.
struct Section {
    const u8* at;
    u32 bytes;
};

// A chunk's header, as far as kernels need it.
struct Header {
    u32 nnz;
    u32 value_encoding;
    Section first, second, values;   // TILES and COLUMNS, BLOCKS and INDEX, or LEVELS and COLUMNS
};

__device__ __forceinline__ Section section(const u8* image, u32 kind)
{
    Section found = {0, 0};
    for (u32 i = 0; i < 4; ++i) {
        const u8* entry = image + 56 + 16 * i;
        if (load<u32>(entry) == kind) {
            found.at = image + load<u32>(entry + 4);
            found.bytes = load<u32>(entry + 8);
        }
    }
    return found;
}

__device__ __forceinline__ Header header(const u8* image, u32 first, u32 second)
{
    Header h;
    h.nnz = load<u32>(image + 32);
    h.value_encoding = load<u8>(image + 46);
    h.first = section(image, first);
    h.second = section(image, second);
    h.values = section(image, SECTION_VALUES);
    return h;
}

// Number i of a packed column of `width` bits, at most 32, that starts at `words`.
__device__ __forceinline__ u32 unpack32(const u32* words, u32 width, u32 i)
{
    if (width == 0) return 0;
    const u32 lane = i % 16, bit = i / 16 * width, word = bit / 32, shift = bit % 32;
    u32 number = words[16 * word + lane] >> shift;
    if (shift + width > 32) number |= words[16 * (word + 1) + lane] << (32 - shift);
    return width == 32 ? number : number & ((1u << width) - 1);
}

// Number i of a packed column of any width.
__device__ __forceinline__ u64 unpack64(const u32* words, u32 width, u32 i)
{
    if (width <= 32) return unpack32(words, width, i);
    const u64* wide = (const u64*)words;
    const u32 lane = i % 8, bit = i / 8 * width, word = bit / 64, shift = bit % 64;
    u64 number = wide[8 * word + lane] >> shift;
    if (shift + width > 64) number |= wide[8 * (word + 1) + lane] << (64 - shift);
    return width == 64 ? number : number & ((1ull << width) - 1);
}

// Bits that hold the numbers from 0 to `largest`.
__device__ __forceinline__ u32 width_of(u32 largest)
{
    return 32 - __clz((int)largest);
}

// Puts an index that a damaged file holds inside its mode.
__device__ __forceinline__ u32 inside(u32 index, u32 highest, bool& bad)
{
    bad |= index > highest;
    return index > highest ? highest : index;
}

// Value i of a chunk's VALUES section; `bad` is set where it is not finite.
__device__ __forceinline__ double section_value(const Header& h, u32 i, bool& bad)
{
    const double v = h.value_encoding == VALUES_F32 ? (double)((const float*)h.values.at)[i]
                                                    : ((const double*)h.values.at)[i];
    bad |= !(v - v == 0.0);
    return v;
}

// Value i of a tile whose column of values, of `width` bits above `base`, starts at `words`; the first of the tile is value `first` of
// the VALUES section where that holds all.
__device__ __forceinline__ double tile_value(const Header& h, const u32* words, u32 width, i64 base, u32 first, u32 i, bool& bad)
{
    if (h.value_encoding == VALUES_INTEGER) return (double)(base + (i64)unpack64(words, width, i));
    if (h.value_encoding == VALUES_DICTIONARY) {
        const u32 entry = inside(unpack32(words, width, i), h.values.bytes / 8 - 1, bad);
        return load<double>(h.values.at + 8ull * entry);
    }
    return section_value(h, first + i, bad);
}
