//! `blco-info`.

use super::compare;
use super::engine::host_engine;
use super::outputs::check_temp_dir;
use super::pack::TextArgs;
use super::progress::Bar;
use super::repair::{RepairArgs, repair};
use super::table::{ModeReport, mode_of, mode_reports, modes_text, short};
use super::{Common, Program, Report, nonzeros, text_of, told};
use crate::backend::host::decoded_bytes;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::format::Totals;
use crate::linear::{Key, Wide};
use crate::op::inspect::{Inspect, StoreStatistics};
use crate::op::storage::{Storage, StorageUnits};
use crate::op::verify::{Verify, check_totals};
use crate::pack::ExternalSumMemory;
use crate::store::{ChunkEntry, Manifest, PartOf, Partition, Store, holds_manifest};
use crate::sys::Sys;
use bytesize::ByteSize;
use clap::Parser;
use comfy_table::{Table, presets};
use serde::Serialize;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Describes, checks, repairs and upgrades a store
///
/// Prints the shape, size and statistics of a store. --verify checks every byte: it decodes every chunk, encodes it again and compares.
/// --repair writes the intact part of a damaged store to a new store and reports what is lost. With either, the exit status is 1 if the
/// store is damaged.
#[derive(Debug, Parser)]
#[command(
    name = "blco-info",
    version,
    after_help = "Examples:\n  blco-info movies.blco\n  blco-info movies.blco --quick --json\n  blco-info movies.blco --verify\n  \
                  blco-info movies.blco --repair saved.blco\n  blco-info old.blco --upgrade new.blco\n  \
                  blco-info movies.tns --compare"
)]
pub struct Info {
    /// The store
    store: PathBuf,
    /// Check every byte of the store
    #[arg(long, conflicts_with = "quick")]
    verify: bool,
    /// Read only the manifest and print no statistics of rows and tiles
    #[arg(long)]
    quick: bool,
    /// Print the storage units that the formats of the HOCFS paper (HOCOO, HOCSR, CFB, HOCFS) need for each mode. This sorts the fibers
    /// of every mode, in temporary files if memory is short
    #[arg(long, conflicts_with = "quick")]
    storage: bool,
    /// Directory for temporary files of --storage and --compare [default: the system's]
    #[arg(long, value_name = "DIR")]
    storage_dir: Option<PathBuf>,
    /// Compare the formats and recommend one. This packs the tensor in each format, in temporary files, and prints index bytes (here and
    /// by the paper's formula), slices, fibers and fiber lengths. STORE may also be coordinate text
    #[arg(long, conflicts_with_all = ["verify", "quick", "storage", "labels", "repair", "upgrade"])]
    compare: bool,
    /// Print the labels of a mode, given by name or number. A line is an index, a tab and a label
    #[arg(long, value_name = "MODE", conflicts_with_all = ["verify", "quick", "storage", "repair", "upgrade"])]
    labels: Option<String>,
    /// Print only labels that contain this text, ignoring case
    #[arg(long, value_name = "TEXT", requires = "labels")]
    find: Option<String>,
    #[command(flatten)]
    text: TextArgs,
    #[command(flatten)]
    repair: RepairArgs,
    #[command(flatten)]
    common: Common,
}

/// The JSON report.
#[derive(Debug, Serialize)]
struct InfoReport {
    #[serde(serialize_with = "crate::sys::shown_path")]
    store: PathBuf,
    digest: String,
    /// The version of the container.
    container_version: u32,
    /// The hash of the nonzeros, whatever the format; `None` in version 1.
    hash: Option<String>,
    /// Of which tensor this is a part; `None` for a whole one.
    part: Option<PartInfo>,
    format: &'static str,
    encoding: &'static str,
    /// The mode of each level of a tree.
    levels: Option<Vec<usize>>,
    /// The partitions of the store.
    partitions: Vec<PartitionInfo>,
    zstd_level: Option<i32>,
    dims: Vec<u32>,
    nnz: u64,
    density: f64,
    duplicates_may_occur: bool,
    /// `None` if it follows only from the values and these were not read, or if it overflows f64.
    norm: Option<f64>,
    value_min: f64,
    value_max: f64,
    linear_bits: u32,
    bit_modes: Vec<usize>,
    longest_row_bounds: Vec<u64>,
    chunk_bytes: u64,
    chunks: ChunkSizes,
    bytes: u64,
    bytes_per_nnz: BytesPerNnz,
    /// Names, kinds and labels of the modes.
    modes: Vec<ModeReport>,
    /// The name of the values.
    value_name: Option<String>,
    statistics: Option<StoreStatistics>,
    storage: Option<Vec<StorageUnits>>,
    verified: Option<bool>,
    problem: Option<String>,
}

