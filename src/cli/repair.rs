//! `blco-info --repair`: what is lost of a damaged store, and the rest in a new one.

use super::outputs::{check_temp_dir, refuse_dash_for_directory};
use super::progress::Bar;
use super::{Common, Program, Report, arguments, nonzeros, on_pool, pack as packing, size};
use crate::engine::phase_name;
use crate::error::{Error, Result};
use crate::op::salvage::{Findings, Loss, MisplacedFile, Salvage, UnusedFile};
use crate::pack::{
    Duplicates, FormatOption, MEMORY_MIN, PackOptions, PackReport, memory_least, pack, scan_bytes,
};
use crate::store::{Codec, chunk_name, holds_manifest, read_provenance};
use crate::sys::{Sys, behind_links, directory, is_media_failure};
use bytesize::ByteSize;
use clap::Args;
use rustix::fs::{Access, access};
use serde::Serialize;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// How a store is repaired.
#[derive(Clone, Debug, Args)]
pub struct RepairArgs {
    /// Write the nonzeros of all intact chunks to a new store, whether the manifest is intact or not
    #[arg(long, value_name = "NEWSTORE", conflicts_with_all = ["quick", "verify"])]
    repair: Option<PathBuf>,
    /// Replace an existing store at NEWSTORE, in one step
    #[arg(long, requires = "repair")]
    force: bool,
    /// Take at most this much memory; for --repair at least 64MiB [default: what is available, for --repair half of it]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,
    /// Where temporary files of --repair go when the tensor exceeds the memory [default: beside NEWSTORE]
    #[arg(long, value_name = "DIR", requires = "repair")]
    temp_dir: Option<PathBuf>,
}

impl RepairArgs {
    /// The memory that is allowed.
    pub(super) fn memory(&self) -> Option<u64> {
        self.memory
    }

    /// The new store, if one is asked for.
    pub(super) fn target(&self) -> Option<&Path> {
        self.repair.as_deref()
    }
}

/// What is reported as JSON.
#[derive(Debug, Serialize)]
struct RepairReport {
    #[serde(serialize_with = "crate::sys::shown_path")]
    store: PathBuf,
    manifest_problem: Option<String>,
    provenance_problem: Option<String>,
    digest: String,
    new_digest: String,
    chunks_intact: u64,
    chunks_lost: Option<u64>,
    nnz_salvaged: u64,
    nnz_lost: Option<u64>,
    losses: Vec<Loss>,
    unused_files: Vec<UnusedFile>,
    misplaced_files: Vec<MisplacedFile>,
    duplicates_may_occur: bool,
    chunk_bytes: u64,
    zstd_level: Option<i32>,
    new_store: PackReport,
}

/// Looks at `store` and packs what is intact into `target`.
pub(super) fn repair<P: Program>(
    sys: &Sys,
    store: &Path,
    target: &Path,
    args: &RepairArgs,
    common: Common,
) -> Result<Report> {
    refuse_dash_for_directory("--repair", Some(target), "a store is files")?;
    check_temp_dir("--temp-dir", args.temp_dir.as_deref())?;
    let memory = packing::packing_memory(args.memory)?;
    let same = |a: &Path, b: &Path| Some(a.canonicalize().ok()? == b.canonicalize().ok()?);
    if same(store, target) == Some(true) {
        let what = "is the damaged store, which stays as it is; name another for what is intact";
        return Err(Error::request(format!("{}: {what}", target.display())));
    }
    if store.is_dir() {
        can_write(target, args.force)?;
    }
    let mut options = PackOptions::new(target.to_path_buf());
    let progress = Bar::new(common.quiet || common.json);
    let mut salvage = on_pool(sys, common.threads, |_| {
        let show = |done, total| progress.show("checking", done, total);
        Salvage::scan(sys, store, options.chunk_bytes, scan_bytes(memory), &show)
    })?;
    let (provenance, provenance_problem) = old_provenance(sys, store)?;
    let layout = salvage.layout();
    options.replace = args.force;
    options.format = FormatOption::Known(layout.format);
    options.codec = layout.codec;
    options.chunk_bytes = layout.chunk_bytes;
    options.duplicates = if layout.may_repeat { Duplicates::Keep } else { Duplicates::Error };
    options.memory = memory;
    let least = memory_least(&salvage, &options, 1);
    if args.memory.is_none() {
        options.memory = memory.max(least);
    }
    if (MEMORY_MIN..least).contains(&options.memory) {
        let (given, chunk) = (ByteSize(memory), ByteSize(options.chunk_bytes));
        let least = ByteSize(least.next_multiple_of(1 << 20));
        let what =
            format!("--memory {given} is too little: its chunks of up to {chunk} take at least {least}");
        return Err(Error::request(format!("{}: {what}", store.display())));
    }
    options.temp_dir.clone_from(&args.temp_dir);
    options.provenance = new_provenance(store, salvage.findings(), &provenance);
    let packed = packing::on_packing_pool(sys, common.threads, &mut salvage, &options, |salvage| {
        let show = |phase, done, total| progress.show(phase_name(phase), done, total);
        pack(sys, salvage, &options, &show)
    })?;
    drop(progress);
    let report = RepairReport::new(store, salvage.findings(), provenance_problem, &options, packed);
    let mut finished = Report::new::<P>(report.text()?, &report)?;
    finished.failed = report.nnz_lost != Some(0);
    Ok(finished)
}

