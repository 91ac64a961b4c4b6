//! Several GPUs: their results equal the CPU's within the bounds of one GPU. A failing device ends the run with its
//! error, and leaves nothing.

use super::*;

/// Devices of the mock driver, with more settings.
fn devices<'e>(count: &'e str, more: &[(&'e str, &'e str)]) -> Vec<(&'e str, &'e str)> {
    [&[("BLCO_MOCK_DEVICES", count)], more].concat()
}

/// A library path that also has a mock NCCL.
fn with_nccl(gpu: &Gpu) -> String {
    let Gpu::Mock(directory) = gpu else { unreachable!("tests of several devices are on the mock") };
    format!("{}:{}", directory.display(), directory.join("nccl").display())
}

/// Tensors of orders 3 to 5 with several small chunks: with modes that are short, that have fewer rows than there are devices, and whose
/// rows no number of devices divides.
fn tensors() -> Vec<Tensor> {
    let shapes: [(&[u64], usize); 3] =
        [(&[90, 701, 3], 40_000), (&[50, 7, 333, 61], 30_000), (&[11, 300, 5, 17, 2], 36_000)];
    (1u64..)
        .zip(shapes)
        .map(|(seed, (dims, nnz))| Tensor::random(dims, nnz, seed, values::fraction))
        .collect()
}

/// Every order, both precisions, 1 to 4 devices; once streamed, resident, and from mode-sorted copies; by copies and by NCCL.
#[test]
fn mttkrp_is_that_of_the_cpu() {
    let Some(gpu) = mock() else { return };
    let nccl = with_nccl(&gpu);
    for (number, tensor) in tensors().iter().enumerate() {
        let kind = [Kind::Tiled, Kind::Raw, Kind::TiledZstd][number];
        let place = Place::new(gpu.clone(), tensor, kind, SMALL_CHUNKS);
        let orders = if kind == Kind::Raw { "store" } else { "target" };
        let ways = [["--repeat", "1"], ["--repeat", "2"], ["--device-order", orders]];
        for (count, some) in [("1", &[0][..]), ("2", &[0, 1, 2]), ("3", &[1]), ("4", &[0, 2])] {
            for &way in some {
                let args = &ways[way];
                let args =
                    [&args[..], &["--devices", "all", "--repeat", "3"][..if way == 2 { 4 } else { 2 }]]
                        .concat();
                let by_nccl = (number + way) % 2 == 0;
                let path = [("LD_LIBRARY_PATH", &nccl[..])];
                let env = devices(count, if by_nccl { &path } else { &[] });
                check(&place, [5, 16, 33][way], &args, &env);
            }
        }
    }
}

/// Divided by rows, results have the bits of one device: every order, both precisions, 1 to 4 devices, modes with fewer rows than devices,
/// and one row with most nonzeros; equal or unequal memory rates; by copies and by NCCL. Without --deterministic too, as all modes are sorted.
#[test]
fn rows_of_several_devices_have_the_bits_of_one() {
    let Some(gpu) = mock() else { return };
    let nccl = with_nccl(&gpu);
    // Most nonzeros of the last are in one row of each mode, so that carry-outs are added up over several levels.
    let mut all = tensors();
    let mut hot = Tensor::random(&[40, 30, 70_000], 150_000, 4, values::fraction);
    hot.indices
        .chunks_exact_mut(3)
        .filter(|at| at[2] % 8 > 0)
        .for_each(|at| at[..2].copy_from_slice(&[7, 2]));
    all.push(hot);
    for (number, tensor) in all.iter().enumerate() {
        let kind = [Kind::Tiled, Kind::TiledZstd][number % 2];
        let place = Place::new(gpu.clone(), tensor, kind, SMALL_CHUNKS);
        for precision in ["f64", "f32"] {
            let rank = ["5", "16", "33", "3"][number];
            let args =
                ["--rank", rank, "--precision", precision, "--modes", "all", "--output", "out", "--force"];
            let results = |more: &[&str], env: &[(&str, &str)]| {
                let args = [&args[..], &["--check", "t.tns"], more].concat();
                let output = place.blco_run(&args, env);
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(output.status.success(), "{args:?} {env:?}: {said}");
                place.account();
                let file =
                    |mode: usize| std::fs::read(place.path("out").join(format!("mode-{mode}.npy"))).unwrap();
                let files: Vec<_> = (1..=tensor.dims.len()).map(file).collect();
                std::fs::remove_dir_all(place.path("out")).unwrap();
                files
            };
            let one = results(&["--deterministic"], &[]);
            for (count, how) in [("2", "--deterministic"), ("3", "--divide=rows"), ("4", "--deterministic")] {
                let path = [("LD_LIBRARY_PATH", &nccl[..])];
                let env = devices(count, if count == "3" { &path } else { &[] });
                let several = results(&["--devices", "all", how, "--repeat", "2"], &env);
                assert!(one == several, "tensor {number}, {precision}, {count} devices: other bits");
            }
        }
    }
}

