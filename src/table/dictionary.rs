//! Labels to indices within a memory budget, however many labels there are.
//!
//! While rows come, each label gets a number: which label of its *shard* (by hash) it is, in the order in which they came. When
//! the tables of all columns are too large, an *epoch* ends: the labels of each shard are sorted and written as a run, and
//! numbers begin again. In the end all runs of a column are merged, which gives each label its index, in natural order, and
//! each run a list of (number, index), by which the rows of its epoch get their indices: an array for each shard of one
//! epoch at a time.

use super::number;
use super::scratch::{Scratch, Spool};
use super::shard::Shard;
use super::time::{self, Moment};
use crate::error::{Error, Result};
use crate::shape::DIM_MAX;
use crate::store::labels::LabelKind;
use jiff::tz::TimeZone;
use rayon::prelude::*;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Shards of a column, by the two highest bits of labels' hashes.
pub const SHARDS: usize = 4;
/// How a row's number of a label holds the shard.
const SHARD_BITS: u32 = 2;

/// The shard of a hash.
#[must_use]
pub fn shard_of(hash: u64) -> usize {
    (hash >> 62) as usize
}

/// A label's number among its epoch's.
#[must_use]
pub fn number_of(shard: usize, local: u32) -> u32 {
    local << SHARD_BITS | u32::try_from(shard).unwrap_or(0)
}

/// Which kinds all labels of a column may be of.
#[derive(Clone, Copy, Debug)]
struct Kinds {
    number: bool,
    time: bool,
}

/// Sorted labels of one shard of one epoch, or of an older store.
#[derive(Debug)]
struct Run {
    kind: LabelKind,
    records: Spool,
    labels: u32,
    /// (number, index) of each label, once runs have been merged.
    indices: Spool,
    /// Whether its numbers are an older store's indices.
    old: bool,
}

/// What is asked of a column's labels.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The kind, if it was said.
    pub kind: Option<LabelKind>,
    /// This many bins with about equal numbers of rows.
    pub quantiles: Option<u32>,
}

/// A column of labels.
#[derive(Debug)]
pub struct Dictionary {
    wanted: Wanted,
    zone: TimeZone,
    shards: Vec<Shard>,
    kinds: Kinds,
    runs: Vec<Run>,
    /// Indices of an older store.
    old: u32,
}

/// A label in a run.
#[derive(Debug, Default)]
struct Record {
    key: Vec<u8>,
    /// Empty where the key is the text.
    text: Vec<u8>,
    local: u32,
    count: u64,
}

/// Labels that are looked up together.
const FETCHED: usize = 32;

impl Dictionary {
    /// Of no labels.
    pub fn new(wanted: Wanted, zone: &TimeZone) -> Self {
        let kinds = Kinds { number: true, time: true };
        let shards = (0..SHARDS).map(|_| Shard::new()).collect();
        Self { wanted, zone: zone.clone(), shards, kinds, runs: Vec::new(), old: 0 }
    }

    /// Bytes that its tables take.
    pub fn bytes(&self) -> u64 {
        self.shards.iter().map(Shard::bytes).sum()
    }

    /// Whether a shard can take no more than the labels of a group of pieces.
    pub fn is_full(&self) -> bool {
        self.shards.iter().any(Shard::is_full)
    }

    /// Its shards, each with what it must be told of new labels, for threads that fill them.
    pub fn interning(&mut self) -> (Vec<&mut Shard>, Interning<'_>) {
        let counted = self.wanted.quantiles.is_some();
        let kinds = match self.wanted.kind {
            Some(_) => Kinds { number: false, time: false },
            None => self.kinds,
        };
        (self.shards.iter_mut().collect(), Interning { zone: &self.zone, kinds, counted })
    }

    /// Takes what threads have found out of new labels.
    pub fn narrow(&mut self, found: Found) {
        self.kinds.number &= found.number;
        self.kinds.time &= found.time;
    }

    /// The kind of the labels so far.
    fn kind(&self) -> LabelKind {
        match self.wanted {
            Wanted { quantiles: Some(_), .. } => LabelKind::Number,
            Wanted { kind: Some(kind), .. } => kind,
            _ if self.kinds.number => LabelKind::Number,
            _ if self.kinds.time => LabelKind::Time,
            _ => LabelKind::Text,
        }
    }

