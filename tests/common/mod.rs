//! Code that tests share: tensors in memory, stores packed from them, runs, and directories as values.

#![allow(dead_code, reason = "every test uses a part")]
#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]

use blco::internals::backend::host::{HostBackend, decoded_bytes};
use blco::internals::coo::tns::TnsWriter;
use blco::internals::coo::{Batch, Extent, Source};
use blco::internals::dense::{Matrix, Real};
use blco::internals::encoding::{IndexEncoding, LeafRule};
use blco::internals::error::Result;
use blco::internals::format::bcsf::FIBER_SPLIT;
use blco::internals::format::fcoo::FcooFor;
use blco::internals::format::mmcsf::Assign;
use blco::internals::format::{DecodedTile, Trees};
use blco::internals::op::export::EachTile;
use blco::internals::op::mttkrp::{ByCover, Mttkrp, host_bytes};
use blco::internals::pack::{FormatOption, PackOptions, PackReport};
use blco::internals::random::Counter;
use blco::internals::store::{ChunkHeader, Codec, Format, Manifest, SectionKind, Store};
use blco::internals::stream::{Executor, Limits, Plan, plan};
use blco::internals::sys::Sys;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// The words of messages for the system's error `number`.
pub fn system_words(number: &str) -> String {
    let Ok(number) = number.parse() else { return number.to_owned() };
    let text = std::io::Error::from_raw_os_error(number).to_string();
    text.split(" (os error").next().unwrap().to_lowercase()
}

/// The smallest bound on a chunk, so that small tensors have several.
pub const SMALL_CHUNKS: u64 = 64 << 10;

/// A tensor in coordinate form. Indices count from 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tensor {
    pub dims: Vec<u64>,
    pub indices: Vec<u32>,
    pub values: Vec<f64>,
}

impl Tensor {
    /// A tensor of these rows.
    pub fn of<const N: usize>(dims: [u64; N], rows: &[([u32; N], f64)]) -> Self {
        let indices = rows.iter().flat_map(|row| row.0).collect();
        Self { dims: dims.to_vec(), indices, values: rows.iter().map(|row| row.1).collect() }
    }

    /// `nnz` nonzeros at uniform coordinates, which may repeat; `value` gets 64 random bits.
    pub fn random(dims: &[u64], nnz: usize, seed: u64, value: impl Fn(u64) -> f64) -> Self {
        let stream = |m: usize| Counter::new(seed, m as u64);
        let at = |i: usize, m: usize| u32::try_from(stream(m).bits(i as u64) % dims[m]).unwrap();
        let indices = (0..nnz).flat_map(|i| (0..dims.len()).map(move |m| at(i, m))).collect();
        let values = (0..nnz).map(|i| value(stream(dims.len()).bits(i as u64))).collect();
        Self { dims: dims.to_vec(), indices, values }
    }

    pub fn order(&self) -> usize {
        self.dims.len()
    }

    pub fn nnz(&self) -> usize {
        self.values.len()
    }

    pub fn rows(&self) -> impl Iterator<Item = (&[u32], f64)> {
        self.indices.chunks_exact(self.order()).zip(self.values.iter().copied())
    }

    /// The same nonzeros in another order.
    pub fn shuffled(&self, seed: u64) -> Self {
        let random = Counter::new(seed, 99);
        let mut order: Vec<usize> = (0..self.nnz()).collect();
        order.sort_by_key(|&i| random.bits(i as u64));
        let row = |&i: &usize| &self.indices[i * self.order()..][..self.order()];
        let indices = order.iter().flat_map(row).copied().collect();
        let values = order.iter().map(|&i| self.values[i]).collect();
        Self { dims: self.dims.clone(), indices, values }
    }

    /// FROSTT text.
    pub fn text(&self) -> Vec<u8> {
        let mut writer = TnsWriter::new(Vec::new());
        self.rows().for_each(|(row, value)| writer.write_row(row, value).unwrap());
        writer.finish().unwrap()
    }

