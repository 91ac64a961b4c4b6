//! The kernels: embedded as PTX, which serves every device from compute capability 7.0 on, and compiled for one
//! device, order, rank and index encoding if NVRTC is installed, without decimals if a store has none. Both come from the same sources in kernels/.

use super::abi::TILE_THREADS;
use super::cache::Cache;
use super::driver::{Device, Kernel, Module};
use super::nvrtc::{Nvrtc, SourceFile};
use crate::backend::device::{KernelReport, KernelSource, MttkrpVariant, Origin};
use crate::dense::Precision;
use crate::encoding::TILE_NNZ;
use crate::error::{self, Error};
use crate::shape::ORDER_MAX;
use crate::sys::Sys;
use memchr::memmem;
use std::path::Path;
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3;

mod matrices;

pub use matrices::Matrices;

/// Made by `tools/make_ptx.sh`.
const PTX: &[u8] = include_bytes!("../../../kernels/blco.ptx.zst");
/// The same of kernels that multiply matrices, for compute capability 8.0 and later.
const MATRICES_PTX: &[u8] = include_bytes!("../../../kernels/matrices.ptx.zst");

macro_rules! source {
    ($name:literal) => {
        SourceFile { name: $name, text: include_str!(concat!("../../../kernels/", $name)) }
    };
}

const SOURCE: SourceFile = source!("blco.cu");
const HEADERS: [SourceFile; 18] = [
    source!("abi.h"),
    source!("branches.cuh"),
    source!("dense.cuh"),
    source!("expand.cuh"),
    source!("fibers.cuh"),
    source!("image.cuh"),
    source!("instances.h"),
    source!("kronecker.cuh"),
    source!("mttkrp.cuh"),
    source!("mode_sorted.cuh"),
    source!("segments.cuh"),
    source!("sort.cuh"),
    source!("sorted.cuh"),
    source!("tensor_cores.cuh"),
    source!("tile.cuh"),
    source!("tree.cuh"),
    source!("ttm.cuh"),
    source!("ttv.cuh"),
];

/// The names of the kernels in a specialised [`KernelImage`].
const SPECIALISED_NAME: &str = "mttkrp";
const SPECIALISED_SORTED: &str = "mttkrp_sorted";

/// The PTX of these embedded kernels, with the NUL at the end that the driver needs. It contains few kernels, because the driver
/// compiles all of them.
///
/// # Panics
///
/// If the program was built from a damaged file.
#[must_use]
pub fn embedded_ptx(names: &[&str]) -> Vec<u8> {
    kernels_of(PTX, names)
}

/// The PTX of these kernels of `compressed`.
fn kernels_of(compressed: &[u8], names: &[&str]) -> Vec<u8> {
    const ENTRY: &[u8] = b"\n.visible .entry ";
    // A kernel's body ends with a brace on its own line. Text between kernels belongs to all.
    const END: &[u8] = b"\n}";
    // At once: it is megabytes. tools/make_ptx.sh writes one frame, which states its size.
    let size = zstd::zstd_safe::get_frame_content_size(compressed).ok().flatten();
    let size = size.and_then(|size| usize::try_from(size).ok()).expect("the frame states its size");
    let all = zstd::bulk::decompress(compressed, size)
        .expect("the embedded PTX was compressed by tools/make_ptx.sh");
    let entries: Vec<Vec<u8>> = names.iter().map(|name| [ENTRY, name.as_bytes(), b"("].concat()).collect();
    let (mut ptx, mut rest) = (Vec::new(), &all[..]);
    while let Some(begin) = memmem::find(rest, ENTRY) {
        let end = begin + memmem::find(&rest[begin..], END).expect("a kernel ends") + END.len();
        let wanted = entries.iter().any(|entry| rest[begin..].starts_with(entry));
        ptx.extend_from_slice(&rest[..if wanted { end } else { begin }]);
        rest = &rest[end..];
    }
    ptx.extend_from_slice(rest);
    ptx.push(0);
    ptx
}

