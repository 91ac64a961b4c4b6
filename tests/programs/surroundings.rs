//! Establishes how programs deal with their surroundings: directories and links that others put where temporary files go,
//! remains of killed programs, false journals, signals that a shell makes them ignore, limits on file sizes, inputs
//! that change during reading.

use crate::common::{identity, tree};
use assert_cmd::cargo::cargo_bin;
use blco::internals::dense::Matrix;
use blco::internals::sys::Sys;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const ROWS: &str = "1 2 3 4.5\n3 1 1 -1\n2 3 4 0\n2 2 2 7\n";

/// With this number of repetitions, they exceed what a reader waits for before it delivers data.
const PIECES: usize = 80_000;

/// Runs `script` by a shell in which `$pack`, `$run`, `$info` and `$gen` are programs.
fn shell(dir: &Path, script: &str) -> Command {
    let mut command = Command::new("sh");
    command.current_dir(dir).args(["-c", script]).env("BLCO_MEMORY_MIN", "0").env_remove("BLCO_FAULT");
    for name in ["pack", "run", "info", "gen"] {
        command.env(name, cargo_bin(format!("blco-{name}")));
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn succeeds(dir: &Path, script: &str) -> Output {
    let output = shell(dir, script).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Fails with status 2 and one line that holds all of `wanted`.
fn refuses(dir: &Path, script: &str, wanted: &[&str]) {
    let output = shell(dir, script).output().unwrap();
    refused(&output, script, wanted);
}

fn refused(output: &Output, script: &str, wanted: &[&str]) {
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{script}: {message}");
    assert_eq!(message.lines().count(), 1, "{script}: {message}");
    for part in wanted {
        assert!(message.contains(part), "{script}: {part:?} is not in: {message}");
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_mins(2), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The one directory for temporary files in `dir`.
fn spill_dir(dir: &Path) -> Option<PathBuf> {
    let names = std::fs::read_dir(dir).ok()?.flatten().map(|entry| entry.path());
    names.into_iter().find(|path| path.file_name().unwrap().to_string_lossy().starts_with("blco-spill-"))
}

/// Whether a temporary file with a name that begins with `kind` is in the one directory in `dir`.
fn has_spilled(dir: &Path, kind: &str) -> bool {
    let files = spill_dir(dir).and_then(|dir| dir.read_dir().ok());
    files.is_some_and(|files| files.flatten().any(|f| f.file_name().to_string_lossy().starts_with(kind)))
}

/// A store whose TTV along mode 1 needs more than the 32 MiB that [`TTV`] leaves it.
fn store_that_spills(dir: &Path) {
    succeeds(dir, "$gen --dims 3000,2000,7000 --nnz 1200000 --values 1..5 t.tns && $pack t.tns -o t.blco");
}

const TTV: &str = "exec $run t.blco --op ttv --modes 1 --memory 64MiB --backend cpu --temp-dir temp";

/// An overflow is reported as such, and not as damage to the file that holds it.
#[test]
fn products_beyond_all_numbers_are_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    store_that_spills(dir);
    std::fs::create_dir(dir.join("temp")).unwrap();
    let vector = Sys::default().create(&dir.join("vector.npy")).unwrap();
    Matrix::from_rows(3000, 1, vec![1e308; 3000]).write_vector(&vector).unwrap();
    refuses(dir, &format!("{TTV} --vector vector.npy"), &["the result at (", "exceeds all numbers"]);
    assert_eq!(names(&dir.join("temp")).len(), 0);
}

/// A killed pack of `t.tns` into `s` whose temporary files are in `temp`.
fn killed_pack(dir: &Path) {
    succeeds(dir, "$gen --dims 30000,2000,7000 --nnz 160000 --skew 2 --values 1..5 --force t.tns");
    std::fs::create_dir(dir.join("temp")).unwrap();
    let child = shell(dir, "exec $pack t.tns -o s --memory 0 --temp-dir temp").spawn().unwrap();
    let journal = dir.join("s.partial/journal");
    wait_until("staged files", || std::fs::read_to_string(&journal).is_ok_and(|t| t.contains("staged-2")));
    kill(child);
}

/// Other users can take predictable names. An entry that exists when a program starts is not the program's.
#[test]
fn temporary_files_go_to_new_private_directories() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    store_that_spills(dir);
    for name in ["temp", "victim"] {
        std::fs::create_dir(dir.join(name)).unwrap();
    }
    std::fs::write(dir.join("victim/run-0"), "mine").unwrap();
    let ttv = succeeds(dir, &format!("ln -s ../victim temp/blco-spill-ttv-$$; {TTV} --json"));
    let report: serde_json::Value = serde_json::from_slice(&ttv.stdout).unwrap();
    assert!(report["spilled"]["runs"].as_u64().unwrap() > 0, "{report}");
    succeeds(dir, "mkdir temp/blco-spill-storage-$$; exec $info t.blco --storage --storage-dir temp");
    assert_eq!(names(&dir.join("temp")).len(), 2, "what others put there stays");
    assert_eq!(std::fs::read_to_string(dir.join("victim/run-0")).unwrap(), "mine");
    assert_eq!(names(&dir.join("victim")), ["run-0"]);
}

#[test]
fn what_killed_programs_left_goes_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    store_that_spills(dir);
    let temp = dir.join("temp");
    std::fs::create_dir(&temp).unwrap();
    let spilled = || {
        let child = shell(dir, TTV).spawn().unwrap();
        wait_until("a run on disk", || has_spilled(&temp, "run-"));
        child
    };
    let child = spilled();
    let left = spill_dir(&temp).unwrap();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&left), mode(&left.join("owner"))), (0o700, 0o600));
    kill(child);
    assert!(left.exists());

    // The directory of a running program, and directories that only look like one: unmarked, marked by a link, open to others.
    let live = temp.join("blco-spill-11111111111111111111111111111111");
    let digits = |digit: &str| temp.join(format!("blco-spill-{}", digit.repeat(32)));
    let [unmarked, linked, open, link] = ["2", "3", "4", "5"].map(digits);
    let owner = std::fs::read(left.join("owner")).unwrap();
    for path in [&live, &unmarked, &linked, &open] {
        std::fs::create_dir(path).unwrap();
        std::fs::write(path.join("thesis"), "mine").unwrap();
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o700)).unwrap();
    }
    for path in [&live, &open] {
        std::fs::write(path.join("owner"), &owner).unwrap();
        std::fs::set_permissions(path.join("owner"), PermissionsExt::from_mode(0o600)).unwrap();
    }
    std::fs::set_permissions(&open, PermissionsExt::from_mode(0o770)).unwrap();
    symlink(left.join("owner"), linked.join("owner")).unwrap();
    symlink(&live, &link).unwrap();
    let lock = std::fs::File::open(&live).unwrap();
    lock.try_lock().unwrap();
    succeeds(dir, "exec $info t.blco --storage --storage-dir temp");
    assert!(!left.exists(), "what the killed program left");
    let all = [&live, &unmarked, &linked, &open, &link];
    assert!(all.iter().all(|path| path.symlink_metadata().is_ok()), "{:?}", names(&temp));
    drop(lock);
    succeeds(dir, "exec $info t.blco --storage --storage-dir temp");
    assert!(!live.exists(), "nobody's once its lock is free");
    assert!([&unmarked, &linked, &open].iter().all(|path| path.join("thesis").is_file()));
}

