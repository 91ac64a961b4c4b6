//! The rank x rank part of an update: Gram matrices, their Hadamard product and its inverse.
//!
//! Columns are scaled to length one first. The Hadamard product `V` of the other modes' Gram matrices then has
//! ones on its diagonal, and its condition depends only on the components' directions, not on their sizes.

use crate::error::{Error, Result};
use faer::linalg::solvers::DenseSolveCore;
use faer::{MatRef, Side};

/// The largest rank for which [`super::extended`] is used. A solution takes rank^3 steps of about 25 operations.
pub const EXTENDED_RANK_MAX: usize = 256;

/// The columns of a factor as stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Columns {
    /// Their inner products, rank x rank.
    pub gram: Vec<f64>,
    /// Their lengths.
    pub norms: Vec<f64>,
    /// The cosines between them, rank x rank; 0 if a column is zero.
    pub cosines: Vec<f64>,
}

impl Columns {
    /// The columns whose Gram matrix is `gram`, rank x rank.
    #[must_use]
    pub fn of(gram: Vec<f64>, rank: usize) -> Self {
        let norms: Vec<f64> = (0..rank).map(|r| gram[r * rank + r].sqrt()).collect();
        let cosine = |r: usize, q: usize| match norms[r] * norms[q] {
            0.0 => 0.0,
            _ if r == q => 1.0,
            // Divides by one length after the other, because their product can overflow.
            _ => gram[r * rank + q] / norms[r] / norms[q],
        };
        let cosines = (0..rank * rank).map(|i| cosine(i / rank, i % rank)).collect();
        Self { gram, norms, cosines }
    }
}

/// Bytes of the rank x rank matrices of a decomposition of `order` modes: of each mode two, and of the best of several
/// `starts` as many, besides those of an update: the Hadamard product, its factor or eigenvectors with what faer needs to
/// find them, the inverse, and the new factor's Gram matrix and cosines; and those of [`super::extended`].
#[must_use]
pub fn host_bytes(order: usize, rank: usize, starts: u32) -> u64 {
    const UPDATE: usize = 8;
    let kept = 2 * order * starts as usize;
    // In twice the digits: Gram matrices, their Hadamard product, its Cholesky factor.
    let extended = if rank <= EXTENDED_RANK_MAX { 2 * (order + 2) } else { 0 };
    ((kept + extended + UPDATE) * rank * rank * size_of::<f64>()) as u64
}

/// The Hadamard product of the cosines of `factors`, rank x rank.
pub fn hadamard<'a>(factors: impl Iterator<Item = &'a Columns>, rank: usize) -> Vec<f64> {
    let mut product = vec![1.0; rank * rank];
    for columns in factors {
        product.iter_mut().zip(&columns.cosines).for_each(|(p, c)| *p *= c);
    }
    product
}

/// An inverse or pseudo-inverse.
#[derive(Clone, Debug)]
pub struct Inverse {
    /// rank x rank.
    pub matrix: Vec<f64>,
    /// The condition number in the 1-norm; for a pseudo-inverse, the ratio of the kept eigenvalues.
    pub condition: f64,
    /// The number of kept eigenvalues, if it is a pseudo-inverse.
    pub kept: Option<usize>,
}

