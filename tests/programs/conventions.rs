//! Protects what users expect of every command: short options, colors, completions, man pages.

use super::programs::{PROGRAMS, command};
use std::path::Path;

/// The output of a command with these arguments, which must succeed.
fn printed(name: &str, args: &[&str]) -> String {
    let output = command(name, Path::new("."), args).output().unwrap();
    assert!(output.status.success(), "{name} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn completions_and_man_pages_name_every_option() {
    for name in PROGRAMS {
        let help = printed(name, &["--help"]);
        let words = help.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
        let options: Vec<&str> = words.filter(|word| word.len() > 3 && word.starts_with("--")).collect();
        assert!(options.len() > 8, "{name}: {options:?}");
        let (bash, man) = (printed(name, &["--completions", "bash"]), printed(name, &["--man"]));
        let man = man.replace('\\', "");
        for option in options.iter().filter(|&&option| !help.contains(&format!("tools{option}"))) {
            assert!(bash.contains(option), "{name}: {option} is not completed");
            assert!(man.contains(option), "{name}: {option} is not in the man page");
        }
        for shell in ["zsh", "fish", "elvish", "powershell"] {
            assert!(printed(name, &["--completions", shell]).contains(name), "{name}: {shell}");
        }
    }
}

#[test]
fn color_is_shown_where_it_is_wanted() {
    let escape = '\x1b';
    assert!(!printed("blco-run", &["--help"]).contains(escape), "not to a pipe");
    assert!(printed("blco-run", &["--help", "--color", "always"]).contains(escape));
    assert!(printed("blco-run", &["--color=always", "--help"]).contains(escape));
    let error = |args: &[&str], no_color: &str| {
        let output = command("blco-run", Path::new("."), args).env("NO_COLOR", no_color).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(!error(&["none.blco"], "").contains(escape));
    assert!(error(&["none.blco", "--color", "always"], "").contains(escape));
    // The command line has priority.
    assert!(error(&["none.blco", "--color", "always"], "1").contains(escape));
    assert!(!error(&["none.blco", "--color", "never"], "").contains(escape));
}

/// On a terminal, which `script` provides.
#[test]
fn color_on_a_terminal_follows_no_color() {
    if std::process::Command::new("script").arg("--version").output().is_err() {
        eprintln!("skipped: no program `script` to provide a terminal");
        return;
    }
    let program = assert_cmd::cargo::cargo_bin("blco-run");
    let on_terminal = |name: &str, value: &str| {
        let line = format!("{} none.blco", program.display());
        let mut script = std::process::Command::new("script");
        script
            .args(["-qec", &line, "/dev/null"])
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .env(name, value);
        String::from_utf8_lossy(&script.output().unwrap().stdout).into_owned()
    };
    assert!(on_terminal("BLCO_NOTHING", "").contains("\x1b[1;31mblco-run:"));
    for (name, value) in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let said = on_terminal(name, value);
        assert!(said.contains("blco-run: none.blco") && !said.contains('\x1b'), "{name}: {said}");
    }
}
