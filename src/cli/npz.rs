//! Coordinates in a NumPy archive, as `blco-export`, the package `sparse` and `SciPy` (COO matrices) write them.
//!
//! All arrays are read at the same time, each by its own decoder, so that memory does not grow with the tensor.

use super::outputs::ends_in;
use crate::coo::tns::file_identity;
use crate::coo::{Batch, Extent, Size, Source, SourceMemory};
use crate::error::{Error, Result};
use crate::shape::{DIM_MAX, Shape};
use crate::sys::{File, FileState, Sys};
use npyz::{DType, Endianness, NpyHeader, TypeChar};
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use zip::ZipArchive;

/// Nonzeros of a batch.
const BATCH_NNZ: usize = 1 << 16;
/// Bytes that are read at a time from each array, and bytes of a decoder.
const BUFFER_BYTES: usize = 1 << 16;
const DECODER_BYTES: u64 = 1 << 18;
const ORDER_MAX: usize = 8;

/// Whether `path` is named as an archive.
pub fn is_npz(path: &Path) -> bool {
    ends_in(path, "npz")
}

/// The layout of indices.
#[derive(Clone, Debug)]
enum Indices {
    /// In one array, nonzero by nonzero, with this number of indices each.
    Rows(String, usize),
    /// Mode by mode: in an array, from an element on.
    Columns(Vec<(String, u64)>),
}

/// A tensor in an archive.
#[derive(Debug)]
pub struct NpzSource {
    name: String,
    file: Arc<File>,
    state: FileState,
    length: u64,
    indices: Indices,
    values: &'static str,
    dims: Vec<u64>,
    nnz: u64,
}

/// The bytes of a file, with a position for each reader.
#[derive(Clone, Debug)]
struct At {
    file: Arc<File>,
    length: u64,
    offset: u64,
}

impl Read for At {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.file.read_at(buffer, self.offset).map_err(|error| match error {
            Error::Io { source, .. } => source,
            other => std::io::Error::other(other.to_string()),
        })?;
        self.offset += read as u64;
        Ok(read)
    }
}

impl Seek for At {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.offset.checked_add_signed(by),
            SeekFrom::End(by) => self.length.checked_add_signed(by),
        };
        self.offset = at.ok_or(std::io::ErrorKind::InvalidInput)?;
        Ok(self.offset)
    }
}

type Archive = ZipArchive<BufReader<At>>;

/// A NumPy type of numbers.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    kind: TypeChar,
    bytes: usize,
    big: bool,
}

impl Numbers {
    /// The type of an array of integers or reals; an error for other types.
    fn of(header: &NpyHeader, reals: bool) -> std::result::Result<Self, String> {
        let found = header.dtype();
        let wrong =
            || format!("holds {}, not {}", found.descr(), if reals { "real numbers" } else { "integers" });
        let DType::Plain(kind) = &found else { return Err(wrong()) };
        let bytes = kind.num_bytes().ok_or_else(wrong)?;
        let good = match kind.type_char() {
            TypeChar::Int | TypeChar::Uint => matches!(bytes, 1 | 2 | 4 | 8),
            TypeChar::Bool => reals && bytes == 1,
            TypeChar::Float => reals && matches!(bytes, 4 | 8),
            _ => false,
        };
        let big = kind.endianness() == Endianness::Big;
        if good { Ok(Self { kind: kind.type_char(), bytes, big }) } else { Err(wrong()) }
    }

    /// The bits of a number, the lowest first.
    fn bits(self, field: &[u8]) -> u64 {
        let byte = |bits: u64, &byte: &u8| bits << 8 | u64::from(byte);
        if self.big { field.iter().fold(0, byte) } else { field.iter().rev().fold(0, byte) }
    }

    /// An integer; `None` beyond i64.
    fn integer(self, field: &[u8]) -> Option<i64> {
        let bits = self.bits(field);
        if self.kind == TypeChar::Int {
            let unused = 64 - 8 * u32::try_from(self.bytes).unwrap_or(8);
            return Some((bits << unused).cast_signed() >> unused);
        }
        i64::try_from(bits).ok()
    }

