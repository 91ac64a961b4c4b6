// What the kernels and the engine agree on. Written from src/backend/cuda/abi.rs by
// `BLCO_WRITE=1 cargo test --lib abi`. No includes, so that NVRTC needs no headers.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define BLCO_SIZE(of, bytes) static_assert(sizeof(of) == bytes, #of " has other bytes in abi.rs");
#ifdef __CUDACC_RTC__
#define BLCO_OFFSET(of, field, at) // NVRTC has no offsetof; the mock driver's compiler does.
#else
#define BLCO_OFFSET(of, field, at) static_assert(__builtin_offsetof(of, field) == at, #of "::" #field " is elsewhere in abi.rs");
#endif

// Modes that a tensor can have.
#define BLCO_ORDER_MAX 8
// Nonzeros of a tile.
#define BLCO_TILE_NNZ 512
// Threads that a thread block has for each of its tiles.
#define BLCO_TILE_THREADS 128
// Nonzeros that a thread adds up at most before it updates memory: its share of a group of tiles.
#define BLCO_SHARE 64
// Tiles that a thread block takes of sorted nonzeros.
#define BLCO_SORTED_TILES 1
// Threads of a thread block of what clears, fixes up and finishes rows.
#define BLCO_ROW_THREADS 256
// Carry-outs that a warp adds up.
#define BLCO_FIX_UP 64
// Threads of a thread block that sorts.
#define BLCO_SORT_THREADS 256
// Pairs that such a thread block holds at a time.
#define BLCO_SORT_PORTION 3584
// Numbers of a row of a scan that a single thread block makes.
#define BLCO_SCAN_ROW 4096
// Bits of a digit, at most; a thread for each digit.
#define BLCO_DIGIT_BITS 8
// Registers from which the number of a mode's fibers is estimated.
#define BLCO_FIBER_REGISTERS 1024
// Threads of a thread block of the dense update.
#define BLCO_DENSE_THREADS 256
// Numbers of a factor that such a thread block holds at a time.
#define BLCO_DENSE_TILE 1024
// Numbers of rows that a thread block of `dense::hals` holds: the largest rank that it updates.
#define BLCO_DENSE_HALS 4096
// Threads of a thread block of TTV.
#define BLCO_TTV_THREADS 128
// Nonzeros of a fiber that are added up on their own.
#define BLCO_TTV_SEGMENT 128

// A chunk's image on the device, as it lies in its file (formats-spec/container.md), and the first of a launch's thread
// blocks, or groups of them, that work on it.
struct Chunk {
    // Address of the image.
    u64 image;
    // The first of its thread blocks, where a launch has one target.
    u32 first_block;
    // Its number in the store; images of sorted nonzeros are counted behind the store's chunks.
    u32 number;
};
BLCO_SIZE(Chunk, 16)
BLCO_OFFSET(Chunk, image, 0)
BLCO_OFFSET(Chunk, first_block, 8)
BLCO_OFFSET(Chunk, number, 12)

// A mode whose MTTKRP a launch computes.
struct Target {
    // Address of `copies` matrices of `dims[mode] x rank` sums, in f64 or the kernel's precision, as the kernel was made for.
    u64 sums;
    // The mode.
    u32 mode;
    // Copies of its sums.
    u32 copies;
};
BLCO_SIZE(Target, 16)
BLCO_OFFSET(Target, sums, 0)
BLCO_OFFSET(Target, mode, 8)
BLCO_OFFSET(Target, copies, 12)

