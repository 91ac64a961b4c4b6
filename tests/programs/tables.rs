//! Establishes that tables become their tensors, with labels; that every wrong table is reported with row, column
//! and remedy; and that bytes depend neither on the order of rows nor on memory.

use crate::programs::program;
use assert_cmd::cargo::cargo_bin;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output};

pub fn run(name: &str, dir: &Path, args: &[&str]) -> Output {
    Command::new(cargo_bin(name)).current_dir(dir).args(args).env("BLCO_MEMORY_MIN", "0").output().unwrap()
}

/// A field as in CSV, always in quotes.
pub fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// All labels of a mode.
fn labels(dir: &Path, store: &str, mode: &str) -> Vec<String> {
    let report = program("blco-info", dir, &[store, "--labels", mode]);
    let found = report["labels"].as_array().unwrap();
    for (at, label) in found.iter().enumerate() {
        assert_eq!(label["index"], at + 1);
    }
    found.iter().map(|label| label["label"].as_str().unwrap().to_owned()).collect()
}

/// The nonzeros of a store by their labels, read from coordinate text: independent of how tables are written.
fn nonzeros(dir: &Path, store: &str, modes: &[&str]) -> BTreeMap<Vec<String>, f64> {
    let labels: Vec<Vec<String>> = modes.iter().map(|mode| labels(dir, store, mode)).collect();
    let text = run("blco-export", dir, &[store, "-"]);
    let text = String::from_utf8(text.stdout).unwrap();
    let row = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let (value, indices) = fields.split_last().unwrap();
        let at = |(mode, index): (usize, &&str)| labels[mode][index.parse::<usize>().unwrap() - 1].clone();
        (indices.iter().enumerate().map(at).collect(), value.parse().unwrap())
    };
    let rows: Vec<(Vec<String>, f64)> = text.lines().map(row).collect();
    let all: BTreeMap<_, _> = rows.iter().cloned().collect();
    assert_eq!(all.len(), rows.len(), "coordinates repeat");
    all
}

/// The files of a store without its provenance.
pub fn bytes(store: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(store).unwrap().map(|file| file.unwrap().path());
    let named = files
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(path).unwrap()));
    named.filter(|(name, _)| name != "provenance.json").collect()
}

