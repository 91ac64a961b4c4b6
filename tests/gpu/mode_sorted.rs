//! Establishes that mode-sorted copies built on the device hold exactly the store's nonzeros, by row of the mode and in the
//! store's order for equal rows, as images that the CPU's decoder accepts: orders 2 to 8, every value encoding, one chunk
//! and many, rows of 32 bits, short last tiles; that damage is found, and that every failing call ends with its error
//! and leaves nothing behind.
//!
//! Runs on a CUDA device, or else on the mock driver that `BLCO_MOCK_CUDA` names, in its own process;
//! otherwise it says `skipped`.
//!
//! `BLCO_ORDER_BENCH=STORE cargo test --release --test gpu bench -- --ignored --nocapture` measures every mode of a store, in images of
//! `BLCO_ORDER_IMAGE` nonzeros; with `BLCO_ORDER_CHECK=1` it compares first, which takes about 100 bytes of host memory per nonzero.

use crate::common::{Kind, SMALL_CHUNKS, Tensor, exported, options, packed, values};
use crate::on_a_device::{on_a_device, on_the_mock};
use blco::internals::backend::cuda::abi::{Chunk, SHARE, SORTED_TILES, TILE};
use blco::internals::backend::cuda::driver::{Device, Memory, Priority, Stream};
use blco::internals::backend::cuda::kernels::KernelLayout;
use blco::internals::backend::cuda::mode_sorted::{
    BuildInput, CopyPlan, FiberKernels, SortKernels, SortedCopy, build, value_encoding,
};
use blco::internals::backend::cuda::{DeviceOp, Launch, Nonzeros};
use blco::internals::backend::device::KernelSource;
use blco::internals::dense::{Matrix, Precision, seeded_factors};
use blco::internals::encoding::tile::TileRecord;
use blco::internals::encoding::values::ValueEncoding;
use blco::internals::encoding::{TILE_NNZ, column};
use blco::internals::error::{Error, Result};
use blco::internals::format::tree::Recent;
use blco::internals::format::{ChunkView, Decoder};
use blco::internals::op::mttkrp::cuda::DeviceMttkrp;
use blco::internals::op::oracle;
use blco::internals::pack::Duplicates;
use blco::internals::store::{ChunkHeader, Manifest, SectionKind, Store};
use blco::internals::sys::Sys;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

const ALL_CHUNKS: u64 = 16 << 20;
/// Kinds of values.
type Value = fn(u64) -> f64;
/// Calls that free something, or that wait after an error: no one reads their status.
const RELEASES: [&str; 6] = [
    "cuCtxSetCurrent",
    "cuDevicePrimaryCtxRelease_v2",
    "cuEventDestroy_v2",
    "cuMemFree_v2",
    "cuModuleUnload",
    "cuStreamDestroy_v2",
];

/// Some chunks of a store on the device.
struct Resident {
    chunks: Range<usize>,
    list: Memory,
    images: Memory,
    headers: Vec<ChunkHeader>,
    encodings: Vec<ValueEncoding>,
}

impl Resident {
    fn new(device: &Arc<Device>, store: &Store, chunks: Range<usize>) -> Result<Self> {
        let entries = &store.manifest().chunks;
        let place = |c: usize| usize::try_from(entries[c].image_bytes).unwrap().next_multiple_of(256);
        let mut images = device.memory(chunks.clone().map(place).sum())?;
        let (mut list, mut encodings, mut headers) = (Vec::new(), Vec::new(), Vec::new());
        let (mut at, mut first_block) = (0, 0);
        let mut buffer = store.sys().page_buf(store.buffer_bytes())?;
        let mut scratch = store.scratch()?;
        for c in chunks.clone() {
            let (header, _) = store.load(c, &mut buffer, &mut scratch)?;
            images.write_at(at, &buffer[..header.image_bytes as usize])?;
            list.push(Chunk { image: images.address() + at as u64, first_block, number: header.number });
            encodings.push(ValueEncoding::from_code(header.codes.value_encoding).unwrap());
            at += place(c);
            first_block += header.nnz.div_ceil(TILE);
            headers.push(header);
        }
        let mut on_device = device.memory(size_of_val(&list[..]))?;
        on_device.write(&list)?;
        Ok(Self { chunks, list: on_device, images, headers, encodings })
    }