    /// Coordinates and value bits, sorted: what a store must return if no coordinates repeat.
    pub fn sorted(&self) -> Vec<(Vec<u32>, u64)> {
        let mut rows: Vec<_> = self.rows().map(|(row, value)| (row.to_vec(), value.to_bits())).collect();
        rows.sort_unstable();
        rows
    }

    /// Reads a source to its end.
    pub fn read(source: &mut dyn Source) -> Result<Self> {
        let mut tensor = Self::default();
        let extent = source.drain(&mut |batch| {
            tensor.indices.extend(batch.indices);
            tensor.values.extend(batch.values);
            Ok(())
        })?;
        Ok(Self { dims: extent.dims, ..tensor })
    }
}

/// Delivers a tensor in batches of a thousand nonzeros.
impl Source for &Tensor {
    fn name(&self) -> String {
        "tensor in memory".into()
    }

    fn drain(&mut self, sink: &mut dyn FnMut(Batch) -> Result<()>) -> Result<Extent> {
        let batches = self.indices.chunks(1000 * self.order()).zip(self.values.chunks(1000));
        for (indices, values) in batches {
            sink(Batch { indices: indices.to_vec(), values: values.to_vec() })?;
        }
        Ok(Extent { dims: self.dims.clone(), nnz: self.nnz() as u64 })
    }
}

/// Kinds of values: for each, a function of 64 random bits.
pub mod values {
    pub fn one(_: u64) -> f64 {
        1.0
    }

    /// Integers from -8 to 8.
    pub fn integer(bits: u64) -> f64 {
        (bits % 17) as f64 - 8.0
    }

    /// Integers that need all of f64's 53 bits, of both signs.
    pub fn wide_integer(bits: u64) -> f64 {
        let magnitude = (1u64 << 53) as f64 - (bits % 1_000_003) as f64;
        if bits >> 63 == 0 { magnitude } else { -magnitude }
    }

    /// In [-1, 1), with all of f64's bits.
    pub fn fraction(bits: u64) -> f64 {
        (bits >> 11) as f64 * (1.0 / (1u64 << 52) as f64) - 1.0
    }

    /// In [-1, 1), exact in f32 and nearly all distinct.
    pub fn single(bits: u64) -> f64 {
        (bits >> 41) as f64 * (1.0 / (1u64 << 22) as f64) - 1.0
    }

    /// A few values that are not exact in f32, and the negative zero.
    pub fn few(bits: u64) -> f64 {
        [0.1, -0.3, 1.0 / 3.0, -0.0, 1e-9][(bits % 5) as usize]
    }

    /// Three decimals, and one in 61 that has more.
    pub fn decimal(bits: u64) -> f64 {
        if bits.is_multiple_of(61) {
            fraction(bits)
        } else {
            (((bits >> 20) % 400_000) as f64 - 150_000.0) / 1000.0
        }
    }

    /// Integers, zeros among them.
    pub fn with_zeros(bits: u64) -> f64 {
        (bits % 3) as f64
    }
}

/// The kinds of stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Raw,
    Tiled,
    TiledZstd,
    /// The first mode main, the last one the leaves'.
    HocfsCsr,
    /// The second mode main, the first one the leaves'.
    HocfsEll,
    HocfsZstd,
    /// One tree for all modes.
    CsfOne,
    /// A tree for each mode.
    CsfAll,
    /// One tree, of the second mode.
    BcsfRoot,
    /// A tree for each mode.
    BcsfAllZstd,
    /// Up to three partitions for each mode.
    Hbcsf,
    /// Up to a tree for each leaf mode, one cover.
    Mmcsf,
    MmcsfStatic,
    FcooMttkrp,
    FcooTtm,
    /// For the first mode alone.
    HbcsfRoot,
    FcooRoot,
}

/// All that have one partition.
pub const KINDS: [Kind; 8] = [
    Kind::Raw,
    Kind::Tiled,
    Kind::TiledZstd,
    Kind::HocfsCsr,
    Kind::HocfsEll,
    Kind::HocfsZstd,
    Kind::CsfOne,
    Kind::BcsfRoot,
];

