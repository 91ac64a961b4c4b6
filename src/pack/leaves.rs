//! The leaf mode of each nonzero, where each goes to the tree along its longest fiber (MM-CSF; formats-spec/formats.md).
//!
//! In memory the fibers of all modes are there at once ([`Assigning::in_memory`]). Lengths of the whole tensor's fibers can be found in no
//! more memory than sorting takes ([`Assigning::by_sorting`]): coordinates are sorted so that the fibers along one mode are consecutive,
//! each notes the length of its fiber where none along the modes before is longer, and is sorted for the next mode.

use super::PackWatch;
use super::budget::{BATCH_NNZ, Budget, assigning_bytes};
use super::resort::{Resort, for_each_piece, rekey};
use super::runs::{SortedRuns, write_frames};
use super::scratch::{ScratchDir, SpillReport};
use super::spill::SpillReader;
use super::spilled::RUN;
use crate::error::{Error, Result};
use crate::format::mmcsf::{Assign, Assigner, Fibers};
use crate::linear::{BitLayout, Key, Nonzero};
use crate::sys::Sys;
use bytesize::ByteSize;
use rayon::prelude::*;
use std::path::Path;

/// Nonzeros of a fiber that wait until its length is known, at most.
const WAITING_NNZ: usize = 1 << 16;

/// Leaf modes, in the order of the nonzeros that they were found from.
#[derive(Debug)]
pub enum Leaves {
    /// Of each nonzero.
    InMemory(Vec<u8>),
    /// A run with all coordinates once; the values are the modes.
    Spilled(Box<ScratchDir>),
}

impl Default for Leaves {
    fn default() -> Self {
        Self::InMemory(Vec::new())
    }
}

impl Leaves {
    /// Bytes of memory.
    pub fn bytes(&self) -> u64 {
        if let Self::InMemory(leaves) = self { leaves.len() as u64 } else { 0 }
    }

    /// What is on disk.
    pub fn spilled(&self) -> SpillReport {
        if let Self::Spilled(scratch) = self { scratch.report() } else { SpillReport::default() }
    }

    /// Reads them from the first on.
    pub fn read<K: Key>(&self) -> Result<LeafReader<'_, K>> {
        let (held, spilled): (&[u8], _) = match self {
            Self::InMemory(leaves) => (leaves, None),
            Self::Spilled(scratch) => (&[], scratch.runs.first().map(|run| scratch.open(run)).transpose()?),
        };
        Ok(LeafReader { held, spilled, ahead: Vec::new(), at: 0, read: Vec::new() })
    }
}

/// Leaf modes that follow one another.
#[derive(Debug)]
pub struct LeafReader<'a, K> {
    held: &'a [u8],
    spilled: Option<SpillReader>,
    /// A frame of the run, and the place in it of the last coordinates that were asked for.
    ahead: Vec<Nonzero<K>>,
    at: usize,
    read: Vec<u8>,
}

impl<K: Key> LeafReader<'_, K> {
    /// Those of the nonzeros that come next.
    pub fn next(&mut self, nonzeros: &[Nonzero<K>]) -> Result<&[u8]> {
        let Self { held, spilled, ahead, at, read } = self;
        let Some(spilled) = spilled else {
            let (next, rest) = held.split_at(nonzeros.len().min(held.len()));
            *held = rest;
            return Ok(next);
        };
        read.clear();
        for nonzero in nonzeros {
            while ahead.get(*at).is_none_or(|of| of.linear != nonzero.linear) {
                *at += 1;
                if *at >= ahead.len() {
                    *at = 0;
                    ahead.clear();
                    if !spilled.read_run(ahead)? {
                        return Err(spilled.changed());
                    }
                }
            }
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a mode")]
            read.push(ahead[*at].value as u8);
        }
        Ok(read)
    }
}

/// Nonzeros to be assigned.
pub struct Assigning<'a, K> {
    /// For files, memory and cancelling.
    pub sys: &'a Sys,
    /// All of them, in the order of `layout`.
    pub sorted: &'a SortedRuns<K>,
    /// What they are sorted by.
    pub layout: &'a BitLayout,
    /// For each mode, a layout in which its bits are lowest.
    pub by_leaf: &'a [BitLayout],
    /// How many come, unless temporary files were changed.
    pub total: u64,
}