    fn plan(
        &self,
        device: &Device,
        store: &Store,
        mode: usize,
        precision: Precision,
        image_nnz: u32,
    ) -> CopyPlan {
        let values = value_encoding(store.manifest(), precision, self.encodings.iter().copied());
        CopyPlan::new(&device.facts, store.manifest(), self.chunks.clone(), mode, values, image_nnz).unwrap()
    }

    fn list(&self) -> (u64, u32) {
        (self.list.address(), u32::try_from(self.chunks.len()).unwrap())
    }
}

fn input<'a>(
    device: &'a Arc<Device>,
    kernels: &'a SortKernels,
    stream: &'a Stream,
    store: &'a Store,
    plan: &'a CopyPlan,
    chunks: (u64, u32),
) -> BuildInput<'a> {
    BuildInput { device, kernels, stream, store, plan, chunks }
}

/// Decodes the images: nonzeros as a store would give them, and each image's value encoding.
fn decoded(copy: &SortedCopy, store: &Store) -> (Tensor, Vec<ValueEncoding>) {
    let mut words = vec![0u64; usize::try_from(copy.bytes / 8).unwrap()];
    copy.memory().read(&mut words).unwrap();
    let bytes: &[u8] = bytemuck::cast_slice(&words);
    let shape = &store.manifest().shape;
    let decoder = Decoder::new(shape, store.manifest().format());
    let order = shape.order();
    let (mut tensor, mut encodings) = (Tensor::default(), Vec::new());
    let (mut indices, mut values) = (vec![0; order * TILE_NNZ], vec![0.0; TILE_NNZ]);
    for (number, image) in copy.images.iter().enumerate() {
        let image_bytes = &bytes[usize::try_from(image.address - copy.memory().address()).unwrap()..];
        let header = ChunkHeader::decode(image_bytes, Path::new("image")).unwrap();
        assert_eq!((header.number as usize, header.nnz), (number, image.nnz));
        assert_eq!(header.first_nonzero, tensor.nnz() as u64);
        let image_bytes = &image_bytes[..header.image_bytes as usize];
        let view = ChunkView::open(&decoder, &header, image_bytes, "image".into()).unwrap();
        encodings.push(view.value_encoding());
        for t in 0..view.tiles() {
            let tile = view.decode(t, &mut Recent::default(), &mut indices, &mut values).unwrap();
            for m in 0..order {
                let column = tile.column(m);
                assert_eq!(tile.low[m], *column.iter().min().unwrap(), "tile {t}, mode {m}");
                assert_eq!(tile.high[m], *column.iter().max().unwrap(), "tile {t}, mode {m}");
            }
            for i in 0..tile.nnz {
                tensor.indices.extend((0..order).map(|m| tile.column(m)[i]));
            }
            tensor.values.extend_from_slice(tile.values);
        }
    }
    tensor.dims = shape.dims().iter().map(|&d| d.into()).collect();
    (tensor, encodings)
}

/// The nonzeros `which` of `tensor` by row of `mode`, and in order within a row; values as `encoding` holds them.
fn ordered(tensor: &Tensor, which: Range<usize>, mode: usize, encoding: ValueEncoding) -> Tensor {
    let mut rows: Vec<(&[u32], f64)> = tensor.rows().skip(which.start).take(which.len()).collect();
    rows.sort_by_key(|(index, _)| index[mode]);
    #[allow(clippy::cast_possible_truncation, reason = "as kernels convert them")]
    let value = |v: f64| if encoding == ValueEncoding::F32 { f64::from(v as f32) } else { v };
    Tensor {
        dims: tensor.dims.clone(),
        indices: rows.iter().flat_map(|(index, _)| index.iter().copied()).collect(),
        values: rows.iter().map(|(_, v)| value(*v)).collect(),
    }
}

