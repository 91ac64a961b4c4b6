//! Establishes that TTV equals a naive sum along every mode, from stores of every kind, whatever the chunks, workers,
//! threads and memory, and that elements come in the promised order, to the bit.

use crate::common::{SMALL_CHUNKS, Tensor, all_kinds, options, packed, values};
use crate::elements::{Elements, bits, check_order, compare};
use crate::runner::vector;
use blco::internals::backend::host::Vectors;
use blco::internals::dense::{Matrix, Real};
use blco::internals::encoding::LeafRule;
use blco::internals::error::Result;
use blco::internals::pack::{FormatOption, PackOptions};
use blco::internals::random::Counter;
use blco::internals::store::Store;
use blco::internals::sys::Sys;
use std::collections::BTreeMap;
use std::path::Path;

/// TTV along `mode`, in the way that suits the store.
fn ttv<T: Real>(store: &Store, mode: usize, x: &[T], memory: u64, workers: usize) -> Result<Elements> {
    let order = store.manifest().shape.order();
    let (mut found, dir) = (Elements::new(), tempfile::tempdir().unwrap());
    let memory = (memory, dir.path());
    let elements = crate::runner::ttv(store, mode, x, memory, workers, &mut |batches| {
        found.extend(crate::runner::elements(batches, order));
        Ok(())
    })?;
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
    assert_eq!(elements, found.len() as u64);
    Ok(found)
}

/// Every kind of store, every mode, both precisions.
fn check(name: &str, tensor: &Tensor) {
    let dir = tempfile::tempdir().unwrap();
    for kind in all_kinds() {
        let store = packed(tensor, &options(&dir.path().join(format!("{kind:?}")), kind, SMALL_CHUNKS));
        for mode in 0..tensor.order() {
            let what = format!("{name}, {kind:?}, mode {mode}");
            let x = vector::<f64>(tensor.dims[mode], 1);
            let found = ttv(&store, mode, &x, u64::MAX, 2).unwrap();
            compare(&found, tensor, mode, &x, &what);
            check_order(&found, &store, mode, &what);
            let spilled = ttv(&store, mode, &x, 0, 1).unwrap();
            assert!(bits(&spilled) == bits(&found), "{what}: with no memory");
            let x = vector::<f32>(tensor.dims[mode], 2);
            compare(&ttv(&store, mode, &x, u64::MAX, 2).unwrap(), tensor, mode, &x, &what);
        }
    }
}

#[test]
fn every_order_and_every_kind_of_values() {
    check("order 2", &Tensor::random(&[300, 400], 20_000, 1, values::fraction));
    check("order 3", &Tensor::random(&[70, 500, 90], 30_000, 2, values::integer));
    check("order 4", &Tensor::random(&[20, 30, 10, 40], 30_000, 3, values::single));
    check("order 5", &Tensor::random(&[9, 1, 8, 11, 30], 20_000, 4, values::few));
    check("order 6", &Tensor::random(&[5, 4, 6, 3, 7, 9], 2500, 11, values::decimal));
    check("order 7", &Tensor::random(&[3, 4, 2, 5, 3, 4, 6], 2500, 12, values::wide_integer));
    check("order 8", &Tensor::random(&[3, 4, 2, 5, 3, 4, 2, 6], 9000, 5, values::with_zeros));
}

#[test]
fn the_shapes_that_are_hard() {
    let million = Tensor::random(&[4_000_000, 20, 30], 3000, 6, values::fraction);
    check("millions of empty slices", &million);
    check("one slice holds everything", &Tensor::random(&[1, 700, 900], 30_000, 7, values::fraction));
    check("one fiber holds everything", &Tensor::random(&[1, 1, 900_000], 30_000, 8, values::fraction));
    let rows: Vec<([u32; 3], f64)> = (0..20_000).map(|i| ([i, i * 7 % 20_011, i], f64::from(i))).collect();
    check("fibers of length one", &Tensor::of([20_000, 20_011, 20_000], &rows));
    check("one nonzero", &Tensor::of([5, 6, 7], &[([4, 0, 6], -2.0)]));
}

/// Chunks of any size, workers and threads give the same elements to the bit: a fiber in several chunks is
/// added up as if it were in one.
#[test]
fn results_do_not_depend_on_chunks_workers_or_threads() {
    let dir = tempfile::tempdir().unwrap();
    let tensor = Tensor::random(&[3, 5, 40_000], 120_000, 9, values::fraction);
    for mode in 0..3 {
        let x = vector::<f64>(tensor.dims[mode], 3);
        let mut wanted: Option<Elements> = None;
        for (n, chunk_bytes) in [SMALL_CHUNKS, 200 << 10, 16 << 20].into_iter().enumerate() {
            for leaf in [LeafRule::Csr, LeafRule::Ell] {
                let target = dir.path().join(format!("{mode}-{n}-{leaf:?}"));
                let format = FormatOption::Hocfs { main_mode: 0, leaf };
                let store = packed(&tensor, &PackOptions { format, chunk_bytes, ..PackOptions::new(target) });
                for (workers, threads) in [(1, 1), (2, 3), (5, 2)] {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                    let found = pool.install(|| ttv(&store, mode, &x, u64::MAX, workers)).unwrap();
                    let wanted = wanted.get_or_insert_with(|| found.clone());
                    assert!(bits(&found) == bits(wanted), "mode {mode}, {leaf:?}, {chunk_bytes} bytes");
                }
            }
        }
    }
}

