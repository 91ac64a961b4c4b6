//! Establishes what programs do to names: they replace and remove only what these programs made and what existed when they
//! began, in one step. They keep permissions, work if names cannot be exchanged, and do not disturb readers.

use crate::common::{identity, tree};
use assert_cmd::cargo::cargo_bin;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// 3 x 3 x 4, and another tensor.
const ROWS: &str = "1 2 3 4.5\n3 1 1 -1\n2 3 4 0\n2 2 2 7\n";
const OTHER: &str = "1 1 1\n2 2 2\n";

/// The error of a file system that cannot exchange names.
const NO_EXCHANGE: &str = "exchange:all:22";

/// A directory with the text `t.tns` and `u.tns`, and the store `t.blco` of the first.
struct Place {
    dir: TempDir,
    fault: Option<&'static str>,
}

impl Place {
    fn new() -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap(), fault: None };
        fs::write(place.path("t.tns"), ROWS).unwrap();
        fs::write(place.path("u.tns"), OTHER).unwrap();
        place.succeeds("blco-pack t.tns");
        place
    }

    /// Runs the same if names can be exchanged and if they cannot.
    fn on_both_file_systems() -> [Self; 2] {
        [None, Some(NO_EXCHANGE)].map(|fault| Self { fault, ..Self::new() })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, line: &str) -> Command {
        let mut words = line.split(' ');
        let mut command = Command::new(cargo_bin(words.next().unwrap()));
        command.current_dir(self.dir.path()).args(words).env_remove("BLCO_FAULT");
        if let Some(fault) = self.fault {
            command.env("BLCO_FAULT", fault);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    fn succeeds(&self, line: &str) -> String {
        let output = self.run(line);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{line}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Status 2 and one line that holds `wanted`.
    fn refuses(&self, line: &str, wanted: &str) {
        let before = tree(self.dir.path());
        refused(&self.run(line), line, wanted);
        assert!(tree(self.dir.path()) == before, "{line} changed something");
    }

    /// A directory with a user's files.
    fn thesis(&self, name: &str) {
        fs::create_dir_all(self.path(name)).unwrap();
        fs::write(self.path(name).join("thesis"), "years").unwrap();
    }

    fn holds_thesis(&self, name: &str) {
        assert_eq!(fs::read(self.path(name).join("thesis")).unwrap(), b"years", "{name}");
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .dir
            .path()
            .read_dir()
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn fifo(&self, name: &str) {
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, self.path(name), fifo, mode, 0).unwrap();
    }
}

fn refused(output: &Output, line: &str, wanted: &str) {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{line}: {said}");
    assert!(said.contains(wanted), "{line}: {wanted:?} is not in {said}");
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_mins(1), "{what} does not come");
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn signal(child: &Child, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).unwrap();
}

/// Writes rows for the packer that reads `fifo`, until it is stopped or the packer stops.
struct Feeding {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<()>,
}

impl Feeding {
    fn start(fifo: PathBuf) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut input = fs::OpenOptions::new().write(true).open(fifo).unwrap();
            let rows = ROWS.repeat(1000);
            while !stopped.load(Ordering::Relaxed) && input.write_all(rows.as_bytes()).is_ok() {}
        });
        Self { stop, thread }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

/// Stops a program while it writes `path`, calls `meanwhile`, and lets it continue. Returns how it ends.
fn interfere(place: &Place, line: &str, partial: &str, meanwhile: impl FnOnce()) -> Output {
    let child = place.command(line).spawn().unwrap();
    until(partial, || place.path(partial).exists());
    signal(&child, rustix::process::Signal::STOP);
    assert!(place.path(partial).exists(), "{line}: too fast for the test");
    meanwhile();
    signal(&child, rustix::process::Signal::CONT);
    child.wait_with_output().unwrap()
}

const SLOW_GEN: &str = "blco-gen --dims 5000,5000 --nnz 1M -q";

