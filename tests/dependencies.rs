//! Protects the order of the modules: every use of one top-level module by another is in the table below, every line of the
//! table is used, and all point down. No files import each other in circles, at any depth.

#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Each module with the modules that it may use, lowest first: a module uses only those above it in this table.
const ALLOWED: [(&str, &[&str]); 22] = [
    ("error", &[]),
    ("random", &[]),
    ("shape", &["error"]),
    ("sys", &["error"]),
    ("publish", &["error", "sys"]),
    ("dense", &["error", "publish", "random", "shape", "sys"]),
    ("coo", &["error", "random", "shape", "sys"]),
    ("linear", &["shape"]),
    ("encoding", &["shape"]),
    ("chunk", &["error", "sys"]),
    ("format", &["chunk", "encoding", "error", "linear", "shape"]),
    ("store", &["chunk", "encoding", "error", "format", "linear", "publish", "shape", "sys"]),
    ("pack", &["coo", "encoding", "error", "format", "linear", "publish", "shape", "store", "sys"]),
    ("table", &["coo", "error", "pack", "shape", "store", "sys"]),
    ("stream", &["error", "store", "sys"]),
    // The host backend implements `stream`'s trait and delivers `format`'s tiles; kernels are made for `dense`'s precisions.
    ("backend", &["chunk", "dense", "encoding", "error", "format", "shape", "store", "stream", "sys"]),
    // TTV along a mode that the store does not stream adds up partial results in `pack`'s runs.
    (
        "op",
        &[
            "backend", "coo", "dense", "encoding", "error", "format", "linear", "pack", "shape", "store",
            "sys",
        ],
    ),
    ("members", &["error"]),
    ("decomp", &["backend", "dense", "error", "members", "op", "publish", "shape", "store", "stream", "sys"]),
    // The facade: everything that an operation needs.
    (
        "engine",
        &[
            "backend", "coo", "decomp", "dense", "error", "format", "linear", "members", "op", "pack",
            "shape", "store", "stream", "sys", "table",
        ],
    ),
    (
        "cli",
        &[
            "backend", "coo", "decomp", "dense", "encoding", "engine", "error", "format", "linear",
            "members", "op", "pack", "publish", "shape", "store", "stream", "sys", "table",
        ],
    ),
    ("bin", &["cli"]),
];

#[test]
fn dependencies_are_those_of_the_table() {
    let allowed: BTreeSet<(String, String)> = ALLOWED
        .iter()
        .flat_map(|(from, to)| to.iter().map(|to| ((*from).to_owned(), (*to).to_owned())))
        .collect();
    let found = edges();
    let new: Vec<_> = found.difference(&allowed).collect();
    assert!(new.is_empty(), "not in the table: {new:?}");
    let unused: Vec<_> = allowed.difference(&found).collect();
    assert!(unused.is_empty(), "in the table but not used: {unused:?}");
}

#[test]
fn the_table_points_down() {
    let place = |name: &str| ALLOWED.iter().position(|(module, _)| *module == name).unwrap();
    for (from, to) in ALLOWED {
        assert!(to.iter().all(|to| place(to) < place(from)), "{from} uses something that is not below it");
    }
}

/// The reader of sources finds uses. Otherwise the test above could not fail.
#[test]
fn uses_are_found() {
    let text = "use crate::{store::{Store, self}, sys};\nlet x = crate::op::f(); // crate::cli\n\
                use super::error::E;\npub(crate) fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::pack;\n}\n";
    let found: Vec<String> = uses(text, 1, "crate::").into_iter().collect();
    assert_eq!(found, ["error", "op", "store", "sys"]);
    assert!(!uses("use super::error::E;", 2, "crate::").contains("error"));
    assert!(uses("use super::super::error::E;", 2, "crate::").contains("error"));
}

/// A module and the files in its folder may import from each other. Otherwise, no file imports, directly or
/// indirectly, a file that imports it.
#[test]
fn no_files_import_each_other_in_circles() {
    assert_no_circles("src", 300);
    assert_no_circles("python/src", 30);
}

/// `least`: there are fewer imports only if the reader of sources misses some.
fn assert_no_circles(root: &str, least: usize) {
    let sources = modules(root);
    let files: BTreeSet<Vec<String>> = sources.iter().map(|(module, _)| module.clone()).collect();
    let imports: BTreeMap<&[String], BTreeSet<&[String]>> =
        sources.iter().map(|(module, text)| (&module[..], imports(module, text, &files))).collect();
    assert!(imports.values().map(BTreeSet::len).sum::<usize>() > least, "the imports are not seen");
    // Removes files that import no remaining file, until none is left, or circles and the files that import them.
    let mut left = imports.clone();
    loop {
        let done: Vec<&[String]> = left
            .iter()
            .filter(|(_, to)| to.iter().all(|to| !left.contains_key(to)))
            .map(|(m, _)| *m)
            .collect();
        if done.is_empty() {
            break;
        }
        for module in done {
            left.remove(module);
        }
    }
    let circles: Vec<String> = left.keys().map(|module| module.join("::")).collect();
    assert!(circles.is_empty(), "{root}: in circles, or importing them: {circles:?}");
}

