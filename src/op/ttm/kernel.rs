//! The inner loop: the fibers of a tile times the matrix.

use super::tile_fibers::TileFibers;
use crate::dense::{MatrixRef, Real};

/// Adds the contribution of each nonzero of a tile to its fiber's row.
pub(super) struct AddTile<'a, T> {
    pub matrix: MatrixRef<'a, T>,
    pub tile: &'a mut TileFibers,
}

/// Compiled for the machine's vectors. `backend::host` explains why it is not a closure.
impl<T: Real> pulp::WithSimd for AddTile<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        match self.matrix.columns() {
            8 => self.run::<8>(),
            16 => self.run::<16>(),
            32 => self.run::<32>(),
            _ => self.run_any(),
        }
    }
}

impl<T: Real> AddTile<'_, T> {
    /// A fiber's sums stay in registers.
    #[inline(always)]
    fn run<const RANK: usize>(self) {
        let rows = self.matrix.data().as_chunks::<RANK>().0;
        let TileFibers { leaves, values, starts, sums, .. } = self.tile;
        let sums = sums.as_chunks_mut::<RANK>().0;
        for (fiber, sum) in sums.iter_mut().enumerate() {
            let nonzeros =
                starts[fiber] as usize..starts.get(fiber + 1).map_or(values.len(), |&end| end as usize);
            let mut added = *sum;
            for (&leaf, &value) in leaves[nonzeros.clone()].iter().zip(&values[nonzeros]) {
                let (row, value) = (&rows[leaf as usize], T::nearest(value));
                for (sum, &u) in added.iter_mut().zip(row) {
                    *sum += (value * u).widen();
                }
            }
            *sum = added;
        }
    }

    #[inline(always)]
    fn run_any(self) {
        let rank = self.matrix.columns();
        let TileFibers { leaves, values, starts, sums, .. } = self.tile;
        for (fiber, sum) in sums.chunks_exact_mut(rank).enumerate() {
            let nonzeros =
                starts[fiber] as usize..starts.get(fiber + 1).map_or(values.len(), |&end| end as usize);
            for (&leaf, &value) in leaves[nonzeros.clone()].iter().zip(&values[nonzeros]) {
                let value = T::nearest(value);
                for (sum, &u) in sum.iter_mut().zip(self.matrix.row(leaf as usize)) {
                    *sum += (value * u).widen();
                }
            }
        }
    }
}
