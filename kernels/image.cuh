// Reads a chunk's image in place: header and sections (formats-spec/container.md; container-1.md for version 1). The host has checked the
// header, the sections' lengths and every tile record before the copy. Numbers inside columns, indices and
// values are checked here.
#pragma once
#include "abi.h"

// Codes of sections and encodings (formats-spec/container.md, encodings.md).
enum {
    SECTION_BLOCKS = 2,
    SECTION_INDEX = 3,
    SECTION_TILES = 4,
    SECTION_COLUMNS = 5,
    SECTION_VALUES = 6,
    SECTION_LEVELS = 7,
    SECTION_SEGMENTS = 8,
    SECTION_COORDINATES = 9
};
// Whether a kernel's images may hold decimals; without them it needs fewer registers. The embedded kernels serve all images.
#ifndef BLCO_DECIMALS
#define BLCO_DECIMALS 1
#endif
enum { VALUES_INTEGER = 1, VALUES_F32 = 2, VALUES_F64 = 3, VALUES_DICTIONARY = 4, VALUES_DECIMAL = 5 };

// Images do not change while a kernel reads them.
template <class T> __device__ __forceinline__ T load(const u8* at)
{
    return __ldg((const T*)at);
}

// Numbers that are read and written together.
template <class T, int N> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Numbers {
    T x[N];
};

// N numbers of memory, aligned to their bytes or to 16.
template <class T, int N> __device__ __forceinline__ void take(const T* from, T (&to)[N])
{
    const Numbers<T, N> numbers = *(const Numbers<T, N>*)from;
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = numbers.x[i];
}

template <class T, int N> __device__ __forceinline__ void put(T* to, const T (&from)[N])
{
    Numbers<T, N> numbers;
#pragma unroll
    for (int i = 0; i < N; ++i) numbers.x[i] = from[i];
    *(Numbers<T, N>*)to = numbers;
}

// The same of memory that the kernel only reads, aligned to the largest power of two, up to 16, that divides its bytes.
template <class PIECE, class T, int N> __device__ __forceinline__ void take_pieces(const T* from, T (&to)[N])
{
    constexpr int OF = sizeof(PIECE) / sizeof(T);
#pragma unroll
    for (int i = 0; i < N; i += OF) {
        union {
            PIECE piece;
            T x[OF];
        } taken;
        taken.piece = __ldg((const PIECE*)(from + i));
#pragma unroll
        for (int k = 0; k < OF; ++k) to[i + k] = taken.x[k];
    }
}

template <class T, int N> __device__ __forceinline__ void take_read_only(const T* from, T (&to)[N])
{
    constexpr int BYTES = N * sizeof(T);
    if constexpr (BYTES % 16 == 0) take_pieces<uint4>(from, to);
    else if constexpr (BYTES % 8 == 0) take_pieces<uint2>(from, to);
    else take_pieces<u32>(from, to);
}

// The chunk of a launch's list that thread block `block` works on. Whole warps call it, and their threads look at 32 chunks at a time:
// before its first nonzero, a thread block waits for a chain of loads, and this is the longest part of it.
__device__ __forceinline__ Chunk chunk_of(const Chunk* chunks, u32 count, u32 block)
{
    u32 low = 0, high = count;
    while (high - low > 1) {
        const u32 step = (high - low + 31) / 32, at = low + threadIdx.x % 32 * step;
        const u32 before = __popc(__ballot_sync(~0u, at < high && chunks[at].first_block <= block));
        low += (before - 1) * step;
        high = high < low + step ? high : low + step;
    }
    return chunks[low];
}

// A section of an image: its address and bytes; 0 and 0 if there is none.
struct Section {
    const u8* at;
    u32 bytes;
};

// The fields of a chunk's header that kernels need.
struct Header {
    u32 nnz;
    u32 value_encoding;
    Section first, second, values;   // TILES, LEVELS or SEGMENTS and COLUMNS, or BLOCKS and INDEX
};

// One of the sections whose table begins at `table`; a chunk that kernels read has at most four.
__device__ __forceinline__ Section section(const u8* image, const u8* table, u32 kind)
{
    Section found = {0, 0};
    // All entries are loaded before the first is used. (Missing entries are zero.)
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        const u8* entry = table + 16 * i;
        const u32 of = load<u32>(entry), start = load<u32>(entry + 4), bytes = load<u32>(entry + 8);
        if (of == kind) found = {image + start, bytes};
    }
    return found;
}

