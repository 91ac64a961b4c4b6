//! A model's components with the labels of its table, as the page and components.csv show them.

use crate::decomp::Model;
use crate::dense::{Matrix, Real};
use crate::error::Result;
use crate::store::Store;
use crate::store::labels::LabelKind;
use crate::table::csv::append_field;
use std::collections::BTreeMap;

/// What is shown of a mode.
#[derive(Debug)]
pub struct ShownMode {
    /// Its name, or `Mode 1`.
    pub title: String,
    /// Its name, or its number from 1.
    pub name: String,
    /// Whether its labels are a range or a cycle. All of these are drawn.
    pub is_line: bool,
    /// Whether it has labels.
    pub has_labels: bool,
    /// Rows of largest magnitude of each component, the largest first.
    pub tops: Vec<Vec<(usize, f64)>>,
    /// Labels of the rows that are shown.
    pub labels: BTreeMap<usize, String>,
}

impl ShownMode {
    /// The label of a row, or its number from 1.
    #[must_use]
    pub fn label(&self, row: usize) -> String {
        self.labels.get(&row).cloned().unwrap_or_else(|| (row + 1).to_string())
    }
}

/// Ordered modes of at most this many rows show the label under the pointer for each row.
const LINE_LABELS: usize = 4096;

/// Prepares `model`, of `store`, for showing: the `top` largest rows of each component and mode.
pub fn shown_modes<T: Real>(store: &Store, model: &Model<T>, top: usize) -> Result<Vec<ShownMode>> {
    let mode = |(mode, factor): (usize, &Matrix<T>)| {
        let info = store.modes_info().map(|info| &info.modes[mode]);
        let given = store.mode_name(mode).map(str::to_owned);
        let mut shown = ShownMode {
            title: given.clone().unwrap_or_else(|| format!("Mode {}", mode + 1)),
            name: given.unwrap_or_else(|| (mode + 1).to_string()),
            is_line: info.is_some_and(|info| info.steps || info.kind == LabelKind::Cyclic),
            has_labels: info.is_some_and(|info| info.file.is_some()),
            tops: tops(factor, top),
            labels: BTreeMap::new(),
        };
        if let Some(labels) = &mut store.labels(mode)? {
            let mut rows: Vec<usize> = shown.tops.iter().flatten().map(|&(row, _)| row).collect();
            rows.extend([0, factor.rows() - 1]);
            if shown.is_line && factor.rows() <= LINE_LABELS {
                rows = (0..factor.rows()).collect();
            }
            // In the order of the file, so that each of its blocks is read once.
            rows.sort_unstable();
            rows.dedup();
            for row in rows {
                let label = labels.get(u32::try_from(row).unwrap_or(u32::MAX))?;
                shown.labels.insert(row, label.to_owned());
            }
        }
        Ok(shown)
    };
    model.factors.iter().enumerate().map(mode).collect()
}

/// The `count` rows of largest magnitude of each column, with their numbers. Among equals, the lower row comes first.
pub fn tops<T: Real>(factor: &Matrix<T>, count: usize) -> Vec<Vec<(usize, f64)>> {
    let mut tops = vec![Vec::with_capacity(count.min(factor.rows()) + 1); factor.columns()];
    for row in 0..factor.rows() {
        for (top, x) in tops.iter_mut().zip(factor.row(row)) {
            let x = x.widen();
            let full = top.len() == count;
            if full && top.last().is_some_and(|&(_, least): &(usize, f64)| x.abs() <= least.abs()) {
                continue;
            }
            let at = top.partition_point(|&(_, other)| other.abs() >= x.abs());
            top.insert(at, (row, x));
            top.truncate(count);
        }
    }
    tops
}

/// The file components.csv: a row for each component, mode and place among the largest loadings.
pub fn components_csv<T: Real>(model: &Model<T>, modes: &[ShownMode]) -> Vec<u8> {
    let mut out = b"component,weight,mode,rank,label,loading\n".to_vec();
    for (r, weight) in model.lambda.data().iter().enumerate() {
        for mode in modes {
            for (place, &(row, loading)) in mode.tops[r].iter().enumerate() {
                out.extend_from_slice(format!("{},{weight},", r + 1).as_bytes());
                append_field(&mode.name, b',', &mut out);
                out.extend_from_slice(format!(",{},", place + 1).as_bytes());
                append_field(&mode.label(row), b',', &mut out);
                out.extend_from_slice(format!(",{}\n", decimal(loading)).as_bytes());
            }
        }
    }
    out
}

/// A number, with an exponent rather than many zeros.
fn decimal(x: f64) -> String {
    if x != 0.0 && x.abs() < 1e-5 { format!("{x:e}") } else { x.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn top_rows_are_those_of_a_sort() {
        let numbers = (0..200).map(|i| (f64::from(i * 7919 % 101) - 50.0) / 50.0).collect();
        let factor = Matrix::from_rows(100, 2, numbers);
        for (r, top) in tops(&factor, 10).into_iter().enumerate() {
            let mut wanted: Vec<(usize, f64)> = (0..100).map(|i| (i, factor.row(i)[r])).collect();
            wanted.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
            assert_eq!(top, wanted[..10]);
        }
        assert_eq!([0.0, -0.25, 3e-7, 5e-230].map(decimal), ["0", "-0.25", "3e-7", "5e-230"]);
    }
}
