//! Protects the interface of formats: this file defines one (plain coordinates) with public traits alone. It packs, runs, is
//! verified and exported as the engine's formats are, and its mistakes end in errors.

#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]

use blco::{
    Batch, BuiltChunk, Checked, ChunkBuilder, ChunkDecoder, ChunkFormat, ChunkHeader, ChunkRanges, ChunkSink,
    Codec, Cp, Decoder, Device, Engine, Extent, Format, FormatOption, FormatRecord, IndexEncoding, Layout,
    LevelOrder, Made, Matrix, Modes, NonzeroView, PackOptions, SectionKind, Shape, SortedTile, Source, Store,
    TILE_NNZ, ValueEncoding, Version,
};
use std::fs;
use std::ops::Range;
use std::path::Path;

/// Plain coordinates: the indices of each mode, then all values.
#[derive(Clone, Debug)]
struct Coordinates {
    /// The sort key of nonzeros.
    sorted_by: LevelOrder,
}

const CODE: u32 = 1 << 31 | 7;
const LAYOUT: Layout = Layout(130);
const INDICES: SectionKind = SectionKind(1 << 31);
const VALUES: SectionKind = SectionKind(1 << 31 | 1);
const F64: u8 = ValueEncoding::F64 as u8;

impl Coordinates {
    fn by(modes: &[usize]) -> Format {
        Format::new(Self { sorted_by: LevelOrder::new(modes).unwrap() })
    }
}

impl ChunkFormat for Coordinates {
    fn code() -> u32 {
        CODE
    }

    fn read(record: &FormatRecord, order: usize) -> Checked<Self> {
        let sorted_by = record.levels.filter(|levels| levels.modes().len() == order);
        Ok(Self { sorted_by: sorted_by.ok_or("what coordinates are sorted by")? })
    }

    fn of_chunk(header: &ChunkHeader, image: &[u8]) -> Checked<Self> {
        let section = header.section(INDICES).ok_or("no coordinates")?;
        let modes: Vec<usize> = image[section].iter().take(header.order.into()).map(|&m| m.into()).collect();
        Ok(Self { sorted_by: LevelOrder::new(&modes).ok_or("what coordinates are sorted by")? })
    }

    fn record(&self) -> FormatRecord {
        FormatRecord { code: CODE, layout: LAYOUT, levels: Some(self.sorted_by), parameters: vec![1] }
    }

    fn name(&self) -> &'static str {
        "coordinates"
    }

    fn nonzero_bytes_min(&self) -> u64 {
        16
    }

    fn has_value_encoding(&self, code: u8) -> bool {
        code == F64
    }

    fn open_chunk_bytes(&self, chunk_bytes: u64) -> u64 {
        2 * chunk_bytes
    }

    fn builder(&self, version: Version, shape: &Shape, chunk_bytes: u64) -> Box<dyn ChunkBuilder> {
        Box::new(Builder {
            format: self.clone(),
            version,
            shape: shape.clone(),
            chunk_bytes: usize::try_from(chunk_bytes).unwrap(),
            ranges: ChunkRanges::default(),
            columns: vec![Vec::new(); shape.order()],
            values: Vec::new(),
        })
    }

    fn decoder(&self, shape: &Shape) -> Decoder {
        Decoder::Other(shape.clone(), Box::new(self.clone()))
    }
}

#[derive(Debug)]
struct Builder {
    format: Coordinates,
    version: Version,
    shape: Shape,
    chunk_bytes: usize,
    ranges: ChunkRanges,
    columns: Vec<Vec<u8>>,
    values: Vec<u8>,
}

impl Builder {
    fn close(&mut self) -> BuiltChunk {
        let mut indices = self.format.sorted_by.modes().to_vec();
        indices.resize(8, 0);
        self.columns.iter_mut().for_each(|column| indices.append(column));
        let values = std::mem::take(&mut self.values);
        let codes = self.format.record().chunk_codes(self.version, F64);
        let ranges = std::mem::take(&mut self.ranges);
        BuiltChunk::new(self.version, &self.shape, codes, ranges, &[(INDICES, &indices), (VALUES, &values)])
    }
}