/// A partition.
#[derive(Debug, Serialize)]
struct PartitionInfo {
    encoding: &'static str,
    /// The order of modes by which it is sorted; `None` if their bits are interleaved.
    order: Option<Vec<usize>>,
    /// The covers that it belongs to, from 0.
    covers: Vec<u32>,
    /// The modes that it serves.
    targets: Vec<u32>,
    chunks: u64,
    nnz: u64,
    /// Bytes of its chunk files.
    bytes: u64,
    hash: Option<String>,
    /// The nodes of each level of a tree.
    nodes: Option<Vec<u64>>,
    /// Of fcoo: the nonzeros of a thread, which share a start flag.
    #[serde(skip_serializing_if = "Option::is_none")]
    thread_nnz: Option<u32>,
}

impl PartitionInfo {
    fn all(store: &Store) -> Vec<Self> {
        let all = store.partitions();
        let parts = all.parts().zip(&store.whole().partitions);
        parts.map(|((_, chunks), partition)| Self::new(partition, &all.manifest().chunks[chunks])).collect()
    }

    fn new(partition: &Partition, chunks: &[ChunkEntry]) -> Self {
        let bits = |bits: u32| (0..u32::BITS).filter(move |bit| bits >> bit & 1 != 0);
        let nodes = partition.statistics.as_ref().filter(|_| partition.format.tree_levels().is_some());
        Self {
            encoding: partition.format.encoding(),
            order: partition.format.record().levels.map(|levels| from_one(levels.modes())),
            covers: bits(partition.covers).collect(),
            targets: bits(partition.targets).map(|mode| mode + 1).collect(),
            chunks: partition.chunks,
            nnz: partition.nnz,
            bytes: chunks.iter().map(|chunk| chunk.file_bytes).sum(),
            hash: partition.hash.map(|hash| format!("{hash:016x}")),
            nodes: nodes.map(|of| of.nodes.into_iter().filter(|&nodes| nodes > 0).collect()),
            thread_nnz: partition.format.thread_nnz(),
        }
    }

    fn text(&self) -> String {
        let list = |modes: &[usize]| modes.iter().map(ToString::to_string).collect::<Vec<_>>().join("-");
        let order = self.order.as_deref().map_or("interleaved".into(), list);
        let targets: Vec<String> = self.targets.iter().map(ToString::to_string).collect();
        let covers: Vec<String> = self.covers.iter().map(ToString::to_string).collect();
        format!(
            "  cover {}   {}, modes {order}, for modes {}: {}, {} in {} chunks",
            covers.join(", "),
            self.encoding,
            targets.join(", "),
            nonzeros(self.nnz),
            ByteSize(self.bytes),
            self.chunks,
        )
    }
}

/// How large the chunks are.
#[derive(Debug, Serialize)]
struct ChunkSizes {
    count: usize,
    bytes_min: u64,
    bytes_median: u64,
    bytes_max: u64,
    nnz_min: u64,
    nnz_median: u64,
    nnz_max: u64,
}

/// Bytes per nonzero. Index and values are as in images; the rest is overhead (negative if a codec saves bytes).
#[derive(Debug, Serialize)]
struct BytesPerNnz {
    index: Option<f64>,
    values: Option<f64>,
    overhead: Option<f64>,
    total: f64,
    raw_blco: f64,
}

impl ChunkSizes {
    fn new(manifest: &Manifest) -> Self {
        let sorted = |of: fn(&ChunkEntry) -> u64| {
            let mut all: Vec<u64> = manifest.chunks.iter().map(of).collect();
            all.sort_unstable();
            (all[0], all[all.len() / 2], all[all.len() - 1])
        };
        let (bytes_min, bytes_median, bytes_max) = sorted(|c| c.file_bytes);
        let (nnz_min, nnz_median, nnz_max) = sorted(|c| c.nnz);
        let count = manifest.chunks.len();
        Self { count, bytes_min, bytes_median, bytes_max, nnz_min, nnz_median, nnz_max }
    }
}

/// Modes, counted from 1.
fn from_one(modes: &[u8]) -> Vec<usize> {
    modes.iter().map(|&mode| usize::from(mode) + 1).collect()
}

