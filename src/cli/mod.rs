//! The code that all programs share: exit statuses, signals, sizes, progress, reports. Nothing below the
//! programs but this module prints, or reads environment variables for tests.
//!
//! Exit status 0: success, also after a broken pipe. 1: a check failed. 2: an error, reported in one line on standard
//! error. 130: interrupted.

mod compare;
mod components;
mod conventions;
pub mod cpd;
mod cpd_command;
mod cpd_ranks;
mod cpd_report;
mod device;
mod engine;
pub mod export;
#[cfg(feature = "arrow")]
mod export_parquet;
mod export_table;
mod forecast;
pub mod generate;
pub mod info;
mod machine;
pub mod memory;
mod model_page;
mod npz;
mod outputs;
pub mod pack;
mod processes;
mod progress;
mod repair;
mod report;
pub mod run;
mod signals;
mod table;

use crate::error::{Damage, Error, Result};
use crate::sys::Sys;
use crate::sys::fault::{Fault, Faults};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgMatches, Args, Command, Id, Parser};
use serde::Serialize;
use std::cell::Cell;
use std::io::{ErrorKind, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A program: its arguments and its work.
pub trait Program: Parser {
    /// The options that all programs have.
    fn common(&self) -> &Common;

    /// Refuses command lines that the grammar accepts and the program does not.
    fn check(_: &ArgMatches) -> Result<()> {
        Ok(())
    }

    /// Does the work.
    fn run(&self, sys: &Sys) -> Result<Report>;

    /// Follows the orders of process 0, in another of several processes.
    fn serve(&self, _sys: &Sys) -> Result<()> {
        Err(Error::request(
            "several processes run blco-run with --op mttkrp, and blco-cpd; start this program alone",
        ))
    }
}

/// The options that all programs have.
#[derive(Clone, Copy, Debug, Args)]
pub struct Common {
    /// Compute threads [default: one per processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Pin each compute thread to a processor, for machines with several sockets
    #[arg(long)]
    pin_threads: bool,
    /// Show no progress
    #[arg(short, long)]
    quiet: bool,
    /// Print the report as JSON on standard output
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    conventions: conventions::Conventions,
}

/// The report of a program that succeeded; empty by default.
#[derive(Debug, Default)]
pub struct Report {
    /// For people.
    pub text: String,
    /// For machines.
    pub json: serde_json::Value,
    /// Whether a check failed: exit status 1.
    pub failed: bool,
}

impl Report {
    /// A report without failed checks. The JSON gets the program's name and version in front.
    pub fn new<P: Program>(text: String, json: &impl Serialize) -> Result<Self> {
        let broken = |e: serde_json::Error| Error::request(format!("the report cannot be written: {e}"));
        let mut object = serde_json::Map::new();
        object.insert("program".into(), P::command().get_name().into());
        object.insert("version".into(), env!("CARGO_PKG_VERSION").into());
        if let serde_json::Value::Object(fields) = serde_json::to_value(json).map_err(broken)? {
            object.extend(fields);
        }
        Ok(Self { text, json: object.into(), failed: false })
    }
}

/// The text that `write` writes.
pub(crate) fn text_of(write: impl FnOnce(&mut String) -> std::fmt::Result) -> Result<String> {
    let mut out = String::new();
    write(&mut out).map_err(|e| Error::request(format!("the report cannot be written: {e}")))?;
    Ok(out)
}

/// The whole of a program: parse, run, report.
#[must_use]
pub fn main<P: Program>() -> ExitCode {
    let name = P::command().get_name().to_owned();
    let matches = match conventions::prepare(P::command()).try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return conventions::exit(&P::command(), &error),
    };
    if let Some(status) = conventions::printed(&matches, P::command()) {
        return status;
    }
    let program = match P::from_arg_matches(&matches) {
        Ok(program) => program,
        Err(error) => return conventions::exit(&P::command(), &error),
    };
    let report = P::check(&matches).and_then(|()| system()).and_then(|sys| {
        memory::prepare(&sys, &name);
        let (handle, name) = (sys.clone(), name.clone());
        processes::start(&name)?;
        signals::handle(move || interrupt(&handle, &name))?;
        let report = match processes::number() {
            None | Some(0) => program.run(&sys),
            Some(_) => program.serve(&sys).map(|()| Report::default()),
        };
        if !tells() {
            // An interrupt or a failed allocation ends the program and reports it.
            loop {
                std::thread::park();
            }
        }
        let report = report?;
        if sys.fault_is_due() {
            drop(writeln!(std::io::stderr(), "{}: {NO_SUCH_CALL}", P::command().get_name()));
        }
        Ok(report)
    });
    let report = report.and_then(|report| processes::end().map(|()| report));
    match report {
        Ok(_) if processes::number().is_some_and(|number| number > 0) => ExitCode::SUCCESS,
        Ok(report) => {
            let text = if program.common().json { format!("{:#}\n", report.json) } else { report.text };
            match std::io::stdout().write_all(text.as_bytes()).and_then(|()| std::io::stdout().flush()) {
                Err(e) if e.kind() != ErrorKind::BrokenPipe => fail(&name, &Error::io(STDOUT, "write")(e)),
                _ if report.failed => ExitCode::from(1),
                _ => ExitCode::SUCCESS,
            }
        }
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => fail(&name, &error),
    }
}

