//! Establishes that a store's bytes depend on the tensor and the options alone (not on threads, nor on the
//! order of the input's lines, duplicates included), and that results depend on the nonzeros, the factors
//! and the precision alone (not on threads, workers, chunk bytes, memory or encoding): bit for bit.

use crate::common::{
    KINDS, KINDS_OF_SEVERAL, Kind, SMALL_CHUNKS, Tensor, bits, exported, identity, options, pack, packed,
    plan_run, run_by_cover, run_planned, values,
};
use blco::internals::coo::tns::{ReadOptions, TnsReader};
use blco::internals::dense::{Matrix, Real, seeded_factors};
use blco::internals::pack::{Duplicates, PackOptions};
use blco::internals::sys::Sys;
use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::{Path, PathBuf};

type Files = BTreeMap<PathBuf, Option<Vec<u8>>>;

/// Packs text on `threads` threads and returns the store's files.
fn pack_text(dir: &Path, text: &[u8], threads: usize, change: impl Fn(&mut PackOptions)) -> Files {
    let sys = Sys::default();
    let mut options = options(&dir.join("store"), Kind::Tiled, SMALL_CHUNKS);
    change(&mut options);
    let text = Box::new(Cursor::new(text.to_vec()));
    let mut reader = TnsReader::from_read(&sys, text, "text", ReadOptions::default()).unwrap();
    sys.pool(threads).unwrap().install(|| pack(&sys, &mut reader, &options)).unwrap();
    let files = identity(&options.target);
    std::fs::remove_dir_all(&options.target).unwrap();
    files
}

#[test]
fn store_bytes_do_not_depend_on_threads_or_the_order_of_lines() {
    let dir = tempfile::tempdir().unwrap();
    // Several pieces of text, several groups of tiles, several chunks; many coordinates repeat.
    let tensor = Tensor::random(&[3000, 12, 7], 150_000, 1, values::fraction);
    let texts: Vec<_> =
        [tensor.clone(), tensor.shuffled(1), tensor.shuffled(2)].iter().map(Tensor::text).collect();
    assert!(texts[0].len() > 3 << 20 && texts[0] != texts[1]);
    for kind in KINDS {
        let pack = |text, threads| {
            pack_text(dir.path(), text, threads, |o| *o = options(&o.target, kind, SMALL_CHUNKS))
        };
        let wanted = pack(&texts[0], 1);
        assert!(wanted.len() > 3, "several chunks");
        for (text, threads) in [(0, 2), (0, 5), (1, 1), (1, 5), (2, 2)] {
            assert!(pack(&texts[text], threads) == wanted, "{kind:?}: text {text} on {threads} threads");
        }
    }
}

/// Values whose sums depend on the order of additions, and zeros of both signs, on few coordinates.
#[test]
fn duplicates_leave_no_trace_of_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let awkward = |bits: u64| {
        [-0.0, 0.0, 1e16, -1e16, 1.0, 0.1, -0.1, 3e-17, -0.0, 5e-324][usize::try_from(bits % 10).unwrap()]
    };
    let mut tensor = Tensor::random(&[9, 8, 7], 2500, 2, awkward);
    // Coordinates that only zeros have.
    for (n, zeros) in
        [[-0.0, -0.0], [-0.0, 0.0], [0.0, 0.0], [1.0, -1.0], [-1.0, 1.0]].into_iter().enumerate()
    {
        for zero in zeros {
            tensor.indices.extend([9, u32::try_from(n).unwrap(), 0]);
            tensor.values.push(zero);
        }
    }
    tensor.dims[0] = 10;
    for duplicates in [Duplicates::Sum, Duplicates::Keep] {
        let pack = |tensor: &Tensor, threads| {
            pack_text(dir.path(), &tensor.text(), threads, |o| o.duplicates = duplicates)
        };
        let wanted = pack(&tensor, 1);
        for (seed, threads) in (0..12).zip([1, 2, 5].into_iter().cycle()) {
            assert!(pack(&tensor.shuffled(seed), threads) == wanted, "{duplicates:?}, order {seed}");
        }
    }
    let store = packed(&tensor, &options(&dir.path().join("s"), Kind::Tiled, SMALL_CHUNKS));
    let sums: Vec<f64> =
        exported(&store).unwrap().rows().filter(|(row, _)| row[0] == 9).map(|(_, v)| v).collect();
    let sums: Vec<u64> = sums.into_iter().map(f64::to_bits).collect();
    let wanted = [-0.0f64, 0.0, 0.0, 0.0, 0.0].map(f64::to_bits);
    assert_eq!(sums, wanted, "-0.0 alone stays; everything else that cancels is 0.0");
}

/// A hot row, a long mode (its result is too large for copies) and short ones.
fn skewed() -> Tensor {
    let mut tensor = Tensor::random(&[100_000, 40, 300], 60_000, 3, values::fraction);
    for (i, row) in tensor.indices.chunks_exact_mut(3).enumerate() {
        match i % 4 {
            0 => row[0] = 77_777,
            1 => row[0] %= 1000,
            _ => {}
        }
    }
    tensor
}

