//! BLCO (formats-spec/blco.md): [`ChunkBuilder`] makes chunk images from sorted nonzeros, [`ChunkView`] gives
//! them back, checked, a tile at a time.

mod build;
mod view;

pub use build::{ChunkBuilder, EncodedTile, TileEncoder};
pub(crate) use build::{chunk_bytes_least, open_chunk_bytes};
pub use view::{ChunkView, Decoder};
