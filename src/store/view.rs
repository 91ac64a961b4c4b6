//! Views: the partitions of a store that are read, as one sequence of chunks.
//!
//! A reader sees its view's manifest, whose chunks count from 0, and never asks how many partitions there are. A
//! chunk's header holds its number in the whole store and its partition, which identify it. Positions of nonzeros run
//! through all partitions of a cover and restart at 0 in each cover. If a view begins inside a cover, so do they.

use super::{ChunkHeader, Partition, Store, chunk_name};
use std::ops::Range;
use std::sync::Arc;

/// A partition in a view.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Its number in the store.
    pub partition: usize,
    /// The number of its first chunk in the view.
    at: usize,
    /// The number of that chunk in the store.
    number: usize,
    /// What positions of its nonzeros are moved by, modulo 2^64.
    base: u64,
}

#[doc(hidden)]
impl Store {
    /// The same store, reading these covers one after the other.
    #[must_use]
    pub fn view(&self, covers: &[u32]) -> Self {
        self.of_covers(covers.iter().map(|&cover| self.whole.cover(cover)))
    }

    /// The same store, reading one partition.
    #[must_use]
    pub fn partition(&self, partition: usize) -> Self {
        self.of_covers(std::iter::once(vec![partition]))
    }

    /// The same store, reading all partitions, each as a cover of its own.
    #[must_use]
    pub fn partitions(&self) -> Self {
        self.of_covers((0..self.whole.partitions.len()).map(|partition| vec![partition]))
    }

    /// The first cover as the whole store, of which the CPU multiplies out each nonzero, without sums along trees. The store itself if it has
    /// nothing else, or if the partitions of that cover are not the first ones.
    #[must_use]
    pub fn flat(&self) -> Self {
        let (cover, is_one) = (self.whole.cover(0), self.whole.covers() == 1);
        let has_trees = cover.iter().any(|&p| self.whole.partitions[p].format.traversal().is_some());
        if is_one && !has_trees || cover.iter().enumerate().any(|(i, &partition)| i != partition) {
            return self.clone();
        }
        if is_one {
            let whole = Arc::new((*self.whole).clone().flat());
            let is_whole = Arc::ptr_eq(&self.whole, &self.manifest);
            let manifest =
                if is_whole { Arc::clone(&whole) } else { Arc::new((*self.manifest).clone().flat()) };
            return Self { whole, manifest, ..self.clone() };
        }
        let whole = Arc::new(self.whole.select(&cover).flat());
        Self { manifest: Arc::clone(&whole), whole, ..self.view(&[0]) }
    }

    fn of_covers(&self, covers: impl Iterator<Item = Vec<usize>>) -> Self {
        let mut first = Vec::with_capacity(self.whole.partitions.len());
        let mut end = 0;
        for partition in &self.whole.partitions {
            first.push(end);
            end += usize::try_from(partition.chunks).unwrap_or(0);
        }
        let (mut partitions, mut places, mut at) = (Vec::new(), Vec::new(), 0);
        for cover in covers {
            let mut base = 0;
            for partition in cover {
                places.push(Place { partition, at, number: first[partition], base });
                let of = &self.whole.partitions[partition];
                at += usize::try_from(of.chunks).unwrap_or(0);
                base += of.nnz;
                partitions.push(partition);
            }
        }
        let is_all = partitions.iter().copied().eq(0..self.whole.partitions.len());
        let is_one = self.whole.partitions.len() == 1;
        let manifest =
            if is_all && is_one { Arc::clone(&self.whole) } else { Arc::new(self.whole.select(&partitions)) };
        Self { manifest, places: places.into(), ..self.clone() }
    }

    /// The same store, reading only these chunks of this view. The sum of squares and the range of values remain those
    /// of the whole tensor.
    #[must_use]
    pub fn of_chunks(&self, chunks: Range<usize>) -> Self {
        let (mut partitions, mut places, mut before) = (Vec::new(), Vec::new(), None);
        for ((place, (_, of)), partition) in
            self.places.iter().zip(self.parts()).zip(&self.manifest.partitions)
        {
            let own = chunks.start.max(of.start)..chunks.end.min(of.end);
            if own.is_empty() {
                continue;
            }
            let nnz = self.manifest.chunks[own.clone()].iter().map(|chunk| chunk.nnz).sum();
            let (at, number) = (own.start - chunks.start, place.number + own.start - place.at);
            let position = place.base.wrapping_add(self.manifest.chunks[own.start].first_nonzero);
            if position == 0 {
                before = Some(0);
            }
            let base = place.base.wrapping_sub(*before.get_or_insert(position));
            places.push(Place { at, number, base, ..*place });
            partitions.push(Partition { chunks: own.len() as u64, nnz, hash: None, ..partition.clone() });
        }
        let manifest = Arc::new(self.manifest.of_chunks(chunks, partitions));
        Self { manifest, places: places.into(), ..self.clone() }
    }

    /// The view's number of the chunk that has this number in the store; the inverse of [`Store::number_of`].
    ///
    /// # Panics If the chunk is not in the view.
    #[must_use]
    pub fn number_in_view(&self, number: usize) -> usize {
        let mut parts = self.places.iter().zip(self.parts());
        let found = parts.find_map(|(place, (_, of))| {
            number.checked_sub(place.number).filter(|&at| at < of.len()).map(|at| of.start + at)
        });
        found.expect("a chunk of this view")
    }

    /// The partitions of this view: their numbers in the store, and the view's chunks of each.
    pub fn parts(&self) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
        let ends = self.places.iter().skip(1).map(|place| place.at).chain([self.manifest.chunks.len()]);
        self.places.iter().zip(ends).map(|(place, end)| (place.partition, place.at..end))
    }

    /// The index in [`Store::parts`] of the partition that holds chunk `number` of the view.
    #[must_use]
    pub fn part_of(&self, number: usize) -> usize {
        self.places.partition_point(|place| place.at <= number).saturating_sub(1)
    }

    /// The view's chunks for computing `mode`, from 0: those of the cover that serves it best, if the view has it.
    #[must_use]
    pub fn chunks_for(&self, mode: usize) -> Range<usize> {
        let cover = self.whole.cover(self.whole.cover_for(mode));
        let own = self.parts().filter(|(partition, _)| cover.contains(partition)).map(|(_, chunks)| chunks);
        own.reduce(|all, more| all.start..more.end).unwrap_or(0..self.manifest.chunks.len())
    }

    fn place(&self, number: usize) -> Place {
        self.places[self.part_of(number)]
    }

    /// The number in the store, and the partition, of chunk `number` of the view.
    pub(super) fn identity(&self, number: usize) -> (usize, usize) {
        let place = self.place(number);
        (place.number + number - place.at, place.partition)
    }

    /// The number in the store of chunk `number` of the view. The chunk's file is named after it.
    #[must_use]
    pub fn number_of(&self, number: usize) -> usize {
        self.identity(number).0
    }

    pub(super) fn file_name(&self, number: usize) -> String {
        chunk_name(self.identity(number).0)
    }

    /// Adjusts the header of chunk `number` of the view: the position of its first nonzero becomes relative to
    /// the view's part of the cover.
    pub(super) fn in_cover(&self, mut header: ChunkHeader, number: usize) -> ChunkHeader {
        header.first_nonzero = header.first_nonzero.wrapping_add(self.place(number).base);
        header
    }
}
