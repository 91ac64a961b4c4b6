//! Establishes that `blco-run --backend cuda` computes what the oracle and the CPU do: every order, rank tile, index
//! and value encoding, codec, number of lanes and division of device memory; and how it ends if it cannot: with the
//! driver's error at every failing call, with a smaller plan if memory is short, and in both cases with nothing left behind.
//!
//! All of it runs on the mock driver in tests/mock, which `tools/test.sh` builds and names in `BLCO_MOCK_CUDA`;
//! without it the tests say `skipped`. With `BLCO_REAL_CUDA=1` what needs no mock runs on the machine's GPU
//! instead. `BLCO_EVERY_CALL=1` fails every call, not a selection.

mod devices;

use crate::common::{Kind, SMALL_CHUNKS, Tensor, all_kinds, options, packed, run, values};
use blco::internals::dense::{Matrix, Precision, Real, load_factors, seeded_factors};
use blco::internals::sys::Sys;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;
use tempfile::TempDir;

/// Bytes of chunks that hold any tensor here.
const LARGE_CHUNKS: u64 = 8 << 20;
/// The longest chain of additions in f32 on a GPU, in the store's order: `BLCO_SHARE` of kernels/abi.h.
const CHAIN: f64 = 64.0;
/// A run that takes longer hangs.
const PATIENCE: Duration = Duration::from_mins(2);
/// Calls that free a resource: a run may succeed if one of them fails at its end.
const RELEASES: [&str; 9] = [
    "cuCtxSetCurrent",
    "cuDevicePrimaryCtxRelease_v2",
    "cuEventDestroy_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemHostUnregister",
    "cuModuleUnload",
    "cuStreamDestroy_v2",
    "cuStreamQuery",
];

/// The CUDA driver in use.
#[derive(Clone, Debug)]
enum Gpu {
    Mock(PathBuf),
    Real,
}

/// The mock driver's directory.
fn mock() -> Option<Gpu> {
    let found = std::env::var_os("BLCO_MOCK_CUDA").map(|dir| Gpu::Mock(dir.into()));
    if found.is_none() {
        eprintln!("skipped: BLCO_MOCK_CUDA does not name the mock driver; tools/test.sh builds it");
    }
    found
}

/// The machine's GPU if requested, otherwise the mock.
fn gpu() -> Option<Gpu> {
    if std::env::var_os("BLCO_REAL_CUDA").is_none() {
        return mock();
    }
    let place = Place::new(Gpu::Real, &Tensor::of([2, 2], &[([1, 1], 4.0)]), Kind::Raw, SMALL_CHUNKS);
    let output = place.blco_run(&["--plan"], &[]);
    if output.status.success() {
        return Some(Gpu::Real);
    }
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(why.contains("no CUDA device"), "{why}");
    eprintln!("skipped: no CUDA device: {why}");
    None
}

/// A directory with a tensor as text, `t.tns`, and its store, `s`.
struct Place {
    gpu: Gpu,
    dir: TempDir,
    tensor: Tensor,
}

impl Place {
    fn new(gpu: Gpu, tensor: &Tensor, kind: Kind, chunk_bytes: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        packed(tensor, &options(&dir.path().join("s"), kind, chunk_bytes));
        std::fs::write(dir.path().join("t.tns"), tensor.text()).unwrap();
        Self { gpu, dir, tensor: tensor.clone() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `blco-run s` with `args`, on the GPU unless they say otherwise; `env` is for the mock.
    fn blco_run(&self, args: &[&str], env: &[(&str, &str)]) -> Output {
        let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_blco-run"));
        command.current_dir(self.dir.path()).args(["s", "--quiet"]).args(args);
        if !args.contains(&"--backend") {
            command.args(["--backend", "cuda"]);
        }
        command.env_remove("BLCO_FAULT").timeout(PATIENCE);
        if let Gpu::Mock(directory) = &self.gpu {
            // The mock has the embedded kernels, not those that NVRTC compiles.
            if !args.contains(&"cpu") {
                command.args(["--kernels", "embedded"]);
            }
            command.env("LD_LIBRARY_PATH", directory).env("BLCO_MOCK_LOG", self.path("log"));
            // Settings that are absent here have their defaults.
            for name in [
                "FAIL",
                "ERROR",
                "MEMORY",
                "SEED",
                "SLOW",
                "DEVICES",
                "FAIL_DEVICE",
                "HANG",
                "PEERS",
                "NCCL_FAIL",
            ] {
                command.env_remove(format!("BLCO_MOCK_{name}"));
            }
            command.envs(env.iter().copied());
        }
        command.output().unwrap()
    }

    /// The mock's record of the last run, which is then removed. No object in it is alive.
    fn account(&self) -> HashMap<String, String> {
        let text = std::fs::read_to_string(self.path("log")).unwrap();
        std::fs::remove_file(self.path("log")).unwrap();
        let pair = |word: &str| word.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned())).unwrap();
        let account: HashMap<String, String> = text.split_whitespace().map(pair).collect();
        for what in
            ["device_bytes", "pinned_bytes", "registered_bytes", "streams", "events", "modules", "contexts"]
        {
            assert_eq!(account[what], "0", "{what} left: {text}");
        }
        account
    }