/// Stores of one format, whose order of nonzeros is the same: of `kind` in chunks of three sizes, and of two others.
fn results_are_bit_identical<T: Real>(kind: Kind, others: [Kind; 2]) {
    const RANK: usize = 8;
    let dir = tempfile::tempdir().unwrap();
    let (sys, tensor, modes) = (Sys::default(), skewed(), [0, 1, 2]);
    let mut stores = Vec::new();
    for chunk_bytes in [SMALL_CHUNKS, 256 << 10, 8 << 20] {
        let target = dir.path().join(chunk_bytes.to_string());
        stores.push(packed(&tensor, &options(&target, kind, chunk_bytes)));
    }
    for (kind, chunk_bytes) in others.into_iter().zip([SMALL_CHUNKS, 256 << 10]) {
        stores.push(packed(
            &tensor,
            &options(&dir.path().join(format!("{kind:?}-{chunk_bytes}")), kind, chunk_bytes),
        ));
    }
    let chunks: Vec<usize> = stores.iter().map(|s| s.manifest().chunks.len()).collect();
    assert!(chunks[0] > chunks[1] && chunks[1] > chunks[2] && chunks[2] == 1, "{chunks:?}");
    let factors: Vec<Matrix<T>> = seeded_factors(&sys, &stores[0].manifest().shape, RANK, 4).unwrap();
    let mut wanted = None;
    for threads in [1, 2, 3, 7] {
        let pool = sys.pool(threads).unwrap();
        for store in &stores {
            let most = plan_run::<T>(store, &modes, RANK, threads, Some(3), None);
            let least = most.least_bytes();
            let tight = plan_run::<T>(store, &modes, RANK, threads, Some(3), Some(least));
            assert_eq!((tight.workers, tight.buffers_per_worker, tight.memory_bytes), (1, 1, least));
            let some = |workers| plan_run::<T>(store, &modes, RANK, threads, Some(workers), None);
            for plan in [some(1), some(2), most, tight] {
                let results = pool.install(|| run_planned(store, &factors, &modes, &plan)).unwrap();
                let results = bits(&results);
                assert!(
                    *wanted.get_or_insert_with(|| results.clone()) == results,
                    "{threads} threads, {} workers x {} buffers, {}",
                    plan.workers,
                    plan.buffers_per_worker,
                    store.path().display()
                );
            }
        }
    }
    let rows = wanted.unwrap().into_iter().map(|(_, bits)| bits.len() * 8).collect::<Vec<_>>();
    assert!(
        rows[0] > 2 << 20 && rows[1] < 2 << 20,
        "one long mode, accumulated in slots; the others in copies"
    );
}

#[test]
fn f64_results_are_bit_identical() {
    results_are_bit_identical::<f64>(Kind::Tiled, [Kind::Raw, Kind::TiledZstd]);
    results_are_bit_identical::<f64>(Kind::HocfsCsr, [Kind::HocfsZstd; 2]);
    results_are_bit_identical::<f64>(Kind::CsfOne, [Kind::CsfOne; 2]);
}

#[test]
fn f32_results_are_bit_identical() {
    results_are_bit_identical::<f32>(Kind::Tiled, [Kind::Raw, Kind::TiledZstd]);
    results_are_bit_identical::<f32>(Kind::HocfsCsr, [Kind::HocfsZstd; 2]);
    results_are_bit_identical::<f32>(Kind::CsfOne, [Kind::CsfOne; 2]);
}

/// From several covers and partitions too, for any threads, workers, chunks and other modes.
#[test]
fn results_of_several_covers_are_bit_identical() {
    let (dir, sys, tensor) = (tempfile::tempdir().unwrap(), Sys::default(), skewed());
    for kind in KINDS_OF_SEVERAL {
        let store = |chunk_bytes: u64| {
            packed(&tensor, &options(&dir.path().join(format!("{kind:?}-{chunk_bytes}")), kind, chunk_bytes))
        };
        let stores = [SMALL_CHUNKS, 256 << 10].map(store);
        let factors: Vec<Matrix<f64>> = seeded_factors(&sys, &stores[0].whole().shape, 5, 4).unwrap();
        let mut wanted = None;
        for (threads, workers) in [(1, 1), (2, 3), (5, 2)] {
            let pool = sys.pool(threads).unwrap();
            for store in &stores {
                let results = pool.install(|| run_by_cover(store, &factors, &[0, 1, 2], workers)).unwrap();
                let results = bits(&results);
                let same = *wanted.get_or_insert_with(|| results.clone()) == results;
                assert!(same, "{kind:?}, {threads} threads");
                let some = pool.install(|| run_by_cover(store, &factors, &[2, 0], workers)).unwrap();
                assert!(
                    bits(&some) == [results[2].clone(), results[0].clone()],
                    "{kind:?}: modes 3 and 1 alone"
                );
            }
        }
    }
}