impl ChunkBuilder for Builder {
    fn push(&mut self, tile: &SortedTile, _: &mut Made, sink: ChunkSink<'_>) -> blco::Result<()> {
        let bytes_each = 4 * tile.order() + 8;
        if (self.ranges.nnz + tile.values.len()) * bytes_each + 1024 > self.chunk_bytes {
            sink(self.close().into())?;
        }
        self.ranges.add(tile);
        for (m, column) in self.columns.iter_mut().enumerate() {
            column.extend(tile.column(m).iter().flat_map(|index| index.to_le_bytes()));
        }
        self.values.extend(tile.values.iter().flat_map(|value| value.to_le_bytes()));
        Ok(())
    }

    fn finish(&mut self, sink: ChunkSink<'_>) -> blco::Result<()> {
        if self.ranges.nnz > 0 { sink(self.close().into()) } else { Ok(()) }
    }
}

#[derive(Debug)]
struct View<'a> {
    order: usize,
    nnz: usize,
    indices: &'a [u8],
    values: &'a [u8],
}

impl ChunkDecoder for Coordinates {
    fn open<'a>(&'a self, header: &ChunkHeader, image: &'a [u8]) -> Checked<Box<dyn NonzeroView + 'a>> {
        let section =
            |kind| header.section(kind).map(|section| &image[section]).ok_or("a section is missing");
        let (order, nnz) = (usize::from(header.order), header.nnz as usize);
        let (indices, values) = (section(INDICES)?, section(VALUES)?);
        if header.kinds().count() != 3 || indices.get(..order) != Some(self.sorted_by.modes()) {
            return Err("other sections, or another order");
        }
        if (indices.len(), values.len()) != (8 + 4 * order * nnz, 8 * nnz) {
            return Err("length of a section");
        }
        Ok(Box::new(View { order, nnz, indices: &indices[8..], values }))
    }
}

impl NonzeroView for View<'_> {
    fn decode(&self, range: Range<usize>, indices: &mut [u32], values: &mut [f64]) -> bool {
        for m in 0..self.order {
            let column = &self.indices[4 * m * self.nnz..][4 * range.start..4 * range.end];
            for (index, bytes) in indices[m * TILE_NNZ..].iter_mut().zip(column.chunks_exact(4)) {
                *index = u32::from_le_bytes(bytes.try_into().unwrap());
            }
        }
        for (value, bytes) in
            values.iter_mut().zip(self.values[8 * range.start..8 * range.end].chunks_exact(8))
        {
            *value = f64::from_le_bytes(bytes.try_into().unwrap());
        }
        true
    }

    fn value_bytes(&self) -> u64 {
        self.values.len() as u64
    }

    fn index_bytes(&self) -> u64 {
        self.indices.len() as u64
    }
}

/// Some nonzeros, all different, in no order.
struct Tensor {
    dims: Vec<u32>,
    nnz: u32,
}

impl Source for Tensor {
    fn name(&self) -> String {
        "a tensor".into()
    }

    fn drain(&mut self, sink: &mut dyn FnMut(Batch) -> blco::Result<()>) -> blco::Result<Extent> {
        let places: u32 = self.dims.iter().product();
        let mut batch = Batch { indices: Vec::new(), values: Vec::new() };
        for i in 0..self.nnz {
            // Odd numbers visit every place of a power of two once.
            let mut place = i.wrapping_mul(2_654_435_761) % places.next_power_of_two() % places;
            if self.nnz == places {
                place = i;
            }
            for dim in &self.dims {
                batch.indices.push(place % dim);
                place /= dim;
            }
            batch.values.push(f64::from(i % 97) / 8.0 - 3.0);
        }
        sink(batch)?;
        Ok(Extent { dims: self.dims.iter().map(|&d| d.into()).collect(), nnz: self.nnz.into() })
    }
}