/// Those that have several.
pub const KINDS_OF_SEVERAL: [Kind; 7] = [
    Kind::CsfAll,
    Kind::BcsfAllZstd,
    Kind::Hbcsf,
    Kind::Mmcsf,
    Kind::MmcsfStatic,
    Kind::FcooMttkrp,
    Kind::FcooTtm,
];

/// All that the host reads.
pub fn all_kinds() -> impl Iterator<Item = Kind> {
    KINDS.into_iter().chain(KINDS_OF_SEVERAL)
}

/// Those whose order is the linear index of the BLCO paper.
pub const BLCO_KINDS: [Kind; 3] = [Kind::Raw, Kind::Tiled, Kind::TiledZstd];

impl Kind {
    /// The format.
    pub fn format(self) -> FormatOption {
        let hocfs = |main_mode, leaf| FormatOption::Hocfs { main_mode, leaf };
        match self {
            Self::Raw => FormatOption::Known(Format::blco(IndexEncoding::Raw)),
            Self::Tiled | Self::TiledZstd => FormatOption::Known(Format::blco(IndexEncoding::Tiled)),
            Self::HocfsCsr => hocfs(0, LeafRule::Csr),
            Self::HocfsEll => hocfs(1, LeafRule::Ell),
            Self::HocfsZstd => hocfs(0, LeafRule::Auto),
            Self::CsfOne => FormatOption::Csf { trees: Trees::One },
            Self::CsfAll => FormatOption::Csf { trees: Trees::All },
            Self::BcsfRoot => FormatOption::Bcsf { trees: Trees::Root(1), fiber_split: FIBER_SPLIT },
            Self::BcsfAllZstd => FormatOption::Bcsf { trees: Trees::All, fiber_split: 7 },
            Self::Hbcsf => FormatOption::Hbcsf { trees: Trees::All, fiber_split: FIBER_SPLIT },
            Self::Mmcsf => FormatOption::Mmcsf { assign: Assign::Dynamic },
            Self::MmcsfStatic => FormatOption::Mmcsf { assign: Assign::Static },
            Self::HbcsfRoot => FormatOption::Hbcsf { trees: Trees::Root(0), fiber_split: FIBER_SPLIT },
            Self::FcooRoot => {
                FormatOption::Fcoo { operation: FcooFor::Mttkrp, trees: Trees::Root(0), thread_nnz: 0 }
            }
            Self::FcooMttkrp => {
                FormatOption::Fcoo { operation: FcooFor::Mttkrp, trees: Trees::All, thread_nnz: 0 }
            }
            Self::FcooTtm => {
                FormatOption::Fcoo { operation: FcooFor::Ttm, trees: Trees::All, thread_nnz: 32 }
            }
        }
    }
}

/// How to pack a store of `kind` into `target`.
pub fn options(target: &Path, kind: Kind, chunk_bytes: u64) -> PackOptions {
    PackOptions {
        format: kind.format(),
        codec: if matches!(kind, Kind::TiledZstd | Kind::HocfsZstd | Kind::BcsfAllZstd) {
            Codec::Zstd(3)
        } else {
            Codec::None
        },
        chunk_bytes,
        ..PackOptions::new(target.to_path_buf())
    }
}

/// Packs without progress.
pub fn pack(sys: &Sys, source: &mut dyn Source, options: &PackOptions) -> Result<PackReport> {
    blco::internals::pack::pack(sys, source, options, &|_, _, _| ())
}

/// Packs a tensor in memory and opens the store.
pub fn packed(tensor: &Tensor, options: &PackOptions) -> Store {
    pack(&Sys::default(), &mut { tensor }, options).unwrap();
    Store::open(&Sys::default(), &options.target).unwrap()
}

