// Builds a mode-sorted copy from resident `tiled` chunks: all their nonzeros sorted by row of one mode, in the
// chunks' order within a row, encoded as `tiled` images that kernels read like any other.
//
//   keys      decodes the target mode's column of every tile to rows; row i belongs to the nonzero at position i
//   count, scan, scatter (sort.cuh), once for each digit of the row from the lowest up: a stable sort of rows with positions
//   measure   computes the record of each tile of the copy, and the widths of its columns
//   scan      computes where the columns of each tile start in their image
//   pack      writes the images
//
// Sums of fibers take copies with two modes, and copies with an entry for each fiber (fibers.cuh).
//
// No thread block waits for another: everything that one needs from others comes from an earlier launch. Damaged numbers are
// brought into range (tile.cuh) before they are used, and their chunk is noted.
#pragma once
#include "sort.cuh"
#include "tile.cuh"

namespace mode_sorted {

__device__ __forceinline__ void note(const BuildArgs& a, bool bad, u32 number)
{
    if (bad) atomicMin((u32*)a.fault, number);
}

// Bytes of a record of the copy, and of one of the chunks.
__device__ __forceinline__ u32 record_bytes(const BuildArgs& a)
{
    return 16 + 8 * __popc(a.kept);
}

__device__ __forceinline__ u32 source_record_bytes(const BuildArgs& a)
{
    return 16 + 8 * a.order;
}

__device__ __forceinline__ bool is_kept(const BuildArgs& a, u32 m)
{
    return a.kept >> m & 1;
}

// The place of mode m among those that are kept.
__device__ __forceinline__ u32 place_of(const BuildArgs& a, u32 m)
{
    return __popc(a.kept & ((1u << m) - 1));
}

// Nonzeros of tile t of the copy.
__device__ __forceinline__ u32 nnz_of(const BuildArgs& a, u32 t)
{
    const u32 rest = a.nnz - t * BLCO_TILE_NNZ;
    return rest < BLCO_TILE_NNZ ? rest : BLCO_TILE_NNZ;
}

// The range of a tile's indices: from `low` to `low + span`.
struct Span {
    u32 low, span;
};

// The range of mode m.
__device__ __forceinline__ Span span_of(const u8* record, u32 m)
{
    const u64 both = load<u64>(record + 16 + 8 * m);
    return {(u32)both, (u32)(both >> 32) - (u32)both};
}

// A thread block of BLCO_TILE_THREADS for each tile of the chunks: writes its place and its rows.
__device__ inline void keys(const BuildArgs& a)
{
    const Chunk chunk = chunk_of((const Chunk*)a.chunks, a.chunk_count, blockIdx.x);
    const Header h = header((const u8*)chunk.image, SECTION_TILES, SECTION_COLUMNS);
    const u32 t = blockIdx.x - chunk.first_block;
    const u8* record = h.first.at + (u64)t * source_record_bytes(a);
    const u32* words = (const u32*)(h.second.at + 64ull * load<u32>(record));
    if (threadIdx.x == 0) {
        SourceTile tile = {};
        tile.record = (u64)record;
        tile.columns = (u64)words;
        tile.values = (u64)h.values.at;
        if (h.value_encoding == VALUES_F32) tile.values += 4ull * BLCO_TILE_NNZ * t;
        if (h.value_encoding == VALUES_F64) tile.values += 8ull * BLCO_TILE_NNZ * t;
        tile.value_encoding = h.value_encoding;
        // The number of entries of a dictionary, or the tile's first place among the chunk's values.
        tile.entries = h.value_encoding == VALUES_DECIMAL ? BLCO_TILE_NNZ * t : h.values.bytes / 8;
        tile.number = chunk.number;
        ((SourceTile*)a.tiles)[blockIdx.x] = tile;
        // The chunks' values are not what the host was told.
        note(a, a.value_encoding == VALUES_INTEGER && h.value_encoding != VALUES_INTEGER, chunk.number);
    }
    for (u32 m = 0; m < a.mode; ++m) words += 16 * width_of(span_of(record, m).span);
    const Span mode = span_of(record, a.mode);
    const u32 width = width_of(mode.span), first = blockIdx.x * BLCO_TILE_NNZ;
    const u32 nnz = h.nnz - t * BLCO_TILE_NNZ, end = a.positions_end - first;
    u32* rows = (u32*)a.rows + first;
    bool bad = false;
    for (u32 i = threadIdx.x; i < BLCO_TILE_NNZ && i < end; i += BLCO_TILE_THREADS) {
        // Slots without a nonzero are sorted after all nonzeros.
        rows[i] = i < nnz ? mode.low + inside(unpack32(words, width, i), mode.span, bad) : ~0u;
    }
    note(a, bad, chunk.number);
}

// A nonzero of the chunks, and the number of its tile's columns that have been read.
struct Nonzero {
    const u8* record;
    const u32* words;
    u32 position;
};

constexpr u32 NO_DAMAGE = ~0u;

// The first position of a thread's nonzeros with a number out of range. It is noted after all have been read: an atomic in
// between would keep a nonzero's loads from starting before those of another have arrived.
struct Damage {
    u32 position;

