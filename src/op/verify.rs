//! Verification: encodes the decoded nonzeros again and compares the result with the store. This checks
//! order, ranges, widths, encodings, cuts and statistics against the rules of the packer.

use crate::backend::host::{HostOp, Tiles};
use crate::encoding::TILE_NNZ;
use crate::error::{Error, Result};
use crate::format::tree::OPEN_CHUNKS;
use crate::format::{
    BuiltChunk, ChunkView, Cutter, DecodedTile, PENDING_NNZ, PRIVATE_CODE, Totals, waiting_bytes,
};
use crate::linear::{Linearizer, Nonzero};
use crate::shape::ORDER_MAX;
use crate::store::manifest::PartOf;
use crate::store::{ChunkEntry, Manifest, Store};
use rayon::prelude::*;
use std::collections::VecDeque;
use std::ops::Range;
use std::path::PathBuf;
use xxhash_rust::xxh3::xxh3_64;

/// The most bytes of a nonzero of a small chunk per mode: two nodes while the chunk grows, then its padded image.
const NODE_BYTES: usize = 64;

/// The operation.
#[derive(Debug)]
pub struct Verify<'a> {
    linearizer: Linearizer<u128>,
    cutter: Cutter<u128>,
    previous: Option<Nonzero<u128>>,
    /// The nonzeros of a group of tiles.
    nonzeros: Vec<Nonzero<u128>>,
    compared: Compared<'a>,
}

/// The stored chunks met so far, and those rebuilt so far.
#[derive(Debug)]
struct Compared<'a> {
    store: &'a Store,
    /// Value encoding and checksum of each stored image's payload.
    stored: Vec<(u8, u64)>,
    /// Rebuilt chunks that precede their stored ones.
    ahead: VecDeque<BuiltChunk>,
    /// Chunks rebuilt and compared.
    built: usize,
    /// Their nonzeros.
    built_nnz: u64,
    /// Nonzeros passed to the cutter.
    cutter_nnz: u64,
}

/// The most nonzeros that a cutter holds outside its open chunk.
const WAITING_NNZ: u64 = (2 * PENDING_NNZ + 2 * TILE_NNZ) as u64;

/// The partitions of `store` in order, each of which is verified separately.
pub fn parts(store: &Store) -> impl Iterator<Item = Store> + '_ {
    (0..store.whole().partitions.len()).map(|partition| store.partition(partition))
}

