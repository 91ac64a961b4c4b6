//! The reader and the writer as a caller sees them.

use super::*;
use crate::sys::fault::{Call, Fault, Faults};
use proptest::prelude::*;
use std::io::Cursor;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

/// All rows, all values, the extent.
type Contents = (Vec<u32>, Vec<f64>, Extent);

fn read_by(sys: &Sys, text: &[u8], options: &ReadOptions, piece_bytes: usize) -> Result<Contents> {
    let text = Box::new(Cursor::new(text.to_vec()));
    let mut reader = TnsReader::from_read(sys, text, "t.tns", options.clone())?;
    reader.piece_bytes = piece_bytes;
    contents(&mut reader)
}

fn contents(reader: &mut TnsReader) -> Result<Contents> {
    let (mut indices, mut values) = (Vec::new(), Vec::new());
    let extent = reader.drain(&mut |batch| {
        assert!(batch.nnz() > 0);
        indices.extend(batch.indices);
        values.extend(batch.values);
        Ok(())
    })?;
    assert_eq!(extent.nnz, values.len() as u64);
    assert_eq!(indices.len(), values.len() * extent.dims.len());
    for row in indices.chunks(extent.dims.len()) {
        assert!(row.iter().zip(&extent.dims).all(|(&i, &dim)| u64::from(i) < dim));
    }
    Ok((indices, values, extent))
}

/// Reads a file by as many threads as read its ranges themselves.
fn read_file_by(sys: &Sys, text: &[u8], options: &ReadOptions, piece_bytes: usize) -> Result<Contents> {
    static POOL: LazyLock<rayon::ThreadPool> =
        LazyLock::new(|| rayon::ThreadPoolBuilder::new().num_threads(THREADS_READ).build().unwrap());
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let named = |e| if let Error::Input { what, .. } = e { Error::input("t.tns", what) } else { e };
    let mut reader = TnsReader::open(sys, file.path(), options.clone()).map_err(named)?;
    (reader.name, reader.piece_bytes) = ("t.tns".into(), piece_bytes);
    POOL.install(|| contents(&mut reader))
}

/// Reads with pieces and ranges of several sizes, which must make no difference.
fn read_as(text: &[u8], options: &ReadOptions) -> Result<Contents> {
    let sys = Sys::default();
    let whole = read_by(&sys, text, options, PIECE_BYTES);
    for piece_bytes in [1, 2, 7, 16, 61] {
        let cut = read_by(&sys, text, options, piece_bytes);
        assert_eq!(format!("{cut:?}"), format!("{whole:?}"), "pieces of {piece_bytes} bytes");
        let file = read_file_by(&sys, text, options, piece_bytes);
        assert_eq!(format!("{file:?}"), format!("{whole:?}"), "ranges of {piece_bytes} bytes");
    }
    whole
}

fn read(text: &str) -> Result<Contents> {
    read_as(text.as_bytes(), &ReadOptions::default())
}

fn with_dims(dims: &[u64]) -> ReadOptions {
    ReadOptions { dims: Some(dims.to_vec()), ..ReadOptions::default() }
}

fn zero_based() -> ReadOptions {
    ReadOptions { index_base: IndexBase::Zero, ..ReadOptions::default() }
}

