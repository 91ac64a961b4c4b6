//! Establishes that tables in columns (Parquet and Arrow IPC) give the same stores as CSV, to the byte, and come back; and that
//! wrong ones are reported in one line.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "numbers of rows, which are small"
)]

use crate::programs::program;
use crate::tables::{bytes, odd_labels, quoted, run};
use arrow_array::types::Int16Type;
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray, Float32Array,
    Float64Array, Int64Array, LargeStringArray, ListArray, RecordBatch, StringArray, StringViewArray,
    TimestampMillisecondArray, TimestampNanosecondArray, UInt16Array,
};
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

/// More rows than a piece has.
const ROWS: usize = 20_000;
/// 2023-12-30T22:13:20Z. Later times follow every half hour and a little.
const FROM: i64 = 1_703_974_400;

fn title(row: usize) -> String {
    format!("t{}, \"é\"\n", row * 7919 % 501)
}

fn seconds(row: usize) -> i64 {
    FROM + 1_801 * row as i64
}

/// The value of a row; some are missing.
fn rating(row: usize) -> Option<f64> {
    (row % 97 != 5).then(|| (row % 11) as f64 / 2.0)
}

/// The table as CSV, times in UTC with an offset.
fn csv() -> String {
    let mut text = String::from("user,title,seen,day,flag,price,rating,note\n");
    for row in 0..ROWS {
        let (title, second) = (title(row).replace('"', "\"\""), seconds(row) % 60);
        let stamp = civil(seconds(row));
        let day = &civil(86_400 * (19_000 + row as i64 % 40))[..10];
        let value = rating(row).map_or_else(String::new, |rating| rating.to_string());
        let price = format!("{}.{:02}", row % 3, row % 100);
        writeln!(
            text,
            "{},\"{title}\",{stamp}:{second:02}Z,{day},{},{price},{value},x",
            row % 4_999,
            row % 3 == 0
        )
        .unwrap();
    }
    text
}