/// The kernels of an operation, and where they came from.
#[derive(Debug)]
pub struct MttkrpKernels {
    /// Adds chunks to sums.
    pub mttkrp: Kernel,
    /// Adds up sorted nonzeros; for `tiled` chunks.
    pub sorted: Option<Kernel>,
    /// Adds up copies.
    pub finish: Kernel,
    /// Adds up the carry-outs of sorted nonzeros.
    pub fix_up: Kernel,
    /// Clears rows.
    pub clear: Kernel,
    /// How thread blocks share the work.
    pub variant: MttkrpVariant,
    /// The name for reports.
    pub report: KernelReport,
}

impl KernelSource {
    /// Loads the kernels for `spec`, for factors of `factor_bytes` in total.
    pub fn load(
        &self,
        device: &Arc<Device>,
        sys: &Sys,
        spec: &Specialisation,
        factor_bytes: u64,
    ) -> error::Result<MttkrpKernels> {
        // Variants that are asked for are of threads.
        let threads = |kronecker| Kronecker { matrices: None, embedded_matrices: None, ..kronecker };
        let kronecker = spec.kronecker.map(|own| if self.variant.is_some() { threads(own) } else { own });
        let spec = &Specialisation { kronecker, ..*spec };
        if let Some(variant) = self.variant {
            let refused = |why| Error::request(format!("kernel {variant}: {why}"));
            spec.takes(&variant).map_err(refused)?;
        }
        let spread = self.rows_per_nonzero.is_some_and(|rows| rows > HARDLY_MEET);
        let variant = self.variant.map(|variant| spec.fitting(variant));
        let variant = variant.unwrap_or_else(|| spec.compiled_variant(factor_bytes, spread));
        let why = match self.compiled(device, sys, spec, &variant) {
            Ok(image) => {
                let module = device.module(&image.bytes)?;
                let name = spec.compiled_name(&variant);
                let report = KernelReport { name, origin: image.origin, why: image.cache_refused };
                let sorted = spec.has_sorted().then(|| module.kernel(SPECIALISED_SORTED)).transpose()?;
                return MttkrpKernels::new(&module, SPECIALISED_NAME, sorted, "real", variant, report);
            }
            Err(why) if self.compile == Some(true) || self.variant.is_some() => {
                return Err(Error::request(format!("kernels cannot be compiled: {why}")));
            }
            Err(why) => why,
        };
        let (precision, variant) = (spec.precision, spec.embedded_variant(spread));
        let name = spec.embedded_name(&variant);
        let by_matrices = spec.kronecker.and_then(|kronecker| kronecker.embedded_matrices);
        let by_matrices = by_matrices.filter(|_| spec.has_sorted());
        let by_threads =
            (spec.has_sorted() && by_matrices.is_none()).then(|| spec.embedded_sorted_name(&variant));
        let of_rows = of_rows(precision.name());
        let names = [&name].into_iter().chain(&by_threads).chain(&of_rows).map(String::as_str);
        let module = device.module(&embedded_ptx(&names.collect::<Vec<_>>()))?;
        let sorted = if by_matrices.is_some() {
            let name = spec.embedded_matrices_name();
            Some(device.module(&kernels_of(MATRICES_PTX, &[&name]))?.kernel(&name)?)
        } else {
            by_threads.map(|name| module.kernel(&name)).transpose()?
        };
        let name_of_all = Specialisation::with_matrices(spec.report_name(&variant), by_matrices);
        let report = KernelReport { name: name_of_all, origin: Origin::Embedded, why: Some(why) };
        MttkrpKernels::new(&module, &name, sorted, precision.name(), variant, report)
    }

