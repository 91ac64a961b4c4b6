//! Establishes that damage to a store's files is found: every flipped bit and every truncation of every file of a
//! small store of each encoding gives an error, and so do missing, extended and exchanged files. An image
//! with any bit flipped, but with correct checksums, is refused or gives nonzeros inside the shape,
//! never a panic. `provenance.json` is excluded, because no reader uses it.

use crate::common::{Kind, SMALL_CHUNKS, Tensor, bits, options, packed, plan_run, run_planned, values};
use blco::internals::backend::host::HostOp;
use blco::internals::coo::Batch;
use blco::internals::dense::{Matrix, seeded_factors};
use blco::internals::encoding::TILE_NNZ;
use blco::internals::encoding::values::ValueEncoding;
use blco::internals::error::{Error, Result};
use blco::internals::format::tree::Recent;
use blco::internals::format::{ChunkView, Decoder};
use blco::internals::op::ttv::Streamed;
use blco::internals::store::{ChunkHeader, Store};
use blco::internals::sys::{PageBuf, Sys};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_64;

const RANK: usize = 3;
const CHUNK: &str = "chunk-000000.bin";

type Bits = Vec<(usize, Vec<u64>)>;

/// A small store with one chunk, and its nonzeros while it is whole.
struct Whole {
    dir: TempDir,
    factors: Vec<Matrix<f64>>,
    results: Bits,
}

impl Whole {
    fn new(tensor: &Tensor, kind: Kind, encoding: ValueEncoding) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = packed(tensor, &options(&dir.path().join("store"), kind, SMALL_CHUNKS));
        let factors = seeded_factors(&Sys::default(), &store.manifest().shape, RANK, 1).unwrap();
        let whole = Self { dir, factors, results: Vec::new() };
        let (header, _) = whole.chunk();
        assert_eq!(header.codes.value_encoding, encoding as u8, "the store is of the encoding to be tested");
        let results = whole.open_and_run().unwrap();
        Self { results, ..whole }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    fn open_and_run(&self) -> Result<Bits> {
        let store = Store::open(&Sys::default(), &self.path())?;
        let modes: Vec<usize> = (0..self.factors.len()).collect();
        let plan = plan_run::<f64>(&store, &modes, RANK, 1, Some(1), None);
        run_planned(&store, &self.factors, &modes, &plan).map(|results| bits(&results))
    }

    /// The chunk's header and image.
    fn chunk(&self) -> (ChunkHeader, PageBuf) {
        let store = Store::open(&Sys::default(), &self.path()).unwrap();
        let mut buffer = Sys::default().page_buf(store.buffer_bytes()).unwrap();
        let (header, _) = store.load(0, &mut buffer, &mut store.scratch().unwrap()).unwrap();
        (header, buffer)
    }

    /// Opens the store and loads its chunk, as the first part of a run does.
    fn open_and_load(&self) -> Result<()> {
        let store = Store::open(&Sys::default(), &self.path())?;
        let mut buffer = Sys::default().page_buf(store.buffer_bytes())?;
        store.load(0, &mut buffer, &mut store.scratch()?).map(drop)
    }

    /// Checksums and rules cover every byte, so damage is an error: in loading, or else in the whole run. One in 97
    /// always makes the whole run.
    fn must_be_noticed(&self, n: usize, damage: &dyn Fn() -> String) {
        if self.open_and_load().is_err() && !n.is_multiple_of(97) {
            return;
        }
        if let Ok(results) = self.open_and_run() {
            let same = if results == self.results { "the same" } else { "other" };
            panic!("{} went unnoticed and gave {same} results", damage());
        }
    }

    /// Every file that a reader reads.
    fn files(&self) -> [PathBuf; 2] {
        let names = std::fs::read_dir(self.path()).unwrap().count();
        assert_eq!(names, 3, "manifest, one chunk, provenance");
        [self.path().join("manifest"), self.path().join(CHUNK)]
    }

