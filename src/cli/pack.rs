//! `blco-pack`.

use super::engine::host_engine;
use super::npz::{NpzSource, is_npz};
use super::outputs::{check_temp_dir, ends_in, refuse_dash_for_directory};
use super::progress::Bar;
use super::table::{ModeReport, TableArgs, mode_reports, modes_text, temp_dir};
use super::{Common, Program, Report, counted, dim, grouped, nonzeros, provenance, size};
use crate::coo::Source;
use crate::coo::tns::{IndexBase, ReadOptions, TnsReader};
use crate::encoding::{IndexEncoding, LeafRule};
use crate::engine::{Engine, repacking};
use crate::error::{Error, Result};
use crate::format::Trees;
use crate::format::bcsf::FIBER_SPLIT;
use crate::format::fcoo::{FcooFor, THREAD_NNZ_MAX};
use crate::format::mmcsf::Assign;
use crate::op::reread::StoreSource;
use crate::pack::{CHUNK_BYTES, Duplicates, FormatOption, PackOptions, PackPlan, PackReport};
use crate::store::{Codec, Format, PARTS_MAX, holds_manifest, part_name};
use crate::sys::Sys;
use bytesize::ByteSize;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, ValueEnum};
use serde::Serialize;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Packs a table, a sparse tensor in coordinate text, or another store into a store
///
/// For a table (CSV, TSV, JSON Lines, Parquet, Arrow), --modes names the columns that become modes. Their labels are numbered in natural order and
/// kept in the store. Coordinate text (FROSTT) has one nonzero per line: its indices, counted from 1, then its value. A Tensor Toolbox,
/// two-line or Matrix Market header is optional. Text may be compressed (.gz, .zst).
///
/// A store is a directory with a manifest and chunk files. Its bytes depend only on the tensor and the options.
#[derive(Debug, Parser)]
#[command(
    name = "blco-pack",
    version,
    after_help = "Examples:\n  blco-pack ratings.csv --modes user,title,timestamp:month --value rating\n  \
                  blco-pack ratings.parquet --modes user,title,timestamp:month --value rating\n  \
                  blco-pack log.tsv --modes host,path,at:hour-of-day    # counts rows\n  \
                  blco-pack log.jsonl --modes host,request.path,at:hour-of-day\n  \
                  blco-pack movies.tns                     # writes movies.blco\n  \
                  zcat big.tns.gz | blco-pack - -o big.blco\n  \
                  blco-pack log.tns -o log.blco --encoding raw --duplicates keep\n  \
                  blco-pack log.tns -o log-by-host.blco --format hocfs --main-mode 2\n  \
                  blco-pack log.blco -o log.csf --format csf\n  \
                  blco-pack log.tns -o log.blco --split 4   # a part for each of four machines"
)]
pub struct Pack {
    /// The tensor: a file, - for standard input, or a store to pack again
    input: PathBuf,
    /// Write the store here [default: the input's name with .blco or .hocfs, in the working directory]
    #[arg(short, long, value_name = "STORE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    text: TextArgs,
    #[command(flatten)]
    store: StoreArgs,
    /// Print the memory, temporary files and store size that packing needs, and exit
    #[arg(long)]
    plan: bool,
    #[command(flatten)]
    common: Common,
    // This has a heading of its own, which applies to everything below.
    #[command(flatten)]
    table: TableArgs,
}

/// How coordinate text is read.
#[derive(Clone, Debug, Args)]
pub struct TextArgs {
    /// First index of every mode of coordinate text [default: 1]
    #[arg(long, value_name = "1|0")]
    index_base: Option<IndexBase>,
    /// Dims of coordinate text, such as 183,24,1140. They override a header and the largest indices
    #[arg(long, value_name = "D1,D2,…", value_delimiter = ',', value_parser = dim)]
    dims: Option<Vec<u64>>,
    /// Rows of coordinate text hold indices and no value; each row counts 1
    #[arg(long)]
    no_values: bool,
}