// The arguments of an MTTKRP launch.
struct MttkrpArgs {
    // Address of the factor of each mode, `dims[m] x rank`, row-major, in the kernel's precision.
    u64 factors[BLCO_ORDER_MAX];
    // What is computed: the first `target_count`.
    Target targets[BLCO_ORDER_MAX];
    // Address of a `u32`, ~0 at first: the smallest number of a chunk that holds a number out of range.
    u64 fault;
    // Address of the launch's chunks, in order of `first_block`, or 0 where `one` is the only one.
    u64 chunks;
    // The only chunk.
    Chunk one;
    // How many chunks `chunks` lists.
    u32 chunk_count;
    // The tensor's order.
    u32 order;
    // Columns of the factors.
    u32 rank;
    // Modes that are computed.
    u32 target_count;
    // The dims.
    u32 dims[BLCO_ORDER_MAX];
    // `raw`: bits of each mode inside the re-encoded index.
    u32 block_bits[BLCO_ORDER_MAX];
    // `raw`: bits of a key.
    u32 key_bits;
    // `raw`: the mode of each bit of a key, from the lowest up.
    u8 key_modes[64];
    // Of sorted nonzeros: 1 where rows are added to sums in f64, 0 where they are written in the kernel's precision.
    u32 add;
    // Of a Kronecker product: columns of each mode's factor.
    u32 widths[BLCO_ORDER_MAX];
    // The same: how many columns of the product follow one another that have the same one of these.
    u32 strides[BLCO_ORDER_MAX];
    // Of segments, bit m: mode m is a product mode.
    u32 product;
    // Not used.
    u32 unused;
    // Of sorted nonzeros: address of `u32[2]` of each thread block, the rows of its first and last nonzero.
    u64 carry_rows;
    // Address of the sums of those rows, `f64[2][rank]` of each thread block.
    u64 carry_sums;
};
BLCO_SIZE(MttkrpArgs, 464)
BLCO_OFFSET(MttkrpArgs, factors, 0)
BLCO_OFFSET(MttkrpArgs, targets, 64)
BLCO_OFFSET(MttkrpArgs, fault, 192)
BLCO_OFFSET(MttkrpArgs, chunks, 200)
BLCO_OFFSET(MttkrpArgs, one, 208)
BLCO_OFFSET(MttkrpArgs, chunk_count, 224)
BLCO_OFFSET(MttkrpArgs, order, 228)
BLCO_OFFSET(MttkrpArgs, rank, 232)
BLCO_OFFSET(MttkrpArgs, target_count, 236)
BLCO_OFFSET(MttkrpArgs, dims, 240)
BLCO_OFFSET(MttkrpArgs, block_bits, 272)
BLCO_OFFSET(MttkrpArgs, key_bits, 304)
BLCO_OFFSET(MttkrpArgs, key_modes, 308)
BLCO_OFFSET(MttkrpArgs, add, 372)
BLCO_OFFSET(MttkrpArgs, widths, 376)
BLCO_OFFSET(MttkrpArgs, strides, 408)
BLCO_OFFSET(MttkrpArgs, product, 440)
BLCO_OFFSET(MttkrpArgs, unused, 444)
BLCO_OFFSET(MttkrpArgs, carry_rows, 448)
BLCO_OFFSET(MttkrpArgs, carry_sums, 456)

// The arguments of a launch that adds up carry-outs.
struct FixUpArgs {
    // Address of the row of each end, a `u32`.
    u64 rows;
    // Address of its sums, `f64[rank]`.
    u64 sums;
    // Address of the rows of the carry-outs that are left, two of each warp.
    u64 carry_rows;
    // Address of their sums.
    u64 carry_sums;
    // Address of the result, `dims[mode] x rank`.
    u64 result;
    // Ends.
    u32 count;
    // Columns.
    u32 rank;
    // As in `MttkrpArgs`.
    u32 add;
    // Not used.
    u32 unused;
};
BLCO_SIZE(FixUpArgs, 56)
BLCO_OFFSET(FixUpArgs, rows, 0)
BLCO_OFFSET(FixUpArgs, sums, 8)
BLCO_OFFSET(FixUpArgs, carry_rows, 16)
BLCO_OFFSET(FixUpArgs, carry_sums, 24)
BLCO_OFFSET(FixUpArgs, result, 32)
BLCO_OFFSET(FixUpArgs, count, 40)
BLCO_OFFSET(FixUpArgs, rank, 44)
BLCO_OFFSET(FixUpArgs, add, 48)
BLCO_OFFSET(FixUpArgs, unused, 52)