/// The place of a part in its tensor.
#[derive(Debug, Serialize)]
struct PartInfo {
    /// From 1.
    number: u32,
    parts: u32,
    nnz: u64,
    hash: String,
}

impl PartInfo {
    fn new(part: &PartOf) -> Self {
        let PartOf { number, parts, nnz, hash, .. } = *part;
        Self { number: number + 1, parts, nnz, hash: format!("{hash:016x}") }
    }
}

impl InfoReport {
    fn new(store: &Store) -> Result<Self> {
        let m = store.manifest();
        let bytes = store.bytes()?;
        let places = m.shape.dims().iter().map(|&d| f64::from(d)).product::<f64>();
        Ok(Self {
            store: store.path().to_path_buf(),
            digest: format!("{:016x}", store.id()),
            container_version: m.version as u32,
            hash: m.hash().map(|hash| format!("{hash:016x}")),
            part: m.part.as_ref().map(PartInfo::new),
            format: m.format().name(),
            encoding: m.format().encoding(),
            levels: m.format().tree_levels().map(|levels| from_one(levels.modes())),
            partitions: PartitionInfo::all(store),
            zstd_level: m.codec.level(),
            dims: m.shape.dims().to_vec(),
            nnz: m.nnz,
            density: m.nnz as f64 / places,
            duplicates_may_occur: m.may_repeat,
            norm: m.norm(),
            value_min: m.value_min,
            value_max: m.value_max,
            linear_bits: m.shape.linear_bits(),
            bit_modes: from_one(m.format().bit_layout(&m.shape).bit_modes()),
            longest_row_bounds: m.longest_row_bounds.clone(),
            chunk_bytes: m.chunk_bytes,
            chunks: ChunkSizes::new(store.whole()),
            bytes,
            bytes_per_nnz: BytesPerNnz {
                index: None,
                values: None,
                overhead: None,
                total: bytes as f64 / m.nnz as f64,
                raw_blco: 16.0,
            },
            modes: mode_reports(store)?,
            value_name: store
                .modes_info()
                .map(|info| info.value_name.clone())
                .filter(|name| !name.is_empty()),
            statistics: None,
            storage: None,
            verified: None,
            problem: None,
        })
    }

    fn covers(&self) -> usize {
        self.partitions
            .iter()
            .flat_map(|partition| &partition.covers)
            .max()
            .map_or(1, |&last| last as usize + 1)
    }