/// How the work is divided follows from predicted seconds, and the plan says why: modes of many rows by rows, those of few by chunks; one
/// device if adding up takes longer than computing and sorting does not pay; chunks if there is no room for all of them on each device.
#[test]
fn work_is_divided_as_is_predicted_to_be_fastest() {
    let Some(gpu) = mock() else { return };
    let tensor = Tensor::random(&[30_000, 20_000, 20], 60_000, 9, values::fraction);
    let place = Place::new(gpu, &tensor, Kind::Tiled, SMALL_CHUNKS);
    let by = |report: &serde_json::Value| -> Vec<String> {
        let modes = report["devices"]["modes"].as_array().unwrap();
        assert!(
            modes.iter().all(|mode| mode["why"].as_str().unwrap().contains("ms a pass by rows")),
            "{report}"
        );
        modes.iter().map(|mode| mode["by"].as_str().unwrap().to_owned()).collect()
    };
    let parts = |report: &serde_json::Value| report["devices"]["parts"].as_array().unwrap().len();
    let notes = |report: &serde_json::Value| report["notes"].to_string();
    let env = devices("2", &[]);
    let many = ["--devices", "all", "--repeat", "300", "--plan"];
    let plan = |place: &Place, args: &[&str], env: &[(&str, &str)]| {
        let output = place.blco_run(&[args, &["--modes", "all", "--json"]].concat(), env);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let report = plan(&place, &many, &env);
    assert_eq!(
        (parts(&report), &by(&report)[..2], &notes(&report)[..]),
        (2, &["rows".into(), "rows".into()][..], "[]")
    );
    let through_host = devices("2", &[("BLCO_MOCK_PEERS", "0")]);
    let report = plan(&place, &["--devices", "all", "--repeat", "2", "--plan"], &through_host);
    assert!(parts(&report) == 1 && notes(&report).contains("one of 2 GPUs computes"), "{report}");
    // Two megabytes are for factors and sums; copies take more than what is left, chunks less.
    let tensor = Tensor::random(&[3000, 2000, 20], 60_000, 9, values::fraction);
    let place = Place::new(place.gpu.clone(), &tensor, Kind::Tiled, SMALL_CHUNKS);
    let report = plan(&place, &[&many[..], &["--device-memory", "2500000"]].concat(), &through_host);
    assert!(
        by(&report).iter().all(|by| by == "chunks") && notes(&report).contains("rows are not divided"),
        "{report}"
    );
    // Some modes by rows and some by chunks, in one run.
    let tensor = Tensor::random(&[30_000, 6, 20], 60_000, 9, values::fraction);
    let place = Place::new(place.gpu.clone(), &tensor, Kind::Tiled, SMALL_CHUNKS);
    for precision in ["f64", "f32"] {
        let report = place.succeeds(
            &["--devices", "all", "--repeat", "40", "--precision", precision],
            &devices("3", &[("BLCO_MOCK_PEERS", "0")]),
        );
        assert_eq!(by(&report), ["rows", "chunks", "chunks"], "{report}");
        if precision == "f64" { place.agrees::<f64>(16, "mixed") } else { place.agrees::<f32>(16, "mixed") }
    }
}

/// A forecast for one machine says of each mode what the plan of its GPUs says, and divides it in the same way; more machines exchange more.
#[test]
fn one_machine_is_forecast_as_it_is_planned() {
    let Some(gpu) = mock() else { return };
    let tensor = Tensor::random(&[30_000, 20_000, 20], 60_000, 9, values::fraction);
    let place = Place::new(gpu, &tensor, Kind::Tiled, SMALL_CHUNKS);
    let env = devices("2", &[]);
    let run = |args: &[&str]| -> serde_json::Value {
        let common = ["--plan", "--json", "--modes", "all", "--repeat", "300"];
        let output = place.blco_run(&[&common[..], args].concat(), &env);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let plan = run(&["--devices", "all"]);
    let forecast = |nodes, more: &[&str]| {
        let nodes = ["--nodes", nodes, "--devices-per-node", "2", "--link", "1GB/s"];
        run(&[&nodes[..], more].concat())["forecast"].clone()
    };
    let one = forecast("1", &[]);
    assert_eq!(one["counts"][0]["modes"], plan["devices"]["modes"]);
    assert!(plan["devices"]["modes"][0]["why"].as_str().unwrap().contains("ms a pass by rows"));
    assert_eq!(
        (&one["rates"]["assumed"], &one["counts"][0]["exchanged_bytes"]),
        (&false.into(), &0.0.into())
    );
    let by = |how| forecast("4", &["--divide", how])["counts"].clone();
    let bytes = |at: &serde_json::Value| at["exchanged_bytes"].as_f64().unwrap();
    let (chunks, rows) = (by("chunks"), by("rows"));
    assert!(bytes(&chunks[2]) > bytes(&chunks[1]) && bytes(&chunks[1]) > 0.0, "{chunks}");
    assert!(rows.as_array().unwrap().iter().all(|at| at["exchanged_bytes"] == 0.0), "{rows}");
}

/// The plan names every device's part, which together are the store, and how sums are added up. The report has each device's work.
#[test]
fn every_device_has_its_part_in_plan_and_report() {
    let Some(gpu) = mock() else { return };
    let nccl = with_nccl(&gpu);
    let place = Place::new(gpu, &many_chunks(), Kind::Tiled, SMALL_CHUNKS);
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/plan.md");
    let page = std::fs::read_to_string(page).unwrap();
    for (more, by) in [
        (vec![], "peer-copies"),
        (vec![("BLCO_MOCK_PEERS", "0")], "through-host"),
        (vec![("LD_LIBRARY_PATH", &nccl[..])], "nccl"),
    ] {
        let args = ["--devices", "2,0,1", "--repeat", "2"];
        let report = place.succeeds(&args, &devices("4", &more));
        place.agrees::<f64>(16, by);
        let plan = &report["devices"];
        assert_eq!(plan["exchange"]["by"], by);
        assert!(report["device"].is_null() && report["notes"].as_array().unwrap().is_empty(), "{report}");
        let parts = plan["parts"].as_array().unwrap();
        let number = |part: &serde_json::Value| part["device"]["device"]["number"].as_u64().unwrap();
        assert_eq!(parts.iter().map(number).collect::<Vec<_>>(), [2, 0, 1]);
        let mut next = 0;
        for (part, pass) in parts.iter().zip(report["devices_pass"]["parts"].as_array().unwrap()) {
            assert_eq!(part["chunks"]["start"], next);
            next = part["chunks"]["end"].as_u64().unwrap();
            assert_eq!((&part["nnz"], &pass["chunks"]), (&pass["nnz"], &part["host"]["chunks"]));
        }
        assert_eq!(report["plan"]["chunks"], next);
        let nnz: u64 = parts.iter().map(|part| part["nnz"].as_u64().unwrap()).sum();
        assert_eq!((&report["passes"][1]["nnz"], &report["nnz"]), (&nnz.into(), &nnz.into()));
        let mut names = std::collections::BTreeSet::new();
        fields(plan, &mut names);
        fields(&report["devices_pass"], &mut names);
        let of_passes = serde_json::to_value(blco::internals::stream::PassReport {
            device: Some(blco::internals::stream::DevicePass::default()),
            ..Default::default()
        });
        let mut known = std::collections::BTreeSet::new();
        fields(&of_passes.unwrap(), &mut known);
        let missing: Vec<_> =
            names.iter().filter(|n| !page.contains(&format!("`{n}`")) && !known.contains(*n)).collect();
        assert!(missing.iter().all(|name| ["start", "end"].contains(&&name[..])), "{missing:?}");
        // For people.
        let output = place.blco_run(&["--plan", "--devices", "2,0,1"], &devices("4", &more));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(["GPU 0", "GPU 1", "GPU 2"].iter().all(|gpu| text.contains(gpu)), "{text}");
    }
}

/// A device with less memory holds fewer chunks, gets fewer nonzeros, and results are right; one with too little for factors is named by
/// an error.
#[test]
fn devices_of_unequal_memory() {
    let Some(gpu) = mock() else { return };
    let place = Place::new(gpu, &many_chunks(), Kind::Tiled, SMALL_CHUNKS);
    let args = ["--devices", "all", "--repeat", "3", "--device-order", "store"];
    let report = place.succeeds(&args, &devices("2", &[]));
    place.agrees::<f64>(16, "equal memory");
    let held = report["devices"]["parts"][1]["device"]["operation_bytes"].as_u64().unwrap();
    // Four lanes and two chunks, of which the device allows all but a sixteenth.
    let memory = format!("1073741824,{}", (held + 6 * SMALL_CHUNKS) * 17 / 16);
    let report = place.succeeds(&args, &devices("2", &[("BLCO_MOCK_MEMORY", &memory)]));
    place.agrees::<f64>(16, "unequal memory");
    let parts = report["devices"]["parts"].as_array().unwrap();
    let [all, some] = [0, 1].map(|part: usize| resident(&parts[part]["device"]).0);
    assert_eq!(all, parts[0]["host"]["chunks"].as_u64().unwrap());
    assert!(some <= 6 && some < all, "{some} chunks stay, {all} on the other device");
    let output = place.blco_run(&args, &devices("2", &[("BLCO_MOCK_MEMORY", "1073741824,100000")]));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && said.contains("of device memory"), "{said}");
    place.account();
}

/// Whichever call of a device fails, the run ends promptly with that device's error. No object stays alive, and there is no result.
#[test]
fn a_device_that_fails_ends_the_run() {
    let Some(gpu) = mock() else { return };
    let place = Place::new(gpu, &many_chunks(), Kind::Tiled, SMALL_CHUNKS);
    let args = ["--devices", "all", "--repeat", "2", "--output", "out"];
    let env = devices("3", &[("BLCO_MOCK_FAIL_DEVICE", "1"), ("BLCO_MOCK_SLOW", "0")]);
    assert!(place.blco_run(&args, &env).status.success());
    std::fs::remove_dir_all(place.path("out")).unwrap();
    let calls: usize = place.account()["calls"].parse().unwrap();
    let step = if std::env::var_os("BLCO_EVERY_CALL").is_some() { 1 } else { calls / 40 + 1 };
    for nth in (1..=calls).step_by(step) {
        let nth = nth.to_string();
        let env = [&env[..], &[("BLCO_MOCK_FAIL", &nth[..])]].concat();
        let output = place.blco_run(&args, &env);
        let (account, said) = (place.account(), String::from_utf8_lossy(&output.stderr).into_owned());
        if output.status.success() {
            // Events are asked again and again, so the number of calls varies.
            let made: usize = account["calls"].parse().unwrap();
            let passed = RELEASES.contains(&&account["failed"][..]) || made < nth.parse().unwrap();
            assert!(passed, "call {nth} of {made} {}: {said}", account["failed"]);
            std::fs::remove_dir_all(place.path("out")).unwrap();
            continue;
        }
        let told = said.contains("CUDA_ERROR_ILLEGAL_ADDRESS") && said.lines().count() == 1;
        assert!(output.status.code() == Some(2) && told, "call {nth} {}: {said}", account["failed"]);
        assert!(!place.path("out").exists(), "call {nth} left results");
    }
}

/// Whatever a device hangs at, the run ends with that device's error soon after the time-out, by copies and by NCCL, and no result is there.
#[test]
fn a_device_that_hangs_ends_the_run() {
    let Some(gpu) = mock() else { return };
    let nccl = with_nccl(&gpu);
    let place = Place::new(gpu, &many_chunks(), Kind::Tiled, SMALL_CHUNKS);
    for (nth, divide) in [("1", "chunks"), ("5", "chunks"), ("1", "rows"), ("12", "rows")] {
        let args = [
            "--devices",
            "all",
            "--repeat",
            "2",
            "--divide",
            divide,
            "--device-timeout",
            "1",
            "--output",
            "out",
        ];
        let path = [("LD_LIBRARY_PATH", &nccl[..])];
        let hang = [("BLCO_MOCK_FAIL_DEVICE", "1"), ("BLCO_MOCK_HANG", nth)];
        let env = devices("3", &[&hang[..], if nth == "5" { &path } else { &[] }].concat());
        let begun = std::time::Instant::now();
        let output = place.blco_run(&args, &env);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let told = said.contains("no answer within 1 s (--device-timeout)") && said.lines().count() == 1;
        assert!(output.status.code() == Some(2) && told, "launch {nth}, {divide}: {said}");
        // A time-out for each device, and what this machine takes besides.
        assert!(begun.elapsed() < Duration::from_secs(40), "launch {nth}, {divide}: {:?}", begun.elapsed());
        assert!(!place.path("out").exists(), "launch {nth} left results");
    }
}

/// If NCCL does not start, a note says so and copies are used. If it fails later, the run ends.
#[test]
fn nccl_that_fails() {
    let Some(gpu) = mock() else { return };
    let nccl = with_nccl(&gpu);
    let place = Place::new(gpu, &many_chunks(), Kind::Tiled, SMALL_CHUNKS);
    let env = |nth| devices("2", &[("LD_LIBRARY_PATH", &nccl[..]), ("BLCO_MOCK_NCCL_FAIL", nth)]);
    let report = place.succeeds(&["--devices", "0,1"], &env("1"));
    place.agrees::<f64>(16, "without NCCL");
    assert_eq!(report["devices"]["exchange"]["by"], "peer-copies");
    assert!(report["notes"][0].as_str().unwrap().contains("NCCL 2.27.3 does not start"), "{report}");
    for nth in ["2", "4", "5"] {
        let output = place.blco_run(&["--devices", "0,1", "--output", "out"], &env(nth));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains("internal error"), "{nth}: {said}");
        place.account();
        assert!(!place.path("out").exists());
    }
}

