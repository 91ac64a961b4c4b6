//! Lists: a stretch's nonzeros sorted by blocks of rows, so that every row of a result has one writer.
//!
//! If rows rarely repeat within a group, slots save nothing: each nonzero's sum is written, then read and added by the
//! thread whose turn it is. The nonzeros of such a mode wait until a stretch of [`STRETCH_NNZ`] is complete, cut by
//! position in the store. Threads sort portions of it by blocks of rows in parallel; then one thread adds each block to
//! the result. In each stretch, blocks are cut to have about equal numbers of nonzeros.
//!
//! **Order of additions.** A row's nonzeros are added to it in linear order. A row with more than [`PIECE_NNZ`]
//! nonzeros in a stretch gets them in pieces of that many, which are added up separately, by several threads, and then
//! added to the row in order.

use super::kernel::{self, Single};
use super::rows::{AHEAD, OwnRows, touch};
use crate::backend::host::Tiles;
use crate::dense::{MatrixRef, Real};
use crate::encoding::TILE_NNZ;
use crate::error::Result;
use crate::shape::ORDER_MAX;
use crate::sys::Sys;
use rayon::prelude::*;
use std::ops::Range;

/// Nonzeros of a stretch.
pub const STRETCH_NNZ: usize = 1 << 18;
/// Nonzeros of a portion, which one thread sorts.
const PORTION_NNZ: usize = 1 << 13;
/// Nonzeros of a block, unless one row has more, and of a piece of such a row.
pub const PIECE_NNZ: usize = 1 << 11;
/// The most ranges of rows in which nonzeros are counted.
const RANGES: usize = 1 << 13;
/// Factors larger than this, in bytes, are touched ahead of use, because they may not be in a core's cache.
pub const CACHED_BYTES: usize = 1 << 20;

/// The inputs of lists.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a, T> {
    pub factors: &'a [MatrixRef<'a, T>],
    pub rank: usize,
    /// Whether products are in f64 whatever the factors are in.
    pub wide: bool,
    pub vectors: pulp::Arch,
}

/// The contributions of nonzeros to rows of a result: MTTKRP's Khatri-Rao product ([`Inputs`]) or another.
pub trait RowProduct: Copy + Send + Sync {
    /// Numbers per row of `mode`'s result.
    fn width(&self, mode: usize) -> usize;

    /// The instruction set for [`RowProduct::add`].
    fn arch(&self) -> pulp::Arch;

    /// Adds `entries` to their rows of `sums`, in order within each row.
    fn add<S: pulp::Simd>(self, simd: S, mode: usize, entries: Entries<'_>, sums: &mut [f64]);
}

/// The nonzeros of a stretch so far, and room to sort them for one mode at a time.
#[derive(Debug)]
pub struct Stretch {
    order: usize,
    nnz: usize,
    /// The rows that get their nonzeros.
    pub own: OwnRows,
    /// By tile and mode.
    indices: Vec<u32>,
    values: Vec<f64>,
    /// The smallest and the largest index of each mode.
    bounds: Vec<(u32, u32)>,
    portions: Vec<Portion>,
    /// Nonzeros of each range of rows.
    totals: Vec<u32>,
    /// The block of each range.
    block_of: Vec<u16>,
    /// Sums of pieces.
    pieces: Vec<f64>,
}

/// A part of a stretch, sorted by blocks.
#[derive(Debug)]
struct Portion {
    /// Nonzeros of each range of rows.
    counts: Vec<u16>,
    /// Where each block ends.
    ends: Vec<u16>,
    /// Each nonzero's row, from its block's first.
    places: Vec<u32>,
    /// Its indices in the other modes, one mode after the other.
    columns: Vec<u32>,
    values: Vec<f64>,
}

/// Rows that one thread adds to.
#[derive(Clone, Copy, Debug)]
struct RowBlock {
    first_row: u32,
    nnz: usize,
    /// Whether it has a single row.
    is_row: bool,
}

/// The most blocks: any two neighbors have more nonzeros than a piece, except around a block that one range fills.
const BLOCKS_MAX: usize = 4 * STRETCH_NNZ / PIECE_NNZ + 2;

/// Rows of sums for pieces: each block of one row leaves at most one incomplete piece.
const PIECES_MAX: usize = 2 * STRETCH_NNZ / PIECE_NNZ;

impl Stretch {
    /// Room for the nonzeros of a tensor of `order` with `nnz` nonzeros, and for pieces of `rank` numbers.
    pub fn new(sys: &Sys, order: usize, nnz: u64, rank: usize) -> Result<Self> {
        let (stretch, portions) = Self::sizes(nnz);
        let portion = |_| {
            Ok(Portion {
                counts: sys.vec(0, RANGES)?,
                ends: sys.vec(0, BLOCKS_MAX)?,
                places: sys.vec(0, PORTION_NNZ)?,
                columns: sys.vec(0, PORTION_NNZ * (order - 1))?,
                values: sys.vec(0.0, PORTION_NNZ)?,
            })
        };
        Ok(Self {
            order,
            nnz: 0,
            own: OwnRows::ALL,
            indices: sys.vec(0, stretch * order)?,
            values: sys.vec(0.0, stretch)?,
            bounds: vec![(u32::MAX, 0); order],
            portions: (0..portions).map(portion).collect::<Result<_>>()?,
            totals: sys.vec(0, RANGES)?,
            block_of: sys.vec(0, RANGES)?,
            pieces: sys.vec(0.0, PIECES_MAX * rank)?,
        })
    }

