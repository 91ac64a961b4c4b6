//! The files of factors: what their headers say, and all of a model's at once.

use super::npy::Header;
use super::{BLOCK_BYTES, Matrix, Real};
use crate::error::{Error, Result};
use crate::publish;
use crate::shape::Shape;
use crate::sys::{Dir, File, FileState, Sys};
use npyz::WriterBuilder;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::Path;

/// A NumPy file whose header has been read, and its state before.
pub(super) struct NumpyFile {
    pub file: File,
    pub opened: FileState,
    pub header: Header,
}

impl NumpyFile {
    pub fn of(file: File) -> Result<Self> {
        let opened = file.state()?;
        let header = Header::read(&file)?;
        Ok(Self { file, opened, header })
    }

    /// How many numbers it holds by these axes, for which it must be long enough, and which must be of `rows` rows, or any number of them.
    pub fn elements(&self, [file_rows, columns]: [u64; 2], rows: Option<usize>) -> Result<usize> {
        let wrong = |what: String| Err(Error::input(self.file.path().display().to_string(), what));
        let length = self.file.metadata()?.len();
        let rows = rows.map_or(file_rows, |rows| rows as u64);
        if file_rows != rows || file_rows == 0 || columns == 0 {
            return wrong(format!("is {file_rows} x {columns}; this mode's factor is {rows} x rank"));
        }
        let room = length.saturating_sub(self.header.bytes as u64) / self.header.width as u64;
        let elements = file_rows.checked_mul(columns).filter(|&n| n <= room);
        match elements.and_then(|n| usize::try_from(n).ok()) {
            Some(elements) => Ok(elements),
            None => wrong(format!("is cut off: {length} bytes do not hold {file_rows} x {columns} numbers")),
        }
    }
}

/// A factor's file with its rows and columns.
pub(super) fn factor_of(file: File) -> Result<(NumpyFile, [u64; 2])> {
    let array = NumpyFile::of(file)?;
    let &[rows, columns] = &array.header.shape[..] else {
        let what = format!("has {} axes; a factor has 2: rows and rank", array.header.shape.len());
        return Err(Error::input(array.file.path().display().to_string(), what));
    };
    Ok((array, [rows, columns]))
}

/// Rows and columns of the factor in `file`, by its header, which must be that of a file of its length.
pub fn factor_axes(file: File) -> Result<[u64; 2]> {
    let (array, axes) = factor_of(file)?;
    array.elements(axes, None).map(|_| axes)
}

/// Opens the directory of the factors `mode-1.npy` … : all are of one result, whatever takes its place meanwhile.
fn open_factors(sys: &Sys, dir: &Path) -> Result<Dir> {
    publish::open(sys, dir).map_err(|e| e.about(&dir.join(mode_file(0))))
}

/// The ranks of the factors of `shape` in `dir`, by the headers alone; with `one`, all must have the same.
fn ranks_of(dir: &Dir, shape: &Shape, one: bool) -> Result<Vec<usize>> {
    let mut ranks = Vec::new();
    for (mode, &dim) in shape.dims().iter().enumerate() {
        let (array, axes) = factor_of(dir.file(&mode_file(mode), false)?)?;
        array.elements(axes, Some(dim as usize))?;
        let rank = usize::try_from(axes[1]).unwrap_or(usize::MAX);
        let first = *ranks.first().unwrap_or(&rank);
        if one && rank != first {
            let what = format!("has rank {rank}, {} has {first}", mode_file(0));
            return Err(Error::input(array.file.path().display().to_string(), what));
        }
        ranks.push(rank);
    }
    Ok(ranks)
}

/// The rank of the factors of `shape` that are `mode-1.npy` … in `dir`, by the headers alone: all must have one.
pub fn factors_rank(sys: &Sys, dir: &Path, shape: &Shape) -> Result<usize> {
    Ok(ranks_of(&open_factors(sys, dir)?, shape, true)?[0])
}

/// The rank of each of the factors of `shape` that are `mode-1.npy` … in `dir`, by the headers alone.
pub fn factors_ranks(sys: &Sys, dir: &Path, shape: &Shape) -> Result<Vec<usize>> {
    ranks_of(&open_factors(sys, dir)?, shape, false)
}

/// Writes a NumPy file of `rows` x `columns` numbers into `file`, which is empty, some rows at a time: `fill` gets their range and zeros in their
/// place.
pub fn write_blocks(
    sys: &Sys,
    file: &File,
    [rows, columns]: [usize; 2],
    fill: impl Fn(Range<usize>, &mut [f64]),
) -> Result<()> {
    let at_once = (BLOCK_BYTES / size_of::<f64>() / columns.max(1)).clamp(1, rows.max(1));
    let mut block = sys.vec(0.0, at_once * columns)?;
    let mut write = || -> std::io::Result<()> {
        let shape = [rows as u64, columns as u64];
        let mut out = BufWriter::with_capacity(BLOCK_BYTES, file);
        let mut writer =
            npyz::WriteOptions::new().default_dtype().shape(&shape).writer(&mut out).begin_nd()?;
        for first in (0..rows).step_by(at_once) {
            let some = first..rows.min(first + at_once);
            let block = &mut block[..some.len() * columns];
            block.fill(0.0);
            fill(some, block);
            writer.extend(block.iter().copied())?;
        }
        writer.finish()?;
        out.flush()
    };
    write().map_err(Error::io(file.path(), "write"))
}

/// The file name of the factor or result of `mode`, counted from 0.
#[must_use]
pub fn mode_file(mode: usize) -> String {
    format!("mode-{}.npy", mode + 1)
}

/// Loads `mode-1.npy` … from `dir`, all of one rank and of one result, whatever takes its place meanwhile.
pub fn load_factors<T: Real>(sys: &Sys, dir: &Path, shape: &Shape) -> Result<Vec<Matrix<T>>> {
    let dir = open_factors(sys, dir)?;
    let ranks = ranks_of(&dir, shape, true)?;
    load_all(sys, &dir, shape, &ranks)
}

/// Loads `mode-1.npy` … from `dir`, of these ranks and of one result, whatever takes its place meanwhile.
pub fn load_ranked_factors<T: Real>(
    sys: &Sys,
    dir: &Path,
    shape: &Shape,
    ranks: &[usize],
) -> Result<Vec<Matrix<T>>> {
    load_all(sys, &open_factors(sys, dir)?, shape, ranks)
}

fn load_all<T: Real>(sys: &Sys, dir: &Dir, shape: &Shape, ranks: &[usize]) -> Result<Vec<Matrix<T>>> {
    let load = |(mode, (&dim, &rank)): (usize, (&u32, &usize))| {
        Matrix::read_exact(sys, dir.file(&mode_file(mode), false)?, dim as usize, rank)
    };
    shape.dims().iter().zip(ranks).enumerate().map(load).collect()
}

/// Seeded factors for every mode.
pub fn seeded_factors<T: Real>(sys: &Sys, shape: &Shape, rank: usize, seed: u64) -> Result<Vec<Matrix<T>>> {
    let dims = shape.dims().iter().enumerate();
    dims.map(|(mode, &dim)| Matrix::seeded(sys, dim as usize, rank, mode, seed)).collect()
}
