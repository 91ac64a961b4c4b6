//! The columns of the matrices that a GPU multiplies: MTTKRP's have one rank, SpTTMc's one for each mode.

use crate::backend::cuda::kernels::{Kronecker, Matrices};
use crate::backend::device::{Facts, MttkrpVariant};
use crate::dense::Precision;
use crate::op::ttmc::width;

/// Columns of factors and of results.
#[derive(Clone, Debug)]
pub(super) enum Columns {
    /// Of a Khatri-Rao product (MTTKRP): the same for all matrices.
    KhatriRao(usize),
    /// Of a Kronecker product (SpTTMc): those of each mode's factor. A result has the product of the other
    /// modes' columns.
    Kronecker(Vec<usize>),
}

impl Columns {
    pub fn of_factor(&self, mode: usize) -> usize {
        match self {
            Self::KhatriRao(rank) => *rank,
            Self::Kronecker(ranks) => ranks[mode],
        }
    }

    pub fn of_result(&self, mode: usize) -> usize {
        match self {
            Self::KhatriRao(rank) => *rank,
            Self::Kronecker(ranks) => width(ranks, mode).unwrap_or(usize::MAX),
        }
    }

    /// How kernels compute Kronecker products for `modes` on a device.
    pub fn kronecker(&self, facts: &Facts, precision: Precision, modes: &[usize]) -> Option<Kronecker> {
        let (threads, Self::Kronecker(ranks)) = (self.variant(precision)?, self) else { return None };
        let by_matrices = |of: fn(Precision, &[usize], &[usize]) -> Option<Matrices>| {
            Matrices::suit(facts).then(|| of(precision, ranks, modes)).flatten()
        };
        let (matrices, embedded_matrices) = (by_matrices(Matrices::fastest), by_matrices(Matrices::embedded));
        Some(Kronecker { threads, matrices, embedded_matrices })
    }

    /// The variant of a compiled kernel for a Kronecker product. A thread takes some elements of the *near* factor's rows
    /// (kernels/kronecker.cuh), which is another one for each target; this number suits all targets together.
    fn variant(&self, precision: Precision) -> Option<MttkrpVariant> {
        /// What a nonzero costs a thread beside its columns, in columns.
        const OTHERS: usize = 8;
        let Self::Kronecker(ranks) = self else { return None };
        let most = match (precision, ranks.len()) {
            // Adjacent threads update adjacent elements.
            (_, 2) => 1,
            (Precision::F64, _) => 8,
            (Precision::F32, _) => 10,
        };
        let threads = |target: usize, columns: usize| {
            let mut others = (0..ranks.len()).rev().filter(|&mode| mode != target);
            let fastest = others.next().unwrap_or(0);
            let width = ranks[others.next().unwrap_or(fastest)];
            (self.of_result(target) / width).saturating_mul(width.div_ceil(columns))
        };
        let cost = |&columns: &usize| {
            let of_target = |target| threads(target, columns).saturating_mul(OTHERS + columns);
            (0..ranks.len()).map(of_target).fold(0, usize::saturating_add)
        };
        let columns = (1..=most).rev().min_by_key(cost)?;
        let least = (0..ranks.len()).map(|target| threads(target, columns)).min()?;
        Some(MttkrpVariant::kronecker(precision, ranks.len(), u32::try_from(columns).ok()?, least))
    }

    pub fn widest(&self, modes: &[usize]) -> usize {
        modes.iter().map(|&mode| self.of_result(mode)).max().unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_takes_what_divides_the_ranks() {
        let variant = |ranks: &[usize], precision| {
            Columns::Kronecker(ranks.to_vec()).variant(precision).unwrap().to_string()
        };
        assert_eq!(variant(&[8; 3], Precision::F32), "t4l8c8b2");
        assert_eq!(variant(&[8; 4], Precision::F32), "t4l16c8b2");
        assert_eq!(variant(&[10; 4], Precision::F32), "t4l8c10b2");
        assert_eq!(variant(&[10; 4], Precision::F64), "t4l16c5b2");
        assert_eq!(variant(&[16; 3], Precision::F64), "t4l16c8b1");
        assert_eq!(variant(&[4; 5], Precision::F32), "t4l16c4b4");
        assert_eq!(variant(&[1; 8], Precision::F64), "t2l8c1b2");
        assert_eq!(variant(&[16; 2], Precision::F64), "t4l16c1b2");
        assert!(Columns::KhatriRao(16).variant(Precision::F64).is_none());
    }
}
