//! Establishes that `blco-cpd` finds the components that `blco-gen` plants, writes the files that it reports, and computes the models of an
//! independent implementation, pyttb, if `BLCO_PYTHON` has it. `BLCO_PEER=DIR` leaves files in DIR for another machine with pyttb:
//! run `tools/cpd_peer.py` there on each directory.

use crate::programs::{backends, program, script};
use assert_cmd::cargo::cargo_bin;
use blco::internals::decomp::Model;
use blco::internals::decomp::score::score;
use blco::internals::dense::{Matrix, mode_file, seeded_factors};
use blco::internals::store::Store;
use blco::internals::sys::Sys;
use std::path::Path;

#[test]
fn planted_components_are_found() {
    for (dims, support, nonneg) in
        [("80,70,60", "9", false), ("60,50,40,30", "6", true), ("40,24,30,20,12", "5", false)]
    {
        let dir = tempfile::tempdir().unwrap();
        let cpd = |args: &str| program("blco-cpd", dir.path(), &args.split(' ').collect::<Vec<_>>());
        let args = ["--dims", dims, "--planted-rank", "3", "--support", support, "--model", "true", "t.blco"];
        program("blco-gen", dir.path(), &args);
        for backend in backends() {
            let sign = if nonneg { " --nonneg" } else { "" };
            let how = "t.blco --rank 3 --starts 4 --tol 1e-8 --max-iters 100 --output m --force";
            let report = cpd(&format!("{how} --backend {backend}{sign}"));
            assert!(report["fit"].as_f64().unwrap() > 0.9999, "{}", report["fit"]);
            assert_eq!((&report["backend"], &report["starts"][3]["seed"]), (&backend.into(), &3.into()));
            let score = cpd("--score true m")["score"].as_f64().unwrap();
            assert!(score > 0.99, "{dims}: {score}");
            let written = std::fs::read(dir.path().join("m/report.json")).unwrap();
            assert_eq!(serde_json::from_slice::<serde_json::Value>(&written).unwrap(), report);
            // The library reads the program's files.
            let model = Model::load(&Sys::default(), &dir.path().join("m")).unwrap();
            assert!((score - self_score(&model, &dir.path().join("true"))).abs() < 1e-12);
        }
    }
}