    fn real(self, field: &[u8]) -> f64 {
        let bits = self.bits(field);
        match (self.kind, self.bytes) {
            (TypeChar::Float, 4) => f32::from_bits(u32::try_from(bits).unwrap_or(0)).into(),
            (TypeChar::Float, _) => f64::from_bits(bits),
            (TypeChar::Int, _) => self.integer(field).unwrap_or(0) as f64,
            _ => bits as f64,
        }
    }
}

/// An array that is being read.
struct Array<'a> {
    name: String,
    reader: Box<dyn Read + 'a>,
    numbers: Numbers,
    buffer: Vec<u8>,
}

impl Array<'_> {
    /// The next `count` numbers, as bytes.
    fn next(&mut self, source: &str, count: usize) -> Result<std::slice::ChunksExact<'_, u8>> {
        self.buffer.resize(count * self.numbers.bytes, 0);
        self.reader.read_exact(&mut self.buffer).map_err(|e| failed(source, &self.name, e))?;
        Ok(self.buffer.chunks_exact(self.numbers.bytes))
    }
}

/// The error about an array that cannot be read.
fn failed(source: &str, array: &str, error: std::io::Error) -> Error {
    if error.raw_os_error().is_some() {
        return Error::io(source, "read")(error);
    }
    Error::input(
        source,
        format!("array {array:?} is damaged or not whole ({error}); fetch or write it again"),
    )
}

impl NpzSource {
    /// Reads the arrays' headers.
    pub fn open(sys: &Sys, path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let file = sys.open(path, false)?;
        let (state, length) = (file.state()?, file.metadata()?.len());
        let mut source = Self {
            name,
            file: Arc::new(file),
            state,
            length,
            indices: Indices::Columns(Vec::new()),
            values: "data",
            dims: Vec::new(),
            nnz: 0,
        };
        let mut archive = source.archive()?;
        let names: Vec<String> =
            archive.file_names().filter_map(|name| name.strip_suffix(".npy")).map(str::to_owned).collect();
        let has = |wanted: &[&str]| wanted.iter().all(|wanted| names.iter().any(|name| name == wanted));
        let sizes = if has(&["indices", "values", "dims"]) {
            source.values = "values";
            source.indices_of(&mut archive, "indices", 1)?;
            "dims"
        } else if has(&["coords", "data", "shape"]) {
            source.indices_of(&mut archive, "coords", 0)?;
            "shape"
        } else if has(&["row", "col", "data", "shape"]) {
            source.indices = Indices::Columns(vec![("row".into(), 0), ("col".into(), 0)]);
            source.nnz = source.header(&mut archive, "row")?.len();
            "shape"
        } else {
            return Err(source.wrong(&format!(
                "holds the arrays {}; a tensor is indices, values, dims, or coords, data, shape (sparse.save_npz), or a SciPy \
                 matrix in COO form: convert it with tocoo()",
                names.join(", ")
            )));
        };
        source.dims = source.integers(&mut archive, sizes)?;
        if has(&["fill_value"]) {
            source.check_fill(&mut archive)?;
        }
        source.check(&mut archive)?;
        Ok(source)
    }

    fn wrong(&self, what: &str) -> Error {
        Error::input(&self.name, what)
    }

    fn archive(&self) -> Result<Archive> {
        let at = At { file: Arc::clone(&self.file), length: self.length, offset: 0 };
        ZipArchive::new(BufReader::with_capacity(BUFFER_BYTES, at)).map_err(|error| match error {
            zip::result::ZipError::Io(e) if e.raw_os_error().is_some() => Error::io(&self.name, "read")(e),
            error => {
                self.wrong(&format!("is no NumPy archive, or not whole ({error}); fetch or write it again"))
            }
        })
    }