/// Plans MTTKRP of `modes`.
pub fn plan_run<T: Real>(
    store: &Store,
    modes: &[usize],
    rank: usize,
    threads: usize,
    workers: Option<usize>,
    memory: Option<u64>,
) -> Plan {
    let manifest = store.manifest();
    let bytes =
        host_bytes::<T>(manifest, modes, rank, threads) + decoded_bytes(manifest.shape.order(), threads);
    plan(store, bytes, &Limits { memory, threads, workers, ..Limits::default() }).unwrap()
}

/// MTTKRP of `modes` by `plan`, on the current rayon pool.
pub fn run_planned<T: Real>(
    store: &Store,
    factors: &[Matrix<T>],
    modes: &[usize],
    plan: &Plan,
) -> Result<Vec<(usize, Matrix<T>)>> {
    let mut mttkrp = Mttkrp::new(store, factors, modes, plan.threads)?;
    let mut backend = HostBackend::for_threads(store, &mut mttkrp, plan.threads)?;
    Executor::new(store, plan, &mut backend)?.pass(&mut backend, &|_| ())?;
    Ok(mttkrp.finish())
}

/// MTTKRP of `modes` with two workers, on the current rayon pool.
pub fn run<T: Real>(
    store: &Store,
    factors: &[Matrix<T>],
    modes: &[usize],
) -> Result<Vec<(usize, Matrix<T>)>> {
    let rank = factors[0].columns();
    let plan = plan_run::<T>(store, modes, rank, rayon::current_num_threads(), Some(2), None);
    run_planned(store, factors, modes, &plan)
}

/// MTTKRP of `modes`, each from the cover that serves it best, with `workers` workers, on the current rayon pool.
pub fn run_by_cover<T: Real>(
    store: &Store,
    factors: &[Matrix<T>],
    modes: &[usize],
    workers: usize,
) -> Result<Vec<(usize, Matrix<T>)>> {
    let (sys, threads) = (Sys::default(), rayon::current_num_threads());
    let (view, op) = ByCover::prepare(store, factors[0].columns(), modes, threads)?;
    let sums = op.own_sums(&sys)?;
    let views: Vec<_> = factors.iter().map(Into::into).collect();
    let mut op = op.lend(&views, sums);
    let mut backend = HostBackend::for_threads(&view, &mut op, threads)?;
    let limits = Limits { threads, workers: Some(workers), ..Limits::default() };
    let plan = plan(&view, 0, &limits)?;
    Executor::new(&view, &plan, &mut backend)?.pass(&mut backend, &|_| ())?;
    Ok(op.finish())
}

/// The same from mode-sorted copies, which the first pass builds.
pub fn run_from_copies<T: Real>(
    store: &Store,
    factors: &[Matrix<T>],
    modes: &[usize],
) -> Result<Vec<(usize, Matrix<T>)>> {
    let (rank, threads) = (factors[0].columns(), rayon::current_num_threads());
    let plan = plan_run::<T>(store, modes, rank, threads, Some(2), None);
    let mut mttkrp = Mttkrp::new(store, factors, modes, threads)?.keep_mode_sorted(store)?;
    let mut backend = HostBackend::for_threads(store, &mut mttkrp, threads)?;
    let mut executor = Executor::new(store, &plan, &mut backend)?;
    executor.pass(&mut backend, &|_| ())?;
    backend.op().reset();
    let report = executor.pass(&mut backend, &|_| ())?;
    assert_eq!((report.bytes, report.nnz), (0, store.manifest().nnz));
    Ok(mttkrp.finish())
}

/// The bits of results, so that -0.0 and 0.0 differ.
pub fn bits<T: Real>(results: &[(usize, Matrix<T>)]) -> Vec<(usize, Vec<u64>)> {
    let bits = |matrix: &Matrix<T>| matrix.data().iter().map(|x| x.widen().to_bits()).collect();
    results.iter().map(|(mode, matrix)| (*mode, bits(matrix))).collect()
}