/// A wrong table or wrong options: the table, the options, and words of the message.
type Wrong = (Vec<u8>, &'static str, &'static [&'static str]);

const GOOD: &str = "user,title,rating,at\n1,a,3,2024-01-02\n2,b,4,2024-01-03\n";
const USUAL: &str = "--modes user,title,at:day --value rating";

const JSON: &str = "{\"user\":1,\"film\":{\"title\":\"a\"}}\n{\"user\":2,\"film\":{\"title\":\"b\"}}\n{\"user\":3,\"film\":{\"title\":\"c\"}}\n";
const JSON_MODES: &str = "--modes user,film.title";

fn with(row: &str) -> Vec<u8> {
    format!("{GOOD}{row}\n").into_bytes()
}

/// Wrong rows.
fn wrong_rows() -> Vec<Wrong> {
    vec![
        (with("3,c,5"), USUAL, &["t.csv:4: row 3: has 3 fields, the header has 4", "complete the row"]),
        (with("3,c,5,2024-01-04,x"), USUAL, &["t.csv:4: row 3: has 5 fields", "quote fields"]),
        (
            with("3,c,many,2024-01-04"),
            USUAL,
            &["t.csv:4: row 3, column \"rating\": \"many\" is not a number", "correct it"],
        ),
        (with("3,c,\"3,5\",2024-01-04"), USUAL, &["row 3, column \"rating\"", "decimal point"]),
        (with("3,c,NA,2024-01-04"), USUAL, &["row 3, column \"rating\"", "--nulls drop"]),
        (with("3,c,inf,2024-01-04"), USUAL, &["row 3, column \"rating\"", "finite"]),
        (with("3,c,1e999,2024-01-04"), USUAL, &["row 3, column \"rating\"", "finite"]),
        (
            with("3,c,,2024-01-04"),
            USUAL,
            &["1 of 3 rows", "column \"rating\" lacks 1, the first in row 3 (line 4)", "--nulls drop"],
        ),
        (
            with("3,,5,2024-01-04\n,c,5,2024-01-04"),
            USUAL,
            &["2 of 4 rows", "\"user\" lacks 1", "\"title\" lacks 1"],
        ),
        (with("3,c,5,2024-02-30"), USUAL, &["row 3, column \"at\": \"2024-02-30\" is no date", "2024-03-05"]),
        (with("3,c,5,03/15/2024"), USUAL, &["row 3, column \"at\"", "year first"]),
        (with("3,c,5,yesterday"), USUAL, &["row 3, column \"at\"", "dates look like"]),
        (with("3,c,5,2024-01-04T25:00"), USUAL, &["row 3, column \"at\""]),
        (
            with("3,c,5,1704326400"),
            USUAL,
            &["row 3, column \"at\"", "rows above hold dates", "write all alike"],
        ),
        (with("user,title,rating,at"), USUAL, &["t.csv:4: row 3: repeats the header; remove the line"]),
        (
            with("3,\"c,5,2024-01-04"),
            USUAL,
            &["t.csv:4: row 3, column \"title\": a quote opens here and is not closed", "--quote none"],
        ),
        (
            with("3,\"c\"d,5,2024-01-04"),
            USUAL,
            &["row 3, column \"title\": text stands behind a closing quote", "two quotes"],
        ),
        (
            [&with("3,")[..with("3,").len() - 1], b"caf\xe9,5,2024-01-04\n"].concat(),
            USUAL,
            &["t.csv:4: row 3, column \"title\": is not UTF-8", "iconv -f LATIN1"],
        ),
        (
            GOOD.into(),
            "--modes user,film --value rating",
            &["there is no column \"film\"", "user,title,rating,at"],
        ),
        (
            GOOD.into(),
            "--modes user,Title --value rating",
            &["there is no column \"Title\"; is \"title\" meant?"],
        ),
    ]
}

/// Impossible requests, and inputs that are not tables.
fn wrong_requests() -> Vec<Wrong> {
    vec![
        (GOOD.into(), "--modes user,title --value stars", &["there is no column \"stars\""]),
        (GOOD.into(), "--modes user,9", &["there is no column \"9\""]),
        (GOOD.into(), "--value rating", &["say which columns are modes", "user,title,rating,at"]),
        (GOOD.into(), "--modes user,user", &["\"user\" is named twice"]),
        (GOOD.into(), "--modes user,at:fortnight", &["--modes at:fortnight", ":week", "\\:"]),
        (GOOD.into(), "--modes user,at:bins=0", &["at least 1"]),
        (GOOD.into(), "--modes user", &["order 1", "2 to 8"]),
        (
            GOOD.into(),
            "--modes user,title:bins=3",
            &["t.csv:2: row 1, column \"title\": \"a\" is not a number"],
        ),
        (GOOD.into(), "--modes user,title:number", &["row 1, column \"title\"", "without :number"]),
        (
            GOOD.into(),
            "--modes user,at:day --timezone Mars/Olympus",
            &["--timezone \"Mars/Olympus\"", "Europe/Zurich"],
        ),
        (GOOD.into(), "--modes user,title --labels a=b", &["--labels", "--modes"]),
        (GOOD.replace('\n', "\r").into(), USUAL, &["t.csv:1", "CR alone", "tr"]),
        (
            GOOD.encode_utf16().flat_map(u16::to_le_bytes).collect(),
            USUAL,
            &["t.csv:1", "byte 0", "iconv -f UTF-16"],
        ),
        (
            [b"\xff\xfe".to_vec(), GOOD.encode_utf16().flat_map(u16::to_le_bytes).collect()].concat(),
            USUAL,
            &["UTF-16", "iconv"],
        ),
        (Vec::new(), USUAL, &["is empty", "at least one row"]),
        (b"\n\n".to_vec(), USUAL, &["blank lines alone"]),
        (b"user,title,rating,at\n".to_vec(), USUAL, &["no rows below its header"]),
        (
            b"user,title,user,at\n1,2,3,4\n".to_vec(),
            "--modes user,title",
            &["columns 1 and 3 are both called \"user\"", "number"],
        ),
        (b"1,2,3\n4,5,6\n".to_vec(), "--modes user,title", &["no column \"user\"", "numbers from 1 to 3"]),
        (
            with("3,c,0,2024-01-04"),
            "--modes user,rating:log2",
            &["row 3, column \"rating\": \"0\" has no logarithm"],
        ),
        ([b"\x1f\x8b\x08".to_vec(), GOOD.into()].concat(), USUAL, &["gzip"]),
        (
            b"PAR1....PAR1".to_vec(),
            USUAL,
            if cfg!(feature = "arrow") { &["t.csv", "damaged or not whole"] } else { &["Parquet", "CSV"] },
        ),
    ]
}

/// Hostile inputs.
fn wrong_at_length() -> Vec<Wrong> {
    let names: Vec<String> = (0..50_000).map(|at| format!("c{at}")).collect();
    let cut = {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(GOOD.as_bytes()).unwrap();
        (0..9_999).for_each(|row| writeln!(packer, "{row},c{},5,2024-01-04", row * 7_919).unwrap());
        let whole = packer.finish().unwrap();
        whole[..whole.len() - 99].to_vec()
    };
    vec![
        (with("3,c,5\0,2024-01-04"), USUAL, &["row 3, column \"rating\": \"5\\0\" is not a number"]),
        (with("3,c,5,31/02/2024"), USUAL, &["row 3, column \"at\": \"31/02/2024\" is no date", "year first"]),
        (
            with(&format!("3,c,{},2024-01-04", "9".repeat(400))),
            USUAL,
            &["row 3, column \"rating\"", "finite"],
        ),
        (with("3,c,5,2024-01-04\r4,d,5,2024-01-04"), USUAL, &["t.csv:4: row 3: has 7 fields"]),
        (
            with(&format!("3,{},5,2024-01-04", "x".repeat(2 << 20))),
            USUAL,
            &["row 3, column \"title\"", "longer than 1048576 bytes; shorten it"],
        ),
        (with(&format!("3,{}", "x".repeat(20 << 20))), USUAL, &["t.csv:4: row 3: a row of more than 16 MiB"]),
        (with(&format!("3,\"{}", "x\n".repeat(9 << 20))), USUAL, &["row 3, column \"title\": a quote opens"]),
        (
            GOOD.replace('\n', ",\n").replacen("at,", "at", 1).into(),
            USUAL,
            &["t.csv:2: row 1: has 5 fields, the header has 4; remove the delimiters at the ends"],
        ),
        (names.join(",").into(), "--modes c1,c2", &["t.csv:1: a first line of more than 256 KiB"]),
        (format!("sep=,\n{GOOD}").into(), USUAL, &["t.csv:1", "for Excel", "remove it"]),
        (format!("# a log\n{GOOD}").into(), USUAL, &["no column \"user\"", "remove lines above the header"]),
        (b"[{\"user\":1,\"title\":2}]".to_vec(), USUAL, &["t.csv:1", "JSON Lines", "jq -c '.[]'"]),
        (b"{\n  \"user\": 1\n}\n".to_vec(), USUAL, &["t.csv:1", "JSON Lines"]),
        (
            JSON.replace("{\"user\":3", "[3").into(),
            JSON_MODES,
            &["t.csv:3: row 3: is no JSON object: invalid type", "correct"],
        ),
        (
            JSON.replace("{\"user\":3", "{\"user\":3,").into(),
            JSON_MODES,
            &["t.csv:3: row 3: is no JSON object: key must be"],
        ),
        (
            JSON.replace("\"c\"", "\"\\ud800\"").into(),
            JSON_MODES,
            &["t.csv:3: row 3, column \"film.title\": is no text", "hex escape"],
        ),
        (
            JSON.replace("\"c\"", "null").into(),
            JSON_MODES,
            &["1 of 3 rows", "\"film.title\" lacks 1, the first in row 3 (line 3)", "--nulls drop"],
        ),
        (JSON.into(), "--modes user,film", &["no column \"film\"; the columns are user,film.title"]),
        (
            JSON.into(),
            "--modes user,film.title --value user --delimiter ;",
            &["--delimiter", "options of CSV"],
        ),
        (
            format!("{JSON}{{\"user\":\"{}\"}}\n", "x".repeat(20 << 20)).into(),
            JSON_MODES,
            &["t.csv:4: row 4: a row of more than 16 MiB"],
        ),
        (b"PK\x03\x04....".to_vec(), USUAL, &["zip archive", "unpack it"]),
        (cut, USUAL, &["gzip data is cut short; fetch the whole file again"]),
        (
            b"user;title;rating;at\n1;a;3,5;2024-01-02\n".to_vec(),
            USUAL,
            &["t.csv:2: row 1, column \"rating\": \"3,5\"", "decimal point"],
        ),
        (with("3,c,5,-9999-01-01"), USUAL, &["row 3, column \"at\"", "dates look like"]),
    ]
}

/// Every wrong table ends with status 2 and one line that says where, and what to do.
#[test]
fn wrong_tables_are_told_with_row_column_and_remedy() {
    let cases = [wrong_rows(), wrong_requests(), wrong_at_length()].concat();
    assert!(cases.len() >= 55);
    let dir = tempfile::tempdir().unwrap();
    for (text, options, words) in cases {
        std::fs::write(dir.path().join("t.csv"), text).unwrap();
        let args: Vec<&str> = ["t.csv"].into_iter().chain(options.split(' ')).collect();
        let output = run("blco-pack", dir.path(), &args);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {said}");
        for word in words {
            assert!(said.contains(word), "{word:?} is not in {said}");
        }
        // Command lines that the grammar refuses.
        assert!(said.trim_end().lines().count() == 1 || said.contains("Usage"), "{said}");
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|f| f.unwrap().file_name()).collect();
        assert_eq!(left, ["t.csv"], "{words:?}");
    }
}

/// Labels with all characters that CSV must quote, an empty one, one of 64 KiB.
pub fn odd_labels() -> Vec<String> {
    let long = "é".repeat(32 << 10);
    let short =
        ["", " ", "\"", "a,b", "a\nb", "a\r\nb", "\"\"quoted\"\"", "🎬🍿", "tab\tbed", "x", "X", "null"];
    short.into_iter().chain([long.as_str()]).map(str::to_owned).collect()
}

/// Objects make the same store as the records of a CSV, whatever the order of their members and however text is escaped.
#[test]
fn objects_are_read_as_records_are() {
    let dir = tempfile::tempdir().unwrap();
    let numbers = ["4.50", "-1e3", "12345678901234567890", "0.1", "7"];
    let (mut csv, mut json) = (b"user.name,ok,at,rating\n".to_vec(), Vec::new());
    for row in 0..4_000 {
        let name = ["Ann \"A\"", "bób", "", "tab\t", "🎬", "back\\slash"][row % 6];
        let (ok, at, rating) = (row % 7 < 3, format!("2026-03-{:02}", row % 28 + 1), numbers[row % 5]);
        let at = if row % 11 == 0 { "" } else { &at };
        writeln!(csv, "{},{ok},{at},{rating}", quoted(name)).unwrap();
        let escaped: String = name
            .chars()
            .map(|c| match c {
                'b' if row % 2 == 0 => "\\u0062".into(),
                '🎬' if row % 4 == 0 => "\\ud83c\\udfac".into(),
                '"' | '\\' => format!("\\{c}"),
                '\t' => "\\t".into(),
                c => c.to_string(),
            })
            .collect();
        let at = match (at, row % 2) {
            ("", 0) => String::new(),
            ("", _) => "\"at\":null,".into(),
            (at, _) => format!("\"at\" : \"{at}\", "),
        };
        let user = format!("\"user\":{{\"id\":[{row},{{}}],\"name\":\"{escaped}\"}}");
        let rest = format!("{at}\"ok\":{ok},\"more\":{{\"x\":{{\"ok\":1}}}}");
        match row % 3 {
            0 => writeln!(json, "{{{user},{rest},\"rating\":{rating}}}"),
            1 => writeln!(json, "  {{\"rating\":\"{rating}\",{rest},{user}}} \r\n"),
            _ => writeln!(json, "{{{rest},\"user.name\":\"{escaped}\",\"rating\":{rating}}}"),
        }
        .unwrap();
    }
    std::fs::write(dir.path().join("t.csv"), csv).unwrap();
    std::fs::write(dir.path().join("t.jsonl"), json.trim_ascii_end()).unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&json).unwrap();
    std::fs::write(dir.path().join("z.ndjson.gz"), gzip.finish().unwrap()).unwrap();
    let usual = "--modes user.name,ok,at:day --value rating --nulls drop";
    let [csv, json, gzip] = ["t.csv", "t.jsonl", "z.ndjson.gz"].map(|name| {
        let args: Vec<&str> =
            [name, "-o", "s.blco", "--force", "-q"].into_iter().chain(usual.split(' ')).collect();
        let output = run("blco-pack", dir.path(), &args);
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        bytes(&dir.path().join("s.blco"))
    });
    assert!(csv.len() > 3 && csv == json && json == gzip);
}

