//! What the kernels and the engine agree on. kernels/abi.h is written from this file, comments included; a test refuses
//! another header. Addresses are the device's; what lies there is given as in C.

use crate::encoding::TILE_NNZ;
use crate::shape::ORDER_MAX;
use bytemuck::{Pod, Zeroable};

/// Nonzeros of a tile: the header's `BLCO_TILE_NNZ`.
pub const TILE: u32 = 512;
const _: () = assert!(TILE_NNZ == TILE as usize);

/// Constants, and what the header has of them.
macro_rules! constants {
    ($($(#[doc = $doc:literal])* $name:ident = $number:literal;)*) => {
        $($(#[doc = $doc])* pub const $name: u32 = $number;)*

        #[cfg(test)]
        const CONSTANTS: &str =
            concat!($($("//", $doc, "\n",)* "#define BLCO_", stringify!($name), " ", $number, "\n"),*);
    };
}

/// Structs of plain numbers, laid out as in C, and what the header has of them.
macro_rules! structs {
    ($(
        $(#[doc = $doc:literal])*
        pub struct $name:ident { $($(#[doc = $of_field:literal])* $field:ident: $type:tt,)* }
    )*) => {
        $(
            $(#[doc = $doc])*
            #[derive(Clone, Copy, Debug, Pod, Zeroable)]
            #[repr(C)]
            pub struct $name { $($(#[doc = $of_field])* pub $field: $type,)* }

            impl Default for $name {
                fn default() -> Self {
                    Self::zeroed()
                }
            }
        )*

        #[cfg(test)]
        fn structs() -> String {
            let mut text = String::new();
            $(
                text += concat!("\n", $("//", $doc, "\n",)* "struct ", stringify!($name), " {\n");
                $(
                    text += concat!($("    //", $of_field, "\n"),*);
                    text += &tests::declared(stringify!($type), stringify!($field));
                )*
                text += &format!("}};\nBLCO_SIZE({}, {})\n", stringify!($name), size_of::<$name>());
                $(
                    let offset = std::mem::offset_of!($name, $field);
                    text += &format!("BLCO_OFFSET({}, {}, {offset})\n", stringify!($name), stringify!($field));
                )*
            )*
            text
        }
    };
}

constants! {
    /// Threads that a thread block has for each of its tiles.
    TILE_THREADS = 128;
    /// Nonzeros that a thread adds up at most before it updates memory: its share of a group of tiles.
    SHARE = 64;
    /// Tiles that a thread block takes of sorted nonzeros.
    SORTED_TILES = 1;
    /// Threads of a thread block of what clears, fixes up and finishes rows.
    ROW_THREADS = 256;
    /// Carry-outs that a warp adds up.
    FIX_UP = 64;
    /// Threads of a thread block that sorts.
    SORT_THREADS = 256;
    /// Pairs that such a thread block holds at a time.
    SORT_PORTION = 3584;
    /// Numbers of a row of a scan that a single thread block makes.
    SCAN_ROW = 4096;
    /// Bits of a digit, at most; a thread for each digit.
    DIGIT_BITS = 8;
    /// Registers from which the number of a mode's fibers is estimated.
    FIBER_REGISTERS = 1024;
    /// Threads of a thread block of the dense update.
    DENSE_THREADS = 256;
    /// Numbers of a factor that such a thread block holds at a time.
    DENSE_TILE = 1024;
    /// Numbers of rows that a thread block of `dense::hals` holds: the largest rank that it updates.
    DENSE_HALS = 4096;
    /// Threads of a thread block of TTV.
    TTV_THREADS = 128;
    /// Nonzeros of a fiber that are added up on their own.
    TTV_SEGMENT = 128;
}

structs! {
    /// A chunk's image on the device, as it lies in its file (formats-spec/container.md), and the first of a launch's thread
    /// blocks, or groups of them, that work on it.
    pub struct Chunk {
        /// Address of the image.
        image: u64,
        /// The first of its thread blocks, where a launch has one target.
        first_block: u32,
        /// Its number in the store; images of sorted nonzeros are counted behind the store's chunks.
        number: u32,
    }

    /// A mode whose MTTKRP a launch computes.
    pub struct Target {
        /// Address of `copies` matrices of `dims[mode] x rank` sums, in f64 or the kernel's precision, as the kernel was made for.
        sums: u64,
        /// The mode.
        mode: u32,
        /// Copies of its sums.
        copies: u32,
    }

    /// The arguments of an MTTKRP launch.
    pub struct MttkrpArgs {
        /// Address of the factor of each mode, `dims[m] x rank`, row-major, in the kernel's precision.
        factors: [u64; ORDER_MAX],
        /// What is computed: the first `target_count`.
        targets: [Target; ORDER_MAX],
        /// Address of a `u32`, ~0 at first: the smallest number of a chunk that holds a number out of range.
        fault: u64,
        /// Address of the launch's chunks, in order of `first_block`, or 0 where `one` is the only one.
        chunks: u64,
        /// The only chunk.
        one: Chunk,
        /// How many chunks `chunks` lists.
        chunk_count: u32,
        /// The tensor's order.
        order: u32,
        /// Columns of the factors.
        rank: u32,
        /// Modes that are computed.
        target_count: u32,
        /// The dims.
        dims: [u32; ORDER_MAX],
        /// `raw`: bits of each mode inside the re-encoded index.
        block_bits: [u32; ORDER_MAX],
        /// `raw`: bits of a key.
        key_bits: u32,
        /// `raw`: the mode of each bit of a key, from the lowest up.
        key_modes: [u8; 64],
        /// Of sorted nonzeros: 1 where rows are added to sums in f64, 0 where they are written in the kernel's precision.
        add: u32,
        /// Of a Kronecker product: columns of each mode's factor.
        widths: [u32; ORDER_MAX],
        /// The same: how many columns of the product follow one another that have the same one of these.
        strides: [u32; ORDER_MAX],
        /// Of segments, bit m: mode m is a product mode.
        product: u32,
        /// Not used.
        unused: u32,
        /// Of sorted nonzeros: address of `u32[2]` of each thread block, the rows of its first and last nonzero.
        carry_rows: u64,
        /// Address of the sums of those rows, `f64[2][rank]` of each thread block.
        carry_sums: u64,
    }

    /// The arguments of a launch that adds up carry-outs.
    pub struct FixUpArgs {
        /// Address of the row of each end, a `u32`.
        rows: u64,
        /// Address of its sums, `f64[rank]`.
        sums: u64,
        /// Address of the rows of the carry-outs that are left, two of each warp.
        carry_rows: u64,
        /// Address of their sums.
        carry_sums: u64,
        /// Address of the result, `dims[mode] x rank`.
        result: u64,
        /// Ends.
        count: u32,
        /// Columns.
        rank: u32,
        /// As in `MttkrpArgs`.
        add: u32,
        /// Not used.
        unused: u32,
    }

    /// The arguments of a launch that clears rows.
    pub struct ClearArgs {
        /// Address of `u32[(rows + 31) / 32]`: bit `r % 32` of word `r / 32` is set where row r is cleared.
        empty: u64,
        /// Address of the matrix, `rows x rank`.
        result: u64,
        /// Its rows.
        rows: u32,
        /// Its columns.
        rank: u32,
    }

    /// Where a tile of the resident chunks lies: what decoding one of its nonzeros needs. Only kernels write and read it.
    pub struct SourceTile {
        /// Address of its record.
        record: u64,
        /// Address of its columns.
        columns: u64,
        /// Address of its first value in the VALUES section, or of the dictionary.
        values: u64,
        /// The chunk's value encoding.
        value_encoding: u32,
        /// Entries of the dictionary.
        entries: u32,
        /// The chunk's number in the store.
        number: u32,
        /// Not used.
        unused: u32,
    }

    /// The arguments of launches that build a mode-sorted copy, but for the sort. A nonzero's position is 512 times its
    /// tile's number in the list and its place in the tile.
    pub struct BuildArgs {
        /// Address of the list of `Chunk`s in order of `first_block`, a thread block for each tile.
        chunks: u64,
        /// Address of an `SourceTile` for each of their tiles.
        tiles: u64,
        /// Address of `u32[positions_end]`. Before the sort: the row of the target mode of the nonzero at each
        /// position, ~0 if it has none. After it: each nonzero's row in the copy's order.
        rows: u64,
        /// Address of `u32[nnz]`: each nonzero's position, in the copy's order.
        positions: u64,
        /// Address of the records of the copy's tiles, 16 bytes and 8 for each mode kept, without where their columns start.
        records: u64,
        /// Address of a `u32` of each of its tiles: the sum of its widths, then where its columns start in its image.
        offsets: u64,
        /// Address of its images' addresses.
        images: u64,
        /// Address of a `u32`, ~0 at first: the smallest number of a chunk that holds a number out of range.
        fault: u64,
        /// Address of `u32[(dims[mode] + 31) / 32]`, ~0 at first: bit `r % 32` of word `r / 32` is cleared where row r has a nonzero.
        empty: u64,
        /// Address of `u32[order][FIBER_REGISTERS]`, 0 at first: what the number of fibers along each mode is estimated from.
        registers: u64,
        /// Address of `u32[2][fibers]`: the position of each fiber's first nonzero, then the fiber's number.
        firsts: u64,
        /// How many chunks `chunks` lists.
        chunk_count: u32,
        /// Nonzeros.
        nnz: u32,
        /// Positions up to the last nonzero's: more than nonzeros where chunks end inside a tile.
        positions_end: u32,
        /// The tensor's order.
        order: u32,
        /// The target mode.
        mode: u32,
        /// A bit for each mode that images have.
        kept: u32,
        /// Tiles of an image; the last may have fewer.
        image_tiles: u32,
        /// Value encoding of images: INTEGER where all chunks have it, F32 or F64.
        value_encoding: u32,
        /// Whether images have the value 1 instead, as INTEGER.
        ones: u32,
        /// The mode along which fibers lie.
        leaf: u32,
        /// How many fibers there are.
        fibers: u32,
        /// Not used.
        unused: u32,
    }

    /// The arguments of a step of the sort: pairs of a row and a position, by one digit of the row.
    pub struct SortArgs {
        /// Address of the rows.
        rows_in: u64,
        /// Address of their positions, or 0: pair i has position i.
        positions_in: u64,
        /// Address of the rows once ordered.
        rows_out: u64,
        /// Address of the positions once ordered.
        positions_out: u64,
        /// Address of `u32[digits][thread blocks]`: pairs of a digit that a thread block meets; once scanned, that those before it meet.
        counts: u64,
        /// Address of `u32[digits]`: pairs of a digit.
        totals: u64,
        /// Pairs.
        nnz: u32,
        /// The digit's lowest bit.
        shift: u32,
        /// Bits of the digit.
        bits: u32,
        /// Not used.
        unused: u32,
    }

    /// The arguments of a scan of rows of numbers: each number becomes the sum of those before it in its row.
    pub struct ScanArgs {
        /// Address of the numbers.
        numbers: u64,
        /// Address of a `u32` of each row: the sum of all.
        totals: u64,
        /// Numbers in all.
        count: u32,
        /// Numbers of a row; the last may have fewer.
        row: u32,
    }

    /// The arguments of a dense update. All matrices are row-major, in f64 but for the factor.
    pub struct DenseArgs {
        /// Address of `copies` matrices of `rows x rank`: the MTTKRP, in f64, or where `rounded` in the kernel's precision.
        sums: u64,
        /// Address of the factor, `rows x rank`, in the kernel's precision: the old one where `scales` is not 0; the new one afterwards.
        factor: u64,
        /// Address of the `rank x rank` matrix that rows of the sums are multiplied by, or for HALS of the inner products of the
        /// other modes' columns.
        matrix: u64,
        /// 0, or for HALS address of three times `rank` numbers: what columns of the sums, the old factor and the new one are
        /// multiplied by.
        scales: u64,
        /// Address of `slabs` times `rank x rank` inner products of the new columns and `rank` inner products of them with the sums'.
        partials: u64,
        /// Rows of the factor.
        rows: u64,
        /// Copies of the sums.
        copies: u32,
        /// Columns of the factor.
        rank: u32,
        /// How many partials there are.
        slabs: u32,
        /// Whether the sums are in the precision of the factor, not in f64.
        rounded: u32,
    }

    /// The arguments of a TTV launch on a chunk of trees.
    pub struct TtvArgs {
        /// Address of the image.
        image: u64,
        /// Address of a number of the kernel's precision for each index of the leaves' mode.
        vector: u64,
        /// Address of the result: a number of the kernel's precision for each fiber of the chunk.
        sums: u64,
        /// Address of sums of segments (ttv.cuh), `f64[2]` of each window of `TTV_SEGMENT` spots; of whole tiles of spots, and one
        /// window more.
        parts: u64,
        /// Address of a `u32` of each window: the fiber that begins there and has several segments, or ~0.
        owners: u64,
        /// Address of `f64[2]`: what the first fiber has of the chunk before.
        carry_in: u64,
        /// Address of `f64[2]`: what the last fiber leaves.
        carry_out: u64,
        /// Address of a `u32`, ~0 at first: the smallest number of a chunk that holds a number out of range.
        fault: u64,
        /// The chunk's number in the store.
        number: u32,
        /// The tensor's order.
        order: u32,
        /// Slots, but for padding behind the last nonzero.
        end: u32,
        /// Nonzeros in the last segment of the carry that the first fiber goes on with, 1 to `TTV_SEGMENT`; 0 where it begins here.
        carried: u32,
    }

    /// The arguments of a launch that appends a chunk's nonzeros to columns.
    pub struct AppendArgs {
        /// The chunk: `one`, `order`, `dims`, `fault`, and what `raw` and segments need.
        chunk: MttkrpArgs,
        /// Address of the indices of each mode, a `u32` for each nonzero.
        columns: [u64; ORDER_MAX],
        /// Address of their values, in the kernel's precision.
        values: u64,
        /// Where its first nonzero goes.
        first: u64,
    }

    /// The arguments of launches that count a chunk's nonzeros by the key of their fiber, or append those of a range of keys. A key is
    /// the leading bits, at most 64, of the fiber's indices one behind the other.
    pub struct RangeArgs {
        /// As for all nonzeros, without `first`.
        append: AppendArgs,
        /// Address of a `u64` for each bin of keys: its nonzeros.
        bins: u64,
        /// Address of a `u32` for each of the chunk's tiles: its nonzeros of the range; once scanned, where the first of them goes.
        places: u64,
        /// Address of a `u32`: nonzeros of the range so far.
        taken: u64,
        /// The first key of the range.
        low: u64,
        /// Its last key.
        high: u64,
        /// Bits of each mode in a key.
        bits: [u32; ORDER_MAX],
        /// Bits of each mode's index that a key leaves out: its last ones.
        dropped: [u32; ORDER_MAX],
        /// A bin has 2^shift keys.
        shift: u32,
        /// Nonzeros that columns have room for.
        room: u32,
        /// Tiles of the chunk.
        tiles: u32,
        /// Not used.
        unused: u32,
    }

    /// The arguments of a launch that brings the indices of a mode into an order.
    pub struct FiberKeysArgs {
        /// Address of the indices.
        column: u64,
        /// Address of the place there of each nonzero, a `u32`.
        positions: u64,
        /// Address of the indices in this order.
        keys: u64,
        /// Nonzeros.
        nnz: u64,
    }

    /// The arguments of SpTTM's launches on nonzeros sorted by fiber: on a window of their tiles.
    pub struct TtmArgs {
        /// Address of the indices of each mode, a `u32` for each nonzero.
        columns: [u64; ORDER_MAX],
        /// Address of their values, in the kernel's precision.
        values: u64,
        /// Address of the place there of each sorted nonzero, a `u32`; 0 where they are in order.
        positions: u64,
        /// Address of the matrix, `dims[mode] x rank`, row-major, in the kernel's precision.
        matrix: u64,
        /// Address of a bit for each sorted nonzero, set where it is the last of its fiber; of whole tiles.
        ends: u64,
        /// Address of a `u32` for each tile and one more: fibers that end in it; once scanned, before it in its row of `SCAN_ROW` tiles.
        before: u64,
        /// Address of a `u32` for each such row: fibers that end before it.
        totals: u64,
        /// Address of `f64[2][rank]` for each tile of the window: sums of the fibers that it shares with other tiles.
        parts: u64,
        /// Address of `f64[rank]`: the sum of the fiber that the window before leaves open.
        carry_in: u64,
        /// Address of the same of this window.
        carry_out: u64,
        /// Address of `u32[order - 1]` for each fiber that ends in the window: its indices in the other modes.
        coordinates: u64,
        /// Address of their rows, `rank` numbers of the kernel's precision.
        results: u64,
        /// The window's first tile, and the one behind its last.
        first_tile: u32,
        /// See `first_tile`.
        end_tile: u32,
        /// Fibers that end before the window.
        first_fiber: u32,
        /// Sorted nonzeros, and the places before them.
        nnz: u32,
        /// Tiles of all of them.
        tiles: u32,
        /// The tensor's order.
        order: u32,
        /// The mode.
        mode: u32,
        /// Columns of the matrix.
        rank: u32,
        /// A group of 2^lanes threads adds up a fiber.
        lanes: u32,
        /// Empty places of the first tile, before its nonzeros.
        skip: u32,
    }

    /// The arguments of a launch that makes a `tiled` image of one of another layout.
    pub struct ExpandArgs {
        /// Address of the image that is read.
        from: u64,
        /// Address of the image that is made.
        image: u64,
        /// Address of a `u32`, ~0 at first: the smallest number of a chunk that holds a number out of range.
        fault: u64,
        /// The chunk's number in the store.
        number: u32,
        /// The tensor's order.
        order: u32,
        /// Where its tile records begin.
        tiles_at: u32,
        /// Where its columns begin.
        columns_at: u32,
        /// Where its values begin.
        values_at: u32,
        /// Of segments, bit m: mode m is a product mode.
        product: u32,
        /// The dims.
        dims: [u32; ORDER_MAX],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A field in C.
    pub(super) fn declared(of: &str, field: &str) -> String {
        let (of, count) = of.trim_matches(['[', ']']).split_once("; ").unwrap_or((of, ""));
        match count {
            "" => format!("    {of} {field};\n"),
            "ORDER_MAX" => format!("    {of} {field}[BLCO_ORDER_MAX];\n"),
            count => format!("    {of} {field}[{count}];\n"),
        }
    }

    fn header() -> String {
        format!(
            r#"// What the kernels and the engine agree on. Written from src/backend/cuda/abi.rs by
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
#define BLCO_ORDER_MAX {ORDER_MAX}
// Nonzeros of a tile.
#define BLCO_TILE_NNZ {TILE}
{CONSTANTS}{}"#,
            structs()
        )
    }

    #[test]
    fn the_header_is_written_from_this_file() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/abi.h");
        if std::env::var_os("BLCO_WRITE").is_some() {
            std::fs::write(path, header()).unwrap();
        }
        let found = std::fs::read_to_string(path).unwrap();
        assert!(
            found == header(),
            "kernels/abi.h is another: write it with BLCO_WRITE=1 cargo test --lib abi"
        );
    }
}
