//! After a loss of power at any moment, whatever the file system had written, a store is the old one, the new one,
//! resumable, or can be packed again. A result is the old one, the new one, or absent. A checkpoint continues to the same bits.
//! What a program had reported as done survives, and the next program works, whatever else is left.
//!
//! `BLCO_POWER=5000 cargo test --test power_loss -- --nocapture` sets the most states per moment and prints the table
//! of benches/runs.

#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]
#![allow(clippy::print_stdout, reason = "a record of what was tried")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/power.rs"]
mod power;

use blco::cli::Program;
use blco::internals::coo::tns::{ReadOptions, TnsReader};
use blco::internals::decomp::checkpoint::{Checkpointer, Identity};
use blco::internals::decomp::host::{HostAls, host_bytes};
use blco::internals::decomp::{self, CpJob, Decomposition, Init, Problem, Settings};
use blco::internals::error::{Error, Result};
use blco::internals::op::mttkrp::Mttkrp;
use blco::internals::pack::{PackOptions, PackReport};
use blco::internals::store::Store;
use blco::internals::stream::{Limits, plan};
use blco::internals::sys::Sys;
use blco::internals::sys::record::{Recorder, Step};
use common::{Kind, SMALL_CHUNKS, Tensor, identity, options, pack, packed, tree, values};
use power::{Before, Losses, Names, Trace, Tried};
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

type Files = BTreeMap<PathBuf, Option<Vec<u8>>>;

/// The most states at each moment.
fn limit() -> usize {
    std::env::var("BLCO_POWER").map_or(20, |text| text.parse().unwrap())
}

/// Runs `work`, which changes `root` and returns its number of promises.
fn recorded(root: &Path, work: impl FnOnce(&Sys, &(dyn Fn(usize) + Sync))) -> Trace {
    let (before, recorder) = (Before::of(root), Arc::new(Recorder::default()));
    let promises = Mutex::new(Vec::new());
    work(&Sys::recorded(Arc::clone(&recorder)), &|promised| {
        let mut promises = promises.lock().unwrap();
        let length = promised.max(promises.len());
        promises.resize(length, recorder.step_count());
    });
    Trace::new(before, &recorder.steps(), &promises.into_inner().unwrap())
}

/// Tries the states that losses of power may leave of a record.
fn lose_power(name: &str, trace: &Trace, mut check: impl FnMut(usize)) {
    for names in [Names::InOrder, Names::Alone] {
        let tried = trace.lose_power(Losses { names, limit: limit(), seed: 1 }, &mut check);
        let Tried { moments, drawn, built, distinct } = tried;
        assert!(distinct >= 4, "{name}: {distinct} states");
        println!("| {name} | {names:?} | {moments} | {drawn} | {built} | {distinct} |");
    }
}

/// A pack in `dir/out` of the text `dir/t.tns`.
struct Packing {
    dir: tempfile::TempDir,
    options: PackOptions,
    /// The store that it makes.
    wanted: Files,
    /// The store that it replaces.
    old: Option<Files>,
}

impl Packing {
    fn new(tensor: &Tensor, kind: Kind, chunk_bytes: u64, memory: u64) -> Self {
        Self::in_parts(tensor, kind, chunk_bytes, (memory, 1))
    }