/// Labels with all characters that CSV must quote, empty ones and long ones come back unchanged. Exported tables are packed to the same
/// bytes. Rows in another order, other line ends and a byte order mark make no difference.
#[test]
fn labels_survive_to_the_store_and_back() {
    let dir = tempfile::tempdir().unwrap();
    let odd = odd_labels();
    let odd: Vec<&str> = odd.iter().map(String::as_str).collect();
    let rows: Vec<(String, String, f64)> = odd
        .iter()
        .enumerate()
        .flat_map(|(at, label)| {
            (0..3).map(move |user| {
                ((user * 7 + at % 2).to_string(), (*label).to_owned(), 0.25 + (at * 3 + user) as f64)
            })
        })
        .collect();
    let text = |rows: &[(String, String, f64)], end: &str| {
        let mut text = format!("user,\"the \"\"title\"\", in full\",value{end}");
        for (user, title, value) in rows {
            write!(text, "{user},{},{value}{end}", quoted(title)).unwrap();
        }
        text
    };
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("a.csv"), text(&rows, "\n")).unwrap();
    let modes = "user,the \"title\"\\, in full";
    program("blco-pack", dir.path(), &["a.csv", "--modes", modes, "--value", "value"]);
    let expected: BTreeMap<Vec<String>, f64> =
        rows.iter().map(|(user, title, value)| (vec![user.clone(), title.clone()], *value)).collect();
    assert_eq!(nonzeros(dir.path(), "a.blco", &["user", "2"]), expected);
    let sorted: BTreeSet<&str> = odd.into_iter().collect();
    assert_eq!(labels(dir.path(), "a.blco", "2"), sorted.into_iter().collect::<Vec<_>>());
    assert_eq!(labels(dir.path(), "a.blco", "user"), ["0", "1", "7", "8", "14", "15"], "by size");

    let reversed: Vec<_> = rows.iter().rev().cloned().collect();
    std::fs::write(path("b.csv"), format!("\u{feff}{}", text(&reversed, "\r\n"))).unwrap();
    program("blco-export", dir.path(), &["a.blco", "c.csv"]);
    program("blco-export", dir.path(), &["a.blco", "d.tsv"]);
    for other in ["b.csv", "c.csv", "d.tsv"] {
        program(
            "blco-pack",
            dir.path(),
            &[other, "--modes", modes, "--value", "value", "-o", "o.blco", "--force", "--memory", "0"],
        );
        assert!(bytes(&path("a.blco")) == bytes(&path("o.blco")), "{other}");
    }
    let verified = program("blco-info", dir.path(), &["a.blco", "--verify"]);
    assert_eq!((&verified["verified"], &verified["modes"][1]["kind"]), (&true.into(), &"text".into()));
    let found = program("blco-info", dir.path(), &["a.blco", "--labels", "2", "--find", "QUOT"]);
    assert_eq!(found["labels"].as_array().unwrap().len(), 1);

    // Checksums cover every byte of a file of labels.
    let file = path("a.blco/labels-1.bin");
    let whole = std::fs::read(&file).unwrap();
    for at in [0, whole.len() / 2, whole.len() - 20, whole.len() - 1] {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        std::fs::write(&file, damaged).unwrap();
        let output = run("blco-info", dir.path(), &["a.blco", "--verify"]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let told =
            said.contains("NOT VERIFIED") && said.contains("labels-1.bin") && said.contains("(labels)");
        assert!(output.status.code() == Some(1) && told, "{said}");
    }
    // A repair keeps what is intact: nonzeros, names and the other labels; of a whole store, everything.
    let repaired = run("blco-info", dir.path(), &["a.blco", "--repair", "saved.blco"]);
    let said = String::from_utf8(repaired.stdout).unwrap();
    assert!(repaired.status.code() == Some(1) && said.contains("the labels of mode 2"), "{said}");
    assert_eq!(labels(dir.path(), "saved.blco", "user"), labels(dir.path(), "a.blco", "user"));
    std::fs::write(&file, whole).unwrap();
    program("blco-info", dir.path(), &["a.blco", "--repair", "whole.blco"]);
    assert!(bytes(&path("a.blco")) == bytes(&path("whole.blco")));
    // Modes are given by name.
    let by_name = program("blco-run", dir.path(), &["a.blco", "--modes", modes, "--backend", "cpu"]);
    assert_eq!(by_name["modes"].as_array().map(Vec::len), Some(2), "{by_name}");
}