    fn add(&mut self, statistics: StoreStatistics, norm: Option<f64>) {
        self.norm = norm.or(self.norm);
        let per_nnz = |bytes: u64| bytes as f64 / self.nnz as f64;
        let (index, values) = (per_nnz(statistics.index_bytes), per_nnz(statistics.value_bytes));
        let total = self.bytes_per_nnz.total;
        self.bytes_per_nnz.index = Some(index);
        self.bytes_per_nnz.values = Some(values);
        // Statistics describe the first cover, the total describes all covers.
        self.bytes_per_nnz.overhead = (self.covers() == 1).then_some(total - index - values);
        self.statistics = Some(statistics);
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        let dims: Vec<String> = self.dims.iter().map(ToString::to_string).collect();
        let (b, c) = (&self.bytes_per_nnz, &self.chunks);
        writeln!(out, "{}", self.store.display())?;
        writeln!(
            out,
            "  shape     {}, {}, density {:.2e}",
            dims.join(" x "),
            nonzeros(self.nnz),
            self.density
        )?;
        if let Some(PartInfo { number, parts, nnz, hash }) = &self.part {
            writeln!(
                out,
                "  part      {number} of {parts} of a tensor with {}, hash {hash}",
                nonzeros(*nnz)
            )?;
        }
        let repeat = if self.duplicates_may_occur { "; coordinates may repeat" } else { "" };
        let norm = self.norm.map_or("unknown until all values are read".to_owned(), shown);
        let (min, max) = (shown(self.value_min), shown(self.value_max));
        let name = self.value_name.as_deref().map_or_else(String::new, |name| format!("{}: ", short(name)));
        writeln!(out, "  values    {name}{min} to {max}, norm {norm}{repeat}")?;
        out.push_str(&modes_text(&self.modes));
        let format = match &self.levels {
            _ if self.partitions.len() > 1 => {
                format!("{}, {} partitions", self.format.to_uppercase(), self.partitions.len())
            }
            None => format!("{}, {}", self.format.to_uppercase(), self.encoding),
            Some(levels) if self.format != "hocfs" => {
                let levels: Vec<String> = levels.iter().map(ToString::to_string).collect();
                format!("{}, levels of modes {}", self.format.to_uppercase(), levels.join(", "))
            }
            Some(levels) => {
                let levels: Vec<String> = levels.iter().map(ToString::to_string).collect();
                format!("HOCFS, slices {}, levels of modes {}", self.encoding, levels.join(", "))
            }
        };
        let of_thread = self.partitions.first().and_then(|partition| partition.thread_nnz);
        let of_thread =
            of_thread.map_or_else(String::new, |nnz| format!(", a start flag for each {nnz} nonzeros"));
        let codec = self.zstd_level.map_or(String::new(), |level| format!(", zstd level {level}"));
        writeln!(
            out,
            "  format    {format}{of_thread}{codec}, {} linear bits, version {}, digest {}",
            self.linear_bits, self.container_version, self.digest
        )?;
        if self.partitions.len() > 1 {
            self.partitions.iter().try_for_each(|partition| writeln!(out, "{}", partition.text()))?;
        }
        if let Some(hash) = &self.hash {
            writeln!(out, "  hash      {hash} of the nonzeros, whatever the format")?;
        }
        write!(out, "  bytes     {} in all, {:.3} a nonzero", ByteSize(self.bytes), b.total)?;
        if let (Some(index), Some(values), Some(overhead)) = (b.index, b.values, b.overhead) {
            write!(out, " = index {index:.3} + values {values:.3} + overhead {overhead:.3}")?;
        }
        writeln!(out, " (raw BLCO: 16)")?;
        writeln!(
            out,
            "  chunks    {}: {} to {}, median {}; {} to {} nonzeros",
            c.count,
            ByteSize(c.bytes_min),
            ByteSize(c.bytes_max),
            ByteSize(c.bytes_median),
            c.nnz_min,
            c.nnz_max
        )?;
        if let Some(s) = &self.statistics {
            let encodings: Vec<String> =
                s.value_encodings.iter().map(|(name, n)| format!("{name} {n}")).collect();
            writeln!(out, "  tiles     {}; values of chunks: {}", s.tiles, encodings.join(", "))?;
            if s.blocks > 0 {
                writeln!(out, "  blocks    {} BLCO blocks", s.blocks)?;
            }
            if s.ell_slices > 0 {
                writeln!(out, "  slices    {} padded", s.ell_slices)?;
            }
            writeln!(out, "  zeros     {} explicit", s.zeros)?;
        }
        writeln!(out, "{}", self.mode_table())?;
        if let Some(units) = &self.storage {
            writeln!(
                out,
                "units of storage; this store takes {} bytes\n{}",
                self.bytes,
                storage_table(units)
            )?;
        }
        match (self.verified, &self.problem) {
            (Some(true), _) => writeln!(out, "verified: no damage"),
            (_, Some(problem)) => writeln!(out, "NOT VERIFIED: {problem}"),
            _ => Ok(()),
        }
    }

    fn mode_table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::UTF8_BORDERS_ONLY);
        let Some(statistics) = &self.statistics else {
            table.set_header(["mode", "dim", "longest row, at most"]);
            for (m, (dim, bound)) in self.dims.iter().zip(&self.longest_row_bounds).enumerate() {
                table.add_row([(m + 1).to_string(), dim.to_string(), bound.to_string()]);
            }
            return table;
        };
        table.set_header(["mode", "dim", "rows used", "longest row", "rows in a tile", "bits in a tile"]);
        for (m, (dim, mode)) in self.dims.iter().zip(&statistics.modes).enumerate() {
            let known = |x: Option<u64>| x.map_or("-".to_owned(), |x| x.to_string());
            table.add_row([
                (m + 1).to_string(),
                dim.to_string(),
                known(mode.rows),
                known(mode.longest_row),
                format!("{:.1}", mode.tile_span),
                format!("{:.2}", mode.tile_bits),
            ]);
        }
        table
    }
}

/// A number for people: whole numbers in full, others with five significant digits; with an exponent if there would be many zeros.
fn shown(x: f64) -> String {
    let whole = x.fract() == 0.0 && x.abs() < 1e16;
    let x = if whole { x } else { format!("{x:.4e}").parse().unwrap_or(x) };
    let plain = x == 0.0 || (1e-5..1e16).contains(&x.abs());
    if plain { x.to_string() } else { format!("{x:e}") }
}