    /// The nonzeros and portions that fit.
    fn sizes(nnz: u64) -> (usize, usize) {
        let nnz = usize::try_from(nnz).unwrap_or(STRETCH_NNZ).clamp(1, STRETCH_NNZ);
        (nnz.next_multiple_of(TILE_NNZ), nnz.div_ceil(PORTION_NNZ))
    }

    /// Bytes of memory that it takes.
    pub fn bytes(order: usize, nnz: u64, rank: usize) -> u64 {
        let (stretch, portions) = Self::sizes(nnz);
        let portion = 2 * (RANGES + BLOCKS_MAX) + PORTION_NNZ * (4 * order + 8);
        (stretch * (4 * order + 8) + portions * portion + 6 * RANGES + 8 * PIECES_MAX * rank) as u64
    }

    /// Discards the rest of a pass that ended early.
    pub fn clear(&mut self) {
        self.nnz = 0;
        self.bounds.fill((u32::MAX, 0));
    }

    /// Takes nonzeros of a batch from tile `from` on, as many as fit. Returns the next tile, and whether the stretch is
    /// complete.
    pub fn take(&mut self, batch: &Tiles<'_>, from: usize) -> (usize, bool) {
        let (order, at) = (self.order, self.nnz / TILE_NNZ);
        let tiles = from..batch.tiles().min(from + STRETCH_NNZ / TILE_NNZ - at);
        // The first tile may continue one that began in the previous chunk.
        let begun = |t: usize| if t == from { self.nnz % TILE_NNZ } else { 0 };
        let rooms = self
            .indices
            .par_chunks_exact_mut(order * TILE_NNZ)
            .zip(self.values.par_chunks_exact_mut(TILE_NNZ));
        rooms.skip(at).zip(tiles.clone()).for_each(|((indices, values), t)| {
            let (tile, begun) = (batch.tile(t), begun(t));
            for m in 0..order {
                indices[m * TILE_NNZ + begun..][..tile.nnz].copy_from_slice(tile.column(m));
            }
            values[begun..][..tile.nnz].copy_from_slice(tile.values);
        });
        for t in tiles.clone() {
            self.nnz += batch.tile(t).nnz;
            for (m, (low, high)) in self.bounds.iter_mut().enumerate() {
                let (first, last) = batch.range(t, m);
                (*low, *high) = ((*low).min(first), (*high).max(last));
            }
        }
        (tiles.end, self.nnz == STRETCH_NNZ)
    }

