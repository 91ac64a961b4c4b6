//! Establishes on real tensors (in `../shared/data`; without it nothing is tested): results
//! equal the oracle's, TTV's too, exported nonzeros are those that were read, a published answer comes out exactly, a
//! log with duplicates packs to the very bytes of its counts, files that count from 0 are refused with the
//! hint, and the bytes a nonzero takes stay within their promise.
//!
//! With `BLCO_LARGE=1` the largest tensor and the rest of the matrix (ranks, `raw`, f32) are tested too.

use crate::common::{Kind, Tensor, all_kinds, exported, identity, options, pack, packed, run, run_by_cover};
use crate::runner::{ttv, vector};
use blco::internals::coo::Batch;
use blco::internals::coo::tns::{IndexBase, ReadOptions, TnsReader};
use blco::internals::dense::{Matrix, Real, seeded_factors};
use blco::internals::encoding::LeafRule;
use blco::internals::error::Result;
use blco::internals::op::oracle;
use blco::internals::op::ttv::{Oracle, streams};
use blco::internals::pack::{Duplicates, FormatOption, PackOptions};
use blco::internals::store::Store;
use blco::internals::sys::Sys;
use std::path::{Path, PathBuf};

const CHUNK_BYTES: u64 = 8 << 20;
const UBER: &str = "uber-aprjun2014-4d.tns.zst";
const DARPA: &str = "darpa-midas-src-dst-minute.tns.zst";
const GIT_LOG: &str = "gitlog-author-file-token-month.tns.zst";

/// The file, or `None` and a message if there is no data.
#[expect(clippy::print_stdout, reason = "a test that tests nothing says so")]
fn shared(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data").join(name);
    if path.exists() {
        return Some(path);
    }
    println!("skipped: no shared data");
    None
}

fn large() -> bool {
    std::env::var_os("BLCO_LARGE").is_some_and(|value| value == "1")
}

fn read(path: &Path, base: IndexBase) -> Result<Tensor> {
    let options = ReadOptions { index_base: base, ..ReadOptions::default() };
    Tensor::read(&mut TnsReader::open(&Sys::default(), path, options)?)
}

/// Packs the file. Returns the bytes per nonzero of the whole store.
fn pack_file(path: &Path, base: IndexBase, options: &PackOptions) -> Result<f64> {
    let read = ReadOptions { index_base: base, ..ReadOptions::default() };
    let mut reader = TnsReader::open(&Sys::default(), path, read)?;
    pack(&Sys::default(), &mut reader, options).map(|report| report.bytes_per_nnz)
}

/// Stores of the file give the oracle's results and the file's nonzeros, in at most `bytes_per_nnz` if tiled.
fn check(name: &str, bytes_per_nnz: f64) {
    let Some(path) = shared(name) else { return };
    let dir = tempfile::tempdir().unwrap();
    let tensor = read(&path, IndexBase::One).unwrap();
    // Of large tensors one kind of each way to add up.
    let several = [Kind::Tiled, Kind::HocfsCsr, Kind::HocfsEll, Kind::MmcsfStatic, Kind::FcooMttkrp];
    let kinds = if large() || tensor.nnz() < 100_000 { all_kinds().collect() } else { several.to_vec() };
    let ranks: &[usize] = if large() { &[1, 7, 16, 32, 33] } else { &[7, 32] };
    let mut stores = Vec::new();
    for kind in kinds {
        let options = options(&dir.path().join(format!("{kind:?}")), kind, CHUNK_BYTES);
        let bytes = pack_file(&path, IndexBase::One, &options).unwrap();
        assert!(kind != Kind::Tiled || bytes <= bytes_per_nnz, "{name}: {bytes:.3} bytes a nonzero");
        let store = Store::open(&Sys::default(), &options.target).unwrap();
        check_nonzeros(name, &tensor, &store, &options);
        stores.push(store);
    }
    for &rank in ranks {
        check_rank::<f64>(name, &tensor, &stores, rank);
        if large() {
            check_rank::<f32>(name, &tensor, &stores, rank);
        }
    }
}

