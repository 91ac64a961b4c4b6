//! `blco-gen`.

use super::engine::host_engine;
use super::outputs::{
    Outputs, Pending, check_tensor_name, check_text_name, ends_in, refuse_dash_for_directory,
};
use super::pack::{StoreArgs, text as pack_text};
use super::progress::Bar;
use super::{Common, Program, Report, STDOUT, count, dim, nonzeros, refuse_json_beside_output};
use crate::coo::generate::{GenerateSpec, Generator, Skew, Values};
use crate::coo::tns::text_of;
use crate::coo::{Batch, Extent, Source};
use crate::dense::{mode_file, write_blocks};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::sys::{File, Sys};
use clap::Parser;
use rayon::prelude::*;
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The help of --force, whose output may be text.
const FORCE: &str = "Replace an existing store, text file or model";

/// Generates a sparse tensor as coordinate text or as a store
///
/// Nonzero i has index floor(dim x u^skew) in mode m. A counter-based generator computes u, a number in [0, 1), from the seed, m and i.
/// The arithmetic is exact, so the same options give the same tensor on every machine. Coordinates may repeat.
#[derive(Debug, Parser)]
#[command(
    mut_arg("force", |a| a.help(FORCE).long_help(FORCE)),
    name = "blco-gen",
    version,
    after_help = "Examples:\n  blco-gen --dims 183,24,1140,1717 --nnz 3.3M --skew 1,1,2,2 --values 1..5 uber-like.tns\n  \
                  blco-gen --dims 12092,9184,28818 --nnz 10M --skew 2 nell2-like.blco\n  \
                  blco-gen --dims 100,100,100 --nnz 1000 --planted-rank 3 -\n  \
                  blco-gen --dims 500,400,300 --planted-rank 4 --support 20 --model TRUE exact.blco"
)]
pub struct Gen {
    /// The output: a store (ends in .blco or .hocfs), coordinate text (ends in .tns), or - for text on standard output
    output: PathBuf,
    /// The dim of each mode, such as 183,24,1140,1717
    #[arg(long, value_name = "D1,D2,…", required = true, value_delimiter = ',', value_parser = dim)]
    dims: Vec<u64>,
    /// Number of nonzeros, such as 3300000 or 3.3M
    #[arg(long, value_name = "N", value_parser = count)]
    nnz: Option<u64>,
    /// Skew of each mode, or one skew for all: 1 (uniform), 1.5, 2, 2.5 or 3. The larger it is, the more nonzeros have small indices
    #[arg(long, value_name = "A1,A2,…", value_delimiter = ',', default_value = "1")]
    skew: Vec<Skew>,
    /// The values: 1 for all, integers of a range such as 1..5, or uniform for numbers between 0 and 1
    #[arg(long, default_value = "1", allow_hyphen_values = true, conflicts_with = "planted_rank")]
    values: Values,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Take the values from a random CP model of this rank
    #[arg(long, value_name = "R")]
    planted_rank: Option<u32>,
    /// Make the tensor equal to a CP model of the planted rank. A column of a factor has S nonzeros: one S per mode, or one for all
    #[arg(long, value_name = "S1,S2,…", value_delimiter = ',', value_parser = count, requires = "planted_rank", conflicts_with_all = ["nnz", "skew"])]
    support: Option<Vec<u64>>,
    /// Write the factors of the model to this directory, as mode-1.npy, mode-2.npy, …
    #[arg(long, value_name = "DIR", requires = "support")]
    model: Option<PathBuf>,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    common: Common,
}

/// What --model writes.
const FACTORS: &str = "factors are files";

#[derive(Debug, Serialize)]
struct GenReport {
    #[serde(serialize_with = "crate::sys::shown_path")]
    output: PathBuf,
    dims: Vec<u64>,
    nnz: u64,
    seed: u64,
}

impl Gen {
    /// Fails if a model is requested for a tensor that is not one. (`requires` misses this if the required option
    /// conflicts with a given one.)
    fn check_model(&self) -> Result<()> {
        if self.model.is_some() && self.support.is_none() {
            let what = "--model needs a tensor that equals a model: give --planted-rank and --support instead of --nnz";
            return Err(Error::request(what));
        }
        Ok(())
    }

