//! What the fuzz targets do with an input, and tests/stores/corpora.rs with the inputs that are kept: each calls the library
//! as the programs do and panics where a promise does not hold. Inputs that carry checksums are tried as they are and
//! once more with lengths and checksums made to fit, so that what lies behind these is reached.

#![allow(dead_code, reason = "every target uses a part")]

pub mod resume;

use blco::internals::backend::host::{HostBackend, HostOp, Vectors};
use blco::internals::coo::tns::{IndexBase, ReadOptions, TnsReader, TnsWriter};
use blco::internals::coo::{Batch, Extent, Source};
use blco::internals::dense::{Matrix, Real, seeded_factors};
use blco::internals::error::{Error, Result};
use blco::internals::format::{DecodedTile, PartitionPlan};
use blco::internals::op::export::EachTile;
use blco::internals::op::mttkrp::Mttkrp;
use blco::internals::op::salvage::Salvage;
use blco::internals::op::ttv::Streamed;
use blco::internals::op::verify::verify;
use blco::internals::pack::{FormatOption, PackOptions};
use blco::internals::shape::Shape;
use blco::internals::store::{ChunkEntry, ChunkHeader, Formats, Manifest, Partition, Store, Version};
use blco::internals::stream::{Executor, Limits, plan};
use blco::internals::sys::Sys;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

/// Nonzeros that are looked at; a few bytes of compressed text can hold millions.
const NNZ_MAX: usize = 1 << 18;
/// Bytes of a manifest's preamble and of a chunk's header.
const PREAMBLE: usize = 64;
const HEADER: usize = 128;

fn store_bytes<const N: usize>(bytes: &mut [u8], at: usize, field: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&field);
}

/// All nonzeros of a source, each index below its dim and each value finite.
fn drained(source: &mut dyn Source) -> Result<(Extent, Batch)> {
    let mut all = Batch::default();
    let extent = source.drain(&mut |batch| {
        all.indices.extend(batch.indices);
        all.values.extend(batch.values);
        if all.nnz() <= NNZ_MAX { Ok(()) } else { Err(Error::Cancelled) }
    })?;
    assert_eq!(extent.nnz, all.nnz() as u64);
    assert_eq!(all.indices.len(), all.nnz() * extent.dims.len());
    for row in all.indices.chunks_exact(extent.dims.len()) {
        assert!(row.iter().zip(&extent.dims).all(|(&index, &dim)| u64::from(index) < dim), "{row:?}");
    }
    assert!(all.values.iter().all(|value| value.is_finite()));
    Ok((extent, all))
}

fn same(a: &Batch, b: &Batch) -> bool {
    let bits = |batch: &Batch| batch.values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    a.indices == b.indices && bits(a) == bits(b)
}

/// Coordinate text: what is read can be written, and reads back as it was.
pub fn text(data: &[u8]) {
    let sys = Sys::default();
    let read = |text: &[u8], options| {
        let text = Box::new(std::io::Cursor::new(text.to_vec()));
        drained(&mut TnsReader::from_read(&sys, text, "input", options)?)
    };
    for index_base in [IndexBase::One, IndexBase::Zero] {
        let Ok((extent, batch)) = read(data, ReadOptions { index_base, ..ReadOptions::default() }) else {
            continue;
        };
        let mut writer = TnsWriter::new(Vec::new());
        let rows = batch.indices.chunks_exact(extent.dims.len()).zip(&batch.values);
        rows.for_each(|(row, &value)| writer.write_row(row, value).expect("a vector takes it"));
        let written = writer.finish().expect("a vector takes it");
        let options = ReadOptions {
            index_base: IndexBase::One,
            dims: Some(extent.dims.clone()),
            ..ReadOptions::default()
        };
        let again = read(&written, options).expect("what is written can be read");
        assert!(again.0 == extent && same(&again.1, &batch), "differs when it is read again");
    }
}

/// A manifest: what is accepted is a valid store's, and encodes to the same again.
pub fn manifest(data: &[u8]) {
    try_manifest(data);
    for version in [1, 2] {
        try_manifest(&sealed_manifest(data, version));
    }
}