/// Exported nonzeros equal the read ones. If duplicates were summed, a store that keeps them is compared.
fn check_nonzeros(name: &str, tensor: &Tensor, store: &Store, options: &PackOptions) {
    let back = if store.manifest().nnz == tensor.nnz() as u64 {
        exported(store).unwrap()
    } else {
        let target = options.target.with_extension("kept");
        exported(&packed(tensor, &PackOptions { target, duplicates: Duplicates::Keep, ..options.clone() }))
            .unwrap()
    };
    assert_eq!(back.dims, tensor.dims, "{name}");
    assert!(back.sorted() == tensor.sorted(), "{name}: exported nonzeros differ from those read");
}

fn check_rank<T: Real>(name: &str, tensor: &Tensor, stores: &[Store], rank: usize) {
    let modes: Vec<usize> = (0..tensor.order()).collect();
    let shape = &stores[0].manifest().shape;
    let factors: Vec<Matrix<T>> = seeded_factors(&Sys::default(), shape, rank, 2).unwrap();
    let wanted = oracle::mttkrp(&mut { tensor }, &factors, &modes).unwrap();
    for store in stores {
        for (oracle, (_, result)) in wanted.iter().zip(run_by_cover(store, &factors, &modes, 2).unwrap()) {
            let comparison = oracle.compare(&result, tensor.order(), 1);
            assert!(comparison.holds, "{name}, rank {rank}, {}: {comparison:?}", store.path().display());
        }
    }
}

/// TTV along every mode equals the oracle's: streamed from trees with both leaf codes, merged from a tree and from `tiled`.
fn check_ttv(name: &str) {
    let Some(path) = shared(name) else { return };
    let dir = tempfile::tempdir().unwrap();
    let tensor = read(&path, IndexBase::One).unwrap();
    let order = tensor.order();
    let store = |format: FormatOption| {
        let target = dir.path().join(format!("{format:?}"));
        packed(&tensor, &PackOptions { format, chunk_bytes: CHUNK_BYTES, ..PackOptions::new(target) })
    };
    let tiled = store(Kind::Tiled.format());
    for mode in 0..order {
        let x: Vec<f64> = vector(tensor.dims[mode], 1);
        let tree = |leaf, ahead| store(FormatOption::Hocfs { main_mode: (mode + ahead) % order, leaf });
        // The leaves' mode is the one before the main mode.
        let (csr, ell) = (tree(LeafRule::Csr, 1), tree(LeafRule::Ell, 1));
        assert!(streams(csr.manifest(), mode) && streams(ell.manifest(), mode));
        let mut stores = vec![&tiled, &csr, &ell];
        let other = (order > 2).then(|| tree(LeafRule::Auto, 2));
        stores.extend(&other);
        for store in stores {
            let shape = &store.manifest().shape;
            let mut oracle = Oracle::new(&mut { &tensor }, shape, &[(mode, &x[..])]).unwrap();
            let runs = dir.path().join("runs");
            let mut sink = |batches: Vec<Batch>| {
                for batch in &batches {
                    oracle.compare(batch).unwrap();
                }
                Ok(())
            };
            ttv(store, mode, &x, (u64::MAX, &runs), 2, &mut sink).unwrap();
            let found = oracle.finish().unwrap();
            assert!(found.holds, "{name}, {}: {found:?}", store.path().display());
        }
        let trees = [&csr, &ell].into_iter().chain(&other);
        trees.for_each(|store| std::fs::remove_dir_all(store.path()).unwrap());
    }
}

#[test]
fn ttv_of_logs() {
    check_ttv(UBER);
    check_ttv(DARPA);
    if large() {
        check_ttv(GIT_LOG);
    } else {
        println!("skipped: BLCO_LARGE=1 tests the git log");
    }
}

#[test]
fn ttv_of_knowledge_graphs_and_small_tensors() {
    check_ttv("kg-icews14-subj-rel-obj-time.tns.zst");
    check_ttv("kg-fb15k237-head-rel-tail.tns.zst");
    for name in ["mttkrp_b", "small", "small4", "med4", "headered_3d_7", "plain_4d_3_16", "toolbox_header"] {
        check_ttv(&format!("small/{name}.tns"));
    }
}

#[test]
fn uber() {
    check(UBER, 2.4);
}

