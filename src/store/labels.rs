//! What a store records about its modes besides their dims: names, kinds, and a label for each index
//! (formats-spec/container.md, "Modes and labels").
//!
//! Names and kinds are in the manifest's section `modes`. The labels of mode M are in `labels-M.bin`: compressed blocks
//! of labels, each with a checksum, then a table of the blocks. The section holds the table's checksum. Readers that do
//! not need labels never open these files.

use super::{Manifest, Store};
use crate::error::{Error, Result};
use crate::sys::File;
use xxhash_rust::xxh3::xxh3_64;

/// The longest label, in bytes.
pub const LABEL_BYTES_MAX: usize = 1 << 20;
/// The longest name of a mode or of the values, in bytes.
pub const NAME_BYTES_MAX: usize = 1 << 12;
/// The most labels in a block.
const BLOCK_LABELS: usize = 4096;
/// A block is closed once its texts reach this many bytes.
const BLOCK_BYTES: usize = 1 << 16;
/// The longest block before compression, in bytes.
const RAW_BYTES_MAX: usize = BLOCK_BYTES + LABEL_BYTES_MAX + 4 * BLOCK_LABELS;
/// Bytes of a block's entry in the table.
const ENTRY_BYTES: usize = 32;
/// The zstd level of blocks.
const LEVEL: i32 = 3;

/// The name of the file that holds the labels of `mode`, from 0.
pub(super) fn file_name(mode: usize) -> String {
    format!("labels-{mode}.bin")
}

/// What the labels of a mode are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LabelKind {
    /// No labels: indices are numbers.
    #[default]
    None,
    /// Text, in byte order.
    Text,
    /// Numbers, ascending.
    Number,
    /// Points or intervals of time, earliest first.
    Time,
    /// A cycle, such as the days of the week.
    Cyclic,
}

impl LabelKind {
    /// All kinds, in the order of their codes.
    const ALL: [Self; 5] = [Self::None, Self::Text, Self::Number, Self::Time, Self::Cyclic];

    /// The code in stores.
    pub(super) fn code(self) -> u32 {
        self as u32
    }

    /// The kind with this code.
    pub(super) fn of_code(code: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(code).ok()?).copied()
    }
}

/// The file with a mode's labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelFile {
    /// Blocks, at least 1.
    pub blocks: u32,
    /// Bytes of the file.
    pub bytes: u64,
    /// XXH3-64 of the table of blocks.
    pub table_checksum: u64,
    /// Bytes of all labels' texts.
    pub text_bytes: u64,
}

/// What a store records about one mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModeInfo {
    /// Its name; empty if it has none.
    pub name: String,
    /// The kind of its labels.
    pub kind: LabelKind,
    /// Whether labels are the consecutive steps of a range, steps without nonzeros included.
    pub steps: bool,
    /// Its labels.
    pub file: Option<LabelFile>,
}

/// What a store records about its modes: the section `modes`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModesInfo {
    /// The name of the values; empty if they have none.
    pub value_name: String,
    /// Each mode.
    pub modes: Vec<ModeInfo>,
}

impl ModesInfo {
    /// Modes without names or labels.
    #[must_use]
    pub fn unnamed(order: usize) -> Self {
        Self { value_name: String::new(), modes: vec![ModeInfo::default(); order] }
    }

    /// The mode named `name`, from 0.
    #[must_use]
    pub fn mode(&self, name: &str) -> Option<usize> {
        self.modes.iter().position(|mode| !name.is_empty() && mode.name == name)
    }
}

/// The section `modes` and the label files that belong to it, for a new store.
#[derive(Debug)]
pub struct NewLabels {
    /// The section.
    pub info: ModesInfo,
    /// For each mode with labels, its file in the store's format, and the number of labels.
    pub files: Vec<Option<(File, u64)>>,
    /// Modes whose labels are damaged and therefore left out.
    pub lost: Vec<usize>,
    /// Keeps the files' directory from being removed.
    pub keeps: Option<std::sync::Arc<crate::sys::SpillDir>>,
}