    fn in_parts(tensor: &Tensor, kind: Kind, chunk_bytes: u64, (memory, parts): (u64, u32)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("out")).unwrap();
        std::fs::write(dir.path().join("t.tns"), tensor.text()).unwrap();
        let options = options(&dir.path().join("out/s"), kind, chunk_bytes);
        let options = PackOptions { memory, parts, ..options };
        let mut packing = Self { dir, options, wanted: Files::new(), old: None };
        packing.pack(&Sys::default(), &packing.options).unwrap();
        packing.wanted = packing.store();
        std::fs::remove_dir_all(&packing.options.target).unwrap();
        packing
    }

    /// The same over a store of another tensor.
    fn replacing(mut self) -> Self {
        let other = Tensor::random(&[9, 8, 7], 100, 7, values::integer);
        pack(&Sys::default(), &mut &other, &self.options).unwrap();
        self.old = Some(self.store());
        self.options.replace = true;
        self
    }

    fn out(&self) -> PathBuf {
        self.dir.path().join("out")
    }

    fn store(&self) -> Files {
        if self.options.parts == 1 {
            return identity(&self.options.target);
        }
        let mut files = tree(&self.options.target);
        files.retain(|path, _| path.file_name().is_some_and(|name| name != "provenance.json"));
        files
    }

    fn pack(&self, sys: &Sys, options: &PackOptions) -> Result<PackReport> {
        let mut reader = TnsReader::open(sys, &self.dir.path().join("t.tns"), ReadOptions::default())?;
        pack(sys, &mut reader, options)
    }

    fn chunks(&self) -> usize {
        self.wanted.len() - 1
    }

    /// The state after a loss of power is usable, and packing again gives the store and nothing else.
    fn check(&self, promised: usize, counts: &mut Counts) {
        let sys = Sys::default();
        let mut options = self.options.clone();
        if options.target.symlink_metadata().is_ok() {
            let found = self.store();
            assert!(
                found == self.wanted || Some(&found) == self.old.as_ref(),
                "neither the old store nor the new"
            );
            assert!(promised == 0 || found == self.wanted, "what was published is lost");
            *(if found == self.wanted { &mut counts.new } else { &mut counts.old }) += 1;
            options.replace = true;
        } else {
            assert!(self.old.is_none() && promised == 0, "the store is lost");
            match self.pack(&sys, &options) {
                Ok(_) => counts.absent += 1,
                Err(refused) => {
                    assert!(matches!(refused, Error::Request(_) | Error::Corrupt { .. }), "{refused}");
                    assert!(refused.to_string().contains("`replace`"), "{refused}");
                    let resumed = self.pack(&sys, &PackOptions { resume: true, ..options.clone() });
                    match resumed {
                        Ok(_) => counts.resumed += 1,
                        Err(Error::Request(_) | Error::Corrupt { .. }) => counts.refused += 1,
                        Err(other) => panic!("{other}"),
                    }
                    options.replace = true;
                }
            }
            if self.options.target.exists() {
                assert!(self.store() == self.wanted, "packed again, other bytes");
                assert_eq!(names(&self.out()), ["s"]);
                return;
            }
        }
        self.pack(&sys, &options).unwrap();
        assert!(self.store() == self.wanted, "packed again, other bytes");
        assert_eq!(names(&self.out()), ["s"]);
    }

    fn lose_power(&self, name: &str) -> Counts {
        let mut counts = Counts::default();
        let trace = recorded(&self.out(), |sys, promise| {
            self.pack(sys, &self.options).unwrap();
            promise(1);
        });
        lose_power(name, &trace, |promised| self.check(promised, &mut counts));
        println!("  {name}: {counts:?}");
        counts
    }
}

