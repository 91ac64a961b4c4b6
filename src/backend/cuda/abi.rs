//! What the kernels and the engine agree on: kernels/abi.h in Rust.

use crate::encoding::TILE_NNZ;
use crate::shape::ORDER_MAX;
use bytemuck::{Pod, Zeroable};

/// Threads that a thread block has for each of its tiles.
pub const TILE_THREADS: u32 = 128;
/// Terms of a chain of additions in the precision of the factors; longer sums are in f64.
pub const CHAIN: u32 = 64;

/// A chunk's image on the device, and the first thread block of a launch that works on it.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Chunk {
    /// Address of the image.
    pub image: u64,
    /// Its first thread block in the launch.
    pub first_block: u32,
    /// Its number in the store.
    pub number: u32,
}

/// The arguments of an MTTKRP launch.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct MttkrpArgs {
    /// Addresses of the factors.
    pub factors: [u64; ORDER_MAX],
    /// Address of the sums: `copies` matrices.
    pub sums: u64,
    /// Address of the smallest number of a chunk with a number out of range.
    pub fault: u64,
    /// Address of the launch's chunks, or 0 where `one` is the only one.
    pub chunks: u64,
    /// The only chunk.
    pub one: Chunk,
    /// How many chunks `chunks` lists.
    pub chunk_count: u32,
    /// The tensor's order.
    pub order: u32,
    /// Columns of the factors.
    pub rank: u32,
    /// The target mode.
    pub mode: u32,
    /// Copies of the result.
    pub copies: u32,
    /// The dims.
    pub dims: [u32; ORDER_MAX],
    /// `raw`: bits of each mode inside the re-encoded index.
    pub block_bits: [u32; ORDER_MAX],
    /// `raw`: bits of a key.
    pub key_bits: u32,
    /// `raw`: the mode of each bit of a key, from the lowest up.
    pub key_modes: [u8; 64],
}

const _: () = assert!(size_of::<Chunk>() == 16 && size_of::<MttkrpArgs>() == 256);
const _: () = assert!(TILE_NNZ == 512);
