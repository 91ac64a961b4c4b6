//! Finds out which chunk files belong together, and what is missing between them.

use super::examine::Examined;
use super::{Loss, UnusedFile};
use crate::encoding::TILE_NNZ;
use crate::store::{ChunkEntry, ChunkHeader, Manifest, chunk_name};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::RangeInclusive;

/// The most names that a reason lists; beyond that it gives a count.
const NAMES_MAX: usize = 3;

/// The chunks to use, and the losses.
#[derive(Debug)]
pub(super) struct Reconciled {
    /// Indices of the chunks to use, in the store's order.
    pub used: Vec<usize>,
    /// The losses, in the store's order.
    pub losses: Vec<Loss>,
    /// Every other file.
    pub unused: Vec<UnusedFile>,
}

/// The number in a chunk file's name.
fn number_in(file: &str) -> Option<u64> {
    file.strip_prefix("chunk-")?.strip_suffix(".bin")?.parse().ok()
}

/// The header of a usable chunk.
fn intact(examined: &Examined) -> Option<&ChunkHeader> {
    examined.contents.is_ok().then_some(examined.header.as_ref())?
}

/// Whether the file has this chunk's name.
fn in_place(file: &str, number: u32) -> bool {
    file == chunk_name(number as usize)
}

/// With a manifest: finds the intact file of each listed chunk, under any name, preferring its own.
pub(super) fn by_manifest(manifest: &Manifest, examined: &[Examined]) -> Reconciled {
    let mut places: HashMap<u64, usize> = HashMap::new();
    for (i, header) in examined.iter().enumerate().filter_map(|(i, e)| Some((i, intact(e)?))) {
        let place = places.entry(header.number.into()).or_insert(i);
        if in_place(&examined[i].file, header.number) {
            *place = i;
        }
    }
    let mut first = vec![0];
    for partition in &manifest.partitions {
        first.push(first[first.len() - 1] + partition.chunks);
    }
    // The cover that has lost the fewest nonzeros also holds what other covers have lost.
    let of_cover = |cover: u32| {
        let (mut used, mut lost) = (Vec::new(), Vec::new());
        for number in manifest.cover(cover).into_iter().flat_map(|p| first[p]..first[p + 1]) {
            match (places.get(&number), usize::try_from(number).ok().and_then(|at| manifest.chunks.get(at))) {
                (Some(&i), _) => used.push(i),
                (None, Some(entry)) => lost.push((number, entry)),
                (None, None) => {}
            }
        }
        (used, lost)
    };
    let nnz = |lost: &[(u64, &ChunkEntry)]| lost.iter().map(|(_, entry)| entry.nnz).sum::<u64>();
    let best = (0..manifest.covers()).map(of_cover).min_by_key(|(_, lost)| nnz(lost));
    let (used, lost) = best.unwrap_or_default();
    let mut files = Files::new(examined, &used);
    files.used.extend(places.values());
    let loss = |(number, entry): (u64, &ChunkEntry)| Loss {
        first_chunk: number,
        last_chunk: Some(number),
        first_nonzero: entry.first_nonzero,
        nnz: Some(entry.nnz),
        reason: files.reason(number..=number),
    };
    Reconciled { losses: lost.into_iter().map(loss).collect(), unused: files.unused(&HashMap::new()), used }
}

/// What chunks of one cover of a store have in common: id, dims, the format's cover key, codec.
type Kin = (u64, Vec<u32>, u32, u8);

fn kin(examined: &Examined) -> Option<Kin> {
    let (header, contents) = (examined.header.as_ref()?, examined.contents.as_ref().ok()?);
    let dims = contents.shape.dims().to_vec();
    Some((header.store_id, dims, contents.format.cover_key(), header.codec))
}

/// The group of related chunks with the most nonzeros; `None` if no chunk is intact. Copies do not count.
fn largest_kin(examined: &[Examined]) -> Option<Kin> {
    let mut kins: BTreeMap<Kin, BTreeMap<u32, u64>> = BTreeMap::new();
    for (kin, header) in examined.iter().filter_map(|e| Some((kin(e)?, intact(e)?))) {
        kins.entry(kin).or_default().insert(header.number, header.nnz.into());
    }
    let sums = kins.into_iter().map(|(kin, chunks)| (chunks.values().sum::<u64>(), kin));
    sums.max().map(|(_, kin)| kin)
}