    fn compiled(
        &self,
        device: &Device,
        sys: &Sys,
        spec: &Specialisation,
        variant: &MttkrpVariant,
    ) -> Result<KernelImage, String> {
        if self.compile == Some(false) {
            return Err("embedded kernels were asked for".into());
        }
        let (driver, capability) = (device.facts.driver_version, device.facts.capability);
        let nvrtc = Nvrtc::find(driver, capability, None)?;
        specialised(sys, &nvrtc, spec, variant, capability, self.cache.as_deref())
    }
}

/// The kernels that finish, fix up and clear rows of `real`.
fn of_rows(real: &str) -> [String; 3] {
    ["finish", "fix_up", "clear"].map(|what| format!("{what}_{real}"))
}

impl MttkrpKernels {
    /// The kernels of a module, by these names.
    fn new(
        module: &Arc<Module>,
        mttkrp: &str,
        sorted: Option<Kernel>,
        real: &str,
        variant: MttkrpVariant,
        report: KernelReport,
    ) -> error::Result<Self> {
        let [finish, fix_up, clear] = of_rows(real).map(|name| module.kernel(&name));
        Ok(Self {
            mttkrp: module.kernel(mttkrp)?,
            sorted,
            finish: finish?,
            fix_up: fix_up?,
            clear: clear?,
            variant,
            report,
        })
    }
}

/// Embedded kernels of any rank whose products are in f64 while factors are in f32. They write results in f64.
#[derive(Debug)]
pub struct WideKernels {
    /// Adds chunks to sums.
    pub mttkrp: Kernel,
    /// Adds up sorted nonzeros; for `tiled` chunks.
    pub sorted: Option<Kernel>,
    /// Adds up the carry-outs of sorted nonzeros.
    pub fix_up: Kernel,
    /// Clears rows.
    pub clear: Kernel,
    /// Threads of a thread block of `mttkrp`, which takes the same number of tiles as the f32 kernels.
    pub threads: u32,
}

impl WideKernels {
    /// The replacements of the kernels `variant` for `spec`.
    pub fn load(device: &Arc<Device>, spec: &Specialisation, variant: &MttkrpVariant) -> error::Result<Self> {
        let (mttkrp, sorted) = (spec.wide_name(variant.tiles), spec.wide_sorted_name());
        let [_, fix_up, clear] = of_rows(Precision::F64.name());
        let names: Vec<&str> =
            [&mttkrp, &fix_up, &clear].into_iter().chain(&sorted).map(String::as_str).collect();
        let module = device.module(&embedded_ptx(&names))?;
        let at_once = variant.tiles.min(spec.wide_tiles(variant.tiles));
        Ok(Self {
            mttkrp: module.kernel(&mttkrp)?,
            sorted: sorted.map(|name| module.kernel(&name)).transpose()?,
            fix_up: module.kernel(&fix_up)?,
            clear: module.kernel(&clear)?,
            threads: at_once * TILE_THREADS,
        })
    }
}

/// Embedded kernels for sums of fibers, whose nonzeros are a matrix.
#[derive(Debug)]
pub struct FiberSumKernels {
    /// Adds up nonzeros sorted by fiber.
    pub sums: Kernel,
    /// Adds up their carry-outs.
    pub fix_up: Kernel,
}

impl FiberSumKernels {
    /// For a factor of `rank` columns.
    pub fn load(device: &Arc<Device>, precision: Precision, rank: usize) -> error::Result<Self> {
        let (sums, [_, fix_up, _]) = (Self::name(precision, rank), of_rows(precision.name()));
        let module = device.module(&embedded_ptx(&[&sums, &fix_up]))?;
        Ok(Self { sums: module.kernel(&sums)?, fix_up: module.kernel(&fix_up)? })
    }

    fn name(precision: Precision, rank: usize) -> String {
        let variant = MttkrpVariant::embedded(precision, 2, rank, false);
        sorted_name(precision, 2, &variant)
    }
}