/// One line on standard error, status 2, and nothing left behind: neither results nor incomplete checkpoints.
#[test]
fn what_goes_wrong_is_told() {
    let dir = tempfile::tempdir().unwrap();
    program("blco-gen", dir.path(), &["--dims", "6,5,4", "--nnz", "60", "--values", "1..9", "t.blco"]);
    std::fs::create_dir(dir.path().join("nan")).unwrap();
    for (m, rows) in [6, 5, 4].into_iter().enumerate() {
        let mut numbers = vec![0.5; rows * 2];
        numbers[rows] = if m == 1 { f64::NAN } else { 0.25 };
        let file = Sys::default().create(&dir.path().join(format!("nan/mode-{}.npy", m + 1))).unwrap();
        Matrix::from_rows(rows, 2, numbers).write(&file).unwrap();
    }
    let run = |args: &str, fault: &str| {
        let mut command = std::process::Command::new(cargo_bin("blco-cpd"));
        command
            .current_dir(dir.path())
            .args(args.split(' '))
            .args(["--backend", "cpu"])
            .env_remove("BLCO_FAULT");
        if !fault.is_empty() {
            command.env("BLCO_FAULT", fault);
        }
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (args, fault, fragment) in [
        ("t.blco --factors nan --output o", "", "mode-2.npy: holds NaN in row 2, which is not finite"),
        ("t.blco --rank 2 --output o --report r.html", "write:2:28", "no space left on device"),
        ("t.blco --rank 2 --output o --checkpoint c --every 1", "write:1:28", "no space left on device"),
        ("t.blco --rank 2 --output o", "rename:0:28", "no space left on device"),
        ("t.blco --rank 2 --checkpoint none/c", "", "cannot create none/c"),
        ("t.blco --rank 2 --checkpoint c --resume", "", "holds no checkpoint to resume"),
        ("t.blco --rank 2 --output t.blco", "", "t.blco: is a store; name another directory"),
        ("t.blco --rank 2 --checkpoint t.blco", "", "t.blco: is a store; name another directory"),
        ("t.blco --rank 2 --output o --report .", "", ".: is a directory; name a file"),
        ("t.blco --rank 2000 --memory 80MB --output o", "", "take a smaller rank"),
        ("--score t.blco nan", "", "t.blco: holds no model"),
        ("--score nan nan", "", "holds NaN in row 2"),
    ] {
        let (status, said) = run(args, fault);
        assert_eq!((status, said.lines().count()), (Some(2), 1), "{args}: {said}");
        assert!(said.starts_with("blco-cpd: ") && said.contains(fragment), "{args}: {said}");
        for name in ["o", "r.html", "c/next", "c/current"] {
            assert!(!dir.path().join(name).exists(), "{args} left {name}");
        }
    }
    assert_eq!(run("t.blco --rank 2 --resume", "").0, Some(2));
    for (model, rows) in [("a", [6, 5]), ("b", [6, 4])] {
        std::fs::create_dir(dir.path().join(model)).unwrap();
        for (name, rows, columns) in [("mode-1", rows[0], 2), ("mode-2", rows[1], 2), ("lambda", 3, 1)] {
            let file = Sys::default().create(&dir.path().join(format!("{model}/{name}.npy"))).unwrap();
            Matrix::from_rows(rows, columns, vec![0.5; rows * columns]).write(&file).unwrap();
        }
    }
    let (status, said) = run("--score a b", "");
    assert_eq!(
        (status, &said[..]),
        (Some(2), "blco-cpd: a/lambda.npy: has 3 weights; factors of rank 2 have 2\n")
    );
    for model in ["a", "b"] {
        std::fs::remove_file(dir.path().join(model).join("lambda.npy")).unwrap();
    }
    let (status, said) = run("--score a b", "");
    assert!(
        status == Some(2) && said.starts_with("blco-cpd: a and b: models of [6, 5] and [6, 4] rows"),
        "{said}"
    );
    // A rank beyond every dim works. An empty directory counts as absent.
    std::fs::create_dir(dir.path().join("o")).unwrap();
    let (status, said) = run("t.blco --rank 9 --output o --report r.html --quiet", "");
    assert_eq!((status, said.as_str()), (Some(0), ""));
    assert!(std::fs::read_to_string(dir.path().join("r.html")).unwrap().contains("Component 9, weight"));
    assert_eq!(std::fs::read_dir(dir.path().join("o")).unwrap().count(), 8, "a marker too");
    let weights = std::fs::read(dir.path().join("o/lambda.npy")).unwrap();
    assert!(String::from_utf8_lossy(&weights[..128]).contains("'shape': (9, )"));
}

/// Each compared rank gives the same as alone, and one is kept.
#[test]
fn ranks_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--dims", "60,50,40", "--planted-rank", "3", "--support", "9", "t.blco"];
    program("blco-gen", dir.path(), &args);
    let cpd = |args: &str| program("blco-cpd", dir.path(), &args.split(' ').collect::<Vec<_>>());
    let report = cpd("t.blco --backend cpu --ranks 2..5 --seed 7");
    let ranks = report["ranks"].as_array().unwrap();
    assert_eq!(ranks.iter().map(|r| r["rank"].as_u64().unwrap()).collect::<Vec<_>>(), [2, 3, 4, 5]);
    let is_kept = |r: &&serde_json::Value| r["kept"].as_bool().unwrap();
    let kept: Vec<_> = ranks.iter().filter(is_kept).collect();
    let stable = |r: &&&serde_json::Value| r["stability"].as_f64().unwrap() >= 0.9;
    let wanted = ranks.iter().collect::<Vec<_>>();
    let wanted = wanted.iter().rfind(stable).copied().unwrap_or_else(|| {
        ranks
            .iter()
            .reduce(|a, b| if b["stability"].as_f64() > a["stability"].as_f64() { b } else { a })
            .unwrap()
    });
    assert_eq!(kept, [wanted]);
    assert!(stable(&&&ranks[1]), "{ranks:?}");
    for rank in ranks {
        let args = format!(
            "t.blco --backend cpu --rank {} --starts 3 --seed 7 --output alone --force",
            rank["rank"]
        );
        let alone = cpd(&args);
        assert_eq!((&alone["fit"], &alone["stability"]), (&rank["fit"], &rank["stability"]));
        if is_kept(&rank) {
            for file in ["lambda.npy", "mode-1.npy", "mode-3.npy", "components.csv"] {
                let read = |result: &str| std::fs::read(dir.path().join(result).join(file)).unwrap();
                assert!(read("t.cp") == read("alone"), "{file}");
            }
            assert_eq!((&report["settings"], &report["lambda"]), (&alone["settings"], &alone["lambda"]));
        }
    }
    let page = std::fs::read_to_string(dir.path().join("t.cp/report.html")).unwrap();
    assert!(page.contains("fit and stability by rank") && page.contains("rank 5: stability"));
    for (wrong, word) in [("--ranks 3", "such as 2..12"), ("--ranks 2..3 --rank 3", "--rank")] {
        let words: Vec<&str> = wrong.split(' ').collect();
        let output = crate::programs::command("blco-cpd", dir.path(), &[&["t.blco"], &words[..]].concat())
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(2) && said.lines().count() == 1 && said.contains(word),
            "{said}"
        );
    }
}