    /// Takes the labels of an older store, from index 0 on: some of them, `first` being the first one's index.
    pub fn push_old(
        &mut self,
        labels: &[String],
        kind: LabelKind,
        first: u32,
        scratch: &Scratch,
    ) -> Result<()> {
        self.wanted.kind = Some(kind);
        let mut keyed = Vec::with_capacity(labels.len());
        for (local, label) in (first..).zip(labels) {
            let mut key = Vec::new();
            self.append_key(kind, label.as_bytes(), &mut key);
            keyed.push(Record { key, text: label.clone().into_bytes(), local, count: 0 });
        }
        keyed.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        let mut records = Spool::default();
        for record in &keyed {
            push_record(&mut records, scratch, record, kind)?;
        }
        records.finish(scratch)?;
        let labels = u32::try_from(labels.len()).unwrap_or(u32::MAX);
        self.old = self.old.max(first + labels);
        self.runs.push(Run { kind, records, labels, indices: Spool::default(), old: true });
        Ok(())
    }

    /// Appends the bytes by which a label of `kind` is sorted.
    fn append_key(&self, kind: LabelKind, label: &[u8], key: &mut Vec<u8>) {
        let known = match kind {
            LabelKind::Number => number::append_key(label.trim_ascii(), key),
            LabelKind::Time => match time::parse(label, &self.zone) {
                Some(Moment::Civil(seconds, nanos)) => {
                    key.extend((seconds ^ i64::MIN).to_be_bytes());
                    key.extend(nanos.to_be_bytes());
                    true
                }
                _ => false,
            },
            _ => false,
        };
        if !known {
            // Behind all that have the kind; text of the kind text.
            if matches!(kind, LabelKind::Number | LabelKind::Time) {
                key.push(u8::MAX);
            }
            key.extend_from_slice(label);
        }
    }

    /// Ends an epoch: writes what its shards hold as runs, and empties them; how many labels each had.
    pub fn seal(&mut self, scratch: &Scratch) -> Result<[u32; SHARDS]> {
        let kind = self.kind();
        let shards = std::mem::replace(&mut self.shards, (0..SHARDS).map(|_| Shard::new()).collect());
        let runs = shards
            .into_par_iter()
            .map(|shard| self.sort(shard, kind, scratch))
            .collect::<Result<Vec<_>>>()?;
        let labels = std::array::from_fn(|shard| runs[shard].labels);
        self.runs.extend(runs);
        Ok(labels)
    }

    /// Sorts a shard's labels into a run.
    fn sort(&self, shard: Shard, kind: LabelKind, scratch: &Scratch) -> Result<Run> {
        let shard = shard.without_table();
        let mut records = Spool::default();
        let mut key = Vec::new();
        let labels = shard.labels();
        // The first bytes of keys decide most comparisons.
        let mut order: Vec<(u64, u32)> = Vec::with_capacity(labels as usize);
        for local in 0..labels {
            key.clear();
            self.append_key(kind, shard.text(local), &mut key);
            order.push((prefix(&key), local));
        }
        let key_of = |local: u32| {
            let mut key = Vec::new();
            self.append_key(kind, shard.text(local), &mut key);
            key
        };
        order.sort_unstable_by(|a, b| {
            a.0.cmp(&b.0).then_with(|| match kind {
                LabelKind::Text => shard.text(a.1).cmp(shard.text(b.1)),
                _ => key_of(a.1).cmp(&key_of(b.1)),
            })
        });
        let mut record = Record::default();
        for (_, local) in order {
            let text = shard.text(local);
            record.key.clear();
            self.append_key(kind, text, &mut record.key);
            record.text.clear();
            record.text.extend_from_slice(text);
            (record.local, record.count) = (local, shard.count(local));
            push_record(&mut records, scratch, &record, kind)?;
        }
        records.finish(scratch)?;
        Ok(Run { kind, records, labels, indices: Spool::default(), old: false })
    }