/// Builds every mode's copy of some of a store's chunks and compares; returns the value encodings of the sources.
fn check(
    device: &Arc<Device>,
    store: &Store,
    chunks: Range<usize>,
    image_nnz: u32,
    what: &str,
) -> Vec<ValueEncoding> {
    let (kernels, stream) = (SortKernels::load(device).unwrap(), device.stream(Priority::Lowest).unwrap());
    let resident = Resident::new(device, store, chunks.clone()).unwrap();
    let nonzeros = exported(store).unwrap();
    let entries = &store.manifest().chunks;
    let first = usize::try_from(entries[chunks.start].first_nonzero).unwrap();
    let last = &entries[chunks.end - 1];
    let which = first..usize::try_from(last.first_nonzero + last.nnz).unwrap();
    for mode in 0..store.manifest().shape.order() {
        let what = format!("{what}, mode {mode}");
        let precision = if mode % 2 == 0 { Precision::F64 } else { Precision::F32 };
        let plan = resident.plan(device, store, mode, precision, image_nnz);
        let copy = build(input(device, &kernels, &stream, store, &plan, resident.list()), None).unwrap();
        assert!(copy.bytes <= plan.result_bytes_max, "{what}: {} of {plan:?}", copy.bytes);
        assert!(copy.images.iter().all(|i| i.nnz <= image_nnz.max(TILE)), "{what}");
        assert_eq!(plan.images() as usize, copy.images.len(), "{what}");
        let (got, encodings) = decoded(&copy, store);
        let encoding = value_encoding(store.manifest(), precision, resident.encodings.iter().copied());
        assert!(encodings.iter().all(|&e| e == encoding), "{what}: {encodings:?}");
        let wanted = ordered(&nonzeros, which.clone(), mode, encoding);
        assert_eq!(got.indices, wanted.indices, "{what}");
        let bits = |t: &Tensor| t.values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&got), bits(&wanted), "{what}");
    }
    resident.encodings
}

fn check_all(device: &Arc<Device>, name: &str, tensor: &Tensor) -> Vec<ValueEncoding> {
    let dir = tempfile::tempdir().unwrap();
    let mut encodings = Vec::new();
    for (chunk_bytes, image_nnz) in [(SMALL_CHUNKS, 1500), (ALL_CHUNKS, 1 << 22)] {
        let mut options = options(&dir.path().join(chunk_bytes.to_string()), Kind::Tiled, chunk_bytes);
        options.duplicates = Duplicates::Keep;
        let store = packed(tensor, &options);
        let chunks = store.manifest().chunks.len();
        encodings.extend(check(device, &store, 0..chunks, image_nnz, &format!("{name}: {chunks} chunks")));
    }
    encodings
}

#[test]
fn every_order_and_value_encoding() {
    on_a_device(module_path!(), "every_order_and_value_encoding", |device| {
        let cases: [(&str, &[u64], Value); 11] = [
            ("order 2", &[300, 7000], values::integer),
            ("order 3", &[50, 4000, 7], values::single),
            ("order 4", &[91, 24, 885, 141], values::few),
            ("order 5", &[20, 30, 40, 50, 60], values::one),
            ("order 8", &[9, 8, 7, 6, 5, 40, 30, 20], values::fraction),
            ("duplicates", &[2, 300, 4], values::with_zeros),
            ("decimals", &[60, 70, 3000], values::decimal),
            ("one row", &[1, 6000, 1], values::integer),
            ("integers of 32 bits", &[60, 70, 80], |bits| (bits >> 32) as f64),
            ("integers of 33 bits", &[60, 70, 80], |bits| (bits >> 31) as f64),
            ("32 bits", &[u32::MAX.into(), 3, 1 << 17], values::wide_integer),
        ];
        let mut met = Vec::new();
        for (name, dims, value) in cases {
            met.extend(check_all(device, name, &Tensor::random(dims, 5000, 7, value)));
        }
        assert!(ValueEncoding::ALL.iter().all(|e| met.contains(e)), "{met:?}");
    });
}