/// Finds out now, without changing anything, what would keep the packer from writing a store at `target`: not only after
/// a long look at the old one.
fn can_write(target: &Path, replace: bool) -> Result<()> {
    let wrong = |what: &str| Err(Error::request(format!("{}: {what}", target.display())));
    let real = behind_links(target)?;
    let allowed = Access::WRITE_OK | Access::EXEC_OK;
    access(directory(&real), allowed).map_err(|e| Error::io(target, "create")(e.into()))?;
    match (target.symlink_metadata().is_ok(), holds_manifest(target)?) {
        (true, false) => wrong("exists and is not a store; name another output"),
        (true, true) if !replace => wrong("a store is there already; --force replaces it, or name another"),
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
        Err(Error::Corrupt { what, .. }) => Ok((serde_json::Value::Null, Some(what))),
        Err(Error::Io { action, source, .. }) if is_media_failure(&source) => {
            Ok((serde_json::Value::Null, Some(format!("cannot {action}: {source}"))))
        }
        Err(other) => Err(other),
    }
}

/// The new store's provenance.
fn new_provenance(store: &Path, findings: &Findings, old: &serde_json::Value) -> String {
    let provenance = serde_json::json!({
        "program": "blco", "version": env!("CARGO_PKG_VERSION"), "input": store.display().to_string(),
        "created": humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string(),
        "arguments": arguments(),
        "repaired": {
            "digest": format!("{:016x}", findings.id), "nnz_salvaged": findings.nnz,
            "nnz_lost": findings.nnz_lost(), "losses": findings.losses, "provenance": old,
        },
    });
    format!("{provenance:#}\n")
}

impl RepairReport {
    fn new(
        store: &Path,
        findings: &Findings,
        provenance_problem: Option<String>,
        options: &PackOptions,
        packed: PackReport,
    ) -> Self {
        let digest = format!("{:016x}", findings.id);
        // An equal digest proves that nothing is lost, even where the chunks alone could not say whether more came.
        let whole = packed.digest == digest;
        Self {
            store: store.to_path_buf(),
            manifest_problem: findings.manifest_problem.clone(),
            provenance_problem,
            chunks_intact: findings.chunks,
            chunks_lost: if whole { Some(0) } else { findings.chunks_lost() },
            nnz_salvaged: findings.nnz,
            nnz_lost: if whole { Some(0) } else { findings.nnz_lost() },
            losses: if whole { Vec::new() } else { findings.losses.clone() },
            unused_files: findings.unused.clone(),
            misplaced_files: findings.misplaced.clone(),
            duplicates_may_occur: options.duplicates == Duplicates::Keep,
            chunk_bytes: options.chunk_bytes,
            zstd_level: match options.codec {
                Codec::None => None,
                Codec::Zstd(level) => Some(level),
            },
            digest,
            new_digest: packed.digest.clone(),
            new_store: packed,
        }
    }

    fn text(&self) -> Result<String> {
        let mut out = String::new();
        self.write_text(&mut out)
            .map_err(|e| Error::request(format!("the report cannot be written: {e}")))?;
        Ok(out)
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        let verdict = match (&self.manifest_problem, self.nnz_lost, &self.provenance_problem) {
            (None, Some(0), _) if !self.misplaced_files.is_empty() => {
                "chunk files are not where they should be; no nonzero is lost".to_owned()
            }
            (None, Some(0), None) => "nothing is damaged".to_owned(),
            (None, Some(0), Some(_)) => "only provenance.json is damaged".to_owned(),
            (Some(what), Some(0), _) => format!("the manifest is damaged: {what}; no nonzero is lost"),
            (Some(what), _, _) => format!("DAMAGED; the manifest: {what}"),
            (None, _, _) => "DAMAGED".to_owned(),
        };
        writeln!(out, "{}: {verdict}", self.store.display())?;
        self.losses.iter().try_for_each(|loss| writeln!(out, "  lost      {}", lost(loss)))?;
        if let Some(what) = &self.provenance_problem {
            writeln!(out, "  lost      provenance.json: {what}")?;
        }
        for misplaced in &self.misplaced_files {
            writeln!(out, "  misplaced {}: holds chunk {}", misplaced.file, misplaced.chunk)?;
        }
        let told = |unused: &&UnusedFile| self.losses.iter().any(|loss| tells(loss, unused));
        for unused in self.unused_files.iter().filter(|unused| !told(unused)) {
            writeln!(out, "  not used  {}: {}", unused.file, unused.reason)?;
        }
        let unknown = |count: Option<u64>| count.map_or("an unknown number".into(), |n| n.to_string());
        writeln!(
            out,
            "  salvaged  {} chunk{}, {}; lost: {} of chunks, {} of nonzeros",
            self.chunks_intact,
            if self.chunks_intact == 1 { "" } else { "s" },
            nonzeros(self.nnz_salvaged),
            unknown(self.chunks_lost),
            unknown(self.nnz_lost)
        )?;
        let same = if self.digest == self.new_digest { "the same store as it was" } else { "another store" };
        writeln!(out, "  digest    {} before, {} now: {same}", self.digest, self.new_digest)?;
        write!(out, "{}", packing::text(&self.new_store))
    }
}

/// One line on a loss.
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

/// Whether the line on a loss says why a file is not used.
fn tells(loss: &Loss, unused: &UnusedFile) -> bool {
    let UnusedFile { file, reason } = unused;
    let its_own = *file == chunk_name(usize::try_from(loss.first_chunk).unwrap_or(usize::MAX))
        && loss.reason == *reason;
    its_own || loss.reason.contains(&format!("{file}: {reason}"))
}