#[test]
fn a_checkpoint_directory_keeps_what_is_not_a_checkpoint() {
    for place in Place::on_both_file_systems() {
        let cpd =
            "blco-cpd t.blco --rank 2 --max-iters 1 --tol 0 --every 1 --checkpoint W --output o --force -q";
        for name in ["next", "old", "current"] {
            place.thesis(&format!("W/{name}"));
            place.refuses(cpd, "\"thesis\"");
            place.refuses(&format!("{cpd} --resume"), "\"thesis\"");
            place.holds_thesis(&format!("W/{name}"));
            fs::remove_dir_all(place.path("W")).unwrap();
        }
        place.succeeds(cpd);
        // A user's file in a checkpoint stays too, and so does a directory of files with the right names.
        place.thesis("W/current");
        place.refuses(&format!("{cpd} --resume"), "\"thesis\"");
        fs::remove_file(place.path("W/current/thesis")).unwrap();
        fs::create_dir(place.path("W/next")).unwrap();
        fs::copy(place.path("W/current/mode-1.npy"), place.path("W/next/mode-1.npy")).unwrap();
        place.refuses(&format!("{cpd} --resume"), "has no mark of a checkpoint");
        // Files of a program that was killed at its beginning are removed.
        for left in [&[][..], b"{\"made"] {
            drop(fs::remove_dir_all(place.path("W/next")));
            fs::create_dir(place.path("W/next")).unwrap();
            fs::write(place.path("W/next/.made-by-blco"), left).unwrap();
            place.succeeds(&format!("{} --resume", cpd.replace("--max-iters 1", "--max-iters 3")));
            assert!(!place.path("W/next").exists());
        }
    }
}

#[test]
fn a_checkpoint_without_a_marker_is_continued() {
    for place in Place::on_both_file_systems() {
        let cpd = "blco-cpd t.blco --rank 2 --tol 0 --every 1 --checkpoint c --force -q";
        place.succeeds(&format!("{cpd} --max-iters 5 --output whole"));
        fs::remove_dir_all(place.path("c")).unwrap();
        place.succeeds(&format!("{cpd} --max-iters 2 --no-output"));
        fs::remove_file(place.path("c/current/.made-by-blco")).unwrap();
        // Killed between two renames.
        fs::rename(place.path("c/current"), place.path("c/old")).unwrap();
        place.succeeds(&format!("{cpd} --max-iters 5 --resume --output resumed"));
        for name in ["mode-1.npy", "mode-2.npy", "mode-3.npy", "lambda.npy"] {
            let read = |dir: &str| fs::read(place.path(dir).join(name)).unwrap();
            assert!(read("whole") == read("resumed"), "{name}");
        }
        assert!(place.path("c/current/.made-by-blco").exists() && !place.path("c/old").exists());
    }
}

/// A directory, and a store, that replace an existing one or appear where there was none.
#[test]
fn what_came_meanwhile_is_not_replaced() {
    for place in Place::on_both_file_systems() {
        place.succeeds("blco-pack u.tns -o u.blco");
        place.fifo("in");
        let wanted = identity(&place.path("u.blco"));
        for (there, comes) in [(true, "thesis"), (true, "store"), (false, "thesis"), (false, "store")] {
            if there {
                place.succeeds("blco-pack t.tns -o s");
            }
            let line = if there { "blco-pack in -o s --force" } else { "blco-pack in -o s" };
            let child = place.command(line).spawn().unwrap();
            let feeding = Feeding::start(place.path("in"));
            until("the packer", || place.path("s.partial/store").exists());
            if there {
                fs::rename(place.path("s"), place.path("away")).unwrap();
            }
            match comes {
                "store" => fs::rename(place.path("u.blco"), place.path("s")).unwrap(),
                _ => place.thesis("s"),
            }
            feeding.end();
            refused(&child.wait_with_output().unwrap(), line, "s: has changed since the work began");
            match comes {
                "store" => assert!(identity(&place.path("s")) == wanted),
                _ => place.holds_thesis("s"),
            }
            assert!(!place.path("s.partial").exists(), "{:?}", place.names());
            match comes {
                "store" => fs::rename(place.path("s"), place.path("u.blco")).unwrap(),
                _ => fs::remove_dir_all(place.path("s")).unwrap(),
            }
            drop(fs::remove_dir_all(place.path("away")));
        }
    }
}

#[test]
fn a_store_with_somebodys_files_is_not_replaced() {
    let place = Place::new();
    fs::write(place.path("t.blco/notes"), "mine").unwrap();
    place.refuses("blco-pack t.tns --force", "t.blco: holds \"notes\", which is no part of a store");
    place.succeeds("blco-info t.blco --verify");
}

#[test]
fn a_file_that_came_meanwhile_is_not_replaced() {
    for place in Place::on_both_file_systems() {
        let read = || fs::read_to_string(place.path("g.tns")).unwrap();
        let line = format!("{SLOW_GEN} g.tns");
        let output = interfere(&place, &line, "g.tns.partial/file", || {
            fs::write(place.path("g.tns"), "mine").unwrap();
        });
        refused(&output, &line, "g.tns: has changed since the work began");
        assert_eq!(read(), "mine");
        let line = format!("{SLOW_GEN} g.tns --force");
        let output = interfere(&place, &line, "g.tns.partial/file", || {
            fs::rename(place.path("g.tns"), place.path("away")).unwrap();
            fs::write(place.path("g.tns"), "new").unwrap();
        });
        refused(&output, &line, "g.tns: has changed since the work began");
        assert_eq!(read(), "new");
        place.refuses("blco-export t.blco g.tns", "g.tns: already exists; replace it with --force");
        place.succeeds("blco-export t.blco g.tns --force");
        assert_eq!(read().lines().count(), 4);
        assert_eq!(place.names(), ["away", "g.tns", "t.blco", "t.tns", "u.tns"]);
    }
}