#[test]
fn temporary_files_stay_while_a_pack_can_be_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    killed_pack(dir);
    let temp = dir.join("temp");
    std::fs::write(dir.join("other.tns"), ROWS).unwrap();
    succeeds(dir, "$pack other.tns -o other.blco --temp-dir temp");
    assert!(has_spilled(&temp, "staged-"), "another pack leaves them");
    let resumed = succeeds(dir, "$pack t.tns -o s --memory 0 --temp-dir temp --resume --json");
    let report: serde_json::Value = serde_json::from_slice(&resumed.stdout).unwrap();
    assert!(report["spilled"]["resumed_nnz"].as_u64().unwrap() > 0, "{report}");
    assert!(names(&temp).is_empty());

    for path in ["s", "temp"] {
        std::fs::remove_dir_all(dir.join(path)).unwrap();
    }
    killed_pack(dir);
    std::fs::remove_dir_all(dir.join("s.partial")).unwrap();
    succeeds(dir, "$pack other.tns -o other.blco --temp-dir temp --force");
    assert!(names(&temp).is_empty(), "nobody can resume it");
}

/// A journal of this version and of the last that name another directory, their own one or a marked one of another pack.
#[test]
fn a_journal_that_lies_has_nothing_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    killed_pack(dir);
    let journal = dir.join("s.partial/journal");
    let own = spill_dir(&dir.join("temp")).unwrap();
    let text = std::fs::read_to_string(&journal).unwrap();
    let partial = dir.join("t.partial");
    std::fs::rename(dir.join("s.partial"), &partial).unwrap();
    let victim = dir.join("blco-spill-thesis");
    let marked = dir.join("temp/blco-spill-00000000000000000000000000000000");
    std::fs::create_dir(&victim).unwrap();
    std::fs::write(victim.join("staged-0"), "mine").unwrap();
    succeeds(dir, &format!("cp -a {} {}", own.display(), marked.display()));
    std::fs::write(marked.join("owner"), format!("blco temporary files {:032x}\n/", 7)).unwrap();
    let old = |spill_dir: &Path| {
        format!(
            "{{\"version\":3,\"input\":\"t.tns\",\"identity\":null,\"options\":\"\",\"spill_dir\":{spill_dir:?}}}\n"
        )
    };
    let named = |spill_dir: &Path| text.replace(&own.display().to_string(), &spill_dir.display().to_string());
    let deep = format!("{}/../blco-spill-thesis", own.display());
    let lies = [
        old(&victim),
        named(&victim),
        named(&marked),
        named(Path::new(&deep)),
        named(Path::new("/")),
        old(&marked),
    ];
    let before = [&victim, &marked].map(|path| tree(path));
    for lie in lies {
        for options in ["", "--resume", "--force"] {
            std::fs::create_dir(dir.join("s.partial")).unwrap();
            std::fs::write(&journal, &lie).unwrap();
            let script = format!("exec $pack t.tns -o s {options}");
            let packed = shell(dir, &script).output().unwrap();
            if packed.status.success() {
                std::fs::remove_dir_all(dir.join("s")).unwrap();
            } else {
                refused(&packed, &script, &[]);
                std::fs::remove_dir_all(dir.join("s.partial")).unwrap();
            }
            assert!([&victim, &marked].map(|path| tree(path)) == before, "{script}: {lie}");
        }
    }
}