/// Fibers of every length up to several windows of products, alternately short and long, with all positions in tiles: with the widest
/// vectors and without them, bits equal those of a plain loop in the store's order.
#[test]
fn every_vector_width_gives_the_bits_of_a_plain_loop() {
    let dir = tempfile::tempdir().unwrap();
    let random = Counter::new(8, 3);
    let mut rows = Vec::new();
    for fiber in 0..6000u32 {
        let longest = [1, 2, 3, 9, 20, 60][fiber as usize / 1000];
        let length = 1 + u32::try_from(random.bits(fiber.into()) % longest).unwrap();
        let value = |i: u32| if i % 11 == 3 { -0.0 } else { random.unit(u64::from(fiber * 64 + i)) - 0.5 };
        rows.extend((0..length).map(|i| ([fiber / 50, fiber % 50, i * 7 % 61], value(i))));
    }
    let tensor = Tensor::of([120, 50, 61], &rows);
    let x = vector::<f64>(61, 5);
    let mut wanted: BTreeMap<Vec<u32>, f64> = BTreeMap::new();
    rows.sort_unstable_by_key(|row| row.0);
    for (at, value) in &rows {
        *wanted.entry(at[..2].to_vec()).or_insert(-0.0) += value * x[at[2] as usize];
    }
    let wanted: Elements = wanted.into_iter().collect();
    for leaf in [LeafRule::Csr, LeafRule::Ell] {
        for chunk_bytes in [SMALL_CHUNKS, 16 << 20] {
            let format = FormatOption::Hocfs { main_mode: 0, leaf };
            let target = dir.path().join(format!("{leaf:?}-{chunk_bytes}"));
            let store = packed(&tensor, &PackOptions { format, chunk_bytes, ..PackOptions::new(target) });
            for vectors in [Vectors::Widest, Vectors::Avx2, Vectors::Baseline] {
                let mut found = Elements::new();
                let mut sink = |batches| {
                    found.extend(crate::runner::elements(batches, 3));
                    Ok(())
                };
                crate::runner::streamed(&store, &x, vectors, 2, &mut sink).unwrap();
                assert!(bits(&found) == bits(&wanted), "{leaf:?}, {chunk_bytes} bytes, {vectors:?}");
            }
        }
    }
}

/// Coordinates that repeat are added like others.
#[test]
fn repeated_coordinates_count_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let tensor = Tensor::random(&[6, 7, 8], 5000, 10, values::integer);
    for kind in all_kinds() {
        let mut options = options(&dir.path().join(format!("{kind:?}")), kind, SMALL_CHUNKS);
        options.duplicates = blco::internals::pack::Duplicates::Keep;
        let store = packed(&tensor, &options);
        for mode in 0..3 {
            let x = vector::<f64>(tensor.dims[mode], 4);
            let found = ttv(&store, mode, &x, u64::MAX, 2).unwrap();
            compare(&found, &tensor, mode, &x, &format!("{kind:?}, mode {mode}"));
        }
    }
}

/// An overflowing sum is an error that says where, not an infinity in the result.
#[test]
fn overflow_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let tensor = Tensor::of([2, 3, 2], &[([1, 2, 0], 1e308), ([1, 2, 1], 1e308), ([0, 0, 0], 1.0)]);
    for kind in all_kinds() {
        let store = packed(&tensor, &options(&dir.path().join(format!("{kind:?}")), kind, SMALL_CHUNKS));
        let message = ttv(&store, 2, &[1.0, 1.0], u64::MAX, 1).unwrap_err().to_string();
        assert!(message.contains("(2, 3"), "{kind:?}: {message}");
    }
}

