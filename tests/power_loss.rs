//! After a loss of power at any moment, whatever the file system had written by then, a store is the old one, the new one,
//! resumable, or can be packed again; what a program had said to be done is there.
//!
//! `BLCO_POWER=5000 cargo test --test power_loss -- --nocapture` tries up to so many states at each moment and prints the table
//! that is kept under benches/runs.

#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]
#![allow(clippy::print_stdout, reason = "a record of what was tried")]

mod common;
#[path = "common/power.rs"]
mod power;

use blco::coo::tns::{ReadOptions, TnsReader};
use blco::error::{Error, Result};
use blco::pack::{PackOptions, PackReport};
use blco::sys::Sys;
use blco::sys::record::{Recorder, Step};
use common::{Kind, SMALL_CHUNKS, Tensor, identity, options, pack, values};
use power::{Before, Losses, Names, Trace, Tried};
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

type Files = BTreeMap<PathBuf, Option<Vec<u8>>>;

/// States that are tried at each moment.
fn limit() -> usize {
    std::env::var("BLCO_POWER").map_or(60, |text| text.parse().unwrap())
}

/// Does `work`, which changes `root` and says how many things it has promised.
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

/// Tries what losses of power leave of what was recorded.
fn lose_power(name: &str, trace: &Trace, mut check: impl FnMut(usize)) {
    for names in [Names::InOrder, Names::Alone] {
        let tried = trace.lose_power(Losses { names, limit: limit(), seed: 1 }, &mut check);
        let Tried { moments, drawn, built, tried } = tried;
        assert!(tried >= 4, "{name}: {tried} states");
        println!("| {name} | {names:?} | {moments} | {drawn} | {built} | {tried} |");
    }
}

/// A pack in `dir/out` of the text `dir/t.tns`.
struct Packing {
    dir: tempfile::TempDir,
    options: PackOptions,
    /// What it makes.
    wanted: Files,
    /// What it replaces.
    old: Option<Files>,
}

impl Packing {
    fn new(tensor: &Tensor, kind: Kind, chunk_bytes: u64, memory: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("out")).unwrap();
        std::fs::write(dir.path().join("t.tns"), tensor.text()).unwrap();
        let options = PackOptions { memory, ..options(&dir.path().join("out/s"), kind, chunk_bytes) };
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
        identity(&self.options.target)
    }

    fn pack(&self, sys: &Sys, options: &PackOptions) -> Result<PackReport> {
        let mut reader = TnsReader::open(sys, &self.dir.path().join("t.tns"), ReadOptions::default())?;
        pack(sys, &mut reader, options)
    }

    fn chunks(&self) -> usize {
        self.wanted.len() - 1
    }

    /// What a loss of power has left can be used, and packing once more gives the store and nothing else.
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
                    assert!(refused.to_string().contains("--force"), "{refused}");
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

/// How states were found.
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
    for kind in [Kind::Raw, Kind::HocfsZstd] {
        let several = Packing::new(&large(), kind, SMALL_CHUNKS, u64::MAX);
        assert!(several.chunks() > 2);
        several.lose_power(&format!("pack, {kind:?}, {} chunks", several.chunks()));
    }
}

#[test]
fn a_pack_that_spills_is_absent_resumable_or_whole() {
    let spilling = Packing::new(
        &Tensor::random(&[600, 50, 40], 36_000, 1, values::integer),
        Kind::Tiled,
        SMALL_CHUNKS,
        0,
    );
    let counts = spilling.lose_power("pack that spills");
    assert!(counts.resumed > 0 && counts.new > 0, "{counts:?}");
}

#[test]
fn a_store_that_is_replaced_is_the_old_one_or_the_new() {
    for (tensor, chunk_bytes) in [(small(), 8 << 20), (large(), SMALL_CHUNKS)] {
        let packing = Packing::new(&tensor, Kind::Tiled, chunk_bytes, u64::MAX).replacing();
        let counts = packing.lose_power(&format!("pack --force, {} chunks", packing.chunks()));
        assert!(counts.old > 0 && counts.new > 0 && counts.absent == 0, "{counts:?}");
    }
}

/// The model sees what syncs are for: without one of them, something is lost or mixed.
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
    // Of the chunk, the manifest, their directory and its name.
    assert!(noticed >= 4, "{noticed} of {}", syncs.len());
}