fn gzip(text: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn zst(text: &[u8]) -> Vec<u8> {
    zstd::encode_all(text, 3).unwrap()
}

#[test]
fn dims_are_declared_by_the_user_or_a_header() {
    let declared = |text: &str, options: ReadOptions| {
        let text = Box::new(Cursor::new(text.as_bytes().to_vec()));
        let mut reader = TnsReader::from_read(&Sys::default(), text, "t.tns", options).unwrap();
        let shape = reader.declared().unwrap();
        assert_eq!(reader.declared().unwrap(), shape, "asking changes nothing");
        let extent = contents(&mut reader).unwrap().2;
        shape.map(|shape| {
            assert!(shape.dims().iter().zip(&extent.dims).all(|(&a, &b)| u64::from(a) == b));
            shape.dims().to_vec()
        })
    };
    assert_eq!(declared("1 2 3\n2 1 4\n", ReadOptions::default()), None);
    assert_eq!(declared("1 2 3\n2 1 4\n", with_dims(&[5, 6])), Some(vec![5, 6]));
    assert_eq!(declared("2\n7 8\n1 2 3\n2 1 4\n", ReadOptions::default()), Some(vec![7, 8]));
    assert_eq!(declared("2\n7 8\n1 2 3\n2 1 4\n", with_dims(&[5, 6])), Some(vec![5, 6]));
}

/// Fails unless the error is an `Error::Input` at `place` that holds every fragment.
#[track_caller]
fn assert_bad(result: Result<Contents>, place: &str, fragments: &[&str]) {
    match result {
        Err(Error::Input { place: met, what }) => {
            assert_eq!(met, place, "{what}");
            for fragment in fragments {
                assert!(what.contains(fragment), "`{fragment}` is not in: {what}");
            }
            assert!(what.len() < 400 && what.chars().all(|c| !c.is_control()), "{what:?}");
        }
        other => panic!("wanted an error at {place} with {fragments:?}, met {other:?}"),
    }
}

#[test]
fn plain_rows() {
    let (indices, values, extent) = read("1 2 3 4.5\n2 1 1 -7\n").unwrap();
    assert_eq!(indices, [0, 1, 2, 1, 0, 0]);
    assert_eq!(values, [4.5, -7.0]);
    assert_eq!(extent, Extent { dims: vec![2, 2, 3], nnz: 2 });
}

#[test]
fn whatever_white_space_and_comments() {
    let wanted = read("1 2 3\n4 5 6\n").unwrap();
    for text in [
        "1 2 3\n4 5 6",
        "1 2 3\r\n4 5 6\r\n",
        "\n\n  \t\r\n1 2 3\n\n4 5 6\n\n \n",
        "# title\n#\n1 2 3 # after data\n  # indented\n4 5 6#close\n# end",
        "1\t2\t3\n\t4 \t 5\x0b6\x0c\n",
        "\u{feff}1 2 3\n4 5 6\n",
        "\u{feff}# title\n1 2 3\n4 5 6\n",
        "+1 +2 +3\n+4 5 +6.0e0\n",
        "0001 2 3\n00000000000000000000004 5 6\n",
        "# caf\u{e9} 1 2\n1 2 3.0\n4 5 .6e1\n",
        "1 2 3.\n4 5 60E-1\n",
        "1 2 000000000000000000000000003\n4 5 0.6e+1\n",
    ] {
        assert_eq!(read(text).unwrap(), wanted, "{text:?}");
    }
    let latin_1 = b"# caf\xe9\n1 2 3\n4 5 6\n";
    assert_eq!(read_as(latin_1, &ReadOptions::default()).unwrap(), wanted, "comments are not looked at");
}

/// Memory of batches is counted by nonzeros, so the room reserved for empty lines must be released.
#[test]
fn batches_of_empty_lines_are_small() {
    let text = ["1 2 3\n", &"\n".repeat(1 << 20), "4 5 6\n"].concat();
    let sys = Sys::default();
    let mut reader =
        TnsReader::from_read(&sys, Box::new(Cursor::new(text)), "text", ReadOptions::default()).unwrap();
    let mut numbers = 0;
    reader
        .drain(&mut |batch: Batch| {
            numbers += batch.indices.capacity() + batch.values.capacity();
            Ok(())
        })
        .unwrap();
    assert!(numbers < 1000, "{numbers}");
}

#[test]
fn values_are_exact() {
    for (token, wanted) in [
        ("-0", -0.0),
        ("0", 0.0),
        ("-0.0", -0.0),
        ("+0", 0.0),
        ("0e-400", 0.0),
        ("-0.000", -0.0),
        ("3e-324", f64::from_bits(1)),
        ("999999999999999", 999_999_999_999_999.0),
        ("-999999999999999", -999_999_999_999_999.0),
        ("9007199254740992", 9_007_199_254_740_992.0),
        ("-9007199254740994", -9_007_199_254_740_994.0),
        ("00018446744073709551616", 18_446_744_073_709_551_616.0),
        ("9007199254740993.0", 9_007_199_254_740_992.0),
        ("0.1", 0.1),
        ("1.7976931348623157e308", f64::MAX),
        ("5e-324", f64::from_bits(1)),
        ("2.2250738585072011e-308", f64::from_bits(0x000f_ffff_ffff_ffff)),
        ("123456789012345678.5", 123_456_789_012_345_680.0),
    ] {
        for end in ["\n", "", " \n", "\r\n", "#\n"] {
            let (_, values, _) = read(&format!("1 1 {token}{end}")).unwrap();
            assert_eq!(values[0].to_bits(), wanted.to_bits(), "{token}");
        }
    }
    let power = format!("{:.0}", 2f64.powi(1023));
    assert_eq!(read(&format!("1 1 {power}")).unwrap().1, [2f64.powi(1023)]);
}

#[test]
fn every_order() {
    for order in 2..=8 {
        let text = format!("{}9\n{}8\n", "3 ".repeat(order), "1 ".repeat(order));
        let (indices, values, extent) = read(&text).unwrap();
        assert_eq!(indices, [vec![2; order], vec![0; order]].concat());
        assert_eq!(values, [9.0, 8.0]);
        assert_eq!(extent.dims, vec![3; order]);
    }
}

#[test]
fn headers_declare_dims() {
    let dims = |text: &str, options: &ReadOptions| read_as(text.as_bytes(), options).unwrap().2.dims;
    let default = ReadOptions::default();
    let toolbox = "# c\n\nsptensor\n# c\n 3 # order\n\n5 4 3 \n2\n# c\n1 1 1 1.0\n2 2 2 0\n";
    assert_eq!(dims(toolbox, &default), [5, 4, 3]);
    assert_eq!(dims(&toolbox.replace("sptensor", "SPTENSOR\r"), &default), [5, 4, 3]);
    assert_eq!(dims("# c\n2\n# c\n\n7 9\n#\n1 1 1\n", &default), [7, 9]);
    assert_eq!(dims("2\n7 9\n1 1 1\n", &with_dims(&[3, 3])), [3, 3]);
    assert_eq!(dims("2\n7 0\n1 1 1\n", &with_dims(&[3, 3])), [3, 3], "unused dims are not judged");
    assert_eq!(dims("1 1 1\n", &with_dims(&[3, 4])), [3, 4]);
    assert_eq!(dims("4294967295 1 1\n", &default), [4_294_967_295, 1]);
    assert_eq!(dims("4294967294 1 1\n", &zero_based()), [4_294_967_295, 2]);
    assert_eq!(dims("0 0 1\n", &zero_based()), [1, 1]);
}

#[test]
fn bad_rows() {
    let long = "x".repeat(1000);
    for (text, place, fragments) in [
        (
            "1 1 1 5\n1 1 5\n",
            "t.tns:2",
            &["short row", "3 fields", "4 are expected", "3 indices", "first row"][..],
        ),
        ("1 1 1 5\n1\n", "t.tns:2", &["short row", "1 field where"]),
        ("1 1 1 5\n1 1 1 1 5\n", "t.tns:2", &["long row", "5 fields", "4 are expected", "#"]),
        ("1 1 1 5\n1,1,1,5\n", "t.tns:2", &["short row", "commas"]),
        ("user item rating\n1 1 1\n", "t.tns:1", &["`user` is not a number", "mode 1", "#"]),
        ("1 1 1\n1 two 1\n", "t.tns:2", &["`two` is not a number", "mode 2"]),
        ("1 1 1\n1 1 one\n", "t.tns:2", &["`one` is not a number", "value"]),
        ("1 1 1\n1 1 1e\n", "t.tns:2", &["`1e` is not a number"]),
        ("1 1 1\n1 1 1.5x\n", "t.tns:2", &["`1.5x` is not a number"]),
        ("1 1 1\n1 1 0x10\n", "t.tns:2", &["`0x10` is not a number"]),
        ("1 1 1\n1 1 .\n", "t.tns:2", &["`.` is not a number"]),
        ("1 1 1\n1 1 --1\n", "t.tns:2", &["`--1` is not a number"]),
        ("1 1 1\n1 1 +-1\n", "t.tns:2", &["`+-1` is not a number"]),
        ("1 1 1\n1 1 -\n", "t.tns:2", &["`-` is not a number"]),
        ("1 1 1\n+ 1 1\n", "t.tns:2", &["`+` is not a number"]),
        ("1 1 1\n1 0 1\n", "t.tns:2", &["index 0 of mode 2", "`index_base` 0"]),
        ("1 1 1\n1 -3 1\n", "t.tns:2", &["`-3` of mode 2 is negative", "count from 1"]),
        ("1 1 1\n4294967296 1 1\n", "t.tns:2", &["`4294967296` of mode 1 is above 4294967295"]),
        ("1 1 1\n99999999999999999999 1 1\n", "t.tns:2", &["of mode 1 is above 4294967295"]),
        ("1 1 1\n18446744073709551617 1 1\n", "t.tns:2", &["of mode 1 is above 4294967295"]),
        ("1 1 1\n1.5 1 1\n", "t.tns:2", &["`1.5` of mode 1", "whole number"]),
        ("1 1 1\n1e3 1 1\n", "t.tns:2", &["`1e3` of mode 1", "whole number"]),
        ("1 1 1\n1 1 NaN\n", "t.tns:2", &["`NaN` is not finite"]),
        ("1 1 1\n1 1 -inf\n", "t.tns:2", &["`-inf` is not finite"]),
        ("1 1 1\n1 1 +Infinity\n", "t.tns:2", &["`+Infinity` is not finite"]),
        ("1 1 1\n1 1 1e999\n", "t.tns:2", &["`1e999` overflows"]),
        ("1 1 1\n1 1 -1e309\n", "t.tns:2", &["`-1e309` overflows"]),
        ("1 1 1\n1 1 1e-400\n", "t.tns:2", &["`1e-400` underflows", "write 0"]),
        ("1 1 1\n1 1 -0.001E-330 # tiny\n", "t.tns:2", &["`-0.001E-330` underflows"]),
        ("1 1 1\n1 1 2e-324\n", "t.tns:2", &["`2e-324` underflows"]),
        ("1 1 1\n1 1 9007199254740993\n", "t.tns:2", &["`9007199254740993` is not exact", "with a point"]),
        ("1 1 1\n1 1 -100000000000000000000001\n", "t.tns:2", &["is not exact"]),
        ("1 1 1 1 1 1 1 1 1 5\n", "t.tns:1", &["order 9", "2 to 8"]),
        ("1 5\n", "t.tns:1", &["one index", "2 to 8"]),
        ("# c\r\n\n1 1 1\n#\n1 1 x\n1 x 1\nx 1 1\n", "t.tns:5", &["`x`"]),
        ("1 1 1\n1 1 x", "t.tns:2", &["`x`"]),
        ("1 1 1\n1 1 \u{2212}5\n", "t.tns:2", &["`\u{2212}5` is not a number"]),
        ("1 1 1\n1\u{a0}1 1\n", "t.tns:2", &["short row"]),
        ("1 1 1\n1 \u{a0} 1\n", "t.tns:2", &["`\\u{a0}` is not a number"]),
        ("1 1 1\n1 1 \u{1b}[2J\n", "t.tns:2", &["byte 5 of the line is 0x1b", "not text"]),
        ("1 1 1\n1 1 1\0\n", "t.tns:2", &["0x00"]),
        (&format!("1 1 1\n1 1 {long}\n"), "t.tns:2", &["xxxx…`", "is not a number"]),
    ] {
        assert_bad(read(text), place, fragments);
    }
}

#[test]
fn bad_rows_under_options() {
    for (text, options, place, fragments) in [
        ("0 0 1\n-1 0 1\n", zero_based(), "t.tns:2", &["negative", "count from 0"][..]),
        ("0 0 1\n4294967295 0 1\n", zero_based(), "t.tns:2", &["above 4294967294"]),
        ("1 1 1\n1 5 1\n", with_dims(&[4, 4]), "t.tns:2", &["index 5 of mode 2", "dim 4", "`dims`"]),
        ("1 1 1 1\n", with_dims(&[4, 4]), "t.tns:1", &["long row", "4 fields", "3 are expected"]),
        (
            "2\n4 4\n1 1 1\n5 1 1\n",
            ReadOptions::default(),
            "t.tns:4",
            &["index 5 of mode 1", "dim 4", "header", "`dims`"],
        ),
        (
            "2\n4 4\n0 0 1\n4 1 1\n",
            zero_based(),
            "t.tns:4",
            &["index 4 of mode 1", "dim 4", "`index_base` 0"],
        ),
        ("3\n4 4 4\n1 1 1 1\n", with_dims(&[4, 4]), "t.tns:1", &["order 3", "2 dims"]),
    ] {
        assert_bad(read_as(text.as_bytes(), &options), place, fragments);
    }
    let refused = |dims: &[u64]| read_as(b"1 1 1\n", &with_dims(dims)).unwrap_err().to_string();
    assert!(refused(&[4, 0]).starts_with("`dims`: mode 2 has dim 0"));
    assert!(refused(&[4]).contains("order 1"));
}

#[test]
fn bad_headers() {
    for (text, place, fragments) in [
        ("tensor\n3\n2 2 2\n1\n", "t.tns:1", &["`tensor`", "sptensor"][..]),
        ("# c\nktensor\n", "t.tns:2", &["`ktensor`"]),
        ("hello\n1 1 1\n", "t.tns:1", &["`hello` is neither a header nor a row", "indices and a value"]),
        ("1;2;3;4.5\n", "t.tns:1", &["`1;2;3;4.5`", "separate"]),
        ("sptensor\nthree\n", "t.tns:2", &["`three` is not the header's order"]),
        ("sptensor\n2 2\n", "t.tns:2", &["more than one field", "order"]),
        ("sptensor\n3\n2 2\n1\n", "t.tns:3", &["order 3", "2 dims"]),
        ("sptensor\n2\n2 x\n1\n", "t.tns:3", &["`x` is not a dim"]),
        ("sptensor\n2\n2 0\n1\n", "t.tns:3", &["mode 2 has dim 0"]),
        ("sptensor\n2\n2 2\n1 1 5\n", "t.tns:4", &["3 fields", "count of nonzeros"]),
        ("sptensor\n2\n2 2\n-1\n", "t.tns:4", &["`-1` is not the header's count"]),
        ("sptensor\n2\n2 2\n3\n1 1 1\n2 2 1\n", "t.tns", &["declares 3 nonzeros", "2 rows"]),
        ("sptensor\n2\n2 2\n1\n1 1 1\n2 2 1\n", "t.tns", &["declares 1 nonzeros", "2 rows"]),
        ("3\n2 2\n1 1 1 1\n", "t.tns:2", &["order 3", "2 dims"]),
        ("9\n1 1 1 1 1 1 1 1 1\n", "t.tns:1", &["order 9", "2 to 8"]),
        ("1\n5\n1 1\n", "t.tns:1", &["order 1"]),
        ("99999999999999999999999\n", "t.tns:1", &["is neither a header nor a row"]),
        ("18446744073709551615\n", "t.tns:1", &["order 2 to 8"]),
        ("2\n4294967296 1\n1 1 1\n", "t.tns:2", &["mode 1 has dim 4294967296"]),
        ("2\n4 4\n1 1 1 1\n", "t.tns:3", &["long row"]),
        ("5\n4294967295 4294967295 4294967295 4294967295 2\n1 1 1 1 1 1\n", "t.tns:2", &["129 bits"]),
        ("4294967295 4294967295 4294967295 4294967295 2 1\n", "t.tns", &["129 bits"]),
    ] {
        assert_bad(read(text), place, fragments);
    }
}

#[test]
fn matrix_market_files() {
    let head = "%%MatrixMarket matrix coordinate real general\n% a comment\n%\n";
    let contents = read(&format!("{head}3 4 2\n1 1 0.5\n3 2 -1e3\n")).unwrap();
    let plain = read_as(b"1 1 0.5\n3 2 -1e3\n", &with_dims(&[3, 4])).unwrap();
    assert_eq!(format!("{contents:?}"), format!("{plain:?}"));
    for (text, place, fragments) in [
        (format!("{head}3 4 3\n1 1 0.5\n"), "t.tns", &["declares 3 nonzeros", "1 rows"][..]),
        (format!("{head}3 4\n1 1 0.5\n"), "t.tns:4", &["rows, columns"]),
        (format!("{head}0 4 0\n"), "t.tns:4", &["dims cannot be used"]),
        (format!("{head}3 4 1\n4 1 1\n"), "t.tns:5", &["index 4"]),
        (head.replace("real", "pattern"), "t.tns:1", &["no values"]),
        (head.replace("general", "symmetric"), "t.tns:1", &["symmetric", "write all"]),
        (head.replace("coordinate", "array"), "t.tns:1", &["only coordinate"]),
    ] {
        assert_bad(read(&text), place, fragments);
    }
}

/// Rows without values count 1 on every path, and fields that are not indices are refused.
#[test]
fn rows_of_indices_alone() {
    let options = ReadOptions { no_values: true, ..ReadOptions::default() };
    let contents = read_as(b"1 2 3\n2 1 1 # a comment\n+3 2 2\n", &options).unwrap();
    let plain = read("1 2 3 1\n2 1 1 1\n3 2 2 1\n").unwrap();
    assert_eq!(format!("{contents:?}"), format!("{plain:?}"));
    let pattern = "%%MatrixMarket matrix coordinate pattern general\n3 4 2\n1 1\n3 2\n";
    assert!(read_as(pattern.as_bytes(), &options).is_ok());
    for (text, place, fragments) in [
        ("1 2 3\n1 2\n", "t.tns:2", &["short row", "3 indices alone"][..]),
        ("1 2 3\n1 2 3 4\n", "t.tns:2", &["long row"]),
        ("1 2 3\n1 2 4.5\n", "t.tns:2", &["`4.5` of mode 3"]),
        ("1\n", "t.tns:1", &["order 1"]),
    ] {
        assert_bad(read_as(text.as_bytes(), &options), place, fragments);
    }
}

/// Two indices and a whole number in their range are noticed as three possible indices.
#[test]
fn values_that_could_be_indices_are_seen() {
    let seen = |text: &'static str| {
        let options = ReadOptions::default();
        let mut reader =
            TnsReader::from_read(&Sys::default(), Box::new(text.as_bytes()), "t.tns", options).unwrap();
        reader.drain(&mut |_| Ok(())).unwrap();
        reader.values_like_indices()
    };
    assert!(seen("1 2 3\n4 1 4\n") && seen("7 2 1\n"));
    for text in ["1 2 3\n", "7 2 1.5\n", "7 2 0\n", "7 2 -1\n", "7 2 1 1\n", "2\n7 7\n7 2 1\n"] {
        assert!(!seen(text), "{text}");
    }
}