/// The nonzeros of a store, in its order.
pub fn exported(store: &Store) -> Result<Tensor> {
    let dims = store.manifest().shape.dims().iter().map(|&d| d.into()).collect();
    let mut tensor = Tensor { dims, ..Tensor::default() };
    let mut gather = EachTile(|tile: &DecodedTile<'_>| {
        for i in 0..tile.nnz {
            tensor.indices.extend((0..tile.order()).map(|m| tile.column(m)[i]));
        }
        tensor.values.extend_from_slice(tile.values);
        Ok(())
    });
    let mut backend = HostBackend::new(store, &mut gather)?;
    let limits = Limits { threads: 1, workers: Some(2), ..Limits::default() };
    let plan = plan(store, 0, &limits)?;
    Executor::new(store, &plan, &mut backend)?.pass(&mut backend, &|_| ())?;
    Ok(tensor)
}

/// Everything under `dir`: relative paths, and the contents of files (`None` for a directory; of a link
/// that leads nowhere, where that is).
pub fn tree(dir: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![dir.to_path_buf()];
    while let Some(at) = waiting.pop() {
        for entry in std::fs::read_dir(&at).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(dir).unwrap().to_path_buf();
            if path.is_dir() {
                found.insert(name, None);
                waiting.push(path);
            } else if path.is_symlink() && !path.exists() {
                let nowhere = std::fs::read_link(&path).unwrap();
                found.insert(name, Some(nowhere.as_os_str().as_encoded_bytes().to_vec()));
            } else {
                found.insert(name, Some(std::fs::read(&path).unwrap()));
            }
        }
    }
    found
}

/// The files of a store that its identity covers: all but the provenance.
pub fn identity(store: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut files = tree(store);
    assert!(files.remove(Path::new("provenance.json")).is_some(), "a store has a provenance");
    files
}

/// The same store, uncompressed and of one chunk, with every number in its columns the largest that fits, and checksums
/// that say so.
pub fn with_largest_numbers(store: &Store) -> Store {
    with_columns(store, |columns| columns.fill(0xff))
}

/// The same store, uncompressed and of one chunk, with other columns, and checksums that say so.
pub fn with_columns(store: &Store, change: impl FnOnce(&mut [u8])) -> Store {
    with_section(store, SectionKind::Columns, change)
}

/// The same for any section.
pub fn with_section(store: &Store, kind: SectionKind, change: impl FnOnce(&mut [u8])) -> Store {
    let path = store.chunk_path(0);
    let mut file = std::fs::read(&path).unwrap();
    let mut header = ChunkHeader::decode(&file, &path).unwrap();
    let section = header.section(kind).unwrap();
    change(&mut file[section]);
    let start = header.header_bytes();
    header.payload_checksum = xxh3_64(&file[start..start + header.stored_bytes as usize]);
    let mut manifest = store.manifest().clone();
    manifest.chunks[0].payload_checksum = header.payload_checksum;
    let (manifest, id) = manifest.encode();
    header.store_id = id;
    file[..start].copy_from_slice(&header.encode());
    std::fs::write(store.path().join("manifest"), manifest).unwrap();
    std::fs::write(&path, file).unwrap();
    Store::open(&Sys::default(), store.path()).unwrap()
}

/// The same store with another manifest, to which all its chunks claim to belong.
pub fn with_manifest(store: &Store, change: impl FnOnce(&mut Manifest)) -> Store {
    let mut manifest = store.manifest().clone();
    change(&mut manifest);
    let (encoded, id) = manifest.encode();
    for number in 0..manifest.chunks.len() {
        let path = store.chunk_path(number);
        let mut file = std::fs::read(&path).unwrap();
        let mut header = ChunkHeader::decode(&file, &path).unwrap();
        header.store_id = id;
        file[..header.header_bytes()].copy_from_slice(&header.encode());
        std::fs::write(&path, file).unwrap();
    }
    std::fs::write(store.path().join("manifest"), encoded).unwrap();
    Store::open(&Sys::default(), store.path()).unwrap()
}