impl<K: Key> Assigning<'_, K> {
    /// Bytes of memory that it takes to assign them in memory.
    pub fn bytes(&self) -> u64 {
        assigning_bytes::<K>(self.by_leaf.len(), self.total)
    }

    /// Whether numbers of nonzeros fit where memory holds them.
    pub fn is_countable(&self) -> bool {
        self.total <= u32::MAX.into()
    }

    /// The bits of `mode`, which are the lowest ones of its layout.
    fn leaf_bits(&self, mode: usize) -> u32 {
        let bits = self.by_leaf[mode].bit_modes().iter().filter(|of| usize::from(**of) == mode).count();
        u32::try_from(bits).unwrap_or(u32::MAX)
    }

    /// Assigns them in [`Assigning::bytes`] beside what `reading` takes. Returns how many there are, and no leaf modes if that is not the
    /// total.
    pub fn in_memory(&self, assign: Assign, reading: Budget) -> Result<(u64, Leaves)> {
        let nnz = usize::try_from(self.total).unwrap_or(usize::MAX);
        let mut come = 0;
        // The value of each is its number.
        let mut numbered: Vec<Nonzero<K>> = Vec::new();
        self.sys.reserve(&mut numbered, nnz, nnz)?;
        self.sorted.for_each_slice_within(reading, |slice| {
            self.sys.check_cancelled()?;
            let from = numbered.len();
            come += slice.len() as u64;
            if come > self.total {
                return Ok(());
            }
            let number =
                |(at, nonzero): (usize, &Nonzero<K>)| Nonzero { value: (from + at) as f64, ..*nonzero };
            numbered.par_extend(slice.par_iter().enumerate().map(number));
            Ok(())
        })?;
        if come != self.total {
            return Ok((come, Leaves::default()));
        }
        let mut layout = self.layout;
        let mut fibers = Vec::with_capacity(self.by_leaf.len());
        for (mode, by_leaf) in self.by_leaf.iter().enumerate() {
            self.sys.check_cancelled()?;
            rekey(&mut numbered, layout, by_leaf);
            layout = by_leaf;
            fibers.push(Fibers::of(&numbered, self.leaf_bits(mode)));
        }
        drop(numbered);
        let mut assigner = Assigner::new(assign, fibers);
        let mut leaves = Vec::new();
        self.sys.reserve(&mut leaves, nnz, nnz)?;
        for from in (0..nnz).step_by(BATCH_NNZ) {
            self.sys.check_cancelled()?;
            assigner.choose(from..nnz.min(from + BATCH_NNZ), &mut leaves);
        }
        Ok((come, Leaves::InMemory(leaves)))
    }

    /// Assigns them by the lengths of the whole tensor's fibers, with files in `parent`; reading and sorting take `half` each. Returns how
    /// many there are, and no leaf modes if that is not the total, with what went to disk.
    pub fn by_sorting(
        &self,
        parent: &Path,
        half: Budget,
        watch: PackWatch<'_>,
    ) -> Result<(u64, Leaves, SpillReport)> {
        self.by_sorting_with(parent, half, watch, WAITING_NNZ)
    }

    /// The same, where at most `waiting` nonzeros of a fiber wait.
    fn by_sorting_with(
        &self,
        parent: &Path,
        half: Budget,
        watch: PackWatch<'_>,
        waiting: usize,
    ) -> Result<(u64, Leaves, SpillReport)> {
        let (sys, order) = (self.sys, self.by_leaf.len());
        let mut spilled = SpillReport::default();
        let may_be_long = |mode: usize| self.leaf_bits(mode) > waiting.ilog2();
        let passes = order + 2 + (0..order).filter(|&mode| may_be_long(mode)).count();
        let mut done = Progress { watch, total: self.total, passes: passes as u64, done: 0 };
        let mut come = 0;
        let mut first = Resort::new(sys, parent, half, self.layout, &self.by_leaf[0]);
        let mut last = None;
        for_each_piece(sys, self.sorted, half, |piece| {
            come += piece.len() as u64;
            done.add(piece);
            // Nonzeros with equal coordinates count once.
            let mut distinct: Vec<Nonzero<K>> =
                piece.iter().map(|of| Nonzero { value: 0.0, ..*of }).collect();
            distinct.dedup_by_key(|nonzero| nonzero.linear);
            let repeats = last.is_some() && last == distinct.first().map(|nonzero| nonzero.linear);
            last = distinct.last().map(|nonzero| nonzero.linear);
            first.push(&distinct[usize::from(repeats)..])
        })?;
        if come != self.total {
            return Ok((come, Leaves::default(), spilled));
        }
        let mut coordinates = first.finish()?;
        spilled.add(SpillReport::default(), coordinates.spilled());
        let mut fibers = Vec::with_capacity(order);
        for mode in 0..order {
            let bits = self.leaf_bits(mode);
            let long = if may_be_long(mode) {
                long_fibers(sys, &coordinates, half, (bits, waiting), &mut done)?
            } else {
                Vec::new()
            };
            let mut along = AlongMode::new(mode, bits, waiting, long);
            let next = self.by_leaf.get(mode + 1).unwrap_or(self.layout);
            let mut sorting = Resort::new(sys, parent, half, &self.by_leaf[mode], next);
            for_each_piece(sys, &coordinates, half, |piece| {
                done.add(piece);
                along.push(piece, |measured| sorting.push(measured))
            })?;
            along.finish(|measured| sorting.push(measured))?;
            fibers.push(along.fibers);
            let sorted = sorting.finish()?;
            spilled.add(coordinates.spilled(), sorted.spilled());
            coordinates = sorted;
        }
        // All modes have the same nonzeros, so fewer fibers means longer ones.
        let mut ranked: Vec<usize> = (0..order).collect();
        ranked.sort_by_key(|&mode| (fibers[mode], mode));
        let mut scratch = ScratchDir::passing(sys, parent);
        let mut writer = scratch.create(RUN)?;
        for_each_piece(sys, &coordinates, half, |piece| {
            done.add(piece);
            let leaf = |nonzero: &Nonzero<K>| Nonzero {
                value: Longest::of(nonzero.value).first_of(&ranked) as f64,
                ..*nonzero
            };
            let leaves: Vec<Nonzero<K>> = piece.par_iter().map(leaf).collect();
            write_frames(&mut writer, &leaves, &half)
        })?;
        scratch.add_run(writer.finish(), Vec::new())?;
        spilled.add(coordinates.spilled(), scratch.report());
        Ok((come, Leaves::Spilled(Box::new(scratch)), spilled))
    }

    /// The error where assigning them takes so much that `memory` would have to be larger by `more`.
    pub fn too_much(&self, more: u64) -> Error {
        let (takes, more) = (ByteSize(self.bytes()), ByteSize::mib((more >> 20) + 1));
        let what = format!("takes {takes} of `memory`; choose `assign` static, or give {more} more");
        Error::request(format!("assigning nonzeros by the lengths of their fibers {what}"))
    }
}