#[test]
fn no_nonzeros() {
    for text in [
        "",
        "\n",
        " ",
        "#",
        "# a\n# b\n",
        "2\n",
        "2\n4 4\n",
        "sptensor\n2\n4 4\n",
        "sptensor\n2\n4 4\n3\n# c",
    ] {
        assert_bad(read(text), "t.tns", &["no nonzeros"]);
        assert_bad(read_as(&gzip(text.as_bytes()), &ReadOptions::default()), "t.tns", &["no nonzeros"]);
        assert_bad(read_as(&zst(text.as_bytes()), &ReadOptions::default()), "t.tns", &["no nonzeros"]);
    }
}

#[test]
fn bytes_that_are_not_text() {
    let default = ReadOptions::default();
    let bad = |bytes: &[u8]| read_as(bytes, &default);
    assert_bad(bad(b"1 1 1\n1 1 \xff\xfe\n"), "t.tns:2", &["byte 5", "0xff", "not text"]);
    assert_bad(bad(b"\x7fELF\x02\x01\x01\0\0\0"), "t.tns:1", &["byte 1", "0x7f"]);
    assert_bad(bad(b"\x1f"), "t.tns:1", &["0x1f"]);
    assert_bad(bad(b"\xfd7zXZ\0rest"), "t.tns", &["xz", "unpack it first"]);
    assert_bad(bad(b"BZh9rest"), "t.tns", &["bzip2"]);
    assert_bad(bad(b"PK\x03\x04rest"), "t.tns", &["zip", "unpack it first"]);
    assert_bad(bad(b"\xd0\xcf\x11\xe0rest"), "t.tns", &["Excel", "save it as CSV"]);
    assert_bad(bad(b"\xff\xfe1\0 \0"), "t.tns", &["UTF-16"]);
    // Every single byte, alone and in a row, is accepted or refused without a panic.
    for byte in 0..=255u8 {
        let _ = bad(&[byte]);
        let _ = bad(&[b'1', b' ', byte, b' ', b'3', b'\n', byte]);
    }
}