    /// Adds the stretch's contributions to `mode`. Its result is `sums`, with rows of `product`'s width for the mode,
    /// which must not exceed the width that this was made for.
    pub fn add(&mut self, mode: usize, product: impl RowProduct, sums: &mut [f64]) {
        if self.nnz == 0 {
            return;
        }
        let blocks = self.sort(mode);
        let (rank, portions) = (product.width(mode), &self.portions[..self.nnz.div_ceil(PORTION_NNZ)]);
        let part = |block, range| ListWork { mode, product, portions, block, range };
        let (mut tasks, mut rows) = (Vec::new(), Vec::new());
        let (mut pieces, mut rest, mut row) = (&mut self.pieces[..], &mut *sums, 0);
        for (b, block) in blocks.iter().enumerate() {
            let end = blocks.get(b + 1).map_or(rest.len() / rank + row, |next| next.first_row as usize);
            let first = block.first_row as usize;
            let (_, from) = rest.split_at_mut((first - row) * rank);
            let (of_block, behind) = from.split_at_mut((end - first) * rank);
            (rest, row) = (behind, end);
            if !block.is_row || block.nnz <= PIECE_NNZ {
                if block.nnz > 0 {
                    tasks.push((of_block, part(b, 0..block.nnz)));
                }
                continue;
            }
            for from in (0..block.nnz).step_by(PIECE_NNZ) {
                let (piece, others) = pieces.split_at_mut(rank);
                pieces = others;
                tasks.push((piece, part(b, from..block.nnz.min(from + PIECE_NNZ))));
            }
            rows.push((first, block.nnz.div_ceil(PIECE_NNZ)));
        }
        tasks.into_par_iter().for_each(|(sums, work)| work.run(sums));
        let mut pieces = self.pieces.chunks_exact_mut(rank);
        for (row, count) in rows {
            for piece in pieces.by_ref().take(count) {
                let sums = sums[row * rank..][..rank].iter_mut();
                sums.zip(piece).for_each(|(sum, x)| *sum += std::mem::take(x));
            }
        }
    }

    /// Sorts every portion by blocks of rows of `mode`.
    fn sort(&mut self, mode: usize) -> Vec<RowBlock> {
        /// Where the nonzeros of other rows go. If a portion has any, its own ones do not reach this place.
        const NOWHERE: u16 = (1 << PORTION_NNZ.ilog2()) - 1;
        let Self { order, nnz, own, indices, values, bounds, portions, totals, block_of, .. } = self;
        let (order, nnz, own, (low, high)) = (*order, *nnz, *own, bounds[mode]);
        let shift = (u32::BITS - (high - low).leading_zeros()).saturating_sub(RANGES.ilog2());
        let ranges = ((high - low) >> shift) as usize + 1;
        let range_of = |row: u32| ((row - low) >> shift) as usize % RANGES;
        let tiles_of = |portion: usize| {
            let of_portion = portion * PORTION_NNZ..nnz.min((portion + 1) * PORTION_NNZ);
            let (indices, values) = (&*indices, &*values);
            of_portion.clone().step_by(TILE_NNZ).map(move |from| {
                let values = &values[from..of_portion.end.min(from + TILE_NNZ)];
                (&indices[from * order..][..order * TILE_NNZ], values)
            })
        };
        let portions = &mut portions[..nnz.div_ceil(PORTION_NNZ)];
        portions.par_iter_mut().enumerate().for_each(|(s, portion)| {
            portion.counts[..ranges].fill(0);
            for (indices, values) in tiles_of(s) {
                for &row in &indices[mode * TILE_NNZ..][..values.len()] {
                    portion.counts[range_of(row)] += u16::from(own.has(row));
                }
            }
        });
        let totals = &mut totals[..ranges];
        totals.fill(0);
        for portion in &*portions {
            totals.iter_mut().zip(&portion.counts).for_each(|(total, &count)| *total += u32::from(count));
        }
        let blocks = blocks(totals, low, shift, block_of);
        let first_rows: Vec<u32> = blocks.iter().map(|block| block.first_row).collect();
        let (block_of, first_rows) = (&block_of[..ranges], &first_rows[..]);
        portions.par_iter_mut().enumerate().for_each(|(s, portion)| {
            let Portion { counts, ends, places, columns, values: sorted } = portion;
            ends[..blocks.len()].fill(0);
            block_of.iter().zip(&*counts).for_each(|(&block, &count)| ends[block as usize] += count);
            let mut end = 0;
            for of_block in &mut ends[..blocks.len()] {
                (*of_block, end) = (end, end + *of_block);
            }
            for (indices, values) in tiles_of(s) {
                let column = |m: usize| &indices[m * TILE_NNZ..][..values.len()];
                let mut at = [NOWHERE; TILE_NNZ];
                for ((at, &row), value) in at.iter_mut().zip(column(mode)).zip(values) {
                    if !own.has(row) {
                        continue;
                    }
                    let block = block_of[range_of(row)] as usize;
                    *at = ends[block];
                    ends[block] += 1;
                    places[*at as usize] = row - first_rows[block];
                    sorted[*at as usize] = *value;
                }
                let others = (0..order).filter(|&m| m != mode);
                for (m, to) in others.zip(columns.chunks_exact_mut(PORTION_NNZ)) {
                    at.iter().zip(column(m)).for_each(|(&at, &index)| to[at as usize] = index);
                }
            }
        });
        blocks
    }
}

/// Cuts ranges of rows, with `totals` nonzeros, into blocks, and records the block of each range. The first range
/// begins at row `low`; each has 2^`shift` rows.
fn blocks(totals: &[u32], low: u32, shift: u32, block_of: &mut [u16]) -> Vec<RowBlock> {
    let mut blocks: Vec<RowBlock> = Vec::new();
    let mut is_full = true;
    for (range, (&total, block_of)) in (0u32..).zip(totals.iter().zip(block_of)) {
        let (nnz, before) = (total as usize, blocks.last().map_or(0, |block| block.nnz));
        if is_full || before + nnz > PIECE_NNZ {
            blocks.push(RowBlock {
                first_row: low + (range << shift),
                nnz: 0,
                is_row: shift == 0 && nnz > PIECE_NNZ,
            });
        }
        is_full = nnz > PIECE_NNZ;
        let open = blocks.len() - 1;
        blocks[open].nnz += nnz;
        *block_of = u16::try_from(open).expect("a stretch has fewer blocks");
    }
    blocks
}

/// Adds some nonzeros of a block to sums. Rows are numbered from the block's first.
struct ListWork<'a, P> {
    mode: usize,
    product: P,
    portions: &'a [Portion],
    block: usize,
    range: Range<usize>,
}