/// The input with a preamble that fits what follows it.
fn sealed_manifest(data: &[u8], version: u32) -> Vec<u8> {
    let archive = data.get(PREAMBLE..).unwrap_or(&[]);
    let mut bytes = vec![0; PREAMBLE];
    store_bytes(&mut bytes, 0, *b"BLCOSTOR");
    store_bytes(&mut bytes, 8, version.to_le_bytes());
    store_bytes(&mut bytes, 12, 64u32.to_le_bytes());
    store_bytes(&mut bytes, 16, (archive.len() as u64).to_le_bytes());
    store_bytes(&mut bytes, 24, xxh3_64(archive).to_le_bytes());
    let checksum = xxh3_64(&bytes[..PREAMBLE - 8]);
    store_bytes(&mut bytes, PREAMBLE - 8, checksum.to_le_bytes());
    bytes.extend_from_slice(archive);
    bytes
}

fn try_manifest(bytes: &[u8]) {
    let Ok((manifest, _)) = Manifest::decode(bytes, Path::new("manifest")) else { return };
    if manifest.version == Version::NEWEST {
        let (again, _) = manifest.encode();
        let again = Manifest::decode(&again, Path::new("manifest")).expect("and read");
        assert_eq!(again.0, manifest);
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(dir.path().join("manifest"), bytes).expect("a file");
    let sys = Sys::default();
    let store = Store::open(&sys, dir.path()).expect("it has been accepted before");
    drop(plan(&store, 0, &Limits { memory: Some(1 << 30), ..Limits::default() }));
    assert!(
        Salvage::scan(&sys, &Formats::default(), dir.path(), 1 << 20, u64::MAX, &|_, _| ()).is_err(),
        "there are no chunks"
    );
}

/// A chunk file: by itself, and as the only one of a store.
pub fn chunk(data: &[u8]) {
    try_chunk(data);
    for version in [Version::One, Version::Two] {
        try_chunk(&sealed_chunk(data, version));
    }
}

/// The input as chunk 0 of a store: a header whose lengths and checksums fit, a payload, padding.
fn sealed_chunk(data: &[u8], version: Version) -> Vec<u8> {
    let mut bytes = data.to_vec();
    bytes.resize(bytes.len().max(HEADER), 0);
    let mut head = HEADER;
    if version == Version::Two {
        let sections = 1 + bytes[64] % 9;
        store_bytes(&mut bytes, 64, u32::from(sections).to_le_bytes());
        head = version.header_bytes(sections.into());
        bytes.resize(bytes.len().max(head), 0);
        store_bytes(&mut bytes, 68, [0; 4]);
        store_bytes(&mut bytes, 80, [0; 40]);
    }
    store_bytes(&mut bytes, 0, *b"BLCOCHNK");
    store_bytes(&mut bytes, 8, (version as u32).to_le_bytes());
    store_bytes(&mut bytes, 12, 0u32.to_le_bytes());
    store_bytes(&mut bytes, 24, 0u64.to_le_bytes());
    let there = bytes.len() - head;
    let said = u32::from_le_bytes(std::array::from_fn(|i| bytes[40 + i])) as usize;
    let mut stored = if said <= there { said } else { there };
    if bytes[47] == 0 {
        stored -= stored % 128;
        let image = u32::try_from(head + stored).expect("inputs are short");
        store_bytes(&mut bytes, 36, image.to_le_bytes());
    }
    bytes.truncate(head + stored);
    let stored = u32::try_from(stored).expect("inputs are short");
    store_bytes(&mut bytes, 40, stored.to_le_bytes());
    let checksum = xxh3_64(&bytes[head..]);
    store_bytes(&mut bytes, 48, checksum.to_le_bytes());
    if version == Version::Two {
        let checksum = xxh3_64(&bytes[HEADER..head]);
        store_bytes(&mut bytes, 72, checksum.to_le_bytes());
    }
    seal_header(&mut bytes);
    bytes.resize(bytes.len().next_multiple_of(4096), 0);
    bytes
}

fn seal_header(bytes: &mut [u8]) {
    let checksum = xxh3_64(&bytes[..HEADER - 8]);
    store_bytes(bytes, HEADER - 8, checksum.to_le_bytes());
}

fn try_chunk(bytes: &[u8]) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("chunk-000000.bin");
    std::fs::write(&path, bytes).expect("a file");
    let sys = Sys::default();
    let Ok(mut salvage) = Salvage::scan(&sys, &Formats::default(), dir.path(), 1 << 20, u64::MAX, &|_, _| ())
    else {
        return;
    };
    let (extent, batch) = match drained(&mut salvage) {
        Ok(all) => all,
        Err(Error::Cancelled) => return,
        Err(error) => panic!("intact, then not: {error}"),
    };
    let header = ChunkHeader::decode(bytes, &path).expect("it has been accepted before");
    // A manifest of version 1 is not written any more.
    if header.number != 0 || header.partition != 0 || header.version != Version::NEWEST {
        return;
    }
    let manifest = manifest_of(&salvage, &extent, &header, bytes.len() as u64);
    let (encoded, id) = manifest.encode();
    let mut stamped = bytes.to_vec();
    store_bytes(&mut stamped, 16, id.to_le_bytes());
    seal_header(&mut stamped);
    std::fs::write(&path, stamped).expect("a file");
    std::fs::write(dir.path().join("manifest"), encoded).expect("a file");
    let store = Store::open(&sys, dir.path()).expect("a valid manifest");
    run(&store, &batch);
}