#[test]
fn long_lines() {
    let default = ReadOptions::default();
    let sys = Sys::default();
    let max = pieces::LINE_BYTES_MAX;
    let read_by = |sys: &Sys, text: &[u8], options: &ReadOptions, piece_bytes| {
        let (piecewise, file) =
            (read_by(sys, text, options, piece_bytes), read_file_by(sys, text, options, piece_bytes));
        assert_eq!(format!("{piecewise:?}"), format!("{file:?}"));
        piecewise
    };
    // Padded rows, comments and blank lines, exactly as long as can be and one byte longer.
    for filling in ["1 1 5", "#", ""] {
        for piece_bytes in [PIECE_BYTES, PIECE_BYTES / 2, 1000] {
            for end in ["\n1 1 7\n", ""] {
                let good = format!("1 1 6\n{filling}{}{end}", " ".repeat(max - filling.len()));
                let contents = read_by(&sys, good.as_bytes(), &default, piece_bytes);
                assert_eq!(contents.unwrap().2.dims, [1, 1], "{filling} {piece_bytes}");
                let bad = format!("1 1 6\n{filling}{}{end}", " ".repeat(max + 1 - filling.len()));
                let contents = read_by(&sys, bad.as_bytes(), &default, piece_bytes);
                assert_bad(contents, "t.tns:2", &["longer than 1048576 bytes"]);
            }
        }
    }
    let first = "1".repeat(3 * max);
    assert_bad(read_by(&sys, first.as_bytes(), &default, 1 << 16), "t.tns:1", &["longer than"]);
}

