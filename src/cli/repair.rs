//! `blco-info --repair` reports what a damaged store has lost and writes the rest to a new store; `--upgrade` writes a whole store.

use super::engine::host_engine;
use super::outputs::refuse_dash_for_directory;
use super::progress::Bar;
use super::{Common, Program, Report, nonzeros, pack as packing, provenance, size, text_of};
use crate::error::{Error, Result};
use crate::op::salvage::{Findings, Loss, UnusedFile, damage};
use crate::pack::{Duplicates, PackOptions, PackReport};
use crate::store::{chunk_name, holds_manifest, read_provenance};
use crate::sys::{Sys, behind_links, directory};
use clap::Args;
use rustix::fs::{Access, access};
use serde::Serialize;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// How a store is repaired.
#[derive(Clone, Debug, Args)]
pub struct RepairArgs {
    /// Write the nonzeros of all intact chunks to a new store. The manifest may be missing
    #[arg(long, value_name = "NEWSTORE", group = "new_store", conflicts_with_all = ["quick", "verify"])]
    pub(super) repair: Option<PathBuf>,
    /// Write a store of container version 1 as a new store of version 2
    #[arg(long, value_name = "NEWSTORE", group = "new_store", conflicts_with_all = ["quick", "verify"])]
    pub(super) upgrade: Option<PathBuf>,
    /// Replace an existing store at NEWSTORE
    #[arg(long, requires = "new_store")]
    force: bool,
    /// Use at most this much memory, at least 64MiB for a new store [default: the available memory, half of it for a new store]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(super) memory: Option<u64>,
    /// Directory for temporary files [default: beside NEWSTORE]
    #[arg(long, value_name = "DIR", requires = "new_store")]
    temp_dir: Option<PathBuf>,
}

/// The JSON report.
#[derive(Debug, Serialize)]
struct RepairReport {
    #[serde(serialize_with = "crate::sys::shown_path")]
    store: PathBuf,
    provenance_problem: Option<String>,
    digest: String,
    new_digest: String,
    chunks_lost: Option<u64>,
    nnz_lost: Option<u64>,
    #[serde(flatten)]
    findings: Findings,
    /// Modes, from 1, whose labels are damaged and left out.
    labels_lost: Vec<usize>,
    duplicates_may_occur: bool,
    chunk_bytes: u64,
    zstd_level: Option<i32>,
    new_store: PackReport,
}

/// Inspects `store` and packs its intact part into `target`.
pub(super) fn repair<P: Program>(
    sys: &Sys,
    store: &Path,
    target: &Path,
    args: &RepairArgs,
    common: Common,
) -> Result<Report> {
    let option = if args.upgrade.is_some() { "--upgrade" } else { "--repair" };
    refuse_dash_for_directory(option, Some(target), "a store is files")?;
    let same = |a: &Path, b: &Path| Some(a.canonicalize().ok()? == b.canonicalize().ok()?);
    if same(store, target) == Some(true) {
        let what = "is the old store, which stays as it is; name another for the new one";
        return Err(Error::request(format!("{}: {what}", target.display())));
    }
    if store.is_dir() {
        can_write(target, args.force)?;
    }
    let options = PackOptions {
        replace: args.force,
        temp_dir: args.temp_dir.clone(),
        ..PackOptions::new(target.to_path_buf())
    };
    options.check()?;
    let progress = Bar::new(common.quiet || common.json);
    let engine = host_engine(sys, common, args.memory, &progress)?;
    let mut salvage = engine.salvage(store)?;
    let Findings { manifest_problem, losses, unused, .. } = salvage.findings();
    if args.upgrade.is_some() && !(manifest_problem.is_none() && losses.is_empty() && unused.is_empty()) {
        return Err(Error::unusable(store, "damaged; --repair writes what is intact to a new store"));
    }
    let (old, provenance_problem) = old_provenance(sys, store)?;
    let mut options = salvage.options(options);
    let repaired = repaired(salvage.findings(), &old);
    options.provenance = provenance(&store.display().to_string(), Some(repaired));
    let packed = engine.pack(&mut salvage, &options)?;
    progress.end();
    let report = RepairReport::new(store, salvage.findings().clone(), provenance_problem, &options, packed);
    let mut finished = Report::new::<P>(text_of(|out| report.write_text(out))?, &report)?;
    finished.failed = report.nnz_lost != Some(0) || !report.labels_lost.is_empty();
    Ok(finished)
}

/// Fails now, without changing anything, if the packer could not write a store at `target`, rather than after
/// reading the whole old store.
fn can_write(target: &Path, replace: bool) -> Result<()> {
    let wrong = |what: &str| Err(Error::request(format!("{}: {what}", target.display())));
    let real = behind_links(target)?;
    let allowed = Access::WRITE_OK | Access::EXEC_OK;
    access(directory(&real), allowed).map_err(|e| Error::io(target, "create")(e.into()))?;
    match (target.symlink_metadata().is_ok(), holds_manifest(target)?) {
        (true, false) => wrong("exists and is not a store; name another output"),
        (true, true) if !replace => wrong("a store already exists; replace it with --force, or name another"),
        _ => Ok(()),
    }
}

