//! Adjacent fibers in one tile of leaves, and a trait for adding them up.

use crate::encoding::TILE_NNZ;

/// Padding adds nothing: x + -0.0 is x for every x.
pub(super) const NOTHING: f64 = -0.0;

/// Places after a tile's products that are read with them and ignored: see `windows`, `marks`.
pub(super) const ROOM: usize = 16;
/// The products of a tile of leaves.
pub(super) type Products = [f64; TILE_NNZ + ROOM];

/// Adjacent fibers in one tile of leaves.
pub(super) struct Fibers<'a> {
    /// The products of the tile, whose first slot is `at`.
    pub products: &'a Products,
    pub at: u32,
    /// Where each fiber begins and the last one ends.
    pub bounds: &'a [u32],
}

impl Fibers<'_> {
    /// The products of `fiber` from its `done`-th on.
    #[inline(always)]
    pub fn rest(&self, fiber: usize, done: usize) -> &[f64] {
        let place = |bound: u32| (bound - self.at) as usize;
        &self.products[place(self.bounds[fiber]) + done..place(self.bounds[fiber + 1])]
    }
}

/// A way to add up.
pub(super) trait AddUp: Copy {
    /// Overwrites `sums` with the sums of all `fibers`.
    fn add_up(self, fibers: &Fibers<'_>, sums: &mut [f64]);

    /// Prefetches `words` if the machine supports that.
    fn fetch(self, _words: &[u32]) {}
}