/// Some rows, with their first bad line at `bad`.
fn many_rows(n: usize, bad: &[usize]) -> String {
    let row = |line| if bad.contains(&line) { "1 oops 1\n".into() } else { format!("{line} 2 {line}.5\n") };
    (1..=n).map(row).collect()
}

#[test]
fn the_first_bad_line_wins_on_many_threads() {
    let sys = Sys::default();
    let pool = sys.pool(4).unwrap();
    for bad in [1, 2, 17, 500, 999, 1000] {
        let text = many_rows(1000, &[bad, bad + 1, bad + 40, 1000]);
        for piece_bytes in [1, 10, 100, 1000, PIECE_BYTES] {
            let contents =
                pool.install(|| read_by(&sys, text.as_bytes(), &ReadOptions::default(), piece_bytes));
            assert_bad(contents, &format!("t.tns:{bad}"), &["`oops`"]);
        }
    }
}

#[test]
fn compressed_text() {
    let text = many_rows(5000, &[]);
    let wanted = read(&text).unwrap();
    let (head, tail) = text.as_bytes().split_at(text.len() / 3 + 1);
    let default = ReadOptions::default();
    for packed in [
        gzip(text.as_bytes()),
        zst(text.as_bytes()),
        [gzip(head), gzip(b""), gzip(tail)].concat(),
        [zst(head), zst(b""), zst(tail)].concat(),
        [b"\x50\x2a\x4d\x18\x03\0\0\0abc".to_vec(), zst(text.as_bytes())].concat(),
    ] {
        assert_eq!(read_by(&Sys::default(), &packed, &default, PIECE_BYTES).unwrap(), wanted);
        assert_eq!(read_by(&Sys::default(), &packed, &default, 1000).unwrap(), wanted);
    }
}