#[test]
fn few_nonzeros_and_many() {
    on_a_device(module_path!(), "few_nonzeros_and_many", |device| {
        for nnz in [1, 100, 511, 512, 513, 3584, 3585, 60_000] {
            let tensor = Tensor::random(&[700, 90_000, 40], nnz, 3, values::integer);
            check_all(device, &format!("{nnz} nonzeros"), &tensor);
        }
        // Half of the nonzeros in one row of each mode.
        let mut tensor = Tensor::random(&[70_000, 900, 40], 30_000, 4, values::fraction);
        tensor.indices.chunks_exact_mut(6).for_each(|two| two[..3].fill(7));
        check_all(device, "hot rows", &tensor);
    });
}

#[test]
fn chunks_of_several_value_encodings_and_some_of_a_stores_chunks() {
    on_a_device(module_path!(), "chunks_of_several_value_encodings_and_some_of_a_stores_chunks", |device| {
        let mut tensor = Tensor::random(&[60, 20_000, 50], 120_000, 5, values::fraction);
        for (index, value) in tensor.indices.chunks_exact(3).zip(&mut tensor.values) {
            // The largest mode's highest bit is the linear index's: the store's first chunks hold integers.
            if index[1] < 1 << 14 {
                *value = (index[0] % 5).into();
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let store = packed(&tensor, &options(&dir.path().join("s"), Kind::TiledZstd, SMALL_CHUNKS));
        let chunks = store.manifest().chunks.len();
        assert!(chunks > 5, "{chunks} chunks");
        let met = check(device, &store, 0..chunks, 1 << 14, "all");
        assert!(met.contains(&ValueEncoding::Integer) && met.contains(&ValueEncoding::F64), "{met:?}");
        let met = check(device, &store, 1..3, 1 << 14, "some");
        assert_eq!(met, [ValueEncoding::Integer; 2]);
        check(device, &store, chunks - 1..chunks, 1 << 14, "the last");
    });
}

/// The kernels that read a store's chunks read a copy's.
#[test]
fn mttkrp_of_a_copy_agrees_with_the_oracle() {
    on_a_device(module_path!(), "mttkrp_of_a_copy_agrees_with_the_oracle", |device| {
        let (kernels, stream) =
            (SortKernels::load(device).unwrap(), device.stream(Priority::Lowest).unwrap());
        for (value, rank) in [(values::integer as Value, 5), (values::fraction, 33)] {
            let dir = tempfile::tempdir().unwrap();
            let tensor = Tensor::random(&[100, 90, 800], 5000, 5, value);
            let store = packed(&tensor, &options(&dir.path().join("s"), Kind::Tiled, SMALL_CHUNKS));
            let resident = Resident::new(device, &store, 0..store.manifest().chunks.len()).unwrap();
            let factors: Vec<Matrix<f32>> =
                seeded_factors(store.sys(), &store.manifest().shape, rank, 3).unwrap();
            let oracle = oracle::mttkrp(&mut &tensor, &factors, &[0, 1, 2]).unwrap();
            let embedded = KernelSource { compile: Some(false), ..KernelSource::default() };
            let mut op = DeviceMttkrp::new(device, &store, &factors, &[0, 1, 2], &embedded).unwrap();
            let first = u32::try_from(store.manifest().chunks.len()).unwrap();
            for mode in 0..3 {
                let plan = resident.plan(device, &store, mode, Precision::F32, 2048);
                let copy =
                    build(input(device, &kernels, &stream, &store, &plan, resident.list()), None).unwrap();
                let (chunks, blocks) = copy.chunks(SORTED_TILES, first);
                let mut list = device.memory(size_of_val(&chunks[..])).unwrap();
                list.write(&chunks).unwrap();
                let chunks = (list.address(), u32::try_from(chunks.len()).unwrap());
                op.sort(mode, blocks, None, false).unwrap();
                op.begin(mode, Some(&copy.empty), &stream).unwrap();
                op.launch(&[mode], &stream, &on_sorted(blocks, chunks)).unwrap();
                op.finish(mode, true, &stream).unwrap();
                stream.synchronize().unwrap();
            }
            assert_eq!(op.damaged_chunk().unwrap(), None);
            for (expected, (mode, result)) in oracle.iter().zip(&op.results(store.sys()).unwrap()) {
                let comparison = expected.compare(result, 3, SHARE);
                assert!(comparison.holds, "mode {mode}: {:.2} of the bound", comparison.worst);
            }
            let plan = resident.plan(device, &store, 0, Precision::F32, 2048);
            let copy = build(input(device, &kernels, &stream, &store, &plan, resident.list()), None).unwrap();
            assert_eq!(damaged_image(device, &mut op, &copy, &stream, first), Some(first + 1));
        }
    });
}

/// A launch on the images of a sorted copy, with these thread blocks.
fn on_sorted(blocks: u32, chunks: (u64, u32)) -> Launch {
    let (one, layout) = (Chunk::default(), KernelLayout::Tiled);
    Launch { blocks, chunks, one, layout, nonzeros: Nonzeros::Sorted, results: 0 }
}

/// The number that is reported if the second image of the first mode's copy is damaged.
fn damaged_image(
    device: &Arc<Device>,
    op: &mut DeviceMttkrp<f32>,
    copy: &SortedCopy,
    stream: &Stream,
    first: u32,
) -> Option<u32> {
    let mut words = vec![0u64; usize::try_from(copy.bytes / 8).unwrap()];
    copy.memory().read(&mut words).unwrap();
    let at = usize::try_from(copy.images[1].address - copy.memory().address()).unwrap();
    let image = &mut bytemuck::cast_slice_mut::<_, u8>(&mut words)[at..];
    let columns = ChunkHeader::decode(image, Path::new("image")).unwrap().section(SectionKind::Columns);
    image[columns.unwrap()].fill(0xff);
    let mut damaged = device.memory(size_of_val(&words[..])).unwrap();
    damaged.write(&words).unwrap();
    let (mut chunks, blocks) = copy.chunks(SORTED_TILES, first);
    for chunk in &mut chunks {
        chunk.image = chunk.image - copy.memory().address() + damaged.address();
    }
    let mut list = device.memory(size_of_val(&chunks[..])).unwrap();
    list.write(&chunks).unwrap();
    let chunks = (list.address(), u32::try_from(chunks.len()).unwrap());
    op.begin(0, Some(&copy.empty), stream).unwrap();
    let work = on_sorted(blocks, chunks);
    op.launch(&[0], stream, &work).unwrap();
    stream.synchronize().unwrap();
    op.damaged_chunk().unwrap()
}

#[test]
fn values_that_f32_does_not_hold_stay_finite() {
    on_a_device(module_path!(), "values_that_f32_does_not_hold_stay_finite", |device| {
        let tensor = Tensor::random(&[60, 200, 50], 3000, 5, |bits| values::fraction(bits) * 1e300);
        check_all(device, "huge", &tensor);
    });
}

/// The record of a chunk's first tile, of order 3, and where its columns start in the image.
fn first_tile(store: &Store, header: &ChunkHeader) -> (TileRecord, usize) {
    let file = std::fs::read(store.chunk_path(header.number as usize)).unwrap();
    let (tiles, columns) = (header.section(SectionKind::Tiles), header.section(SectionKind::Columns));
    (TileRecord::read(&file[tiles.unwrap()], 3), columns.unwrap().start)
}

#[test]
fn numbers_out_of_range_are_found_and_read_nothing_outside() {
    on_a_device(module_path!(), "numbers_out_of_range_are_found_and_read_nothing_outside", |device| {
        let (kernels, stream) =
            (SortKernels::load(device).unwrap(), device.stream(Priority::Lowest).unwrap());
        for value in [values::integer, values::few, values::fraction] {
            let dir = tempfile::tempdir().unwrap();
            let tensor = Tensor::random(&[1000, 900, 800], 5000, 5, value);
            let store = packed(&tensor, &options(&dir.path().join("s"), Kind::Tiled, ALL_CHUNKS));
            let finder = FiberKernels::load(device).unwrap();
            let fails = |store: &Store, resident: &Resident| {
                for mode in 0..3 {
                    let (plan, list) =
                        (resident.plan(device, store, mode, Precision::F64, 2048), resident.list());
                    let copy = build(input(device, &kernels, &stream, store, &plan, list), None);
                    let room = (u64::MAX, |_| 0);
                    let fibers =
                        finder.along(input(device, &kernels, &stream, store, &plan, list), mode, room);
                    for error in [copy.unwrap_err(), fibers.unwrap_err()] {
                        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
                        let error = error.to_string();
                        assert!(error.contains("chunk 0: corrupt: a number out of range"), "{error}");
                    }
                }
            };
            let mut resident = Resident::new(device, &store, 0..1).unwrap();
            if resident.encodings == [ValueEncoding::F64] {
                let values = resident.headers[0].section(SectionKind::Values).unwrap();
                resident.images.write_at(values.end - 8, &[f64::NAN]).unwrap();
                fails(&store, &resident);
            }
            if resident.encodings == [ValueEncoding::Dictionary] {
                let (record, words) = first_tile(&store, &resident.headers[0]);
                let indices = record.widths(3) - record.value_width;
                let numbers = vec![u8::MAX; column::bytes(record.value_width)];
                resident.images.write_at(words + column::bytes(indices), &numbers).unwrap();
                fails(&store, &resident);
            }
            let damaged = crate::common::with_largest_numbers(&store);
            fails(&damaged, &Resident::new(device, &damaged, 0..1).unwrap());
        }
    });
}

#[test]
fn what_cannot_be_put_in_order_is_an_error() {
    on_a_device(module_path!(), "what_cannot_be_put_in_order_is_an_error", |device| {
        let dir = tempfile::tempdir().unwrap();
        let tensor = Tensor::random(&[100, 90, 80], 500, 5, values::integer);
        let store = packed(&tensor, &options(&dir.path().join("s"), Kind::Raw, ALL_CHUNKS));
        let plan = |manifest: &Manifest| {
            CopyPlan::new(&device.facts, manifest, 0..1, 0, ValueEncoding::F64, 1 << 22)
        };
        assert!(plan(store.manifest()).unwrap_err().to_string().contains("raw"));
        let store = packed(&tensor, &options(&dir.path().join("t"), Kind::Tiled, ALL_CHUNKS));
        let mut manifest = store.manifest().clone();
        assert!(plan(&manifest).is_ok());
        // Values outside the range that the caller gives.
        let fractions = Tensor::random(&[100, 90, 80], 500, 5, values::fraction);
        let store = packed(&fractions, &options(&dir.path().join("u"), Kind::Tiled, ALL_CHUNKS));
        let resident = Resident::new(device, &store, 0..1).unwrap();
        let integers =
            CopyPlan::new(&device.facts, store.manifest(), 0..1, 0, ValueEncoding::Integer, 1 << 22).unwrap();
        let (kernels, stream) =
            (SortKernels::load(device).unwrap(), device.stream(Priority::Lowest).unwrap());
        let refused =
            build(input(device, &kernels, &stream, &store, &integers, resident.list()), None).unwrap_err();
        assert!(matches!(refused, Error::Corrupt { .. }), "{refused}");
        assert!(refused.to_string().ends_with("chunk 0: corrupt: a number out of range"), "{refused}");
        manifest.chunks[0].nnz = 1 << 32;
        assert!(plan(&manifest).unwrap_err().to_string().contains("too many"));
    });
}

/// Opens the store in `BLCO_ORDER_STORE`, builds a mode's copy, and finds the fibers along the mode.
fn build_once() -> Result<()> {
    let store = Store::open(&Sys::default(), std::env::var_os("BLCO_ORDER_STORE").unwrap().as_ref())?;
    let device = Device::open(0)?;
    let resident = Resident::new(&device, &store, 0..store.manifest().chunks.len())?;
    let plan = resident.plan(&device, &store, 1, Precision::F64, 2048);
    let (kernels, stream): (SortKernels, Stream) =
        (SortKernels::load(&device)?, device.stream(Priority::Lowest)?);
    let images: u64 = store.manifest().chunks.iter().map(|c| c.image_bytes.next_multiple_of(256)).sum();
    build(input(&device, &kernels, &stream, &store, &plan, resident.list()), None)?;
    let (finder, room) = (FiberKernels::load(&device)?, (u64::MAX, |_| 0));
    let input = input(&device, &kernels, &stream, &store, &plan, resident.list());
    finder.estimate(input)?;
    let found = finder.along(input, 1, room)?;
    let most = plan.peak_bytes().max(found.peak_bytes);
    println!("bytes={}", images + 16 * u64::from(resident.list().1) + most);
    Ok(())
}

#[test]
#[ignore = "started by every_failing_call_ends_with_its_error"]
fn builds_once() {
    if std::env::var_os("BLCO_ORDER_STORE").is_some() {
        match build_once() {
            Ok(()) => println!("built"),
            Err(e) => println!("failed: {e}"),
        }
    }
}

/// Runs `builds_once` on the mock driver. Returns its output and the driver's record, in which no object is alive.
fn failing(store: &Path, nth: u64, error: &str) -> (String, HashMap<String, String>) {
    let log = store.with_extension("log");
    let _ = std::fs::remove_file(&log);
    let (nth, path, log) = (nth.to_string(), store.to_str().unwrap(), log.to_str().unwrap());
    let env = [
        ("BLCO_ORDER_STORE", path),
        ("BLCO_MOCK_LOG", log),
        ("BLCO_MOCK_FAIL", &nth),
        ("BLCO_MOCK_ERROR", error),
        ("BLCO_MOCK_SLOW", "5"),
    ];
    let output = on_the_mock(module_path!(), "builds_once", &env);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "call {nth}: {text}\n{}", String::from_utf8_lossy(&output.stderr));
    let account = std::fs::read_to_string(log).unwrap();
    let pair = |word: &str| word.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned())).unwrap();
    let fields: HashMap<_, _> = account.split_whitespace().map(pair).collect();
    for what in ["device_bytes", "streams", "events", "modules", "contexts"] {
        assert_eq!(fields[what], "0", "call {nth}: {what} left: {account}");
    }
    (text, fields)
}

