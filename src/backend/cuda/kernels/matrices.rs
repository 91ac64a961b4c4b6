//! SpTTMc of sorted nonzeros by products of matrices on tensor cores (`kernels/tensor_cores.cuh`): when, and with which blocks.

use super::{SHARED_BYTES, group_bytes};
use crate::backend::cuda::abi::{SHARE, SORTED_TILES};
use crate::backend::device::Facts;
use crate::dense::Precision;
use crate::encoding::TILE_NNZ;
use std::fmt;

/// Blocks of 8 x 8 that a warp multiplies at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrices {
    /// Along the side before the last one.
    rows: u32,
    /// Along the last side.
    cols: u32,
    /// Elements of the factor before these.
    scaling: u32,
    /// Whether the number of a lane's elements of a factor divides all ranks.
    whole: bool,
}

impl fmt::Display for Matrices {
    /// `m2x2x1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, cols, scaling, .. } = self;
        write!(f, "m{rows}x{cols}x{scaling}")
    }
}

/// Those of compiled kernels, of order 3 and of others, that were measured (benches/runs/2026-11-29-steps). Of equal ones, the first is taken.
const OF_ORDER_3: [Matrices; 5] = [of(1, 1, 1), of(2, 2, 1), of(3, 3, 1), of(2, 4, 1), of(4, 2, 1)];
const OF_OTHERS: [Matrices; 3] = [of(1, 1, 4), of(2, 2, 2), of(1, 1, 8)];

/// About what a nonzero takes of an H200, which has an H100's 132 multiprocessors: picoseconds for each mode in a sweep over the columns, and for each block.
const OF_SWEEP: f64 = 5.0;
const OF_BLOCK: f64 = 5.0;
/// The same of threads that multiply rows (`KroneckerSweep`): for each mode, and for each column of a result, f64 and f32.
const OF_MODE: f64 = 6.0;
const OF_COLUMN: [f64; 2] = [0.5, 0.4];

const fn of(rows: u32, cols: u32, scaling: u32) -> Matrices {
    Matrices { rows, cols, scaling, whole: false }
}

impl Matrices {
    /// Whether a device's tensor cores multiply in f64 about as fast as its threads do in f32, or faster: A100, H100, H200, B200.
    #[must_use]
    pub fn suit(facts: &Facts) -> bool {
        matches!(facts.capability, (8..=10, 0))
    }

    /// The fastest of a compiled kernel for targets `modes` with factors of `ranks` columns; nothing if threads are expected to be faster.
    #[must_use]
    pub fn fastest(precision: Precision, ranks: &[usize], modes: &[usize]) -> Option<Self> {
        let all: &[Self] = if ranks.len() == 3 { &OF_ORDER_3 } else { &OF_OTHERS };
        let there = all.iter().filter(|matrices| matrices.bytes(precision, ranks.len()) <= SHARED_BYTES);
        let of_modes = |matrices: &Self| matrices.seconds_of(ranks, modes);
        let fastest = there.min_by(|a, b| of_modes(a).total_cmp(&of_modes(b)))?;
        fastest.pays(precision, ranks, modes).then_some(Self { whole: fastest.divides(ranks), ..*fastest })
    }

    /// That of the embedded kernel, if it is faster.
    #[must_use]
    pub fn embedded(precision: Precision, ranks: &[usize], modes: &[usize]) -> Option<Self> {
        let own = match ranks.len() {
            3 => of(2, 2, 1),
            4 => of(1, 1, 8),
            _ => of(1, 1, 4),
        };
        own.pays(precision, ranks, modes).then_some(own)
    }

    /// Whether every lane has all of its elements of a factor, or none: by the numbers of `MatrixSweep`.
    fn divides(&self, ranks: &[usize]) -> bool {
        let parts = if self.scaling >= 4 * self.rows { 2 } else { 1 };
        let (of_left, of_scaling) = (self.rows * parts, self.scaling / parts);
        ranks.iter().all(|rank| rank % of_left as usize == 0 && rank % of_scaling as usize == 0)
    }

    fn pays(&self, precision: Precision, ranks: &[usize], modes: &[usize]) -> bool {
        let by_threads = |&target: &usize| {
            let columns: f64 = others(ranks, target).map(|rank| rank as f64).product();
            let of_column = OF_COLUMN[usize::from(precision == Precision::F32)];
            1e-12 * (OF_MODE * ranks.len() as f64 + of_column * columns)
        };
        ranks.len() > 2 && self.seconds_of(ranks, modes) < modes.iter().map(by_threads).sum()
    }

    fn seconds_of(&self, ranks: &[usize], modes: &[usize]) -> f64 {
        modes.iter().map(|&target| self.seconds(ranks, target)).sum()
    }