/// The inverse of the symmetric `v`, rank x rank, which has no negative eigenvalue except by rounding. If its condition exceeds
/// `1 / (rank epsilon)`, the pseudo-inverse, in which eigenvalues below `rank epsilon` of the largest count as zero.
pub fn inverse(v: &[f64], rank: usize, epsilon: f64) -> Result<Inverse> {
    let matrix = MatRef::from_row_major_slice(v, rank, rank);
    let cutoff = rank as f64 * epsilon;
    if let Ok(factored) = matrix.llt(Side::Lower) {
        let inverse = rows_of(factored.inverse().as_ref());
        let condition = norm(v, rank) * norm(&inverse, rank);
        // A NaN compares false.
        if condition * cutoff <= 1.0 {
            return Ok(Inverse { matrix: inverse, condition, kept: None });
        }
    }
    let failed = |_| Error::request("the eigenvalues of a Gram matrix were not found; try a `ridge`");
    let parts = matrix.self_adjoint_eigen(Side::Lower).map_err(failed)?;
    let (vectors, values) = (parts.U(), parts.S().column_vector());
    let largest = (0..rank).map(|k| values[k]).fold(0.0, f64::max);
    let kept: Vec<usize> = (0..rank).filter(|&k| values[k] > cutoff * largest).collect();
    let element = |i: usize| {
        let (r, q) = (i / rank, i % rank);
        kept.iter().map(|&k| vectors[(r, k)] * vectors[(q, k)] / values[k]).sum()
    };
    let smallest = kept.iter().map(|&k| values[k]).fold(largest, f64::min);
    Ok(Inverse {
        matrix: (0..rank * rank).map(element).collect(),
        condition: if kept.is_empty() { 1.0 } else { largest / smallest },
        kept: Some(kept.len()),
    })
}

fn rows_of(matrix: MatRef<'_, f64>) -> Vec<f64> {
    (0..matrix.nrows()).flat_map(|r| (0..matrix.ncols()).map(move |q| matrix[(r, q)])).collect()
}

/// The largest sum of a row's absolute values, which is the 1-norm of a symmetric matrix.
pub(super) fn norm(matrix: &[f64], rank: usize) -> f64 {
    matrix.chunks_exact(rank).map(|row| row.iter().map(|x| x.abs()).sum()).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn product(a: &[f64], b: &[f64], n: usize) -> Vec<f64> {
        let element = |i: usize| (0..n).map(|k| a[i / n * n + k] * b[k * n + i % n]).sum();
        (0..n * n).map(element).collect()
    }

    fn close(a: &[f64], b: &[f64]) {
        a.iter().zip(b).for_each(|(a, b)| assert!((a - b).abs() < 1e-12, "{a} {b}"));
    }

    #[test]
    fn an_inverse_inverts() {
        let v = [1.0, 0.5, 0.25, 0.5, 1.0, -0.125, 0.25, -0.125, 1.0];
        let inverse = inverse(&v, 3, f64::EPSILON).unwrap();
        assert_eq!(inverse.kept, None);
        assert!(inverse.condition > 1.0 && inverse.condition < 10.0, "{}", inverse.condition);
        close(&product(&v, &inverse.matrix, 3), &[1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
    }

    /// The four properties that define the pseudo-inverse, for two equal columns and for a column of zeros.
    #[test]
    fn a_singular_matrix_gets_its_pseudo_inverse() {
        for (v, kept) in [
            ([1.0, 1.0, 0.5, 1.0, 1.0, 0.5, 0.5, 0.5, 1.0], 2),
            ([1.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.5, 0.0, 1.0], 2),
            ([1.0; 9], 1),
            ([0.0; 9], 0),
        ] {
            let inverse = inverse(&v, 3, f64::EPSILON).unwrap();
            assert_eq!(inverse.kept, Some(kept));
            assert!(inverse.condition.is_finite());
            let (vp, pv) = (product(&v, &inverse.matrix, 3), product(&inverse.matrix, &v, 3));
            close(&product(&vp, &v, 3), &v);
            close(&product(&pv, &inverse.matrix, 3), &inverse.matrix);
            close(&vp, &pv);
        }
    }

    #[test]
    fn columns_of_any_size_have_cosines() {
        let columns = Columns::of(vec![4e200, 1e200, 0.0, 1e200, 1e200, 0.0, 0.0, 0.0, 0.0], 3);
        assert_eq!(columns.norms, [2e100, 1e100, 0.0]);
        close(&columns.cosines, &[1.0, 0.5, 0.0, 0.5, 1.0, 0.0, 0.0, 0.0, 0.0]);
    }
}