/// Impossible requests are refused in one line.
#[test]
fn what_several_devices_do_not_do() {
    let Some(gpu) = mock() else { return };
    let place = Place::new(gpu, &many_chunks(), Kind::Tiled, SMALL_CHUNKS);
    let env = devices("2", &[]);
    for (args, fragment) in [
        (&["--devices", "all", "--deterministic", "--divide", "chunks"][..], "--deterministic"),
        (&["--divide", "rows"], "--devices"),
        (&["--devices", "0,0"], "named twice"),
        (&["--devices", "0,2"], "device 2 of 2"),
        (&["--devices", "one"], "give all, or numbers from 0"),
        (&["--devices", "0,1", "--device", "0"], "cannot be used with"),
        (&["--devices", "0,1", "--op", "ttv", "--modes", "1"], "--devices is not an option of --op ttv"),
        (&["--devices", "0,1", "--backend", "cpu"], "--devices is for a GPU"),
    ] {
        let output = place.blco_run(args, &env);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(fragment), "{args:?}: {said}");
    }
    // One of several GPUs works as one.
    let report = place.succeeds(&["--devices", "1", "--deterministic"], &env);
    place.agrees::<f64>(16, "one of two");
    assert_eq!(report["device"]["device"]["number"], 1);
    // A store of one chunk keeps one device at work.
    let place = Place::new(place.gpu.clone(), &many_chunks(), Kind::Tiled, LARGE_CHUNKS);
    let report = place.succeeds(&["--devices", "all"], &env);
    place.agrees::<f64>(16, "one chunk");
    assert!(report["notes"][0].as_str().unwrap().contains("keep 1 of 2 GPUs at work"), "{report}");
}