    fn every_flip_and_truncation(&self) {
        for path in self.files() {
            let whole = std::fs::read(&path).unwrap();
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            for bit in 0..whole.len() * 8 {
                let (at, byte) = (bit as u64 / 8, whole[bit / 8]);
                file.write_all_at(&[byte ^ 1 << (bit % 8)], at).unwrap();
                self.must_be_noticed(bit, &|| format!("bit {bit} of {}", path.display()));
                file.write_all_at(&[byte], at).unwrap();
            }
            for length in (0..whole.len()).rev() {
                file.set_len(length as u64).unwrap();
                self.must_be_noticed(length, &|| format!("{} cut to {length} bytes", path.display()));
            }
            for extra in [&b"\0"[..], &[0; 4096]] {
                std::fs::write(&path, [&whole, extra].concat()).unwrap();
                assert!(self.open_and_run().is_err(), "{} with {} more bytes", path.display(), extra.len());
            }
            std::fs::remove_file(&path).unwrap();
            assert!(self.open_and_run().is_err(), "without {}", path.display());
            std::fs::write(&path, &whole).unwrap();
            assert!(self.open_and_run().unwrap() == self.results, "whole again");
        }
    }

    /// Flips every bit of the image after the header, as a broken or hostile packer might, with correct checksums.
    fn every_flip_with_matching_checksums(&self) {
        let store = Store::open(&Sys::default(), &self.path()).unwrap();
        let decoder = Decoder::new(&store.manifest().shape, store.manifest().format());
        let (header, mut image) = self.chunk();
        let image_bytes = header.image_bytes as usize;
        let (mut refused, mut accepted) = (0, 0);
        for bit in header.header_bytes() * 8..image_bytes * 8 {
            image[bit / 8] ^= 1 << (bit % 8);
            match decode(&store, &decoder, &header, &image[..image_bytes]) {
                Ok(()) => accepted += 1,
                Err(Error::Corrupt { .. }) => refused += 1,
                Err(other) => panic!("bit {bit}: {other}"),
            }
            image[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(refused > 0 && accepted > 0, "{refused} refused, {accepted} accepted");
        decode(&store, &decoder, &header, &image[..image_bytes]).unwrap();
    }

    /// The same for the payload as the codec stored it.
    fn every_flip_of_the_stored_payload_with_matching_checksums(&self) {
        let store = Store::open(&Sys::default(), &self.path()).unwrap();
        let (header, _) = self.chunk();
        let whole = std::fs::read(self.path().join(CHUNK)).unwrap();
        let start = header.header_bytes();
        for bit in start * 8..(start + header.stored_bytes as usize) * 8 {
            let mut file = whole.clone();
            file[bit / 8] ^= 1 << (bit % 8);
            self.write_sealed(&store, header.clone(), file);
            let result = self.open_and_run();
            assert!(matches!(result, Ok(_) | Err(Error::Corrupt { .. })), "bit {bit}: {result:?}");
        }
    }

    fn write_sealed(&self, store: &Store, mut header: ChunkHeader, mut file: Vec<u8>) {
        let start = header.header_bytes();
        header.payload_checksum = xxh3_64(&file[start..start + header.stored_bytes as usize]);
        let mut manifest = store.manifest().clone();
        manifest.chunks[0].payload_checksum = header.payload_checksum;
        let (manifest, id) = manifest.encode();
        header.store_id = id;
        file[..start].copy_from_slice(&header.encode());
        std::fs::write(self.path().join("manifest"), manifest).unwrap();
        std::fs::write(self.path().join(CHUNK), file).unwrap();
    }
}

/// Decodes every tile. Its contents are inside the shape, in every slot, and finite. For a tree, so are TTV's elements.
fn decode(store: &Store, decoder: &Decoder, header: &ChunkHeader, image: &[u8]) -> Result<()> {
    let dims = decoder.shape().dims();
    let view = ChunkView::open(decoder, header, image, CHUNK.into())?;
    let (mut indices, mut values) = (vec![u32::MAX; dims.len() * TILE_NNZ], vec![f64::NAN; TILE_NNZ]);
    let mut recent = Recent::default();
    for t in 0..view.tiles() {
        let tile = view.decode(t, &mut recent, &mut indices, &mut values)?;
        assert!(tile.values.len() == tile.nnz && tile.values.iter().all(|v| v.is_finite()));
        for (m, column) in tile.indices.chunks_exact(TILE_NNZ).enumerate() {
            let inside = |&index: &u32| (tile.low[m]..=tile.high[m]).contains(&index) && index < dims[m];
            assert!(column.iter().all(inside), "mode {m}: {column:?}");
        }
    }
    stream(store, &view)
}

/// TTV of a tree's chunk with a vector of zeros: every element is inside the shape.
fn stream(store: &Store, view: &ChunkView<'_>) -> Result<()> {
    let dims = store.manifest().shape.dims();
    let Some(levels) = store.manifest().format().tree_levels() else { return Ok(()) };
    let vector = vec![0.0f64; dims[levels.last()] as usize];
    let others: Vec<u32> = (0..dims.len()).filter(|&m| m != levels.last()).map(|m| dims[m]).collect();
    let mut sink = |batches: Vec<Batch>| {
        for row in batches.iter().flat_map(|batch| batch.indices.chunks_exact(others.len())) {
            assert!(row.iter().zip(&others).all(|(index, dim)| index < dim), "{row:?}");
        }
        Ok(())
    };
    let mut op = Streamed::new(store, &vector, Some(&mut sink))?;
    op.chunk(view)?;
    op.finish().map(drop)
}

fn small(value: fn(u64) -> f64) -> Tensor {
    Tensor::random(&[30, 20, 10], 180, 1, value)
}

/// 65 linear bits, so that there are two BLCO blocks.
fn two_blocks() -> Tensor {
    Tensor::random(&[256, 256, 256, 512, 256, 256, 256, 256], 30, 2, values::fraction)
}

/// Slices of one nonzero.
fn single_slices() -> Tensor {
    let mut tensor = Tensor::random(&[200, 20, 10], 150, 1, values::fraction);
    tensor.indices.chunks_exact_mut(3).zip(0..).for_each(|(row, i)| row[0] = i);
    tensor
}

/// The tests of one encoding.
macro_rules! damage {
    ($name:ident, $tensor:expr, $kind:expr, $encoding:expr) => {
        #[test]
        fn $name() {
            let whole = Whole::new(&$tensor, $kind, $encoding);
            whole.every_flip_and_truncation();
            whole.every_flip_with_matching_checksums();
            if matches!($kind, Kind::TiledZstd | Kind::HocfsZstd) {
                whole.every_flip_of_the_stored_payload_with_matching_checksums();
            }
        }
    };
}

damage!(raw, small(values::fraction), Kind::Raw, ValueEncoding::F64);
damage!(raw_of_two_blocks, two_blocks(), Kind::Raw, ValueEncoding::F64);
damage!(tiled_integers, small(values::integer), Kind::Tiled, ValueEncoding::Integer);
damage!(tiled_singles, small(values::single), Kind::Tiled, ValueEncoding::F32);
damage!(tiled_fractions, small(values::fraction), Kind::Tiled, ValueEncoding::F64);
damage!(tiled_few_values, small(values::few), Kind::Tiled, ValueEncoding::Dictionary);
damage!(tiled_decimals, small(values::decimal), Kind::Tiled, ValueEncoding::Decimal);
damage!(padded_tree_of_decimals, small(values::decimal), Kind::HocfsEll, ValueEncoding::Decimal);
damage!(tiled_zstd, small(values::integer), Kind::TiledZstd, ValueEncoding::Integer);
damage!(tree_of_integers, small(values::integer), Kind::HocfsCsr, ValueEncoding::Integer);
damage!(tree_of_singles, small(values::single), Kind::HocfsCsr, ValueEncoding::F32);
damage!(padded_tree, small(values::integer), Kind::HocfsEll, ValueEncoding::Integer);
damage!(padded_tree_of_few_values, small(values::few), Kind::HocfsEll, ValueEncoding::Dictionary);
damage!(tree_zstd, small(values::integer), Kind::HocfsZstd, ValueEncoding::Integer);
damage!(tree_of_eight_levels, two_blocks(), Kind::HocfsCsr, ValueEncoding::F64);

damage!(csf, small(values::integer), Kind::CsfOne, ValueEncoding::Integer);
damage!(segments_of_singles, small(values::single), Kind::FcooRoot, ValueEncoding::F32);
damage!(segments_of_few_values, small(values::few), Kind::FcooRoot, ValueEncoding::Dictionary);
damage!(coordinates, single_slices(), Kind::HbcsfRoot, ValueEncoding::F64);

/// A chunk of another store is noticed, even if it is whole.
/// A store contains no paths: a manifest holds only numbers, and chunk files are named by number. The target of a name
/// must be a regular file. Anything else is refused without waiting for it.
#[test]
fn nothing_in_a_store_leads_out_of_it() {
    let whole = Whole::new(&small(values::fraction), Kind::Tiled, ValueEncoding::F64);
    let manifest = std::fs::read(whole.path().join("manifest")).unwrap();
    let store = Store::open(&Sys::default(), &whole.path()).unwrap();
    let (shape, chunks) = (store.manifest().shape.clone(), store.manifest().chunks.len());
    let (table, order) = (8 + 6 * 32, shape.order());
    let sections = [144 * chunks, 0, 64, 328 + 64 * order, 24, 56 + 16 * order];
    let numbers: usize = sections.iter().sum();
    assert_eq!(manifest.len(), 64 + table + numbers, "preamble, table, sections of numbers");

    let chunk = whole.path().join(CHUNK);
    let elsewhere = whole.dir.path().join("elsewhere");
    std::fs::rename(&chunk, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &chunk).unwrap();
    assert!(whole.open_and_run().unwrap() == whole.results, "a link to the file");
    for (what, target) in [("a device", "/dev/zero"), ("a directory", "/"), ("nothing", "../none")] {
        std::fs::remove_file(&chunk).unwrap();
        std::os::unix::fs::symlink(target, &chunk).unwrap();
        let error = whole.open_and_run().unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "a link to {what}: {error}");
    }
    std::fs::remove_file(&chunk).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&chunk).status().unwrap().success());
    let error = whole.open_and_run().unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "a pipe: {error}");
}

