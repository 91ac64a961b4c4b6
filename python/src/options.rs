//! The options of a pack, from keywords.

use blco::{
    Assign, Codec, Duplicates, FcooFor, Format, FormatOption, IndexEncoding, LeafRule, PackOptions, Trees,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;

/// Each format with the options that only some formats have.
const FORMATS: [(&str, &[&str]); 7] = [
    ("blco", &["encoding"]),
    ("hocfs", &["main_mode", "slices"]),
    ("csf", &["trees"]),
    ("bcsf", &["trees", "fiber_split"]),
    ("hbcsf", &["trees", "fiber_split"]),
    ("mmcsf", &["assign"]),
    ("fcoo", &["trees", "operation"]),
];
/// The most leaves of a fiber, if nothing is said of it.
const FIBER_SPLIT: u32 = 128;

/// One of several words.
pub fn choice<T: Copy>(name: &str, given: &str, choices: &[(&str, T)]) -> PyResult<T> {
    let found = choices.iter().find(|(word, _)| *word == given);
    found.map(|&(_, choice)| choice).ok_or_else(|| {
        let words: Vec<String> = choices.iter().map(|(word, _)| format!("{word:?}")).collect();
        PyValueError::new_err(format!("`{name}` {given:?}: give {}", words.join(" or ")))
    })
}

/// All of them.
pub fn pack_options(target: PathBuf, source: &str, given: &Bound<'_, PyDict>) -> PyResult<PackOptions> {
    let mut options = PackOptions::new(target);
    let of_formats = PyDict::new(given.py());
    for (key, value) in given {
        let key: String = key.extract()?;
        match key.as_str() {
            "zstd" => options.codec = Codec::Zstd(value.extract()?),
            "chunk_bytes" => options.chunk_bytes = value.extract()?,
            "duplicates" => options.duplicates = choice(&key, &value.extract::<String>()?, &Duplicates::ALL)?,
            "memory" => options.memory = value.extract()?,
            "temp_dir" => options.temp_dir = Some(value.extract()?),
            "replace" => options.replace = value.extract()?,
            "resume" => options.resume = value.extract()?,
            _ => of_formats.set_item(key, value)?,
        }
    }
    options.format = format(&of_formats)?;
    let made = serde_json::json!({ "source": source, "program": concat!("blco for Python ", env!("CARGO_PKG_VERSION")) });
    options.provenance = format!("{made}\n");
    Ok(options)
}

/// The format with its options; an exception if an option belongs to another format.
fn format(given: &Bound<'_, PyDict>) -> PyResult<FormatOption> {
    let format = given.get_item("format")?.map_or(Ok("blco".to_owned()), |format| format.extract())?;
    let own = choice("format", &format, &FORMATS)?;
    for key in given.keys() {
        let key: String = key.extract()?;
        let of = FORMATS.iter().filter(|(_, options)| options.contains(&&key[..]));
        let of: Vec<String> = of.map(|(format, _)| format!("{format:?}")).collect();
        if of.is_empty() && key != "format" {
            return Err(PyTypeError::new_err(format!("no option {key:?}")));
        }
        if !of.is_empty() && !own.contains(&&key[..]) {
            let what = format!("`{key}` is an option of `format` {}", of.join(" or "));
            return Err(PyValueError::new_err(what));
        }
    }
    let number = |name: &str| given.get_item(name)?.map(|number| number.extract::<u32>()).transpose();
    let (main_mode, fiber_split) = (number("main_mode")?, number("fiber_split")?.unwrap_or(FIBER_SPLIT));
    if fiber_split == 0 {
        return Err(PyValueError::new_err("`fiber_split` 0: give at least 1"));
    }
    let trees = given.get_item("trees")?.map_or(Ok(Trees::All), |trees| self::trees(&trees))?;
    let encodings = [("tiled", IndexEncoding::Tiled), ("raw", IndexEncoding::Raw)];
    let leaves = [("auto", LeafRule::Auto), ("csr", LeafRule::Csr), ("ell", LeafRule::Ell)];
    let assigns = [("dynamic", Assign::Dynamic), ("static", Assign::Static)];
    let operations = [("mttkrp", FcooFor::Mttkrp), ("ttm", FcooFor::Ttm)];
    Ok(match &format[..] {
        "hocfs" => FormatOption::Hocfs {
            main_mode: main_mode.unwrap_or(0) as usize,
            leaf: word(given, "slices", &leaves)?,
        },
        "csf" => FormatOption::Csf { trees },
        "bcsf" => FormatOption::Bcsf { trees, fiber_split },
        "hbcsf" => FormatOption::Hbcsf { trees, fiber_split },
        "mmcsf" => FormatOption::Mmcsf { assign: word(given, "assign", &assigns)? },
        "fcoo" => {
            FormatOption::Fcoo { operation: word(given, "operation", &operations)?, trees, thread_nnz: 0 }
        }
        _ => FormatOption::Known(Format::blco(word(given, "encoding", &encodings)?)),
    })
}

/// The option `name`; the first of `choices` if it is not given.
fn word<T: Copy>(given: &Bound<'_, PyDict>, name: &str, choices: &[(&str, T)]) -> PyResult<T> {
    match given.get_item(name)? {
        Some(word) => choice(name, &word.extract::<String>()?, choices),
        None => Ok(choices[0].1),
    }
}

/// Which trees: one of two words, or the mode at the root.
fn trees(given: &Bound<'_, PyAny>) -> PyResult<Trees> {
    match given.extract::<usize>() {
        Ok(mode) => Ok(Trees::Root(mode)),
        Err(_) => choice("trees", &given.str()?.to_string(), &[("all", Trees::All), ("one", Trees::One)])
            .map_err(|error| PyValueError::new_err(format!("{}, or a mode", error.value(given.py())))),
    }
}