/// The name of the embedded kernel of an order for sorted nonzeros.
fn sorted_name(precision: Precision, order: usize, variant: &MttkrpVariant) -> String {
    let MttkrpVariant { lanes, columns, batch, .. } = variant;
    format!("sorted_{}_o{order}_l{lanes}c{columns}b{batch}", precision.name())
}

/// The average number of rows per nonzero in a group of tiles from which few rows are met again before the L2
/// cache has evicted them.
const HARDLY_MEET: f64 = 0.65;
/// Bytes of factors that are too large for rows to repeat often within a group of tiles.
const MANY_ROWS_BYTES: u64 = 8 << 20;
/// Bytes of shared memory that a thread block has on every device.
const SHARED_BYTES: usize = 48 << 10;

impl MttkrpVariant {
    /// The fastest variant, as measured, for an order, rank and bytes of all factors (docs/performance.md).
    /// `spread`: rows rarely repeat.
    #[must_use]
    pub fn compiled(
        precision: Precision,
        order: usize,
        rank: usize,
        factor_bytes: u64,
        spread: bool,
    ) -> Self {
        let (lanes, mut columns, split) = share(precision, rank, spread);
        // With many factors, the L1 cache holds a thread block's rows if each sweep covers fewer columns.
        if precision == Precision::F64 && order > 3 && factor_bytes > MANY_ROWS_BYTES {
            columns = 1;
        }
        // If registers allow it: half a line of each row.
        let batch = if precision == Precision::F32 && lanes * columns == 16 { 8 } else { 4 };
        Self { tiles: tiles(precision, order), lanes, columns, batch, split }
    }

    /// The embedded variant that serves an order and rank. `spread`: rows rarely repeat.
    #[must_use]
    pub fn embedded(precision: Precision, order: usize, rank: usize, spread: bool) -> Self {
        let (lanes, columns, split) = share(precision, rank, spread);
        let tiles = if matches!(order, 3 | 4) { 4 } else { 2 };
        // A rank known at run time only takes registers.
        let batch = if columns > 1 && precision == Precision::F64 { 2 } else { 4 };
        Self { tiles, lanes, columns, batch, split }
    }

    /// The fastest variant, as measured, for a Kronecker product whose threads take `columns` consecutive elements of a row
    /// (kernels/kronecker.cuh), if a result's row has work for `threads` threads.
    #[must_use]
    pub fn kronecker(precision: Precision, order: usize, columns: u32, threads: usize) -> Self {
        let lanes = if threads >= 16 && columns <= 8 { 16 } else { 8 };
        let batch = match precision {
            Precision::F64 if columns > 5 => 1,
            Precision::F32 if columns <= 4 => 4,
            _ => 2,
        };
        Self { tiles: tiles(precision, order), lanes, columns, batch, split: false }
    }

    /// The fastest variant, as measured, for trees as they lie. A thread block is for all modes and columns, as it climbs once.
    #[must_use]
    pub fn of_tree(precision: Precision, order: usize, rank: usize) -> Self {
        let (lanes, columns, _) = share(precision, rank, false);
        let most = Self { tiles: 4, lanes, columns, batch: 4, split: false };
        most.fitting(|tiles| tree_bytes(precision, order, tiles))
    }

    /// The embedded variant for trees.
    fn embedded_of_tree(precision: Precision, order: usize, rank: usize) -> Self {
        let of_order = if matches!(order, 3 | 4) { order } else { ORDER_MAX };
        let Self { tiles, lanes, columns, .. } = Self::of_tree(precision, of_order, rank);
        let Self { batch, .. } = Self::embedded(precision, order, rank, false);
        Self { tiles, lanes, columns, batch, split: false }
    }

    /// The embedded variant of a Kronecker product.
    fn embedded_kronecker(precision: Precision, order: usize) -> Self {
        let tiles = if matches!(order, 3 | 4) { 4 } else { 2 };
        let batch = if precision == Precision::F64 { 1 } else { 2 };
        Self { tiles, lanes: 8, columns: 8, batch, split: false }
    }