/// A rule for values with the same labels: its name and a function.
type Rule = (&'static str, fn(&[f64]) -> f64);

/// Many labels, in epochs that are merged: the same bytes, whatever the memory, threads, and order of rows; each rule for rows that
/// repeat, compared with an independent computation.
#[test]
fn duplicates_follow_their_rule_within_any_memory() {
    let dir = tempfile::tempdir().unwrap();
    let row = |i: u64| {
        let mixed = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let user = format!("user-{}", mixed % 30_000);
        (user, (mixed / 7 % 50).cast_signed() - 20, (i % 9) as f64 / 2.0 - 1.0)
    };
    let rows: Vec<_> = (0..60_000).map(|i| row(i % 50_000)).collect();
    let mut groups: BTreeMap<Vec<String>, Vec<f64>> = BTreeMap::new();
    for (user, level, value) in &rows {
        groups.entry(vec![user.clone(), level.to_string()]).or_default().push(*value);
    }
    let write = |name: &str, rows: &mut dyn Iterator<Item = &(String, i64, f64)>| {
        let mut text = String::from("user\tlevel\tx\n");
        rows.for_each(|(user, level, value)| writeln!(text, "{user}\t{level}\t{value}").unwrap());
        std::fs::write(dir.path().join(name), text).unwrap();
    };
    write("t.tsv", &mut rows.iter());
    write("r.tsv", &mut rows.iter().rev());
    let rules: [Rule; 5] = [
        ("sum", |x| x.iter().sum()),
        ("mean", |x| x.iter().sum::<f64>() / x.len() as f64),
        ("min", |x| x.iter().copied().fold(f64::INFINITY, f64::min)),
        ("max", |x| x.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
        ("count", |x| x.len() as f64),
    ];
    for (rule, expected) in rules {
        let pack = |input: &str, store: &str, memory: &str| {
            let args = [
                input,
                "--modes",
                "user,level",
                "--value",
                "x",
                "--duplicates",
                rule,
                "-o",
                store,
                "--force",
                "--memory",
                memory,
            ];
            program("blco-pack", dir.path(), &args)
        };
        pack("t.tsv", "a.blco", "1GiB");
        let expected: BTreeMap<_, _> =
            groups.iter().map(|(at, values)| (at.clone(), expected(values))).collect();
        assert_eq!(nonzeros(dir.path(), "a.blco", &["user", "level"]), expected, "{rule}");
        for input in ["t.tsv", "r.tsv"] {
            pack(input, "b.blco", "0");
            assert!(bytes(&dir.path().join("a.blco")) == bytes(&dir.path().join("b.blco")), "{rule} {input}");
        }
    }
    let levels = labels(dir.path(), "a.blco", "level");
    assert!(
        levels.windows(2).all(|pair| pair[0].parse::<i64>().unwrap() < pair[1].parse().unwrap()),
        "by size"
    );
    let kept = program(
        "blco-pack",
        dir.path(),
        &["t.tsv", "--modes", "user,level", "--duplicates", "keep", "-o", "k.blco"],
    );
    assert_eq!((&kept["nnz"], &kept["notes"]), (&60_000.into(), &serde_json::json!([])));
    let refused = run(
        "blco-pack",
        dir.path(),
        &["t.tsv", "--modes", "user,level", "--duplicates", "error", "-o", "e.blco"],
    );
    assert!(!refused.status.success());
    let noted =
        program("blco-pack", dir.path(), &["t.tsv", "--modes", "user,level", "--value", "x", "-o", "n.blco"]);
    assert!(noted["notes"][0].as_str().unwrap().contains("--duplicates"), "{noted}");
}

/// Bins over the whole range, empty ones included, on the clock of a zone; bins of numbers.
#[test]
fn bins_cover_their_range() {
    let dir = tempfile::tempdir().unwrap();
    let pack = |text: &str, modes: &str, more: &[&str]| {
        std::fs::write(dir.path().join("t.csv"), text).unwrap();
        let args = [&["t.csv", "--modes", modes, "-o", "t.blco", "--force"], more].concat();
        program("blco-pack", dir.path(), &args)
    };
    // Seconds since 1970: the last one of 2023 in UTC, which is 2024 in Zurich; a second of 1969; a leap day.
    let times = "who,at\na,1704067199\nb,-1\na,1709208000\n";
    pack(times, "who,at:month", &[]);
    let months = labels(dir.path(), "t.blco", "at");
    assert_eq!((months.len(), &months[0][..], &months[650][..]), (651, "1969-12", "2024-02"));
    pack(times, "who,at:day", &["--timezone", "Europe/Zurich"]);
    let shown = nonzeros(dir.path(), "t.blco", &["who", "at"]);
    let days: Vec<&str> = shown.keys().map(|at| &at[1][..]).collect();
    assert_eq!(days, ["2024-01-01", "2024-02-29", "1970-01-01"]);
    pack(times, "who,at:day-of-week,at:hour-of-day", &[]);
    assert_eq!(
        labels(dir.path(), "t.blco", "at:day-of-week"),
        ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
    );
    assert_eq!(labels(dir.path(), "t.blco", "3").len(), 24);
    // A clock that is set back: the later time has the earlier hour.
    pack("who,at\na,1729990799\nb,1729990800\n", "who,at:minute", &["--timezone", "Europe/Zurich"]);
    let minutes = labels(dir.path(), "t.blco", "at");
    assert_eq!(
        (minutes.len(), &minutes[0][..], &minutes[59][..]),
        (60, "2024-10-27T02:00", "2024-10-27T02:59")
    );

    // Digits alone are dates if the whole column may be dates; one that is none makes all of them seconds.
    for (more, first, last) in
        [("", "1999-01-01", "2024-03-01"), ("c,12345678\n", "1970-01-01", "1970-08-23")]
    {
        pack(&format!("who,at\na,20240301\nb,1999\n{more}"), "who,at:day", &[]);
        let days = labels(dir.path(), "t.blco", "at");
        assert_eq!((&days[0][..], &days[days.len() - 1][..]), (first, last));
    }

    let numbers: Vec<String> = (0..100).map(|i| format!("{},{}\n", i % 3, f64::from(i + 1) / 4.0)).collect();
    pack(&format!("who,x\n{}", numbers.concat()), "who,x:bins=5,x:quantiles=4,x:log2", &["--nulls", "drop"]);
    assert_eq!(labels(dir.path(), "t.blco", "x:bins=5")[4], "[20.05, 25]");
    assert_eq!(
        labels(dir.path(), "t.blco", "x:log2"),
        ["[0.25, 0.5)", "[0.5, 1)", "[1, 2)", "[2, 4)", "[4, 8)", "[8, 16)", "[16, 32)"]
    );
    assert_eq!(
        labels(dir.path(), "t.blco", "x:quantiles=4"),
        ["[0.25, 6.25]", "[6.5, 12.5]", "[12.75, 18.75]", "[19, 25]"]
    );
}

/// New rows get the indices of an older store's labels. New labels follow these, in their order.
#[test]
fn older_labels_keep_their_indices() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("old.csv", "who,at,x\nc,2024-02-01,1\na,2024-04-01,2\n");
    write("new.csv", "who,at,x\nd,2024-05-07,3\nc,2024-03-01,4\nb,2024-02-01,5\n");
    program("blco-pack", dir.path(), &["old.csv", "--modes", "who,at:month", "--value", "x"]);
    let args = ["new.csv", "--modes", "who,at:month", "--value", "x", "--labels-from", "old.blco"];
    program("blco-pack", dir.path(), &args);
    assert_eq!(labels(dir.path(), "new.blco", "who"), ["a", "c", "b", "d"]);
    assert_eq!(labels(dir.path(), "new.blco", "at"), ["2024-02", "2024-03", "2024-04", "2024-05"]);
    let found = nonzeros(dir.path(), "new.blco", &["who", "at"]);
    let rows = [("b", "2024-02", 5.0), ("c", "2024-03", 4.0), ("d", "2024-05", 3.0)];
    let wanted = rows.map(|(who, month, x)| (vec![who.to_owned(), month.to_owned()], x));
    assert_eq!(found, BTreeMap::from(wanted));
    write("older.csv", "who,at,x\nd,2023-05-07,3\n");
    let args = ["older.csv", "--modes", "who,at:month", "--labels-from", "old.blco"];
    let said = String::from_utf8(run("blco-pack", dir.path(), &args).stderr).unwrap();
    assert!(said.contains("2023-05 is before 2024-02"), "{said}");
}

/// Coordinate text gets names and labels too, and reports use them.
#[test]
fn three_commands_to_labelled_components() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("m.tns", "1 1 5\n2 1 3\n3 2 4\n");
    write("titles.txt", "Heat\nUp, up & <away>\n");
    program(
        "blco-pack",
        dir.path(),
        &["m.tns", "--mode-names", "user,title", "--labels", "title=titles.txt"],
    );
    program(
        "blco-cpd",
        dir.path(),
        &["m.blco", "--rank", "2", "--backend", "cpu", "--nonneg", "--starts", "3", "--top", "1"],
    );
    let csv = std::fs::read_to_string(dir.path().join("m.cp/components.csv")).unwrap();
    let rows: Vec<&str> = csv.lines().collect();
    assert_eq!((rows.len(), rows[0]), (5, "component,weight,mode,rank,label,loading"));
    assert!(
        rows[2].contains(",title,1,Heat,1") && rows[4].contains(",title,1,\"Up, up & <away>\",1"),
        "{csv}"
    );
    let page = std::fs::read_to_string(dir.path().join("m.cp/report.html")).unwrap();
    assert!(
        page.contains("Up, up &amp; &lt;away&gt;")
            && page.contains("count as zeros")
            && page.contains("blco-cpd m.blco")
    );
    let again = run("blco-cpd", dir.path(), &["m.blco", "--rank", "2"]);
    let said = String::from_utf8(again.stderr).unwrap();
    assert!(!again.status.success() && said.contains("--force"), "{said}");
    program("blco-cpd", dir.path(), &["m.blco", "--rank", "2", "--backend", "cpu", "--force"]);
    for (args, word) in [
        (&["m.tns", "--labels", "title=titles.txt"][..], "--mode-names"),
        (&["m.tns", "--mode-names", "a,b,c"], "has 2 modes; 3 are named"),
        (&["m.tns", "--mode-names", "user,title", "--labels", "user=titles.txt"], "3 indices and 2 labels"),
        (&["m.tns", "--mode-names", "user,title", "--labels", "film=titles.txt"], "there are user,title"),
        (&["m.tns", "--value", "x"], "--value: m.tns is no table by its name"),
    ] {
        let output = run("blco-pack", dir.path(), &[args, &["-o", "x.blco"]].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains(word), "{word}: {said}");
    }
}