/// The table that the paper prints as Tables 4 to 6.
fn storage_table(units: &[StorageUnits]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(["mode", "main mode", "slices", "fibers", "HOCOO", "HOCSR", "CFB", "HOCFS"]);
    for u in units {
        let hocsr = u.hocsr.map_or("-".to_owned(), |n| n.to_string());
        let rest = [u.slices, u.fibers, u.hocoo].map(|n| n.to_string());
        let ends = [u.cfb, u.hocfs].map(|n| n.to_string());
        let row = [u.mode.to_string(), u.main_mode.to_string()].into_iter().chain(rest);
        table.add_row(row.chain([hocsr]).chain(ends));
    }
    table
}

/// A label that was found.
#[derive(Debug, Serialize)]
struct LabelFound {
    /// Counted from 1.
    index: u64,
    label: String,
}

impl Info {
    /// Lists the labels of a mode; with --find, only those that contain its text.
    fn list_labels(&self, store: &Store, mode: &str) -> Result<Report> {
        let at = mode_of("--labels", mode, store)?;
        let Some(mut labels) = store.labels(at)? else {
            return Err(Error::request(format!("{}: mode {mode} has no labels", store.path().display())));
        };
        let wanted = self.find.as_deref().map(str::to_lowercase);
        let (mut text, mut found) = (String::new(), Vec::new());
        labels.for_each(|index, label| {
            if wanted.as_deref().is_none_or(|wanted| label.to_lowercase().contains(wanted)) {
                let index = u64::from(index) + 1;
                if self.common.json {
                    found.push(LabelFound { index, label: label.to_owned() });
                } else {
                    let line = label
                        .replace('\\', "\\\\")
                        .replace('\n', "\\n")
                        .replace('\t', "\\t")
                        .replace('\r', "\\r");
                    let line = format!("{index}\t{line}\n");
                    text.push_str(&line);
                }
            }
            Ok(true)
        })?;
        let report = serde_json::json!({ "store": store.path(), "mode": at + 1, "labels": found });
        Report::new::<Self>(text, &report)
    }

    /// Counts the storage units, in one pass.
    fn count(&self, store: &Store, engine: &Engine) -> Result<Vec<StorageUnits>> {
        let memory = engine.room(store, decoded_bytes(store.manifest().shape.order(), 1))?;
        let directory = self.storage_dir.clone().unwrap_or_else(std::env::temp_dir);
        if store.manifest().shape.linear_bits() <= u64::BITS {
            count_by::<u64>(store, engine, memory, &directory)
        } else {
            count_by::<Wide>(store, engine, memory, &directory)
        }
    }

    /// The statistics, and the norm if the manifest does not have it, in one pass. With `--verify`, the pass also checks everything.
    fn look(&self, store: &Store, engine: &Engine) -> Result<(StoreStatistics, Option<f64>)> {
        let (manifest, threads) = (store.manifest(), engine.threads());
        let shape = &manifest.shape;
        let several = store.whole().partitions.len() > 1;
        if self.verify && several {
            engine.verify(store)?;
        }
        let verifying = if self.verify && !several { Verify::host_bytes(store)? } else { 0 };
        let room =
            engine.room(store, decoded_bytes(store.manifest().shape.order(), 1))?.saturating_sub(verifying);
        let counters = Inspect::host_bytes(shape, manifest.nnz, room);
        // A lack of memory for --storage, which runs later, is reported now.
        let [coming, afterwards] = if self.storage {
            let takes = ExternalSumMemory::new(shape, manifest.nnz, threads);
            takes.taken(takes.least()).map(|bytes| bytes + Storage::<Wide>::kept_bytes(threads))
        } else {
            [0, 0]
        };
        let passing = (counters + verifying).max(coming);
        let plan = engine.plan_stream(store, [passing, afterwards])?;
        let inspect = Inspect::within(store.sys(), shape, manifest.nnz, room)?;
        let mut inspect = inspect.with_norm(manifest.norm().is_none().then(|| manifest.largest()));
        if self.verify && !several {
            let mut totals = Totals::default();
            let mut both = (inspect, Verify::new(store, &totals));
            engine.stream_by(store, &mut both, &plan, "verifying")?;
            both.1.finish(&mut totals)?;
            check_totals(store, &totals)?;
            inspect = both.0;
        } else {
            engine.stream_by(store, &mut inspect, &plan, "reading")?;
        }
        while inspect.goes_on() {
            engine.stream_by(store, &mut inspect, &plan, "counting rows")?;
        }
        Ok(inspect.finish())
    }
}