/// Date, hour and minute, by the days of four centuries: independent of the programs' calendar.
fn civil(seconds: i64) -> String {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (mut year, mut day) = (1970, days);
    let leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    while day >= 365 + i64::from(leap(year)) {
        day -= 365 + i64::from(leap(year));
        year += 1;
    }
    let months = [31, 28 + i64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while day >= months[month] {
        day -= months[month];
        month += 1;
    }
    format!("{year}-{:02}-{:02}T{:02}:{:02}", month + 1, day + 1, second / 3600, second / 60 % 60)
}

/// The same table in columns, with one of two types per column. The nested column is not used.
fn columns(other: bool) -> RecordBatch {
    let rows = || 0..ROWS;
    let titles: Vec<String> = rows().map(title).collect();
    let title: ArrayRef = if other {
        let keys = arrow_array::Int16Array::from_iter_values(rows().map(|row| (row * 7919 % 501) as i16));
        let values: Vec<String> = (0..501).map(|key| format!("t{key}, \"é\"\n")).collect();
        Arc::new(DictionaryArray::<Int16Type>::new(keys, Arc::new(StringArray::from_iter_values(values))))
    } else {
        Arc::new(LargeStringArray::from_iter_values(&titles))
    };
    let user: ArrayRef = if other {
        Arc::new(UInt16Array::from_iter_values(rows().map(|row| (row % 4_999) as u16)))
    } else {
        Arc::new(Int64Array::from_iter_values(rows().map(|row| (row % 4_999) as i64)))
    };
    let seen: ArrayRef = if other {
        Arc::new(
            TimestampNanosecondArray::from_iter_values(rows().map(|r| seconds(r) * 1_000_000_000))
                .with_timezone("+05:30"),
        )
    } else {
        Arc::new(
            TimestampMillisecondArray::from_iter_values(rows().map(|r| seconds(r) * 1_000))
                .with_timezone("UTC"),
        )
    };
    let day: ArrayRef = Arc::new(Date32Array::from_iter_values(rows().map(|row| 19_000 + row as i32 % 40)));
    let flag: ArrayRef = if other {
        Arc::new(StringViewArray::from_iter_values(rows().map(|row| (row % 3 == 0).to_string())))
    } else {
        Arc::new(rows().map(|row| Some(row % 3 == 0)).collect::<BooleanArray>())
    };
    let prices = rows().map(|row| (row % 3 * 100 + row % 100) as i128);
    let price: ArrayRef =
        Arc::new(Decimal128Array::from_iter_values(prices).with_precision_and_scale(9, 2).unwrap());
    let rating: ArrayRef = if other {
        Arc::new(Float32Array::from_iter_values(rows().map(|row| rating(row).map_or(f32::NAN, |x| x as f32))))
    } else {
        Arc::new(rows().map(rating).collect::<Float64Array>())
    };
    let nested =
        ListArray::from_iter_primitive::<Int16Type, _, _>(rows().map(|row| Some(vec![Some(row as i16)])));
    RecordBatch::try_from_iter([
        ("user", user),
        ("title", title),
        ("seen", seen),
        ("day", day),
        ("flag", flag),
        ("price", price),
        ("rating", rating),
        ("note", Arc::new(nested)),
    ])
    .unwrap()
}

fn write_parquet(path: &Path, batch: &RecordBatch, compression: Compression, group: usize) {
    let properties = WriterProperties::builder()
        .set_compression(compression)
        .set_max_row_group_row_count(Some(group))
        .build();
    let mut writer =
        ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
}

fn write_file(path: &Path, batch: &RecordBatch, rows: usize) {
    let options =
        IpcWriteOptions::default().try_with_compression(Some(arrow_ipc::CompressionType::ZSTD)).unwrap();
    let out = File::create(path).unwrap();
    let mut writer = FileWriter::try_new_with_options(out, &batch.schema(), options).unwrap();
    for from in (0..batch.num_rows()).step_by(rows) {
        writer.write(&batch.slice(from, rows.min(batch.num_rows() - from))).unwrap();
    }
    writer.finish().unwrap();
}

fn stream(batch: &RecordBatch) -> Vec<u8> {
    let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(&batch.slice(0, 1)).unwrap();
    writer.write(&batch.slice(1, batch.num_rows() - 1)).unwrap();
    writer.into_inner().unwrap()
}

/// Packs `input` and returns the bytes of the store.
fn packed(dir: &Path, input: &str, options: &[&str]) -> std::collections::BTreeMap<String, Vec<u8>> {
    program("blco-pack", dir, &[&[input, "-o", "o.blco", "--force"], options].concat());
    bytes(&dir.join("o.blco"))
}

/// The same table as CSV, Parquet, an Arrow file and a stream, with different types for the same columns, gives the same
/// store: as labels and in bins, in another time zone, within little memory.
#[test]
fn tables_in_columns_give_the_stores_of_csv() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("t.csv"), csv()).unwrap();
    write_parquet(&path("a.parquet"), &columns(false), Compression::SNAPPY, 7_001);
    write_parquet(&path("b.pq"), &columns(true), Compression::ZSTD(ZstdLevel::default()), ROWS);
    write_file(&path("a.feather"), &columns(false), 3_000);
    write_file(&path("b.arrow"), &columns(true), ROWS);
    std::fs::write(path("a.arrows"), stream(&columns(false))).unwrap();
    let mut packer = flate2::write::GzEncoder::new(
        File::create(path("b.arrows.gz")).unwrap(),
        flate2::Compression::fast(),
    );
    packer.write_all(&stream(&columns(true))).unwrap();
    packer.finish().unwrap();
    let inputs = ["a.parquet", "b.pq", "a.feather", "b.arrow", "a.arrows", "b.arrows.gz"];
    let requests: [&[&str]; 3] = [
        &["--modes", "user,title,seen:hour,flag", "--value", "rating", "--timezone", "America/New_York"],
        &["--modes", "title,day,user:quantiles=9", "--duplicates", "mean", "--value", "7", "--memory", "0"],
        &["--modes", "day:week,price,user:bins=4,seen:day-of-week", "--value", "rating"],
    ];
    for request in requests {
        let options = [request, &["--nulls", "drop"]].concat();
        let wanted = packed(dir.path(), "t.csv", &options);
        for input in inputs {
            assert!(packed(dir.path(), input, &options) == wanted, "{input} {request:?}");
        }
    }
    let by_pipe = std::process::Command::new(assert_cmd::cargo::cargo_bin("blco-pack"))
        .current_dir(dir.path())
        .args([&["-", "-o", "o.blco", "--force", "--nulls", "drop"], requests[0]].concat())
        .stdin(File::open(path("a.arrows")).unwrap())
        .output()
        .unwrap();
    assert!(by_pipe.status.success(), "{}", String::from_utf8_lossy(&by_pipe.stderr));
    let options = [requests[0], &["--nulls", "drop"]].concat();
    assert!(bytes(&path("o.blco")) == packed(dir.path(), "t.csv", &options));
    // Exported Parquet is packed to the same bytes, labels with quotes and newlines included.
    program("blco-export", dir.path(), &["o.blco", "back.parquet"]);
    let wanted = bytes(&path("o.blco"));
    let again = ["--modes", "user,title,seen:hour,flag", "--value", "rating", "--duplicates", "error"];
    assert!(packed(dir.path(), "back.parquet", &again) == wanted);
}