    /// A run that must succeed: its report, with results in `out`, within the oracle's bound.
    fn succeeds(&self, args: &[&str], env: &[(&str, &str)]) -> serde_json::Value {
        let checked =
            [args, &["--modes", "all", "--output", "out", "--force", "--check", "t.tns", "--json"]].concat();
        let output = self.blco_run(&checked, env);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?} {env:?}: {}: {error}", output.status);
        if matches!(self.gpu, Gpu::Mock(_))
            && self.path("log").exists()
            && !env.iter().any(|e| e.0 == "BLCO_MOCK_FAIL")
        {
            self.account();
        }
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["backend"], "cuda");
        report
    }

    /// Compares the results in `out` with the CPU's, within both bounds, and removes them.
    fn agrees<T: Real>(&self, rank: usize, what: &str) {
        let store = blco::internals::store::Store::open(&Sys::default(), &self.path("s")).unwrap();
        let shape = store.manifest().shape.clone();
        let factors: Vec<Matrix<T>> = seeded_factors(&Sys::default(), &shape, rank, 0).unwrap();
        let modes: Vec<usize> = (0..shape.order()).collect();
        let on_cpu = run(&store, &factors, &modes).unwrap();
        let on_gpu = load_factors::<T>(&Sys::default(), &self.path("out"), &shape).unwrap();
        std::fs::remove_dir_all(self.path("out")).unwrap();
        for ((mode, wanted), got) in on_cpu.iter().zip(&on_gpu) {
            let (absolute, nnz) = absolute_sums(&self.tensor, &factors, *mode);
            for (i, (&x, &y)) in got.data().iter().zip(wanted.data()).enumerate() {
                let nnz = f64::from(nnz[i / rank]);
                let chain = if T::PRECISION == Precision::F64 { nnz } else { CHAIN + nnz / 2f64.powi(29) };
                let bound = 2.0 * T::ROUNDOFF * (shape.order() as f64 + 2.0 + chain) * absolute[i];
                let (x, y) = (x.widen(), y.widen());
                let error = (x - y).abs();
                assert!(error <= bound, "{what}: mode {}, element {i}: {x}, on the CPU {y}", mode + 1);
            }
        }
    }
}

/// MTTKRP of a mode with absolute values in place of all numbers, and the nonzeros of each row.
fn absolute_sums<T: Real>(tensor: &Tensor, factors: &[Matrix<T>], mode: usize) -> (Vec<f64>, Vec<u32>) {
    let rank = factors[0].columns();
    let (mut sums, mut nnz) = (vec![0.0; factors[mode].data().len()], vec![0; factors[mode].rows()]);
    for (at, value) in tensor.rows() {
        let row = at[mode] as usize;
        nnz[row] += 1;
        for c in 0..rank {
            let others = (0..at.len()).filter(|&m| m != mode);
            let product: f64 = others.map(|m| factors[m].data()[at[m] as usize * rank + c].widen()).product();
            sums[row * rank + c] += (value * product).abs();
        }
    }
    (sums, nnz)
}

/// Runs in both precisions and compares.
fn check(place: &Place, rank: usize, args: &[&str], env: &[(&str, &str)]) {
    let columns = rank.to_string();
    let ranked = [args, &["--rank", &columns]].concat();
    for precision in ["f64", "f32"] {
        let args = [&ranked[..], &["--precision", precision]].concat();
        place.succeeds(&args, env);
        let what = format!("{args:?} {env:?}");
        if precision == "f64" { place.agrees::<f64>(rank, &what) } else { place.agrees::<f32>(rank, &what) }
    }
}

#[test]
fn the_mock_driver_catches_what_it_must() {
    let Some(Gpu::Mock(directory)) = mock() else { return };
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("formats-spec/vectors/version-1/valid");
    let mut command = assert_cmd::Command::new(directory.join("selftest"));
    command.arg(vectors).timeout(PATIENCE).assert().success();
}

#[test]
fn every_order_and_rank() {
    let Some(gpu) = gpu() else { return };
    // All ranks with an order each, all orders with several ranks.
    let shapes: [(&[u64], [usize; 3]); 7] = [
        (&[70, 300], [1, 16, 64]),
        (&[40, 9, 200], [5, 17, 33]),
        (&[50, 7, 33, 64], [8, 16, 32]),
        (&[11, 30, 5, 17, 90], [1, 8, 33]),
        (&[6, 30, 5, 17, 9, 4], [5, 32, 17]),
        (&[6, 3, 5, 17, 9, 4, 21], [16, 1, 64]),
        (&[4, 9, 3, 17, 2, 5, 33, 8], [17, 5, 8]),
    ];
    for (seed, (dims, ranks)) in (1u64..).zip(shapes) {
        let tensor = Tensor::random(dims, 2600, seed, values::fraction);
        for (kind, ranks) in [(Kind::Tiled, &ranks[..2]), (Kind::Raw, &ranks[1..])] {
            let place = Place::new(gpu.clone(), &tensor, kind, LARGE_CHUNKS);
            for &rank in ranks {
                check(&place, rank, &[], &[]);
            }
        }
    }
}

#[test]
fn every_kind_of_values() {
    let Some(gpu) = gpu() else { return };
    let kinds: [fn(u64) -> f64; 7] = [
        values::one,
        values::integer,
        values::wide_integer,
        values::fraction,
        values::single,
        values::few,
        values::with_zeros,
    ];
    for (seed, value) in (1u64..).zip(kinds) {
        let tensor = Tensor::random(&[300, 41, 200], 9000, seed, value);
        for (kind, chunk_bytes) in [(Kind::Tiled, SMALL_CHUNKS), (Kind::TiledZstd, LARGE_CHUNKS)] {
            check(&Place::new(gpu.clone(), &tensor, kind, chunk_bytes), 16, &[], &[]);
        }
    }
}

#[test]
fn one_nonzero_and_dims_of_one() {
    let Some(gpu) = gpu() else { return };
    let one = Tensor::of([1, 1], &[([0, 0], -2.5)]);
    let last = Tensor::of([1, 6, 1, 70_000], &[([0, 5, 0, 69_999], 3.0), ([0, 5, 0, 0], 1e-3)]);
    for kind in all_kinds() {
        check(&Place::new(gpu.clone(), &one, kind, SMALL_CHUNKS), 5, &[], &[]);
        check(&Place::new(gpu.clone(), &last, kind, SMALL_CHUNKS), 1, &["--repeat", "2"], &[]);
    }
}