/// A manifest of which the chunk is the only one; its statistics are not the chunk's.
fn manifest_of(salvage: &Salvage, extent: &Extent, header: &ChunkHeader, file_bytes: u64) -> Manifest {
    let shape = Shape::new(&extent.dims).expect("the dims of a chunk make a shape");
    let options = salvage.options(PackOptions::new("t.blco".into()));
    let format = match options.format {
        FormatOption::Known(format) => format,
        FormatOption::Partitions(scheme) => {
            let own = |plan: &&PartitionPlan| plan.format.layout().0 == header.codes.layout;
            scheme.partitions.iter().find(own).expect("the chunk's").format.clone()
        }
        _ => panic!("what is there has a format"),
    };
    let dims = shape.dims();
    let entry = ChunkEntry {
        first_nonzero: 0,
        nnz: header.nnz.into(),
        file_bytes,
        image_bytes: header.image_bytes.into(),
        payload_checksum: header.payload_checksum,
        first_linear: [0; 2],
        last_linear: [0; 2],
        row_low: [0; 8],
        row_high: std::array::from_fn(|m| dims.get(m).map_or(0, |dim| dim - 1)),
        value_encoding: Some(header.codes.value_encoding),
    };
    Manifest {
        version: Version::NEWEST,
        codec: options.codec,
        may_repeat: true,
        chunk_bytes: options.chunk_bytes,
        nnz: extent.nnz,
        sum_squares: 0.0,
        value_min: 0.0,
        value_max: 0.0,
        longest_row_bounds: vec![0; shape.order()],
        partitions: vec![Partition::whole(format, shape.order(), 1, extent.nnz, Some(0), None)],
        chunks: vec![entry],
        part: None,
        modes: None,
        shape,
    }
}

/// Exports the store, which must give `batch`; then verifies it and, where its dims are small, multiplies, by factors and,
/// where elements stream out of it, by a vector.
fn run(store: &Store, batch: &Batch) {
    let mut exported = Batch::default();
    let mut gather = EachTile(|tile: &DecodedTile<'_>| {
        for i in 0..tile.nnz {
            exported.indices.extend((0..tile.order()).map(|m| tile.column(m)[i]));
        }
        exported.values.extend_from_slice(tile.values);
        Ok(())
    });
    pass(store, &mut gather).expect("an intact chunk");
    assert!(same(&exported, batch), "exporting and salvaging differ");
    drop(verify(store, |part, op| pass(part, op)));
    let shape = &store.manifest().shape;
    if shape.dims().iter().all(|&dim| dim < 1000) {
        let modes: Vec<usize> = (0..shape.order()).collect();
        let factors = seeded_factors::<f64>(store.sys(), shape, 2, 0).expect("small factors");
        let mut mttkrp = Mttkrp::new(store, &factors, &modes, 2).expect("small results");
        pass(store, &mut mttkrp).expect("an intact chunk");
    }
    if let Some(levels) = store.manifest().format().tree_levels()
        && shape.dims()[levels.last()] < 1 << 20
    {
        let dim = shape.dims()[levels.last()] as usize;
        let vector = Matrix::<f64>::seeded(store.sys(), dim, 1, levels.last(), 0).expect("a short vector");
        for vectors in [Vectors::Widest, Vectors::Avx2, Vectors::Baseline] {
            stream(store, batch, levels.last(), vector.data(), vectors);
        }
    }
}