impl TextArgs {
    /// The options of reading.
    #[must_use]
    pub fn options(&self) -> ReadOptions {
        ReadOptions {
            index_base: self.index_base.unwrap_or_default(),
            dims: self.dims.clone(),
            no_values: self.no_values,
        }
    }

    /// The name of a given option, if there is one.
    pub(super) fn given(&self) -> Option<&'static str> {
        let dims = self.dims.as_ref().map(|_| "--dims");
        self.index_base.map(|_| "--index-base").or(dims).or(self.no_values.then_some("--no-values"))
    }
}

/// How a store is written.
#[derive(Clone, Debug, Args)]
pub struct StoreArgs {
    /// The format [default: hocfs if the store's name ends in .hocfs, else blco]
    #[arg(long, value_enum)]
    format: Option<FormatArg>,
    /// Trees of csf and bcsf, and partitions of hbcsf and fcoo. all: one per mode, so that every mode is fast and the store holds the
    /// tensor once per mode. one: one for all modes, rooted at the shortest. M: one, rooted at mode M [default: all]
    #[arg(long, value_name = "all|one|M", value_parser = trees)]
    trees: Option<Trees>,
    /// How mmcsf assigns each nonzero to a tree: by fiber lengths among the nonzeros that remain (dynamic, which takes memory for all
    /// fibers), or in the whole tensor (static, which takes no more than other formats) [default: dynamic]
    #[arg(long, value_parser = named(&[("dynamic", Assign::Dynamic), ("static", Assign::Static)]))]
    assign: Option<Assign>,
    /// The operation that fcoo serves [default: mttkrp]
    #[arg(long = "for", value_parser = named(&[("mttkrp", FcooFor::Mttkrp), ("ttm", FcooFor::Ttm)]))]
    operation: Option<FcooFor>,
    /// Nonzeros per thread in fcoo, each thread with one of the paper's start flags. Chunks do not depend on it [default: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(THREAD_NNZ_MAX)))]
    thread_nnz: Option<u32>,
    /// Split fibers of bcsf and hbcsf after N nonzeros, to balance work on a GPU [default: 128]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    fiber_split: Option<u32>,
    /// Index encoding of blco: packed tiles, or the 64-bit indices of the BLCO paper [default: tiled]
    #[arg(long, value_parser = named(&[("tiled", IndexEncoding::Tiled), ("raw", IndexEncoding::Raw)]))]
    encoding: Option<IndexEncoding>,
    /// The mode, from 1, whose slices hocfs compresses. TTV streams along the mode before it (for mode 1, the last) [default: 1]
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u8).range(1..=8))]
    main_mode: Option<u8>,
    /// Layout of the fibers in a slice of hocfs: one after the other (csr), padded to the longest (ell), or padded if that costs
    /// little (auto) [default: auto]
    #[arg(long, value_parser = named(&[("csr", LeafRule::Csr), ("ell", LeafRule::Ell), ("auto", LeafRule::Auto)]))]
    slice: Option<LeafRule>,
    /// Compress chunks with zstd at this level, 1 to 22, for cold storage
    #[arg(long, value_name = "LEVEL", value_parser = clap::value_parser!(i32).range(1..=22))]
    zstd: Option<i32>,
    /// Largest chunk, 64KiB to 1GiB [default: 8MiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    chunk_bytes: Option<u64>,
    /// Divide the tensor into N parts for N processes of MPI, each a store: STORE/part-1-of-N to part-N-of-N. They can lie on N machines.
    /// Takes blco, hocfs, or --trees one
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=i64::from(PARTS_MAX)))]
    split: Option<u32>,
    /// How to combine nonzeros with the same coordinates [default: sum]
    #[arg(long, value_parser = named(&Duplicates::ALL))]
    duplicates: Option<Duplicates>,
    /// Use at most this much memory, at least 64MiB. Packing uses temporary files if the tensor is larger [default: half of the
    /// available memory]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(super) memory: Option<u64>,
    /// Directory for temporary files [default: beside the store]
    #[arg(long, value_name = "DIR")]
    temp_dir: Option<PathBuf>,
    /// Replace an existing store
    #[arg(long)]
    pub(super) force: bool,
    /// Continue a pack that was killed
    #[arg(long, conflicts_with = "force")]
    resume: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FormatArg {
    /// Blocked linearized coordinates: one copy serves every mode
    Blco,
    /// Compressed slices of a main mode
    Hocfs,
    /// Compressed sparse fibers: one tree per mode
    Csf,
    /// CSF with long fibers split
    Bcsf,
    /// B-CSF, with short slices and fibers kept apart
    Hbcsf,
    /// Each nonzero in the CSF tree where its fiber is longest
    Mmcsf,
    /// Flagged coordinates: indices of the product modes, and flags
    Fcoo,
}