/// Whether some thread already reports how the program ends: [`main`] after its work, an interrupt, or a thread that finds no memory.
static ENDED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread reports it.
    static TELLS: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread reports how the program ends. The first call decides for all threads.
fn tells() -> bool {
    let tells = TELLS.try_with(Cell::get) == Ok(true) || !ENDED.swap(true, Ordering::Relaxed);
    let _ = TELLS.try_with(|here| here.set(tells));
    tells
}

/// Asks the work to stop. After a grace period, or at a second signal, removes temporary files and exits, because the work may wait for
/// input that never comes.
fn interrupt(sys: &Sys, name: &str) {
    const GRACE: Duration = Duration::from_secs(2);
    if sys.cancel_flag().swap(true, Ordering::Relaxed) {
        end_now(sys, name);
    }
    let (sys, name) = (sys.clone(), name.to_owned());
    std::thread::spawn(move || {
        std::thread::sleep(GRACE);
        end_now(&sys, &name)
    });
}

/// The checkpoint from which an interrupted program can continue, and the command for it.
static CONTINUE: Mutex<Option<(PathBuf, String)>> = Mutex::new(None);

/// Makes an interrupt print how to continue from the checkpoint `dir`: by the whole command unless it `records` the command.
pub(crate) fn continue_with(dir: &Path, records: bool) {
    let short = || format!("blco-cpd --resume {}", quoted(dir.as_os_str()));
    let resumes = std::env::args_os().any(|word| word.as_bytes().starts_with(b"--resume"));
    let whole = || format!("{}{}", command_line(), if resumes { "" } else { " --resume" });
    let way = (dir.to_path_buf(), if records { short() } else { whole() });
    *CONTINUE.lock().unwrap_or_else(PoisonError::into_inner) = Some(way);
}

/// How to continue from a checkpoint, if there is one.
fn continued_by() -> String {
    let way = CONTINUE.lock().unwrap_or_else(PoisonError::into_inner);
    match &*way {
        Some((dir, command)) if dir.exists() => {
            format!("; {} is a checkpoint, from which this continues: {command}", dir.display())
        }
        _ => String::new(),
    }
}

/// Ends the program while its work is still running.
fn end_now(sys: &Sys, name: &str) -> ! {
    let tells = tells();
    sys.abandon();
    if tells {
        // This line of a terminal may show progress.
        let line = if std::io::stderr().is_terminal() { "\n" } else { "" };
        drop(writeln!(std::io::stderr(), "{line}{name}: {}{}", Error::Cancelled, continued_by()));
    }
    std::process::exit(130)
}

fn fail(name: &str, error: &Error) -> ExitCode {
    let way = if matches!(error, Error::Cancelled) { continued_by() } else { String::new() };
    // A failure to write this cannot be reported.
    let status = if matches!(error, Error::Cancelled) { 130 } else { 2 };
    let number = processes::number();
    if status == 2 || number.is_none_or(|number| number == 0) {
        let process = number.map_or_else(String::new, |number| format!("process {number}: "));
        drop(writeln!(std::io::stderr(), "{} {process}{}{way}", conventions::prefix(name), told(error)));
    }
    processes::fail(status.into());
    ExitCode::from(status)
}