impl NewLabels {
    /// The names and labels of `store`, for another store; `None` if it has neither.
    pub fn of(store: &Store) -> Result<Option<Self>> {
        let Some(info) = store.modes_info() else { return Ok(None) };
        let mut labels = Self { info: info.clone(), files: Vec::new(), lost: Vec::new(), keeps: None };
        for (mode, &dim) in store.dims().iter().enumerate() {
            let file = match store.check_mode(mode) {
                Ok(true) => Some((store.dir.file(&file_name(mode), false)?, u64::from(dim))),
                Ok(false) => None,
                Err(Error::Corrupt { .. }) => {
                    labels.lost.push(mode);
                    let name = std::mem::take(&mut labels.info.modes[mode].name);
                    labels.info.modes[mode] = ModeInfo { name, ..ModeInfo::default() };
                    None
                }
                Err(error) => return Err(error),
            };
            labels.files.push(file);
        }
        Ok(Some(labels))
    }

    /// Fails unless every mode with labels has one for each index. `dims` are the dims of the tensor named
    /// `source`.
    pub fn check(&self, dims: &[u32], source: &str) -> Result<()> {
        let (named, order) = (self.info.modes.len(), dims.len());
        if named != order {
            return Err(Error::input(source, format!("has {order} modes; {named} are named")));
        }
        for ((mode, file), dim) in self.info.modes.iter().zip(&self.files).zip(dims) {
            if let Some((_, count)) = file.as_ref().filter(|(_, count)| *count != u64::from(*dim)) {
                let name = &mode.name;
                let what = format!(
                    "mode {name:?} has {dim} indices and {count} labels; give one label for each, or `dims`"
                );
                return Err(Error::input(source, what));
            }
        }
        Ok(())
    }

    /// Copies the labels of `mode` to `to`.
    pub(super) fn copy(&self, mode: usize, to: &File) -> Result<()> {
        let (Some((from, _)), Some(facts)) = (&self.files[mode], self.info.modes[mode].file) else {
            return Ok(());
        };
        let mut piece = vec![0; 1 << 18];
        let mut at = 0;
        while at < facts.bytes {
            let bytes = piece.len().min(usize::try_from(facts.bytes - at).unwrap_or(usize::MAX));
            let read = from.read_at(&mut piece[..bytes], at)?;
            if read < bytes {
                return Err(Error::unusable(from.path(), "was cut short while it was in use"));
            }
            to.write_all_at(&piece[..bytes], at)?;
            at += bytes as u64;
        }
        Ok(())
    }
}

/// Writes a mode's labels, from index 0 on, to a file.
#[derive(Debug)]
pub struct LabelWriter {
    file: File,
    lengths: Vec<u8>,
    texts: Vec<u8>,
    table: Vec<u8>,
    labels: u64,
    at: u64,
    text_bytes: u64,
}

impl LabelWriter {
    /// Writes to the empty `file`.
    #[must_use]
    pub fn new(file: File) -> Self {
        let (lengths, texts, table) = (Vec::new(), Vec::new(), Vec::new());
        Self { file, lengths, texts, table, labels: 0, at: 0, text_bytes: 0 }
    }

    /// Labels written so far.
    #[must_use]
    pub fn labels(&self) -> u64 {
        self.labels + self.lengths.len() as u64 / 4
    }

    /// Adds the label of the next index.
    pub fn push(&mut self, label: &str) -> Result<()> {
        let length = u32::try_from(label.len()).unwrap_or(u32::MAX);
        if label.len() > LABEL_BYTES_MAX {
            return Err(Error::request(format!(
                "a label of {length} bytes; at most {LABEL_BYTES_MAX} are supported"
            )));
        }
        self.lengths.extend(length.to_le_bytes());
        self.texts.extend_from_slice(label.as_bytes());
        if self.lengths.len() == 4 * BLOCK_LABELS || self.texts.len() >= BLOCK_BYTES {
            self.close()
        } else {
            Ok(())
        }
    }

