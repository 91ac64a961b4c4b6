// What the kernels and the engine agree on. src/backend/cuda/abi.rs is the same in Rust; both sides hold the
// sizes and offsets with static assertions. Plain C: no includes, so that NVRTC needs no headers.
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
// Terms of a chain of additions in the precision of the factors; longer sums are in f64.
#define BLCO_CHAIN 64

// A chunk's image on the device, as it lies in its file (formats-spec/container.md), and the first thread block of a
// launch that works on it.
struct Chunk {
    u64 image;
    u32 first_block;
    u32 number;
};

// The arguments of an MTTKRP launch. Addresses are the device's.
struct MttkrpArgs {
    // Factor of each mode, dims[m] x rank, row-major, in the kernel's precision.
    u64 factors[BLCO_ORDER_MAX];
    // `copies` matrices of dims[mode] x rank sums in f64.
    u64 sums;
    // u32, ~0 at first: the smallest number of a chunk that holds a number out of range.
    u64 fault;
    // `chunk_count` chunks in order of first_block, or 0: `one` is the only chunk.
    u64 chunks;
    struct Chunk one;
    u32 chunk_count;
    u32 order;
    u32 rank;
    u32 mode;
    u32 copies;
    u32 dims[BLCO_ORDER_MAX];
    // `raw`: bits of each mode inside the re-encoded index.
    u32 block_bits[BLCO_ORDER_MAX];
    // `raw`: bits of a key, and the mode of each from the lowest up.
    u32 key_bits;
    u8 key_modes[64];
};

#ifdef __cplusplus
static_assert(sizeof(struct Chunk) == 16, "Chunk differs from abi.rs");
static_assert(sizeof(struct MttkrpArgs) == 256, "MttkrpArgs differs from abi.rs");
#endif