#[test]
fn damaged_compression_is_an_error() {
    let sys = Sys::default();
    let default = ReadOptions::default();
    let text = many_rows(60, &[]);
    let (head, tail) = text.as_bytes().split_at(text.len() / 2);
    for (kind, packed, member) in [
        ("gzip", [gzip(head), gzip(tail)].concat(), gzip(head).len()),
        ("zstd", [zst(head), zst(tail)].concat(), zst(head).len()),
    ] {
        // A whole first member is a valid file; the half row at its end is a separate error.
        for end in (6..packed.len()).filter(|&end| end != member) {
            let contents = read_by(&sys, &packed[..end], &default, 64);
            assert_bad(contents, "t.tns", &[kind, "cut short"]);
        }
        for garbage in [&b"x"[..], b"1 1 1\n", b"some more text that is not compressed\n"] {
            let contents = read_by(&sys, &[&packed, garbage].concat(), &default, 64);
            assert_bad(contents, "t.tns", &[kind, "again"]);
        }
        // A flipped bit gives an error or changes nothing (flags and names in a header).
        let wanted = read(&text).unwrap();
        for bit in 0..8 * packed.len() {
            let mut flipped = packed.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            if let Ok(contents) = read_by(&sys, &flipped, &default, 64) {
                assert!(kind == "zstd" || contents == wanted, "bit {bit}");
            }
        }
    }
    for end in 0..6 {
        assert!(read_by(&sys, &gzip(b"1 1 1\n")[..end], &default, 64).is_err(), "{end}");
        assert!(read_by(&sys, &zst(b"1 1 1\n")[..end], &default, 64).is_err(), "{end}");
    }
}

#[test]
fn a_bad_line_before_the_damage_wins() {
    let packed = gzip(many_rows(3000, &[2]).as_bytes());
    let cut = &packed[..packed.len() - 9];
    assert_bad(read_as(cut, &ReadOptions::default()), "t.tns:2", &["`oops`"]);
}

#[test]
fn files_that_are_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let open = |path: PathBuf| TnsReader::open(&Sys::default(), &path, ReadOptions::default());
    let message = open(dir.path().to_path_buf()).unwrap_err().to_string();
    assert!(message.ends_with("is a directory; give a file"), "{message}");
    let message = open(dir.path().join("none.tns")).unwrap_err().to_string();
    assert!(message.ends_with("none.tns: no such file; check the path"), "{message}");
    let path = dir.path().join("some.tns");
    std::fs::write(&path, "1 1 1\n1 1\n").unwrap();
    let mut reader = open(path.clone()).unwrap();
    assert_eq!(reader.name(), path.display().to_string());
    assert_bad(contents(&mut reader), &format!("{}:2", path.display()), &["short row"]);
    assert!(matches!(contents(&mut reader), Err(Error::Request(_))), "drained twice");
}

