//! What the kernels and the engine agree on: kernels/abi.h in Rust. Sizes are asserted on both sides; a test holds the
//! names and offsets of all fields, and the constants, against the header's text.

use crate::encoding::TILE_NNZ;
use crate::shape::ORDER_MAX;
use bytemuck::{Pod, Zeroable};

/// Threads that a thread block has for each of its tiles.
pub const TILE_THREADS: u32 = 128;
/// Nonzeros that a thread adds up at most before it updates memory: its share of a group of tiles.
pub const SHARE: u32 = 64;
/// Tiles that a thread block takes of sorted nonzeros.
pub const SORTED_TILES: u32 = 1;
/// Threads of a thread block of what clears, joins and finishes rows.
pub const ROW_THREADS: u32 = 256;
/// Ends that a warp joins.
pub const JOIN: u32 = 64;

/// A chunk's image on the device, and the first of a launch's thread blocks, or groups of them, that work on it.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Chunk {
    /// Address of the image.
    pub image: u64,
    /// The first of its thread blocks, where a launch has one target.
    pub first_block: u32,
    /// Its number in the store; images of sorted nonzeros are counted behind the store's chunks.
    pub number: u32,
}

/// A mode whose MTTKRP a launch computes.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Target {
    /// Address of its sums: `copies` matrices.
    pub sums: u64,
    /// The mode.
    pub mode: u32,
    /// Copies of its sums.
    pub copies: u32,
}

/// The arguments of an MTTKRP launch.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct MttkrpArgs {
    /// Addresses of the factors.
    pub factors: [u64; ORDER_MAX],
    /// What is computed: the first `target_count`.
    pub targets: [Target; ORDER_MAX],
    /// Address of the smallest number of a chunk with a number out of range.
    pub fault: u64,
    /// Address of the launch's chunks, or 0 where `one` is the only one.
    pub chunks: u64,
    /// The only chunk.
    pub one: Chunk,
    /// How many chunks `chunks` lists.
    pub chunk_count: u32,
    /// The tensor's order.
    pub order: u32,
    /// Columns of the factors.
    pub rank: u32,
    /// Modes that are computed.
    pub target_count: u32,
    /// The dims.
    pub dims: [u32; ORDER_MAX],
    /// `raw`: bits of each mode inside the re-encoded index.
    pub block_bits: [u32; ORDER_MAX],
    /// `raw`: bits of a key.
    pub key_bits: u32,
    /// `raw`: the mode of each bit of a key, from the lowest up.
    pub key_modes: [u8; 64],
    /// Of sorted nonzeros: 1 where rows are added to sums in f64, 0 where they are written in the kernel's precision.
    pub add: u32,
    /// Of sorted nonzeros: address of the rows of each thread block's first and last nonzero.
    pub end_rows: u64,
    /// Address of the sums of those rows, in f64.
    pub end_sums: u64,
}

/// The arguments of a launch that joins ends.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct JoinArgs {
    /// Address of the row of each end.
    pub rows: u64,
    /// Address of its sums.
    pub sums: u64,
    /// Address of the rows of the ends that are left, two of each warp.
    pub end_rows: u64,
    /// Address of their sums.
    pub end_sums: u64,
    /// Address of the result.
    pub result: u64,
    /// Ends.
    pub count: u32,
    /// Columns.
    pub rank: u32,
    /// As in [`MttkrpArgs`].
    pub add: u32,
    /// Not used.
    pub unused: u32,
}

/// The arguments of a launch that clears rows.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct ClearArgs {
    /// Address of a bit for each row: set where it is cleared.
    pub empty: u64,
    /// Address of the matrix.
    pub result: u64,
    /// Its rows.
    pub rows: u32,
    /// Its columns.
    pub rank: u32,
}

/// Threads of a thread block that sorts.
pub const SORT_THREADS: u32 = 256;
/// Pairs that such a thread block holds at a time.
pub const SORT_PORTION: u32 = 3584;
/// Bits of a digit, at most.
pub const DIGIT_BITS: u32 = 8;

