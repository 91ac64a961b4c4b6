//! The kernels: embedded as PTX, which serves every device from compute capability 7.0 on, and compiled for one
//! device, order, rank and index encoding where NVRTC is installed. Both come from the same sources in kernels/.

use super::cache::Cache;
use super::nvrtc::{Nvrtc, SourceFile};
use crate::dense::Precision;
use crate::encoding::IndexEncoding;
use crate::shape::ORDER_MAX;
use crate::sys::Sys;
use serde::Serialize;
use std::path::Path;
use xxhash_rust::xxh3::Xxh3;

/// Made by `tools/make_ptx.sh`.
const PTX: &[u8] = include_bytes!("../../../kernels/blco.ptx.zst");

macro_rules! source {
    ($name:literal) => {
        SourceFile { name: $name, text: include_str!(concat!("../../../kernels/", $name)) }
    };
}

const SOURCE: SourceFile = source!("blco.cu");
const HEADERS: [SourceFile; 5] = [
    source!("abi.h"),
    source!("image.cuh"),
    source!("instances.h"),
    source!("mttkrp.cuh"),
    source!("tile.cuh"),
];

/// The name of the kernel in a specialised [`Image`].
pub const SPECIALISED_NAME: &str = "mttkrp";

/// The embedded kernels as PTX, with the NUL at the end that the driver wants.
///
/// # Panics
///
/// If the program was built from a damaged file.
#[must_use]
pub fn embedded_ptx() -> Vec<u8> {
    let mut ptx = zstd::decode_all(PTX).expect("the embedded PTX was compressed by tools/make_ptx.sh");
    ptx.push(0);
    ptx
}

/// What an MTTKRP kernel is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Specialisation {
    /// How the indices are encoded.
    pub layout: IndexEncoding,
    /// The precision of factors and products.
    pub precision: Precision,
    /// The tensor's order.
    pub order: usize,
    /// Columns of the factors.
    pub rank: usize,
    /// Threads that share a nonzero.
    pub lanes: u32,
    /// Columns that a thread computes in one sweep over the rank.
    pub columns: u32,
}

impl Specialisation {
    /// With the lanes and columns that suit the rank.
    #[must_use]
    pub fn new(layout: IndexEncoding, precision: Precision, order: usize, rank: usize) -> Self {
        let (lanes, columns) = match rank {
            0..=8 => (8, 1),
            9..=16 => (16, 1),
            _ => (16, 2),
        };
        Self { layout, precision, order, rank, lanes, columns }
    }

    /// The embedded kernel that serves: exact for orders 3 and 4, of any rank.
    #[must_use]
    pub fn embedded_name(&self) -> String {
        let layout = match self.layout {
            IndexEncoding::Raw => "raw",
            IndexEncoding::Tiled => "tiled",
        };
        let precision = match self.precision {
            Precision::F64 => "f64",
            Precision::F32 => "f32",
        };
        let order = if matches!(self.order, 3 | 4) { self.order } else { ORDER_MAX };
        format!("mttkrp_{layout}_{precision}_o{order}_l{}c{}", self.lanes, self.columns)
    }

    /// What NVRTC is told for a device of that compute capability.
    fn options(&self, (major, minor): (u32, u32)) -> Vec<String> {
        let layout = match self.layout {
            IndexEncoding::Raw => "Raw",
            IndexEncoding::Tiled => "Tiled",
        };
        let real = match self.precision {
            Precision::F64 => "double",
            Precision::F32 => "float",
        };
        vec![
            format!("--gpu-architecture=sm_{major}{minor}"),
            "--std=c++17".into(),
            format!("-DBLCO_LAYOUT={layout}"),
            format!("-DBLCO_REAL={real}"),
            format!("-DBLCO_ORDER={}", self.order),
            format!("-DBLCO_RANK={}", self.rank),
            format!("-DBLCO_LANES={}", self.lanes),
            format!("-DBLCO_COLUMNS={}", self.columns),
        ]
    }
}

/// Where an [`Image`] comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Compiled just now.
    Compiled,
    /// Compiled in an earlier run.
    Cache,
}

/// A specialised kernel for one kind of device.
#[derive(Debug)]
pub struct Image {
    /// A device binary; its kernel is [`SPECIALISED_NAME`].
    pub bytes: Vec<u8>,
    /// Where it comes from.
    pub origin: Origin,
    /// Why the cache was of no use, in one line, if it should have been.
    pub cache_refused: Option<String>,
}

/// The kernel made for `spec` on devices of a compute capability: from the cache in the directory `cache`, or
/// compiled and kept there. That the cache cannot be read, written or trusted is told, but is no error. The error, one
/// line, says why the embedded kernel must serve.
pub fn specialised(
    sys: &Sys,
    nvrtc: &Nvrtc,
    spec: &Specialisation,
    capability: (u32, u32),
    cache: Option<&Path>,
) -> Result<Image, String> {
    let options = spec.options(capability);
    let key = key(nvrtc.version(), &options);
    let (cache, mut cache_refused) = match cache.map(|path| Cache::open(sys, path)) {
        None => (None, None),
        Some(Ok(cache)) => (Some(cache), None),
        Some(Err(refused)) => (None, Some(refused.to_string())),
    };
    if let Some(bytes) = cache.as_ref().and_then(|cache| cache.get(key)) {
        return Ok(Image { bytes, origin: Origin::Cache, cache_refused });
    }
    let bytes = nvrtc.compile(SOURCE, &HEADERS, &options)?;
    if let Some(Err(refused)) = cache.map(|cache| cache.put(key, &bytes)) {
        cache_refused = Some(refused.to_string());
    }
    Ok(Image { bytes, origin: Origin::Compiled, cache_refused })
}

/// Identifies what a compilation depends on: sources, compiler, options.
fn key(version: (u32, u32), options: &[String]) -> u128 {
    let mut hash = Xxh3::new();
    let mut add = |text: &str| {
        hash.update(&(text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    };
    for source in [SOURCE].iter().chain(&HEADERS) {
        add(source.name);
        add(source.text);
    }
    add(&format!("{}.{}", version.0, version.1));
    for option in options {
        add(option);
    }
    hash.digest128()
}

#[cfg(test)]
mod tests;
