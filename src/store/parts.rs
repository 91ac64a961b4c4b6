//! A divided tensor (formats-spec/container.md, "Part"): a directory with a store for each part, or only those that this machine
//! needs. It has no manifest of its own; its parts name their number and the whole.

use super::{Manifest, Store, holds_manifest};
use crate::error::{Error, Result};
use crate::sys::each_name;
use std::path::Path;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// The most parts that a tensor is divided into.
pub const PARTS_MAX: u32 = 4096;

/// The name of part `number`, from 0, in the directory of a tensor that is divided into `parts`.
#[must_use]
pub fn part_name(number: u32, parts: u32) -> String {
    format!("part-{}-of-{parts}", number + 1)
}

/// The number, from 0, of the part that `name` names, and how many there are.
pub(super) fn part_of_name(name: &str) -> Option<(u32, u32)> {
    let (number, parts) = name.strip_prefix("part-")?.split_once("-of-")?;
    let (number, parts) = (number.parse::<u32>().ok()?.checked_sub(1)?, parts.parse().ok()?);
    (number < parts && part_name(number, parts) == name).then_some((number, parts))
}

/// The parts in the directory `dir`, as [`part_of_name`] has them, by their number; none if it is a store, or no directory.
pub(crate) fn parts_in(dir: &Path) -> Result<Vec<(u32, u32)>> {
    let mut parts = Vec::new();
    if dir.is_dir() && !holds_manifest(dir)? {
        let listed = each_name(dir, |name| {
            parts.extend(name.to_str().and_then(part_of_name));
            true
        });
        listed.map_err(Error::io(dir, "read"))?;
    }
    parts.sort_unstable_by_key(|&(number, parts)| (parts, number));
    Ok(parts)
}

/// The digest of a divided tensor whose parts have these store ids, in order; of one store, its id.
#[must_use]
pub fn digest_of(ids: &[u64]) -> u64 {
    match ids {
        [id] => *id,
        _ => xxh3_64(&ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>()),
    }
}

/// What all parts of a tensor hold together.
#[derive(Clone, Debug, PartialEq)]
pub struct Whole {
    /// The digest.
    pub id: u64,
    /// Nonzeros.
    pub nnz: u64,
    /// The sum of the squared values.
    pub sum_squares: f64,
    /// The smallest value.
    pub value_min: f64,
    /// The largest value.
    pub value_max: f64,
    /// For each mode, an upper bound on the nonzeros of a row.
    pub longest_row_bounds: Vec<u64>,
}

#[doc(hidden)]
impl Store {
    /// This part as a share of the whole tensor: only the chunks are its own. Id, number of nonzeros, sum of squares, range of values and
    /// bounds are those of the whole. [`Store::of_chunks`] has the number of its own nonzeros.
    #[must_use]
    pub fn within(self, whole: &Whole) -> Self {
        let of_whole = |manifest: &Manifest| {
            let Whole { nnz, sum_squares, value_min, value_max, .. } = *whole;
            let longest_row_bounds = whole.longest_row_bounds.clone();
            let own = manifest.clone();
            Arc::new(Manifest { nnz, sum_squares, value_min, value_max, longest_row_bounds, ..own })
        };
        let manifest = of_whole(&self.manifest);
        let is_one = Arc::ptr_eq(&self.manifest, &self.whole);
        let all = if is_one { Arc::clone(&manifest) } else { of_whole(&self.whole) };
        Self { manifest, whole: all, id: whole.id, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_parts_are_taken_for_parts() {
        for (number, parts) in [(0, 1), (0, 4), (3, 4), (99, 4096)] {
            assert_eq!(part_of_name(&part_name(number, parts)), Some((number, parts)));
        }
        for name in [
            "part-0-of-4",
            "part-5-of-4",
            "part-01-of-4",
            "part-1-of-",
            "part-1-of-4.old",
            "part-+1-of-4",
            "1",
        ] {
            assert_eq!(part_of_name(name), None, "{name}");
        }
    }
}