    __device__ __forceinline__ void at(const Nonzero& x, bool bad)
    {
        if (bad && x.position < position) position = x.position;
    }
};

__device__ __forceinline__ const SourceTile& tile_of(const BuildArgs& a, u32 position)
{
    return ((const SourceTile*)a.tiles)[position / BLCO_TILE_NNZ];
}

__device__ __forceinline__ Nonzero nonzero_at(const BuildArgs& a, u32 position)
{
    const SourceTile& tile = tile_of(a, position);
    return {(const u8*)tile.record, (const u32*)tile.columns, position};
}

// Its index in mode m. The column of the mode before must have been read last.
__device__ __forceinline__ u32 next_index(Nonzero& x, u32 m, Damage& damage)
{
    const Span span = span_of(x.record, m);
    const u32 width = width_of(span.span);
    bool bad = false;
    const u32 number = inside(unpack32(x.words, width, x.position % BLCO_TILE_NNZ), span.span, bad);
    x.words += 16 * width;
    damage.at(x, bad);
    return span.low + number;
}

// Skips the column of mode m.
__device__ __forceinline__ void skip_index(Nonzero& x, u32 m)
{
    x.words += 16 * width_of(span_of(x.record, m).span);
}

// Its value, of encoding INTEGER; all index columns have been read.
__device__ __forceinline__ i64 integer_of(const Nonzero& x)
{
    const u64 number = unpack64(x.words, load<u32>(x.record + 4), x.position % BLCO_TILE_NNZ);
    return load<i64>(x.record + 8) + (i64)number;
}

// Its value, of any encoding; all index columns have been read.
__device__ __forceinline__ double value_of(const BuildArgs& a, const Nonzero& x, Damage& damage)
{
    const SourceTile& tile = tile_of(a, x.position);
    Header h = {};
    h.value_encoding = tile.value_encoding;
    h.values = {(const u8*)tile.values, 8 * tile.entries};
    bool bad = false;
    double value[1];
    const u32 first = tile.value_encoding == VALUES_DECIMAL ? tile.entries : 0;
    tile_values(value, h, x.words, 0, x.record + 4, x.record + 8, first, [&](int) { return x.position % BLCO_TILE_NNZ; }, bad);
    damage.at(x, bad);
    return value[0];
}

// The nonzeros of a copy's tile that a thread takes: i, i + BLCO_TILE_THREADS, …
constexpr u32 OWN = BLCO_TILE_NNZ / BLCO_TILE_THREADS;

// The thread's nonzeros of the copy's tile t of `nnz`. Beyond the end, the last one is repeated.
__device__ __forceinline__ void own_nonzeros(Nonzero (&own)[OWN], const BuildArgs& a, u32 t, u32 nnz)
{
    const u32* positions = (const u32*)a.positions + (u64)t * BLCO_TILE_NNZ;
#pragma unroll
    for (u32 k = 0; k < OWN; ++k) {
        const u32 i = threadIdx.x + k * BLCO_TILE_THREADS;
        own[k] = nonzero_at(a, __ldg(positions + (i < nnz ? i : nnz - 1)));
    }
}

__device__ __forceinline__ void note(const BuildArgs& a, Damage damage)
{
    if (damage.position != NO_DAMAGE) note(a, true, tile_of(a, damage.position).number);
}

template <class T> __device__ __forceinline__ T lesser(T x, T y)
{
    return x < y ? x : y;
}

template <class T> __device__ __forceinline__ T greater(T x, T y)
{
    return x < y ? y : x;
}

// The smallest and largest number of each warp of a thread block of BLCO_TILE_THREADS, then of all of them.
template <class T> struct Range {
    T low[BLCO_TILE_THREADS / 32], high[BLCO_TILE_THREADS / 32];

    __device__ __forceinline__ void of_warp(T least, T most)
    {
#pragma unroll
        for (u32 distance = 16; distance > 0; distance /= 2) {
            least = lesser(least, __shfl_xor_sync(~0u, least, distance));
            most = greater(most, __shfl_xor_sync(~0u, most, distance));
        }
        if (threadIdx.x % 32 == 0) {
            low[threadIdx.x / 32] = least;
            high[threadIdx.x / 32] = most;
        }
    }

    __device__ __forceinline__ T least() const
    {
        T least = low[0];
        for (u32 w = 1; w < BLCO_TILE_THREADS / 32; ++w) least = lesser(least, low[w]);
        return least;
    }

    __device__ __forceinline__ T most() const
    {
        T most = high[0];
        for (u32 w = 1; w < BLCO_TILE_THREADS / 32; ++w) most = greater(most, high[w]);
        return most;
    }
};

// Bits that hold the numbers from 0 to `largest`.
__device__ __forceinline__ u32 width_of_wide(u64 largest)
{
    return 64 - __clzll((i64)largest);
}

// A thread block of BLCO_TILE_THREADS for each tile of the copy: computes its record, the sum of its widths, and which rows have nonzeros.
__device__ inline void measure(const BuildArgs& a)
{
    __shared__ Range<u32> indices[BLCO_ORDER_MAX];
    __shared__ Range<i64> values;
    const u32 t = blockIdx.x, nnz = nnz_of(a, t);
    Nonzero own[OWN];
    Damage damage = {NO_DAMAGE};
    own_nonzeros(own, a, t, nnz);
    for (u32 m = 0; m < a.order; ++m) {
        u32 least = ~0u, most = 0;
        if (m == a.mode) {
            // Rows are in order.
            const u32* rows = (const u32*)a.rows + (u64)t * BLCO_TILE_NNZ;
            least = rows[0];
            most = rows[nnz - 1];
#pragma unroll
            for (u32 k = 0; k < OWN; ++k) {
                const u32 i = threadIdx.x + k * BLCO_TILE_THREADS;
                if (i < nnz && (t + i == 0 || rows[i] != rows[(i64)i - 1])) {
                    atomicAnd((u32*)a.empty + rows[i] / 32, ~(1u << rows[i] % 32));
                }
                skip_index(own[k], m);
            }
        } else if (!is_kept(a, m)) {
#pragma unroll
            for (u32 k = 0; k < OWN; ++k) skip_index(own[k], m);
        } else {
#pragma unroll
            for (u32 k = 0; k < OWN; ++k) {
                const u32 index = next_index(own[k], m, damage);
                least = lesser(least, index);
                most = greater(most, index);
            }
        }
        indices[m].of_warp(least, most);
    }
    const bool integers = a.value_encoding == VALUES_INTEGER && a.ones == 0;
    if (integers) {
        i64 least = integer_of(own[0]), most = least;
#pragma unroll
        for (u32 k = 1; k < OWN; ++k) {
            const i64 value = integer_of(own[k]);
            least = lesser(least, value);
            most = greater(most, value);
        }
        values.of_warp(least, most);
    }
    note(a, damage);
    __syncthreads();
    if (threadIdx.x >= 32) return;
    // A thread of the first warp for each mode, and one for the values.
    u8* record = (u8*)a.records + (u64)t * record_bytes(a);
    u32 width = 0;
    if (threadIdx.x < a.order && is_kept(a, threadIdx.x)) {
        const u32 low = indices[threadIdx.x].least(), high = indices[threadIdx.x].most();
        u32* const range = (u32*)(record + 16) + 2 * place_of(a, threadIdx.x);
        width = width_of(high - low);
        range[0] = low;
        range[1] = high;
    } else if (threadIdx.x == BLCO_ORDER_MAX) {
        const i64 base = integers ? values.least() : a.ones;
        width = integers ? width_of_wide((u64)values.most() - (u64)base) : 0;
        ((u32*)record)[0] = 0;
        ((u32*)record)[1] = width;
        ((i64*)record)[1] = base;
    }
#pragma unroll
    for (u32 distance = 16; distance > 0; distance /= 2) width += __shfl_xor_sync(~0u, width, distance);
    if (threadIdx.x == 0) ((u32*)a.offsets)[t] = width;
}

// Packs a tile's numbers of `width` bits into `words`; each thread writes whole words (formats-spec/encodings.md).
template <class WORD> __device__ __forceinline__ void pack_column(const WORD* numbers, u32 width, WORD* words)
{
    constexpr u32 BITS = 8 * sizeof(WORD), LANES = BLCO_TILE_NNZ / BITS;
    for (u32 i = threadIdx.x; i < LANES * width; i += BLCO_TILE_THREADS) {
        const u32 lane = i % LANES, begin = i / LANES * BITS;
        WORD word = 0;
        for (u32 p = begin / width; p * width < begin + BITS; ++p) {
            const WORD number = numbers[p * LANES + lane];
            const u32 bit = p * width;
            word |= bit < begin ? number >> (begin - bit) : number << (bit - begin);
        }
        words[i] = word;
    }
}

// A thread block of BLCO_TILE_THREADS for each tile of the copy: writes its record, columns and values into its image, which already has
// its header.
__device__ inline void pack(const BuildArgs& a)
{
    // One column at a time: 32-bit numbers, of which modes use the halves in turn, or 64-bit numbers.
    __shared__ u64 numbers[BLCO_TILE_NNZ];
    u32* const halves = (u32*)numbers;
    const u32 nnz = nnz_of(a, blockIdx.x), image = blockIdx.x / a.image_tiles, t = blockIdx.x % a.image_tiles;
    const Header h = header((const u8*)((const u64*)a.images)[image], SECTION_TILES, SECTION_COLUMNS);
    const u8* record = (const u8*)a.records + (u64)blockIdx.x * record_bytes(a);
    const u32 columns_at = ((const u32*)a.offsets)[blockIdx.x];
    for (u32 i = threadIdx.x; i < record_bytes(a) / 4; i += BLCO_TILE_THREADS) {
        ((u32*)(h.first.at + (u64)t * record_bytes(a)))[i] = i == 0 ? columns_at : ((const u32*)record)[i];
    }
    u32* words = (u32*)(h.second.at + 64ull * columns_at);
    Nonzero own[OWN];
    Damage damage = {NO_DAMAGE};
    own_nonzeros(own, a, blockIdx.x, nnz);
    for (u32 m = 0; m < a.order; ++m) {
        if (!is_kept(a, m)) {
#pragma unroll
            for (u32 k = 0; k < OWN; ++k) skip_index(own[k], m);
            continue;
        }
        const u32 place = place_of(a, m);
        const Span span = span_of(record, place);
        const u32 width = width_of(span.span);
        u32* column = halves + place % 2 * BLCO_TILE_NNZ;
        if (m == a.mode) {
            // The sort has moved them along.
            const u32* rows = (const u32*)a.rows + (u64)blockIdx.x * BLCO_TILE_NNZ;
#pragma unroll
            for (u32 k = 0; k < OWN; ++k) {
                const u32 i = threadIdx.x + k * BLCO_TILE_THREADS;
                column[i] = i < nnz ? rows[i] - span.low : 0;
                skip_index(own[k], m);
            }
        } else {
            u32 index[OWN];
#pragma unroll
            for (u32 k = 0; k < OWN; ++k) index[k] = next_index(own[k], m, damage);
#pragma unroll
            for (u32 k = 0; k < OWN; ++k) {
                const u32 i = threadIdx.x + k * BLCO_TILE_THREADS;
                column[i] = i < nnz ? index[k] - span.low : 0;
            }
        }
        // One barrier for each mode is enough: the half that the next mode fills was packed before this barrier.
        __syncthreads();
        pack_column<u32>(column, width, words);
        words += 16 * width;
    }
    if (a.value_encoding == VALUES_INTEGER) {
        const i64 base = load<i64>(record + 8);
        const u32 width = load<u32>(record + 4);
        __syncthreads();
#pragma unroll
        for (u32 k = 0; k < OWN; ++k) {
            const u32 i = threadIdx.x + k * BLCO_TILE_THREADS;
            const u64 number = i < nnz ? (u64)integer_of(own[k]) - (u64)base : 0;
            if (width > 32) numbers[i] = number;
            else halves[i] = (u32)number;
        }
        __syncthreads();
        if (width > 32) pack_column<u64>(numbers, width, (u64*)words);
        else pack_column<u32>(halves, width, words);
        return;
    }
    double value[OWN];
#pragma unroll
    for (u32 k = 0; k < OWN; ++k) value[k] = value_of(a, own[k], damage);
    note(a, damage);
#pragma unroll
    for (u32 k = 0; k < OWN; ++k) {
        const u32 i = threadIdx.x + k * BLCO_TILE_THREADS;
        const u64 at = (u64)t * BLCO_TILE_NNZ + i;
        if (i >= nnz) break;
        if (a.value_encoding == VALUES_F32) ((float*)h.values.at)[at] = (float)value[k];
        else ((double*)h.values.at)[at] = value[k];
    }
}

}  // namespace mode_sorted