/// Stability is the mean over all pairs of starts of the scores of their models, without weights.
#[test]
fn stability_is_that_of_all_pairs() {
    let dir = tempfile::tempdir().unwrap();
    program("blco-gen", dir.path(), &["--dims", "30,20,25", "--nnz", "2000", "--values", "1..9", "t.blco"]);
    let how = ["t.blco", "--rank", "4", "--max-iters", "5", "--tol", "0", "--backend", "cpu", "--output"];
    let cpd = |more: &[&str]| program("blco-cpd", dir.path(), &[&how[..], more].concat());
    let report = cpd(&["all", "--starts", "4", "--seed", "3"]);
    let model = |seed: u64| {
        let name = format!("s{seed}");
        cpd(&[&name, "--seed", &seed.to_string()]);
        let mut model = Model::load(&Sys::default(), &dir.path().join(name)).unwrap();
        model.lambda.data_mut().fill(1.0);
        model
    };
    let models: Vec<_> = (3..7).map(model).collect();
    let pairs = (0..4).flat_map(|b| (0..b).map(move |a| (a, b)));
    let scores: Vec<f64> = pairs.map(|(a, b)| score(&models[a], &models[b]).unwrap().score).collect();
    let mean = scores.iter().sum::<f64>() / 6.0;
    let found = report["stability"].as_f64().unwrap();
    assert!((found - mean).abs() < 1e-9 && mean < 0.999, "{found} {mean}");
    let last = report["starts"][3]["agreement"].as_f64().unwrap();
    assert!((last - (scores[3] + scores[4] + scores[5]) / 3.0).abs() < 1e-9);
}