impl FormatArg {
    fn name(self) -> &'static str {
        match self {
            Self::Blco => "blco",
            Self::Hocfs => "hocfs",
            Self::Csf => "csf",
            Self::Bcsf => "bcsf",
            Self::Hbcsf => "hbcsf",
            Self::Mmcsf => "mmcsf",
            Self::Fcoo => "fcoo",
        }
    }
}

/// Parses the value of `--trees`.
fn trees(given: &str) -> Result<Trees> {
    match given {
        "all" => Ok(Trees::All),
        "one" => Ok(Trees::One),
        mode => match mode.parse() {
            Ok(mode @ 1..=8) => Ok(Trees::Root(mode - 1)),
            _ => Err(Error::request("give all, one, or a mode from 1 to 8")),
        },
    }
}

/// Parses one of `values` by its name.
fn named<T: Copy + Send + Sync>(values: &'static [(&'static str, T)]) -> impl TypedValueParser<Value = T> {
    let names = values.iter().map(|(name, _)| *name);
    PossibleValuesParser::new(names).try_map(move |given| {
        let value = values.iter().find(|(name, _)| given.eq_ignore_ascii_case(name));
        value.map(|(_, value)| *value).ok_or(Error::request("not one of them"))
    })
}

impl StoreArgs {
    /// An error if an option of stores is given for `output`, which is text.
    pub fn refuse_for_text(&self, output: &Path) -> Result<()> {
        let given = [
            (self.format.is_some(), "--format"),
            (self.encoding.is_some(), "--encoding"),
            (self.main_mode.is_some(), "--main-mode"),
            (self.slice.is_some(), "--slice"),
            (self.trees.is_some(), "--trees"),
            (self.fiber_split.is_some(), "--fiber-split"),
            (self.assign.is_some(), "--assign"),
            (self.operation.is_some(), "--for"),
            (self.thread_nnz.is_some(), "--thread-nnz"),
            (self.zstd.is_some(), "--zstd"),
            (self.chunk_bytes.is_some(), "--chunk-bytes"),
            (self.split.is_some(), "--split"),
            (self.duplicates.is_some(), "--duplicates"),
            (self.memory.is_some(), "--memory"),
            (self.temp_dir.is_some(), "--temp-dir"),
            (self.resume, "--resume"),
        ];
        let Some((_, option)) = given.iter().find(|(given, _)| *given) else { return Ok(()) };
        let what = format!("{option} is an option of stores, whose names end in .blco or .hocfs");
        Err(Error::request(format!("{}: would be text, but {what}", output.display())))
    }

