// What the kernels and the engine agree on. src/backend/cuda/abi.rs is the same in Rust; both sides hold the
// sizes with static assertions, offsets in a test. Plain C: no includes, so that NVRTC needs no headers.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// Modes that a tensor can have.
#define BLCO_ORDER_MAX 8
// Nonzeros of a tile.
#define BLCO_TILE_NNZ 512
// Threads that a thread block has for each of its tiles.
#define BLCO_TILE_THREADS 128
// Nonzeros that a thread adds up at most before it updates memory: its share of a group of tiles.
#define BLCO_SHARE 64

// A chunk's image on the device, as it lies in its file (formats-spec/container.md), and the first of a launch's thread
// blocks, or groups of them, that work on it.
struct Chunk {
    u64 image;
    u32 first_block;
    u32 number;
};

// A mode whose MTTKRP a launch computes, and where its sums lie.
struct Target {
    // `copies` matrices of dims[mode] x rank sums, in f64 or the kernel's precision, as the kernel was made for.
    u64 sums;
    u32 mode;
    u32 copies;
};

// The arguments of an MTTKRP launch. Addresses are the device's.
struct MttkrpArgs {
    // Factor of each mode, dims[m] x rank, row-major, in the kernel's precision.
    u64 factors[BLCO_ORDER_MAX];
    // The first `target_count` are computed.
    struct Target targets[BLCO_ORDER_MAX];
    // u32, ~0 at first: the smallest number of a chunk that holds a number out of range.
    u64 fault;
    // `chunk_count` chunks in order of first_block, or 0: `one` is the only chunk.
    u64 chunks;
    struct Chunk one;
    u32 chunk_count;
    u32 order;
    u32 rank;
    u32 target_count;
    u32 dims[BLCO_ORDER_MAX];
    // `raw`: bits of each mode inside the re-encoded index.
    u32 block_bits[BLCO_ORDER_MAX];
    // `raw`: bits of a key, and the mode of each from the lowest up.
    u32 key_bits;
    u8 key_modes[64];
    // Of sorted nonzeros: 1 where rows are added to `sums`, in f64; 0 where they are written there, in the kernel's precision.
    u32 add;
    // Of sorted nonzeros: u32[2] and f64[2][rank] of each thread block, the rows of its first and last nonzero and their sums.
    u64 end_rows;
    u64 end_sums;
};

// Tiles that a thread block takes of sorted nonzeros.
#define BLCO_SORTED_TILES 1
// Threads of a thread block of what clears, joins and finishes rows.
#define BLCO_ROW_THREADS 256
// Ends that a warp joins.
#define BLCO_JOIN 64

// The arguments of a launch that joins ends.
struct JoinArgs {
    // u32 and f64[rank] of each end.
    u64 rows;
    u64 sums;
    // The same of the ends that are left: two of each warp.
    u64 end_rows;
    u64 end_sums;
    // dims[mode] x rank.
    u64 result;
    u32 count;
    u32 rank;
    // As in MttkrpArgs.
    u32 add;
    u32 unused;
};

// The arguments of a launch that clears rows.
struct ClearArgs {
    // u32[(rows + 31) / 32]: bit r % 32 of word r / 32 is set where row r is cleared.
    u64 empty;
    // rows x rank.
    u64 result;
    u32 rows;
    u32 rank;
};

// Threads of a thread block that sorts, and pairs that it holds at a time.
#define BLCO_SORT_THREADS 256
#define BLCO_SORT_PORTION 3584
// Bits of a digit, at most; a thread for each digit.
#define BLCO_DIGIT_BITS 8

// Where a tile of the resident chunks lies: what decoding one of its nonzeros needs, but for its record.
struct OrderTile {
    u64 record;
    u64 columns;
    // Its first value in the VALUES section, or the dictionary.
    u64 values;
    u32 value_encoding;
    // Entries of the dictionary.
    u32 entries;
    // Of the chunk.
    u32 number;
    u32 unused;
};

// The arguments of launches that derive a target-major order, but for the sort. Nonzeros have positions: 512 times
// the tile's number in the list, and the place in it.
struct OrderArgs {
    // `chunk_count` chunks in order of first_block, a thread block for each tile, of whole tiles but for the last.
    u64 chunks;
    // OrderTile of each tile of the chunks.
    u64 tiles;
    // u32[nnz]: the row of each nonzero, in the chunks' order before the sort, in the derived one after.
    u64 rows;
    // u32[nnz], of the derived order.
    u64 positions;
    // A record of 16 + 8 order bytes for each derived tile, without where its columns start.
    u64 records;
    // u32 of each derived tile: the sum of its widths, or where its columns start in its image.
    u64 offsets;
    // u64 of each derived image: its address.
    u64 images;
    // u32, ~0 at first: the smallest number of a chunk that holds a number out of range.
    u64 fault;
    // u32[(dims[mode] + 31) / 32], ~0 at first: bit r % 32 of word r / 32 is cleared where row r has a nonzero.
    u64 empty;
    u32 chunk_count;
    u32 nnz;
    u32 order;
    u32 mode;
    // Tiles of a derived image; the last may have fewer.
    u32 image_tiles;
    // Value encoding of derived images: INTEGER where all chunks have it, F32 or F64.
    u32 value_encoding;
};