/// Names of options and values in the library, in backticks, and on the command line.
const OPTIONS: &[(&str, &str)] = &[
    ("`Device::Cpu`", "--backend cpu"),
    ("`DeviceOrder::Store`", "--device-order store"),
    ("`Divide::Rows`", "--divide rows"),
    ("`Duplicates::Sum`", "--duplicates sum"),
    ("`assign`", "--assign"),
    ("`checkpoint`", "--checkpoint"),
    ("`chunk_bytes`", "--chunk-bytes"),
    ("`delimiter`", "--delimiter"),
    ("`deterministic`", "--deterministic"),
    ("`device`", "--device"),
    ("`device_memory`", "--device-memory"),
    ("`device_timeout`", "--device-timeout"),
    ("`devices`", "--devices"),
    ("`dims`", "--dims"),
    ("`divide`", "--divide"),
    ("`duplicates`", "--duplicates"),
    ("`f32`", "--precision f32"),
    ("`f64`", "--precision f64"),
    ("`header`", "--header"),
    ("`index_base`", "--index-base"),
    ("`labels_from`", "--labels-from"),
    ("`max_iters`", "--max-iters"),
    ("`memory`", "--memory"),
    ("`modes`", "--modes"),
    ("`nnz`", "--nnz"),
    ("`no_values`", "--no-values"),
    ("`nonneg`", "--nonneg"),
    ("`parts`", "--split"),
    ("`quote`", "--quote"),
    ("`replace`", "--force"),
    ("`resume`", "--resume"),
    ("`ridge`", "--ridge"),
    ("`starts`", "--starts"),
    ("`target`", "-o"),
    ("`temp_dir`", "--temp-dir"),
    ("`threads`", "--threads"),
    ("`timezone`", "--timezone"),
    ("`tol`", "--tol"),
    ("`trees`", "--trees"),
    ("`workers`", "--workers"),
    ("`zstd`", "--zstd"),
];

/// A message of the library, with the command line's names of options.
pub(crate) fn in_options(text: &str) -> String {
    OPTIONS.iter().fold(text.to_owned(), |text, (name, option)| text.replace(name, option))
}

/// An error with the command line's names of options, and how to repair a damaged store.
pub(crate) fn told(error: &Error) -> String {
    let text = in_options(&error.to_string());
    let Error::Corrupt { path, damage: Damage::OfStore, .. } = error else { return text };
    let store = path.parent().unwrap_or(path).display();
    format!("{text}; blco-info {store} --repair NEWSTORE writes what is intact")
}

/// The message of a program that succeeded because the ordered failure never occurred.
const NO_SUCH_CALL: &str = "BLCO_FAULT: there was no such call";

/// The handle to the system; `BLCO_FAULT=read:3:5` makes the fourth read fail with error number 5,
/// `exchange:all:22` every exchange with EINVAL, for tests (CONTRIBUTING.md).
fn system() -> Result<Sys> {
    let Some(order) = std::env::var_os("BLCO_FAULT") else { return Ok(Sys::default()) };
    let order = order.to_string_lossy().into_owned();
    let parse = || {
        let mut parts = order.split(':');
        let call = match parts.next()? {
            "any" => None,
            name => Some(serde_json::from_value(name.into()).ok()?),
        };
        let nth = parts.next()?;
        let fault = match parts.next()? {
            "short" => Fault::Short,
            number => Fault::Errno(number.parse().ok()?),
        };
        Some(Sys::with_faults(Arc::new(match nth {
            "all" => Faults::every(call?, fault),
            nth => Faults::new(call, nth.parse().ok()?, fault),
        })))
    };
    parse().ok_or_else(|| {
        Error::request(format!("BLCO_FAULT={order}: not CALL:N:ERRNO or CALL:N:short, N a number or all"))
    })
}

/// Parses a size in bytes: `64MiB`, `1.5G`, `4096`.
pub(crate) fn size(text: &str) -> std::result::Result<u64, String> {
    parse_size::parse_size(text).map_err(|_| "not a size; sizes look like 64MiB, 2GB or 4096".to_owned())
}