/// A change while the sink holds a batch: no state of the file ever had these nonzeros.
#[test]
fn a_file_that_changes_while_it_is_read_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.tns");
    let text = many_rows(400, &[]);
    let shorter =
        |bytes: u64| std::fs::File::options().write(true).open(&path).unwrap().set_len(bytes).unwrap();
    let longer = || drop(std::fs::write(&path, format!("{text}1 1 1\n")));
    let changes: [(&dyn Fn(), &str); 4] = [
        (&|| (), ""),
        (&longer, "was appended to"),
        (&|| shorter(0), "was cut short"),
        // A cut inside a line, which is reported only if nothing else is wrong.
        (&|| shorter(text.len() as u64 - 3), "was cut short"),
    ];
    for (change, said) in changes {
        std::fs::write(&path, &text).unwrap();
        let mut reader = TnsReader::open(&Sys::default(), &path, ReadOptions::default()).unwrap();
        reader.piece_bytes = 100;
        let mut begun = false;
        let read = reader.drain(&mut |_| {
            if !std::mem::replace(&mut begun, true) {
                change();
            }
            Ok(())
        });
        match read {
            Ok(_) => assert_eq!(said, ""),
            Err(error) => assert!(!said.is_empty() && error.to_string().contains(said), "{error}"),
        }
    }
}

#[test]
fn every_failing_call_ends_the_read() {
    let dir = tempfile::tempdir().unwrap();
    let text = many_rows(400, &[]);
    let wanted = read(&text).unwrap();
    for (name, bytes) in
        [("a", text.clone().into_bytes()), ("b", gzip(text.as_bytes())), ("c", zst(text.as_bytes()))]
    {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let attempt = |faults: &Arc<Faults>| {
            let sys = Sys::with_faults(Arc::clone(faults));
            let mut reader = TnsReader::open(&sys, &path, ReadOptions::default())?;
            reader.piece_bytes = 1000;
            contents(&mut reader)
        };
        for call in [Call::Open, Call::Read, Call::Spawn, Call::Allocate] {
            for nth in 0.. {
                let faults = Arc::new(Faults::new(Some(call), nth, Fault::Errno(libc::EIO)));
                let result = attempt(&faults);
                if !faults.struck() {
                    assert_eq!(result.unwrap(), wanted);
                    break;
                }
                let Err(Error::Io { source, .. } | Error::Resource { source, .. }) = result else {
                    panic!("{name} {call:?} {nth}: {result:?}");
                };
                assert_eq!(source.raw_os_error(), Some(libc::EIO));
            }
        }
        for fault in [Fault::Short, Fault::Errno(libc::EINTR)] {
            for nth in 0..8 {
                let faults = Arc::new(Faults::new(Some(Call::Read), nth, fault));
                assert_eq!(attempt(&faults).unwrap(), wanted, "{name} {fault:?} {nth}");
            }
        }
    }
}

#[test]
fn it_ends_when_asked() {
    let sys = Sys::default();
    let text = Box::new(Cursor::new(many_rows(10_000, &[]).into_bytes()));
    let mut reader = TnsReader::from_read(&sys, text, "t.tns", ReadOptions::default()).unwrap();
    reader.piece_bytes = 100;
    let flag = sys.cancel_flag();
    let result = reader.drain(&mut |_| {
        flag.store(true, Ordering::Relaxed);
        Ok(())
    });
    assert!(matches!(result, Err(Error::Cancelled)), "{result:?}");

    let text = Box::new(Cursor::new(many_rows(10_000, &[]).into_bytes()));
    let mut reader = TnsReader::from_read(&Sys::default(), text, "t.tns", ReadOptions::default()).unwrap();
    reader.piece_bytes = 100;
    let result = reader.drain(&mut |_| Err(Error::request("the sink is full")));
    assert_eq!(result.unwrap_err().to_string(), "the sink is full");
}

#[test]
fn index_base_words() {
    assert_eq!("0".parse::<IndexBase>().unwrap(), IndexBase::Zero);
    assert_eq!("1".parse::<IndexBase>().unwrap(), IndexBase::One);
    assert!("2".parse::<IndexBase>().unwrap_err().to_string().contains("give 0 or 1"));
}

#[test]
fn decimals_are_short() {
    for (value, wanted) in [
        (0.0, "0"),
        (-0.0, "-0"),
        (1.0, "1"),
        (-17.0, "-17"),
        (0.1, "0.1"),
        (1e-7, "1e-7"),
        (9_007_199_254_740_991.0, "9007199254740991"),
        (9_007_199_254_740_992.0, "9007199254740992.0"),
        (1e300, "1e300"),
        (f64::MAX, "1.7976931348623157e308"),
        (f64::from_bits(1), "5e-324"),
        (f64::NAN, "NaN"),
        (f64::NEG_INFINITY, "-inf"),
    ] {
        let mut out = b"x".to_vec();
        decimal(value, &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), format!("x{wanted}"));
    }
}