    /// Compresses and writes the open block.
    fn close(&mut self) -> Result<()> {
        let labels = self.lengths.len() / 4;
        let raw = [&self.lengths[..], &self.texts[..]].concat();
        let failed = |source| Error::Resource { action: "compress labels", source };
        let stored = zstd::bulk::compress(&raw, LEVEL).map_err(failed)?;
        self.file.write_all_at(&stored, self.at)?;
        let fit = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX).to_le_bytes();
        self.table.extend(self.labels.to_le_bytes());
        for field in [fit(labels), fit(stored.len()), fit(raw.len()), fit(0)] {
            self.table.extend(field);
        }
        self.table.extend(xxh3_64(&stored).to_le_bytes());
        self.labels += labels as u64;
        self.at += stored.len() as u64;
        self.text_bytes += self.texts.len() as u64;
        self.lengths.clear();
        self.texts.clear();
        Ok(())
    }

    /// Writes the remaining labels and the table. Returns the section's entry for the file, and the file.
    pub fn finish(mut self) -> Result<(LabelFile, File)> {
        if !self.lengths.is_empty() {
            self.close()?;
        }
        self.file.write_all_at(&self.table, self.at)?;
        let blocks = u32::try_from(self.table.len() / ENTRY_BYTES);
        let blocks = blocks.map_err(|_| Error::request("too many labels"))?;
        let bytes = self.at + self.table.len() as u64;
        let table_checksum = xxh3_64(&self.table);
        Ok((LabelFile { blocks, bytes, table_checksum, text_bytes: self.text_bytes }, self.file))
    }
}

/// Where a block lies.
#[derive(Clone, Copy, Debug)]
struct Block {
    first: u64,
    labels: u32,
    stored: u32,
    raw: u32,
    checksum: u64,
    at: u64,
}

/// Reads the labels of a mode, one block at a time, on demand.
#[derive(Debug)]
pub struct Labels {
    file: File,
    blocks: Vec<Block>,
    /// The block read last, the ends of its labels, and its texts.
    open: Option<usize>,
    ends: Vec<usize>,
    texts: String,
}

impl Labels {
    /// The labels of `mode` of `store`; `None` if it has none.
    pub(super) fn open(store: &Store, mode: usize) -> Result<Option<Self>> {
        let info = store.manifest().modes.as_ref().and_then(|modes| modes.modes.get(mode));
        let Some(facts) = info.and_then(|info| info.file) else { return Ok(None) };
        let (name, dim) = (file_name(mode), store.dims()[mode]);
        let path = store.path().join(&name);
        let corrupt = |what: &str| Error::corrupt(&path, what).breaks("labels");
        match store.dir.file_bytes(&name)? {
            None => return Err(corrupt("missing")),
            Some(bytes) if bytes != facts.bytes => {
                let what = format!("corrupt: {bytes} bytes, the manifest says {}", facts.bytes);
                return Err(corrupt(&what));
            }
            Some(_) => {}
        }
        let file = store.dir.file(&name, false)?;
        let table_bytes = ENTRY_BYTES * facts.blocks as usize;
        let mut table = store.sys.vec(0, table_bytes)?;
        let at = facts.bytes - table_bytes as u64;
        if file.read_at(&mut table, at)? != table_bytes || xxh3_64(&table) != facts.table_checksum {
            return Err(corrupt(&format!("corrupt: checksum of the table at byte {at}")));
        }
        let blocks = read_table(&table, at, dim).ok_or_else(|| corrupt("corrupt: the table of blocks"))?;
        Ok(Some(Self { file, blocks, open: None, ends: Vec::new(), texts: String::new() }))
    }