    /// This variant of a Kronecker product for trees as they lie, whose registers hold fewer columns and batches, as measured.
    fn kronecker_of_tree(self, precision: Precision, order: usize) -> Self {
        let (lanes, columns) =
            if self.columns > 8 { (16, self.columns.div_ceil(2)) } else { (self.lanes, self.columns) };
        let batch = self.batch.min(if precision == Precision::F64 { 1 } else { 2 });
        Self { lanes, columns, batch, ..self }.fitting(|tiles| kronecker_tree_bytes(precision, order, tiles))
    }

    /// The variant with fewer tiles if these take more shared memory than thread blocks have.
    fn fitting(self, bytes: impl Fn(u32) -> usize) -> Self {
        let fits = |&tiles: &u32| tiles <= self.tiles && bytes(tiles) <= SHARED_BYTES;
        Self { tiles: [4, 2].into_iter().find(fits).unwrap_or(1), ..self }
    }

    /// Thread blocks that share the sweeps over a rank.
    #[must_use]
    pub fn sweeps(&self, rank: usize) -> u32 {
        let columns = (self.lanes * self.columns) as usize;
        if self.split { u32::try_from(rank.div_ceil(columns).max(1)).unwrap_or(1) } else { 1 }
    }

    /// Whether this variant exists for this order and precision.
    pub fn suits(&self, precision: Precision, order: usize) -> Result<(), String> {
        let Self { tiles, lanes, columns, batch, .. } = *self;
        let one_of = |name, value: u32, allowed: &[u32]| {
            if allowed.contains(&value) {
                Ok(())
            } else {
                Err(format!("{name} is {value}, not one of {allowed:?}"))
            }
        };
        one_of("tiles", tiles, &[1, 2, 4])?;
        one_of("lanes", lanes, &[4, 8, 16])?;
        one_of("columns", columns, &[1, 2, 4, 8])?;
        one_of("batch", batch, &[1, 2, 4, 8])?;
        let bytes = group_bytes(precision, order, tiles);
        if bytes > SHARED_BYTES {
            return Err(format!(
                "{tiles} tiles take {bytes} bytes of shared memory, more than {SHARED_BYTES}"
            ));
        }
        Ok(())
    }
}

/// Lanes and columns that suit a rank, and whether to split it.
fn share(precision: Precision, rank: usize, spread: bool) -> (u32, u32, bool) {
    match rank {
        0..=8 => (8, 1, false),
        9..=16 => (16, 1, false),
        // 16 columns of f64 are a cache line.
        _ if spread && precision == Precision::F64 => (16, 1, true),
        _ => (16, 2, false),
    }
}

/// The most tiles of a thread block that shared memory holds.
fn tiles(precision: Precision, order: usize) -> u32 {
    [4, 2].into_iter().find(|&tiles| group_bytes(precision, order, tiles) <= SHARED_BYTES).unwrap_or(1)
}

/// Bytes of shared memory of a thread block with this many tiles.
fn group_bytes(precision: Precision, order: usize, tiles: u32) -> usize {
    let value = match precision {
        Precision::F64 => 8,
        Precision::F32 => 4,
    };
    tiles as usize * TILE_NNZ * (value + 4 * order)
}

/// Bytes of shared memory of a thread block with this many tiles of a tree (kernels/branches.cuh).
fn tree_bytes(precision: Precision, order: usize, tiles: u32) -> usize {
    /// What a thread block knows of levels.
    const FRAME: usize = 512;
    let marks_of_level = tiles as usize * TILE_NNZ / 8;
    group_bytes(precision, order, tiles) + (order - 1) * marks_of_level + FRAME
}