/// How far several passes over all nonzeros are.
struct Progress<'a> {
    watch: PackWatch<'a>,
    total: u64,
    passes: u64,
    done: u64,
}

impl Progress<'_> {
    fn add<K>(&mut self, piece: &[Nonzero<K>]) {
        self.done += piece.len() as u64;
        (self.watch)("assigning", (self.done / self.passes).min(self.total), Some(self.total));
    }
}

/// The length of the longest fibers of some coordinates, and the modes along which they are, as a value: less than 2^41, so exact.
#[derive(Clone, Copy)]
struct Longest {
    length: u64,
    modes: u64,
}

impl Longest {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "made by `value`")]
    fn of(value: f64) -> Self {
        let bits = value as u64;
        Self { length: bits >> 8, modes: bits & 0xff }
    }

    fn value(self) -> f64 {
        (self.length << 8 | self.modes) as f64
    }

    /// With a fiber of `length` along `mode`.
    fn along(self, mode: usize, length: u64) -> Self {
        let modes = if length == self.length { self.modes } else { 0 };
        if length < self.length { self } else { Self { length, modes: modes | 1 << mode } }
    }

    /// The first of `ranked` along which one is.
    fn first_of(self, ranked: &[usize]) -> usize {
        ranked.iter().copied().find(|mode| self.modes >> mode & 1 == 1).unwrap_or_default()
    }
}

/// What the fiber of a nonzero is known by, along a mode whose `leaf_bits` are the lowest.
fn fiber<K: Key>(nonzero: &Nonzero<K>, leaf_bits: u32) -> u128 {
    nonzero.linear.widen().checked_shr(leaf_bits).unwrap_or(0)
}

/// The lengths of fibers of more than `waiting` nonzeros, in order.
fn long_fibers<K: Key>(
    sys: &Sys,
    sorted: &SortedRuns<K>,
    reading: Budget,
    (leaf_bits, waiting): (u32, usize),
    done: &mut Progress<'_>,
) -> Result<Vec<u64>> {
    let (mut long, mut open, mut length) = (Vec::new(), None, 0);
    let mut close = |length: u64| {
        if length > waiting as u64 {
            long.push(length);
        }
    };
    for_each_piece(sys, sorted, reading, |piece| {
        done.add(piece);
        for nonzero in piece {
            let next = Some(fiber(nonzero, leaf_bits));
            if open != next {
                close(std::mem::take(&mut length));
                open = next;
            }
            length += 1;
        }
        Ok(())
    })?;
    close(length);
    Ok(long)
}