    /// The number of labels, which is the mode's dim.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.blocks.last().map_or(0, |last| last.first + u64::from(last.labels))
    }

    /// Whether there are no labels.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The label of `index`.
    ///
    /// # Panics If `index` is not below [`Labels::len`].
    pub fn get(&mut self, index: u32) -> Result<&str> {
        let index = u64::from(index);
        let number = self.blocks.partition_point(|block| block.first <= index) - 1;
        self.read(number)?;
        let at = usize::try_from(index - self.blocks[number].first).unwrap_or(usize::MAX);
        Ok(self.text(at))
    }

    /// Calls `each` with every index and its label, in order, until it returns false.
    pub fn for_each(&mut self, mut each: impl FnMut(u32, &str) -> Result<bool>) -> Result<()> {
        for number in 0..self.blocks.len() {
            self.read(number)?;
            let first = self.blocks[number].first;
            for at in 0..self.ends.len() {
                let index = u32::try_from(first + at as u64).unwrap_or(u32::MAX);
                if !each(index, self.text(at))? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn text(&self, at: usize) -> &str {
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.texts[start..self.ends[at]]
    }

    /// Reads and checks block `number`, unless it was read last.
    fn read(&mut self, number: usize) -> Result<()> {
        if self.open == Some(number) {
            return Ok(());
        }
        let block = self.blocks[number];
        let corrupt = |what: &str| {
            let what = format!("corrupt: {what} of the block at byte {}", block.at);
            Error::corrupt(self.file.path(), what).breaks("labels")
        };
        let mut stored = vec![0; block.stored as usize];
        let read = self.file.read_at(&mut stored, block.at)?;
        if read != stored.len() || xxh3_64(&stored) != block.checksum {
            return Err(corrupt("checksum"));
        }
        let raw = zstd::bulk::decompress(&stored, block.raw as usize).map_err(|_| corrupt("zstd frame"))?;
        let count = block.labels as usize;
        let (lengths, texts) = raw.split_at_checked(4 * count).ok_or_else(|| corrupt("lengths"))?;
        let mut end = 0usize;
        self.ends.clear();
        for length in lengths.chunks_exact(4) {
            let length = u32::from_le_bytes(std::array::from_fn(|i| length[i])) as usize;
            end = end.saturating_add(length);
            if length > LABEL_BYTES_MAX {
                return Err(corrupt("lengths"));
            }
            self.ends.push(end);
        }
        let text = std::str::from_utf8(texts).ok().filter(|text| {
            raw.len() == block.raw as usize
                && end == text.len()
                && self.ends.iter().all(|&end| text.is_char_boundary(end))
        });
        text.ok_or_else(|| corrupt("texts"))?.clone_into(&mut self.texts);
        self.open = Some(number);
        Ok(())
    }
}

/// The blocks that a table lists, for `dim` labels in `end` bytes before the table; `None` if the table is
/// wrong.
fn read_table(table: &[u8], end: u64, dim: u32) -> Option<Vec<Block>> {
    let (mut next, mut at) = (0u64, 0u64);
    let mut blocks = Vec::with_capacity(table.len() / ENTRY_BYTES);
    for entry in table.chunks_exact(ENTRY_BYTES) {
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| entry[at + i]));
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| entry[at + i]));
        let block = Block {
            first: u64_at(0),
            labels: u32_at(8),
            stored: u32_at(12),
            raw: u32_at(16),
            checksum: u64_at(24),
            at,
        };
        let counts = 1..=u32::try_from(BLOCK_LABELS).unwrap_or(0);
        let fits = block.first == next
            && counts.contains(&block.labels)
            && block.raw as usize <= RAW_BYTES_MAX
            && block.raw >= 4 * block.labels
            && block.stored as usize <= 2 * RAW_BYTES_MAX
            && u32_at(20) == 0;
        if !fits {
            return None;
        }
        next += u64::from(block.labels);
        at += u64::from(block.stored);
        blocks.push(block);
    }
    (next == u64::from(dim) && at == end).then_some(blocks)
}

impl Store {
    /// What the store records about its modes.
    #[must_use]
    pub fn modes_info(&self) -> Option<&ModesInfo> {
        self.manifest.modes.as_ref()
    }

    /// The name of `mode`, from 0; `None` if it has none.
    #[must_use]
    pub fn mode_name(&self, mode: usize) -> Option<&str> {
        let name = &self.modes_info()?.modes.get(mode)?.name;
        (!name.is_empty()).then_some(name)
    }

    /// Reads all labels; fails if any are damaged.
    pub(crate) fn check_labels(&self) -> Result<()> {
        (0..self.dims().len()).try_for_each(|mode| self.check_mode(mode).map(drop))
    }