#[test]
fn names_that_cannot_be_exchanged_are_replaced() {
    for place in Place::on_both_file_systems() {
        place.succeeds("blco-pack u.tns -o u.blco");
        place.succeeds("blco-pack u.tns -o t.blco --force");
        assert!(identity(&place.path("t.blco")) == identity(&place.path("u.blco")));
        for _ in 0..2 {
            place.succeeds("blco-run u.blco --output r --force");
            place.succeeds("blco-cpd u.blco --rank 1 --output m --report m.html --force");
            place.succeeds("blco-gen --dims 4,4 --planted-rank 1 --support 2 --model g x.tns --force");
        }
        assert_eq!(place.names(), ["g", "m", "m.html", "r", "t.blco", "t.tns", "u.blco", "u.tns", "x.tns"]);
    }
}

/// A program was killed between two renames: readers find the old one, and the next writer restores its name.
#[test]
fn a_kill_between_two_renames_is_repaired() {
    let place = Place::new();
    place.succeeds("blco-run t.blco --output r");
    place.succeeds("blco-export t.blco x.tns");
    let moved = |name: &str, kind: &str| {
        // A program that is killed while it writes leaves its directory.
        let partial = format!("{name}.partial");
        let slow = match kind {
            "store" => "blco-pack in -o t.blco --force".to_owned(),
            "result" => "blco-run t.blco --output r --force --repeat 4000000000".into(),
            _ => format!("{SLOW_GEN} x.tns --force"),
        };
        let mut child = place.command(&slow).spawn().unwrap();
        let feeding = (kind == "store").then(|| Feeding::start(place.path("in")));
        until(&partial, || place.path(&partial).join(kind).exists());
        child.kill().unwrap();
        child.wait().unwrap();
        feeding.into_iter().for_each(Feeding::end);
        fs::rename(place.path(name), place.path(&partial).join("old")).unwrap();
    };
    place.fifo("in");
    let store = tree(&place.path("t.blco"));
    moved("t.blco", "store");
    place.succeeds("blco-info t.blco --verify");
    place.succeeds("blco-run t.blco --check t.tns");
    assert_eq!(place.succeeds("blco-export t.blco -").lines().count(), 4);
    assert_eq!(place.run("blco-pack t.tns").status.code(), Some(2));
    assert!(tree(&place.path("t.blco")) == store);
    let result = tree(&place.path("r"));
    moved("r", "result");
    assert_eq!(place.run("blco-run t.blco --output r").status.code(), Some(2));
    assert!(tree(&place.path("r")) == result);
    let text = fs::read(place.path("x.tns")).unwrap();
    moved("x.tns", "file");
    assert_eq!(place.run("blco-export t.blco x.tns").status.code(), Some(2));
    assert!(fs::read(place.path("x.tns")).unwrap() == text);
    for line in
        ["blco-pack t.tns --force", "blco-run t.blco --output r --force", "blco-export t.blco x.tns --force"]
    {
        place.succeeds(line);
    }
    assert_eq!(place.names(), ["in", "r", "t.blco", "t.tns", "u.tns", "x.tns"]);
}