/// The old store's provenance, or what is wrong with it. Nothing depends on it.
fn old_provenance(sys: &Sys, store: &Path) -> Result<(serde_json::Value, Option<String>)> {
    match read_provenance(sys, store) {
        Ok(contents) => Ok(match serde_json::from_slice(&contents) {
            Ok(value) => (value, None),
            Err(_) => (serde_json::Value::Null, Some("not JSON".into())),
        }),
        Err(error) => Ok((serde_json::Value::Null, Some(damage(error)?))),
    }
}

/// What the new store's provenance says about the old one.
fn repaired(findings: &Findings, provenance: &serde_json::Value) -> serde_json::Value {
    serde_json::json!({
        "digest": format!("{:016x}", findings.id), "nnz_salvaged": findings.nnz,
        "nnz_lost": findings.nnz_lost(), "losses": findings.losses, "provenance": provenance,
    })
}

impl RepairReport {
    fn new(
        store: &Path,
        mut findings: Findings,
        provenance_problem: Option<String>,
        options: &PackOptions,
        new_store: PackReport,
    ) -> Self {
        let digest = format!("{:016x}", findings.id);
        // An equal digest proves that nothing is lost, even if the chunks alone cannot show whether more followed.
        if new_store.digest == digest {
            findings.losses.clear();
        }
        Self {
            store: store.to_path_buf(),
            provenance_problem,
            chunks_lost: findings.chunks_lost(),
            nnz_lost: findings.nnz_lost(),
            findings,
            labels_lost: options.labels.iter().flat_map(|labels| &labels.lost).map(|mode| mode + 1).collect(),
            duplicates_may_occur: options.duplicates == Duplicates::Keep,
            chunk_bytes: options.chunk_bytes,
            zstd_level: options.codec.level(),
            digest,
            new_digest: new_store.digest.clone(),
            new_store,
        }
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        let found = &self.findings;
        let verdict = match (&found.manifest_problem, self.nnz_lost, &self.provenance_problem) {
            (None, Some(0), _) if !found.misplaced.is_empty() => {
                "chunk files are not where they should be; no nonzero is lost".to_owned()
            }
            (None, Some(0), None) if !self.labels_lost.is_empty() => "only labels are damaged".to_owned(),
            (None, Some(0), None) => "nothing is damaged".to_owned(),
            (None, Some(0), Some(_)) => "only provenance.json is damaged".to_owned(),
            (Some(what), Some(0), _) => format!("the manifest is damaged: {what}; no nonzero is lost"),
            (Some(what), _, _) => format!("DAMAGED; the manifest: {what}"),
            (None, _, _) => "DAMAGED".to_owned(),
        };
        writeln!(out, "{}: {verdict}", self.store.display())?;
        found.losses.iter().try_for_each(|loss| writeln!(out, "  lost      {}", lost(loss)))?;
        if let Some(what) = &self.provenance_problem {
            writeln!(out, "  lost      provenance.json: {what}")?;
        }
        for mode in &self.labels_lost {
            writeln!(out, "  lost      labels-{}.bin: the labels of mode {mode}", mode - 1)?;
        }
        for misplaced in &found.misplaced {
            writeln!(out, "  misplaced {}: holds chunk {}", misplaced.file, misplaced.chunk)?;
        }
        let told = |unused: &&UnusedFile| found.losses.iter().any(|loss| tells(loss, unused));
        for unused in found.unused.iter().filter(|unused| !told(unused)) {
            writeln!(out, "  not used  {}: {}", unused.file, unused.reason)?;
        }
        let unknown = |count: Option<u64>| count.map_or("an unknown number".into(), |n| n.to_string());
        writeln!(
            out,
            "  salvaged  {} chunk{}, {}; lost: {} of chunks, {} of nonzeros",
            found.chunks,
            if found.chunks == 1 { "" } else { "s" },
            nonzeros(found.nnz),
            unknown(self.chunks_lost),
            unknown(self.nnz_lost)
        )?;
        let same = match (self.digest == self.new_digest, self.nnz_lost) {
            (true, _) => "the same store as it was",
            (false, Some(0)) => "of the newest version",
            (false, _) => "another store",
        };
        writeln!(out, "  digest    {} before, {} now: {same}", self.digest, self.new_digest)?;
        write!(out, "{}", packing::text(&self.new_store))
    }
}

/// One line about a loss.
fn lost(loss: &Loss) -> String {
    let (first, at) = (loss.first_chunk, loss.first_nonzero);
    let chunks = match loss.last_chunk {
        Some(last) if last == first => format!("chunk {first}"),
        Some(last) => format!("chunks {first} to {last}"),
        None => format!("perhaps chunks from {first} on"),
    };
    let nonzeros = match loss.nnz {
        Some(nnz) => format!("nonzeros {at} to {}, counted from 0", (at + nnz).saturating_sub(1)),
        None => format!("nonzeros from {at} on"),
    };
    let reason = loss.reason.strip_prefix(&format!("{chunks}: ")).unwrap_or(&loss.reason);
    format!("{chunks}, {nonzeros}: {reason}")
}

/// Whether the line about a loss says why a file is not used.
fn tells(loss: &Loss, unused: &UnusedFile) -> bool {
    let UnusedFile { file, reason } = unused;
    let its_own = *file == chunk_name(usize::try_from(loss.first_chunk).unwrap_or(usize::MAX))
        && loss.reason == *reason;
    its_own || loss.reason.contains(&format!("{file}: {reason}"))
}
