//! `blco-info --compare`: a tensor's size in each format, the lengths of its fibers, and a recommended format.

use super::progress::Bar;
use super::{Program, Report, nonzeros, text_of};
use crate::coo::tns::{ReadOptions, TnsReader};
use crate::engine::Engine;
use crate::engine::compare::InFormat;
use crate::error::Result;
use crate::op::fibers::PartitionFibers;
use crate::pack::FormatOption;
use crate::store::holds_manifest;
use crate::sys::Sys;
use comfy_table::{Table, presets};
use serde::Serialize;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The JSON report.
#[derive(Debug, Serialize)]
struct CompareReport {
    #[serde(serialize_with = "crate::sys::shown_path")]
    store: PathBuf,
    dims: Vec<u32>,
    nnz: u64,
    formats: Vec<FormatReport>,
    recommended: &'static str,
    /// Why, in a sentence.
    reason: String,
}

/// A format.
#[derive(Debug, Serialize)]
struct FormatReport {
    format: &'static str,
    /// Bytes of indices, by the formula of the format's paper and in chunk images.
    paper_index_bytes: Option<u64>,
    index_bytes: u64,
    /// Bytes of the whole store.
    bytes: u64,
    /// Totals over all trees.
    slices: Option<u64>,
    fibers: Option<u64>,
    trees: Vec<TreeReport>,
}

/// A partition with nonzeros sorted in an order of modes.
#[derive(Debug, Serialize)]
struct TreeReport {
    /// The order of modes, from 1.
    levels: Vec<usize>,
    nnz: u64,
    slices: u64,
    fibers: u64,
    /// The mean number of nonzeros per fiber.
    mean_length: f64,
    longest: u64,
    /// Fibers with 2^k to 2^(k+1) - 1 nonzeros.
    lengths: Vec<u64>,
}

impl TreeReport {
    fn new(part: &PartitionFibers) -> Option<Self> {
        let (levels, counts) = (part.levels?, &part.counts);
        let kinds = counts.lengths.iter().rposition(|&fibers| fibers > 0).map_or(0, |last| last + 1);
        Some(Self {
            levels: levels.modes().iter().map(|&mode| usize::from(mode) + 1).collect(),
            nnz: counts.nnz,
            slices: counts.slices(),
            fibers: counts.fibers(),
            mean_length: counts.nnz as f64 / counts.fibers() as f64,
            longest: counts.longest,
            lengths: counts.lengths[..kinds].to_vec(),
        })
    }
}

impl FormatReport {
    fn new(engine: &Engine, found: &InFormat) -> Result<Self> {
        let parts = engine.count_fibers(&found.store)?;
        let paper = parts.iter().map(|part| part.format.paper_index_bytes(&part.counts)).sum();
        let trees: Vec<TreeReport> = parts.iter().filter_map(TreeReport::new).collect();
        let of_trees =
            |count: fn(&TreeReport) -> u64| (!trees.is_empty()).then(|| trees.iter().map(count).sum());
        Ok(Self {
            format: found.name,
            paper_index_bytes: paper,
            index_bytes: parts.iter().map(|part| part.index_bytes).sum(),
            bytes: found.store.bytes()?,
            slices: of_trees(|tree| tree.slices),
            fibers: of_trees(|tree| tree.fibers),
            trees,
        })
    }

    /// The mean number of nonzeros per fiber, over all trees.
    fn mean_length(&self) -> Option<f64> {
        let nnz: u64 = self.trees.iter().map(|tree| tree.nnz).sum();
        self.fibers.map(|fibers| nnz as f64 / fibers as f64)
    }
}

/// Formats that hold every nonzero once and serve every mode.
const ONE_COPY: [&str; 4] = ["blco", "hocfs", "csf-one", "mmcsf"];

/// Another format is recommended if it takes at most this fraction of the bytes of `blco`.
const MUCH_SMALLER: f64 = 0.8;

/// Which format is recommended, and why.
fn recommend(formats: &[FormatReport]) -> (&'static str, String) {
    let of = |name: &str| formats.iter().find(|format| format.format == name);
    let blco = of("blco").map_or(u64::MAX, |format| format.bytes) as f64;
    let smallest = ONE_COPY.iter().filter_map(|name| of(name)).min_by_key(|format| format.bytes);
    match smallest {
        Some(format) if format.bytes as f64 <= MUCH_SMALLER * blco => {
            let saved = (1.0 - format.bytes as f64 / blco) * 100.0;
            let mean = format.mean_length().unwrap_or(1.0);
            let why = format!(
                "its fibers hold {mean:.1} nonzeros on average, so it takes {saved:.0} % fewer bytes than blco and streamed passes read \
                 less; from memory, MTTKRP on the CPU is faster from blco"
            );
            (format.format, why)
        }
        _ => {
            let limit = MUCH_SMALLER * 100.0;
            let why = format!(
                "one copy serves every mode, MTTKRP and CP are fastest from it, and no other format with one copy takes at most {limit:.0} % of \
                 its bytes"
            );
            ("blco", why)
        }
    }
}

