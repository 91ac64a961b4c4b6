//! BLCO (formats-spec/blco.md): [`ChunkBuilder`] makes chunk images from sorted nonzeros, [`ChunkView`] gives
//! them back, checked, a tile at a time.

mod build;
mod statistics;
mod view;

pub use build::{BuiltChunk, ChunkBuilder, EncodedTile, TileEncoder};
pub(crate) use build::{chunk_bytes_least, chunk_nnz_max};
pub use statistics::Statistics;
pub use view::{ChunkView, Decoder, chunk_shape};