#[test]
fn what_replaces_has_the_permissions_of_what_it_replaces() {
    for place in Place::on_both_file_systems() {
        place.succeeds("blco-run t.blco --output r");
        place.succeeds("blco-export t.blco x.tns");
        let set = |name: &str, mode: u32| {
            fs::set_permissions(place.path(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        let all = [
            ("t.blco", 0o2750),
            ("t.blco/manifest", 0o640),
            ("r", 0o700),
            ("r/.made-by-blco", 0o600),
            ("x.tns", 0o604),
        ];
        for (name, mode) in all {
            set(name, mode);
        }
        let inode = |name: &str| place.path(name).metadata().unwrap().ino();
        let before = inode("t.blco");
        place.succeeds("blco-pack u.tns -o t.blco --force");
        place.succeeds("blco-run t.blco --output r --force");
        place.succeeds("blco-export t.blco x.tns --force");
        assert_ne!(inode("t.blco"), before);
        let more =
            [("t.blco/chunk-000000.bin", 0o640), ("t.blco/provenance.json", 0o640), ("r/mode-2.npy", 0o600)];
        for (name, mode) in all.into_iter().chain(more) {
            assert_eq!(place.path(name).metadata().unwrap().mode() & 0o7777, mode, "{name}");
        }
    }
}

/// Foreign entries where programs write: a FIFO, which blocks a program that opens it, and directories.
#[test]
fn what_is_in_the_way_of_temporary_names_stays() {
    let place = Place::new();
    for (line, partial) in [
        ("blco-export t.blco x.tns", "x.tns.partial"),
        ("blco-pack u.tns -o s", "s.partial"),
        ("blco-run t.blco --output r", "r.partial"),
    ] {
        place.fifo(partial);
        refused(&place.run(line), line, "is in the way");
        fs::remove_file(place.path(partial)).unwrap();
        for inside in ["", "/store", "/old", "/result", "/file"] {
            place.thesis(&format!("{partial}{inside}"));
            place.refuses(line, "is in the way");
            fs::remove_dir_all(place.path(partial)).unwrap();
        }
    }
    place.fifo(".x.tns.partial-1-0");
    place.succeeds("blco-export t.blco x.tns");
}

#[test]
fn results_are_replaced_as_one_and_only_with_force() {
    for place in Place::on_both_file_systems() {
        fs::write(place.path("v.tns"), "1 1 1 1 1\n2 2 2 2 2\n").unwrap();
        place.succeeds("blco-pack v.tns");
        let commands = [
            ("blco-run v.blco --output D", "blco-run t.blco --output D"),
            ("blco-cpd v.blco --rank 2 --output D", "blco-cpd t.blco --rank 2 --output D"),
            (
                "blco-gen --dims 4,4,4,4 --planted-rank 1 --support 2 --model D v4.blco",
                "blco-gen --dims 4,4,4 --planted-rank 1 --support 2 --model D v3.blco",
            ),
        ];
        for (four_modes, three_modes) in commands {
            // A user's directory.
            place.thesis("D");
            place.refuses(three_modes, "D: holds \"thesis\", which is no result");
            place.refuses(&format!("{three_modes} --force"), "D: holds \"thesis\", which is no result");
            fs::remove_file(place.path("D/thesis")).unwrap();
            // An empty one counts as absent.
            place.succeeds(four_modes);
            assert!(place.path("D/mode-4.npy").exists());
            place.refuses(three_modes, "D: results already exist; replace them with --force");
            place.succeeds(&format!("{three_modes} --force"));
            let left: Vec<_> = tree(&place.path("D")).into_keys().collect();
            assert!(!left.contains(&"mode-4.npy".into()), "{left:?}");
            // Results with a user's file among them.
            place.thesis("D");
            place.refuses(&format!("{three_modes} --force"), "D: holds \"thesis\"");
            fs::remove_dir_all(place.path("D")).unwrap();
        }
    }
}

#[test]
fn results_may_go_where_factors_came_from() {
    for place in Place::on_both_file_systems() {
        place.succeeds("blco-cpd t.blco --rank 2 --max-iters 1 --output A");
        place.succeeds("blco-run t.blco --factors A --output wanted");
        place.refuses("blco-run t.blco --factors A --output A", "replace them with --force");
        let cpd = "blco-cpd t.blco --factors A --tol 0 --max-iters 3 --force";
        place.succeeds(&format!("{cpd} --output B"));
        place.succeeds("blco-run t.blco --factors A --output A2 --force");
        place.succeeds(&format!("{cpd} --output A"));
        let read = |name: &str| fs::read(place.path(name)).unwrap();
        assert!(
            read("A/mode-1.npy") == read("B/mode-1.npy")
                && read("A2/mode-3.npy") == read("wanted/mode-3.npy")
        );
        place.succeeds("blco-run t.blco --factors A --output A --force");
        assert!(!place.path("A/lambda.npy").exists());
    }
}

/// Another file, in the directory of the results or elsewhere.
#[test]
fn a_page_or_a_timeline_may_be_among_the_results() {
    for place in Place::on_both_file_systems() {
        for _ in 0..2 {
            place.succeeds("blco-cpd t.blco --rank 2 --output D --report D/model.html --force");
            assert!(place.path("D/model.html").is_file() && place.path("D/report.json").is_file());
            place.succeeds("blco-run t.blco --output D --trace ./D/trace.json --force");
            assert!(place.path("D/trace.json").is_file() && !place.path("D/model.html").exists());
        }
        place.refuses("blco-run t.blco --output D --trace D/mode-1.npy --force", "is the name of a result");
        fs::write(place.path("p.html"), "mine").unwrap();
        place.refuses(
            "blco-cpd t.blco --rank 2 --report p.html",
            "p.html: already exists; replace it with --force",
        );
        let mut here = place.command("blco-run ../t.blco --output . --force");
        assert!(here.current_dir(place.path("D")).status().unwrap().success());
        assert!(!place.path("D/trace.json").exists() && place.path("D/mode-3.npy").exists());
    }
}

#[test]
fn a_result_has_one_writer_at_a_time() {
    let place = Place::new();
    let slow = "blco-run t.blco --output r --repeat 4000000000";
    let output = interfere(&place, slow, "r.partial/result/mode-1.npy", || {
        for line in ["blco-run t.blco --output r", "blco-cpd t.blco --rank 1 --output r --force"] {
            refused(&place.run(line), line, "r: another program writes this result now");
        }
        place.run("blco-info t.blco");
        fs::write(place.path("stop"), "").unwrap();
        // It continues and ends.
        let pid = fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
            let command = fs::read(entry.path().join("cmdline")).ok()?;
            let here = entry.path().join("cwd").read_link().ok()? == place.dir.path().canonicalize().unwrap();
            (here && command.windows(10).any(|w| w == b"4000000000")).then(|| entry.file_name())
        });
        let pid = pid.unwrap().into_string().unwrap();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    });
    assert_eq!(output.status.code(), Some(130));
    assert!(!place.path("r").exists() && !place.path("r.partial").exists());
}

/// Readers see one of two whole stores, while these replace each other over and over.
#[test]
fn readers_never_miss_a_store_that_is_replaced() {
    for place in Place::on_both_file_systems() {
        // Of several chunks, so that there is time between them.
        for (seed, text) in [("1", "a.tns"), ("2", "b.tns")] {
            place.succeeds(&format!(
                "blco-gen --dims 300,300,300 --nnz 40k --values 1..9 --seed {seed} {text}"
            ));
        }
        let pack =
            |text: &str| place.succeeds(&format!("blco-pack {text} -o s --chunk-bytes 64KiB --force -q"));
        pack("a.tns");
        let (done, reads) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for line in ["blco-info s --verify", "blco-export s -", "blco-run s --rank 2"] {
                let (place, done, reads) = (&place, &done, &reads);
                scope.spawn(move || {
                    while !done.load(Ordering::Relaxed) {
                        let output = place.run(line);
                        let said = String::from_utf8_lossy(&output.stderr).into_owned();
                        if !output.status.success() {
                            done.store(true, Ordering::Relaxed);
                        }
                        assert!(output.status.success(), "{line}: {said}");
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(4) && !done.load(Ordering::Relaxed) {
                for text in ["b.tns", "a.tns"] {
                    pack(text);
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        assert!(reads.load(Ordering::Relaxed) > 10);
        pack("a.tns");
        assert!(!place.path("s.partial").exists(), "the last program removes what was read");
    }
}

/// A store in use stays under another name until its last reader ends.
#[test]
fn a_store_that_is_read_is_left_to_its_reader() {
    for place in Place::on_both_file_systems() {
        let open =
            blco::internals::store::Store::open(&blco::internals::sys::Sys::default(), &place.path("t.blco"))
                .unwrap();
        place.succeeds("blco-pack u.tns -o t.blco --force");
        assert_eq!(crate::common::exported(&open).unwrap().nnz(), 4);
        let left: Vec<_> =
            place.path("t.blco.partial").read_dir().unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "the marker and the old store: {left:?}");
        place.succeeds("blco-pack t.tns -o t.blco --force");
        assert_eq!(crate::common::exported(&open).unwrap().nnz(), 4);
        drop(open);
        place.succeeds("blco-pack t.tns -o t.blco --force");
        assert!(!place.path("t.blco.partial").exists());
    }
}

/// Nothing can replace a mount point. This is reported before the work.
#[test]
fn a_mount_point_is_refused() {
    let place = Place::new();
    let device = |dir: &Path| dir.metadata().map_or(0, |found| found.dev());
    let is_mounted = |dir: &&&str| {
        let dir = Path::new(dir);
        let empty = dir.read_dir().is_ok_and(|mut entries| entries.next().is_none());
        empty && device(dir) != device(dir.parent().unwrap())
    };
    let Some(dir) = ["/dev/shm", "/dev/mqueue", "/mnt", "/sys/fs/pstore"].iter().find(is_mounted) else {
        return println!("skipped: no empty file system is mounted here");
    };
    let line = format!("blco-run t.blco --output {dir}");
    refused(&place.run(&line), &line, "is where a file system is mounted");
}