// The arguments of a launch that clears rows.
struct ClearArgs {
    // Address of `u32[(rows + 31) / 32]`: bit `r % 32` of word `r / 32` is set where row r is cleared.
    u64 empty;
    // Address of the matrix, `rows x rank`.
    u64 result;
    // Its rows.
    u32 rows;
    // Its columns.
    u32 rank;
};
BLCO_SIZE(ClearArgs, 24)
BLCO_OFFSET(ClearArgs, empty, 0)
BLCO_OFFSET(ClearArgs, result, 8)
BLCO_OFFSET(ClearArgs, rows, 16)
BLCO_OFFSET(ClearArgs, rank, 20)

// Where a tile of the resident chunks lies: what decoding one of its nonzeros needs. Only kernels write and read it.
struct SourceTile {
    // Address of its record.
    u64 record;
    // Address of its columns.
    u64 columns;
    // Address of its first value in the VALUES section, or of the dictionary.
    u64 values;
    // The chunk's value encoding.
    u32 value_encoding;
    // Entries of the dictionary.
    u32 entries;
    // The chunk's number in the store.
    u32 number;
    // Not used.
    u32 unused;
};
BLCO_SIZE(SourceTile, 40)
BLCO_OFFSET(SourceTile, record, 0)
BLCO_OFFSET(SourceTile, columns, 8)
BLCO_OFFSET(SourceTile, values, 16)
BLCO_OFFSET(SourceTile, value_encoding, 24)
BLCO_OFFSET(SourceTile, entries, 28)
BLCO_OFFSET(SourceTile, number, 32)
BLCO_OFFSET(SourceTile, unused, 36)

// The arguments of launches that build a mode-sorted copy, but for the sort. A nonzero's position is 512 times its
// tile's number in the list and its place in the tile.
struct BuildArgs {
    // Address of the list of `Chunk`s in order of `first_block`, a thread block for each tile.
    u64 chunks;
    // Address of an `SourceTile` for each of their tiles.
    u64 tiles;
    // Address of `u32[positions_end]`. Before the sort: the row of the target mode of the nonzero at each
    // position, ~0 if it has none. After it: each nonzero's row in the copy's order.
    u64 rows;
    // Address of `u32[nnz]`: each nonzero's position, in the copy's order.
    u64 positions;
    // Address of the records of the copy's tiles, 16 bytes and 8 for each mode kept, without where their columns start.
    u64 records;
    // Address of a `u32` of each of its tiles: the sum of its widths, then where its columns start in its image.
    u64 offsets;
    // Address of its images' addresses.
    u64 images;
    // Address of a `u32`, ~0 at first: the smallest number of a chunk that holds a number out of range.
    u64 fault;
    // Address of `u32[(dims[mode] + 31) / 32]`, ~0 at first: bit `r % 32` of word `r / 32` is cleared where row r has a nonzero.
    u64 empty;
    // Address of `u32[order][FIBER_REGISTERS]`, 0 at first: what the number of fibers along each mode is estimated from.
    u64 registers;
    // Address of `u32[2][fibers]`: the position of each fiber's first nonzero, then the fiber's number.
    u64 firsts;
    // How many chunks `chunks` lists.
    u32 chunk_count;
    // Nonzeros.
    u32 nnz;
    // Positions up to the last nonzero's: more than nonzeros where chunks end inside a tile.
    u32 positions_end;
    // The tensor's order.
    u32 order;
    // The target mode.
    u32 mode;
    // A bit for each mode that images have.
    u32 kept;
    // Tiles of an image; the last may have fewer.
    u32 image_tiles;
    // Value encoding of images: INTEGER where all chunks have it, F32 or F64.
    u32 value_encoding;
    // Whether images have the value 1 instead, as INTEGER.
    u32 ones;
    // The mode along which fibers lie.
    u32 leaf;
    // How many fibers there are.
    u32 fibers;
    // Not used.
    u32 unused;
};
BLCO_SIZE(BuildArgs, 136)
BLCO_OFFSET(BuildArgs, chunks, 0)
BLCO_OFFSET(BuildArgs, tiles, 8)
BLCO_OFFSET(BuildArgs, rows, 16)
BLCO_OFFSET(BuildArgs, positions, 24)
BLCO_OFFSET(BuildArgs, records, 32)
BLCO_OFFSET(BuildArgs, offsets, 40)
BLCO_OFFSET(BuildArgs, images, 48)
BLCO_OFFSET(BuildArgs, fault, 56)
BLCO_OFFSET(BuildArgs, empty, 64)
BLCO_OFFSET(BuildArgs, registers, 72)
BLCO_OFFSET(BuildArgs, firsts, 80)
BLCO_OFFSET(BuildArgs, chunk_count, 88)
BLCO_OFFSET(BuildArgs, nnz, 92)
BLCO_OFFSET(BuildArgs, positions_end, 96)
BLCO_OFFSET(BuildArgs, order, 100)
BLCO_OFFSET(BuildArgs, mode, 104)
BLCO_OFFSET(BuildArgs, kept, 108)
BLCO_OFFSET(BuildArgs, image_tiles, 112)
BLCO_OFFSET(BuildArgs, value_encoding, 116)
BLCO_OFFSET(BuildArgs, ones, 120)
BLCO_OFFSET(BuildArgs, leaf, 124)
BLCO_OFFSET(BuildArgs, fibers, 128)
BLCO_OFFSET(BuildArgs, unused, 132)