/// Notes the lengths of the fibers along one mode, which are consecutive.
struct AlongMode<K> {
    mode: usize,
    leaf_bits: u32,
    /// Nonzeros of a fiber that wait, at most.
    waiting_most: usize,
    /// Fibers so far.
    fibers: u64,
    /// Lengths of the long fibers that are still to come; and of the open fiber, if it is long.
    long: std::vec::IntoIter<u64>,
    open_length: Option<u64>,
    /// What the open fiber is known by.
    open: Option<u128>,
    /// What is handed over next; of the open fiber, from `from` on.
    waiting: Vec<Nonzero<K>>,
    from: usize,
}

impl<K: Key> AlongMode<K> {
    fn new(mode: usize, leaf_bits: u32, waiting_most: usize, long: Vec<u64>) -> Self {
        let (long, open_length, open) = (long.into_iter(), None, None);
        Self {
            mode,
            leaf_bits,
            waiting_most,
            fibers: 0,
            long,
            open_length,
            open,
            waiting: Vec::new(),
            from: 0,
        }
    }

    /// Takes the next nonzeros, and hands over those whose fiber's length is known.
    fn push(
        &mut self,
        nonzeros: &[Nonzero<K>],
        sink: impl FnOnce(&[Nonzero<K>]) -> Result<()>,
    ) -> Result<()> {
        for &next in nonzeros {
            let of = Some(fiber(&next, self.leaf_bits));
            if self.open != of {
                self.close();
                (self.open, self.fibers) = (of, self.fibers + 1);
            } else if self.waiting.len() - self.from == self.waiting_most {
                let length = *self.open_length.get_or_insert_with(|| self.long.next().unwrap_or_default());
                self.note(length);
            }
            self.waiting.push(next);
        }
        sink(&self.waiting[..self.from])?;
        self.waiting.drain(..self.from);
        self.from = 0;
        Ok(())
    }

    /// The open fiber has ended.
    fn close(&mut self) {
        let length = self.open_length.take().unwrap_or((self.waiting.len() - self.from) as u64);
        self.note(length);
    }

    /// What waits is in a fiber of this length.
    fn note(&mut self, length: u64) {
        for nonzero in &mut self.waiting[self.from..] {
            nonzero.value = Longest::of(nonzero.value).along(self.mode, length).value();
        }
        self.from = self.waiting.len();
    }