#[test]
fn the_writer_passes_errors_on() {
    #[derive(Debug)]
    struct Broken;
    impl std::io::Write for Broken {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut writer = TnsWriter::new(Broken);
    writer.write_row(&[0, 1], 2.0).unwrap();
    assert_eq!(writer.finish().unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
    let mut writer = TnsWriter::new(Broken);
    let error = (0..1_000_000).find_map(|i| writer.write_row(&[i, i], 1.0).err());
    assert_eq!(error.unwrap().kind(), std::io::ErrorKind::BrokenPipe);
}

#[test]
fn the_writer_writes_rows() {
    let mut writer = TnsWriter::new(Vec::new());
    let batch = Batch { indices: vec![0, 1, u32::MAX - 1, 3], values: vec![-0.0, 2.5] };
    writer.write_batch(&batch).unwrap();
    writer.write_batch(&Batch::default()).unwrap();
    // The result of TTV along all modes.
    writer.write_batch(&Batch { indices: Vec::new(), values: vec![0.5] }).unwrap();
    assert_eq!(writer.finish().unwrap(), b"1 2 -0\n4294967295 4 2.5\n0.5\n");
}

#[test]
fn fixtures_of_others_when_present() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data/small");
    let wanted: [(&str, ReadOptions, &[u64], u64); 9] = [
        ("mttkrp_b.tns", ReadOptions::default(), &[2, 3, 4], 17),
        ("small.tns", ReadOptions::default(), &[2, 3, 2], 6),
        ("small4.tns", ReadOptions::default(), &[2, 2, 3, 3], 8),
        ("small4_zeroidx.tns", zero_based(), &[3, 3, 4, 3], 8),
        ("headered_3d_7.tns", ReadOptions::default(), &[4, 4, 3], 9),
        ("plain_4d_3_16.tns", ReadOptions::default(), &[3, 3, 3, 3], 16),
        ("toolbox_header.tns", ReadOptions::default(), &[5, 4, 3], 18),
        ("toolbox_header_zero_based.tns", zero_based(), &[5, 4, 3], 18),
        ("med4.tns", ReadOptions::default(), &[], 0),
    ];
    for (name, options, dims, nnz) in wanted {
        let path = dir.join(name);
        if !path.exists() {
            continue;
        }
        let (_, _, extent) =
            contents(&mut TnsReader::open(&Sys::default(), &path, options).unwrap()).unwrap();
        if nnz > 0 {
            assert_eq!((&extent.dims[..], extent.nnz), (dims, nnz), "{name}");
        }
        assert!(extent.nnz > 0);
    }
    let zeroes = dir.join("small4_zeroidx.tns");
    if zeroes.exists() {
        let result =
            contents(&mut TnsReader::open(&Sys::default(), &zeroes, ReadOptions::default()).unwrap());
        assert!(result.unwrap_err().to_string().contains("`index_base` 0"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Any finite f64 and any index, written and read back in pieces of any size, is unchanged to the bit.
    #[test]
    fn written_text_reads_back(
        order in 2usize..=4, // Linear indices have at most 128 bits.
        rows in prop::collection::vec((prop::array::uniform8(0u32..u32::MAX), any::<u64>(), 0u8..3), 1..60),
        piece_bytes in 1usize..300,
    ) {
        let mut batch = Batch::default();
        for (indices, bits, kind) in rows {
            batch.indices.extend_from_slice(&indices[..order]);
            let value = match kind {
                0 => f64::from_bits(bits),
                1 => (bits >> 40) as f64 / 100.0,
                _ => bits.cast_signed() as f64,
            };
            batch.values.push(if value.is_finite() { value } else { 1.0 });
        }
        let mut writer = TnsWriter::new(Vec::new());
        writer.write_batch(&batch).unwrap();
        let text = writer.finish().unwrap();
        let contents = read_by(&Sys::default(), &text, &ReadOptions::default(), piece_bytes);
        let (indices, values, _) = contents.unwrap();
        prop_assert_eq!(indices, batch.indices);
        let bits = |values: &[f64]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        prop_assert_eq!(bits(&values), bits(&batch.values));
    }

    /// Any bytes give a result or an error, the same for all piece sizes.
    #[test]
    fn any_bytes_end_without_panic(
        lines in prop::collection::vec("[-+0-9.eE#\t \r\u{b}naifx]{0,14}", 0..20),
        piece_bytes in 1usize..40,
    ) {
        let text = lines.join("\n");
        let default = ReadOptions::default();
        let whole = read_by(&Sys::default(), text.as_bytes(), &default, PIECE_BYTES);
        let cut = read_by(&Sys::default(), text.as_bytes(), &default, piece_bytes);
        prop_assert_eq!(format!("{whole:?}"), format!("{cut:?}"));
    }

    /// The fast path and the careful path agree: a sign and a comment force the careful one.
    #[test]
    fn both_paths_agree(
        index in "[0-9]{1,12}",
        value in "-?[0-9]{0,18}(\\.[0-9]{0,18})?([eE][-+]?[0-9]{1,3})?",
    ) {
        let shown = |text: String| {
            let contents = read_by(&Sys::default(), text.as_bytes(), &ReadOptions::default(), 99);
            format!("{contents:?}").replace("`+", "`")
        };
        let fast = shown(format!("1 1 1\n{index} 1 {value}\n"));
        prop_assert_eq!(fast, shown(format!("1 1 1\n+{index} 1 {value}#\n")));
    }
}