/// Some nonzeros, sorted.
#[derive(Clone, Copy, Debug)]
pub struct Entries<'a> {
    /// Each one's row, relative to the first row of sums.
    pub places: &'a [u32],
    /// Its indices in the other modes, ascending.
    pub columns: [&'a [u32]; ORDER_MAX],
    /// Its value.
    pub values: &'a [f64],
}

impl Entries<'_> {
    fn part(&self, range: Range<usize>) -> Self {
        let columns = self.columns.map(|column| column.get(range.clone()).unwrap_or(&[]));
        Self { places: &self.places[range.clone()], columns, values: &self.values[range] }
    }
}

impl<'a, P: RowProduct> ListWork<'a, P> {
    /// The block's nonzeros in each portion.
    fn entries(&self) -> impl Iterator<Item = Entries<'a>> + use<'a, P> {
        let block = self.block;
        let (mut skip, mut left) = (self.range.start, self.range.len());
        self.portions.iter().map(move |portion| {
            let end = portion.ends[block] as usize;
            let begin = if block == 0 { 0 } else { portion.ends[block - 1] as usize };
            let from = end.min(begin + skip);
            let to = end.min(from + left);
            skip -= from - begin;
            left -= to - from;
            let mut columns = [&[][..]; ORDER_MAX];
            for (column, all) in columns.iter_mut().zip(portion.columns.chunks_exact(PORTION_NNZ)) {
                *column = &all[from..to];
            }
            Entries { places: &portion.places[from..to], columns, values: &portion.values[from..to] }
        })
    }