    /// The array `name` of `archive`, behind its header.
    fn array<'a>(&self, archive: &'a mut Archive, name: &str) -> Result<(NpyHeader, Box<dyn Read + 'a>)> {
        let file = archive.by_name(&format!("{name}.npy")).map_err(|e| failed(&self.name, name, e.into()))?;
        let mut reader = BufReader::with_capacity(BUFFER_BYTES, file);
        let header = NpyHeader::from_reader(&mut reader).map_err(|e| failed(&self.name, name, e))?;
        Ok((header, Box::new(reader)))
    }

    fn header(&self, archive: &mut Archive, name: &str) -> Result<NpyHeader> {
        Ok(self.array(archive, name)?.0)
    }

    /// Finds the layout of indices in `name`: nonzeros along `axis`, modes along the other axis.
    fn indices_of(&mut self, archive: &mut Archive, name: &str, axis: usize) -> Result<()> {
        let header = self.header(archive, name)?;
        let &[rows, columns] = header.shape() else {
            return Err(
                self.wrong(&format!("array {name:?} has {} axes; coordinates have 2", header.shape().len()))
            );
        };
        let (order, nnz) = if axis == 1 { (columns, rows) } else { (rows, columns) };
        if !(2..=ORDER_MAX as u64).contains(&order) {
            return Err(self.wrong(&format!(
                "array {name:?} is {rows} x {columns}: order {order}; tensors have 2 to 8 modes"
            )));
        }
        // The indices of a nonzero are adjacent if the axis of the modes varies fastest.
        let together = (axis == 1) == (header.order() == npyz::Order::C);
        self.nnz = nnz;
        self.indices = if together {
            Indices::Rows(name.to_owned(), usize::try_from(order).unwrap_or(0))
        } else {
            Indices::Columns((0..order).map(|mode| (name.to_owned(), mode * nnz)).collect())
        };
        Ok(())
    }

    /// A short array of integers.
    fn integers(&self, archive: &mut Archive, name: &str) -> Result<Vec<u64>> {
        let (header, reader) = self.array(archive, name)?;
        let wrong = |what: &str| self.wrong(&format!("array {name:?} {what}"));
        let numbers = Numbers::of(&header, false).map_err(|what| wrong(&what))?;
        let count = usize::try_from(header.len()).ok().filter(|&count| count <= ORDER_MAX);
        let count = count
            .ok_or_else(|| wrong(&format!("holds {} numbers; tensors have 2 to 8 modes", header.len())))?;
        let mut array = Array { name: name.into(), reader, numbers, buffer: Vec::new() };
        let dims = array
            .next(&self.name, count)?
            .map(|field| numbers.integer(field).and_then(|n| u64::try_from(n).ok()));
        dims.map(|dim| dim.ok_or_else(|| wrong("holds a dim below 0"))).collect()
    }

    /// An error unless the fill value is 0.
    fn check_fill(&self, archive: &mut Archive) -> Result<()> {
        let (header, reader) = self.array(archive, "fill_value")?;
        let numbers =
            Numbers::of(&header, true).map_err(|what| self.wrong(&format!("array \"fill_value\" {what}")))?;
        let mut array = Array { name: "fill_value".into(), reader, numbers, buffer: Vec::new() };
        let fill: Vec<f64> = array.next(&self.name, 1)?.map(|field| numbers.real(field)).collect();
        if fill == [0.0] {
            Ok(())
        } else {
            Err(self.wrong("the fill value is not 0; what is not stored must be 0"))
        }
    }

    /// Checks that arrays agree.
    fn check(&self, archive: &mut Archive) -> Result<()> {
        let order = match &self.indices {
            Indices::Columns(columns) => columns.len(),
            Indices::Rows(_, order) => *order,
        };
        let values = self.header(archive, self.values)?.len();
        if values != self.nnz {
            let what = format!(
                "{} nonzeros have coordinates, and {values} values; write the archive again",
                self.nnz
            );
            return Err(self.wrong(&what));
        }
        if self.nnz == 0 {
            return Err(self.wrong("no nonzeros; a store holds at least one"));
        }
        if order != self.dims.len() {
            return Err(
                self.wrong(&format!("the coordinates are not of order {}, as the shape is", self.dims.len()))
            );
        }
        Shape::new(&self.dims).map(drop).map_err(|error| self.wrong(&error.to_string()))
    }

    /// The error about nonzero `at`, from 0.
    fn bad(&self, at: u64, what: &str) -> Error {
        self.wrong(&format!("nonzero {}: {what}", at + 1))
    }

    /// Delivers all nonzeros, from `arrays` of indices and of values.
    fn read(
        &self,
        arrays: &mut [Array<'_>],
        values: &mut Array<'_>,
        sink: &mut dyn FnMut(Batch) -> Result<()>,
    ) -> Result<()> {
        let order = self.dims.len();
        // One array of all modes, or one array per mode.
        let stride = order / arrays.len();
        let mut at = 0;
        while at < self.nnz {
            let count = usize::try_from(self.nnz - at).unwrap_or(usize::MAX).min(BATCH_NNZ);
            let mut batch = Batch { indices: vec![0; count * order], values: Vec::with_capacity(count) };
            for (first, array) in arrays.iter_mut().enumerate() {
                let numbers = array.numbers;
                for (place, field) in array.next(&self.name, count * stride)?.enumerate() {
                    let (row, mode) = (place / stride, first + place % stride);
                    let found = numbers.integer(field);
                    let index =
                        found.and_then(|index| u64::try_from(index).ok()).filter(|&i| i < self.dims[mode]);
                    let index =
                        index.filter(|&index| index < DIM_MAX).and_then(|index| u32::try_from(index).ok());
                    batch.indices[row * order + mode] = index.ok_or_else(|| {
                        let index = found.map_or("a number".into(), |found| found.to_string());
                        let what = format!(
                            "{index} is no index of mode {}, which has {}",
                            mode + 1,
                            self.dims[mode]
                        );
                        self.bad(at + row as u64, &what)
                    })?;
                }
            }
            let numbers = values.numbers;
            for (row, field) in values.next(&self.name, count)?.enumerate() {
                let value = numbers.real(field);
                if !value.is_finite() {
                    return Err(
                        self.bad(at + row as u64, &format!("{value} is not a finite number; leave it out"))
                    );
                }
                batch.values.push(value);
            }
            at += count as u64;
            sink(batch)?;
        }
        Ok(())
    }
}