__device__ __forceinline__ Header header(const u8* image, u32 first, u32 second)
{
    Header h;
    const u8* const table = image + (load<u32>(image + 8) == 1 ? 56 : 128);
    h.nnz = load<u32>(image + 32);
    h.value_encoding = load<u8>(image + 46);
    h.first = section(image, table, first);
    h.second = section(image, table, second);
    h.values = section(image, table, SECTION_VALUES);
    return h;
}

// Number i of a packed column of `width` bits, at most 32, that starts `start` words after `words`. Without branches, loads of several
// numbers overlap.
__device__ __forceinline__ u32 unpack32(const u32* words, u32 width, u32 i, u32 start = 0)
{
    const u32 bit = i / 16 * width, shift = bit % 32;
    const u32* const at = words + (start + 16 * (bit / 32) + i % 16);
    const u32 low = width > 0 ? __ldg(at) : 0, high = shift + width > 32 ? __ldg(at + 16) : 0;
    return __funnelshift_r(low, high, shift) & (width > 0 ? ~0u >> (32 - width) : 0);
}

// Number i of a packed column of any width.
__device__ __forceinline__ u64 unpack64(const u32* words, u32 width, u32 i, u32 start = 0)
{
    if (width <= 32) return unpack32(words, width, i, start);
    const u32 bit = i / 8 * width, shift = bit % 64;
    const u64* const at = (const u64*)words + (start / 2 + 8 * (bit / 64) + i % 8);
    u64 number = __ldg(at) >> shift;
    if (shift + width > 64) number |= __ldg(at + 8) << (64 - shift);
    return number & ~0ull >> (64 - width);
}

// The number of bits that hold all numbers from 0 to `largest`.
__device__ __forceinline__ u32 width_of(u32 largest)
{
    return 32 - __clz((int)largest);
}

// The sum of `own` over the threads of a warp up to this one. Whole warps call it.
__device__ __forceinline__ u32 sum_upto(u32 own)
{
    u32 sum = own;
#pragma unroll
    for (u32 distance = 1; distance < 32; distance *= 2) {
        const u32 other = __shfl_up_sync(~0u, sum, distance);
        if (threadIdx.x % 32 >= distance) sum += other;
    }
    return sum;
}

// Brings the index of a damaged file into its mode's range.
__device__ __forceinline__ u32 inside(u32 index, u32 highest, bool& bad)
{
    bad |= index > highest;
    return index > highest ? highest : index;
}

// Value i of a chunk's VALUES section; sets `bad` if it is not finite.
__device__ __forceinline__ double section_value(const Header& h, u32 i, bool& bad)
{
    const double v = h.value_encoding == VALUES_F32 ? (double)load<float>(h.values.at + 4ull * i)
                                                    : load<double>(h.values.at + 8ull * i);
    bad |= !(v - v == 0.0);
    return v;
}

// The value of slot `place` of a chunk of decimals, whose column holds `whole`: `whole` divided by a power of ten, unless the VALUES
// section, which begins at `section`, has another value for the slot. Its places ascend. (Inlined, it would cost all kernels registers.)
static __device__ __noinline__ double decimal(const u8* section, double whole, u32 place)
{
    const u32 exponent = load<u32>(section), exceptions = load<u32>(section + 4);
    const u8* const places = section + 8 + 8ull * exceptions;
    u32 low = 0, high = exceptions;
    while (low < high) {
        const u32 middle = (low + high) / 2;
        if (load<u32>(places + 4ull * middle) < place) low = middle + 1;
        else high = middle;
    }
    if (low < exceptions && load<u32>(places + 4ull * low) == place) return load<double>(section + 8 + 8ull * low);
    double power = 1.0;
    for (u32 i = 0; i < exponent; ++i) power *= 10.0;
    return whole / power;
}

// Values `slots(0)` to `slots(PER - 1)` of a tile. Packed values have a column that starts `start` words after `words`; `width` and `base`
// are the offsets of its bits and of its least number. The tile's first value is value `first` of the chunk.
template <class T, int PER, class SLOTS>
__device__ __forceinline__ void tile_values(T (&value)[PER], const Header& h, const u32* words, u32 start, const u8* width, const u8* base,
                                            u32 first, const SLOTS& slots, bool& bad)
{
    if (h.value_encoding == VALUES_F32 || h.value_encoding == VALUES_F64) {
#pragma unroll
        for (int k = 0; k < PER; ++k) value[k] = (T)section_value(h, first + slots(k), bad);
        return;
    }
    const u32 bits = load<u32>(width);
    u64 number[PER];
    if (bits <= 32) {
#pragma unroll
        for (int k = 0; k < PER; ++k) number[k] = unpack32(words, bits, slots(k), start);
    } else {
#pragma unroll
        for (int k = 0; k < PER; ++k) number[k] = unpack64(words, bits, slots(k), start);
    }
    if (h.value_encoding != VALUES_DICTIONARY) {
        const i64 above = load<i64>(base);
#pragma unroll
        for (int k = 0; k < PER; ++k) {
            const double whole = (double)(above + (i64)number[k]);
            value[k] = (T)(BLCO_DECIMALS && h.value_encoding == VALUES_DECIMAL ? decimal(h.values.at, whole, first + slots(k)) : whole);
        }
    } else {
#pragma unroll
        for (int k = 0; k < PER; ++k) {
            const u32 entry = inside((u32)number[k], h.values.bytes / 8 - 1, bad);
            value[k] = (T)load<double>(h.values.at + 8ull * entry);
        }
    }
}