#[test]
fn a_journal_that_others_can_write_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    killed_pack(dir);
    let journal = dir.join("s.partial/journal");
    let text = std::fs::read(&journal).unwrap();
    let pack = "exec $pack t.tns -o s --memory 0 --temp-dir temp";
    std::fs::set_permissions(&journal, PermissionsExt::from_mode(0o666)).unwrap();
    refuses(dir, &format!("{pack} --resume"), &["other users can write to it; --force starts again"]);
    std::fs::remove_file(&journal).unwrap();
    std::fs::write(dir.join("journal"), &text).unwrap();
    symlink("../journal", &journal).unwrap();
    refuses(dir, pack, &["journal: not a regular file; --force starts again"]);
    std::fs::remove_file(&journal).unwrap();
    succeeds(dir, "mkfifo s.partial/journal");
    refuses(dir, &format!("{pack} --resume"), &["journal: not a regular file; --force starts again"]);
    succeeds(dir, &format!("{pack} --force"));
    assert_eq!(std::fs::read(dir.join("journal")).unwrap(), text);
}

/// Sends `name` to a pack that `script` starts, once it reads from its pipe. Returns its status, and whether it continued.
fn signalled(script: &str, name: &str) -> (Option<i32>, bool) {
    let dir = tempfile::tempdir().unwrap();
    let mut child = shell(dir.path(), script).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(ROWS.repeat(PIECES).as_bytes()).unwrap();
    wait_until("the packer to read", || dir.path().join("s.partial/store").exists());
    let killed = Command::new("kill").args([format!("-{name}"), child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    std::thread::sleep(Duration::from_millis(200));
    // A program that was asked to stop reads no more.
    drop(input.write_all(ROWS.as_bytes()));
    drop(input);
    let status = child.wait().unwrap();
    let written = dir.path().join("s").exists();
    assert_eq!(names(dir.path()), if written { vec!["s"] } else { vec![] }, "{script}");
    (status.code(), written)
}

#[test]
fn signals_that_were_ignored_stay_ignored() {
    for (name, number) in [("HUP", 1), ("INT", 2), ("TERM", 15)] {
        if crate::programs::is_ignored(number) {
            println!("skipped: SIG{name} is ignored here");
            continue;
        }
        assert_eq!(signalled("exec $pack - -o s", name), (Some(130), false), "{name}");
        let script = format!("trap '' {name}; exec $pack - -o s");
        assert_eq!(signalled(&script, name), (Some(0), true), "{name}");
    }
    assert_eq!(signalled("exec nohup $pack - -o s", "HUP"), (Some(0), true));
    assert_eq!(signalled("exec nohup $pack - -o s", "TERM"), (Some(130), false));
    assert_eq!(signalled("trap '' HUP; exec $pack - -o s", crate::programs::interrupt()), (Some(130), false));
}

/// A shell without job control makes background commands ignore SIGINT.
#[test]
fn a_background_job_outlives_an_interrupt() {
    let dir = tempfile::tempdir().unwrap();
    succeeds(dir.path(), "mkfifo fifo");
    let script = "$pack fifo -o s & echo $!; wait $!";
    let mut child = shell(dir.path(), script).spawn().unwrap();
    let mut input = std::fs::File::options().write(true).open(dir.path().join("fifo")).unwrap();
    input.write_all(ROWS.repeat(PIECES).as_bytes()).unwrap();
    wait_until("the packer to read", || dir.path().join("s.partial/store").exists());
    // The signal would end the shell, so only the job gets it, by its number in the shell's first line.
    let mut number = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut number).unwrap();
    assert!(Command::new("kill").args(["-INT", number.trim()]).status().unwrap().success());
    std::thread::sleep(Duration::from_millis(200));
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(dir.path().join("s").exists());
}

#[test]
fn a_limit_on_file_sizes_is_an_ordinary_error() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    succeeds(dir, "$gen --dims 30000,2000,7000 --nnz 60000 --values 1..5 t.tns && $pack t.tns -o t.blco");
    let before = tree(dir);
    for script in [
        "$pack t.tns -o s",
        "$pack t.tns -o s --memory 0",
        "$gen --dims 300,200,700 --nnz 60000 u.tns",
        "$run t.blco --output out --backend cpu",
    ] {
        let script = format!("ulimit -f 16; exec {script}");
        refuses(dir, &script, &["file too large", "raise the limit (ulimit -f), or write elsewhere"]);
        assert!(tree(dir) == before, "{script}: {:?}", names(dir));
    }
}

