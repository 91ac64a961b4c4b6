//! What users expect of every command: a version that says how it was built, completions, a man page, colors that can be turned off,
//! and wrong options reported on one line.

use clap::{ArgMatches, Args, ColorChoice, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::OnceLock;

#[cfg(feature = "cuda")]
const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\nfeatures:   cli, cuda",
    "\nCUDA:       driver 12.0 or newer, loaded if present; compute capability 7.0 or newer",
    "\ncontainers: writes version 2; reads versions 1 and 2"
);
#[cfg(not(feature = "cuda"))]
const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\nfeatures:   cli",
    "\nCUDA:       not built in; build with --features cuda",
    "\ncontainers: writes version 2; reads versions 1 and 2"
);

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
    command.color(choice).long_version(VERSION)
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
pub fn exit(name: &str, error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        error.exit();
    }
    // A failure to write this cannot be reported.
    drop(writeln!(
        std::io::stderr(),
        "{} {}; see {name} --help",
        prefix(name),
        one_line(&error.render().to_string())
    ));
    ExitCode::from(2)
}

/// The paragraphs above the usage, joined into one line.
fn one_line(text: &str) -> String {
    let above = text.split("\nUsage:").next().unwrap_or_default();
    let above = above.split("\nFor more information").next().unwrap_or_default();
    let paragraphs = above.trim().trim_start_matches("error: ").split("\n\n");
    // How to give an option's name as a value is of no help.
    let paragraphs = paragraphs.filter(|paragraph| !paragraph.contains("tip: to pass '"));
    let joined = paragraphs.map(|paragraph| paragraph.split_whitespace().collect::<Vec<_>>().join(" "));
    joined.collect::<Vec<_>>().join("; ").replace("; tip: ", "; ")
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