// The arguments of a step of the sort: pairs of a row and a position, by one digit of the row.
struct SortArgs {
    // Address of the rows.
    u64 rows_in;
    // Address of their positions, or 0: pair i has position i.
    u64 positions_in;
    // Address of the rows once ordered.
    u64 rows_out;
    // Address of the positions once ordered.
    u64 positions_out;
    // Address of `u32[digits][thread blocks]`: pairs of a digit that a thread block meets; once scanned, that those before it meet.
    u64 counts;
    // Address of `u32[digits]`: pairs of a digit.
    u64 totals;
    // Pairs.
    u32 nnz;
    // The digit's lowest bit.
    u32 shift;
    // Bits of the digit.
    u32 bits;
    // Not used.
    u32 unused;
};
BLCO_SIZE(SortArgs, 64)
BLCO_OFFSET(SortArgs, rows_in, 0)
BLCO_OFFSET(SortArgs, positions_in, 8)
BLCO_OFFSET(SortArgs, rows_out, 16)
BLCO_OFFSET(SortArgs, positions_out, 24)
BLCO_OFFSET(SortArgs, counts, 32)
BLCO_OFFSET(SortArgs, totals, 40)
BLCO_OFFSET(SortArgs, nnz, 48)
BLCO_OFFSET(SortArgs, shift, 52)
BLCO_OFFSET(SortArgs, bits, 56)
BLCO_OFFSET(SortArgs, unused, 60)

// The arguments of a scan of rows of numbers: each number becomes the sum of those before it in its row.
struct ScanArgs {
    // Address of the numbers.
    u64 numbers;
    // Address of a `u32` of each row: the sum of all.
    u64 totals;
    // Numbers in all.
    u32 count;
    // Numbers of a row; the last may have fewer.
    u32 row;
};
BLCO_SIZE(ScanArgs, 24)
BLCO_OFFSET(ScanArgs, numbers, 0)
BLCO_OFFSET(ScanArgs, totals, 8)
BLCO_OFFSET(ScanArgs, count, 16)
BLCO_OFFSET(ScanArgs, row, 20)