    /// The format with its options; an error if an option belongs to another format.
    fn format(&self, target: &Path) -> Result<FormatOption> {
        let named = if ends_in(target, "hocfs") { FormatArg::Hocfs } else { FormatArg::Blco };
        let format = self.format.unwrap_or(named);
        self.refuse_of_others(format)?;
        let trees = self.trees.unwrap_or(Trees::All);
        let fiber_split = self.fiber_split.unwrap_or(FIBER_SPLIT);
        Ok(match format {
            FormatArg::Blco => {
                FormatOption::Known(Format::blco(self.encoding.unwrap_or(IndexEncoding::Tiled)))
            }
            FormatArg::Hocfs => FormatOption::Hocfs {
                main_mode: usize::from(self.main_mode.unwrap_or(1)) - 1,
                leaf: self.slice.unwrap_or(LeafRule::Auto),
            },
            FormatArg::Csf => FormatOption::Csf { trees },
            FormatArg::Bcsf => FormatOption::Bcsf { trees, fiber_split },
            FormatArg::Hbcsf => FormatOption::Hbcsf { trees, fiber_split },
            FormatArg::Mmcsf => FormatOption::Mmcsf { assign: self.assign.unwrap_or(Assign::Dynamic) },
            FormatArg::Fcoo => FormatOption::Fcoo {
                operation: self.operation.unwrap_or(FcooFor::Mttkrp),
                trees,
                thread_nnz: self.thread_nnz.unwrap_or(0),
            },
        })
    }

    /// An error if an option does not belong to `format`.
    fn refuse_of_others(&self, format: FormatArg) -> Result<()> {
        use FormatArg::{Bcsf, Blco, Csf, Fcoo, Hbcsf, Hocfs, Mmcsf};
        let options: [(bool, &str, &[FormatArg]); 8] = [
            (self.encoding.is_some(), "--encoding", &[Blco]),
            (self.main_mode.is_some(), "--main-mode", &[Hocfs]),
            (self.slice.is_some(), "--slice", &[Hocfs]),
            (self.trees.is_some(), "--trees", &[Csf, Bcsf, Hbcsf, Fcoo]),
            (self.fiber_split.is_some(), "--fiber-split", &[Bcsf, Hbcsf]),
            (self.assign.is_some(), "--assign", &[Mmcsf]),
            (self.operation.is_some(), "--for", &[Fcoo]),
            (self.thread_nnz.is_some(), "--thread-nnz", &[Fcoo]),
        ];
        let foreign = options.iter().find(|(given, _, of)| *given && !of.contains(&format));
        let Some((_, option, of)) = foreign else { return Ok(()) };
        let of: Vec<&str> = of.iter().map(|format| format.name()).collect();
        Err(Error::request(format!("{option} is an option of --format {}", of.join(" or "))))
    }

    /// The packer's options, for `source` and `target`.
    pub fn options(&self, source: &impl Source, target: &Path) -> Result<PackOptions> {
        Ok(PackOptions {
            replace: self.force,
            resume: self.resume,
            format: self.format(target)?,
            codec: self.zstd.map_or(Codec::None, Codec::Zstd),
            chunk_bytes: self.chunk_bytes.unwrap_or(CHUNK_BYTES),
            duplicates: self.duplicates.unwrap_or(Duplicates::Sum),
            parts: self.split.unwrap_or(1),
            temp_dir: self.temp_dir.clone(),
            provenance: provenance(&source.name(), None),
            ..PackOptions::new(target.to_path_buf())
        })
    }
}

/// Endings that are left out of a store's name.
const INPUTS: [&str; 17] = [
    ".tns", ".txt", ".coo", ".mtx", ".npz", ".csv", ".tsv", ".tab", ".parquet", ".pq", ".arrow", ".arrows",
    ".feather", ".ipc", ".jsonl", ".ndjson", ".json",
];

/// `movies.blco` for `movies.tns.zst`.
fn default_store(input: &Path, format: Option<FormatArg>) -> Result<PathBuf> {
    if input == Path::new("-") {
        return Err(Error::request("standard input has no name; give the store one with -o"));
    }
    let name = input.file_name().unwrap_or_default().as_bytes();
    let stem = without(name, &[".gz", ".zst", ".zstd"]);
    let stem = without(stem, &INPUTS);
    let end: &[u8] = if format == Some(FormatArg::Hocfs) { b".hocfs" } else { b".blco" };
    Ok(OsString::from_vec([stem, end].concat()).into())
}