/// With --deterministic, models of several devices have the bits of one: both precisions, with and without negative numbers, several
/// starts, ranks of either kind of update.
#[test]
fn deterministic_models_have_the_bits_of_one_device() {
    let Some(gpu) = mock() else { return };
    let (Gpu::Mock(directory), nccl) = (&gpu, with_nccl(&gpu)) else { unreachable!("asked for the mock") };
    let dir = tempfile::tempdir().unwrap();
    let generated =
        ["--dims", "90,40,301,3", "--planted-rank", "3", "--support", "25,15,60,2", "--chunk-bytes", "65536"];
    crate::programs::program("blco-gen", dir.path(), &[&generated[..], &["s.blco"]].concat());
    for (how, rank, precision) in [
        (&["--starts", "2"][..], "5", "f64"),
        (&["--starts", "2"], "5", "f32"),
        (&["--nonneg"], "5", "f32"),
        (&[], "65", "f64"),
    ] {
        let model = |devices: &str, env: &[(&str, &str)]| {
            let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_blco-cpd"));
            command
                .current_dir(dir.path())
                .args(["s.blco", "--rank", rank, "--precision", precision])
                .args(how);
            command.args([
                "--backend",
                "cuda",
                "--deterministic",
                "--kernels",
                "embedded",
                "--devices",
                devices,
            ]);
            command.args(["--tol", "0", "--max-iters", "3", "--output", "out", "--force", "--quiet"]);
            command.env("LD_LIBRARY_PATH", directory).env("BLCO_MOCK_SLOW", "2").envs(env.iter().copied());
            command.timeout(PATIENCE).assert().success();
            let file = |mode: usize| std::fs::read(dir.path().join(format!("out/mode-{mode}.npy"))).unwrap();
            (1..=4).map(file).collect::<Vec<_>>()
        };
        let one = model("0", &[]);
        let path = [("LD_LIBRARY_PATH", &nccl[..])];
        for (count, more) in [("2", &path[..]), ("3", &[])] {
            assert!(one == model("all", &devices(count, more)), "{how:?} {precision}: other bits on {count}");
        }
    }
}