/// The same with sums of fibers for a Kronecker product (kernels/kronecker.cuh).
fn kronecker_tree_bytes(precision: Precision, order: usize, tiles: u32) -> usize {
    /// Of a tile's nonzeros: their sums, and at most how many pieces of fibers there are.
    const SUMS: usize = 8 << 10;
    const PIECES: usize = TILE_NNZ.div_ceil(3) + TILE_NNZ / 32;
    tree_bytes(precision, order, tiles) + tiles as usize * (SUMS + PIECES * size_of::<u32>())
}

/// What kernels read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelLayout {
    /// Chunks of layout `raw`.
    Raw,
    /// Chunks of layout `tiled`, or what others are converted to.
    Tiled,
    /// Trees as they lie.
    Tree,
    /// Segments as they lie.
    Segments,
}

impl KernelLayout {
    /// Whether it is that of trees or segments, as they lie.
    #[must_use]
    pub fn is_as_packed(self) -> bool {
        matches!(self, Self::Tree | Self::Segments)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Tiled => "tiled",
            Self::Tree => "tree",
            Self::Segments => "segments",
        }
    }
}

/// How kernels compute a Kronecker product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kronecker {
    /// The fastest variant of a compiled kernel whose threads multiply rows.
    pub threads: MttkrpVariant,
    /// What sorted nonzeros are multiplied by instead, if that is faster.
    pub matrices: Option<Matrices>,
    /// The same of embedded kernels.
    pub embedded_matrices: Option<Matrices>,
}

/// The parameters of an MTTKRP kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Specialisation {
    /// What the kernel reads.
    pub layout: KernelLayout,
    /// The precision of factors and products.
    pub precision: Precision,
    /// The tensor's order.
    pub order: usize,
    /// Columns of the factors; nothing if they differ, as in a Kronecker product.
    pub rank: usize,
    /// Of a Kronecker product (SpTTMc), whose kernels serve all ranks.
    pub kronecker: Option<Kronecker>,
    /// Whether chunks may hold decimals: without, a compiled kernel takes fewer registers.
    pub decimals: bool,
}

impl Specialisation {
    /// Whether nonzeros can be sorted, which requires `tiled`.
    fn has_sorted(&self) -> bool {
        self.layout == KernelLayout::Tiled
    }

    /// The variant of a compiled kernel, for factors of `factor_bytes` in total. `spread`: rows rarely repeat.
    fn compiled_variant(&self, factor_bytes: u64, spread: bool) -> MttkrpVariant {
        let Self { precision, order, rank, .. } = *self;
        match (self.layout, self.kronecker) {
            (KernelLayout::Tree, None) => MttkrpVariant::of_tree(precision, order, rank),
            (KernelLayout::Tree, Some(kronecker)) => kronecker.threads.kronecker_of_tree(precision, order),
            (_, Some(kronecker)) => kronecker.threads,
            (_, None) => MttkrpVariant::compiled(precision, order, rank, factor_bytes, spread),
        }
    }

    /// The same of an embedded kernel.
    fn embedded_variant(&self, spread: bool) -> MttkrpVariant {
        let Self { precision, order, rank, .. } = *self;
        let kronecker = MttkrpVariant::embedded_kronecker(precision, order);
        match (self.layout, self.kronecker) {
            (KernelLayout::Tree, None) => MttkrpVariant::embedded_of_tree(precision, order, rank),
            (KernelLayout::Tree, Some(_)) => {
                let of_tree = kronecker.kronecker_of_tree(precision, self.embedded_order());
                // More spill on every device.
                MttkrpVariant { columns: if precision == Precision::F64 { 4 } else { 8 }, ..of_tree }
            }
            (_, Some(_)) => kronecker,
            (_, None) => MttkrpVariant::embedded(precision, order, rank, spread),
        }
    }