#[test]
fn chunks_of_other_stores_or_places_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let tensor = Tensor::random(&[50, 40, 30], 20_000, 3, values::fraction);
    let mut other = tensor.clone();
    other.values[7] = 0.5;
    let paths: Vec<PathBuf> = ["one", "other"].iter().map(|name| dir.path().join(name)).collect();
    let store = packed(&tensor, &options(&paths[0], Kind::Tiled, SMALL_CHUNKS));
    packed(&other, &options(&paths[1], Kind::Tiled, SMALL_CHUNKS));
    let chunks = store.manifest().chunks.len();
    assert!(chunks >= 2);
    let load = |number| {
        let mut buffer = Sys::default().page_buf(store.buffer_bytes()).unwrap();
        store.load(number, &mut buffer, &mut store.scratch().unwrap()).map(drop)
    };
    let name = |n: usize| format!("chunk-{n:06}.bin");
    let copy = |from: &Path, to: &Path| std::fs::copy(from, to).unwrap();
    for number in 0..chunks {
        load(number).unwrap();
        let (mine, kept) = (paths[0].join(name(number)), dir.path().join("kept"));
        copy(&mine, &kept);
        copy(&paths[1].join(name(number)), &mine);
        assert!(matches!(load(number), Err(Error::Corrupt { .. })), "chunk {number} of another store");
        copy(&paths[0].join(name((number + 1) % chunks)), &mine);
        assert!(matches!(load(number), Err(Error::Corrupt { .. })), "another chunk in place of {number}");
        copy(&kept, &mine);
    }
}
