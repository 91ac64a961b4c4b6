//! BLCO (formats-spec/blco.md): [`BlcoBuilder`] makes chunk images from sorted nonzeros, [`BlcoView`] gives
//! them back, checked, a tile at a time.

mod build;
mod view;

pub use build::{BlcoBuilder, EncodedTile, TileEncoder};
pub(crate) use build::{chunk_bytes_least, open_chunk_bytes};
pub use view::{BlcoDecoder, BlcoView};
