//! Sums of the fibers of a tree, tile by tile: the loops of [`super::Streamed`].
//!
//! Most fibers are short, with lengths that no branch predictor guesses. The way in which fibers in one tile of leaves
//! are added up depends on the machine's vectors: `windows` and `marks` with AVX-512, otherwise `rounds`. All add each
//! fiber in the store's order.

use super::neighbours::{AddUp, Fibers, NOTHING, Products, ROOM};
use super::rounds::Rounds;
use crate::dense::Real;
use crate::encoding::TILE_NNZ;
use crate::error::Result;
use crate::format::tree::{Leaves, Nodes, TreeView};

/// Vector elements that are looked up per loop iteration.
const ABREAST: usize = 8;
/// Slots of a tile.
#[expect(clippy::cast_possible_truncation, reason = "512")]
const TILE: u32 = TILE_NNZ as u32;

/// Adds up the fibers of tiles from `first_tile` on into `sums`. The first one's sum starts at `before`.
pub(super) struct AddFibers<'a, T> {
    pub view: &'a TreeView<'a>,
    pub first_tile: usize,
    pub vector: &'a [T],
    pub before: f64,
    pub sums: &'a mut [f64],
}

impl<T: Real> AddFibers<'_, T> {
    /// Runs with the vectors of `arch`. All give the same bits.
    pub fn run(self, arch: pulp::Arch) -> Result<()> {
        match arch {
            #[cfg(target_arch = "x86_64")]
            pulp::Arch::V4(simd) => arch.dispatch(By { fibers: self, way: simd }),
            _ => arch.dispatch(By { fibers: self, way: Rounds }),
        }
    }
}

/// [`AddFibers`] and how.
struct By<'a, T, W> {
    fibers: AddFibers<'a, T>,
    way: W,
}

/// Compiled for the machine's vectors. (A closure called once through a shim would not be: its body is inlined into the
/// shim, which `pulp` does not compile for these vectors.)
impl<T: Real, W: AddUp> pulp::WithSimd for By<'_, T, W> {
    type Output = Result<()>;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) -> Result<()> {
        let AddFibers { view, first_tile, vector, mut before, sums } = self.fibers;
        let level = view.order() - 2;
        let (mut nodes, mut leaves) = (Nodes::default(), Leaves::default());
        let mut products = [NOTHING; TILE_NNZ + ROOM];
        // The first slot of the tile of leaves in `products`: none yet.
        let mut at = u32::MAX;
        for (tile, sums) in (first_tile..).zip(sums.chunks_mut(TILE_NNZ)) {
            view.starts(level, tile, &mut nodes)?;
            // Columns of indices are stored between those of starts.
            self.way.fetch(view.start_words(level, tile + 1));
            let bounds = &nodes.starts[..=sums.len()];
            let mut fiber = 0;
            while fiber < sums.len() {
                // A fiber that begins or continues in another tile of leaves.
                let (mut slot, end) = (bounds[fiber], bounds[fiber + 1]);
                let mut total = std::mem::replace(&mut before, NOTHING);
                while slot < end {
                    if at != slot / TILE * TILE {
                        at = slot / TILE * TILE;
                        let tile = (at / TILE) as usize;
                        view.leaves(tile, &mut leaves)?;
                        self.way.fetch(view.leaf_words(tile + 1));
                        multiply(&leaves, vector, &mut products);
                    }
                    if slot == bounds[fiber] && leaves.begins_with_padding(slot as usize) {
                        return Err(view.damaged(level + 1, (at / TILE) as usize));
                    }
                    let stop = end.min(at.saturating_add(TILE));
                    let there = &products[(slot - at) as usize..(stop - at) as usize];
                    total = there.iter().fold(total, |total, product| total + product);
                    slot = stop;
                }
                sums[fiber] = total;
                fiber += 1;
                // All following fibers in the same tile.
                let inside = bounds[fiber + 1..].partition_point(|&end| end - at <= TILE);
                let bounds = &bounds[fiber..=fiber + inside];
                let empty = |&slot: &u32| leaves.begins_with_padding(slot as usize);
                if leaves.padded && bounds[..inside].iter().any(empty) {
                    return Err(view.damaged(level + 1, (at / TILE) as usize));
                }
                let neighbours = Fibers { products: &products, at, bounds };
                self.way.add_up(&neighbours, &mut sums[fiber..fiber + inside]);
                fiber += inside;
            }
        }
        Ok(())
    }
}

/// The products of a tile of leaves; [`NOTHING`] for padding.
#[inline(always)]
fn multiply<T: Real>(leaves: &Leaves, vector: &[T], products: &mut Products) {
    let Leaves { indices, values, padded, .. } = leaves;
    if *padded {
        for ((product, value), &index) in products.iter_mut().zip(values).zip(indices) {
            *product = match vector.get(index as usize) {
                Some(&x) => (T::nearest(*value) * x).widen(),
                None => NOTHING,
            };
        }
        return;
    }
    // First looks up all elements, then multiplies a vector at a time.
    let (products, _) = products.split_at_mut(TILE_NNZ);
    for (products, indices) in products.chunks_exact_mut(ABREAST).zip(indices.chunks_exact(ABREAST)) {
        for (product, &index) in products.iter_mut().zip(indices) {
            *product = vector[index as usize].widen();
        }
    }
    for (product, value) in products.iter_mut().zip(values) {
        *product = (T::nearest(*value) * T::nearest(*product)).widen();
    }
}