/// Without a manifest: uses the largest group of related chunks, ordered by their headers. Gaps between them
/// are losses.
pub(super) fn by_headers(examined: &[Examined]) -> Reconciled {
    let Some(chosen) = largest_kin(examined) else {
        return Reconciled { used: Vec::new(), losses: Vec::new(), unused: Vec::new() };
    };
    let mut partitions: BTreeMap<u32, Vec<(usize, &ChunkHeader)>> = BTreeMap::new();
    let (mut refused, mut others): (HashMap<usize, String>, Vec<usize>) = (HashMap::new(), Vec::new());
    for (i, e) in examined.iter().enumerate() {
        match (kin(e), intact(e)) {
            (Some(kin), Some(header)) if kin == chosen => {
                partitions.entry(header.partition).or_default().push((i, header));
            }
            // A chunk of another cover.
            (Some(kin), _) if (kin.0, &kin.1, kin.3) == (chosen.0, &chosen.1, chosen.3) => others.push(i),
            (Some(kin), _) => {
                refused.insert(i, format!("a chunk of another store, {:016x}", kin.0));
            }
            _ => {}
        }
    }
    let named = |i: usize, h: &ChunkHeader| in_place(&examined[i].file, h.number);
    let (mut used, mut gaps) = (Vec::new(), Vec::new());
    for (partition, mut members) in partitions {
        members.sort_by_key(|&(i, h)| (h.number, !named(i, h), i));
        let (mut next, mut end) = (first_number(examined, chosen.0, partition), 0u64);
        for (i, header) in members {
            let (number, first) = (u64::from(header.number), header.first_nonzero);
            let after = first.checked_add(header.nnz.into());
            // If nothing before it is lost, a partition begins with this chunk, whatever other covers have lost.
            next = if partition > 0 && first == 0 && end == 0 { number } else { next };
            let (follows, skips) = (number == next && first == end, number > next && first > end);
            let Some(after) = after.filter(|_| follows || skips) else {
                let what = if number < next { "a copy of" } else { "does not fit the others as" };
                refused.insert(i, format!("{what} chunk {number}"));
                continue;
            };
            if skips {
                gaps.push(Gap { first: next, last: Some(number - 1), at: end, nnz: Some(first - end) });
            }
            used.push(i);
            (next, end) = (number + 1, after);
        }
        gaps.extend(tail(examined, (chosen.0, partition), next, end));
    }
    let mut files = Files::new(examined, &used);
    files.used.extend(others);
    let losses = gaps.into_iter().map(|gap| gap.loss(&files)).collect();
    Reconciled { losses, unused: files.unused(&refused), used }
}

/// The smallest possible number of a chunk of a partition: after all chunks of earlier partitions.
fn first_number(examined: &[Examined], id: u64, partition: u32) -> u64 {
    let headers = examined.iter().filter_map(|e| e.header.as_ref());
    let before = headers.filter(|h| h.store_id == id && h.partition < partition);
    before.map(|h| u64::from(h.number) + 1).max().unwrap_or(0)
}

/// Chunks without an intact file.
struct Gap {
    first: u64,
    last: Option<u64>,
    at: u64,
    nnz: Option<u64>,
}

impl Gap {
    fn loss(&self, files: &Files<'_>) -> Loss {
        let reason = match self.last {
            Some(last) => files.reason(self.first..=last),
            None => files.tail_reason(self.first),
        };
        Loss { first_chunk: self.first, last_chunk: self.last, first_nonzero: self.at, nnz: self.nnz, reason }
    }
}