// The arguments of a step of the sort: pairs of a row and a position, by one digit of the row.
struct SortArgs {
    u64 rows_in;
    // 0: pair i has position i.
    u64 positions_in;
    u64 rows_out;
    u64 positions_out;
    // u32[digits][thread blocks]: pairs of a digit that a thread block meets; once scanned, that those before it meet.
    u64 counts;
    // u32[digits]: pairs of a digit.
    u64 totals;
    u32 nnz;
    // The digit is `bits` bits from `shift` on.
    u32 shift;
    u32 bits;
    u32 unused;
};

// The arguments of a scan: each row of `row` numbers (the last may have fewer) becomes the sums of those before each.
struct ScanArgs {
    u64 numbers;
    // u32 of each row: the sum of all.
    u64 totals;
    u32 count;
    u32 row;
};

// Threads of a thread block of the dense update, and numbers of a factor that it holds at a time.
#define BLCO_DENSE_THREADS 256
#define BLCO_DENSE_TILE 1024
// Numbers of rows that a thread block of `dense::hals` holds: the largest rank that it updates.
#define BLCO_DENSE_HALS 4096

// The arguments of a dense update. All matrices are row-major, in f64 but for the factor.
struct DenseArgs {
    // `copies` matrices of rows x rank: the MTTKRP, in f64, or where `rounded` in the kernel's precision.
    u64 sums;
    // rows x rank, in the kernel's precision: the old factor where `scales` is not 0; the new one afterwards.
    u64 factor;
    // rank x rank: what rows of the sums are multiplied by, or for HALS the inner products of the other modes' columns.
    u64 matrix;
    // 0, or for HALS three times rank numbers: what columns of the sums, the old factor and the new one are multiplied by.
    u64 scales;
    // `slabs` times rank x rank inner products of the new columns and rank inner products of them with the sums'.
    u64 partials;
    u64 rows;
    u32 copies;
    u32 rank;
    u32 slabs;
    u32 rounded;
};

// Threads of a thread block of TTV.
#define BLCO_TTV_THREADS 128
// Nonzeros of a fiber that are added up on their own.
#define BLCO_TTV_SEGMENT 128

// The arguments of a TTV launch on a chunk of trees.
struct TtvArgs {
    u64 image;
    // A number of the kernel's precision for each index of the leaves' mode.
    u64 vector;
    // The result: a number of the kernel's precision for each fiber of the chunk.
    u64 sums;
    // f64[2] of each window of BLCO_TTV_SEGMENT spots: sums of segments (ttv.cuh); of whole tiles of spots, and one window more.
    u64 parts;
    // u32 of each window: the fiber that begins there and has several segments, or ~0.
    u64 owners;
    // f64[2]: what the first fiber has of the chunk before, and what the last one leaves.
    u64 carry_in;
    u64 carry_out;
    // u32, ~0 at first: the smallest number of a chunk that holds a number out of range.
    u64 fault;
    u32 number;
    u32 order;
    // Slots, but for padding behind the last nonzero.
    u32 end;
    // Nonzeros in the last segment of the carry that the first fiber goes on with, 1 to BLCO_TTV_SEGMENT; 0 where it begins here.
    u32 carried;
};

// The arguments of a launch that makes a `tiled` image of a tree's.
struct ExpandArgs {
    u64 tree;
    u64 image;
    // u32, ~0 at first: the smallest number of a chunk that holds a number out of range.
    u64 fault;
    u32 number;
    u32 order;
    // Where the sections TILES, COLUMNS and VALUES begin in the image.
    u32 tiles_at;
    u32 columns_at;
    u32 values_at;
    u32 unused;
};

#ifdef __cplusplus
static_assert(sizeof(struct ExpandArgs) == 48, "ExpandArgs differs from abi.rs");
static_assert(sizeof(struct TtvArgs) == 80, "TtvArgs differs from abi.rs");
static_assert(sizeof(struct DenseArgs) == 64, "DenseArgs differs from abi.rs");
static_assert(sizeof(struct Chunk) == 16, "Chunk differs from abi.rs");
static_assert(sizeof(struct OrderTile) == 40, "OrderTile differs from abi.rs");
static_assert(sizeof(struct OrderArgs) == 96, "OrderArgs differs from abi.rs");
static_assert(sizeof(struct SortArgs) == 64, "SortArgs differs from abi.rs");
static_assert(sizeof(struct ScanArgs) == 24, "ScanArgs differs from abi.rs");
static_assert(sizeof(struct Target) == 16, "Target differs from abi.rs");
static_assert(sizeof(struct JoinArgs) == 56, "JoinArgs differs from abi.rs");
static_assert(sizeof(struct ClearArgs) == 24, "ClearArgs differs from abi.rs");
static_assert(sizeof(struct MttkrpArgs) == 392, "MttkrpArgs differs from abi.rs");
#endif
