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
use std::collections::binary_heap::PeekMut;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

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
    shards: [Mutex<Shard>; SHARDS],
    /// Which kinds all labels may be of.
    number: AtomicBool,
    time: AtomicBool,
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
        let of_kind = || AtomicBool::new(wanted.kind.is_none());
        Self {
            number: of_kind(),
            time: of_kind(),
            wanted,
            zone: zone.clone(),
            shards: Default::default(),
            runs: Vec::new(),
            old: 0,
        }
    }

    /// Its shards, which no other thread uses.
    fn shards(&mut self) -> impl Iterator<Item = &mut Shard> {
        self.shards.iter_mut().map(|shard| shard.get_mut().unwrap_or_else(PoisonError::into_inner))
    }

    /// Bytes that its tables take.
    pub fn bytes(&mut self) -> u64 {
        self.shards().map(|shard| shard.bytes()).sum()
    }

    /// Whether a shard can take no more than the labels of a group of pieces.
    pub fn is_full(&mut self) -> bool {
        self.shards().any(|shard| shard.is_full())
    }

    /// Appends the numbers of `labels` to `numbers`. Several threads may call it at once.
    pub fn number(&self, labels: PieceLabels<'_>, numbers: &mut Vec<u32>) {
        let rows = labels.rows_by_shard();
        numbers.resize(labels.hashes.len(), 0);
        let mut fill = |at: usize, shard: &mut Shard| self.fill(at, shard, labels, &rows[at], numbers);
        // First the shards that no other thread uses.
        let first = rayon::current_thread_index().unwrap_or(0);
        let mut left: Vec<usize> = (0..SHARDS).map(|at| (first + at) % SHARDS).collect();
        while let Some(&next) = left.first() {
            let before = left.len();
            left.retain(|&at| match self.shards[at].try_lock() {
                Ok(mut shard) => {
                    fill(at, &mut shard);
                    false
                }
                Err(_) => true,
            });
            if left.len() == before {
                fill(next, &mut self.shards[next].lock().unwrap_or_else(PoisonError::into_inner));
                left.retain(|&at| at != next);
            }
        }
    }

    /// Gives `numbers` those of `labels` that are in `rows`, all of which belong to `shard`, the `at`-th.
    fn fill(&self, at: usize, shard: &mut Shard, labels: PieceLabels<'_>, rows: &[u32], numbers: &mut [u32]) {
        let counted = self.wanted.quantiles.is_some();
        for rows in rows.chunks(FETCHED) {
            let looked_up = |&row: &u32| (labels.hashes[row as usize], labels.text(row as usize).len());
            shard.fetch(rows.iter().map(looked_up));
            for &row in rows {
                let (label, hash) = (labels.text(row as usize), labels.hashes[row as usize]);
                let (local, is_new) = shard.intern(label, hash, counted);
                if is_new {
                    self.note(label);
                }
                numbers[row as usize] = number_of(at, local);
            }
        }
    }

    /// Takes note of which kinds a new label may be of.
    fn note(&self, label: &[u8]) {
        let is_number = || number::append_key(label.trim_ascii(), &mut Vec::new());
        if self.number.load(Relaxed) && !is_number() {
            self.number.store(false, Relaxed);
        }
        let is_time = || matches!(time::parse(label, &self.zone), Some(Moment::Civil(..)));
        if self.time.load(Relaxed) && !is_time() {
            self.time.store(false, Relaxed);
        }
    }

    /// The kind of the labels so far.
    fn kind(&self) -> LabelKind {
        match self.wanted {
            Wanted { quantiles: Some(_), .. } => LabelKind::Number,
            Wanted { kind: Some(kind), .. } => kind,
            _ if self.number.load(Relaxed) => LabelKind::Number,
            _ if self.time.load(Relaxed) => LabelKind::Time,
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
            record.push(&mut records, scratch, kind)?;
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
        let shards: Vec<Shard> = self.shards().map(std::mem::take).collect();
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
        for (_, local) in order {
            let (text, count) = (shard.text(local), shard.count(local));
            if kind == LabelKind::Text {
                push_record(&mut records, scratch, text, &[], local, count)?;
            } else {
                key.clear();
                self.append_key(kind, text, &mut key);
                push_record(&mut records, scratch, &key, text, local, count)?;
            }
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
        let mut readers: Vec<RunReader> = self.runs.iter().map(|_| RunReader::default()).collect();
        let mut heap = BinaryHeap::with_capacity(self.runs.len());
        for (number, (run, reader)) in self.runs.iter().zip(&mut readers).enumerate() {
            let mut head = Head { run: number, ..Head::default() };
            if reader.next(run, scratch, &mut head)? {
                heap.push(head);
            }
        }
        let (mut next, mut same) = (0u64, Same::default());
        loop {
            let head = heap.peek_mut();
            if head.as_ref().is_none_or(|head| head.record.key != same.key) && !same.members.is_empty() {
                let index = if let Some(index) = same.old {
                    index
                } else {
                    next += 1;
                    each(next - 1, &same.text, same.count)?
                };
                for (run, local) in same.members.drain(..) {
                    let pair = [local, index].map(u32::to_le_bytes);
                    self.runs[run].indices.push(scratch, |out| out.extend_from_slice(pair.as_flattened()))?;
                }
                if u64::from(self.old) + next > DIM_MAX {
                    return Err(Error::request(format!("more than {DIM_MAX} labels")));
                }
            }
            let Some(mut head) = head else { break };
            let run = &self.runs[head.run];
            same.add(&head, kind, run.old);
            if !readers[head.run].next(run, scratch, &mut head)? {
                PeekMut::pop(head);
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
            let mut head = Head::default();
            while reader.next(&run, scratch, &mut head)? {
                let mut record = std::mem::take(&mut head.record);
                let text = record.text(run.kind).to_vec();
                record.key.clear();
                self.append_key(kind, &text, &mut record.key);
                record.text = text;
                all.push(record);
            }
            all.sort_unstable_by(|a, b| a.key.cmp(&b.key));
            let mut records = Spool::default();
            all.iter().try_for_each(|record| record.push(&mut records, scratch, kind))?;
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

    fn push(&self, records: &mut Spool, scratch: &Scratch, kind: LabelKind) -> Result<()> {
        let text = if kind == LabelKind::Text { &[][..] } else { &self.text };
        push_record(records, scratch, &self.key, text, self.local, self.count)
    }
}

fn push_record(
    records: &mut Spool,
    scratch: &Scratch,
    key: &[u8],
    text: &[u8],
    local: u32,
    count: u64,
) -> Result<()> {
    records.push(scratch, |out| {
        for length in [key.len(), text.len()] {
            out.extend(u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
        }
        out.extend(local.to_le_bytes());
        out.extend(count.to_le_bytes());
        out.extend_from_slice(key);
        out.extend_from_slice(text);
    })
}

/// Labels of several runs whose keys are equal.
#[derive(Debug, Default)]
struct Same {
    key: Vec<u8>,
    /// Of texts of one number, 1 and 1.0, the shortest; of those the first.
    text: Vec<u8>,
    count: u64,
    /// The index that an older store gives.
    old: Option<u32>,
    /// The runs, and their numbers in them.
    members: Vec<(usize, u32)>,
}

impl Same {
    /// Adds a label, the first one if there are no members.
    fn add(&mut self, Head { record, run, .. }: &Head, kind: LabelKind, old: bool) {
        let text = record.text(kind);
        let is_first = self.members.is_empty();
        if is_first {
            record.key.clone_into(&mut self.key);
            (self.count, self.old) = (0, None);
        }
        if is_first || text.len().cmp(&self.text.len()).then_with(|| text.cmp(&self.text)).is_lt() {
            text.clone_into(&mut self.text);
        }
        self.count += record.count;
        self.old = self.old.or(old.then_some(record.local));
        self.members.push((*run, record.local));
    }
}

/// Reads a run's records.
#[derive(Debug, Default)]
struct RunReader {
    next: usize,
    buffer: Vec<u8>,
    at: usize,
}

impl RunReader {
    /// Has `head` hold the next record; whether there is one.
    fn next(&mut self, run: &Run, scratch: &Scratch, head: &mut Head) -> Result<bool> {
        const HEAD: usize = 20;
        if self.at == self.buffer.len() {
            let Some(extent) = run.records.extents().get(self.next) else {
                self.buffer = Vec::new();
                self.at = 0;
                return Ok(false);
            };
            scratch.read(extent, &mut self.buffer)?;
            (self.next, self.at) = (self.next + 1, 0);
        }
        let record = &self.buffer[self.at..];
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| record[at + i]));
        let (key, text) = (u32_at(0) as usize, u32_at(4) as usize);
        let end = HEAD + key + text;
        self.at += end;
        head.record.local = u32_at(8);
        head.record.count = u64::from_le_bytes(std::array::from_fn(|i| record[12 + i]));
        record[HEAD..HEAD + key].clone_into(&mut head.record.key);
        record[HEAD + key..end].clone_into(&mut head.record.text);
        head.prefix = prefix(&head.record.key);
        Ok(true)
    }
}

/// The next label of a run: the heap's greatest is the first in order.
#[derive(Debug, Default)]
struct Head {
    /// Of the key.
    prefix: u64,
    record: Record,
    run: usize,
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> Ordering {
        let keys = || other.record.key.cmp(&self.record.key);
        other.prefix.cmp(&self.prefix).then_with(keys).then(other.run.cmp(&self.run))
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