    /// Whether a variant exists for this; the error says why not.
    fn takes(&self, variant: &MttkrpVariant) -> Result<(), String> {
        if self.kronecker.is_some() {
            MttkrpVariant { columns: 1, ..*variant }.suits(self.precision, self.order)?;
            // A thread for each column of a sweep.
            let most = TILE_THREADS / variant.lanes;
            let is_one = (1..=most).contains(&variant.columns);
            return is_one
                .then_some(())
                .ok_or(format!("columns is {}, not from 1 to {most}", variant.columns));
        }
        variant.suits(self.precision, self.order)
    }

    /// A variant that was asked for, as chunks of this layout take it.
    fn fitting(&self, variant: MttkrpVariant) -> MttkrpVariant {
        let bytes = match (self.layout, self.kronecker) {
            (KernelLayout::Raw | KernelLayout::Tiled | KernelLayout::Segments, _) => return variant,
            (KernelLayout::Tree, None) => tree_bytes,
            (KernelLayout::Tree, Some(_)) => kronecker_tree_bytes,
        };
        variant.fitting(|tiles| bytes(self.precision, self.order, tiles))
    }

    /// The name of a compiled kernel and its launch for reports.
    fn compiled_name(&self, variant: &MttkrpVariant) -> String {
        match self.kronecker {
            Some(kronecker) => {
                let matrices = kronecker.matrices.filter(|_| self.has_sorted());
                Self::with_matrices(format!("{}_{variant}", self.embedded_name(variant)), matrices)
            }
            None => format!("{}, rank {}", self.report_name(variant), self.rank),
        }
    }

    /// The name of a kernel and its launch for reports.
    fn report_name(&self, variant: &MttkrpVariant) -> String {
        self.embedded_name(variant) + if variant.split { "s" } else { "" }
    }

    /// The name of the embedded kernel for sorted nonzeros.
    fn embedded_sorted_name(&self, variant: &MttkrpVariant) -> String {
        if self.kronecker.is_some() {
            return format!("ttmc_sorted_{}_o{}", self.precision.name(), self.embedded_order());
        }
        sorted_name(self.precision, self.embedded_order(), variant)
    }

    /// The name of kernels for reports, with the matrices that sorted nonzeros are multiplied by.
    fn with_matrices(name: String, matrices: Option<Matrices>) -> String {
        match matrices {
            Some(matrices) => name + &format!(", sorted {matrices}"),
            None => name,
        }
    }

    /// The name of the embedded kernel that multiplies matrices.
    fn embedded_matrices_name(&self) -> String {
        format!("ttmc_matrices_{}_o{}", self.precision.name(), self.embedded_order())
    }

    /// The order of the kernel with products in f64 and this many tiles.
    fn wide_order(&self, tiles: u32) -> usize {
        if tiles == 4 { self.embedded_order() } else { ORDER_MAX }
    }

    /// The most tiles that it takes at once: shared memory holds two of most orders.
    fn wide_tiles(&self, tiles: u32) -> u32 {
        match (self.wide_order(tiles), self.layout) {
            (3, _) | (4, KernelLayout::Raw | KernelLayout::Tiled | KernelLayout::Segments) => 4,
            _ => 2,
        }
    }

    fn wide_name(&self, tiles: u32) -> String {
        format!("wide_{}_o{}_t{tiles}", self.layout.name(), self.wide_order(tiles))
    }

    fn wide_sorted_name(&self) -> Option<String> {
        self.has_sorted().then(|| format!("wide_sorted_o{}", self.embedded_order()))
    }

    /// The order of embedded kernels that serve this one.
    fn embedded_order(&self) -> usize {
        if matches!(self.order, 3 | 4) { self.order } else { ORDER_MAX }
    }

    /// The name of an embedded kernel: exact for orders 3 and 4, of any rank.
    #[must_use]
    pub fn embedded_name(&self, variant: &MttkrpVariant) -> String {
        let layout = self.layout.name();
        let (precision, order) = (self.precision.name(), self.embedded_order());
        if self.kronecker.is_some() {
            return format!("ttmc_{layout}_{precision}_o{order}");
        }
        let MttkrpVariant { tiles, lanes, columns, batch, .. } = variant;
        format!("mttkrp_{layout}_{precision}_o{order}_t{tiles}l{lanes}c{columns}b{batch}")
    }