#[test]
fn every_failing_call_ends_with_its_error() {
    if std::env::var_os("BLCO_MOCK_CUDA").is_none() {
        eprintln!("skipped: BLCO_MOCK_CUDA does not name the mock driver; tools/test.sh builds it");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let tensor = Tensor::random(&[60, 2000, 50], 9000, 5, values::fraction);
    packed(&tensor, &options(&path, Kind::Tiled, SMALL_CHUNKS));
    let (text, account) = failing(&path, 0, "700");
    assert!(text.contains("built"), "{text}");
    let number = |what: &str| account[what].parse::<u64>().unwrap();
    // All allocations are in the plan, except lists of a few bytes per image.
    let planned = text.lines().find_map(|l| l.split_once("bytes=")?.1.parse::<u64>().ok()).unwrap();
    assert!(number("peak_bytes") <= planned + 4096, "{} of {planned}", number("peak_bytes"));
    let (calls, allocations) = (number("calls"), number("allocations"));
    assert!(calls > 100 && allocations > 12, "{calls} calls, {allocations} allocations");
    let mut failed = 0;
    for nth in 1..=calls {
        let (text, account) = failing(&path, nth, "700");
        let call = &account["failed"][..];
        if text.contains("built") {
            assert!(call == "-" || RELEASES.contains(&call), "call {nth}, {call}, failed and nobody noticed");
        } else {
            assert!(text.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "call {nth}, {call}: {text}");
            failed += 1;
        }
    }
    assert!(failed > 60, "{failed} calls failed");
    for nth in 1..=allocations {
        let (text, _) = failing(&path, nth, "2");
        assert!(text.contains("CUDA_ERROR_OUT_OF_MEMORY"), "allocation {nth}: {text}");
    }
}

#[test]
#[ignore = "measures the store in BLCO_ORDER_BENCH"]
fn bench() {
    let Some(path) = std::env::var_os("BLCO_ORDER_BENCH") else { return };
    let image_nnz = std::env::var("BLCO_ORDER_IMAGE").map_or(1 << 24, |text| text.parse().unwrap());
    let (device, store) = (Device::open(0).unwrap(), Store::open(&Sys::default(), path.as_ref()).unwrap());
    if std::env::var_os("BLCO_ORDER_CHECK").is_some() {
        check(&device, &store, 0..store.manifest().chunks.len(), image_nnz, "bench");
        println!("every mode is in order");
    }
    let resident = Resident::new(&device, &store, 0..store.manifest().chunks.len()).unwrap();
    let (kernels, stream) = (SortKernels::load(&device).unwrap(), device.stream(Priority::Lowest).unwrap());
    let nnz = store.manifest().nnz as f64;
    let of_store = store.manifest().chunks.iter().map(|c| c.image_bytes).sum::<u64>() as f64 / nnz;
    println!(
        "{}: {nnz} nonzeros, {of_store:.2} bytes each, on {}",
        store.path().display(),
        device.facts.name
    );
    for precision in [Precision::F64, Precision::F32] {
        for mode in 0..store.manifest().shape.order() {
            let plan = resident.plan(&device, &store, mode, precision, image_nnz);
            for turn in 0..3 {
                let start = std::time::Instant::now();
                let copy =
                    build(input(&device, &kernels, &stream, &store, &plan, resident.list()), None).unwrap();
                let (wall, s) = (start.elapsed().as_secs_f64(), &copy.seconds);
                let sum = s.keys + s.sort.iter().sum::<f64>() + s.measure + s.pack;
                let sorts: Vec<String> =
                    s.sort.iter().map(|t| format!("{:.3} ms ({:.1} G/s)", t * 1e3, nnz / t / 1e9)).collect();
                println!(
                    "{precision:?} mode {} turn {turn}: keys {:.3} ms ({:.1} G/s), sort {}, measure {:.3} ms ({:.1} G/s), \
                     pack {:.3} ms ({:.1} G/s); sum {:.3} ms, wall {:.3} ms; {:.3} bytes a nonzero of at most {:.3}; \
                     scratch {:.1} then {:.1}",
                    mode + 1,
                    s.keys * 1e3,
                    nnz / s.keys / 1e9,
                    sorts.join(" + "),
                    s.measure * 1e3,
                    nnz / s.measure / 1e9,
                    s.pack * 1e3,
                    nnz / s.pack / 1e9,
                    sum * 1e3,
                    wall * 1e3,
                    copy.bytes as f64 / nnz,
                    plan.result_bytes_max as f64 / nnz,
                    plan.sort_bytes as f64 / nnz,
                    plan.pack_bytes as f64 / nnz,
                );
            }
        }
    }
}