// The arguments of a dense update. All matrices are row-major, in f64 but for the factor.
struct DenseArgs {
    // Address of `copies` matrices of `rows x rank`: the MTTKRP, in f64, or where `rounded` in the kernel's precision.
    u64 sums;
    // Address of the factor, `rows x rank`, in the kernel's precision: the old one where `scales` is not 0; the new one afterwards.
    u64 factor;
    // Address of the `rank x rank` matrix that rows of the sums are multiplied by, or for HALS of the inner products of the
    // other modes' columns.
    u64 matrix;
    // 0, or for HALS address of three times `rank` numbers: what columns of the sums, the old factor and the new one are
    // multiplied by.
    u64 scales;
    // Address of `slabs` times `rank x rank` inner products of the new columns and `rank` inner products of them with the sums'.
    u64 partials;
    // Rows of the factor.
    u64 rows;
    // Copies of the sums.
    u32 copies;
    // Columns of the factor.
    u32 rank;
    // How many partials there are.
    u32 slabs;
    // Whether the sums are in the precision of the factor, not in f64.
    u32 rounded;
};
BLCO_SIZE(DenseArgs, 64)
BLCO_OFFSET(DenseArgs, sums, 0)
BLCO_OFFSET(DenseArgs, factor, 8)
BLCO_OFFSET(DenseArgs, matrix, 16)
BLCO_OFFSET(DenseArgs, scales, 24)
BLCO_OFFSET(DenseArgs, partials, 32)
BLCO_OFFSET(DenseArgs, rows, 40)
BLCO_OFFSET(DenseArgs, copies, 48)
BLCO_OFFSET(DenseArgs, rank, 52)
BLCO_OFFSET(DenseArgs, slabs, 56)
BLCO_OFFSET(DenseArgs, rounded, 60)

// The arguments of a TTV launch on a chunk of trees.
struct TtvArgs {
    // Address of the image.
    u64 image;
    // Address of a number of the kernel's precision for each index of the leaves' mode.
    u64 vector;
    // Address of the result: a number of the kernel's precision for each fiber of the chunk.
    u64 sums;
    // Address of sums of segments (ttv.cuh), `f64[2]` of each window of `TTV_SEGMENT` spots; of whole tiles of spots, and one
    // window more.
    u64 parts;
    // Address of a `u32` of each window: the fiber that begins there and has several segments, or ~0.
    u64 owners;
    // Address of `f64[2]`: what the first fiber has of the chunk before.
    u64 carry_in;
    // Address of `f64[2]`: what the last fiber leaves.
    u64 carry_out;
    // Address of a `u32`, ~0 at first: the smallest number of a chunk that holds a number out of range.
    u64 fault;
    // The chunk's number in the store.
    u32 number;
    // The tensor's order.
    u32 order;
    // Slots, but for padding behind the last nonzero.
    u32 end;
    // Nonzeros in the last segment of the carry that the first fiber goes on with, 1 to `TTV_SEGMENT`; 0 where it begins here.
    u32 carried;
};
BLCO_SIZE(TtvArgs, 80)
BLCO_OFFSET(TtvArgs, image, 0)
BLCO_OFFSET(TtvArgs, vector, 8)
BLCO_OFFSET(TtvArgs, sums, 16)
BLCO_OFFSET(TtvArgs, parts, 24)
BLCO_OFFSET(TtvArgs, owners, 32)
BLCO_OFFSET(TtvArgs, carry_in, 40)
BLCO_OFFSET(TtvArgs, carry_out, 48)
BLCO_OFFSET(TtvArgs, fault, 56)
BLCO_OFFSET(TtvArgs, number, 64)
BLCO_OFFSET(TtvArgs, order, 68)
BLCO_OFFSET(TtvArgs, end, 72)
BLCO_OFFSET(TtvArgs, carried, 76)