fn engine(threads: usize) -> Engine {
    Engine::builder().device(Device::Cpu).threads(threads).format::<Coordinates>().build().unwrap()
}

fn pack(engine: &Engine, dir: &Path, name: &str, format: Format, tensor: &mut Tensor, codec: Codec) -> Store {
    let options = PackOptions {
        format: FormatOption::Known(format),
        chunk_bytes: 64 << 10,
        codec,
        ..PackOptions::new(dir.join(name))
    };
    let report = engine.pack(tensor, &options).unwrap();
    engine.open(report.store).unwrap()
}

fn text(engine: &Engine, store: &Store) -> Vec<String> {
    let mut text = Vec::new();
    engine.write_text(store, &mut text).unwrap();
    let mut lines: Vec<String> = String::from_utf8(text).unwrap().lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

fn factors(store: &Store, rank: usize) -> Vec<Matrix<f64>> {
    let number = |i: usize| ((i * 40_503) % 16) as f64 - 7.5;
    let factor =
        |&dim: &u32| Matrix::from_rows(dim as usize, rank, (0..dim as usize * rank).map(number).collect());
    store.dims().iter().map(factor).collect()
}

/// Orders 2 to 6, several chunks and one, compressed and not: the same tensor as in the engine's format, and the same sums.
#[test]
fn it_packs_runs_is_verified_and_exported() {
    let cases: [(&[u32], u32, &[usize]); 5] = [
        (&[700, 300], 30_000, &[1, 0]),
        (&[60, 50, 40], 20_000, &[2, 0, 1]),
        (&[40, 30, 20, 10], 9_000, &[0, 1, 2, 3]),
        (&[9, 8, 7, 6, 5], 15_120, &[4, 3, 2, 1, 0]),
        (&[3, 3, 3, 3, 3, 3], 100, &[5, 0, 4, 1, 3, 2]),
    ];
    for (case, (dims, nnz, sorted_by)) in cases.into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let mut tensor = Tensor { dims: dims.to_vec(), nnz };
        let engine = engine(1 + case % 3);
        let codec = if case % 2 == 0 { Codec::None } else { Codec::Zstd(3) };
        let ours = pack(&engine, dir.path(), "ours", Coordinates::by(sorted_by), &mut tensor, codec);
        let blco = Format::blco(IndexEncoding::Tiled);
        let theirs = pack(&engine, dir.path(), "theirs", blco, &mut tensor, Codec::None);
        assert_eq!((ours.format().name(), ours.format()), ("coordinates", Coordinates::by(sorted_by)));
        assert_eq!(text(&engine, &ours), text(&engine, &theirs));
        engine.verify(&ours).unwrap();
        let factors = factors(&ours, 4);
        for (mode, sums) in engine.mttkrp(&ours, &factors, Modes::All).unwrap() {
            let expected = &engine.mttkrp(&theirs, &factors, Modes::Only(&[mode])).unwrap()[0].1;
            let largest = expected.data().iter().fold(1.0f64, |most, x| most.max(x.abs()));
            for (a, b) in sums.data().iter().zip(expected.data()) {
                assert!((a - b).abs() <= 1e-12 * largest, "case {case}, mode {mode}: {a} {b}");
            }
        }
        let [a, b] = [&ours, &theirs].map(|store| engine.cp_als::<f64>(store, &Cp::rank(2)).unwrap().fit());
        assert!((a - b).abs() < 1e-9, "case {case}: fits {a} {b}");
    }
}