/// TTV along the leaves' mode: the elements are those of `batch`, whose nonzeros come fiber by fiber.
fn stream(store: &Store, batch: &Batch, mode: usize, vector: &[f64], vectors: Vectors) {
    let mut wanted = Batch::default();
    let order = store.manifest().shape.order();
    for (row, value) in batch.indices.chunks_exact(order).zip(&batch.values) {
        let product = value * vector[row[mode] as usize];
        let element = (0..order).filter(|&m| m != mode).map(|m| row[m]);
        match wanted.values.last_mut() {
            Some(sum)
                if wanted.indices[wanted.indices.len() - (order - 1)..]
                    .iter()
                    .copied()
                    .eq(element.clone()) =>
            {
                *sum += product;
            }
            _ => {
                wanted.indices.extend(element);
                wanted.values.push(product);
            }
        }
    }
    let mut found = Batch::default();
    let mut take = |batches: Vec<Batch>| {
        for batch in batches {
            found.indices.extend(batch.indices);
            found.values.extend(batch.values);
        }
        Ok(())
    };
    let mut op = Streamed::new(store, vector, Some(&mut take)).expect("short sums").with_vectors(vectors);
    let finished = pass(store, &mut op).and_then(|()| op.finish());
    drop(op);
    if let Err(error) = finished {
        let exceeds = matches!(error, Error::Request(_)) && wanted.values.iter().any(|sum| !sum.is_finite());
        assert!(exceeds, "an intact chunk: {error}");
        return;
    }
    // A tree may have the same fiber twice: a verifier minds, TTV gives two elements.
    let distinct = |batch: &Batch| {
        let mut rows: Vec<_> = batch.indices.chunks_exact(order - 1).map(<[u32]>::to_vec).collect();
        rows.dedup();
        rows
    };
    assert_eq!(distinct(&found), distinct(&wanted));
    assert!(found.nnz() > wanted.nnz() || same(&found, &wanted), "other sums than one by one");
}

fn pass<O: HostOp>(store: &Store, op: &mut O) -> Result<()> {
    let mut backend = HostBackend::new(store, op)?;
    let plan = plan(store, 0, &Limits { workers: Some(1), ..Limits::default() })?;
    Executor::new(store, &plan, &mut backend)?.pass(&mut backend, &|_| ()).map(drop)
}

/// A factor of three rows: what is read can be written, and reads back as it was.
pub fn npy(data: &[u8]) {
    try_npy::<f64>(data);
    try_npy::<f32>(data);
}

fn try_npy<T: Real>(data: &[u8]) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (given, written) = (dir.path().join("mode-1.npy"), dir.path().join("written.npy"));
    std::fs::write(&given, data).expect("a file");
    let sys = Sys::default();
    let Ok(matrix) = Matrix::<T>::load(&sys, &given, 3) else { return };
    assert!(matrix.data().iter().all(|x| x.widen().is_finite()));
    matrix.write(&sys.create(&written).expect("a file")).expect("written");
    let again = Matrix::<T>::load(&sys, &written, 3).expect("what is written can be read");
    let bits = |m: &Matrix<T>| m.data().iter().map(|x| x.widen().to_bits()).collect::<Vec<_>>();
    assert!(again.columns() == matrix.columns() && bits(&again) == bits(&matrix));
}