/// `name` without the first of these endings that it has, in upper or lower case.
fn without<'a>(name: &'a [u8], endings: &[&str]) -> &'a [u8] {
    let split = |end: &&str| name.split_at_checked(name.len().checked_sub(end.len())?);
    let cut = |end: &&str| split(end).filter(|(_, found)| found.eq_ignore_ascii_case(end.as_bytes()));
    endings.iter().find_map(cut).map_or(name, |(stem, _)| stem)
}

impl Program for Pack {
    fn common(&self) -> &Common {
        &self.common
    }

    fn run(&self, sys: &Sys) -> Result<Report> {
        refuse_dash_for_directory("-o", self.output.as_deref(), "a store is files")?;
        let progress = Bar::new(self.common.quiet || self.common.json);
        if holds_manifest(&self.input)? {
            return self.pack_store(sys, &progress);
        }
        let target = self.output.clone().map_or_else(|| default_store(&self.input, self.store.format), Ok)?;
        check_temp_dir("--temp-dir", self.store.temp_dir.as_deref())?;
        let temp_dir = temp_dir(self.store.temp_dir.as_deref(), &target)?;
        if self.table.is_table(&self.input) {
            return self.pack_table(sys, &target, temp_dir, &progress);
        }
        if let Some(option) = self.table.of_tables() {
            let what = "by its name; name modes of text with --mode-names, or a table .csv, .tsv, .jsonl or .parquet";
            return Err(Error::request(format!("{option}: {} is no table {what}", self.input.display())));
        }
        if is_npz(&self.input) {
            if let Some(option) = self.text.given() {
                return Err(Error::request(format!("{option} is an option of text, not of a NumPy archive")));
            }
            return self.pack_coordinates(
                sys,
                NpzSource::open(sys, &self.input)?,
                &target,
                &temp_dir,
                &progress,
            );
        }
        let mut source = TnsReader::open(sys, &self.input, self.text.options())?;
        let mut options = self.store.options(&source, &target)?;
        options.labels = self.table.labels(sys, &temp_dir)?.map(Arc::new);
        let engine = host_engine(sys, self.common, self.store.memory, &progress)?;
        if self.plan {
            return self.pack(&engine, &mut source, &options);
        }
        let pack = engine.pack(&mut source, &options)?;
        let notes = if source.values_like_indices() { vec![LIKE_INDICES.to_owned()] } else { Vec::new() };
        let report = TextReport { pack, notes };
        Report::new::<Self>(text(&report.pack) + &notes_text(&report.notes), &report)
    }
}

/// The note about text whose values could be indices.
const LIKE_INDICES: &str = "every value is a whole number in the range of the indices; if rows hold three indices and no value, pack \
                            again with --no-values";

/// The report about text.
#[derive(Debug, Serialize)]
struct TextReport {
    #[serde(flatten)]
    pack: PackReport,
    notes: Vec<String>,
}

/// A line for each note.
fn notes_text(notes: &[String]) -> String {
    notes.iter().flat_map(|note| ["  note: ", note, "\n"]).collect()
}

impl Pack {
    /// Packs coordinates that have no labels yet.
    fn pack_coordinates(
        &self,
        sys: &Sys,
        mut source: impl Source + Send,
        target: &Path,
        temp_dir: &Path,
        progress: &Bar,
    ) -> Result<Report> {
        let mut options = self.store.options(&source, target)?;
        options.labels = self.table.labels(sys, temp_dir)?.map(Arc::new);
        let engine = host_engine(sys, self.common, self.store.memory, progress)?;
        self.pack(&engine, &mut source, &options)
    }

    fn pack(
        &self,
        engine: &Engine,
        source: &mut (impl Source + Send),
        options: &PackOptions,
    ) -> Result<Report> {
        if self.plan {
            let plan = engine.plan_pack(source, options)?;
            return Report::new::<Self>(plan_text(&options.target, &plan), &plan);
        }
        let report = engine.pack(source, options)?;
        Report::new::<Self>(text(&report), &report)
    }