/// Its stores depend on the options alone, as others do.
#[test]
fn bytes_do_not_depend_on_threads() {
    let dir = tempfile::tempdir().unwrap();
    let mut tensor = Tensor { dims: vec![60, 50, 40], nnz: 20_000 };
    let stores = [1, 3].map(|threads| {
        let name = format!("by-{threads}");
        pack(&engine(threads), dir.path(), &name, Coordinates::by(&[0, 1, 2]), &mut tensor, Codec::None)
    });
    assert_eq!(stores[0].id(), stores[1].id());
    assert!(fs::read_dir(stores[0].path()).unwrap().count() > 4, "several chunks");
}

#[test]
fn an_engine_that_does_not_know_it_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let mut tensor = Tensor { dims: vec![60, 50], nnz: 1000 };
    let store = pack(&engine(1), dir.path(), "ours", Coordinates::by(&[0, 1]), &mut tensor, Codec::None);
    let said = Engine::builder().build().unwrap().open(store.path()).unwrap_err().to_string();
    assert!(said.contains("format 2147483655"), "{said}");
}

/// A store that no engine could open is not written, and an existing one stays.
#[test]
fn what_is_not_registered_is_not_packed() {
    let dir = tempfile::tempdir().unwrap();
    let mut tensor = Tensor { dims: vec![60, 50], nnz: 1000 };
    let there = pack(&engine(1), dir.path(), "a", Coordinates::by(&[0, 1]), &mut tensor, Codec::None);
    let options = PackOptions {
        format: FormatOption::Known(Coordinates::by(&[1, 0])),
        replace: true,
        ..PackOptions::new(there.path().to_path_buf())
    };
    let other = Engine::builder().device(Device::Cpu).build().unwrap();
    let said = other.pack(&mut tensor, &options).unwrap_err().to_string();
    assert!(said.contains("register it"), "{said}");
    let levels = PackOptions { format: FormatOption::Known(Coordinates::by(&[1, 7])), ..options };
    assert!(engine(1).pack(&mut tensor, &levels).is_err());
    assert_eq!(engine(1).open(there.path()).unwrap().id(), there.id());
}

/// Modes that the tensor does not have, in a chunk whose checksums are right.
#[test]
fn a_chunk_that_lies_about_its_order_is_not_salvaged() {
    let dir = tempfile::tempdir().unwrap();
    let mut tensor = Tensor { dims: vec![60, 50], nnz: 1000 };
    let engine = engine(1);
    let store = pack(&engine, dir.path(), "a", Coordinates::by(&[0, 1]), &mut tensor, Codec::None);
    fs::remove_file(store.path().join("manifest")).unwrap();
    let chunk = store.path().join("chunk-000000.bin");
    let mut bytes = fs::read(&chunk).unwrap();
    // The header's 256 bytes, SHAPE and its gap; then the modes.
    assert_eq!(bytes[384..386], [0, 1]);
    bytes[385] = 7;
    let stored = u32::from_le_bytes(bytes[40..44].try_into().unwrap()) as usize;
    let payload = xxhash_rust::xxh3::xxh3_64(&bytes[256..256 + stored]);
    bytes[48..56].copy_from_slice(&payload.to_le_bytes());
    let header = xxhash_rust::xxh3::xxh3_64(&bytes[..120]);
    bytes[120..128].copy_from_slice(&header.to_le_bytes());
    fs::write(&chunk, bytes).unwrap();
    let said = engine.salvage(store.path()).err().unwrap().to_string();
    assert!(said.contains("modes of levels"), "{said}");
}