#[test]
fn an_input_that_changes_while_it_is_packed_leaves_no_store() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let input = dir.join("t.tns");
    let open = || std::fs::File::options().write(true).open(&input).unwrap();
    let append =
        || std::fs::File::options().append(true).open(&input).unwrap().write_all(b"1 1 1 1\n").unwrap();
    let replace = || std::fs::rename(dir.join("other.tns"), &input).unwrap();
    let changes: [(&dyn Fn(), &str); 4] = [
        (&append, "was appended to (it had"),
        (&|| open().set_len(1000).unwrap(), "was cut short (it had"),
        (&|| open().write_all(b"1").unwrap(), "was written to while"),
        (&replace, "was replaced by another file"),
    ];
    for (change, said) in changes {
        // On a busy machine, a change may come after everything has been read.
        let refusal = (0..20).find_map(|_| {
            succeeds(dir, "rm -rf s; $gen --dims 300000,2000,70000 --nnz 800000 --force t.tns");
            std::fs::write(dir.join("other.tns"), ROWS).unwrap();
            let child = shell(dir, "exec $pack t.tns -o s").spawn().unwrap();
            let reads = || dir.join("s.partial/store").exists() || dir.join("s").exists();
            wait_until("the packer to read", reads);
            change();
            let output = child.wait_with_output().unwrap();
            (!output.status.success()).then_some(output)
        });
        let refusal = refusal.expect("a change that comes in time");
        refused(&refusal, said, &["t.tns: ", said, "while it was read; start again once nothing writes it"]);
        assert!(!names(dir).iter().any(|name| name.starts_with('s')), "{:?}", names(dir));
    }
    // A pipe has no state that could change.
    std::fs::write(dir.join("small.tns"), ROWS).unwrap();
    succeeds(dir, "cat small.tns | $pack - -o p && $pack small.tns -o q");
    assert!(identity(&dir.join("p")) == identity(&dir.join("q")));
}