/// The last row counts too: numbers followed by a word are text, ordered by bytes. Identifiers beyond 2^53 stay distinct.
#[test]
fn kinds_are_decided_over_the_whole_column() {
    let dir = tempfile::tempdir().unwrap();
    let numbers: Vec<String> = (0..70_000u64).map(|i| (i * 7919 % 70_000).to_string()).collect();
    let mut text = String::from("id,day,x\n");
    for (i, number) in numbers.iter().enumerate() {
        writeln!(text, "{number},2024-01-{:02},{}", i % 28 + 1, 9_007_199_254_740_992 + i as u64 % 3)
            .unwrap();
    }
    text.push_str("word,soon,1.0\n");
    std::fs::write(dir.path().join("t.csv"), text).unwrap();
    for (store, memory) in [("a.blco", "1GiB"), ("b.blco", "0")] {
        program("blco-pack", dir.path(), &["t.csv", "--modes", "id,day,x", "-o", store, "--memory", memory]);
    }
    assert!(bytes(&dir.path().join("a.blco")) == bytes(&dir.path().join("b.blco")));
    let wanted: BTreeSet<&str> = numbers.iter().map(String::as_str).chain(["word"]).collect();
    assert_eq!(labels(dir.path(), "b.blco", "id"), wanted.into_iter().collect::<Vec<_>>());
    assert_eq!(labels(dir.path(), "b.blco", "day").last().unwrap(), "soon");
    let large = ["1.0", "9007199254740992", "9007199254740993", "9007199254740994"];
    assert_eq!(labels(dir.path(), "b.blco", "x"), large);
    let info = program("blco-info", dir.path(), &["b.blco", "--quick"]);
    let kinds: Vec<&str> = (0..3).map(|mode| info["modes"][mode]["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["text", "text", "number"]);
}

/// docs/report.md has a row for every field of a result's report.json except those of plans, and has its version.
#[test]
fn every_field_of_a_report_is_on_its_page() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/report.md");
    let page = std::fs::read_to_string(page).unwrap();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("t.csv"), GOOD).unwrap();
    program("blco-pack", dir.path(), &["t.csv", "--modes", "user,title", "--value", "rating"]);
    program("blco-cpd", dir.path(), &["t.blco", "--rank", "2", "--starts", "2", "--backend", "cpu"]);
    let report = std::fs::read(dir.path().join("t.cp/report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
    assert_eq!(report["schema"], 2);
    let names =
        |value: &serde_json::Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
    let mut fields = names(&report);
    fields.extend(
        [&report["settings"], &report["starts"][1], &report["iterations"][0]].into_iter().flat_map(names),
    );
    let missing: Vec<_> = fields.iter().filter(|field| !page.contains(&format!("`{field}`"))).collect();
    assert!(fields.len() > 35 && missing.is_empty(), "{missing:?}");
}