/// A store that lost its manifest and a chunk is recovered without that chunk.
#[test]
fn it_is_salvaged() {
    let dir = tempfile::tempdir().unwrap();
    let mut tensor = Tensor { dims: vec![60, 50, 40], nnz: 20_000 };
    let engine = engine(2);
    let store = pack(&engine, dir.path(), "ours", Coordinates::by(&[1, 2, 0]), &mut tensor, Codec::None);
    let all = text(&engine, &store);
    fs::remove_file(store.path().join("manifest")).unwrap();
    fs::remove_file(store.path().join("chunk-000001.bin")).unwrap();
    let mut salvage = engine.salvage(store.path()).unwrap();
    let options = salvage.options(PackOptions::new(dir.path().join("saved")));
    assert_eq!(options.format, FormatOption::Known(Coordinates::by(&[1, 2, 0])));
    let saved = engine.pack(&mut salvage, &options).unwrap();
    let saved = text(&engine, &engine.open(saved.store).unwrap());
    assert!(saved.len() < all.len() && saved.len() > all.len() / 2);
    assert!(saved.iter().all(|line| all.binary_search(line).is_ok()));
}

/// Decoded data is checked: here each value and each index, as if a damaged chunk had correct checksums.
#[test]
fn what_it_gets_wrong_is_an_error() {
    #[derive(Clone, Debug)]
    struct Wrong(Coordinates);
    #[derive(Debug)]
    struct WrongView<'a>(Box<dyn NonzeroView + 'a>);
    impl ChunkFormat for Wrong {
        fn code() -> u32 {
            CODE
        }
        fn read(record: &FormatRecord, order: usize) -> Checked<Self> {
            Coordinates::read(record, order).map(Self)
        }
        fn of_chunk(header: &ChunkHeader, image: &[u8]) -> Checked<Self> {
            Coordinates::of_chunk(header, image).map(Self)
        }
        fn record(&self) -> FormatRecord {
            self.0.record()
        }
        fn name(&self) -> &'static str {
            "wrong"
        }
        fn nonzero_bytes_min(&self) -> u64 {
            16
        }
        fn has_value_encoding(&self, _: u8) -> bool {
            true
        }
        fn open_chunk_bytes(&self, chunk_bytes: u64) -> u64 {
            chunk_bytes
        }
        fn builder(&self, version: Version, shape: &Shape, chunk_bytes: u64) -> Box<dyn ChunkBuilder> {
            self.0.builder(version, shape, chunk_bytes)
        }
        fn decoder(&self, shape: &Shape) -> Decoder {
            Decoder::Other(shape.clone(), Box::new(self.clone()))
        }
    }
    impl ChunkDecoder for Wrong {
        fn open<'a>(&'a self, header: &ChunkHeader, image: &'a [u8]) -> Checked<Box<dyn NonzeroView + 'a>> {
            Ok(Box::new(WrongView(self.0.open(header, image)?)))
        }
    }
    impl NonzeroView for WrongView<'_> {
        fn decode(&self, range: Range<usize>, indices: &mut [u32], values: &mut [f64]) -> bool {
            let first = range.start;
            self.0.decode(range, indices, values);
            match first / TILE_NNZ {
                3 => indices[TILE_NNZ + 5] = 50,
                5 => values[7] = f64::NAN,
                7 => return false,
                _ => {}
            }
            true
        }
        fn value_bytes(&self) -> u64 {
            0
        }
        fn index_bytes(&self) -> u64 {
            0
        }
    }
    let dir = tempfile::tempdir().unwrap();
    for nnz in [1500, 2000, 3000, 4000] {
        let mut tensor = Tensor { dims: vec![60, 50, 40], nnz };
        let name = format!("of-{nnz}");
        let format = Coordinates::by(&[0, 1, 2]);
        let store = pack(&engine(1), dir.path(), &name, format, &mut tensor, Codec::None);
        let wrong = Engine::builder().threads(1).device(Device::Cpu).format::<Wrong>().build().unwrap();
        let found = wrong.write_text(&wrong.open(store.path()).unwrap(), Vec::new());
        match nnz {
            1500 => assert!(found.is_ok()),
            _ => assert!(found.unwrap_err().to_string().contains("a number out of range")),
        }
    }
    // Codes that are not private, and codes of other formats.
    let twice = Engine::builder().format::<Coordinates>().format::<Wrong>().build();
    assert!(twice.unwrap_err().to_string().contains("registered twice"));
}