#[test]
fn a_value_that_f64_would_take_for_zero_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::write(dir.join("t.tns"), "1 1 5e-324\n2 1 0e-400\n2 2 0.000\n1 2 1e-400\n").unwrap();
    refuses(dir, "$pack t.tns -o s", &["t.tns:4: ", "`1e-400` underflows"]);
    assert_eq!(names(dir), ["t.tns"]);
}

/// A new control group for processors below this process's, if it may create one: version 1 or 2.
struct Group(PathBuf);

impl Group {
    /// With a quota of `processors`; `None` if this process may not create one, or processors cannot be limited there.
    fn of(processors: usize) -> Option<Self> {
        let name = format!("blco-test-{}", std::process::id());
        let quota = 100_000 * processors;
        let files =
            [("cpu/", "cpu.cfs_quota_us", quota.to_string()), ("", "cpu.max", format!("{quota} 100000"))];
        files.into_iter().find_map(|(below, file, text)| {
            let group = Path::new("/sys/fs/cgroup").join(below).join(&name);
            std::fs::create_dir(&group).ok()?;
            let group = Self(group);
            std::fs::OpenOptions::new()
                .write(true)
                .open(group.0.join(file))
                .ok()?
                .write_all(text.as_bytes())
                .ok()?;
            Some(group)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its last process has ended, but the system may not have removed it yet.
        let gone = (0..100).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            std::fs::remove_dir(&self.0).is_ok()
        });
        assert!(gone || std::thread::panicking(), "{} stays", self.0.display());
    }
}

/// By default there is a thread per usable processor: an affinity mask and a control group's quota count.
#[test]
fn masks_and_quotas_decide_how_many_threads_work() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::write(dir.join("t.tns"), ROWS).unwrap();
    let threads = |prefix: &str| {
        let script = format!("{prefix} exec $prefixed $pack t.tns -o s --plan --json");
        let plan = succeeds(dir, &script).stdout;
        serde_json::from_slice::<serde_json::Value>(&plan).unwrap()["threads"].as_u64().unwrap()
    };
    if threads("") == 1 {
        eprintln!("skipped: there is one processor");
        return;
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
    let first: String = list.chars().take_while(char::is_ascii_digit).collect();
    if Command::new("taskset").arg("--version").output().is_ok() {
        assert_eq!(threads(&format!("prefixed='taskset -c {first}';")), 1, "allowed {list}");
    } else {
        eprintln!("skipped: no taskset");
    }
    if let Some(group) = Group::of(1) {
        assert_eq!(threads(&format!("echo $$ >{}/cgroup.procs;", group.0.display())), 1);
    } else {
        eprintln!("skipped: no control group can be made");
    }
}

/// With `--pin-threads` each compute thread may use one processor; otherwise, all that the program may use.
#[test]
fn threads_are_kept_on_processors_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    // The processors that each compute thread of a program may use. The program's output is not read.
    let allowed = |options: &str| {
        let script = format!("exec $gen --dims 9,9 --nnz 100M - --threads 3 {options}");
        let mut child = shell(dir, &script).spawn().unwrap();
        let tasks = PathBuf::from(format!("/proc/{}/task", child.id()));
        let list = || -> Vec<String> {
            let tasks = std::fs::read_dir(&tasks).into_iter().flatten();
            let status =
                tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok());
            let of_compute = status.filter(|status| status.starts_with("Name:\tcompute-"));
            let line = |status: String| {
                status.lines().find_map(|l| Some(l.strip_prefix("Cpus_allowed_list:")?.trim().to_owned()))
            };
            of_compute.filter_map(line).collect()
        };
        let one = |list: &[String]| list.iter().all(|at| at.parse::<usize>().is_ok());
        wait_until("threads", || list().len() == 3 && (options.is_empty() || one(&list())));
        let lists = list();
        child.kill().unwrap();
        child.wait().unwrap();
        lists
    };
    let free = allowed("");
    let pinned = allowed("--pin-threads");
    assert!(free.iter().all(|at| *at == free[0]), "{free:?}");
    let processors = std::thread::available_parallelism().unwrap().get();
    let distinct = pinned.iter().collect::<std::collections::HashSet<_>>().len();
    assert_eq!(distinct, processors.min(3), "{pinned:?} of {free:?}");
}