    /// NVRTC's options for a device of this compute capability.
    fn options(&self, variant: &MttkrpVariant, (major, minor): (u32, u32)) -> Vec<String> {
        let layout = match self.layout {
            KernelLayout::Raw => "Raw",
            KernelLayout::Segments => "Segments",
            // Trees have a kernel of their own.
            KernelLayout::Tiled | KernelLayout::Tree => "Tiled",
        };
        let real = match self.precision {
            Precision::F64 => "double",
            Precision::F32 => "float",
        };
        let sorted = self.has_sorted().then(|| "-DBLCO_SORTED".to_owned());
        let (rank, sweep, of_trees) = match self.kronecker {
            Some(_) => (0, "KroneckerSweep", "ttmc_tree"),
            None => (self.rank, "Sweep", "mttkrp_tree"),
        };
        let trees = (self.layout == KernelLayout::Tree).then(|| format!("-DBLCO_TREES={of_trees}"));
        let mut options = vec![
            format!("--gpu-architecture=sm_{major}{minor}"),
            "--std=c++17".into(),
            format!("-DBLCO_LAYOUT={layout}"),
            format!("-DBLCO_REAL={real}"),
            format!("-DBLCO_ORDER={}", self.order),
            format!("-DBLCO_RANK={rank}"),
            format!("-DBLCO_SWEEP={sweep}"),
            format!("-DBLCO_TILES={}", variant.tiles),
            format!("-DBLCO_LANES={}", variant.lanes),
            format!("-DBLCO_COLUMNS={}", variant.columns),
            format!("-DBLCO_BATCH={}", variant.batch),
            format!("-DBLCO_DECIMALS={}", u32::from(self.decimals)),
        ];
        let matrices = self.kronecker.and_then(|kronecker| kronecker.matrices).filter(|_| self.has_sorted());
        options.extend(sorted.into_iter().chain(trees));
        options.extend(matrices.iter().flat_map(|matrices| matrices.options(self.precision, self.order)));
        options
    }
}

/// A specialised kernel for one kind of device.
#[derive(Debug)]
pub struct KernelImage {
    /// A device binary with the kernels that kernels/blco.cu names.
    pub bytes: Vec<u8>,
    /// Its origin.
    pub origin: Origin,
    /// Why the cache was not used, in one line, if it should have been.
    pub cache_refused: Option<String>,
}

/// The kernel compiled for `spec` and a compute capability: from the cache in the directory `cache`, or compiled and
/// stored there. A cache that cannot be read, written or trusted is reported but is not an error. The error, in one
/// line, says why the embedded kernel is used instead.
pub fn specialised(
    sys: &Sys,
    nvrtc: &Nvrtc,
    spec: &Specialisation,
    variant: &MttkrpVariant,
    capability: (u32, u32),
    cache: Option<&Path>,
) -> Result<KernelImage, String> {
    let options = spec.options(variant, capability);
    let key = key(nvrtc.version(), &options);
    let (cache, mut cache_refused) = match cache.map(|path| Cache::open(sys, path)) {
        None => (None, None),
        Some(Ok(cache)) => (Some(cache), None),
        Some(Err(refused)) => (None, Some(refused.to_string())),
    };
    if let Some(bytes) = cache.as_ref().and_then(|cache| cache.get(key)) {
        return Ok(KernelImage { bytes, origin: Origin::Cache, cache_refused });
    }
    let bytes = nvrtc.compile(SOURCE, &HEADERS, &options)?;
    if let Some(Err(refused)) = cache.map(|cache| cache.put(key, &bytes)) {
        cache_refused = Some(refused.to_string());
    }
    Ok(KernelImage { bytes, origin: Origin::Compiled, cache_refused })
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