/// Where a tile of the resident chunks lies; only kernels write and read it.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct OrderTile {
    /// Address of its record.
    pub record: u64,
    /// Address of its columns.
    pub columns: u64,
    /// Address of its first value in the VALUES section, or of the dictionary.
    pub values: u64,
    /// The chunk's value encoding.
    pub value_encoding: u32,
    /// Entries of the dictionary.
    pub entries: u32,
    /// The chunk's number in the store.
    pub number: u32,
    /// Not used.
    pub unused: u32,
}

/// The arguments of launches that derive a target-major order, but for the sort.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct OrderArgs {
    /// Address of the list of [`Chunk`]s.
    pub chunks: u64,
    /// Address of an [`OrderTile`] for each of their tiles.
    pub tiles: u64,
    /// Address of each nonzero's row of the target mode.
    pub rows: u64,
    /// Address of each nonzero's position, in the derived order.
    pub positions: u64,
    /// Address of the derived tiles' records.
    pub records: u64,
    /// Address of the derived tiles' widths, then of where their columns start.
    pub offsets: u64,
    /// Address of the derived images' addresses.
    pub images: u64,
    /// Address of the smallest number of a chunk with a number out of range.
    pub fault: u64,
    /// Address of a bit for each row of the target mode: set where it has no nonzero.
    pub empty: u64,
    /// How many chunks `chunks` lists.
    pub chunk_count: u32,
    /// Nonzeros.
    pub nnz: u32,
    /// The tensor's order.
    pub order: u32,
    /// The target mode.
    pub mode: u32,
    /// Tiles of a derived image.
    pub image_tiles: u32,
    /// Value encoding of derived images.
    pub value_encoding: u32,
}

/// The arguments of a step of the sort.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct SortArgs {
    /// Address of the rows.
    pub rows_in: u64,
    /// Address of their positions, or 0: pair i has position i.
    pub positions_in: u64,
    /// Address of the rows once ordered.
    pub rows_out: u64,
    /// Address of the positions once ordered.
    pub positions_out: u64,
    /// Address of the counts: a row for each digit, a column for each thread block.
    pub counts: u64,
    /// Address of the sums of those rows.
    pub totals: u64,
    /// Pairs.
    pub nnz: u32,
    /// The digit's lowest bit.
    pub shift: u32,
    /// Bits of the digit.
    pub bits: u32,
    /// Not used.
    pub unused: u32,
}

/// The arguments of a scan of rows of numbers.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct ScanArgs {
    /// Address of the numbers.
    pub numbers: u64,
    /// Address of the rows' sums.
    pub totals: u64,
    /// Numbers in all.
    pub count: u32,
    /// Numbers of a row; the last may have fewer.
    pub row: u32,
}

/// Threads of a thread block of the dense update.
pub const DENSE_THREADS: u32 = 256;
/// Numbers of a factor that such a thread block holds at a time.
pub const DENSE_TILE: u32 = 1024;
/// Numbers of rows that a thread block of HALS holds where the rank is beyond the fused kernels'.
pub const DENSE_HALS: u32 = 4096;

/// The arguments of a dense update.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct DenseArgs {
    /// Address of the MTTKRP: `copies` matrices.
    pub sums: u64,
    /// Address of the factor.
    pub factor: u64,
    /// Address of the rank x rank matrix.
    pub matrix: u64,
    /// Address of three times rank numbers for HALS, or 0.
    pub scales: u64,
    /// Address of `slabs` times rank x (rank + 1) numbers.
    pub partials: u64,
    /// Rows of the factor.
    pub rows: u64,
    /// Copies of the sums.
    pub copies: u32,
    /// Columns of the factor.
    pub rank: u32,
    /// How many partials there are.
    pub slabs: u32,
    /// Whether the sums are in the precision of the factor, not in f64.
    pub rounded: u32,
}

/// Threads of a thread block of TTV.
pub const TTV_THREADS: u32 = 128;
/// Nonzeros of a fiber that are added up on their own.
pub const TTV_SEGMENT: u32 = 128;