    /// Merges all runs. `each` is called with the index and the text of every label that is not an older store's, in order,
    /// and how often it came; it says the index that the label gets. What the labels are.
    pub fn merge(
        &mut self,
        scratch: &Scratch,
        mut each: impl FnMut(u64, &[u8], u64) -> Result<u32>,
    ) -> Result<LabelKind> {
        let kind = self.kind();
        self.agree(kind, scratch)?;
        let mut readers: Vec<RunReader> = Vec::with_capacity(self.runs.len());
        let mut heap = BinaryHeap::with_capacity(self.runs.len());
        for (number, run) in self.runs.iter().enumerate() {
            let mut reader = RunReader::default();
            if let Some(record) = reader.next(run, scratch)? {
                heap.push(Head { record, run: number });
            }
            readers.push(reader);
        }
        let mut next = 0u64;
        let mut members: Vec<Head> = Vec::new();
        while let Some(first) = heap.pop() {
            members.push(first);
            while heap.peek().is_some_and(|head| head.record.key == members[0].record.key) {
                members.extend(heap.pop());
            }
            let old = members.iter().find(|head| self.runs[head.run].old).map(|head| head.record.local);
            let index = if let Some(index) = old {
                index
            } else {
                // Of texts of one number, 1 and 1.0, the shortest; of those the first.
                let texts = members.iter().map(|head| head.record.text(kind));
                let text = texts.min_by(|a, b| a.len().cmp(&b.len()).then(a.cmp(b))).unwrap_or_default();
                let count = members.iter().map(|head| head.record.count).sum();
                next += 1;
                each(next - 1, text, count)?
            };
            for head in members.drain(..) {
                let run = &mut self.runs[head.run];
                let pair = [head.record.local, index];
                run.indices.push(scratch, |out| out.extend(pair.iter().flat_map(|n| n.to_le_bytes())))?;
                if let Some(record) = readers[head.run].next(&self.runs[head.run], scratch)? {
                    heap.push(Head { record, run: head.run });
                }
            }
            if u64::from(self.old) + next > DIM_MAX {
                return Err(Error::request(format!("more than {DIM_MAX} labels")));
            }
        }
        for run in &mut self.runs {
            run.indices.finish(scratch)?;
            run.records = Spool::default();
        }
        Ok(kind)
    }

    /// Sorts runs again that were sorted as another kind.
    fn agree(&mut self, kind: LabelKind, scratch: &Scratch) -> Result<()> {
        let runs = std::mem::take(&mut self.runs);
        let again = |run: Run| {
            if run.kind == kind {
                return Ok(run);
            }
            let (mut reader, mut all) = (RunReader::default(), Vec::new());
            while let Some(mut record) = reader.next(&run, scratch)? {
                let text = record.text(run.kind).to_vec();
                record.key.clear();
                self.append_key(kind, &text, &mut record.key);
                record.text = text;
                all.push(record);
            }
            all.sort_unstable_by(|a, b| a.key.cmp(&b.key));
            let mut records = Spool::default();
            all.iter().try_for_each(|record| push_record(&mut records, scratch, record, kind))?;
            records.finish(scratch)?;
            Ok(Run { kind, records, ..run })
        };
        // One after the other: each is held in memory.
        self.runs = runs.into_iter().map(again).collect::<Result<_>>()?;
        Ok(())
    }

    /// The indices of an epoch's labels, by shard and number. `epoch` counts those that were sealed, from 0.
    pub fn indices(&self, epoch: usize, scratch: &Scratch) -> Result<Vec<Vec<u32>>> {
        let runs = self.runs.iter().filter(|run| !run.old).skip(SHARDS * epoch).take(SHARDS);
        let mut buffer = Vec::new();
        runs.map(|run| {
            let mut indices = vec![0; run.labels as usize];
            for extent in run.indices.extents() {
                scratch.read(extent, &mut buffer)?;
                for pair in buffer.chunks_exact(8) {
                    let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| pair[at + i]));
                    indices[half(0) as usize] = half(4);
                }
            }
            Ok(indices)
        })
        .collect()
    }

    /// Runs that are merged.
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    /// Indices of an older store.
    pub fn old(&self) -> u32 {
        self.old
    }
}

/// The index of a number among an epoch's [`Dictionary::indices`].
#[must_use]
pub fn index_of(indices: &[Vec<u32>], number: u32) -> u32 {
    let shard = number & ((1 << SHARD_BITS) - 1);
    indices[shard as usize][(number >> SHARD_BITS) as usize]
}

/// What threads that fill shards need.
#[derive(Clone, Copy, Debug)]
pub struct Interning<'a> {
    zone: &'a TimeZone,
    kinds: Kinds,
    counted: bool,
}

/// Which kinds new labels may be of.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    number: bool,
    time: bool,
}

impl Found {
    /// What both allow.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { number: self.number && other.number, time: self.time && other.time }
    }
}

