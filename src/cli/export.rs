//! `blco-export`.

use super::engine::host_engine;
#[cfg(feature = "arrow")]
use super::export_parquet::{self, ParquetWriter};
use super::export_table::TableRows;
use super::outputs::{Pending, check_tensor_name, check_text_name, ends_in};
use super::progress::Bar;
use super::{Common, Program, Report, STDOUT, nonzeros, refuse_json_beside_output, size};
use crate::error::{Error, Result};
use crate::format::DecodedTile;
use crate::op::export::{EachTile, WRITER_BYTES, WriteText};
use crate::store::Store;
use crate::sys::{File, Sys};
use clap::Parser;
use npyz::WriterBuilder;
use serde::Serialize;
use std::cell::Cell;
use std::io::{BufWriter, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Writes a store as a table, coordinate text, a NumPy archive or a matrix
///
/// The ending of the output's name selects the format. A table (.csv, .tsv, .parquet) has a column of labels per mode and a column of
/// values. Coordinate text (.tns) has one nonzero per line: its indices, counted from 1, then its value, in the fewest digits that give
/// the same bits. A NumPy archive (.npz) holds the arrays indices (nnz x order, u4, from 0), values (f8) and dims (u8). A store of
/// order 2 can also become a Matrix Market file (.mtx).
///
/// Nonzeros keep the store's order. The memory needed does not depend on the size of the tensor; for a table, it grows with the labels.
#[derive(Debug, Parser)]
#[command(
    name = "blco-export",
    version,
    after_help = "Examples:\n  blco-export movies.blco movies.csv\n  blco-export movies.blco movies.parquet\n  blco-export movies.blco movies.tns\n  blco-export movies.blco - | sort -n | head\n  \
                  blco-export movies.blco movies.npz"
)]
pub struct Export {
    /// The store
    store: PathBuf,
    /// The output: a file that ends in .csv, .tsv, .parquet, .tns, .npz or .mtx, or - for coordinate text on standard output
    output: PathBuf,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
    /// Use at most this much memory [default: the available memory]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Serialize)]
struct ExportReport {
    #[serde(serialize_with = "crate::sys::shown_path")]
    store: PathBuf,
    digest: String,
    #[serde(serialize_with = "crate::sys::shown_path")]
    output: PathBuf,
    nnz: u64,
    bytes: u64,
}

/// A tile operation whose function borrows from the caller.
type TileSink<'a> = EachTile<Box<dyn FnMut(&DecodedTile<'_>) -> Result<()> + 'a>>;

/// Writes the nonzeros as three arrays: one pass for the indices, one for the values.
fn write_arrays(store: &Store, out: &Pending, pass: &dyn Fn(&mut TileSink<'_>) -> Result<()>) -> Result<()> {
    let manifest = store.manifest();
    let (nnz, order) = (manifest.nnz, manifest.shape.order());
    let failed = |e: std::io::Error| Error::io(out.target(), "write")(e);
    let zip_failed = |e: zip::result::ZipError| failed(e.into());
    let options = zip::write::SimpleFileOptions::default()
        .compression_method(zip::CompressionMethod::Stored)
        .last_modified_time(zip::DateTime::default())
        .large_file(true);
    let latch = Cell::new(None);
    let check = || latch.take().map_or(Ok(()), |e| Err(failed(e)));
    let below = Latched { below: out.file(), at: 0, end: 0, failed: false, error: &latch };
    let mut zip = zip::ZipWriter::new(BufWriter::with_capacity(1 << 20, below));
    zip.start_file("dims.npy", options).map_err(zip_failed)?;
    let dims = manifest.shape.dims().iter().map(|&d| u64::from(d));
    write_array(&mut zip, &[order as u64], |w| w.extend(dims)).map_err(failed)?;
    zip.start_file("indices.npy", options).map_err(zip_failed)?;
    let mut broken = Ok(());
    let indices = write_array(&mut zip, &[nnz, order as u64], |w: &mut npyz::NpyWriter<u32, _>| {
        broken = pass(&mut EachTile(Box::new(|tile: &DecodedTile<'_>| {
            let rows = (0..tile.nnz).flat_map(|i| (0..order).map(move |m| tile.column(m)[i]));
            w.extend(rows).map_err(failed)?;
            check()
        })));
        Ok(())
    });
    broken?;
    indices.map_err(failed)?;
    zip.start_file("values.npy", options).map_err(zip_failed)?;
    let mut broken = Ok(());
    let values = write_array(&mut zip, &[nnz], |w: &mut npyz::NpyWriter<f64, _>| {
        broken = pass(&mut EachTile(Box::new(|tile: &DecodedTile<'_>| {
            w.extend(tile.values.iter().copied()).map_err(failed)?;
            check()
        })));
        Ok(())
    });
    broken?;
    values.map_err(failed)?;
    zip.finish().map_err(zip_failed)?.flush().map_err(failed)?;
    check()
}

/// Keeps the first error of the underlying writer, which the caller checks, and discards everything written after it.
/// After an error a `ZipWriter` tries to finish the archive when it is dropped, and panics or prints.
struct Latched<'a> {
    below: &'a File,
    at: u64,
    end: u64,
    failed: bool,
    error: &'a Cell<Option<std::io::Error>>,
}

impl Latched<'_> {
    fn fail(&mut self, error: std::io::Error) {
        self.failed = true;
        self.error.set(Some(error));
    }
}