impl Source for NpzSource {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn identity(&self) -> Result<Option<String>> {
        file_identity(&self.file).map(Some)
    }

    fn size(&self) -> Result<Option<Size>> {
        Ok(Some(Size { nnz: self.nnz, order: self.dims.len() }))
    }

    fn declared(&mut self) -> Result<Option<Shape>> {
        Shape::new(&self.dims).map(Some)
    }

    fn memory(&self, _threads: usize) -> SourceMemory {
        let arrays = self.dims.len() as u64 + 1;
        let batch = (BATCH_NNZ * (2 * 8 * self.dims.len() + 16)) as u64;
        let bytes = arrays * (DECODER_BYTES + 2 * BUFFER_BYTES as u64) + batch;
        SourceMemory { least: bytes, most: bytes, help: "" }
    }

    fn drain(&mut self, sink: &mut dyn FnMut(Batch) -> Result<()>) -> Result<Extent> {
        let columns = match &self.indices {
            Indices::Rows(name, _) => vec![(name.clone(), 0)],
            Indices::Columns(columns) => columns.clone(),
        };
        let mut archives = (0..=columns.len()).map(|_| self.archive()).collect::<Result<Vec<_>>>()?;
        let mut arrays = Vec::new();
        let wanted = columns.into_iter().chain([(self.values.to_owned(), 0)]);
        for (at, (archive, (name, skip))) in archives.iter_mut().zip(wanted).enumerate() {
            let (header, mut reader) = self.array(archive, &name)?;
            let numbers = Numbers::of(&header, at + 1 > self.columns());
            let numbers = numbers.map_err(|what| self.wrong(&format!("array {name:?} {what}")))?;
            let bytes = skip * numbers.bytes as u64;
            std::io::copy(&mut reader.by_ref().take(bytes), &mut std::io::sink())
                .map_err(|e| failed(&self.name, &name, e))?;
            arrays.push(Array { name, reader, numbers, buffer: Vec::new() });
        }
        let Some(mut values) = arrays.pop() else { return Err(self.wrong("no arrays")) };
        self.read(&mut arrays, &mut values, sink)?;
        self.file.check_unchanged(&self.state)?;
        Ok(Extent { dims: self.dims.clone(), nnz: self.nnz })
    }
}

impl NpzSource {
    /// Arrays of indices that are read at the same time.
    fn columns(&self) -> usize {
        match &self.indices {
            Indices::Rows(..) => 1,
            Indices::Columns(columns) => columns.len(),
        }
    }
}