impl Interning<'_> {
    /// Gives `out` the numbers of those of `labels` that are in `rows`, all of which belong to `shard`, the column's `at`-th.
    pub fn fill(
        &self,
        shard: &mut Shard,
        at: usize,
        labels: PieceLabels<'_>,
        rows: &[u32],
        out: &mut Vec<u32>,
    ) -> Found {
        let mut found = Found { number: self.kinds.number, time: self.kinds.time };
        let mut key = Vec::new();
        let mut note = |label: &[u8]| {
            if found.number {
                key.clear();
                found.number = number::append_key(label.trim_ascii(), &mut key);
            }
            if found.time {
                found.time = matches!(time::parse(label, self.zone), Some(Moment::Civil(..)));
            }
        };
        for rows in rows.chunks(FETCHED) {
            let looked_up = |&row: &u32| (labels.hashes[row as usize], labels.text(row as usize).len());
            shard.fetch(rows.iter().map(looked_up));
            for &row in rows {
                let (label, hash) = (labels.text(row as usize), labels.hashes[row as usize]);
                let (local, is_new) = shard.intern(label, hash, self.counted);
                if is_new {
                    note(label);
                }
                out.push(number_of(at, local));
            }
        }
        found
    }
}

/// The labels of a column of a piece.
#[derive(Clone, Copy, Debug)]
pub struct PieceLabels<'a> {
    /// One behind the other.
    pub bytes: &'a [u8],
    /// Where each ends.
    pub ends: &'a [u32],
    /// The hash of each.
    pub hashes: &'a [u64],
}

impl<'a> PieceLabels<'a> {
    /// The label of a row.
    fn text(&self, row: usize) -> &'a [u8] {
        let start = if row == 0 { 0 } else { self.ends[row - 1] as usize };
        &self.bytes[start..self.ends[row] as usize]
    }

    /// The rows whose labels belong to each shard.
    #[must_use]
    pub fn rows_by_shard(&self) -> [Vec<u32>; SHARDS] {
        let mut rows = std::array::from_fn(|_| Vec::with_capacity(self.hashes.len() / (SHARDS - 1)));
        for (row, &hash) in (0..).zip(self.hashes) {
            rows[shard_of(hash)].push(row);
        }
        rows
    }
}

/// The first bytes of a key as a number that sorts as they do.
fn prefix(key: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let length = key.len().min(8);
    bytes[..length].copy_from_slice(&key[..length]);
    u64::from_be_bytes(bytes)
}

impl Record {
    fn text(&self, kind: LabelKind) -> &[u8] {
        if kind == LabelKind::Text { &self.key } else { &self.text }
    }
}

fn push_record(records: &mut Spool, scratch: &Scratch, record: &Record, kind: LabelKind) -> Result<()> {
    records.push(scratch, |out| {
        let text = if kind == LabelKind::Text { &[][..] } else { &record.text };
        for length in [record.key.len(), text.len()] {
            out.extend(u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
        }
        out.extend(record.local.to_le_bytes());
        out.extend(record.count.to_le_bytes());
        out.extend_from_slice(&record.key);
        out.extend_from_slice(text);
    })
}

/// Reads a run's records.
#[derive(Debug, Default)]
struct RunReader {
    next: usize,
    buffer: Vec<u8>,
    at: usize,
}

impl RunReader {
    fn next(&mut self, run: &Run, scratch: &Scratch) -> Result<Option<Record>> {
        const HEAD: usize = 20;
        if self.at == self.buffer.len() {
            let Some(extent) = run.records.extents().get(self.next) else {
                self.buffer = Vec::new();
                self.at = 0;
                return Ok(None);
            };
            scratch.read(extent, &mut self.buffer)?;
            (self.next, self.at) = (self.next + 1, 0);
        }
        let record = &self.buffer[self.at..];
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| record[at + i]));
        let (key, text) = (u32_at(0) as usize, u32_at(4) as usize);
        let count = u64::from_le_bytes(std::array::from_fn(|i| record[12 + i]));
        let end = HEAD + key + text;
        self.at += end;
        let (key, text) = (record[HEAD..HEAD + key].to_vec(), record[HEAD + key..end].to_vec());
        Ok(Some(Record { key, text, local: u32_at(8), count }))
    }
}

/// The next label of a run: the heap's greatest is the first in order.
struct Head {
    record: Record,
    run: usize,
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> Ordering {
        other.record.key.cmp(&self.record.key).then(other.run.cmp(&self.run))
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Head {}