/// A decomposition's fits are those of the CPU: orders 3 to 5, both precisions, 1 to 4 devices, with and without negative numbers,
/// several starts, resident and streamed, by copies and by NCCL.
#[test]
fn decompositions_are_those_of_the_cpu() {
    let Some(gpu) = mock() else { return };
    let nccl = with_nccl(&gpu);
    for (number, (dims, support)) in
        [("200,170,3", "90,80,2"), ("60,50,40,31", "14,14,12,8"), ("40,24,30,20,2", "9,9,9,9,2")]
            .into_iter()
            .enumerate()
    {
        let dir = tempfile::tempdir().unwrap();
        let generated =
            ["--dims", dims, "--planted-rank", "3", "--support", support, "--chunk-bytes", "65536", "s.blco"];
        crate::programs::program("blco-gen", dir.path(), &generated);
        let cpd = |args: &[&str], env: &[(&str, &str)]| {
            let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_blco-cpd"));
            command.current_dir(dir.path()).args([
                "s.blco",
                "--json",
                "--no-output",
                "--tol",
                "0",
                "--max-iters",
                "4",
            ]);
            let Gpu::Mock(directory) = &gpu else { unreachable!("asked for the mock") };
            command.env("LD_LIBRARY_PATH", directory).env("BLCO_MOCK_SLOW", "2").envs(env.iter().copied());
            let output = command.args(args).timeout(PATIENCE).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{args:?} {env:?}: {said}");
            serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
        };
        let fits = |report: &serde_json::Value| -> Vec<f64> {
            let iterations = report["iterations"].as_array().unwrap();
            iterations.iter().map(|iteration| iteration["fit"].as_f64().unwrap()).collect()
        };
        for (way, (precision, close)) in [("f64", 1e-9), ("f32", 1e-4)].into_iter().enumerate() {
            let how = if number == 1 { &["--nonneg"][..] } else { &["--starts", "2"] };
            let args = [&["--rank", "4", "--precision", precision], how].concat();
            let wanted = fits(&cpd(&[&args[..], &["--backend", "cpu"]].concat(), &[]));
            for count in ["1", "2", "3", "4"] {
                let path = [("LD_LIBRARY_PATH", &nccl[..])];
                let env = devices(count, if way == 1 { &path } else { &[] });
                let memory = if number == 0 { "1000000" } else { "1000000000" };
                let on = [
                    "--backend",
                    "cuda",
                    "--devices",
                    "all",
                    "--kernels",
                    "embedded",
                    "--device-memory",
                    memory,
                    "--divide",
                    if number > 0 && ["2", "3"].contains(&count) { "rows" } else { "auto" },
                ];
                let report = cpd(&[&args[..], &on].concat(), &env);
                let several = report["devices"]["parts"].as_array().map_or(1, Vec::len);
                let (asked, chunks): (usize, u64) =
                    (count.parse().unwrap(), report["plan"]["chunks"].as_u64().unwrap());
                assert!(several == asked && chunks > 3, "{several} of {count} devices, {chunks} chunks");
                let got = fits(&report);
                assert!(wanted.len() == 4 && got.len() == 4, "{report}");
                let worst = wanted.iter().zip(&got).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(
                    worst <= close,
                    "{dims} {precision}, {several} of {count} devices: {got:?}, not {wanted:?}"
                );
            }
        }
    }
}