/// Verifies every partition of `store`. `pass` streams one of [`parts`] through the verification that it
/// gets.
pub fn verify(store: &Store, mut pass: impl FnMut(&Store, &mut Verify<'_>) -> Result<()>) -> Result<()> {
    let mut totals = Totals::default();
    for part in parts(store) {
        let mut verify = Verify::new(&part, &totals);
        pass(&part, &mut verify)?;
        verify.finish(&mut totals)?;
    }
    check_totals(store, &totals)
}

/// Compares the manifest's totals with all partitions of cover 0.
pub fn check_totals(store: &Store, totals: &Totals) -> Result<()> {
    let (path, manifest) = (store.path().join("manifest"), store.whole());
    let same = totals.nnz() == manifest.nnz
        && totals.sum_squares().to_bits() == manifest.sum_squares.to_bits()
        && totals.value_min().to_bits() == manifest.value_min.to_bits()
        && totals.value_max().to_bits() == manifest.value_max.to_bits()
        && totals.longest_row_bounds() == manifest.longest_row_bounds;
    if !same {
        let what = "the statistics are not those of the nonzeros";
        return Err(Error::unusable(path, what).breaks("statistics"));
    }
    if !is_within_part(manifest) {
        return Err(Error::unusable(path, "nonzeros of another part").breaks("ranges"));
    }
    store.check_labels()
}

impl<'a> Verify<'a> {
    /// A verification of `store`, one of [`parts`], after partitions with these `totals`.
    #[must_use]
    pub fn new(store: &'a Store, totals: &Totals) -> Self {
        let Manifest { version, shape, chunk_bytes, .. } = store.manifest();
        let format = store.manifest().format();
        Self {
            linearizer: Linearizer::new(&format.bit_layout(shape)),
            cutter: Cutter::new(*version, shape, format, *chunk_bytes).following(totals.squares()),
            previous: None,
            nonzeros: Vec::new(),
            compared: Compared {
                store,
                stored: Vec::with_capacity(store.manifest().chunks.len()),
                ahead: VecDeque::new(),
                built: 0,
                built_nnz: 0,
                cutter_nnz: 0,
            },
        }
    }

    /// Bytes of host memory: an open chunk, bounded by the stored ones and the number of nonzeros, waiting nonzeros and
    /// those being encoded, and the records of chunks. Reads the chunks' headers.
    pub fn host_bytes(store: &Store) -> Result<u64> {
        let Manifest { shape, chunk_bytes, nnz, chunks, .. } = store.manifest();
        let format = store.manifest().format();
        let node = (NODE_BYTES * shape.order()) as u64;
        let mut headers = (0..chunks.len()).map(|number| store.read_header(number));
        let open = match format.rebuilt_chunk_bytes(*chunk_bytes, &mut headers) {
            // A damaged header gives no bound. The pass reports the damage.
            Err(Error::Corrupt { .. }) => format.open_chunk_bytes(*chunk_bytes),
            bytes => bytes?,
        };
        // Registered formats may have buffers of constant size, which do not shrink with the nonzeros.
        let own = format.record().code < PRIVATE_CODE;
        let open = if own { open.min(nnz.saturating_mul(node)) } else { open };
        // Includes the nonzeros of a group.
        let waiting = waiting_bytes(format, shape.order(), 2 * size_of::<Nonzero<u128>>());
        let several = store.whole().partitions.len() > 1;
        let open = open + if several { Totals::host_bytes(shape.order()) } else { 0 };
        Ok(open + (waiting + size_of::<(u8, u64)>() * chunks.len()) as u64)
    }

    fn path(&self) -> PathBuf {
        self.compared.store.chunk_path(self.compared.stored.len().saturating_sub(1))
    }

    /// Compares the last chunks and the statistics, and adds these to `totals` if the partition belongs to cover
    /// 0.
    pub fn finish(self, totals: &mut Totals) -> Result<()> {
        let Self { cutter, mut compared, .. } = self;
        let store = compared.store;
        let found = cutter.finish(&mut |chunk| compared.take(chunk.build()))?;
        compared.finish()?;
        let (manifest, path) = (store.manifest(), store.path().join("manifest"));
        if manifest.hash().is_some_and(|hash| hash != found.hash()) {
            return Err(Error::unusable(path, "the hash is not that of the nonzeros").breaks("hash"));
        }
        let recorded = manifest.partitions[0].statistics.as_ref();
        let same = compared.built == manifest.chunks.len()
            && found.nnz() == manifest.nnz
            && recorded.is_none_or(|statistics| *statistics == found.of_partition());
        if !same {
            return Err(
                Error::unusable(path, "the statistics are not those of the nonzeros").breaks("statistics")
            );
        }
        let is_counted = store.parts().any(|(part, _)| store.whole().partitions[part].covers & 1 != 0);
        if is_counted {
            totals.add(found);
        }
        Ok(())
    }

    /// Takes `tiles` of a batch: gathers their nonzeros in parallel, checks their order, and cuts them.
    fn take(&mut self, batch: &Tiles<'_>, tiles: Range<usize>) -> Result<()> {
        let (linearizer, may_repeat) = (&self.linearizer, self.compared.store.manifest().may_repeat);
        let mut nonzeros = std::mem::take(&mut self.nonzeros);
        nonzeros.resize(tiles.len() * TILE_NNZ, Nonzero::default());
        let gathered = nonzeros.par_chunks_mut(TILE_NNZ).zip(tiles.clone()).map(|(nonzeros, t)| {
            let nonzeros = gather(linearizer, &batch.tile(t), nonzeros);
            let wrong = nonzeros.windows(2).position(|pair| !follows(&pair[0], &pair[1], may_repeat));
            (&*nonzeros, wrong.map(|i| i + 1))
        });
        let gathered: Vec<(&[Nonzero<u128>], Option<usize>)> = gathered.collect();
        for (&(nonzeros, wrong), t) in gathered.iter().zip(tiles) {
            let Some(first) = nonzeros.first() else { continue };
            let begins = self.previous.is_none_or(|last| follows(&last, first, may_repeat));
            if let Some(i) = if begins { wrong } else { Some(0) } {
                let before = if i == 0 { self.previous } else { Some(nonzeros[i - 1]) };
                return Err(self.misplaced(before, &nonzeros[i], batch.first_tile + t as u64, i));
            }
            self.previous = nonzeros.last().copied();
        }
        let compared = &mut self.compared;
        // If all tiles are full, passes all at once without a copy.
        let slots = gathered.iter().map(|(nonzeros, _)| nonzeros.len()).sum::<usize>();
        let mut push = |nonzeros: &[Nonzero<u128>]| {
            compared.cutter_nnz += nonzeros.len() as u64;
            self.cutter.push(nonzeros, &mut |chunk| compared.take(chunk.build()))?;
            compared.within()
        };
        if slots == gathered.len() * TILE_NNZ {
            push(&nonzeros)?;
        } else {
            gathered.iter().try_for_each(|(nonzeros, _)| push(nonzeros))?;
        }
        self.nonzeros = nonzeros;
        Ok(())
    }

    /// The error for nonzero `i` of a tile, which does not follow the one `before`.
    fn misplaced(&self, before: Option<Nonzero<u128>>, at: &Nonzero<u128>, tile: u64, i: usize) -> Error {
        let place = format!("tile {tile} of the store, nonzero {i}");
        let repeats = before.is_some_and(|before| before.linear == at.linear && before.order(at).is_le());
        let what = if repeats { "a coordinate is repeated" } else { "out of order" };
        Error::unusable(self.path(), format!("{place}: {what}")).breaks("order")
    }
}

/// Gathers the nonzeros of `tile` into the start of `nonzeros`.
fn gather<'a>(
    linearizer: &Linearizer<u128>,
    tile: &DecodedTile<'_>,
    nonzeros: &'a mut [Nonzero<u128>],
) -> &'a mut [Nonzero<u128>] {
    let (order, nonzeros) = (tile.order(), &mut nonzeros[..tile.nnz]);
    let mut at = [0; ORDER_MAX];
    for (i, (nonzero, &value)) in nonzeros.iter_mut().zip(tile.values).enumerate() {
        at[..order].iter_mut().enumerate().for_each(|(m, index)| *index = tile.column(m)[i]);
        *nonzero = Nonzero { linear: linearizer.scatter(&at[..order]), value };
    }
    nonzeros
}