/// Labels that CSV must quote, empty and long ones, give the same store from columns, and come back as Parquet and CSV.
#[test]
fn odd_labels_survive_in_columns() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let labels = odd_labels();
    let rows =
        || (0..4 * labels.len()).map(|row| (row % 5, &labels[row * 3 % labels.len()], row as f64 / 4.0));
    let mut text = String::from("user,title,x\n");
    rows().for_each(|(user, title, x)| writeln!(text, "{user},{},{x}", quoted(title)).unwrap());
    std::fs::write(path("t.csv"), text).unwrap();
    let users: ArrayRef = Arc::new(Int64Array::from_iter_values(rows().map(|row| row.0 as i64)));
    let values: ArrayRef = Arc::new(Float64Array::from_iter_values(rows().map(|row| row.2)));
    let titles: [ArrayRef; 3] = [
        Arc::new(StringArray::from_iter_values(rows().map(|row| row.1))),
        Arc::new(StringViewArray::from_iter_values(rows().map(|row| row.1))),
        Arc::new(rows().map(|row| row.1.as_str()).collect::<DictionaryArray<Int16Type>>()),
    ];
    let options = ["--modes", "user,title", "--value", "x"];
    let wanted = packed(dir.path(), "t.csv", &options);
    for titles in titles {
        let batch =
            RecordBatch::try_from_iter([("user", users.clone()), ("title", titles), ("x", values.clone())])
                .unwrap();
        write_parquet(&path("a.parquet"), &batch, Compression::SNAPPY, 7);
        write_file(&path("a.arrow"), &batch, 10);
        std::fs::write(path("a.arrows"), stream(&batch)).unwrap();
        for input in ["a.parquet", "a.arrow", "a.arrows"] {
            assert!(packed(dir.path(), input, &options) == wanted, "{input} {}", batch.schema());
        }
    }
    for back in ["back.parquet", "back.csv"] {
        program("blco-export", dir.path(), &["o.blco", back]);
        assert!(packed(dir.path(), back, &options) == wanted, "{back}");
    }
}