    fn generator(&self, sys: &Sys) -> Result<Generator> {
        let skew = match self.skew[..] {
            [one] => vec![one; self.dims.len()],
            _ => self.skew.clone(),
        };
        let support = self.support.clone().map(|support| match support[..] {
            [one] => vec![one; self.dims.len()],
            _ => support,
        });
        let (dims, nnz, values, seed) = (self.dims.clone(), self.nnz.unwrap_or(0), self.values, self.seed);
        let planted_rank = self.planted_rank;
        Generator::new(sys, GenerateSpec { dims, nnz, skew, values, seed, planted_rank, support })
    }

    /// Writes the factors of the model that the tensor equals.
    fn write_model(&self, sys: &Sys) -> Result<()> {
        let generator = self.generator(sys)?;
        let Some((low_rank, rank)) = generator.low_rank().zip(self.planted_rank) else { return Ok(()) };
        let names = (0..self.dims.len()).map(mode_file);
        let outputs = Outputs::create(sys, self.model.as_deref(), names, None, self.store.force)?;
        let write = |mode: usize, file: &File| {
            let (rows, rank) = (usize::try_from(self.dims[mode]).unwrap_or(usize::MAX), rank as usize);
            write_blocks(sys, file, [rows, rank], |rows, block| {
                for (row, r, value) in low_rank.entries_in(mode, &rows) {
                    block[(row as usize - rows.start) * rank + r] = value;
                }
            })
        };
        outputs.publish(write, |_| Ok(()))
    }

    /// Writes text. Batches are formatted in parallel, one per thread at a time, and written in order.
    fn write_text(&self, engine: &Engine, out: &mut dyn Write) -> Result<Extent> {
        let shown = if self.output == Path::new("-") { Path::new(STDOUT) } else { &self.output };
        let threads = engine.threads();
        let mut pending: Vec<Batch> = Vec::with_capacity(threads);
        let mut done = 0;
        let mut write = |batches: &mut Vec<Batch>| {
            let texts: Vec<Vec<u8>> = batches.par_drain(..).map(|batch| text_of(&batch)).collect();
            texts.iter().try_for_each(|text| out.write_all(text)).map_err(Error::io(shown, "write"))
        };
        let extent = self.generator(engine.sys())?.drain(&mut |batch| {
            done += batch.nnz() as u64;
            pending.push(batch);
            engine.tell("writing", done, self.nnz);
            if pending.len() < threads { Ok(()) } else { write(&mut pending) }
        })?;
        write(&mut pending)?;
        out.flush().map_err(Error::io(shown, "write"))?;
        Ok(extent)
    }
}

impl Program for Gen {
    fn common(&self) -> &Common {
        &self.common
    }

    fn run(&self, sys: &Sys) -> Result<Report> {
        if self.nnz.is_none() && self.support.is_none() {
            let what = "give --nnz, or --planted-rank and --support for a tensor that equals a model";
            return Err(Error::request(format!("the number of nonzeros is missing: {what}")));
        }
        self.check_model()?;
        refuse_dash_for_directory("--model", self.model.as_deref(), FACTORS)?;
        let is_store = ["blco", "hocfs"].iter().any(|end| ends_in(&self.output, end));
        if !is_store {
            check_tensor_name(&self.output)?;
            check_text_name(&self.output, ", or in .blco or .hocfs for a store")?;
            self.store.refuse_for_text(&self.output)?;
        }
        let to_stdout = self.output == Path::new("-");
        if to_stdout {
            refuse_json_beside_output(self.common)?;
        }
        let is_file = !is_store && !to_stdout;
        let out = is_file.then(|| Pending::create(sys, &self.output, self.store.force)).transpose()?;
        self.write_model(sys)?;
        let progress = Bar::new(self.common.quiet || self.common.json || to_stdout);
        let engine = host_engine(sys, self.common, self.store.memory, &progress)?;
        if is_store {
            let mut source = self.generator(sys)?;
            let options = self.store.options(&source, &self.output)?;
            let report = engine.pack(&mut source, &options)?;
            return Report::new::<Self>(pack_text(&report), &report);
        }
        let Some(out) = out else {
            engine.install(|| self.write_text(&engine, &mut std::io::stdout()))?;
            return Ok(Report::default());
        };
        let extent = engine.install(|| self.write_text(&engine, &mut out.file()))?;
        out.publish()?;
        let (output, dims) = (self.output.clone(), extent.dims);
        let report = GenReport { output, dims, nnz: extent.nnz, seed: self.seed };
        Report::new::<Self>(format!("{}: {}\n", self.output.display(), nonzeros(report.nnz)), &report)
    }
}