/// Whether `next` may directly follow `last`.
fn follows(last: &Nonzero<u128>, next: &Nonzero<u128>, may_repeat: bool) -> bool {
    last.linear < next.linear || may_repeat && last.linear == next.linear && last.order(next).is_le()
}

/// Whether all nonzeros, whose ranges are correct, belong to the store's part of the tensor.
fn is_within_part(manifest: &Manifest) -> bool {
    let linear = |[low, high]: [u64; 2]| u128::from(high) << 64 | u128::from(low);
    let within = |part: &PartOf| {
        let [first, last] = [&manifest.chunks[0], &manifest.chunks[manifest.chunks.len() - 1]];
        linear(part.from) <= linear(first.first_linear) && linear(last.last_linear) <= linear(part.to)
    };
    manifest.part.as_ref().is_none_or(within)
}

impl Compared<'_> {
    /// Records the next stored chunk.
    fn met(&mut self, chunk: &ChunkView<'_>) -> Result<()> {
        self.stored.push((chunk.value_encoding() as u8, xxh3_64(chunk.payload())));
        match self.ahead.pop_front() {
            Some(built) => self.compare(&built),
            None => Ok(()),
        }
    }

    /// Takes the next rebuilt chunk: compares it, or keeps it until the stored one is met. Few are kept, since a
    /// cutter is never ahead of the nonzeros.
    fn take(&mut self, built: BuiltChunk) -> Result<()> {
        if self.built + self.ahead.len() < self.stored.len() {
            self.compare(&built)
        } else {
            self.ahead.push_back(built);
            Ok(())
        }
    }

    /// Compares the kept chunks after the last stored chunk.
    fn finish(&mut self) -> Result<()> {
        while let Some(built) = self.ahead.pop_front() {
            self.compare(&built)?;
        }
        Ok(())
    }

    /// Whether the open chunk is no longer than the stored ones that it can be in, on which its memory bound is
    /// based.
    fn within(&self) -> Result<()> {
        let waiting: u64 = self.ahead.iter().map(|chunk| u64::from(chunk.header.nnz)).sum();
        let open = self.cutter_nnz.saturating_sub(self.built_nnz + waiting);
        let number = self.built + self.ahead.len();
        let stored = self.store.manifest().chunks.iter().skip(number).map(|chunk| chunk.nnz);
        // One extra.
        let can_be_open: u64 = stored.take(OPEN_CHUNKS + 1).sum();
        if open <= can_be_open.saturating_add(WAITING_NNZ) {
            return Ok(());
        }
        let stored = self.store.manifest().chunks.get(number).map_or(0, |chunk| chunk.nnz);
        let number = number.min(self.stored.len() - 1);
        let named = self.store.number_of(number);
        let what = format!("chunk {named}: cut at {stored} nonzeros, it should be more");
        Err(Error::unusable(self.store.chunk_path(number), what).breaks("cut"))
    }

    /// Compares a rebuilt chunk with the stored one.
    fn compare(&mut self, built: &BuiltChunk) -> Result<()> {
        let number = self.built;
        self.built += 1;
        self.built_nnz += u64::from(built.header.nnz);
        let (path, named) = (self.store.chunk_path(number), self.store.number_of(number));
        let wrong = |rule, what: &str| Error::unusable(&path, format!("chunk {named}: {what}")).breaks(rule);
        let (Some(entry), Some(&(encoding, checksum))) =
            (self.store.manifest().chunks.get(number), self.stored.get(number))
        else {
            return Err(wrong("cut", "the store is cut into fewer chunks than it should be"));
        };
        if u64::from(built.header.nnz) != entry.nnz {
            return Err(wrong(
                "cut",
                &format!("cut at {} nonzeros, it should be {}", entry.nnz, built.header.nnz),
            ));
        }
        let ranges = ChunkEntry::of(&built.ranges);
        let ranges = [ranges.first_linear, ranges.last_linear] == [entry.first_linear, entry.last_linear]
            && (ranges.row_low, ranges.row_high) == (entry.row_low, entry.row_high);
        if !ranges {
            let what = format!("chunk {named}: linear and row ranges are not those of the nonzeros");
            return Err(Error::unusable(self.store.path().join("manifest"), what).breaks("ranges"));
        }
        let payload = &built.image[built.header.header_bytes()..];
        if built.header.codes.value_encoding != encoding || xxh3_64(payload) != checksum {
            return Err(wrong("encoding", "the nonzeros are not encoded as they should be"));
        }
        Ok(())
    }
}

impl HostOp for Verify<'_> {
    fn chunk(&mut self, chunk: &ChunkView<'_>) -> Result<()> {
        self.compared.met(chunk)
    }

    fn batch(&mut self, batch: &Tiles<'_>) -> Result<()> {
        const GROUP: usize = PENDING_NNZ / TILE_NNZ;
        (0..batch.tiles()).step_by(GROUP).try_for_each(|t| self.take(batch, t..batch.tiles().min(t + GROUP)))
    }
}
