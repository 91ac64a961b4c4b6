//! Operations: what is computed from the tiles of a store. Each states its determinism class.

pub mod exact;
pub mod export;
pub mod fibers;
pub mod inner;
pub mod inspect;
pub mod mttkrp;
pub mod oracle;
pub mod read;
pub mod reread;
mod rows;
pub mod salvage;
pub mod storage;
pub mod ttm;
pub mod ttmc;
pub mod ttv;
pub mod verify;

use crate::format::DecodedTile;

/// The indices of a tile's nonzeros, row after row.
fn rows_of(tile: &DecodedTile<'_>) -> Vec<u32> {
    let order = tile.order();
    let mut indices = vec![0; tile.nnz * order];
    for m in 0..order {
        let places = indices[m..].iter_mut().step_by(order);
        places.zip(tile.column(m)).for_each(|(place, &index)| *place = index);
    }
    indices
}