/// The arguments of a TTV launch on a chunk of trees.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct TtvArgs {
    /// Address of the image.
    pub image: u64,
    /// Address of a number for each index of the leaves' mode.
    pub vector: u64,
    /// Address of the result: a number for each fiber.
    pub sums: u64,
    /// Address of sums of segments, two for each window of [`TTV_SEGMENT`] spots.
    pub parts: u64,
    /// Address of the fiber that begins in each window.
    pub owners: u64,
    /// Address of what the first fiber has of the chunk before.
    pub carry_in: u64,
    /// Address of what the last fiber leaves.
    pub carry_out: u64,
    /// Address of the smallest number of a chunk with a number out of range.
    pub fault: u64,
    /// The chunk's number in the store.
    pub number: u32,
    /// The tensor's order.
    pub order: u32,
    /// Slots, but for padding behind the last nonzero.
    pub end: u32,
    /// Nonzeros in the last segment of the carry that the first fiber goes on with; 0 where it begins here.
    pub carried: u32,
}

/// The arguments of a launch that makes a `tiled` image of a tree's.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct ExpandArgs {
    /// Address of the tree's image.
    pub tree: u64,
    /// Address of the image that is made.
    pub image: u64,
    /// Address of the smallest number of a chunk with a number out of range.
    pub fault: u64,
    /// The chunk's number in the store.
    pub number: u32,
    /// The tensor's order.
    pub order: u32,
    /// Where its tile records begin.
    pub tiles_at: u32,
    /// Where its columns begin.
    pub columns_at: u32,
    /// Where its values begin.
    pub values_at: u32,
    /// Not used.
    pub unused: u32,
}

