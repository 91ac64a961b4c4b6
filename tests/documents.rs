//! Protects README.md and docs/: every command block runs and prints what it shows, links lead somewhere, reports have the fields that
//! docs/json.md names, and each thing has the word of CONTRIBUTING.md's table.

#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]

#[path = "common/programs.rs"]
mod programs;

use programs::{PROGRAMS, command, program, shell};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// The chapters of the book, by its table of contents.
fn chapters() -> Vec<String> {
    let summary = text("docs/SUMMARY.md");
    let links = summary.split("](").skip(1).map(|rest| rest.split(')').next().unwrap());
    links.map(|link| format!("docs/{link}")).collect()
}

/// A fenced block: its tag, and its lines.
struct Block {
    tag: String,
    lines: Vec<String>,
}

fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(tag) = line.strip_prefix("```") {
            let block = lines.by_ref().take_while(|line| *line != "```").map(str::to_owned).collect();
            blocks.push(Block { tag: tag.to_owned(), lines: block });
        }
    }
    blocks
}

/// `line` with `#` for each number: machines differ in times, digits and threads.
fn without_numbers(line: &str) -> String {
    let mut out = String::new();
    for word in line.split_inclusive(|c: char| !(c.is_ascii_alphanumeric() || c == '.')) {
        let body = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        let hex = body.len() == 16 && body.bytes().all(|b| b.is_ascii_hexdigit());
        if hex || body.starts_with(|c: char| c.is_ascii_digit()) {
            out.push('#');
            out.push_str(&word[body.len()..]);
        } else {
            out.push_str(word);
        }
    }
    // A number with a sign in its exponent or with groups of digits is one number.
    for (parts, number) in [("#-#", "#"), ("#,#", "#"), ("#,#", "#")] {
        out = out.replace(parts, number);
    }
    out.replace("threads", "thread")
}

/// Whether `found` equals `shown`, in which a line `…` stands for any lines.
fn is_shown(found: &[String], shown: &[String]) -> bool {
    match shown.split_first() {
        None => found.is_empty(),
        Some((first, rest)) if first == "…" => (0..=found.len()).any(|skip| is_shown(&found[skip..], rest)),
        Some((first, rest)) => found.first() == Some(first) && is_shown(&found[1..], rest),
    }
}

/// Runs the commands of a document in a new directory, in which `docs` is this repository's.
fn run(document: &str) -> usize {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(root().join("docs"), dir.path().join("docs")).unwrap();
    let mut count = 0;
    for Block { tag, lines } in blocks(&text(document)) {
        match &tag[..] {
            "sh" => {
                let output = shell(&lines.join("\n"), dir.path());
                assert!(output.status.success(), "{document}: {lines:?}: {output:?}");
                count += lines.len();
            }
            "console" | "console fails" => {
                for command in lines.join("\n").split("$ ").skip(1) {
                    let (line, shown) = command.split_once('\n').unwrap_or((command, ""));
                    let output = shell(line, dir.path());
                    assert_eq!(output.status.success(), tag == "console", "{document}: {line}: {output:?}");
                    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
                    let masked = |text: &str| text.lines().map(without_numbers).collect::<Vec<_>>();
                    let (said, shown) = (masked(&said), masked(shown));
                    assert!(
                        is_shown(&said, &shown),
                        "{document}: {line}\nprints {said:#?}\nand not {shown:#?}"
                    );
                    count += 1;
                }
            }
            // Compiled as documentation tests; read only; needs a GPU or minutes.
            "rust,no_run" | "python" | "text" | "sh norun" => {}
            other => panic!("{document}: a block is tagged {other:?}"),
        }
    }
    count
}

#[test]
fn commands_of_the_readme_run_and_print_what_it_shows() {
    assert!(run("README.md") >= 3);
}

#[test]
fn commands_of_the_guide_run_and_print_what_it_shows() {
    let counts: usize = chapters().iter().map(|chapter| run(chapter)).sum();
    assert!(counts >= 30, "{counts}");
}