/// Circles are found. Otherwise the test above could not fail.
#[test]
fn imports_are_found() {
    let module = |name: &str| name.split("::").map(str::to_owned).collect::<Vec<_>>();
    let files: BTreeSet<_> = ["a", "a::b", "a::b::c", "a::d", "e"].map(module).into();
    let found = |from: &str, text: &str| -> Vec<String> {
        imports(&module(from), text, &files).iter().map(|to| to.join("::")).collect()
    };
    assert_eq!(
        found("a::d", "use super::b::{self, c::{X, Y}};\nlet x = crate::e::f();"),
        ["a::b", "a::b::c", "e"]
    );
    assert_eq!(found("a::b", "use crate::{a::d::D, e};\nuse self::c::C;"), ["a::d", "e"]);
    // Its parts, and the module that contains it.
    assert!(found("a", "pub use b::c::C;\nuse self::d;").is_empty());
    assert!(found("a::b::c", "use crate::a::A;\nuse super::super::A;").is_empty());
}

/// The files that `text`, of file `module`, imports, except those in its folder and those in whose folder it is.
fn imports<'f>(module: &[String], text: &str, files: &'f BTreeSet<Vec<String>>) -> BTreeSet<&'f [String]> {
    let code = text.split("#[cfg(test)]\nmod").next().unwrap();
    let code: Vec<&str> = code.lines().map(|line| line.split("//").next().unwrap()).collect();
    let code = code.join("\n");
    let mut found = BTreeSet::new();
    for (at, start) in ["crate::", "super::", "self::"].iter().flat_map(|p| code.match_indices(p)) {
        if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') {
            continue;
        }
        let mut base = if start == "crate::" { Vec::new() } else { module.to_vec() };
        let mut rest = &code[at..];
        loop {
            let (part, after) = rest.split_once("::").unwrap_or((rest, ""));
            match part {
                "crate" | "self" => {}
                "super" => drop(base.pop()),
                _ => break,
            }
            rest = after;
        }
        for path in paths(rest) {
            let whole: Vec<String> = base.iter().cloned().chain(path).collect();
            let file = (1..=whole.len()).rev().find_map(|n| files.get(&whole[..n]));
            let other = file.filter(|file| !file.starts_with(module) && !module.starts_with(file));
            found.extend(other.map(Vec::as_slice));
        }
    }
    found
}

/// The paths at the beginning of `code`: one, or those of a group in braces.
fn paths(code: &str) -> Vec<Vec<String>> {
    let code = code.trim_start();
    let Some(group) = code.strip_prefix('{') else {
        let name: String = code.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        return match code[name.len()..].strip_prefix("::") {
            Some(rest) if !name.is_empty() => {
                paths(rest).into_iter().map(|path| [vec![name.clone()], path].concat()).collect()
            }
            _ if name.is_empty() || name == "self" => vec![Vec::new()],
            _ => vec![vec![name]],
        };
    };
    let (mut depth, mut start, mut found) = (1, 0, Vec::new());
    for (at, c) in group.char_indices() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if depth == 0 || depth == 1 && c == ',' {
            found.extend(paths(&group[start..at]));
            start = at + 1;
        }
        if depth == 0 {
            break;
        }
    }
    found
}

/// Every pair (module, used module) of the sources, without tests.
fn edges() -> BTreeSet<(String, String)> {
    let mut edges = BTreeSet::new();
    for (module, text) in modules("src") {
        let known = ALLOWED.iter().any(|(name, _)| *name == module[0]);
        assert!(known, "{}: a module that the table does not know", module.join("::"));
        let prefix = if module[0] == "bin" { "blco::" } else { "crate::" };
        let others = uses(&text, module.len(), prefix).into_iter().filter(|other| *other != module[0]);
        edges.extend(others.map(|other| (module[0].clone(), other)));
    }
    edges
}

/// The files of a folder of sources as modules, without tests, each with its text.
fn modules(root: &str) -> Vec<(Vec<String>, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(root);
    let mut modules = Vec::new();
    for path in sources(&root) {
        let inside = path.strip_prefix(&root).unwrap().with_extension("");
        let mut module: Vec<String> = inside.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
        if module.last().unwrap() == "mod" {
            module.pop();
        }
        if module != ["lib"] && module.last().unwrap() != "tests" {
            modules.push((module, std::fs::read_to_string(&path).unwrap()));
        }
    }
    modules
}

fn sources(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let (dirs, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let files = files.into_iter().filter(|path| path.extension().is_some_and(|e| e == "rs"));
    files.chain(dirs.iter().flat_map(|dir| sources(dir))).collect()
}

/// The top-level modules that a source names, after `prefix` or after as many `super::` as it is deep.
fn uses(text: &str, depth: usize, prefix: &str) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]").next().unwrap();
    let code: Vec<&str> = code.lines().map(|line| line.split("//").next().unwrap()).collect();
    let code = code.join("\n");
    let supers = "super::".repeat(depth);
    let mut found = BTreeSet::new();
    for prefix in [prefix, &supers] {
        for (at, _) in code.match_indices(prefix) {
            let inside_a_name = code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
            if !inside_a_name {
                found.extend(names(&code[at + prefix.len()..]));
            }
        }
    }
    found
}

/// The name at the beginning of `code`, or the outer names of the group in braces.
fn names(code: &str) -> Vec<String> {
    let name = |code: &str| -> String {
        code.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let Some(group) = code.strip_prefix('{') else { return vec![name(code)] };
    let (mut depth, mut start, mut found) = (1, 0, Vec::new());
    for (at, c) in group.char_indices() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if depth == 0 || depth == 1 && c == ',' {
            found.push(name(&group[start..at]));
            start = at + 1;
        }
        if depth == 0 {
            break;
        }
    }
    found.retain(|name| !name.is_empty());
    found
}