/// Packs `input`, a store or coordinate text, in every format under `directory`, and compares.
pub(super) fn run<P: Program>(
    sys: &Sys,
    engine: &Engine,
    (input, text): (&Path, ReadOptions),
    directory: &Path,
    progress: &Bar,
) -> Result<Report> {
    let shelter = engine.shelter(None, directory)?;
    let store = if holds_manifest(input)? || input.is_dir() {
        engine.open(input)?
    } else {
        engine.sheltered(&mut TnsReader::open(sys, input, text)?, &shelter)?
    };
    let mut formats = Vec::with_capacity(FormatOption::COMPARED.len());
    for name in FormatOption::COMPARED {
        formats.push(FormatReport::new(engine, &engine.in_format(&store, name, &shelter)?)?);
    }
    progress.end();
    let (recommended, reason) = recommend(&formats);
    let (dims, nnz) = (store.dims().to_vec(), store.manifest().nnz);
    let report = CompareReport { store: input.to_path_buf(), dims, nnz, formats, recommended, reason };
    Report::new::<P>(text_of(|out| report.write_text(out))?, &report)
}

impl CompareReport {
    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        let dims: Vec<String> = self.dims.iter().map(ToString::to_string).collect();
        writeln!(out, "{}: {}, {}", self.store.display(), dims.join(" x "), nonzeros(self.nnz))?;
        writeln!(
            out,
            "bytes a nonzero, of indices by the papers' formulas and here, and of the store\n{}",
            self.table()
        )?;
        if let Some(csf) =
            self.formats.iter().find(|format| format.format == "csf" && !format.trees.is_empty())
        {
            writeln!(out, "fibers of csf, and the share of them by nonzeros\n{}", fiber_table(&csf.trees))?;
        }
        writeln!(out, "recommended: {}: {}", self.recommended, self.reason)
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::UTF8_BORDERS_ONLY);
        table.set_header(["format", "paper", "index", "store", "slices", "fibers", "in a fiber", "longest"]);
        let or_dash = |x: Option<String>| x.unwrap_or_else(|| "-".into());
        for format in &self.formats {
            let each = |bytes: u64| format!("{:.2}", bytes as f64 / self.nnz as f64);
            let count = |n: Option<u64>| or_dash(n.map(|n| n.to_string()));
            table.add_row([
                format.format.to_owned(),
                or_dash(format.paper_index_bytes.map(each)),
                each(format.index_bytes),
                each(format.bytes),
                count(format.slices),
                count(format.fibers),
                or_dash(format.mean_length().map(|mean| format!("{mean:.2}"))),
                count(format.trees.iter().map(|tree| tree.longest).max()),
            ]);
        }
        table
    }
}

/// The columns of fiber lengths: 2^k nonzeros or more, and the heading.
const LENGTHS: [(usize, &str); 5] = [(0, "1"), (1, "2-3"), (2, "4-7"), (3, "8-15"), (4, "16-63")];

fn fiber_table(trees: &[TreeReport]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    let heads = ["modes", "slices", "fibers", "in a fiber", "longest"];
    table.set_header(heads.into_iter().chain(LENGTHS.map(|(_, name)| name)).chain(["64-"]));
    for tree in trees {
        let modes: Vec<String> = tree.levels.iter().map(ToString::to_string).collect();
        let mean = format!("{:.2}", tree.mean_length);
        let counts = [tree.slices, tree.fibers].map(|n| n.to_string());
        let row = [modes.join("-")].into_iter().chain(counts).chain([mean, tree.longest.to_string()]);
        let share = |from: usize, to: usize| {
            let fibers: u64 = tree.lengths.iter().take(to).skip(from).sum();
            format!("{:.1} %", 100.0 * fibers as f64 / tree.fibers as f64)
        };
        let ends = LENGTHS.iter().skip(1).map(|(k, _)| *k).chain([6]);
        let shares = LENGTHS.iter().zip(ends).map(|((from, _), to)| share(*from, to));
        table.add_row(row.chain(shares).chain([share(6, usize::MAX)]));
    }
    table
}