impl Write for Latched<'_> {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        let mut written = buf.len();
        if !self.failed {
            match self.below.write(buf) {
                Err(e) if e.kind() != ErrorKind::Interrupted => self.fail(e),
                other => written = other?,
            }
        }
        self.at += written as u64;
        self.end = self.end.max(self.at);
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Seek for Latched<'_> {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.end.checked_add_signed(by),
        };
        self.at = at.ok_or(ErrorKind::InvalidInput)?;
        if !self.failed
            && let Err(e) = self.below.seek(SeekFrom::Start(self.at))
        {
            self.fail(e);
        }
        Ok(self.at)
    }
}

/// Writes one array of a known shape.
fn write_array<T: npyz::AutoSerialize, W: Write>(
    out: &mut W,
    shape: &[u64],
    fill: impl FnOnce(&mut npyz::NpyWriter<T, &mut W>) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut writer = npyz::WriteOptions::new().default_dtype().shape(shape).writer(out).begin_nd()?;
    fill(&mut writer)?;
    writer.finish()
}

/// A kind of output.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Text,
    Archive,
    /// Text with this character between fields.
    Table(u8),
    /// A table in columns.
    #[cfg(feature = "arrow")]
    Parquet,
    Matrix,
}

impl Kind {
    /// The kind that an output's name selects.
    fn of(path: &Path) -> Self {
        let ends = |end| ends_in(path, end);
        match path {
            _ if ends("npz") => Self::Archive,
            _ if ends("csv") => Self::Table(b','),
            _ if ends("tsv") || ends("tab") => Self::Table(b'\t'),
            #[cfg(feature = "arrow")]
            _ if ends("parquet") || ends("pq") => Self::Parquet,
            _ if ends("mtx") => Self::Matrix,
            _ => Self::Text,
        }
    }
}

impl Kind {
    /// Memory of the writer beyond that of a text writer, in bytes.
    fn writer_bytes(self) -> u64 {
        match self {
            #[cfg(feature = "arrow")]
            Self::Parquet => export_parquet::WRITER_BYTES,
            _ => 0,
        }
    }
}

/// The first lines of a Matrix Market file.
fn matrix_head(store: &Store) -> String {
    let (dims, nnz) = (store.dims(), store.nnz());
    format!("%%MatrixMarket matrix coordinate real general\n{} {} {nnz}\n", dims[0], dims[1])
}

impl Program for Export {
    fn common(&self) -> &Common {
        &self.common
    }

    fn run(&self, sys: &Sys) -> Result<Report> {
        check_tensor_name(&self.output)?;
        let kind = Kind::of(&self.output);
        if matches!(kind, Kind::Text) {
            check_text_name(&self.output, ", .csv, .tsv, .npz or .mtx")?;
        }
        let progress = Bar::new(self.common.quiet || self.common.json);
        let engine = host_engine(sys, self.common, self.memory, &progress)?;
        let store = engine.open(&self.store)?;
        let rows = match kind {
            Kind::Table(delimiter) => Some(TableRows::new(&store, Some(delimiter))),
            #[cfg(feature = "arrow")]
            Kind::Parquet => Some(TableRows::new(&store, None)),
            _ => None,
        };
        let held = rows.as_ref().map_or(0, TableRows::host_bytes) + kind.writer_bytes();
        let plan = engine.plan_stream(&store, [WRITER_BYTES + held, 0])?;
        let rows = rows.map(|rows| rows.load(&store)).transpose()?;
        if matches!(kind, Kind::Matrix) && store.dims().len() != 2 {
            let what = format!(
                "a Matrix Market file holds a matrix; {} is of order {}",
                self.store.display(),
                store.dims().len()
            );
            return Err(Error::request(format!("{}: {what}; write .csv or .tns", self.output.display())));
        }
        let pass = |op: &mut TileSink<'_>| engine.stream_by(&store, op, &plan, "exporting").map(drop);
        let write_text = |mut text: WriteText<'_, Box<dyn Write + '_>>| {
            engine.stream_by(&store, &mut text, &plan, "exporting")?;
            text.finish()
        };
        if self.output == Path::new("-") {
            refuse_json_beside_output(self.common)?;
            let out = std::io::stdout();
            engine.install(|| write_text(WriteText::new(Box::new(out), Path::new(STDOUT))))?;
            return Ok(Report::default());
        }
        let out = Pending::create(sys, &self.output, self.force)?;
        engine.install(|| {
            let file = || -> Box<dyn Write + '_> { Box::new(out.file()) };
            let head =
                |text: String| file().write_all(text.as_bytes()).map_err(Error::io(out.target(), "write"));
            match (kind, &rows) {
                (Kind::Archive, _) => write_arrays(&store, &out, &pass),
                #[cfg(feature = "arrow")]
                (Kind::Parquet, Some(rows)) => {
                    let mut writer = ParquetWriter::new(rows, out.file(), out.target())?;
                    pass(&mut EachTile(Box::new(|tile: &DecodedTile<'_>| writer.push(tile))))?;
                    writer.finish()
                }
                (Kind::Table(_), Some(rows)) => {
                    head(rows.header())?;
                    write_text(WriteText::with(
                        &|tile, text| rows.append_tile(tile, text),
                        file(),
                        out.target(),
                    ))
                }
                (Kind::Matrix, _) => {
                    head(matrix_head(&store))?;
                    write_text(WriteText::new(file(), out.target()))
                }
                _ => write_text(WriteText::new(file(), out.target())),
            }
        })?;
        progress.end();
        let bytes = out.file().metadata()?.len();
        out.publish()?;
        let report = ExportReport {
            store: self.store.clone(),
            digest: format!("{:016x}", store.id()),
            output: self.output.clone(),
            nnz: store.manifest().nnz,
            bytes,
        };
        let size = bytesize::ByteSize(bytes);
        let text = format!("{}: {}, {size}\n", self.output.display(), nonzeros(report.nnz));
        Report::new::<Self>(text, &report)
    }
}