/// `--resume DIR` alone: from any directory, with other options beside it.
#[test]
fn resuming_needs_no_other_option() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("work")).unwrap();
    let work = dir.path().join("work");
    program("blco-gen", &work, &["--dims", "12,10,8", "--nnz", "400", "--values", "1..9", "a b.blco"]);
    let same = ["a b.blco", "--rank", "3", "--tol", "0", "--seed", "5", "--starts", "2", "--backend", "cpu"];
    let run = |place: &Path, args: &[&str]| program("blco-cpd", place, args);
    run(&work, &[&same[..], &["--max-iters", "9", "--output", "whole"]].concat());
    let first = ["--max-iters", "4", "--checkpoint", "c", "--every", "2", "--no-output"];
    run(&work, &[&same[..], &first].concat());
    // The first command's `--no-output` and iterations are overridden.
    let refused = crate::programs::command("blco-cpd", dir.path(), &["--resume", "work/c", "--output", "x"]);
    let refused = { refused }.output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && said.contains("work/c: the argument"), "{said}");
    run(
        &work,
        &[&same[..], &["--max-iters", "4", "--checkpoint", "d", "--every", "2", "--output", "o"]].concat(),
    );
    let report = run(dir.path(), &["--resume", "work/d", "--max-iters", "9", "--force"]);
    assert_eq!((&report["resumed"][0], &report["max_iters"]), (&2.into(), &9.into()));
    for (place, args, word) in [
        (&work, &["--resume"][..], "name"),
        (&work, &["a b.blco", "--resume"], "blco-cpd --resume DIR"),
        (&work, &["--resume", "none"], "no such directory"),
        (&work, &["--resume", "whole"], "holds no checkpoint with its command"),
        (&work, &["a b.blco", "--checkpoint", "c", "--resume", "d"], "different directories"),
    ] {
        let output = crate::programs::command("blco-cpd", place, args).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(2) && said.lines().count() == 1 && said.contains(word),
            "{said}"
        );
    }
    std::fs::write(work.join("d/command.json"), "{").unwrap();
    let output = crate::programs::command("blco-cpd", &work, &["--resume", "d"]).output().unwrap();
    assert!(String::from_utf8(output.stderr).unwrap().contains("repeat the whole command"));
}

fn self_score(model: &Model<f64>, dir: &Path) -> f64 {
    score(&Model::load(&Sys::default(), dir).unwrap(), model).unwrap().score
}

/// An independent implementation from the same initial factors, after 1 to 5 iterations.
#[test]
fn models_are_those_of_pyttb() {
    let python = std::env::var("BLCO_PYTHON").unwrap_or_else(|_| "python3".into());
    let elsewhere = std::env::var_os("BLCO_PEER");
    let has = std::process::Command::new(&python).args(["-c", "import pyttb"]).output();
    if elsewhere.is_none() && !has.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: no pyttb in BLCO_PYTHON; tools/test.sh installs it");
        return;
    }
    for (dims, backend) in ["30,40,50", "30,24,20,12", "20,10,12,8,9"]
        .into_iter()
        .flat_map(|dims| backends().into_iter().map(move |backend| (dims, backend)))
    {
        let place = tempfile::tempdir().unwrap();
        let dir = elsewhere.as_ref().map_or(place.path().to_path_buf(), |to| {
            let dir = Path::new(to).join(format!("{dims}-{backend}"));
            std::fs::create_dir_all(&dir).unwrap();
            dir
        });
        iterate(&dir, dims, backend);
        if elsewhere.is_some() {
            continue;
        }
        let args = ["t.tns", dims, "initial", "1", "2", "3", "4", "5"];
        let output = script(&python, "cpd_peer.py", &dir, &args);
        let text = String::from_utf8_lossy(&output.stdout);
        eprintln!("{dims} on {backend}:\n{text}");
        assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(text.lines().count(), 5, "{text}");
    }
}

/// A tensor, initial factors, and the models after 1 to 5 iterations.
fn iterate(dir: &Path, dims: &str, backend: &str) {
    program("blco-gen", dir, &["--dims", dims, "--nnz", "3000", "--values", "1..9", "--seed", "5", "t.blco"]);
    program("blco-export", dir, &["t.blco", "t.tns"]);
    let store = Store::open(&Sys::default(), &dir.join("t.blco")).unwrap();
    std::fs::create_dir(dir.join("initial")).unwrap();
    let initial = seeded_factors::<f64>(&Sys::default(), &store.manifest().shape, 5, 4).unwrap();
    for (m, factor) in initial.iter().enumerate() {
        factor.write(&Sys::default().create(&dir.join("initial").join(mode_file(m))).unwrap()).unwrap();
    }
    for k in ["1", "2", "3", "4", "5"] {
        let args = ["t.blco", "--factors", "initial", "--tol", "0", "--max-iters", k, "--output", k];
        program("blco-cpd", dir, &[&args[..], &["--backend", backend]].concat());
    }
}
