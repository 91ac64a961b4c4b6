//! Tables: rows with labels, times and numbers become nonzeros with indices.
//!
//! [`Table::read`] reads a table completely. [`Table`] is then a [`Source`] of its nonzeros, with the information about
//! its modes for a store ([`Table::labels`]).
//!
//! ```text
//! csv, json: pieces of whole records -> parse, in parallel -> dictionary: labels to numbers, by column and shard
//!   -> rows (numbers, times, values) wait in scratch
//! dictionary::merge: sorted labels -> indices -> labels-M.bin
//! rows -> numbers to indices, times to bins -> batches
//! ```
//!
//! Indices follow the labels' natural order, so they do not depend on the order of rows, nor on memory and threads.

#[cfg(feature = "arrow")]
mod arrow;
pub mod csv;
mod dictionary;
mod input;
mod json;
mod lines;
mod number;
mod options;
mod piece;
mod read;
mod scratch;
mod shard;
mod source;
mod time;

pub use lines::labels_of_files;
pub use number::NumberBins;
pub(crate) use options::listed;
pub use options::{Nulls, TableMode, TableOptions, Treatment, parse_modes, parse_names};
pub use source::Table;
pub use time::TimeBins;

/// What is wrong with a text whose bytes are no characters, and what to do.
const NOT_UTF_8: &str = "is not UTF-8; convert the file, for example from Latin-1: iconv -f LATIN1 -t UTF-8";

/// A field as messages show it: in quotes, short, without what would break the line.
pub(crate) fn shown(field: &[u8]) -> String {
    const SHOWN: usize = 40;
    let text = String::from_utf8_lossy(field);
    let cut: String = text.chars().take(SHOWN).collect();
    if cut.len() < text.len() { format!("{cut:?}…") } else { format!("{cut:?}") }
}