// The arguments of a launch that appends a chunk's nonzeros to columns.
struct AppendArgs {
    // The chunk: `one`, `order`, `dims`, `fault`, and what `raw` and segments need.
    MttkrpArgs chunk;
    // Address of the indices of each mode, a `u32` for each nonzero.
    u64 columns[BLCO_ORDER_MAX];
    // Address of their values, in the kernel's precision.
    u64 values;
    // Where its first nonzero goes.
    u64 first;
};
BLCO_SIZE(AppendArgs, 544)
BLCO_OFFSET(AppendArgs, chunk, 0)
BLCO_OFFSET(AppendArgs, columns, 464)
BLCO_OFFSET(AppendArgs, values, 528)
BLCO_OFFSET(AppendArgs, first, 536)

// The arguments of launches that count a chunk's nonzeros by the key of their fiber, or append those of a range of keys. A key is
// the leading bits, at most 64, of the fiber's indices one behind the other.
struct RangeArgs {
    // As for all nonzeros, without `first`.
    AppendArgs append;
    // Address of a `u64` for each bin of keys: its nonzeros.
    u64 bins;
    // Address of a `u32` for each of the chunk's tiles: its nonzeros of the range; once scanned, where the first of them goes.
    u64 places;
    // Address of a `u32`: nonzeros of the range so far.
    u64 taken;
    // The first key of the range.
    u64 low;
    // Its last key.
    u64 high;
    // Bits of each mode in a key.
    u32 bits[BLCO_ORDER_MAX];
    // Bits of each mode's index that a key leaves out: its last ones.
    u32 dropped[BLCO_ORDER_MAX];
    // A bin has 2^shift keys.
    u32 shift;
    // Nonzeros that columns have room for.
    u32 room;
    // Tiles of the chunk.
    u32 tiles;
    // Not used.
    u32 unused;
};
BLCO_SIZE(RangeArgs, 664)
BLCO_OFFSET(RangeArgs, append, 0)
BLCO_OFFSET(RangeArgs, bins, 544)
BLCO_OFFSET(RangeArgs, places, 552)
BLCO_OFFSET(RangeArgs, taken, 560)
BLCO_OFFSET(RangeArgs, low, 568)
BLCO_OFFSET(RangeArgs, high, 576)
BLCO_OFFSET(RangeArgs, bits, 584)
BLCO_OFFSET(RangeArgs, dropped, 616)
BLCO_OFFSET(RangeArgs, shift, 648)
BLCO_OFFSET(RangeArgs, room, 652)
BLCO_OFFSET(RangeArgs, tiles, 656)
BLCO_OFFSET(RangeArgs, unused, 660)

// The arguments of a launch that brings the indices of a mode into an order.
struct FiberKeysArgs {
    // Address of the indices.
    u64 column;
    // Address of the place there of each nonzero, a `u32`.
    u64 positions;
    // Address of the indices in this order.
    u64 keys;
    // Nonzeros.
    u64 nnz;
};
BLCO_SIZE(FiberKeysArgs, 32)
BLCO_OFFSET(FiberKeysArgs, column, 0)
BLCO_OFFSET(FiberKeysArgs, positions, 8)
BLCO_OFFSET(FiberKeysArgs, keys, 16)
BLCO_OFFSET(FiberKeysArgs, nnz, 24)