    /// About what a nonzero takes of 132 multiprocessors for mode `target`, in seconds.
    #[must_use]
    pub fn seconds(&self, ranks: &[usize], target: usize) -> f64 {
        let Self { rows, cols, scaling, .. } = *self;
        let each = [8 * cols, 8 * rows, scaling].into_iter().chain(std::iter::repeat(1));
        let parts = |(rank, each): (usize, u32)| rank.div_ceil(each as usize) as f64;
        let sweeps: f64 = others(ranks, target).zip(each).map(parts).product();
        1e-12 * sweeps * (OF_SWEEP * ranks.len() as f64 + OF_BLOCK * f64::from(self.blocks()))
    }

    /// Products of four nonzeros whose elements are loaded at a time, as far as registers go.
    fn steps(&self, precision: Precision, order: usize) -> u32 {
        match order {
            3 => 2,
            4 if self.blocks() <= 4 || precision == Precision::F64 => 2,
            _ => 1,
        }
    }

    /// Threads of a multiprocessor: fewer have more registers.
    fn threads(&self, precision: Precision, order: usize) -> u32 {
        match self.blocks() {
            1 => 1024,
            2..=4 => 512,
            _ if precision == Precision::F32 && order > 3 => 512,
            _ => 384,
        }
    }

    fn blocks(&self) -> u32 {
        self.rows * self.cols * self.scaling
    }

    /// Bytes of shared memory of a thread block.
    fn bytes(&self, precision: Precision, order: usize) -> usize {
        /// Nonzeros of a warp.
        const OF_WARP: usize = 2 * SHARE as usize;
        let element = if precision == Precision::F64 { 8 } else { 4 };
        let columns = 64 * self.blocks() as usize;
        let shares = SORTED_TILES as usize * TILE_NNZ / OF_WARP;
        group_bytes(precision, order, SORTED_TILES) + 2 * shares * columns * element
    }

    /// NVRTC's options.
    pub(super) fn options(&self, precision: Precision, order: usize) -> [String; 6] {
        [
            format!("-DBLCO_MATRIX_ROWS={}", self.rows),
            format!("-DBLCO_MATRIX_COLS={}", self.cols),
            format!("-DBLCO_MATRIX_SCALING={}", self.scaling),
            format!("-DBLCO_MATRIX_THREADS={}", self.threads(precision, order)),
            format!("-DBLCO_MATRIX_STEPS={}", self.steps(precision, order)),
            format!("-DBLCO_MATRIX_WHOLE={}", self.whole),
        ]
    }
}

/// The ranks of the other modes, the last one first, as sweeps divide them.
fn others(ranks: &[usize], target: usize) -> impl Iterator<Item = usize> + '_ {
    (0..ranks.len()).rev().filter(move |&mode| mode != target).map(|mode| ranks[mode])
}

#[cfg(test)]
mod tests {
    use super::*;
    use Precision::{F32, F64};

    #[test]
    fn matrices_are_for_ranks_that_fill_their_blocks() {
        let of_modes = |precision, ranks: &[usize], modes: &[usize]| {
            let matrices = Matrices::fastest(precision, ranks, modes);
            matrices.map_or_else(|| "threads".to_owned(), |m| m.to_string())
        };
        let text =
            |precision, ranks: &[usize]| of_modes(precision, ranks, &(0..ranks.len()).collect::<Vec<_>>());
        assert_eq!(text(F32, &[8; 3]), "m1x1x1");
        assert_eq!(text(F64, &[16; 3]), "m2x2x1");
        assert_eq!(text(F64, &[20; 3]), "m3x3x1");
        assert_eq!(text(F32, &[32; 3]), "m2x4x1");
        assert_eq!(text(F32, &[8; 4]), "m1x1x8");
        assert_eq!(text(F64, &[10; 4]), "m2x2x2");
        assert_eq!(text(F64, &[16; 4]), "m2x2x2");
        // Four of eight rows and columns are empty.
        assert_eq!(text(F32, &[4; 4]), "m1x1x4");
        assert_eq!(text(F64, &[4; 5]), "threads");
        assert_eq!(text(F64, &[16; 2]), "threads");
        assert_eq!(text(F64, &[2; 8]), "threads");
        // What is asked for decides.
        assert_eq!(of_modes(F64, &[2, 500, 500], &[0]), "m3x3x1");
        assert_eq!(of_modes(F64, &[2, 500, 500], &[1, 2]), "threads");
        assert_eq!(
            Matrices::embedded(F64, &[16; 3], &[0, 1, 2]).map(|m| m.to_string()).as_deref(),
            Some("m2x2x1")
        );
        assert_eq!(Matrices::embedded(F64, &[4; 5], &[0, 1, 2, 3, 4]), None);
    }

    #[test]
    fn they_fit_shared_memory() {
        for order in 3..=8 {
            for precision in [F32, F64] {
                let ranks = vec![16; order];
                let fastest = Matrices::fastest(precision, &ranks, &[0]).unwrap();
                assert!(fastest.bytes(precision, order) <= SHARED_BYTES, "{fastest} {order}");
            }
        }
    }
}