#[test]
fn indices_of_more_than_64_bits() {
    let Some(gpu) = gpu() else { return };
    let long = Tensor::random(&[700, 513, 1024, 600, 900, 514, 800, 1000], 9000, 3, values::fraction);
    let short = Tensor::random(&[3_000_000, 5, 70_000], 2000, 4, values::integer);
    for kind in [Kind::Raw, Kind::TiledZstd] {
        check(&Place::new(gpu.clone(), &long, kind, SMALL_CHUNKS), 8, &["--repeat", "2"], &[]);
        check(&Place::new(gpu.clone(), &short, kind, SMALL_CHUNKS), 1, &[], &[]);
    }
}

/// A tensor of more small chunks than there are lanes.
fn many_chunks() -> Tensor {
    Tensor::random(&[90, 700, 40], 90_000, 1, values::fraction)
}

/// Device memory in bytes for all chunks, some, and none to stay, with `lanes` lanes.
fn memories(place: &Place, lanes: usize, rank: usize) -> [u64; 3] {
    let rank = rank.to_string();
    let output = place.blco_run(&["--plan", "--json", "--repeat", "2", "--rank", &rank], &[]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let bytes = |field: &str| report["device"][field].as_u64().unwrap();
    let operation = bytes("operation_bytes");
    let lanes = operation + lanes as u64 * SMALL_CHUNKS;
    let (_, resident) = resident(&report["device"]);
    [operation + resident, lanes + resident / 3, lanes]
}

#[test]
fn lanes_and_memory() {
    let Some(gpu) = gpu() else { return };
    let place = Place::new(gpu, &many_chunks(), Kind::Tiled, SMALL_CHUNKS);
    for lanes in [1, 2, 3, 8] {
        let memories = memories(&place, lanes, 5);
        for (regime, memory) in memories.into_iter().enumerate() {
            let (lanes, memory) = (lanes.to_string(), memory.to_string());
            let args = ["--streams", &lanes, "--device-memory", &memory, "--repeat", "3", "--rank", "5"];
            let report = place.succeeds(&args, &[]);
            place.agrees::<f64>(5, &format!("{args:?}"));
            let chunks = report["plan"]["chunks"].as_u64().unwrap();
            assert!(chunks > 8, "{chunks} chunks");
            let passes = report["passes"].as_array().unwrap();
            for (number, pass) in passes.iter().enumerate() {
                let count = |field: &str| pass["device"][field].as_u64().unwrap();
                let (there, copied) = (count("resident_chunks"), count("copied_chunks"));
                assert_eq!(there + copied, chunks, "pass {number} meets every chunk");
                match (number, regime) {
                    (0, _) | (_, 2) => assert_eq!(there, 0),
                    (_, 0) => assert_eq!(copied, 0),
                    _ => assert!(there > 0 && copied > 0, "{there} there, {copied} copied"),
                }
            }
        }
    }
}

/// The orders of a run's plan: whether each mode is sorted by row.
fn sorted_modes(place: &Place, args: &[&str]) -> Vec<bool> {
    let output = place.blco_run(&[args, &["--plan", "--json"]].concat(), &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let modes = plan["device"]["modes"].as_array().unwrap();
    modes.iter().map(|mode| mode["set"] != 0).collect()
}

#[test]
fn copies_are_built_where_they_are_asked_for_and_fit() {
    let Some(gpu) = gpu() else { return };
    let place = Place::new(gpu.clone(), &many_chunks(), Kind::Tiled, SMALL_CHUNKS);
    let target = ["--device-order", "target", "--repeat", "3"];
    assert_eq!(sorted_modes(&place, &target), [true; 3]);
    check(&place, 4, &target, &[]);
    check(&place, 33, &["--device-order", "auto", "--repeat", "2"], &[]);
    // With two passes it does not pay; with one it is useless.
    assert_eq!(sorted_modes(&place, &["--device-order", "auto", "--repeat", "2"]), [false; 3]);
    assert_eq!(sorted_modes(&place, &["--device-order", "target"]), [false; 3]);
    // Room for all chunks, but not for orders beside them.
    let all = memories(&place, 2, 16)[0].to_string();
    let small = ["--device-order", "target", "--repeat", "3", "--device-memory", &all, "--rank", "16"];
    assert_eq!(sorted_modes(&place, &small), [false; 3]);
    let raw = Place::new(gpu, &many_chunks(), Kind::Raw, SMALL_CHUNKS);
    let output = raw.blco_run(&target, &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("not built of `raw` stores"));
}

/// Stores of trees, segments and coordinates, of one cover and of several: streamed, resident, sorted; SpTTMc too.
#[test]
fn every_format_runs() {
    let Some(gpu) = gpu() else { return };
    for kind in [Kind::CsfAll, Kind::Hbcsf, Kind::Mmcsf, Kind::FcooMttkrp] {
        let place = Place::new(gpu.clone(), &many_chunks(), kind, SMALL_CHUNKS);
        for args in [
            &["--device-order", "store"][..],
            &["--device-order", "store", "--repeat", "2"],
            &["--device-order", "target", "--repeat", "2"],
            &["--device-order", "fibers", "--repeat", "2"],
            &["--deterministic"],
        ] {
            check(&place, 9, args, &[]);
        }
        let ttmc = ["--op", "ttmc", "--ranks", "3,2,4", "--repeat", "2"];
        place.succeeds(&ttmc, &[]);
        let plan = place.blco_run(&[&ttmc[..], &["--plan"]].concat(), &[]);
        let plan = String::from_utf8(plan.stdout).unwrap();
        assert!(plan.contains("  device  ") && plan.contains("  results mode 1 "), "{plan}");
        std::fs::remove_dir_all(place.path("out")).unwrap();
    }
}

/// SpTTM writes the CPU's files.
#[test]
fn ttm_has_the_bits_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    for (kind, mode, precision) in [
        (Kind::Raw, "1", "f64"),
        (Kind::Hbcsf, "2", "f32"),
        (Kind::HocfsCsr, "3", "f64"),
        (Kind::FcooTtm, "1", "f32"),
    ] {
        let place = Place::new(gpu.clone(), &many_chunks(), kind, SMALL_CHUNKS);
        for (backend, dir) in [("cuda", "out"), ("cpu", "expected")] {
            let args = ["--op", "ttm", "--modes", mode, "--rank", "5", "--precision", precision];
            let output = ["--output", dir, "--check", "t.tns", "--backend", backend, "--json"];
            let output = place.blco_run(&[&args[..], &output].concat(), &[]);
            assert!(output.status.success(), "{kind:?}: {}", String::from_utf8_lossy(&output.stderr));
            let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(report["backend"], backend);
        }
        files_agree(&place, &format!("{kind:?}"));
    }
}

/// The plan knows the value encoding of every chunk, also of chunks that it does not sample, so everything is sorted within it.
#[test]
fn orders_have_room_for_the_values_of_every_chunk() {
    let Some(gpu) = gpu() else { return };
    let mut tensor = Tensor::random(&[60, 17_000, 50], 120_000, 5, values::fraction);
    for (index, value) in tensor.indices.chunks_exact(3).zip(&mut tensor.values) {
        // The largest mode's highest bit is the linear index's: all but the store's last chunk hold integers.
        if index[1] < 1 << 14 {
            *value = (index[0] % 5).into();
        }
    }
    let place = Place::new(gpu, &tensor, Kind::Tiled, SMALL_CHUNKS);
    let args = ["--deterministic", "--rank", "4", "--modes", "all", "--streams", "1"];
    let output = place.blco_run(&[&args[..], &["--plan", "--json"]].concat(), &[]);
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(plan["plan"]["chunks"].as_u64().unwrap() > 6, "{plan}");
    let memory = plan["device"]["memory_bytes"].to_string();
    place.succeeds(&[&args[..3], &args[5..], &["--device-memory", &memory]].concat(), &[]);
    place.agrees::<f64>(4, "values of every chunk");
}

/// Device memory in bytes with which what `--device-order host` sorts at once in all other memory takes several groups of chunks.
fn for_several_groups(place: &Place, args: &[&str]) -> u64 {
    let output = place.blco_run(&[args, &["--plan", "--json"]].concat(), &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let bytes = |field: &str| plan["device"][field].as_u64().unwrap();
    assert_eq!(plan["device"]["build"]["groups"].as_array().unwrap().len(), 1);
    bytes("memory_bytes") - bytes("copies_bytes") / 2
}

#[test]
fn sorted_nonzeros_are_streamed_from_host_memory() {
    let Some(gpu) = gpu() else { return };
    let place = Place::new(gpu, &many_chunks(), Kind::TiledZstd, SMALL_CHUNKS);
    for (lanes, rank, precision) in [("1", "5", "f64"), ("3", "33", "f32")] {
        let args = [
            "--device-order",
            "host",
            "--repeat",
            "4",
            "--streams",
            lanes,
            "--rank",
            rank,
            "--precision",
            precision,
        ];
        let memory = for_several_groups(&place, &args).to_string();
        let args = [&args[..], &["--device-memory", &memory]].concat();
        let report = place.succeeds(&args, &[]);
        match precision {
            "f64" => place.agrees::<f64>(5, &format!("{args:?}")),
            _ => place.agrees::<f32>(33, &format!("{args:?}")),
        }
        assert!(report["device"]["build"]["groups"].as_array().unwrap().len() > 1);
        let count = |pass: usize, field: &str| report["passes"][pass]["device"][field].as_f64().unwrap();
        assert!(count(0, "build_seconds") > 0.0 && count(1, "build_seconds") == 0.0);
        // From then on, the store is not read; each mode's images cross the link in each pass.
        assert!(report["passes"][1]["bytes"] == 0 && report["plan"]["kept"] == 0, "{report}");
        let (first, later) = (count(0, "copied_bytes"), count(3, "copied_bytes"));
        assert!(later > 1.5 * first && later < 4.0 * first, "{first}, {later}");
        assert_eq!(report["passes"][3]["nnz"], report["nnz"]);
    }
    // With one pass it is useless; without host memory there is none.
    assert_eq!(sorted_modes(&place, &["--device-order", "host"]), [false; 3]);
    let output = place.blco_run(&["--device-order", "host", "--repeat", "2", "--memory", "1MiB"], &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("host memory"), "{output:?}");
}

#[test]
fn long_delays_change_nothing() {
    let Some(gpu) = mock() else { return };
    let place = Place::new(gpu, &many_chunks(), Kind::Raw, SMALL_CHUNKS);
    let [_, some, none] = memories(&place, 2, 4);
    for (seed, memory) in [(1, some), (2, none), (3, some), (4, none)] {
        let (seed, memory) = (seed.to_string(), memory.to_string());
        let args = ["--streams", "2", "--device-memory", &memory, "--repeat", "2"];
        for more in [&[][..], &["--direct"], &["--direct", "--workers", "1"]] {
            let args = [&args[..], more].concat();
            check(&place, 4, &args, &[("BLCO_MOCK_SLOW", "400"), ("BLCO_MOCK_SEED", &seed)]);
        }
    }
}

/// The pass's time zero exists before any event that is timed from it: a stream without other work is late now and
/// then, once in about a hundred passes.
#[test]
fn times_are_there_when_a_pass_ends() {
    let Some(gpu) = mock() else { return };
    let place = Place::new(gpu, &Tensor::random(&[9, 8, 7], 100, 5, values::one), Kind::Tiled, 16 << 20);
    let args = ["--repeat", "300", "--modes", "1", "--device-order", "store", "--rank", "4"];
    let output = place.blco_run(&args, &[("BLCO_MOCK_SLOW", "500")]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The arguments of the runs in which calls fail: lanes, chunks that stay and chunks that do not.
struct Failing {
    place: Place,
    args: Vec<String>,
    /// Compares the results of a run, in `out`, with the expected ones.
    agrees: fn(&Place, &str),
}

/// Results of MTTKRP.
fn sums_agree(place: &Place, what: &str) {
    place.agrees::<f64>(4, what);
}

/// Elements of TTV, fibers of SpTTM: those of the run that has put them into `expected`.
fn files_agree(place: &Place, what: &str) {
    let files = |dir: &str| {
        ["result.tns", "coords.npy", "values.npy"].map(|name| std::fs::read(place.path(dir).join(name)).ok())
    };
    assert!(files("out") == files("expected"), "{what}: other results");
    std::fs::remove_dir_all(place.path("out")).unwrap();
}

impl Failing {
    /// Some chunks stay, others do not.
    fn partly_resident(gpu: Gpu) -> Self {
        let tensor = Tensor::random(&[90, 300, 40], 25_000, 1, values::fraction);
        let place = Place::new(gpu, &tensor, Kind::Tiled, SMALL_CHUNKS);
        let memory = memories(&place, 2, 4)[1].to_string();
        place.account();
        let args = ["--streams", "2", "--device-memory", &memory, "--repeat", "2", "--rank", "4"];
        Self { place, args: args.map(str::to_owned).to_vec(), agrees: sums_agree }
    }

    /// All chunks stay, and mode-sorted copies are built: one of nonzeros, two along fibers.
    fn sorted(gpu: Gpu) -> Self {
        let tensor = Tensor::random(&[30, 9, 50], 4000, 1, values::fraction);
        let place = Place::new(gpu, &tensor, Kind::Tiled, SMALL_CHUNKS);
        let args = ["--streams", "2", "--device-order", "fibers", "--repeat", "3", "--rank", "4"];
        Self { place, args: args.map(str::to_owned).to_vec(), agrees: sums_agree }
    }

    /// Nothing stays, and mode-sorted copies of several groups of chunks are kept in host memory.
    fn kept(gpu: Gpu) -> Self {
        let tensor = Tensor::random(&[90, 300], 25_000, 1, values::fraction);
        let place = Place::new(gpu, &tensor, Kind::Tiled, SMALL_CHUNKS);
        let args = ["--streams", "2", "--device-order", "host", "--repeat", "3", "--rank", "4"];
        let memory = for_several_groups(&place, &args).to_string();
        place.account();
        let args = [&args[..], &["--device-memory", &memory]].concat();
        Self { place, args: args.into_iter().map(str::to_owned).collect(), agrees: sums_agree }
    }

    /// MTTKRP of trees.
    fn trees(gpu: Gpu) -> Self {
        let tensor = Tensor::random(&[90, 300, 40], 15_000, 1, values::fraction);
        let place = Place::new(gpu, &tensor, Kind::HocfsEll, SMALL_CHUNKS);
        let args = ["--streams", "2", "--repeat", "2", "--rank", "4"];
        Self { place, args: args.map(str::to_owned).to_vec(), agrees: sums_agree }
    }

    /// Elements stream from trees, with fibers that continue in the next chunk.
    fn ttv(gpu: Gpu) -> Self {
        let tensor = Tensor::random(&[20, 3, 900], 40_000, 1, values::fraction);
        let place = Place::new(gpu, &tensor, Kind::HocfsCsr, SMALL_CHUNKS);
        let args = ["--op", "ttv", "--modes", "3", "--repeat", "4"];
        let made = place.blco_run(&[&args[..], &["--output", "expected"]].concat(), &[]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        place.account();
        let args = [&args[..], &["--streams", "3"]].concat();
        Self { place, args: args.into_iter().map(str::to_owned).collect(), agrees: files_agree }
    }

    /// Nonzeros are sorted by fiber; the CPU's files.
    fn ttm(gpu: Gpu) -> Self {
        let tensor = Tensor::random(&[90, 300, 40], 15_000, 1, values::fraction);
        let place = Place::new(gpu, &tensor, Kind::MmcsfStatic, SMALL_CHUNKS);
        let args = ["--op", "ttm", "--modes", "2", "--rank", "3", "--streams", "3"];
        let on_cpu =
            ["--op", "ttm", "--modes", "2", "--rank", "3", "--backend", "cpu", "--output", "expected"];
        let made = place.blco_run(&on_cpu, &[]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Self { place, args: args.map(str::to_owned).to_vec(), agrees: files_agree }
    }

    /// The same in several passes.
    fn ttm_in_ranges(gpu: Gpu) -> Self {
        let mut failing = Self::ttm(gpu);
        let plan = |failing: &Self| -> serde_json::Value {
            let args: Vec<&str> = failing.args.iter().map(String::as_str).collect();
            let output = failing.place.blco_run(&[&args[..], &["--plan", "--json"]].concat(), &[]);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            failing.place.account();
            serde_json::from_slice(&output.stdout).unwrap()
        };
        let all = plan(&failing);
        let bytes = |field: &serde_json::Value| field.as_u64().unwrap();
        let (device, lanes) = (&all["device"], &all["device"]["lanes"]);
        let lane = bytes(&lanes["image_bytes"]) + bytes(&lanes["staging_bytes"]);
        let memory = bytes(&device["operation_bytes"]) + lane - (350 << 10);
        failing.args.extend(["--device-memory".to_owned(), memory.to_string()]);
        let passes = plan(&failing)["device"]["ranges"]["passes"].as_u64().unwrap();
        assert!((3..9).contains(&passes), "{passes} passes");
        failing
    }

    fn args(&self) -> Vec<&str> {
        self.args.iter().map(String::as_str).chain(["--output", "out", "--force"]).collect()
    }

    /// Runs with a failing call. Returns exit status, standard error and the mock's record.
    fn run(&self, nth: u64, error: &str) -> (Option<i32>, String, HashMap<String, String>) {
        let nth = nth.to_string();
        let env = [("BLCO_MOCK_FAIL", &nth[..]), ("BLCO_MOCK_ERROR", error), ("BLCO_MOCK_SLOW", "60")];
        let output = self.place.blco_run(&self.args(), &env);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code().is_some(), "call {nth}: {}: {text}", output.status);
        let account = std::panic::catch_unwind(|| self.place.account());
        let account = account.unwrap_or_else(|_| panic!("call {nth}: {}: {text}", output.status));
        (output.status.code(), text, account)
    }

    /// The number of calls, or allocations, of a run without failures.
    fn count(&self, what: &str) -> u64 {
        let output = self.place.blco_run(&self.args(), &[("BLCO_MOCK_SLOW", "5")]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::remove_dir_all(self.place.path("out")).unwrap();
        self.place.account()[what].parse().unwrap()
    }
}

/// All of 1 to `calls`, or the first, the last and some between.
fn selection(calls: u64) -> Vec<u64> {
    let every = std::env::var_os("BLCO_EVERY_CALL").is_some();
    let step = (calls / 50).max(1);
    (1..=calls).filter(|&k| every || k <= 25 || k > calls - 10 || k % step == 0).collect()
}

#[test]
fn every_failing_call_ends_a_run_with_its_error() {
    let Some(gpu) = mock() else { return };
    every_failing_call_ends(&Failing::partly_resident(gpu.clone()));
    every_failing_call_ends(&Failing::sorted(gpu.clone()));
    every_failing_call_ends(&Failing::kept(gpu.clone()));
    every_failing_call_ends(&Failing::trees(gpu.clone()));
    every_failing_call_ends(&Failing::ttv(gpu.clone()));
    every_failing_call_ends(&Failing::ttm(gpu.clone()));
    every_failing_call_ends(&Failing::ttm_in_ranges(gpu));
}

fn every_failing_call_ends(failing: &Failing) {
    let calls = failing.count("calls");
    assert!(calls > 200, "{calls} calls");
    let mut failed = 0;
    for nth in selection(calls) {
        let (status, text, account) = failing.run(nth, "700");
        let call = &account["failed"][..];
        if status == Some(0) {
            // Calls that poll vary in number, and no one reads the status of the last ones.
            assert!(call == "-" || RELEASES.contains(&call), "call {nth}, {call}, failed and nobody noticed");
            (failing.agrees)(&failing.place, call);
            continue;
        }
        failed += 1;
        assert_eq!(status, Some(2), "call {nth}, {call}: {text}");
        assert!(text.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "call {nth}, {call}: {text}");
        assert_eq!(text.lines().count(), 1, "call {nth}, {call}: {text}");
        assert!(!failing.place.path("out").exists(), "call {nth}, {call}: results are there");
    }
    assert!(failed > 60, "{failed} calls failed");
}

/// If a kernel does not start, earlier ones are still running. They end before their memory is freed.
#[test]
fn every_failing_launch_ends_a_run_with_its_error() {
    let Some(gpu) = mock() else { return };
    for failing in [
        Failing::partly_resident(gpu.clone()),
        Failing::sorted(gpu.clone()),
        Failing::kept(gpu.clone()),
        Failing::trees(gpu.clone()),
        Failing::ttv(gpu.clone()),
        Failing::ttm(gpu.clone()),
        Failing::ttm_in_ranges(gpu),
    ] {
        let launches = failing.count("launches");
        assert!(launches > 5, "{launches} launches");
        for nth in selection(launches) {
            let (status, text, account) = failing.run(nth, "701");
            assert_eq!((status, &account["failed"][..]), (Some(2), "cuLaunchKernel"), "launch {nth}: {text}");
            assert!(text.contains("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"), "launch {nth}: {text}");
            assert_eq!(text.lines().count(), 1, "launch {nth}: {text}");
            assert!(!failing.place.path("out").exists(), "launch {nth}: results are there");
        }
    }
}

#[test]
fn every_failing_allocation_makes_a_run_smaller_or_ends_it() {
    let Some(gpu) = mock() else { return };
    every_failing_allocation(&Failing::partly_resident(gpu.clone()));
    every_failing_allocation(&Failing::sorted(gpu.clone()));
    every_failing_allocation(&Failing::kept(gpu.clone()));
    every_failing_allocation(&Failing::trees(gpu.clone()));
    every_failing_allocation(&Failing::ttv(gpu.clone()));
    every_failing_allocation(&Failing::ttm(gpu.clone()));
    every_failing_allocation(&Failing::ttm_in_ranges(gpu));
}

fn every_failing_allocation(failing: &Failing) {
    let allocations = failing.count("allocations");
    assert!(allocations > 8, "{allocations} allocations");
    let (mut smaller, mut ended) = (0, 0);
    for nth in 1..=allocations {
        let (status, text, account) = failing.run(nth, "2");
        assert_ne!(account["failed"], "-", "allocation {nth}");
        if status == Some(0) {
            (failing.agrees)(&failing.place, &format!("allocation {nth}"));
            smaller += 1;
        } else {
            assert_eq!(status, Some(2), "allocation {nth}: {text}");
            assert!(text.contains("CUDA_ERROR_OUT_OF_MEMORY"), "allocation {nth}: {text}");
            let (lacks, other) = memories_of(&account);
            assert!(text.contains(lacks) && !text.contains(other), "allocation {nth}: {text}");
            assert!(text.contains("lower --") && text.lines().count() == 1, "allocation {nth}: {text}");
            assert!(!failing.place.path("out").exists(), "allocation {nth}: results are there");
            ended += 1;
        }
    }
    assert!(smaller > 0 && ended > 0, "{smaller} runs with less memory, {ended} ended");
}

/// The words for the memory that was short after a failed allocation, and words that must not occur.
fn memories_of(account: &HashMap<String, String>) -> (&'static str, &'static str) {
    match &account["failed"][..] {
        "cuMemAlloc_v2" => ("device", "host"),
        "cuMemHostRegister_v2" => ("host", "device"),
        other => panic!("{other} allocates"),
    }
}

#[test]
fn less_memory_than_planned_is_told() {
    let Some(gpu) = mock() else { return };
    told_of_less_memory(&Failing::partly_resident(gpu.clone()));
    told_of_less_memory(&Failing::sorted(gpu.clone()));
    told_of_less_memory(&Failing::kept(gpu.clone()));
    told_of_less_memory(&Failing::trees(gpu.clone()));
    told_of_less_memory(&Failing::ttv(gpu.clone()));
    told_of_less_memory(&Failing::ttm(gpu.clone()));
    told_of_less_memory(&Failing::ttm_in_ranges(gpu));
}

fn told_of_less_memory(failing: &Failing) {
    let args: Vec<&str> = failing.args.iter().map(String::as_str).collect();
    let mut told = 0;
    for nth in 1..=failing.count("allocations") {
        let nth = nth.to_string();
        let env = [("BLCO_MOCK_FAIL", &nth[..]), ("BLCO_MOCK_ERROR", "2"), ("BLCO_MOCK_SLOW", "0")];
        let output = failing.place.blco_run(&[&args[..], &["--json"]].concat(), &env);
        let account = failing.place.account();
        if output.status.success() {
            let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            let notes = report["notes"].to_string();
            let (lacks, other) = memories_of(&account);
            assert!(notes.contains("memory") && notes.contains(lacks), "allocation {nth}: {report}");
            assert!(!notes.contains(other), "allocation {nth}: {report}");
            // The report has the first plan beside the used one.
            assert!(report["planned"].is_object() && report["planned"] != report["device"], "{report}");
            does_what_its_plan_says(&report, &format!("allocation {nth}"));
            told += 1;
        }
    }
    assert!(told > 0, "no run went on with less memory");
}

/// The last pass of a run of MTTKRP with several of them: what stays on the device, and what crosses the link.
fn does_what_its_plan_says(report: &serde_json::Value, what: &str) {
    let (plan, passes) = (&report["device"], report["passes"].as_array().unwrap());
    let last = &passes.last().unwrap()["device"];
    let (from_host, resident) = (streamed_copies(plan), resident(plan));
    assert_eq!(last["resident_chunks"], resident.0, "{what}: {report}");
    let (copied, planned) =
        (last["copied_bytes"].as_u64().unwrap(), plan["later_pass"]["bytes"].as_u64().unwrap());
    if from_host > 0 {
        assert!(copied <= planned && planned < 2 * copied, "{what}: {report}");
    } else {
        assert_eq!(copied, planned, "{what}: {report}");
    }
}

/// The copies that a plan keeps in host memory.
fn streamed_copies(plan: &serde_json::Value) -> usize {
    let sets = plan["sets"].as_array().unwrap();
    sets.iter().filter(|set| set["residence"][0]["place"] == "host").count()
}

/// The chunks that a plan keeps on the device, and their bytes.
fn resident(plan: &serde_json::Value) -> (u64, u64) {
    let first = &plan["sets"][0]["residence"][0];
    if first["place"] == "device" {
        (first["images"]["end"].as_u64().unwrap(), first["bytes"].as_u64().unwrap())
    } else {
        (0, 0)
    }
}

/// The names of all fields of a JSON value.
fn fields(value: &serde_json::Value, names: &mut std::collections::BTreeSet<String>) {
    match value {
        serde_json::Value::Object(object) => {
            names.extend(object.keys().cloned());
            object.values().for_each(|value| fields(value, names));
        }
        serde_json::Value::Array(values) => values.iter().for_each(|value| fields(value, names)),
        _ => (),
    }
}

#[test]
fn every_field_of_a_plan_is_on_its_page() {
    let Some(gpu) = gpu() else { return };
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/plan.md");
    let page = std::fs::read_to_string(page).unwrap();
    let place = Place::new(gpu, &many_chunks(), Kind::Tiled, SMALL_CHUNKS);
    let mut names = std::collections::BTreeSet::new();
    for order in ["store", "target", "host", "fibers"] {
        // Fibers are counted when nonzeros are on the device.
        let plan = if order == "fibers" { &[][..] } else { &["--plan"] };
        let args = [plan, &["--json", "--repeat", "3", "--device-order", order]].concat();
        let output = place.blco_run(&args, &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["device"]["fibers"].is_object(), order == "fibers");
        assert!(report["device"]["sets"].as_array().unwrap().len() == if order == "store" { 1 } else { 4 });
        for part in ["plan", "device"] {
            fields(&report[part], &mut names);
        }
    }
    let missing: Vec<_> = names.iter().filter(|name| !page.contains(name.as_str())).collect();
    assert!(names.len() > 40 && missing.is_empty(), "{missing:?}");
}

/// Whichever allocation fails, passes follow the new plan. Without any copies in host memory, chunks stay on the device.
#[test]
fn copies_that_are_given_up_leave_a_plan_that_holds() {
    let Some(gpu) = mock() else { return };
    let failing = Failing::kept(gpu);
    let args: Vec<&str> = failing.args.iter().map(String::as_str).collect();
    let (mut some, mut none) = (0, 0);
    for (modes, nth) in
        ["all", "2"].into_iter().flat_map(|m| (1..=failing.count("allocations")).map(move |n| (m, n)))
    {
        let (what, nth) = (format!("modes {modes}, allocation {nth}"), nth.to_string());
        let env = [("BLCO_MOCK_FAIL", &nth[..]), ("BLCO_MOCK_ERROR", "2"), ("BLCO_MOCK_SLOW", "0")];
        let output = failing.place.blco_run(&[&args[..], &["--modes", modes, "--json"]].concat(), &env);
        failing.place.account();
        if output.status.success() {
            let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            does_what_its_plan_says(&report, &what);
            let plan = &report["device"];
            let with_chunks = !plan["sets"][0]["later_passes"].as_array().unwrap().is_empty();
            if streamed_copies(plan) > 0 {
                some += u32::from(with_chunks);
            } else {
                assert!(resident(plan).0 > 0, "{what}: {report}");
                none += 1;
            }
        }
    }
    assert!(some > 0 && none > 0, "{some} runs without some orders, {none} without any");
}

#[test]
fn a_device_that_is_too_small_or_missing() {
    let Some(gpu) = mock() else { return };
    let place = Place::new(gpu, &many_chunks(), Kind::Tiled, SMALL_CHUNKS);
    let needed = memories(&place, 1, 5)[2];
    for (args, env, what) in [
        (&["--rank", "5"][..], ("BLCO_MOCK_MEMORY", (needed / 2).to_string()), "device memory"),
        (&["--rank", "5", "--device-memory", "1K"], ("BLCO_MOCK_SLOW", "0".into()), "--device-memory"),
        (&[], ("BLCO_MOCK_DEVICES", "0".into()), "no CUDA device"),
        (&["--device", "1"], ("BLCO_MOCK_SLOW", "0".into()), "device 1"),
        (&[], ("BLCO_MOCK_FAIL", "1".into()), "CUDA_ERROR"),
    ] {
        let output = place.blco_run(&[args, &["--output", "out"]].concat(), &[(env.0, &env.1)]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{what}: {text}");
        assert!(text.contains(what), "{what}: {text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(!place.path("out").exists());
        // If no GPU is requested, the CPU computes and the report says why.
        let auto = [args, &["--backend", "auto", "--json"]].concat();
        let output = place.blco_run(&auto, &[(env.0, &env.1)]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["backend"], "cpu");
        assert!(!report["notes"].as_array().unwrap().is_empty(), "{report}");
    }
}

#[test]
fn damage_in_a_chunk_ends_a_run() {
    let Some(gpu) = gpu() else { return };
    // A missing chunk ends the pass while other chunks are being processed.
    let place = Place::new(gpu, &many_chunks(), Kind::Tiled, SMALL_CHUNKS);
    let chunks = ["chunk-000000.bin", "chunk-000005.bin"];
    for (chunk, more) in chunks.into_iter().flat_map(|chunk| [(chunk, &[][..]), (chunk, &["--direct"])]) {
        let (there, away) = (place.path("s").join(chunk), place.path("away"));
        std::fs::rename(&there, &away).unwrap();
        let args = [&["--output", "out"], more].concat();
        let output = place.blco_run(&args, &[("BLCO_MOCK_SLOW", "100")]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(chunk), "{text}");
        assert!(!place.path("out").exists());
        if matches!(place.gpu, Gpu::Mock(_)) {
            place.account();
        }
        std::fs::rename(&away, &there).unwrap();
    }
}

/// TTV from the command line: plan, report, timeline, kernels by name, modes that do not stream, too little memory.
#[test]
fn ttv_plans_and_reports() {
    let Some(gpu) = mock() else { return };
    let place = Place::new(
        gpu,
        &Tensor::random(&[90, 300, 40], 40_000, 1, values::fraction),
        Kind::HocfsCsr,
        SMALL_CHUNKS,
    );
    let ttv = |more: &[&str]| {
        let output = place.blco_run(&[&["--op", "ttv", "--json"], more].concat(), &[]);
        // If the driver is not opened, there is none.
        if place.path("log").exists() {
            place.account();
        }
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        let report = serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap_or_default();
        (output.status.code(), report, error)
    };
    let (status, planned, error) = ttv(&["--modes", "3", "--plan"]);
    assert_eq!((status, &planned["device"]["lanes"]["count"]), (Some(0), &4.into()), "{error}");
    let common = [
        "--modes",
        "3",
        "--repeat",
        "2",
        "--streams",
        "3",
        "--trace",
        "trace.json",
        "--force",
        "--check",
        "t.tns",
    ];
    for (kernel, more) in [("balanced", &[][..]), ("two-level", &[]), ("balanced", &["--direct"])] {
        let args = [&common[..], &["--kernel", kernel], more].concat();
        let (status, report, error) = ttv(&args);
        assert_eq!(
            (status, &report["kernel"], &report["backend"]),
            (Some(0), &kernel.into(), &"cuda".into()),
            "{error}"
        );
        let seconds = |of: &str| report["pipeline"][of].as_f64().unwrap();
        assert!(
            0.0 < seconds("pipelined_seconds")
                && seconds("pipelined_seconds") <= seconds("sequential_seconds")
        );
        assert!(report["pipeline_measured_seconds"].as_f64().unwrap() > 0.0);
        let spans: serde_json::Value =
            serde_json::from_slice(&std::fs::read(place.path("trace.json")).unwrap()).unwrap();
        for stage in ["copy", "kernel", "return"] {
            let of_stage = spans.as_array().unwrap().iter().filter(|span| span["stage"] == stage);
            assert_eq!(of_stage.count() as u64, report["plan"]["chunks"].as_u64().unwrap(), "{stage}");
        }
    }
    let (status, report, error) = ttv(&["--modes", "1"]);
    assert_eq!((status, &report["backend"]), (Some(0), &"cpu".into()), "{error}");
    assert!(report["notes"][0].as_str().unwrap().contains("does not stream"), "{report}");
    for (args, wanted) in [
        (&["--modes", "3", "--device-memory", "1K"][..], "of device memory"),
        (&["--modes", "1", "--kernel", "balanced"], "--kernel is for a GPU"),
        (&["--modes", "3", "--kernel", "t4l16c2b4"], "a kernel of MTTKRP"),
    ] {
        let (status, _, error) = ttv(args);
        assert!(
            status == Some(2) && error.contains(wanted) && error.lines().count() == 1,
            "{args:?}: {error}"
        );
    }
    let (status, report, error) = ttv(&["--modes", "3", "--device-memory", "1K", "--backend", "auto"]);
    assert_eq!((status, &report["backend"]), (Some(0), &"cpu".into()), "{error}");
    assert!(report["notes"][0].as_str().unwrap().contains("device memory"), "{report}");
}