#[test]
fn what_is_shown_can_differ() {
    let lines = |text: &str| text.lines().map(without_numbers).collect::<Vec<_>>();
    assert!(is_shown(&lines("a 12\nb\nc 1.5 s"), &lines("a 7\n…\nc 0.25 s")));
    assert!(!is_shown(&lines("a 12\nb\nc"), &lines("a 7\nc")) && !is_shown(&lines("a b"), &lines("a c")));
    assert_eq!(without_numbers("16,223,573 nonzeros, 8.72e-2"), "# nonzeros, #");
    assert_eq!(without_numbers("digest 9de2aa1bd75d716b, 1 thread"), "digest #, # thread");
}

/// Documents whose links are followed.
fn documents() -> Vec<String> {
    let mut all: Vec<String> = chapters();
    for name in
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "docs/SUMMARY.md"]
    {
        all.push(name.to_owned());
    }
    all
}

#[test]
fn links_lead_somewhere() {
    let mut followed = 0;
    for document in documents() {
        let contents = text(&document);
        for link in contents.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            let target = link.split('#').next().unwrap();
            if target.is_empty() || target.contains("://") || target.contains(' ') {
                continue;
            }
            let path = root().join(&document).parent().unwrap().join(target);
            assert!(path.exists(), "{document}: {link}");
            followed += 1;
        }
    }
    assert!(followed > 60, "{followed}");
}

#[test]
fn every_page_is_in_the_table_of_contents() {
    let known: BTreeSet<PathBuf> = chapters().iter().map(|chapter| root().join(chapter)).collect();
    for dir in ["docs", "docs/guide", "docs/notebooks"] {
        for entry in std::fs::read_dir(root().join(dir)).unwrap() {
            let path = entry.unwrap().path();
            let is_page = path.extension().is_some_and(|end| end == "md") && !path.ends_with("SUMMARY.md");
            assert!(!is_page || known.contains(&path), "{} is not in docs/SUMMARY.md", path.display());
        }
    }
}

#[test]
fn reports_have_the_fields_that_are_documented() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(root().join("docs/visits.csv"), dir.path().join("visits.csv")).unwrap();
    let pages = text("docs/json.md") + &text("docs/plan.md") + &text("docs/report.md");
    let calls: [(&str, &[&str]); 10] = [
        ("blco-pack", &["visits.csv", "--modes", "user,page,time:hour-of-day"]),
        ("blco-export", &["visits.blco", "t.tns"]),
        ("blco-pack", &["t.tns"]),
        ("blco-run", &["t.blco", "--check", "t.tns"]),
        ("blco-cpd", &["t.blco", "--rank", "2", "--starts", "2"]),
        ("blco-info", &["t.blco", "--verify"]),
        ("blco-info", &["t.blco", "--repair", "new.blco"]),
        ("blco-info", &["t.blco", "--compare"]),
        ("blco-run", &["t.blco", "--compare", "csf,mmcsf"]),
        ("blco-gen", &["--dims", "9,9", "--nnz", "20", "g.tns"]),
    ];
    for (name, args) in calls {
        let report = program(name, dir.path(), args);
        for field in report.as_object().unwrap().keys() {
            assert!(pages.contains(&format!("`{field}`")), "{name} {args:?}: {field} is in no page");
        }
    }
}