/// A wrong table in columns, the options, and words of the message.
#[test]
fn wrong_columns_are_reported_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let small = columns(false).slice(0, 300);
    write_parquet(&dir.path().join("t.parquet"), &small, Compression::UNCOMPRESSED, ROWS);
    let whole = std::fs::read(dir.path().join("t.parquet")).unwrap();
    let bytes: ArrayRef = Arc::new(BinaryArray::from_vec(vec![b"a", b"caf\xe9"]));
    let numbers: ArrayRef = Arc::new(Float64Array::from(vec![1.0, f64::INFINITY]));
    let odd =
        RecordBatch::try_from_iter([("user", bytes), ("x", numbers.clone()), ("y", numbers.slice(0, 2))])
            .unwrap();
    write_parquet(&dir.path().join("odd.parquet"), &odd, Compression::SNAPPY, ROWS);
    let usual = "--modes user,title --value rating";
    let cases: [(&str, &[u8], &str, &[&str]); 14] = [
        ("t.parquet", &whole[..whole.len() - 9], usual, &["t.parquet: is damaged or not whole", "again"]),
        ("t.parquet", &whole[..20], usual, &["t.parquet: is damaged or not whole"]),
        ("t.parquet", b"PAR1", usual, &["t.parquet: is damaged or not whole"]),
        ("t.parquet", b"user,title\n1,a\n", usual, &["t.parquet: does not begin as a Parquet file", ".csv"]),
        ("t.feather", b"FEA1....", usual, &["Feather file of version 1", "version 2"]),
        ("t.arrow", b"ARROW1\0\0....ARROW1", usual, &["t.arrow: is damaged or not whole"]),
        ("t.arrows", &[0xff; 40], usual, &["t.arrows: is damaged or not whole"]),
        ("t.parquet", &whole, "--modes user,film", &["no column \"film\"; the columns are user,title,seen"]),
        ("t.parquet", &whole, "--modes user,note", &["column \"note\" is nested", "unnest"]),
        (
            "t.parquet",
            &whole,
            "--modes user,title --value seen",
            &["row 1, column \"seen\"", "is not a number"],
        ),
        ("t.parquet", &whole, "--modes user,flag:month", &["row 1, column \"flag\": \"true\" is no date"]),
        (
            "t.parquet",
            &whole,
            usual,
            &["4 of 300 rows are incomplete", "lacks 4, the first in row 6;", "--nulls drop"],
        ),
        ("t.parquet", &whole, "--modes user,title --delimiter ;", &["--delimiter", "options of CSV"]),
        ("t.parquet", &whole, "", &["say which columns are modes", "user,title,seen"]),
    ];
    for (name, contents, options, words) in cases {
        std::fs::write(dir.path().join(name), contents).unwrap();
        refused(dir.path(), name, options, words);
    }
    refused(dir.path(), "odd.parquet", "--modes user,x", &["row 2, column \"user\": is not UTF-8"]);
    refused(
        dir.path(),
        "odd.parquet",
        "--modes y,x --value x",
        &["row 2, column \"x\": \"inf\" is not a finite number"],
    );
}

/// Runs `blco-pack`, which must end with status 2 and one line that has these words.
fn refused(dir: &Path, name: &str, options: &str, words: &[&str]) {
    let args: Vec<&str> = [name, "-o", "x.blco"].into_iter().chain(options.split_whitespace()).collect();
    let output = run("blco-pack", dir, &args);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{name} {options} {words:?}: {said}");
    assert!(words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    assert!(!dir.join("x.blco").exists());
}

/// A file that is truncated or changed anywhere is packed, or refused in one line without a decoder's panic.
#[test]
fn damaged_columns_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let small = columns(true).slice(0, 200).project(&[0, 1, 6]).unwrap();
    write_parquet(&dir.path().join("t.parquet"), &small, Compression::SNAPPY, 64);
    write_file(&dir.path().join("t.arrow"), &small, 64);
    std::fs::write(dir.path().join("t.arrows"), stream(&small)).unwrap();
    let mut refused = 0;
    for name in ["t.parquet", "t.arrow", "t.arrows"] {
        let whole = std::fs::read(dir.path().join(name)).unwrap();
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state % below as u64).unwrap()
        };
        for number in 0..60 {
            let mut changed = whole.clone();
            if number % 4 == 0 {
                changed.truncate(random(whole.len()));
            } else {
                // Most of the last bytes are metadata.
                let at = if number % 2 == 0 {
                    random(whole.len())
                } else {
                    whole.len() - 1 - random(1_500.min(whole.len()))
                };
                changed[at] = [0, 0xff, 0x80, changed[at] ^ 4][random(4)];
            }
            std::fs::write(dir.path().join(name), &changed).unwrap();
            let args = [
                name,
                "--modes",
                "user,title",
                "--value",
                "rating",
                "--nulls",
                "drop",
                "-o",
                "x.blco",
                "--force",
                "--quiet",
            ];
            let output = run("blco-pack", dir.path(), &args);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            match output.status.code() {
                Some(0) => {}
                Some(2) => {
                    assert_eq!(said.trim_end().lines().count(), 1, "{name} {number}: {said}");
                    refused += 1;
                }
                other => panic!("{name} {number}: {other:?} {said}"),
            }
        }
    }
    assert!(refused > 60, "{refused}");
}