const _: () = assert!(size_of::<ExpandArgs>() == 48);
const _: () = assert!(size_of::<TtvArgs>() == 80);
const _: () = assert!(size_of::<DenseArgs>() == 64);
const _: () = assert!(size_of::<OrderTile>() == 40 && size_of::<OrderArgs>() == 96);
const _: () = assert!(size_of::<JoinArgs>() == 56 && size_of::<ClearArgs>() == 24);
const _: () = assert!(size_of::<SortArgs>() == 64 && size_of::<ScanArgs>() == 24);
const _: () = assert!(size_of::<Chunk>() == 16 && size_of::<MttkrpArgs>() == 392);
/// Nonzeros of a tile.
pub const TILE: u32 = 512;
const _: () = assert!(TILE_NNZ == TILE as usize);

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::mem::offset_of;

    const HEADER: &str = include_str!("../../../kernels/abi.h");

    /// A struct's name, fields with their offsets, and bytes.
    type Layout = (String, Vec<(String, usize)>, usize);

    macro_rules! layouts {
        ($($of:ident { $($field:ident),* })*) => {
            [$({
                // No field is left out.
                let $of { $($field: _),* } = $of::zeroed();
                let fields = vec![$((stringify!($field).to_owned(), offset_of!($of, $field))),*];
                (stringify!($of).to_owned(), fields, size_of::<$of>())
            }),*]
        };
    }

    /// As this file has them.
    fn in_rust() -> Vec<Layout> {
        let all = layouts! {
            Chunk { image, first_block, number }
            Target { sums, mode, copies }
            MttkrpArgs {
                factors, targets, fault, chunks, one, chunk_count, order, rank, target_count, dims, block_bits, key_bits,
                key_modes, add, end_rows, end_sums
            }
            JoinArgs { rows, sums, end_rows, end_sums, result, count, rank, add, unused }
            ClearArgs { empty, result, rows, rank }
            OrderTile { record, columns, values, value_encoding, entries, number, unused }
            OrderArgs {
                chunks, tiles, rows, positions, records, offsets, images, fault, empty, chunk_count, nnz, order, mode,
                image_tiles, value_encoding
            }
            SortArgs { rows_in, positions_in, rows_out, positions_out, counts, totals, nnz, shift, bits, unused }
            ScanArgs { numbers, totals, count, row }
            DenseArgs { sums, factor, matrix, scales, partials, rows, copies, rank, slabs, rounded }
            TtvArgs {
                image, vector, sums, parts, owners, carry_in, carry_out, fault, number, order, end, carried
            }
            ExpandArgs { tree, image, fault, number, order, tiles_at, columns_at, values_at, unused }
        };
        all.into()
    }

    /// The header's macros that are numbers.
    fn defines(header: &str) -> BTreeMap<&str, usize> {
        let lines = header.lines().filter_map(|line| line.strip_prefix("#define ")?.split_once(' '));
        lines.filter_map(|(name, number)| Some((name, number.trim().parse().ok()?))).collect()
    }

    /// The header's structs as C lays them out: each field at the next multiple of its alignment.
    fn in_c(header: &str) -> Vec<Layout> {
        let numbers = defines(header);
        let mut known: Vec<(Layout, usize)> = Vec::new();
        let mut lines = header.lines().map(|line| line.split("//").next().unwrap_or_default().trim());
        while let Some(line) = lines.next() {
            let Some(name) = line.strip_prefix("struct ").and_then(|line| line.strip_suffix(" {")) else {
                continue;
            };
            let (mut fields, mut at, mut widest) = (Vec::new(), 0usize, 1);
            for line in lines.by_ref().take_while(|&line| line != "};").filter(|line| !line.is_empty()) {
                let (of, field) = line.strip_suffix(';').and_then(|line| line.rsplit_once(' ')).unwrap();
                let (bytes, align) = match of {
                    "u8" => (1, 1),
                    "u32" => (4, 4),
                    "u64" => (8, 8),
                    other => {
                        let other = other.strip_prefix("struct ").unwrap();
                        let found = known.iter().find(|((name, ..), _)| name == other).unwrap();
                        (found.0.2, found.1)
                    }
                };
                let (field, count) = match field.strip_suffix(']').and_then(|field| field.split_once('[')) {
                    None => (field, 1),
                    Some((field, count)) => (field, count.parse().unwrap_or_else(|_| numbers[count])),
                };
                at = at.next_multiple_of(align);
                fields.push((field.to_owned(), at));
                (at, widest) = (at + count * bytes, widest.max(align));
            }
            known.push(((name.to_owned(), fields, at.next_multiple_of(widest)), widest));
        }
        known.into_iter().map(|(layout, _)| layout).collect()
    }

    #[test]
    fn structs_are_laid_out_as_in_c() {
        let of_c = in_c(HEADER);
        assert_eq!(of_c, in_rust());
        // What is read of the text decides.
        let swapped = HEADER
            .replace("    u32 first_block;\n    u32 number;\n", "    u32 number;\n    u32 first_block;\n");
        assert_ne!(in_c(&swapped), of_c);
    }

    #[test]
    fn constants_are_those_of_c() {
        let ours = [
            ("BLCO_ORDER_MAX", ORDER_MAX),
            ("BLCO_TILE_NNZ", TILE_NNZ),
            ("BLCO_TILE_THREADS", TILE_THREADS as usize),
            ("BLCO_SHARE", SHARE as usize),
            ("BLCO_SORTED_TILES", SORTED_TILES as usize),
            ("BLCO_ROW_THREADS", ROW_THREADS as usize),
            ("BLCO_JOIN", JOIN as usize),
            ("BLCO_SORT_THREADS", SORT_THREADS as usize),
            ("BLCO_SORT_PORTION", SORT_PORTION as usize),
            ("BLCO_DIGIT_BITS", DIGIT_BITS as usize),
            ("BLCO_DENSE_THREADS", DENSE_THREADS as usize),
            ("BLCO_DENSE_TILE", DENSE_TILE as usize),
            ("BLCO_DENSE_HALS", DENSE_HALS as usize),
            ("BLCO_TTV_THREADS", TTV_THREADS as usize),
            ("BLCO_TTV_SEGMENT", TTV_SEGMENT as usize),
        ];
        assert_eq!(defines(HEADER), BTreeMap::from(ours));
    }
}