/// The names in a directory.
fn names(dir: &Path) -> Vec<String> {
    dir.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Counts of states by kind.
#[derive(Debug, Default)]
struct Counts {
    old: usize,
    new: usize,
    /// Nothing to resume: packing again succeeds.
    absent: usize,
    /// `--resume` gives the same bytes.
    resumed: usize,
    /// `--resume` refuses, `--force` packs again.
    refused: usize,
}

fn small() -> Tensor {
    Tensor::random(&[30, 20, 10], 300, 1, values::fraction)
}

fn large() -> Tensor {
    Tensor::random(&[60, 50, 40], 12_000, 1, values::fraction)
}

#[test]
fn a_pack_is_absent_or_whole() {
    let one = Packing::new(&small(), Kind::Tiled, 8 << 20, u64::MAX);
    assert_eq!(one.chunks(), 1);
    let counts = one.lose_power("pack, 1 chunk");
    assert!(counts.absent > 0 && counts.new > 0);
    for kind in [Kind::Raw, Kind::HocfsZstd, Kind::CsfAll, Kind::Hbcsf, Kind::Mmcsf, Kind::FcooTtm] {
        let several = Packing::new(&large(), kind, SMALL_CHUNKS, u64::MAX);
        assert!(several.chunks() > 2);
        several.lose_power(&format!("pack, {kind:?}, {} chunks", several.chunks()));
    }
}

#[test]
fn a_pack_that_spills_is_absent_resumable_or_whole() {
    let tensor = Tensor::random(&[600, 50, 40], 36_000, 1, values::integer);
    for kind in [Kind::Tiled, Kind::BcsfAllZstd, Kind::MmcsfStatic] {
        let spilling = Packing::new(&tensor, kind, SMALL_CHUNKS, 0);
        let counts = spilling.lose_power(&format!("pack that spills, {kind:?}"));
        assert!(counts.resumed > 0 && counts.new > 0, "{counts:?}");
    }
}

#[test]
fn a_store_that_is_replaced_is_the_old_one_or_the_new() {
    for (tensor, chunk_bytes) in [(small(), 8 << 20), (large(), SMALL_CHUNKS)] {
        let packing = Packing::new(&tensor, Kind::Tiled, chunk_bytes, u64::MAX).replacing();
        let counts = packing.lose_power(&format!("pack --force, {} chunks", packing.chunks()));
        assert!(counts.old > 0 && counts.new > 0 && counts.absent == 0, "{counts:?}");
    }
}

#[test]
fn parts_get_their_name_together_or_not_at_all() {
    let tensor = Tensor::random(&[600, 50, 40], 36_000, 1, values::integer);
    let counts =
        Packing::in_parts(&tensor, Kind::Tiled, SMALL_CHUNKS, (0, 3)).lose_power("pack that spills, 3 parts");
    assert!(counts.resumed > 0 && counts.new > 0, "{counts:?}");
    let replacing = Packing::in_parts(&large(), Kind::Tiled, SMALL_CHUNKS, (u64::MAX, 2)).replacing();
    let counts = replacing.lose_power("pack --force, 2 parts");
    assert!(counts.old > 0 && counts.new > 0 && counts.absent == 0, "{counts:?}");
}

/// The model shows the need for each sync: without one of them, something is lost or mixed.
#[test]
fn a_sync_that_is_left_out_is_noticed() {
    let packing = Packing::new(&small(), Kind::Tiled, 8 << 20, u64::MAX).replacing();
    let (before, recorder) = (Before::of(&packing.out()), Arc::new(Recorder::default()));
    packing.pack(&Sys::recorded(Arc::clone(&recorder)), &packing.options).unwrap();
    let steps = recorder.steps();
    let syncs: Vec<usize> = (0..steps.len()).filter(|&i| matches!(steps[i], Step::Sync { .. })).collect();
    let all = Trace::new(before.clone(), &steps, &[steps.len()]);
    let whole = |promised| {
        let found = packing.store();
        assert!(found == packing.wanted || promised == 0 && Some(&found) == packing.old.as_ref());
    };
    let losses = Losses { names: Names::InOrder, limit: 2000, seed: 1 };
    all.lose_power(losses, whole);
    let mut noticed = 0;
    for &left_out in &syncs {
        let steps: Vec<Step> =
            (0..steps.len()).filter(|&i| i != left_out).map(|i| steps[i].clone()).collect();
        all.build_end();
        let trace = Trace::new(before.clone(), &steps, &[steps.len()]);
        let tried = std::panic::catch_unwind(AssertUnwindSafe(|| trace.lose_power(losses, whole)));
        noticed += usize::from(tried.is_err());
    }
    // The syncs of the chunk's contents, the manifest's and their names. Either of two makes an exchange of names durable.
    assert!(noticed >= 3, "{noticed} of {}", syncs.len());
}

/// Two starts of two iterations, with a checkpoint in `dir` after each; `saved` gets the number of those.
fn decompose(
    sys: &Sys,
    store: &Store,
    dir: &Path,
    resume: bool,
    saved: &(dyn Fn(usize) + Sync),
) -> Result<Decomposition<f64>> {
    const RANK: usize = 2;
    let shape = &store.manifest().shape;
    let mut job = CpJob {
        sys,
        shape,
        problem: Problem::of(store.manifest())?,
        settings: Settings { rank: RANK, ridge: 0.0, nonneg: false },
        tol: 0.0,
        max_iters: 2,
        checkpoint: Some(Checkpointer::open(sys, dir, 1, Identity::new(), resume)?),
    };
    let plan = plan(
        store,
        host_bytes::<f64>(store.manifest(), RANK, 1),
        &Limits { threads: 1, ..Limits::default() },
    )?;
    let op = Mttkrp::alternating(store, RANK, 1)?;
    let mut place = HostAls::new(store, &plan, op)?;
    decomp::run(&mut job, Init::Seeded { seed: 1, starts: 2 }, &mut place, &|at| {
        saved(2 * at.start as usize + at.last.map_or(0, |last| last.iteration));
    })
}

/// The iterations of all starts that a run continued.
fn continued(outcome: &Decomposition<f64>) -> usize {
    outcome.resumed.map_or(0, |(start, iteration)| 2 * (start as usize - 1) + iteration)
}

#[test]
fn a_checkpoint_is_the_last_one_or_the_one_before() {
    for chunks in [1, 2] {
        let dir = tempfile::tempdir().unwrap();
        let (tensor, chunk_bytes) = if chunks == 1 { (small(), 8 << 20) } else { (large(), SMALL_CHUNKS) };
        let store = packed(&tensor, &options(&dir.path().join("s"), Kind::Tiled, chunk_bytes));
        assert!(store.manifest().chunks.len() >= chunks);
        let root = dir.path().join("root");
        std::fs::create_dir(&root).unwrap();
        let at = root.join("c");
        let mut wanted = None;
        let mut resumed = BTreeMap::new();
        let trace = recorded(&root, |sys, promise| {
            wanted = Some(decompose(sys, &store, &at, false, promise).unwrap().model);
            promise(4);
        });
        lose_power(&format!("checkpoints, {chunks} chunks"), &trace, |promised| {
            let sys = Sys::default();
            let outcome = decompose(&sys, &store, &at, true, &|_| ()).or_else(|refused| {
                assert!(refused.to_string().contains("no checkpoint to resume"), "{refused}");
                decompose(&sys, &store, &at, false, &|_| ())
            });
            let outcome = outcome.unwrap();
            assert!(Some(&outcome.model) == wanted.as_ref(), "continued to other bits");
            let continued = continued(&outcome);
            assert!(continued >= promised, "continued from iteration {continued} of {promised}");
            *resumed.entry(continued).or_insert(0) += 1;
        });
        println!("  continued from iterations {resumed:?}");
    }
}

/// Runs a program in this process, with the arguments in `line`; `@` marks a path in `dir`.
fn program<P: Program>(sys: &Sys, dir: &Path, line: &str) -> Result<()> {
    let path = |word: &str| word.replace('@', &format!("{}/", dir.display()));
    P::try_parse_from(line.split(' ').map(path)).unwrap().run(sys).map(drop)
}

type Run = fn(&Sys, &Path, &str) -> Result<()>;

/// The contents of `path`, a file or a directory, without reports, because these hold times.
fn numbers(path: &Path) -> Files {
    let name = |path: &Path| path.extension().is_none_or(|end| end != "json" && end != "html");
    if path.is_file() {
        return Files::from([(PathBuf::new(), Some(std::fs::read(path).unwrap()))]);
    }
    tree(path).into_iter().filter(|(path, _)| name(path)).collect()
}

/// The whole contents of `path`.
fn result(path: &Path) -> Option<Files> {
    let is_file = path.symlink_metadata().ok()?.is_file();
    Some(if is_file { numbers(path) } else { tree(path) })
}

/// A program writes `r` with the arguments `line`, without and with an earlier result.
fn results_are_whole(name: &str, run: Run, line: &str, other: &str) {
    let dir = tempfile::tempdir().unwrap();
    let sys = Sys::default();
    packed(&small(), &options(&dir.path().join("s"), Kind::Tiled, 8 << 20));
    packed(&large(), &options(&dir.path().join("l"), Kind::HocfsCsr, SMALL_CHUNKS));
    let root = dir.path().join("root");
    let target = root.join("r");
    let force = format!("{line} --force");
    for replaces in [false, true] {
        std::fs::create_dir(&root).unwrap();
        if replaces {
            run(&sys, dir.path(), other).unwrap();
        }
        let old = result(&target);
        let trace = recorded(&root, |sys, promise| {
            run(sys, dir.path(), if replaces { &force } else { line }).unwrap();
            promise(1);
        });
        let (new, wanted) = (result(&target), numbers(&target));
        let mut found = [0; 2];
        lose_power(&format!("{name}{}", if replaces { " --force" } else { "" }), &trace, |promised| {
            let there = result(&target);
            assert!(there == old && promised == 0 || there == new, "neither the old result nor the new");
            found[usize::from(there == new)] += 1;
            run(&sys, dir.path(), &force).unwrap();
            assert!(numbers(&target) == wanted, "other numbers, when it is written again");
            assert_eq!(names(&root), ["r"]);
        });
        assert!(found.iter().all(|&n| n > 0), "{found:?}");
        std::fs::remove_dir_all(&root).unwrap();
    }
}

#[test]
fn results_are_the_old_ones_or_the_new() {
    let modes = "--quiet --threads 1 --backend cpu";
    results_are_whole(
        "blco-run",
        program::<blco::cli::run::Run>,
        &format!("blco-run @l --rank 2 --output @root/r {modes}"),
        &format!("blco-run @s --rank 3 --output @root/r {modes}"),
    );
    results_are_whole(
        "blco-run, TTV",
        program::<blco::cli::run::Run>,
        &format!("blco-run @l --op ttv --modes 3 --output @root/r {modes}"),
        &format!("blco-run @s --op ttv --modes 1 --output @root/r {modes}"),
    );
    results_are_whole(
        "blco-cpd",
        program::<blco::cli::cpd::Cpd>,
        &format!("blco-cpd @s --rank 2 --max-iters 2 --output @root/r {modes}"),
        &format!("blco-cpd @s --rank 3 --max-iters 1 --output @root/r {modes}"),
    );
    results_are_whole(
        "blco-export",
        program::<blco::cli::export::Export>,
        "blco-export @l @root/r --quiet --threads 1",
        "blco-export @s @root/r --quiet --threads 1",
    );
    results_are_whole(
        "blco-gen",
        program::<blco::cli::generate::Gen>,
        "blco-gen --dims 9,8,7 --nnz 100 @root/r --quiet --threads 1",
        "blco-gen --dims 9,8,7 --nnz 50 @root/r --quiet --threads 1",
    );
}
