//! Establishes that false statistics of values in a manifest give no wrong result: CP-ALS refuses a store whose sum of squares is not
//! that of its values, on the host and on a GPU, and so do mode-sorted copies that a GPU builds with a false range of values.

use crate::common::{Kind, SMALL_CHUNKS, Tensor, options, packed, values, with_manifest};
use crate::programs::{backends, program};
use assert_cmd::cargo::cargo_bin;
use blco::internals::store::{Manifest, Store};
use std::path::Path;
use std::process::Command;

fn store(dir: &Path, kind: Kind, value: fn(u64) -> f64) -> Store {
    let tensor = Tensor::random(&[60, 50, 40], 20_000, 1, value);
    packed(&tensor, &options(&dir.join("store"), kind, SMALL_CHUNKS))
}

/// Runs a program, which must refuse the manifest in one line.
fn refused(name: &str, dir: &Path, args: &[&str], why: &str) {
    let mut command = Command::new(cargo_bin(name));
    command.current_dir(dir).args(args);
    if let (Some(mock), None) = (std::env::var_os("BLCO_MOCK_CUDA"), std::env::var_os("BLCO_REAL_CUDA")) {
        command.env("LD_LIBRARY_PATH", mock);
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{name} {args:?}: {said}");
    assert!(said.lines().count() == 1 && said.contains("manifest") && said.contains(why), "{said}");
}

#[test]
fn a_false_sum_of_squares_gives_no_fit() {
    const CPD: [&str; 7] = ["--rank", "2", "--max-iters", "2", "--no-output", "--backend", ""];
    for (kind, value) in [
        (Kind::Tiled, values::integer as fn(u64) -> f64),
        (Kind::Raw, values::fraction),
        (Kind::HocfsEll, values::few),
        (Kind::TiledZstd, values::single),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let honest = store(dir.path(), kind, value);
        let sum = honest.manifest().sum_squares;
        for backend in backends() {
            let args: Vec<&str> = ["store"].iter().chain(&CPD[..6]).chain(&[backend]).copied().collect();
            program("blco-cpd", dir.path(), &args);
            for lie in [1e6 * sum, sum * (1.0 + 1e-9), sum / 2.0] {
                with_manifest(&honest, |manifest| manifest.sum_squares = lie);
                refused("blco-cpd", dir.path(), &args, "sum of squares");
                with_manifest(&honest, |manifest| manifest.sum_squares = sum);
            }
        }
    }
}

/// Chunks are sorted on the device, in images whose bytes are planned from the range of values.
#[test]
fn a_false_range_of_values_derives_no_orders() {
    type Case = (fn(u64) -> f64, &'static str, fn(&mut Manifest));
    let cases: [Case; 4] = [
        (values::wide_integer, "f64", |m| (m.value_min, m.value_max) = (0.0, 1.0)),
        (values::fraction, "f32", |m| m.value_max = 0.25),
        (values::few, "f32", |m| m.value_min = 0.0),
        (values::integer, "f64", |m| m.value_max = m.value_min),
    ];
    for (value, precision, lie) in cases {
        let dir = tempfile::tempdir().unwrap();
        let honest = store(dir.path(), Kind::Tiled, value);
        let args = ["store", "--rank", "2", "--repeat", "2", "--precision", precision, "--backend", "cuda"];
        for order in ["target", "host"] {
            let args: Vec<&str> = args.iter().chain(&["--device-order", order]).copied().collect();
            for backend in backends() {
                if backend == "cuda" {
                    program("blco-run", dir.path(), &args);
                }
            }
            let Manifest { value_min, value_max, .. } = *honest.manifest();
            with_manifest(&honest, lie);
            if backends().contains(&"cuda") {
                refused("blco-run", dir.path(), &args, "value min and max");
            }
            with_manifest(&honest, |m| (m.value_min, m.value_max) = (value_min, value_max));
        }
    }
}