/// Parses a count: `3300000`, `3.3M`, `1G` (powers of 1000).
pub(crate) fn count(text: &str) -> std::result::Result<u64, String> {
    const LIKE: &str = "counts look like 1000, 3.3M or 2G";
    if text.contains('.') && text.ends_with(|c: char| c.is_ascii_digit()) {
        return Err(format!("not a whole number; {LIKE}"));
    }
    parse_size::parse_size(text).map_err(|_| format!("not a count; {LIKE}"))
}

/// Parses a dim of a list.
pub(crate) fn dim(text: &str) -> std::result::Result<u64, String> {
    let commas = "separate dims by commas, such as 183,24,1140";
    count(text).map_err(|error| if text.contains(['x', '*']) { commas.to_owned() } else { error })
}

/// Parses one of `words`, each with what it means.
pub(crate) fn one_of<T: Copy + Send + Sync + 'static, const N: usize>(
    words: [(&'static str, T); N],
) -> impl TypedValueParser<Value = T> {
    let find = move |word: String| {
        words.iter().find(|(name, _)| word.eq_ignore_ascii_case(name)).map(|(_, meant)| *meant)
    };
    PossibleValuesParser::new(words.map(|(name, _)| name))
        .try_map(move |word| find(word).ok_or("no such word"))
}

/// The options of `A`, for options that exclude them all.
pub(crate) fn options_of<A: Args>() -> Vec<Id> {
    A::augment_args(Command::new("")).get_arguments().map(|option| option.get_id().clone()).collect()
}

/// `1 chunk`, `2 chunks`.
pub(crate) fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// What a new store records about its origin: `input`, the arguments, and what was `repaired`.
pub(crate) fn provenance(input: &str, repaired: Option<serde_json::Value>) -> String {
    let arguments: Vec<String> =
        std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned()).collect();
    let mut provenance = serde_json::json!({
        "program": "blco", "version": env!("CARGO_PKG_VERSION"), "input": input,
        "created": humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string(),
        "arguments": arguments,
    });
    if let Some(repaired) = repaired {
        provenance["repaired"] = repaired;
    }
    format!("{provenance:#}\n")
}

/// The command as it was given, for a shell.
pub(crate) fn command_line() -> String {
    let mut words = std::env::args_os();
    let program = words.next().unwrap_or_default();
    let program = Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    std::iter::once(program).chain(words.map(|word| quoted(&word))).collect::<Vec<_>>().join(" ")
}

/// A word of a command, for a shell.
fn quoted(word: &std::ffi::OsStr) -> String {
    let Some(word) = word.to_str() else {
        let escaped = |&b: &u8| std::ascii::escape_default(b).map(char::from);
        return format!("$'{}'", word.as_bytes().iter().flat_map(escaped).collect::<String>());
    };
    let plain = |c: char| c.is_alphanumeric() || "-_./=,:+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// `1 nonzero`, `16,223,573 nonzeros`.
pub(crate) fn nonzeros(n: u64) -> String {
    format!("{} nonzero{}", grouped(n), if n == 1 { "" } else { "s" })
}

/// `16,223,573`.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).unwrap_or_default())
        .collect();
    groups.join(",")
}

/// The rank of the factors or the matrix in `path`, which `--rank` may repeat.
pub(crate) fn agreed_rank(given: Option<u32>, path: &Path, found: usize) -> Result<usize> {
    match given {
        Some(rank) if rank as usize != found => {
            let what = format!("has rank {found}, and --rank says {rank}; leave --rank out");
            Err(Error::request(format!("{}: {what}", path.display())))
        }
        _ => Ok(found),
    }
}

/// The name of standard output in messages.
pub(crate) const STDOUT: &str = "standard output";

/// An error if a report would mix with the tensor that `-` writes to standard output.
pub(crate) fn refuse_json_beside_output(common: Common) -> Result<()> {
    let what = "--json reports on standard output, where - writes the tensor: use one";
    if common.json { Err(Error::request(what)) } else { Ok(()) }
}

/// The requested number of threads, by default one per processor.
pub(crate) fn thread_count(threads: Option<u16>) -> usize {
    threads.map_or_else(machine::processors, usize::from).clamp(1, 1024)
}