/// What may be missing after chunk `next - 1`, which ends at nonzero `end`. If the format cuts at tiles, only a store's
/// last chunk can end inside one, so nothing is missing after such a chunk. The header of a damaged chunk may show
/// where the store ends.
fn tail(examined: &[Examined], (id, partition): (u64, u32), next: u64, end: u64) -> Option<Gap> {
    let of_store = |e: &&Examined| e.header.as_ref().is_some_and(|h| h.store_id == id);
    let mut intact = examined.iter().filter(of_store).filter_map(|e| e.contents.as_ref().ok());
    let cut_at_tiles = intact.all(|contents| contents.format.cuts_at_tiles());
    let inside_a_tile = |end: u64| cut_at_tiles && !end.is_multiple_of(TILE_NNZ as u64);
    if inside_a_tile(end) {
        return None;
    }
    let headers = || examined.iter().filter_map(|e| e.header.as_ref()).filter(|h| h.store_id == id);
    let begins =
        |h: &ChunkHeader| h.partition > partition && h.first_nonzero == 0 && u64::from(h.number) == next;
    if headers().any(begins) {
        return None;
    }
    let own = headers().filter(|h| h.partition == partition);
    let later = own.filter(|h| u64::from(h.number) >= next && h.first_nonzero >= end);
    let ends = later.filter_map(|h| Some((h.first_nonzero.checked_add(h.nnz.into())?, u64::from(h.number))));
    match ends.max() {
        Some((last, number)) if inside_a_tile(last) || headers().any(|h| h.partition > partition) => {
            Some(Gap { first: next, last: Some(number), at: end, nnz: Some(last - end) })
        }
        _ => Some(Gap { first: next, last: None, at: end, nnz: None }),
    }
}

/// The unused files, for reasons.
struct Files<'a> {
    examined: &'a [Examined],
    used: HashSet<usize>,
}

impl<'a> Files<'a> {
    fn new(examined: &'a [Examined], used: &[usize]) -> Self {
        Self { examined, used: used.iter().copied().collect() }
    }

    fn left(&self) -> impl Iterator<Item = (usize, &'a Examined)> + '_ {
        self.examined.iter().enumerate().filter(|(i, _)| !self.used.contains(i))
    }

    /// Why the chunks with these numbers are lost, according to the files with their names.
    fn reason(&self, numbers: RangeInclusive<u64>) -> String {
        let count = numbers.end() - numbers.start() + 1;
        let of_name = |e: &Examined| number_in(&e.file).is_some_and(|n| numbers.contains(&n));
        let there: Vec<&Examined> = self.left().map(|(_, e)| e).filter(|e| of_name(e)).collect();
        match &there[..] {
            [] => return "missing".into(),
            [only] if count == 1 => return problem(only),
            _ => {}
        }
        let mut parts: Vec<String> =
            there.iter().take(NAMES_MAX).map(|e| format!("{}: {}", e.file, problem(e))).collect();
        let (more, missing) =
            (there.len().saturating_sub(NAMES_MAX), count.saturating_sub(there.len() as u64));
        parts.extend((more > 0).then(|| format!("{more} more damaged")));
        parts.extend((missing > 0).then(|| format!("{missing} missing")));
        parts.join("; ")
    }

    /// Why it is unknown what follows from chunk `first` on.
    fn tail_reason(&self, first: u64) -> String {
        let file = self.left().find(|(_, e)| number_in(&e.file).is_some_and(|n| n >= first));
        let known = "nothing says whether more chunks belong to the store";
        file.map_or(known.into(), |(_, e)| format!("{known}; {}: {}", e.file, problem(e)))
    }

    /// All unused files, with the reason in `refused` or their own.
    fn unused(&self, refused: &HashMap<usize, String>) -> Vec<UnusedFile> {
        let unused = |(i, e): (usize, &Examined)| UnusedFile {
            file: e.file.clone(),
            reason: refused.get(&i).cloned().unwrap_or_else(|| problem(e)),
        };
        self.left().map(unused).collect()
    }
}

/// Why a file is not used.
fn problem(examined: &Examined) -> String {
    match (&examined.contents, &examined.header) {
        (Err(reason), _) => reason.clone(),
        (Ok(_), Some(header)) if number_in(&examined.file) == Some(header.number.into()) => {
            format!("of store {:016x}", header.store_id)
        }
        (Ok(_), Some(header)) => format!("chunk {} of store {:016x}", header.number, header.store_id),
        (Ok(_), None) => "no header".into(),
    }
}