    /// Reads all labels of `mode`. Returns whether it has labels.
    fn check_mode(&self, mode: usize) -> Result<bool> {
        let mut bytes = 0;
        let Some(mut labels) = self.labels(mode)? else { return Ok(false) };
        labels.for_each(|_, label| {
            bytes += label.len() as u64;
            Ok(true)
        })?;
        let facts = self.modes_info().and_then(|info| info.modes[mode].file);
        if facts.is_some_and(|facts| facts.text_bytes != bytes) {
            let what = "corrupt: its texts have another length than the manifest says";
            return Err(Error::corrupt(self.path.join(file_name(mode)), what).breaks("labels"));
        }
        Ok(true)
    }

    /// The labels of `mode`, from 0; `None` if it has none.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] if their file is damaged.
    pub fn labels(&self, mode: usize) -> Result<Option<Labels>> {
        Labels::open(self, mode)
    }
}

impl Manifest {
    /// Bytes of all label files.
    #[must_use]
    pub fn label_bytes(&self) -> u64 {
        let files = self.modes.iter().flat_map(|modes| &modes.modes).filter_map(|mode| mode.file);
        files.map(|file| file.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Sys;

    /// Writes `labels` to a file. Returns the section's entry and the file.
    fn written(dir: &std::path::Path, labels: &[String]) -> (LabelFile, File) {
        let mut writer = LabelWriter::new(Sys::default().create(&dir.join("labels")).unwrap());
        for label in labels {
            writer.push(label).unwrap();
        }
        assert_eq!(writer.labels(), labels.len() as u64);
        writer.finish().unwrap()
    }

    /// Reads `bytes` as the label file of a mode of `dim` indices.
    fn read(dir: &std::path::Path, bytes: &[u8], facts: LabelFile, dim: u32) -> Option<Vec<String>> {
        let at = facts.bytes.checked_sub(ENTRY_BYTES as u64 * u64::from(facts.blocks))?;
        let table = &bytes[usize::try_from(at).unwrap()..];
        let blocks = read_table(table, at, dim).filter(|_| xxh3_64(table) == facts.table_checksum)?;
        let path = dir.join("again");
        std::fs::write(&path, bytes).unwrap();
        let file = Sys::default().open(&path, false).unwrap();
        let mut labels = Labels { file, blocks, open: None, ends: Vec::new(), texts: String::new() };
        assert_eq!(labels.len(), u64::from(dim));
        let mut all = Vec::new();
        labels
            .for_each(|_, label| {
                all.push(label.to_owned());
                Ok(true)
            })
            .ok()?;
        for (index, label) in (0..dim).zip(&all).rev().step_by(997) {
            assert_eq!(labels.get(index).unwrap(), label);
        }
        Some(all)
    }

    #[test]
    fn labels_come_back_whatever_their_lengths() {
        let dir = tempfile::tempdir().unwrap();
        let mut labels: Vec<String> = (0..9000).map(|i| format!("label {i}")).collect();
        labels.extend([
            String::new(),
            "é".repeat(LABEL_BYTES_MAX / 2),
            "x".repeat(BLOCK_BYTES),
            String::new(),
        ]);
        let (facts, _) = written(dir.path(), &labels);
        let bytes = std::fs::read(dir.path().join("labels")).unwrap();
        assert_eq!(facts.bytes, bytes.len() as u64);
        assert!(facts.blocks >= 4, "{facts:?}");
        let dim = u32::try_from(labels.len()).unwrap();
        assert!(read(dir.path(), &bytes, facts, dim).unwrap() == labels);
        assert!(read(dir.path(), &bytes, facts, dim + 1).is_none());
        let too_long = "x".repeat(LABEL_BYTES_MAX + 1);
        let file = Sys::default().create(&dir.path().join("other")).unwrap();
        assert!(LabelWriter::new(file).push(&too_long).is_err());
    }

    #[test]
    fn every_flip_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let labels = ["", "a", "b,\"\n", "日本"].map(str::to_owned);
        let (facts, _) = written(dir.path(), &labels);
        let mut bytes = std::fs::read(dir.path().join("labels")).unwrap();
        assert_eq!(read(dir.path(), &bytes, facts, 4).unwrap(), labels);
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(read(dir.path(), &bytes, facts, 4).is_none(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