    fn run(self, sums: &mut [f64]) {
        let width = self.product.width(self.mode);
        if self.range.len() <= PIECE_NNZ {
            return self.entries().for_each(|entries| self.add(entries, sums));
        }
        // The block has several rows, and one of them may have more nonzeros than a piece.
        let mut counts = vec![0; sums.len() / width];
        self.entries().flat_map(|entries| entries.places).for_each(|&row| counts[row as usize] += 1);
        let mut pieces: Vec<Piece> =
            (0..).zip(counts).filter(|&(_, n)| n > PIECE_NNZ).map(Piece::of).collect();
        for entries in self.entries() {
            let mut from = 0;
            for (i, row) in entries.places.iter().enumerate() {
                if let Some(piece) = pieces.iter_mut().find(|piece| piece.row == *row) {
                    self.add(entries.part(from..i), sums);
                    from = i + 1;
                    piece.push(entries.part(i..from));
                    if piece.values.len() == PIECE_NNZ {
                        self.add_piece(piece, sums);
                    }
                }
            }
            self.add(entries.part(from..entries.places.len()), sums);
        }
        for piece in &mut pieces {
            self.add_piece(piece, sums);
        }
    }

    /// Adds the sum of a piece's nonzeros to its row and clears the piece.
    fn add_piece(&self, piece: &mut Piece, sums: &mut [f64]) {
        let mut sum = vec![0.0; self.product.width(self.mode)];
        self.add(piece.entries(), &mut sum);
        let row = sums[piece.row as usize * sum.len()..].iter_mut();
        row.zip(sum).for_each(|(sum, x)| *sum += x);
        piece.clear();
    }

    fn add(&self, entries: Entries<'_>, sums: &mut [f64]) {
        self.product.arch().dispatch(AddEntries { mode: self.mode, product: self.product, entries, sums });
    }
}

/// Nonzeros of one row that wait until they make a piece.
#[derive(Debug)]
struct Piece {
    row: u32,
    columns: [Vec<u32>; ORDER_MAX],
    values: Vec<f64>,
}

impl Piece {
    fn of((row, _): (u32, usize)) -> Self {
        Self { row, columns: Default::default(), values: Vec::new() }
    }

    fn push(&mut self, entries: Entries<'_>) {
        self.values.extend(entries.values);
        self.columns.iter_mut().zip(entries.columns).for_each(|(to, from)| to.extend(from));
    }

    fn entries(&self) -> Entries<'_> {
        let places = &[0; PIECE_NNZ][..self.values.len()];
        Entries { places, columns: self.columns.each_ref().map(|column| &column[..]), values: &self.values }
    }

    fn clear(&mut self) {
        self.values.clear();
        self.columns.iter_mut().for_each(Vec::clear);
    }
}

/// Adds nonzeros to their rows of sums.
struct AddEntries<'a, P> {
    mode: usize,
    product: P,
    entries: Entries<'a>,
    sums: &'a mut [f64],
}

/// Compiled for the machine's vectors. `backend::host` explains why it is not a closure.
impl<P: RowProduct> pulp::WithSimd for AddEntries<'_, P> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, simd: S) {
        self.product.add(simd, self.mode, self.entries, self.sums);
    }
}

impl<T: Real> RowProduct for Inputs<'_, T> {
    fn width(&self, _: usize) -> usize {
        self.rank
    }

    fn arch(&self) -> pulp::Arch {
        self.vectors
    }

    #[inline(always)]
    fn add<S: pulp::Simd>(self, simd: S, mode: usize, entries: Entries<'_>, sums: &mut [f64]) {
        let Inputs { factors: matrices, rank, wide, .. } = self;
        let (others, mut factors) = (matrices.len() - 1, [&[][..]; ORDER_MAX]);
        let of_others = (0..matrices.len()).filter(|&m| m != mode);
        factors.iter_mut().zip(of_others).for_each(|(factor, m)| *factor = matrices[m].data());
        for from in (0..entries.values.len()).step_by(AHEAD) {
            let Entries { places, columns, values } =
                entries.part(from..entries.values.len().min(from + AHEAD));
            for (factor, column) in factors.iter().zip(columns).take(others) {
                if size_of_val(*factor) > CACHED_BYTES {
                    touch(factor, column, rank);
                }
            }
            if size_of_val(sums) > CACHED_BYTES {
                touch(sums, places, rank);
            }
            let list = Single { values, rank, stride: rank, places, columns, factors, before: mode, others };
            if wide {
                kernel::one_mode_wide(&list, sums);
            } else {
                kernel::one_mode(simd, &list, sums);
            }
        }
    }
}