    /// Hands over the last ones.
    fn finish(&mut self, sink: impl FnOnce(&[Nonzero<K>]) -> Result<()>) -> Result<()> {
        debug_assert!(self.long.as_slice().is_empty(), "all long fibers have come");
        self.close();
        sink(&self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coo::{Batch, Extent};
    use crate::format::mmcsf::scheme;
    use crate::linear::Wide;
    use crate::pack::runs::Runs;
    use crate::random::Counter;
    use crate::shape::Shape;

    /// The leaf modes of a tensor with repeated coordinates and uneven fibers: in memory, and by sorting with this memory, and this many
    /// nonzeros of a fiber that wait.
    fn both<K: Key>(dims: &[u64], nnz: u64, memory: u64, waiting: usize) -> [Vec<u8>; 2] {
        let dir = tempfile::tempdir().unwrap();
        let (sys, shape) = (Sys::default(), Shape::new(dims).unwrap());
        let layout = BitLayout::new(&shape);
        let random: Vec<Counter> = (0..dims.len() as u64).map(|stream| Counter::new(nnz, stream)).collect();
        // Small indices are more frequent, and one in three nonzeros repeats the coordinates before it.
        let index = |m: usize, i: u64| {
            let bits = random[m].bits(i - u64::from(i % 3 == 2));
            u32::try_from(bits % dims[m] % ((bits >> 40) % dims[m] + 1)).unwrap()
        };
        let indices = (0..nnz).flat_map(|i| (0..dims.len()).map(move |m| (m, i))).map(|(m, i)| index(m, i));
        let batch = Batch { indices: indices.collect(), values: (0..nnz).map(|i| (i % 5) as f64).collect() };
        let budget = Budget::new(memory, 0, 0);
        let mut runs = Runs::<K>::new(&sys, budget, ScratchDir::passing(&sys, dir.path()), &layout);
        runs.push(batch).unwrap();
        runs.drained(&Extent { dims: dims.to_vec(), nnz }).unwrap();
        let sorted = runs.sort().unwrap();
        let plans = scheme(&shape).partitions;
        let by_leaf: Vec<BitLayout> = plans.iter().map(|plan| plan.format.bit_layout(&shape)).collect();
        let (sys, sorted, layout) = (&sys, &sorted, &layout);
        let assigning = Assigning { sys, sorted, layout, by_leaf: &by_leaf, total: nnz };
        let all = |(come, leaves): (u64, Leaves)| {
            assert_eq!(come, nnz);
            let mut reader = leaves.read::<K>().unwrap();
            let mut all = Vec::new();
            for_each_piece(sys, sorted, budget, |piece| {
                all.extend_from_slice(reader.next(piece)?);
                Ok(())
            })
            .unwrap();
            all
        };
        let in_memory = assigning.in_memory(Assign::Static, budget).unwrap();
        let half = budget.half();
        let by_sorting = assigning.by_sorting_with(dir.path(), half, &|_, _, _| {}, waiting).unwrap();
        assert_eq!(by_sorting.2.bytes > 0, nnz > 0);
        let both = [all(in_memory), all((by_sorting.0, by_sorting.1))];
        let short = Assigning { total: nnz + 1, ..assigning };
        assert_eq!(short.by_sorting(dir.path(), half, &|_, _, _| {}).unwrap().0, nnz);
        both
    }

    #[test]
    fn sorting_finds_the_leaf_modes_that_memory_does() {
        let mut various = 0;
        for dims in [
            &[4000, 700][..],
            &[30, 50, 400],
            &[3, 90_000, 5],
            &[9, 4, 11, 60],
            &[50, 3, 80, 2, 30],
            &[1, 500, 1, 90],
        ] {
            for (nnz, memory, waiting) in
                [(0, 0, 8), (1, 0, 8), (40_000, 0, 1), (40_000, 1 << 21, 8), (5000, 1 << 30, 1 << 16)]
            {
                let [in_memory, by_sorting] = both::<u64>(dims, nnz, memory, waiting);
                assert!(in_memory == by_sorting, "{dims:?}, {nnz} nonzeros, {memory} bytes");
                various += usize::from(in_memory.iter().any(|leaf| *leaf != in_memory[0]));
            }
        }
        assert!(various >= 9, "{various} tensors with several leaf modes");
        let [in_memory, by_sorting] = both::<Wide>(&[1 << 30, 20, 1 << 31, 1 << 20], 20_000, 0, 4);
        assert!(in_memory == by_sorting);
    }

    /// Fibers of about as many nonzeros as wait, and of twice as many, however they come.
    #[test]
    fn fibers_are_measured_wherever_pieces_end() {
        const WAITING: usize = 4;
        let lengths = [1, 3, 4, 5, 2, 8, 9, 4, 1, 12];
        let fibers = || (0u64..).zip(lengths);
        let nonzeros: Vec<Nonzero<u64>> = fibers()
            .flat_map(|(f, length)| (0..length).map(move |i| Nonzero { linear: f << 5 | i, value: 0.0 }))
            .collect();
        let long = lengths.into_iter().filter(|&length| length > WAITING as u64).collect::<Vec<_>>();
        let found = long_fibers(
            &Sys::default(),
            &SortedRuns::InMemory(nonzeros.clone()),
            Budget::new(0, 0, 0),
            (5, WAITING),
            &mut Progress { watch: &|_, _, _| {}, total: 0, passes: 1, done: 0 },
        );
        assert_eq!(found.unwrap(), long);
        for piece in [1, 2, 3, 7, 100] {
            let mut along = AlongMode::new(2, 5, WAITING, long.clone());
            let mut all = Vec::new();
            let mut sink = |some: &[Nonzero<u64>]| {
                all.extend(some.iter().map(|nonzero| (nonzero.linear, Longest::of(nonzero.value).length)));
                Ok(())
            };
            nonzeros.chunks(piece).try_for_each(|some| along.push(some, &mut sink)).unwrap();
            along.finish(&mut sink).unwrap();
            let wanted = fibers().flat_map(|(f, length)| (0..length).map(move |i| (f << 5 | i, length)));
            assert!(all.iter().copied().eq(wanted), "pieces of {piece}: {all:?}");
            assert_eq!(along.fibers, lengths.len() as u64);
        }
    }

    /// Lengths up to that of the longest mode, and all modes, fit a value.
    #[test]
    fn the_longest_fibers_fit_a_value() {
        let most = Longest { length: 0, modes: 0 }.along(0, 1 << 32).along(7, 1 << 32);
        let back = Longest::of(most.value());
        assert_eq!((back.length, back.modes), (1 << 32, 0x81));
        assert_eq!([[3, 7, 0], [3, 0, 7]].map(|ranked| back.first_of(&ranked)), [7, 0]);
        assert_eq!(back.along(3, 5).modes, 0x81);
    }
}