/// Wrong words, each with the word of CONTRIBUTING.md's table.
const FORBIDDEN: &[(&str, &str)] = &[
    ("non-zero", "nonzero"),
    ("non zero", "nonzero"),
    ("tensor rank", "order"),
    ("dimensionality", "order"),
    ("n-way", "order N"),
    ("nnzs", "nonzeros"),
    ("hyper-sparse", "sparse"),
    ("eigenvalue", "lambda"),
    ("core tensor", "not computed here"),
    ("mode size", "dim"),
    ("mode length", "dim"),
    ("axis of the tensor", "mode"),
    ("dimensions", "dims, modes"),
    ("dataset", "tensor, table"),
    ("data set", "tensor, table"),
    ("latent factor", "component"),
    ("factor matrices", "factors"),
    ("factor matrix", "factor"),
    ("embedding", "factor"),
    ("thread-block", "thread block"),
    ("mpi rank", "process"),
    ("mpi ranks", "processes"),
    ("rank 0", "process 0"),
    ("shard", "chunk, epoch"),
    ("fibre", "fiber"),
    ("epochs", "iterations"),
    ("checkpointing", "checkpoint"),
    ("colour", "color"),
    ("os error", "the system's words"),
    // The dialect.
    ("is told", "is reported"),
    ("are told", "are reported"),
    ("where there is one", "if there is one"),
    ("so many", "N"),
    ("as many as", "a number"),
    ("is to be", "must be"),
    ("are to be", "must be"),
    ("nobody", "the passive, or the subject"),
    ("anew", "again"),
    ("stands in", "is in"),
    ("by itself", "alone"),
];

/// Forbidden words that code needs: a kernel's RANK 0, a grid's dimensions, a matrix's eigenvalues, a dictionary's shards, plain comparisons.
const ALLOWED_IN_CODE: &[&str] = &["rank 0", "dimensions", "eigenvalue", "shard", "as many as", "by itself"];

/// Forbidden words in `text`, outside of fenced blocks.
fn forbidden(text: &str) -> Vec<&'static str> {
    let mut plain = String::new();
    let mut fenced = false;
    for line in text.lines() {
        fenced ^= line.starts_with("```");
        if !fenced {
            plain.push_str(&line.to_lowercase());
            plain.push(' ');
        }
    }
    let plain = plain.split_whitespace().collect::<Vec<_>>().join(" ");
    let is_word = |word: &str| {
        plain.match_indices(word).any(|(at, _)| {
            let before = plain[..at].chars().next_back().is_none_or(|c| !c.is_alphanumeric());
            before && plain[at + word.len()..].chars().next().is_none_or(|c| !c.is_alphanumeric())
        })
    };
    FORBIDDEN.iter().map(|(word, _)| *word).filter(|word| is_word(word)).collect()
}

#[test]
fn a_thing_has_one_word() {
    for name in PROGRAMS {
        for help in ["--help", "-h"] {
            let output = command(name, Path::new("."), &[help]).output().unwrap();
            let found = forbidden(&String::from_utf8(output.stdout).unwrap());
            assert!(found.is_empty(), "{name} {help}: {found:?}");
        }
    }
    let pages = chapters().into_iter().chain(["README.md", "SECURITY.md", "CITATION.cff"].map(str::to_owned));
    for page in pages {
        let found = forbidden(&text(&page));
        assert!(found.is_empty(), "{page}: {found:?}");
    }
}

/// The comments of the source files in `dir`.
fn comments(dir: &Path) -> Vec<(PathBuf, String)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(comments(&path));
        } else if path.extension().is_some_and(|end| end == "rs" || end == "cuh") {
            let contents = std::fs::read_to_string(&path).unwrap();
            let lines = contents.lines().filter_map(|line| line.trim_start().strip_prefix("//"));
            let lines: Vec<&str> = lines.map(|line| line.trim_start_matches(['/', '!'])).collect();
            all.push((path, lines.join("\n")));
        }
    }
    all
}

#[test]
fn comments_use_the_same_words() {
    let mut wrong = Vec::new();
    let all = [comments(&root().join("src")), comments(&root().join("kernels"))].concat();
    assert!(all.len() > 200, "{}", all.len());
    for (path, text) in all {
        let found = forbidden(&text).into_iter().filter(|word| !ALLOWED_IN_CODE.contains(word));
        wrong.extend(found.map(|word| format!("{}: {word}", path.display())));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn forbidden_words_are_found() {
    assert_eq!(forbidden("The Factor\nmatrices"), ["factor matrices"]);
    assert_eq!(forbidden("Factor matricesX, nonzeros\n```text\nfibre\n```\n"), [""; 0]);
}
