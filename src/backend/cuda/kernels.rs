//! The kernels: embedded as PTX, which serves every device from compute capability 7.0 on, and compiled for one
//! device, order, rank and index encoding where NVRTC is installed. Both come from the same sources in kernels/.

use super::cache::Cache;
use super::driver::{Device, Kernel};
use super::nvrtc::{Nvrtc, SourceFile};
use crate::dense::Precision;
use crate::encoding::IndexEncoding;
use crate::error::{self, Error};
use crate::shape::ORDER_MAX;
use crate::sys::Sys;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3;

/// Made by `tools/make_ptx.sh`.
const PTX: &[u8] = include_bytes!("../../../kernels/blco.ptx.zst");

macro_rules! source {
    ($name:literal) => {
        SourceFile { name: $name, text: include_str!(concat!("../../../kernels/", $name)) }
    };
}

const SOURCE: SourceFile = source!("blco.cu");
const HEADERS: [SourceFile; 7] = [
    source!("abi.h"),
    source!("image.cuh"),
    source!("instances.h"),
    source!("mttkrp.cuh"),
    source!("order.cuh"),
    source!("sort.cuh"),
    source!("tile.cuh"),
];

/// The names of the kernels in a specialised [`Image`].
const SPECIALISED_NAME: &str = "mttkrp";
const SPECIALISED_FINISH: &str = "finish_real";

/// Those of the embedded kernels, as PTX, with the NUL at the end that the driver wants. Few of them, because the driver
/// compiles all that it gets.
///
/// # Panics
///
/// If the program was built from a damaged file.
#[must_use]
pub fn embedded_ptx(names: &[&str]) -> Vec<u8> {
    const ENTRY: &str = ".visible .entry ";
    let all = zstd::decode_all(PTX).expect("the embedded PTX was compressed by tools/make_ptx.sh");
    let all = String::from_utf8(all).expect("PTX is text");
    let (mut ptx, mut wanted) = (Vec::with_capacity(all.len()), true);
    for line in all.split_inclusive('\n') {
        if let Some(entry) = line.strip_prefix(ENTRY) {
            wanted = names.contains(&entry.split('(').next().unwrap_or_default());
        }
        if wanted {
            ptx.extend_from_slice(line.as_bytes());
        }
        // A kernel's body ends with a brace of its own; what stands between kernels belongs to all.
        wanted |= line == "}\n";
    }
    ptx.push(0);
    ptx
}

/// Where kernels are to come from.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// Compiled kernels: `None` where NVRTC is installed, otherwise always or never.
    pub compile: Option<bool>,
    /// The directory that keeps what was compiled.
    pub cache: Option<PathBuf>,
}

/// The kernels of an operation, and where they came from.
#[derive(Debug)]
pub struct Loaded {
    /// Adds chunks to sums.
    pub mttkrp: Kernel,
    /// Adds up copies.
    pub finish: Kernel,
    /// For reports.
    pub report: LoadedReport,
}

/// Which kernels were loaded.
#[derive(Clone, Debug, Serialize)]
pub struct LoadedReport {
    /// The MTTKRP kernel.
    pub name: String,
    /// Where it comes from.
    pub origin: Origin,
    /// Why it is not one that was compiled for this order and rank, or why the cache was of no use.
    pub why: Option<String>,
}

impl Source {
    /// Loads the kernels that `spec` asks for.
    pub fn load(&self, device: &Arc<Device>, sys: &Sys, spec: &Specialisation) -> error::Result<Loaded> {
        let why = match self.compiled(device, sys, spec) {
            Ok(image) => {
                let module = device.module(&image.bytes)?;
                let name = format!("{}, rank {}", spec.embedded_name(), spec.rank);
                return Ok(Loaded {
                    mttkrp: module.kernel(SPECIALISED_NAME)?,
                    finish: module.kernel(SPECIALISED_FINISH)?,
                    report: LoadedReport { name, origin: image.origin, why: image.cache_refused },
                });
            }
            Err(why) if self.compile == Some(true) => {
                return Err(Error::request(format!("kernels cannot be compiled: {why}")));
            }
            Err(why) => why,
        };
        let name = spec.embedded_name();
        let finish = match spec.precision {
            Precision::F64 => "finish_f64",
            Precision::F32 => "finish_f32",
        };
        let module = device.module(&embedded_ptx(&[&name, finish]))?;
        let (mttkrp, finish) = (module.kernel(&name)?, module.kernel(finish)?);
        let report = LoadedReport { name, origin: Origin::Embedded, why: Some(why) };
        Ok(Loaded { mttkrp, finish, report })
    }

    fn compiled(&self, device: &Device, sys: &Sys, spec: &Specialisation) -> Result<Image, String> {
        if self.compile == Some(false) {
            return Err("embedded kernels were asked for".into());
        }
        let nvrtc = Nvrtc::find(device.facts.driver_version, None)?;
        specialised(sys, &nvrtc, spec, device.facts.capability, self.cache.as_deref())
    }
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
    /// Embedded PTX, which the driver compiles.
    Embedded,
}

/// A specialised kernel for one kind of device.
#[derive(Debug)]
pub struct Image {
    /// A device binary with the kernels `mttkrp` and `finish_real`.
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
