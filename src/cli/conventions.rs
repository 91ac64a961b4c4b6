//! What users expect of every command: a version that says how it was built, completions, a man page, colors that can be turned off,
//! and wrong options reported on one line.

use clap::error::{ContextKind, ErrorKind};
use clap::{ArgAction, ArgMatches, Args, ColorChoice, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::{LazyLock, OnceLock};

static VERSION: LazyLock<String> = LazyLock::new(|| {
    let features = [
        ("arrow", cfg!(feature = "arrow")),
        ("cuda", cfg!(feature = "cuda")),
        ("mpi", cfg!(feature = "mpi")),
    ];
    let built_in = features.iter().filter(|(_, is)| *is).map(|(name, _)| format!(", {name}"));
    let cuda = if cfg!(feature = "cuda") {
        "driver 12.0 or newer, loaded if present; compute capability 7.0 or newer"
    } else {
        "not built in; build with --features cuda"
    };
    let (version, features) = (env!("CARGO_PKG_VERSION"), built_in.collect::<String>());
    let containers = "writes version 2; reads versions 1 and 2";
    format!("{version}\nfeatures:   cli{features}\nCUDA:       {cuda}\ncontainers: {containers}")
});

/// Options that print something and do nothing else.
#[derive(Clone, Copy, Debug, Args)]
pub struct Conventions {
    /// Color help and messages
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = ColorChoice::Auto)]
    color: ColorChoice,
    /// Print completions for this shell
    #[arg(long, value_name = "SHELL", exclusive = true, hide = true)]
    completions: Option<Shell>,
    /// Print the man page
    #[arg(long, exclusive = true, hide = true)]
    man: bool,
}

/// Whether errors are colored.
static COLORED: OnceLock<bool> = OnceLock::new();

/// `command` with its long version, and in color as the command line and the environment say.
pub fn prepare(command: Command) -> Command {
    let choice = color_choice(std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()));
    let terminal = || {
        let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        std::io::stderr().is_terminal() && !is_set("NO_COLOR") && !dumb
    };
    let colored = match choice {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => terminal(),
    };
    let _ = COLORED.set(colored);
    lenient(command).color(choice).long_version(VERSION.as_str())
}

/// `command` that takes words of its options in upper case, and negative numbers for values, which are then refused as values.
pub fn lenient(command: Command) -> Command {
    command.mut_args(|arg| match arg.get_action() {
        ArgAction::Set | ArgAction::Append if !arg.is_positional() => {
            arg.ignore_case(true).allow_negative_numbers(true)
        }
        _ => arg,
    })
}

/// The value of `--color`. It is needed before the command line is parsed, since help and errors follow it.
fn color_choice(words: impl Iterator<Item = String>) -> ColorChoice {
    let mut words = words.take_while(|word| word != "--");
    while let Some(word) = words.next() {
        let value = match word.strip_prefix("--color") {
            Some("") => words.next(),
            Some(value) => value.strip_prefix('=').map(str::to_owned),
            None => None,
        };
        match value.as_deref() {
            Some("always") => return ColorChoice::Always,
            Some("never") => return ColorChoice::Never,
            _ => {}
        }
    }
    ColorChoice::Auto
}

/// The program's name, as error lines begin: bold red if colored.
pub fn prefix(name: &str) -> String {
    if COLORED.get() == Some(&true) { format!("\x1b[1;31m{name}:\x1b[0m") } else { format!("{name}:") }
}

/// Prints completions or the man page if `matches` ask for them.
pub fn printed(matches: &ArgMatches, mut command: Command) -> Option<ExitCode> {
    let name = command.get_name().to_owned();
    let mut text = Vec::new();
    if let Some(&shell) = matches.get_one::<Shell>("completions") {
        clap_complete::generate(shell, &mut command, name, &mut text);
    } else if matches.get_flag("man") {
        Man::new(command).render(&mut text).ok()?;
    } else {
        return None;
    }
    // A reader that closes the pipe early has seen enough.
    let _ = std::io::stdout().write_all(&text);
    Some(ExitCode::SUCCESS)
}

/// Ends the program as `error` asks: help and versions are printed, wrong options are reported on one line.
pub fn exit(command: &Command, error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        error.exit();
    }
    let name = command.get_name();
    let what = unknown(command, error).unwrap_or_else(|| one_line(&error.render().to_string()));
    // A failure to write this cannot be reported.
    drop(writeln!(std::io::stderr(), "{} {what}; see {name} --help", prefix(name)));
    ExitCode::from(2)
}

/// What to say of an argument that is not known and similar to none.
fn unknown(command: &Command, error: &clap::Error) -> Option<String> {
    let word = error.get(ContextKind::InvalidArg).filter(|_| error.kind() == ErrorKind::UnknownArgument)?;
    if error.get(ContextKind::SuggestedArg).is_some() {
        return None;
    }
    if word.to_string().starts_with('-') {
        return Some(format!("there is no option {word}"));
    }
    let output = command.get_arguments().any(|arg| arg.get_short() == Some('o'));
    let way = if output { "name the output with -o, and write values" } else { "write values" };
    Some(format!("'{word}' is one argument too many; {way} without spaces"))
}

/// The paragraphs above the usage, joined into one line. Values similar to the given one are left out, because all are listed.
fn one_line(text: &str) -> String {
    let above = text.split("\nUsage:").next().unwrap_or_default();
    let above = above.split("\nFor more information").next().unwrap_or_default();
    let paragraphs = above.trim().trim_start_matches("error: ").split("\n\n");
    // How to give an option's name as a value, or a value like the one given, is of no help.
    let is_help = |paragraph: &&str| {
        !["a similar value exists", "tip: to pass '"].iter().any(|tip| paragraph.contains(tip))
    };
    let paragraphs = paragraphs.filter(is_help);
    let joined = paragraphs.map(|paragraph| paragraph.split_whitespace().collect::<Vec<_>>().join(" "));
    let line = joined.collect::<Vec<_>>().join("; ").replace("; tip: ", "; ");
    line.replace("invalid digit found in string", "not a whole number")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::Version;

    #[test]
    fn the_version_names_containers() {
        assert!(VERSION.contains(&format!("writes version {};", Version::NEWEST as u32)));
        assert!(VERSION.contains(&format!(
            "reads versions {} and {}",
            Version::One as u32,
            Version::Two as u32
        )));
    }

    #[test]
    fn colors_are_found_in_any_form() {
        let choice = |line: &str| color_choice(line.split(' ').map(str::to_owned));
        assert_eq!(choice("a --color never"), ColorChoice::Never);
        assert_eq!(choice("--color=always a"), ColorChoice::Always);
        assert_eq!(choice("a -- --color never"), ColorChoice::Auto);
        assert_eq!(choice("a --colors never"), ColorChoice::Auto);
    }

    #[test]
    fn usage_errors_are_one_line() {
        let text = "error: unexpected argument '-o' found\n\n  tip: to pass '-o' as a value, use '-- -o'\n\nUsage: blco-export";
        assert_eq!(one_line(text), "unexpected argument '-o' found");
        let text = "error: unexpected argument '--mode' found\n\n  tip: a similar argument exists: '--modes'\n\n\
                    Usage: blco-run [OPTIONS] <STORE>\n\nFor more information, try '--help'.\n";
        let line = "unexpected argument '--mode' found; a similar argument exists: '--modes'";
        assert_eq!(one_line(text), line);
        let text = "error: the following required arguments were not provided:\n  <INPUT>\n\nUsage: x\n";
        assert_eq!(one_line(text), "the following required arguments were not provided: <INPUT>");
    }
}