#[test]
fn darpa() {
    check(DARPA, 4.9);
}

#[test]
fn git_log() {
    if large() {
        check(GIT_LOG, 5.2);
    } else {
        println!("skipped: BLCO_LARGE=1 tests the git log");
    }
}

#[test]
fn knowledge_graphs() {
    check("kg-icews14-subj-rel-obj-time.tns.zst", f64::INFINITY);
    check("kg-fb15k237-head-rel-tail.tns.zst", f64::INFINITY);
}

#[test]
fn small_tensors_of_others() {
    for name in ["mttkrp_b", "small", "small4", "med4", "headered_3d_7", "plain_4d_3_16", "toolbox_header"] {
        check(&format!("small/{name}.tns"), f64::INFINITY);
    }
}

#[test]
fn a_log_with_duplicates_packs_to_the_bytes_of_its_counts() {
    let (Some(counts), Some(log)) = (shared(UBER), shared("uber-aprjun2014-4d-rawdup.tns.zst")) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    for (kind, chunk_bytes) in [(Kind::Tiled, CHUNK_BYTES), (Kind::Raw, 1 << 20)] {
        let stores = [counts.as_path(), &log].map(|path| {
            let options = options(&dir.path().join("store"), kind, chunk_bytes);
            pack_file(path, IndexBase::One, &options).unwrap();
            let files = identity(&options.target);
            std::fs::remove_dir_all(&options.target).unwrap();
            files
        });
        assert!(stores[0] == stores[1], "{kind:?}");
    }
}

#[test]
fn files_that_count_from_zero_are_refused_with_the_hint() {
    for name in ["small/small4_zeroidx.tns", "small/toolbox_header_zero_based.tns"] {
        let Some(path) = shared(name) else { return };
        let dir = tempfile::tempdir().unwrap();
        let options = options(&dir.path().join("store"), Kind::Tiled, CHUNK_BYTES);
        let message = pack_file(&path, IndexBase::One, &options).unwrap_err().to_string();
        assert!(message.contains("`index_base` 0"), "{message}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
    }
}

#[test]
fn a_file_that_counts_from_zero_equals_its_twin() {
    let twins = [
        ("small/toolbox_header.tns", IndexBase::One),
        ("small/toolbox_header_zero_based.tns", IndexBase::Zero),
    ];
    let dir = tempfile::tempdir().unwrap();
    let mut stores = Vec::new();
    for (n, (name, base)) in twins.into_iter().enumerate() {
        let Some(path) = shared(name) else { return };
        let options = options(&dir.path().join(n.to_string()), Kind::Tiled, CHUNK_BYTES);
        pack_file(&path, base, &options).unwrap();
        stores.push(identity(&options.target));
    }
    assert!(stores[0] == stores[1]);
}

/// Factors of consecutive integers. The answer is a file beside the tensor.
#[test]
fn the_published_answer_comes_out_exactly() {
    let (Some(path), Some(answer)) = (shared("small/mttkrp_b.tns"), shared("small/mttkrp_b.expected.txt"))
    else {
        return;
    };
    let text = std::fs::read_to_string(answer).unwrap();
    let numbers = |line: &str| line.split_whitespace().map(|x| x.parse().ok()).collect::<Option<Vec<f64>>>();
    let wanted: Vec<f64> = text.lines().filter_map(numbers).flatten().collect();
    assert_eq!(wanted.len(), 10, "2 rows of rank 5");
    let dir = tempfile::tempdir().unwrap();
    for kind in all_kinds() {
        let options = options(&dir.path().join(format!("{kind:?}")), kind, CHUNK_BYTES);
        pack_file(&path, IndexBase::One, &options).unwrap();
        let store = Store::open(&Sys::default(), &options.target).unwrap();
        let consecutive = |&rows: &u32| {
            let rows = rows as usize;
            Matrix::from_rows(rows, 5, (0..rows * 5).map(|x| x as f64).collect())
        };
        let factors: Vec<Matrix<f64>> = store.manifest().shape.dims().iter().map(consecutive).collect();
        assert_eq!(run(&store, &factors, &[0]).unwrap()[0].1.data(), wanted);
    }
}