fn count_by<K: Key>(
    store: &Store,
    engine: &Engine,
    memory: u64,
    directory: &Path,
) -> Result<Vec<StorageUnits>> {
    let (shape, threads) = (&store.manifest().shape, engine.threads());
    let modes: Vec<usize> = (0..shape.order()).collect();
    let takes = ExternalSumMemory::new(shape, store.manifest().nnz, threads);
    let memory = memory.saturating_sub(Storage::<K>::kept_bytes(threads));
    // Modes whose fibers are sorted at the same time share the memory. If memory is short, modes get passes of their own.
    let at_once = usize::try_from(memory / takes.least()).unwrap_or(usize::MAX).clamp(1, modes.len());
    let mut units = Vec::new();
    for modes in modes.chunks(at_once) {
        let at_once = modes.len() as u64;
        let share = (memory / at_once).max(takes.least());
        let taken = takes.taken(share).map(|bytes| bytes * at_once + Storage::<K>::kept_bytes(threads));
        let plan = engine.plan_stream(store, taken)?;
        let of = (shape, store.manifest().nnz);
        let mut storage = Storage::<K>::new(store.sys(), of, modes, share * at_once, directory);
        engine.stream_by(store, &mut storage, &plan, "counting")?;
        units.extend(storage.finish()?);
    }
    Ok(units)
}

/// The report on a store whose manifest cannot be read: a failed check.
fn unreadable(store: &Path, error: &Error) -> Result<Report> {
    let problem = told(error);
    let json = serde_json::json!({ "store": store, "verified": false, "problem": problem });
    let report = Report::new::<Info>(format!("NOT VERIFIED: {problem}\n"), &json)?;
    Ok(Report { failed: true, ..report })
}

impl Program for Info {
    fn common(&self) -> &Common {
        &self.common
    }

    fn run(&self, sys: &Sys) -> Result<Report> {
        check_temp_dir("--storage-dir", self.storage_dir.as_deref())?;
        if let Some(target) = self.repair.repair.as_ref().or(self.repair.upgrade.as_ref()) {
            return repair::<Self>(sys, &self.store, target, &self.repair, self.common);
        }
        if self.storage_dir.is_some() && !self.storage && !self.compare {
            return Err(Error::request(
                "--storage-dir is for the temporary files of --storage and --compare; give one of these",
            ));
        }
        if let Some(option) = self.text.given()
            && (!self.compare || holds_manifest(&self.store)?)
        {
            let what = "describes coordinate text, which only --compare reads; leave it out, or give text with --compare";
            return Err(Error::request(format!("{option} {what}")));
        }
        let progress = Bar::new(self.common.quiet || self.common.json);
        // Reading the manifest is work for one thread.
        let threads = if self.quick { Some(1) } else { self.common.threads };
        let common = Common { threads, ..self.common };
        let engine = host_engine(sys, common, self.repair.memory, &progress)?;
        if self.compare {
            let directory = self.storage_dir.clone().unwrap_or_else(std::env::temp_dir);
            return compare::run::<Self>(
                sys,
                &engine,
                (&self.store, self.text.options()),
                &directory,
                &progress,
            );
        }
        let store = match engine.open_for(&self.store, !self.quick) {
            Err(error @ Error::Corrupt { .. }) if self.verify => return unreadable(&self.store, &error),
            store => store?,
        };
        if let Some(mode) = &self.labels {
            return self.list_labels(&store, mode);
        }
        let mut info = InfoReport::new(&store)?;
        if !self.quick {
            match engine.install(|| self.look(&store, &engine)) {
                Ok((statistics, norm)) => {
                    info.add(statistics, norm);
                    info.verified = self.verify.then_some(true);
                }
                Err(error @ Error::Corrupt { .. }) if self.verify => {
                    info.verified = Some(false);
                    info.problem = Some(told(&error));
                }
                Err(error) => return Err(error),
            }
        }
        if self.storage && info.problem.is_none() {
            info.storage = Some(engine.install(|| self.count(&store, &engine))?);
        }
        progress.end();
        let report = Report::new::<Self>(text_of(|out| info.write_text(out))?, &info)?;
        Ok(Report { failed: info.verified == Some(false), ..report })
    }
}