    /// Packs a store again, in any format. Repeated coordinates stay as they are.
    fn pack_store(&self, sys: &Sys, progress: &Bar) -> Result<Report> {
        if let Some(option) = self.text.given().or(self.table.of_tables()).or(self.table.of_text()) {
            return Err(Error::request(format!("{option} is an option of text and tables, not of a store")));
        }
        let named = || Error::request(format!("{}: a store; name the new one with -o", self.input.display()));
        let target = self.output.clone().ok_or_else(named)?;
        let engine = host_engine(sys, self.common, self.store.memory, progress)?;
        let store = engine.open(&self.input)?;
        let options = self.store.options(&StoreSource::new(store.clone()), &target)?;
        let (mut source, options) = repacking(store, options, self.store.duplicates.is_some())?;
        self.pack(&engine, &mut source, &options)
    }
}

/// The report about a table.
#[derive(Debug, Serialize)]
struct TableReport {
    #[serde(flatten)]
    pack: PackReport,
    /// Rows that were read and kept.
    rows: u64,
    /// Rows per second of all time.
    rows_per_second: f64,
    /// Seconds of reading the table, before packing.
    table_seconds: f64,
    /// The part of them in which labels got their indices.
    labels_seconds: f64,
    /// Rows that were dropped because a label or the value was missing.
    rows_dropped: u64,
    modes: Vec<ModeReport>,
    notes: Vec<String>,
}

impl Pack {
    /// Packs a table.
    fn pack_table(&self, sys: &Sys, target: &Path, temp_dir: PathBuf, progress: &Bar) -> Result<Report> {
        if let Some(option) = self.text.given().or(self.table.of_text()) {
            return Err(Error::request(format!(
                "{option} is an option of coordinate text, and this is a table"
            )));
        }
        let start = Instant::now();
        let engine = host_engine(sys, self.common, self.store.memory, progress)?;
        refuse_existing(target, &self.store)?;
        let mut table = engine.read_table(&self.input, &self.table.options(&self.input, temp_dir)?)?;
        let table_seconds = start.elapsed().as_secs_f64();
        let mut options = self.store.options(&table, target)?;
        options.labels = Some(table.labels());
        if self.plan {
            let plan = engine.plan_pack(&mut table, &options)?;
            return Report::new::<Self>(plan_text(target, &plan), &plan);
        }
        let pack = engine.pack(&mut table, &options)?;
        let mut notes = Vec::new();
        if table.dropped() > 0 {
            let rows = if table.dropped() == 1 { "row" } else { "rows" };
            notes.push(format!("{} {rows} without a label or value left out", grouped(table.dropped())));
        }
        if table.has_values() && self.store.duplicates.is_none() && pack.duplicates_summed > 0 {
            let repeated = grouped(pack.duplicates_summed);
            notes.push(format!("{repeated} rows repeat the labels of another; their values were added up (--duplicates mean, min, max, count, keep or error does otherwise)"));
        }
        let of_part = self.store.split.map(|parts| target.join(part_name(0, parts)));
        let modes = mode_reports(&engine.open(of_part.as_deref().unwrap_or(target))?)?;
        let (rows, labels_seconds, rows_dropped) = (table.rows(), table.labels_seconds(), table.dropped());
        let rows_per_second = rows as f64 / (table_seconds + pack.seconds.total);
        let report = TableReport {
            pack,
            rows,
            rows_per_second,
            table_seconds,
            labels_seconds,
            rows_dropped,
            modes,
            notes,
        };
        let text = format!(
            "{}{}{}",
            text_of(&report.pack, Some(&report)),
            modes_text(&report.modes),
            notes_text(&report.notes)
        );
        Report::new::<Self>(text, &report)
    }
}