/// Runs a program in `dir`. Returns its status, standard output and standard error.
fn program(dir: &Path, name: &str, args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = assert_cmd::Command::new(assert_cmd::cargo::cargo_bin(name));
    let output = command.current_dir(dir).args(args).env_remove("BLCO_FAULT").output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// `blco-run --op ttv` from text to text: the result in store order, the report, a vector from NumPy.
#[test]
fn the_program_writes_the_result_and_reports_the_pipeline() {
    let dir = tempfile::tempdir().unwrap();
    let run = |name: &str, args: &[&str]| {
        let (status, out, error) = program(dir.path(), name, args);
        assert_eq!((status, &error[..]), (Some(0), ""), "{name} {args:?}: {error}");
        out
    };
    std::fs::write(dir.path().join("t.tns"), "1 1 1 2\n1 1 3 0.5\n2 3 1 -1\n2 3 2 0\n3 1 2 4\n").unwrap();
    run("blco-pack", &["t.tns", "--format", "hocfs", "-o", "h"]);
    run("blco-pack", &["t.tns", "-o", "b"]);
    let vector = Matrix::from_rows(3, 1, vec![3.0, 0.25, -2.0]);
    vector.write(&Sys::default().create(&dir.path().join("column.npy")).unwrap()).unwrap();
    let mut npy = b"\x93NUMPY\x01\x00\x36\x00".to_vec();
    npy.extend(format!("{:<53}\n", "{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }").as_bytes());
    npy[8] = u8::try_from(npy.len() - 10).unwrap();
    npy.extend([3.0f64, 0.25, -2.0].iter().flat_map(|x| x.to_le_bytes()));
    std::fs::write(dir.path().join("x.npy"), npy).unwrap();
    let ttv = |store, more: &[&str]| {
        let args = [&[store, "--op", "ttv", "--modes", "3", "--vector", "x.npy", "--json"], more].concat();
        serde_json::from_str::<serde_json::Value>(&run("blco-run", &args)).unwrap()
    };
    for (store, streamed) in [("h", true), ("b", false)] {
        let report = ttv(store, &["--output", "y", "--force"]);
        let text = std::fs::read_to_string(dir.path().join("y/result.tns")).unwrap();
        assert_eq!(text, "1 1 5\n2 3 -3\n3 1 1\n", "{store}");
        assert_eq!((&report["streamed"], &report["elements"]), (&streamed.into(), &3.into()));
        assert_eq!(report["pipeline"].is_object(), streamed);
        assert_eq!(ttv(store, &["--precision", "f32"])["elements"], 3);
        let check = ttv(store, &["--check", "t.tns", "--output", "y", "--force"])["check"].clone();
        assert_eq!((&check["holds"], &check["mode"]), (&true.into(), &3.into()));
        let left: Vec<_> = std::fs::read_dir(dir.path().join("y")).unwrap().collect();
        assert_eq!(left.len(), 2, "nothing but the result and its marker");
    }
    // Another tensor: status 1.
    std::fs::write(dir.path().join("u.tns"), "1 1 1 2\n1 1 3 0.5\n2 3 1 -1\n2 3 2 0\n3 2 2 4\n").unwrap();
    let args = ["b", "--op", "ttv", "--modes", "3", "--check", "u.tns"];
    let (status, out, error) = program(dir.path(), "blco-run", &args);
    assert!(status == Some(1) && out.contains("DIFFERS") && error.is_empty(), "{out}{error}");
    // An impossible request is reported in one line and leaves nothing.
    let refuses = |args: &[&str], wanted: &str| {
        let args = [&["h", "--op", "ttv", "--output", "z"], args].concat();
        let (status, _, error) = program(dir.path(), "blco-run", &args);
        assert_eq!((status, error.lines().count()), (Some(2), 1), "{args:?}: {error}");
        assert!(error.contains(wanted), "{args:?}: {error}");
        assert!(!dir.path().join("z").exists(), "{args:?}");
    };
    refuses(&[], "goes along modes: give them with --modes");
    refuses(&["--modes", "4"], "is not a mode");
    refuses(&["--modes", "2", "--vector", "column.npy"], "has 2 axes; a vector has 1");
    refuses(&["--modes", "2", "--vector", "none.npy"], "none.npy");
    refuses(&["--modes", "3", "--rank", "4"], "--rank is not an option of --op ttv");
    refuses(&["--modes", "3", "--backend", "cpu", "--kernel", "balanced"], "--kernel is for a GPU");
    refuses(&["--modes", "3", "--kernel", "t4l16c2b4"], "a kernel of MTTKRP");
    let (status, _, error) = program(dir.path(), "blco-pack", &["t.tns", "-o", "n", "--main-mode", "2"]);
    assert!(status == Some(2) && error.contains("--format hocfs"), "{error}");
    let args = ["t.tns", "-o", "n", "--format", "hocfs", "--main-mode", "4"];
    let (status, _, error) = program(dir.path(), "blco-pack", &args);
    assert!(status == Some(2) && error.contains("main mode 4: the tensor has modes 1 to 3"), "{error}");
    let info = run("blco-info", &["h", "--storage", "--json"]);
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["levels"], serde_json::json!([1, 2, 3]));
    assert_eq!(info["storage"][2]["hocfs"], 2 * 3 + 2 * 3 + 2 * 5);
}
