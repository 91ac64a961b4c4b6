//! Fibers in mode-sorted copies. A copy keeps the chunks' order where rows are equal: built from trees, it has the nonzeros of a fiber one
//! after the other, of which kernels read one row each and multiply the other modes' rows once (kernels/mttkrp.cuh, after the fiber-level sums
//! of Nisa et al., SC 2019, section 5).

use crate::store::Store;

/// Nonzeros of a fiber, on average, from which on that is faster than reading all rows of each nonzero.
const LONG: f64 = 3.0;

/// Fibers of a copy.
#[derive(Clone, Copy, Debug)]
pub struct Fibers {
    /// The mode in which alone their nonzeros differ.
    pub leaf: usize,
    /// Their nonzeros, on average.
    pub length: f64,
}

/// Those of a copy for `mode` of what is read of `store`; `None` where its partitions have no mode of leaves in common, this is their mode, or
/// they are short.
#[must_use]
pub fn fibers(store: &Store, mode: usize) -> Option<Fibers> {
    let order = store.manifest().shape.order();
    let chunks = store.chunks_for(mode);
    let own =
        store.parts().zip(&store.manifest().partitions).filter(|((_, of), _)| chunks.contains(&of.start));
    let (mut leaf, mut nnz, mut count) = (None, 0, 0);
    for (_, partition) in own {
        let of_partition = partition.format.record().levels?.mode(order - 1);
        if leaf.is_some_and(|leaf| leaf != of_partition) {
            return None;
        }
        leaf = Some(of_partition);
        nnz += partition.nnz;
        count += partition.statistics.as_ref()?.nodes[order - 2];
    }
    let length = nnz as f64 / count.max(1) as f64;
    leaf.filter(|&leaf| leaf != mode && count > 0 && length >= LONG).map(|leaf| Fibers { leaf, length })
}