/// An error if the store exists, before the table is read.
fn refuse_existing(target: &Path, store: &StoreArgs) -> Result<()> {
    if target.exists() && !store.force && !store.resume {
        let what = "already exists; replace the store with --force, or name another with -o";
        return Err(Error::request(format!("{}: {what}", target.display())));
    }
    Ok(())
}

/// The plan for people.
fn plan_text(target: &Path, plan: &PackPlan) -> String {
    let size = |bound: &str, bytes: Option<u64>| match bytes {
        Some(bytes) => format!("{bound} {}", ByteSize(bytes)),
        None => "not known before it is read".to_owned(),
    };
    let sorting = match (plan.in_memory, plan.runs) {
        (Some(true), _) => "all sorted in memory".to_owned(),
        (_, Some(1)) => "about 1 run on disk, then merged".into(),
        (_, Some(runs)) => format!("about {runs} runs on disk, then merged"),
        _ => "runs on disk if it does not fit in memory".to_owned(),
    };
    format!(
        "{}: {} nonzeros\n  memory     {}, of which {} are needed, on {}: {sorting}\n  temporary  {} in {} ({} free)\n  store      {} ({} free)\n",
        target.display(),
        plan.nnz.map_or("an unknown number of".into(), |n| format!("about {}", grouped(n))),
        ByteSize(plan.memory_bytes),
        ByteSize(plan.memory_least_bytes),
        counted(plan.threads, "thread"),
        size("about", plan.temporary_bytes),
        plan.temporary_dir.display(),
        ByteSize(plan.temporary_free_bytes),
        size("at most", plan.store_bytes_max),
        ByteSize(plan.store_free_bytes),
    )
}

/// The report for people.
pub(super) fn text(report: &PackReport) -> String {
    text_of(report, None)
}

/// The same for input that may have been a table.
fn text_of(report: &PackReport, table: Option<&TableReport>) -> String {
    let dims: Vec<String> = report.dims.iter().map(ToString::to_string).collect();
    let duplicates = match (report.duplicates_summed, report.duplicates_kept) {
        (0, 0) => String::new(),
        (0, 1) => ", 1 repeats coordinates".to_owned(),
        (0, kept) => format!(", {} repeat coordinates", grouped(kept)),
        (1, _) => ", 1 duplicate added up".to_owned(),
        (summed, _) => format!(", {} duplicates added up", grouped(summed)),
    };
    let s = &report.seconds;
    let spilled = match report.spilled.runs {
        0 => "sorted in memory".to_owned(),
        runs => {
            let (s, peak) = (if runs == 1 { "" } else { "s" }, ByteSize(report.spilled.bytes_peak));
            format!("{runs} run{s}, {peak} of temporary files")
        }
    };
    let input = match (report.was_complete, report.input_read) {
        (true, _) => "  was complete: the unfinished pack had only to clean up\n",
        (false, false) => "  the input had all been read, and was not read again\n",
        (false, true) => "",
    };
    let parts = if report.parts > 1 { format!("{} parts, ", report.parts) } else { String::new() };
    let (total, before) = table.map_or((s.total, String::new()), |table| {
        let (all, labels) = (table.table_seconds, table.labels_seconds);
        (s.total + all, format!("rows {:.2}, labels {labels:.2}, ", all - labels))
    });
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "shown without a fraction")]
    let rate = table.map_or_else(String::new, |table| {
        format!(", {} rows/s", grouped(table.rows_per_second.round() as u64))
    });
    format!(
        "{}: {}, {}{duplicates}\n{input}  {} in {parts}{}, {:.3} bytes a nonzero (raw BLCO: 16), digest {}\n  \
         {total:.2} s{rate}: {before}read {:.2}, sort {:.2}, write {:.2}, publish {:.2}; {spilled}\n",
        report.store.display(),
        dims.join(" x "),
        nonzeros(report.nnz),
        ByteSize(report.bytes),
        counted(report.chunks, "chunk"),
        report.bytes_per_nnz,
        report.digest,
        s.read,
        s.sort,
        s.write,
        s.publish,
    )
}