// The arguments of SpTTM's launches on nonzeros sorted by fiber: on a window of their tiles.
struct TtmArgs {
    // Address of the indices of each mode, a `u32` for each nonzero.
    u64 columns[BLCO_ORDER_MAX];
    // Address of their values, in the kernel's precision.
    u64 values;
    // Address of the place there of each sorted nonzero, a `u32`; 0 where they are in order.
    u64 positions;
    // Address of the matrix, `dims[mode] x rank`, row-major, in the kernel's precision.
    u64 matrix;
    // Address of a bit for each sorted nonzero, set where it is the last of its fiber; of whole tiles.
    u64 ends;
    // Address of a `u32` for each tile and one more: fibers that end in it; once scanned, before it in its row of `SCAN_ROW` tiles.
    u64 before;
    // Address of a `u32` for each such row: fibers that end before it.
    u64 totals;
    // Address of `f64[2][rank]` for each tile of the window: sums of the fibers that it shares with other tiles.
    u64 parts;
    // Address of `f64[rank]`: the sum of the fiber that the window before leaves open.
    u64 carry_in;
    // Address of the same of this window.
    u64 carry_out;
    // Address of `u32[order - 1]` for each fiber that ends in the window: its indices in the other modes.
    u64 coordinates;
    // Address of their rows, `rank` numbers of the kernel's precision.
    u64 results;
    // The window's first tile, and the one behind its last.
    u32 first_tile;
    // See `first_tile`.
    u32 end_tile;
    // Fibers that end before the window.
    u32 first_fiber;
    // Sorted nonzeros, and the places before them.
    u32 nnz;
    // Tiles of all of them.
    u32 tiles;
    // The tensor's order.
    u32 order;
    // The mode.
    u32 mode;
    // Columns of the matrix.
    u32 rank;
    // A group of 2^lanes threads adds up a fiber.
    u32 lanes;
    // Empty places of the first tile, before its nonzeros.
    u32 skip;
};
BLCO_SIZE(TtmArgs, 192)
BLCO_OFFSET(TtmArgs, columns, 0)
BLCO_OFFSET(TtmArgs, values, 64)
BLCO_OFFSET(TtmArgs, positions, 72)
BLCO_OFFSET(TtmArgs, matrix, 80)
BLCO_OFFSET(TtmArgs, ends, 88)
BLCO_OFFSET(TtmArgs, before, 96)
BLCO_OFFSET(TtmArgs, totals, 104)
BLCO_OFFSET(TtmArgs, parts, 112)
BLCO_OFFSET(TtmArgs, carry_in, 120)
BLCO_OFFSET(TtmArgs, carry_out, 128)
BLCO_OFFSET(TtmArgs, coordinates, 136)
BLCO_OFFSET(TtmArgs, results, 144)
BLCO_OFFSET(TtmArgs, first_tile, 152)
BLCO_OFFSET(TtmArgs, end_tile, 156)
BLCO_OFFSET(TtmArgs, first_fiber, 160)
BLCO_OFFSET(TtmArgs, nnz, 164)
BLCO_OFFSET(TtmArgs, tiles, 168)
BLCO_OFFSET(TtmArgs, order, 172)
BLCO_OFFSET(TtmArgs, mode, 176)
BLCO_OFFSET(TtmArgs, rank, 180)
BLCO_OFFSET(TtmArgs, lanes, 184)
BLCO_OFFSET(TtmArgs, skip, 188)

// The arguments of a launch that makes a `tiled` image of one of another layout.
struct ExpandArgs {
    // Address of the image that is read.
    u64 from;
    // Address of the image that is made.
    u64 image;
    // Address of a `u32`, ~0 at first: the smallest number of a chunk that holds a number out of range.
    u64 fault;
    // The chunk's number in the store.
    u32 number;
    // The tensor's order.
    u32 order;
    // Where its tile records begin.
    u32 tiles_at;
    // Where its columns begin.
    u32 columns_at;
    // Where its values begin.
    u32 values_at;
    // Of segments, bit m: mode m is a product mode.
    u32 product;
    // The dims.
    u32 dims[BLCO_ORDER_MAX];
};
BLCO_SIZE(ExpandArgs, 80)
BLCO_OFFSET(ExpandArgs, from, 0)
BLCO_OFFSET(ExpandArgs, image, 8)
BLCO_OFFSET(ExpandArgs, fault, 16)
BLCO_OFFSET(ExpandArgs, number, 24)
BLCO_OFFSET(ExpandArgs, order, 28)
BLCO_OFFSET(ExpandArgs, tiles_at, 32)
BLCO_OFFSET(ExpandArgs, columns_at, 36)
BLCO_OFFSET(ExpandArgs, values_at, 40)
BLCO_OFFSET(ExpandArgs, product, 44)
BLCO_OFFSET(ExpandArgs, dims, 48)