// Numbers i to i + 3 of a packed column of `width` bits, at most 32; i is a multiple of four. (See `unpack32`.)
__device__ __forceinline__ void unpack_four(u32 (&numbers)[4], const u32* words, u32 width, u32 i, u32 start = 0)
{
    const u32 bit = i / 16 * width, shift = bit % 32;
    const u32* const at = words + (start + 16 * (bit / 32) + i % 16);
    u32 low[4] = {}, high[4] = {};
    if (width > 0) take_read_only(at, low);
    if (shift + width > 32) take_read_only(at + 16, high);
    const u32 mask = width > 0 ? ~0u >> (32 - width) : 0;
#pragma unroll
    for (u32 k = 0; k < 4; ++k) numbers[k] = __funnelshift_r(low[k], high[k], shift) & mask;
}

// Value i of a tile: a packed integer, or a decimal if there is a section of decimals.
static __device__ __noinline__ double rare_value(const u8* decimals, const u32* words, u32 start, u32 bits, i64 base, u32 first, u32 i)
{
    const double whole = (double)(base + (i64)unpack64(words, bits, i, start));
    return decimals != nullptr ? decimal(decimals, whole, first + i) : whole;
}

// Values i to i + 3 of a tile of `slots`, i being a multiple of four; what is beyond the tile's end has any value. (See `tile_values`.)
__device__ __forceinline__ void four_values(double (&value)[4], const Header& h, const u32* words, u32 start, const u8* width,
                                            const u8* base, u32 first, u32 i, u32 slots, bool& bad)
{
    // What most values need is loaded before anything waits.
    const u32 encoding = h.value_encoding, bits = load<u32>(width);
    const bool packed = encoding != VALUES_F32 && encoding != VALUES_F64;
    const i64 above = load<i64>(base);
    u32 numbers[4];
    unpack_four(numbers, words, packed && bits <= 32 ? bits : 0, i, start);
    if (!packed) {
        if (i + 3 >= slots) {
#pragma unroll
            for (u32 k = 0; k < 4; ++k) value[k] = i + k < slots ? section_value(h, first + i + k, bad) : 0;
            return;
        }
        if (encoding == VALUES_F32) {
            float stored[4];
            take_read_only((const float*)h.values.at + first + i, stored);
#pragma unroll
            for (u32 k = 0; k < 4; ++k) value[k] = stored[k];
        } else {
            take_read_only((const double*)h.values.at + first + i, value);
        }
#pragma unroll
        for (u32 k = 0; k < 4; ++k) bad |= !(value[k] - value[k] == 0.0);
        return;
    }
    if (bits > 32 || encoding == VALUES_DECIMAL) {
        const u8* const decimals = encoding == VALUES_DECIMAL ? h.values.at : nullptr;
#pragma unroll 1
        for (u32 k = 0; k < 4; ++k) {
            const double v = i + k < slots ? rare_value(decimals, words, start, bits, encoding == VALUES_DICTIONARY ? 0 : above, first, i + k) : 0;
            // Not by number, which would put all four into local memory.
            value[0] = k == 0 ? v : value[0];
            value[1] = k == 1 ? v : value[1];
            value[2] = k == 2 ? v : value[2];
            value[3] = k == 3 ? v : value[3];
        }
        return;
    }
    if (encoding == VALUES_DICTIONARY) {
#pragma unroll
        for (u32 k = 0; k < 4; ++k) {
            const u32 entry = i + k < slots ? inside(numbers[k], h.values.bytes / 8 - 1, bad) : 0;
            value[k] = load<double>(h.values.at + 8ull * entry);
        }
    } else {
#pragma unroll
        for (u32 k = 0; k < 4; ++k) value[k] = (double)(above + (i64)numbers[k]);
    }
}
