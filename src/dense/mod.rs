//! Dense matrices: factors and results, and their NumPy files.

mod files;
mod lanes;
mod npy;
mod rows_file;
mod view;

pub use files::{
    factor_axes, factors_rank, factors_ranks, load_factors, load_ranked_factors, mode_file, seeded_factors,
    write_blocks,
};
pub use lanes::Lanes;
pub use rows_file::RowsFile;
pub(crate) use view::in_device_memory;
pub use view::{DeviceMatrix, FactorView};

use files::{NumpyFile, factor_of};

use crate::error::{Error, Result};
use crate::random::Counter;
use crate::sys::{File, Sys};
use npyz::WriterBuilder;
use serde::Serialize;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Bytes of a file that are read at once: a multiple of every number's width.
const BLOCK_BYTES: usize = 1 << 20;

/// The precision of factors and results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 64-bit floats.
    F64,
    /// 32-bit floats.
    F32,
}

impl Precision {
    /// What people and programs call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F64 => "f64",
            Self::F32 => "f32",
        }
    }
}

/// A number that factors hold: `f64` or `f32`.
pub trait Real:
    Lanes
    + Copy
    + Send
    + Sync
    + std::fmt::Debug
    + std::ops::Add<Output = Self>
    + std::ops::Mul<Output = Self>
    + PartialOrd
    + npyz::AutoSerialize
    + bytemuck::Pod
    + 'static
{
    /// Which of the two it is.
    const PRECISION: Precision;
    /// The unit roundoff: 2^-53 or 2^-24.
    const ROUNDOFF: f64;
    /// The least positive number, a subnormal one: 2^-1074 or 2^-149.
    const LEAST: f64;
    /// What counts as zero beside one. Products of several such numbers are not subnormal yet: five of f64, or two of f32.
    const TINY: f64;
    /// The nearest number of this type.
    fn nearest(x: f64) -> Self;
    /// The same number as f64.
    fn widen(self) -> f64;
    /// `out` as a matrix of this type, without a copy if the type is f64.
    fn from_f64s(out: Vec<f64>) -> Vec<Self>;
    /// `numbers` as f64 if that is their type; otherwise returns them as an error.
    fn as_f64s(numbers: &mut [Self]) -> std::result::Result<&mut [f64], &mut [Self]>;
}

impl Real for f64 {
    const PRECISION: Precision = Precision::F64;
    const ROUNDOFF: f64 = Self::EPSILON / 2.0;
    const LEAST: f64 = Self::from_bits(1);
    const TINY: f64 = 1e-60;
    #[inline(always)]
    fn nearest(x: f64) -> Self {
        x
    }
    #[inline(always)]
    fn widen(self) -> f64 {
        self
    }
    fn from_f64s(out: Vec<f64>) -> Vec<Self> {
        out
    }
    fn as_f64s(numbers: &mut [Self]) -> std::result::Result<&mut [f64], &mut [Self]> {
        Ok(numbers)
    }
}

impl Real for f32 {
    const PRECISION: Precision = Precision::F32;
    const ROUNDOFF: f64 = Self::EPSILON as f64 / 2.0;
    const LEAST: f64 = Self::from_bits(1) as f64;
    const TINY: f64 = 1e-18;
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "rounding is what the caller asks for")]
    fn nearest(x: f64) -> Self {
        x as Self
    }
    #[inline(always)]
    fn widen(self) -> f64 {
        self.into()
    }
    fn from_f64s(out: Vec<f64>) -> Vec<Self> {
        out.into_iter().map(Self::nearest).collect()
    }
    fn as_f64s(numbers: &mut [Self]) -> std::result::Result<&mut [f64], &mut [Self]> {
        Err(numbers)
    }
}

/// A row-major matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix<T> {
    rows: usize,
    columns: usize,
    data: Vec<T>,
}

/// A row-major matrix in the caller's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MatrixRef<'a, T> {
    rows: usize,
    columns: usize,
    data: &'a [T],
}

impl<'a, T> MatrixRef<'a, T> {
    /// `rows` x `columns` elements, row after row.
    ///
    /// # Panics
    /// If the number of elements differs.
    #[must_use]
    pub fn from_rows(rows: usize, columns: usize, data: &'a [T]) -> Self {
        assert_eq!(Some(data.len()), rows.checked_mul(columns), "elements of a {rows} x {columns} matrix");
        Self { rows, columns, data }
    }

    /// The number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of columns.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// All elements, row after row.
    #[must_use]
    pub fn data(&self) -> &'a [T] {
        self.data
    }

    /// Row `row`.
    #[must_use]
    pub fn row(&self, row: usize) -> &'a [T] {
        &self.data[row * self.columns..][..self.columns]
    }
}

impl<'a, T: Copy> From<&MatrixRef<'a, T>> for MatrixRef<'a, T> {
    fn from(matrix: &MatrixRef<'a, T>) -> Self {
        *matrix
    }
}

impl<'a, T> From<&'a Matrix<T>> for MatrixRef<'a, T> {
    fn from(matrix: &'a Matrix<T>) -> Self {
        Self { rows: matrix.rows, columns: matrix.columns, data: &matrix.data }
    }
}

impl<T: Real> Matrix<T> {
    /// A matrix of `rows` x `columns` from its elements, row after row.
    ///
    /// # Panics
    /// If the number of elements differs.
    #[must_use]
    pub fn from_rows(rows: usize, columns: usize, data: Vec<T>) -> Self {
        assert_eq!(Some(data.len()), rows.checked_mul(columns), "elements of a {rows} x {columns} matrix");
        Self { rows, columns, data }
    }

    /// The number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of columns.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// All elements, row after row.
    #[must_use]
    pub fn data(&self) -> &[T] {
        &self.data
    }

    /// All elements, row after row, to be changed.
    #[must_use]
    pub fn data_mut(&mut self) -> &mut [T] {
        &mut self.data
    }

    /// All elements, row after row, without a copy.
    #[must_use]
    pub fn into_vec(self) -> Vec<T> {
        self.data
    }

    /// Row `row`.
    #[must_use]
    pub fn row(&self, row: usize) -> &[T] {
        &self.data[row * self.columns..][..self.columns]
    }
}

#[doc(hidden)]
impl<T: Real> Matrix<T> {
    /// Writes a NumPy file of two axes into `file`, which is empty.
    pub fn write(&self, file: &File) -> Result<()> {
        self.write_as(&[self.rows as u64, self.columns as u64], file)
    }

    /// Writes a NumPy file of one axis, all elements row after row, into `file`, which is empty.
    pub fn write_vector(&self, file: &File) -> Result<()> {
        self.write_as(&[self.data.len() as u64], file)
    }

    fn write_as(&self, shape: &[u64], file: &File) -> Result<()> {
        let write = || -> std::io::Result<()> {
            let mut out = BufWriter::with_capacity(1 << 20, file);
            let mut writer =
                npyz::WriteOptions::new().default_dtype().shape(shape).writer(&mut out).begin_nd()?;
            writer.extend(self.data.iter().copied())?;
            writer.finish()?;
            out.flush()
        };
        write().map_err(Error::io(file.path(), "write"))
    }

    /// Reads a NumPy file of `f8` or `f4`, C or Fortran order, which must hold `rows` rows of numbers that are finite
    /// in `T`.
    pub fn load(sys: &Sys, path: &Path, rows: usize) -> Result<Self> {
        Self::read(sys, sys.open(path, false)?, Some(rows))
    }

    /// The same from an open file, with any number of rows or `rows`.
    pub fn read(sys: &Sys, file: File, rows: Option<usize>) -> Result<Self> {
        let (array, axes) = factor_of(file)?;
        Self::load_axes(sys, &array, axes, rows)
    }

    /// The same, which must have `columns` columns: no memory is taken for others.
    pub fn load_exact(sys: &Sys, path: &Path, rows: usize, columns: usize) -> Result<Self> {
        Self::read_exact(sys, sys.open(path, false)?, rows, columns)
    }

    /// The same from an open file.
    pub(super) fn read_exact(sys: &Sys, file: File, rows: usize, columns: usize) -> Result<Self> {
        let (array, axes) = factor_of(file)?;
        if axes[1] != columns as u64 {
            let what = format!("has {} columns, not {columns}", axes[1]);
            return Err(Error::unusable(array.file.path(), what));
        }
        Self::load_axes(sys, &array, axes, Some(rows))
    }

    /// Reads a NumPy file of one axis, which must hold `rows` numbers that are finite in `T`, as a matrix of one column.
    pub fn load_vector(sys: &Sys, path: &Path, rows: usize) -> Result<Self> {
        let wrong = |what: String| Error::input(path.display().to_string(), what);
        let array = NumpyFile::of(sys.open(path, false)?)?;
        let &[file_rows] = &array.header.shape[..] else {
            return Err(wrong(format!("has {} axes; a vector has 1", array.header.shape.len())));
        };
        if file_rows != rows as u64 {
            return Err(wrong(format!("has {file_rows} numbers; this mode has {rows} indices")));
        }
        Self::load_axes(sys, &array, [file_rows, 1], Some(rows))
    }

    /// Reads a NumPy file of one axis, or of rows x 1 numbers, that are finite in `T`, as a matrix of one column; more than `rows_max` are an
    /// error.
    pub fn read_column(sys: &Sys, file: File, rows_max: usize) -> Result<Self> {
        let array = NumpyFile::of(file)?;
        let wrong = |what: String| Err(Error::input(array.file.path().display().to_string(), what));
        let (&[rows] | &[rows, 1]) = &array.header.shape[..] else {
            let shape: Vec<String> = array.header.shape.iter().map(u64::to_string).collect();
            let what = format!("is {}; weights have one axis", shape.join(" x "));
            return wrong(what);
        };
        if rows > rows_max as u64 {
            return wrong(format!("has {rows} weights; factors of rank {rows_max} have {rows_max}"));
        }
        Self::load_axes(sys, &array, [rows, 1], None)
    }

    /// Reads the numbers behind the header, in `rows` rows or any number of them.
    fn load_axes(
        sys: &Sys,
        array: &NumpyFile,
        [file_rows, columns]: [u64; 2],
        rows: Option<usize>,
    ) -> Result<Self> {
        let NumpyFile { file, header, .. } = array;
        let wrong = |what: String| Error::input(file.path().display().to_string(), what);
        let elements = array.elements([file_rows, columns], rows)?;
        let mut data = sys.vec(T::nearest(0.0), elements)?;
        let narrow = |n: u64| usize::try_from(n).map_err(|e| wrong(e.to_string()));
        let (rows, columns) = (narrow(file_rows)?, narrow(columns)?);
        let slot = |i: usize| if header.fortran { i % rows * columns + i / rows } else { i };
        let mut block = vec![0; BLOCK_BYTES.min(elements * header.width)];
        for first in (0..elements).step_by(BLOCK_BYTES / header.width) {
            let bytes = ((elements - first) * header.width).min(BLOCK_BYTES);
            let read = file.read_at(&mut block[..bytes], (header.bytes + first * header.width) as u64)?;
            if read < bytes {
                return Err(wrong("is cut off while it is read".into()));
            }
            for (i, number) in block[..bytes].chunks_exact(header.width).enumerate() {
                let (slot, x) = (slot(first + i), header.number(number));
                data[slot] = T::nearest(x);
                if !data[slot].widen().is_finite() {
                    return Err(wrong(format!("holds {x:?} in row {}, which is not finite", slot / columns)));
                }
            }
        }
        file.check_unchanged(&array.opened)?;
        Ok(Self { rows, columns, data })
    }

    /// The seeded factor of `mode`: element (i, r) is number `i * rank + r` of stream `128 + mode`, in [0, 1)
    /// (see [`crate::random`]), rounded to `T`.
    pub fn seeded(sys: &Sys, rows: usize, rank: usize, mode: usize, seed: u64) -> Result<Self> {
        let stream = Counter::new(seed, 128 + mode as u64);
        let data = sys.par_vec(rows * rank, |i| T::nearest(stream.unit(i as u64)))?;
        Ok(Self { rows, columns: rank, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_round_trip_in_both_precisions() {
        let dir = tempfile::tempdir().unwrap();
        let sys = Sys::default();
        let matrix = Matrix::from_rows(2, 3, vec![1.0, 2.5, -0.0, 1e300, 5.0, 6.0]);
        let path = dir.path().join("m.npy");
        matrix.write(&sys.create(&path).unwrap()).unwrap();
        assert_eq!(Matrix::<f64>::load(&sys, &path, 2).unwrap(), matrix);
        let message = Matrix::<f64>::load(&sys, &path, 4).unwrap_err().to_string();
        assert!(message.contains("is 2 x 3; this mode's factor is 4 x rank"), "{message}");
        let single = Matrix::<f32>::from_rows(1, 2, vec![0.5, 3.0]);
        let path = dir.path().join("s.npy");
        single.write(&sys.create(&path).unwrap()).unwrap();
        assert_eq!(Matrix::<f32>::load(&sys, &path, 1).unwrap(), single);
        assert_eq!(Matrix::<f64>::load(&sys, &path, 1).unwrap().data(), [0.5, 3.0]);
    }

    #[test]
    fn weights_have_one_axis_and_may_have_had_two() {
        let dir = tempfile::tempdir().unwrap();
        let sys = Sys::default();
        let column = Matrix::from_rows(3, 1, vec![3.0, 2.0, 1.0]);
        let write = |name: &str, write: &dyn Fn(&File) -> Result<()>| {
            let path = dir.path().join(name);
            write(&sys.create(&path).unwrap()).unwrap();
            path
        };
        let one = write("one.npy", &|file| column.write_vector(file));
        assert!(String::from_utf8_lossy(&std::fs::read(&one).unwrap()[..128]).contains("'shape': (3, )"));
        for path in [one, write("two.npy", &|file| column.write(file))] {
            assert_eq!(Matrix::<f64>::read_column(&sys, sys.open(&path, false).unwrap(), 3).unwrap(), column);
        }
        let wide = write("wide.npy", &|file| Matrix::from_rows(1, 3, vec![1.0; 3]).write(file));
        let message =
            Matrix::<f64>::read_column(&sys, sys.open(&wide, false).unwrap(), 3).unwrap_err().to_string();
        assert!(message.ends_with("wide.npy: is 1 x 3; weights have one axis"), "{message}");
    }

    #[test]
    fn orders_and_widths_are_read_across_blocks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.npy");
        let (rows, columns) = (70_001, 3);
        let number = |row: usize, column: usize| (row * columns + column) as f64;
        let text = format!("{{'descr': '>f8', 'fortran_order': True, 'shape': ({rows}, {columns}), }}\n");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend(u16::try_from(text.len()).unwrap().to_le_bytes());
        bytes.extend(text.as_bytes());
        for column in 0..columns {
            bytes.extend((0..rows).flat_map(|row| number(row, column).to_be_bytes()));
        }
        std::fs::write(&path, &bytes).unwrap();
        let wanted: Vec<f64> = (0..rows * columns).map(|i| i as f64).collect();
        assert_eq!(Matrix::<f64>::load(&Sys::default(), &path, rows).unwrap().data(), wanted);
        bytes.pop();
        std::fs::write(&path, &bytes).unwrap();
        let message = Matrix::<f64>::load(&Sys::default(), &path, rows).unwrap_err().to_string();
        assert!(message.contains("is cut off"), "{message}");
    }

    /// Found by fuzzing: finite in the file, not in the matrix.
    #[test]
    fn numbers_that_f32_does_not_hold_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let sys = Sys::default();
        let path = dir.path().join("m.npy");
        Matrix::from_rows(1, 1, vec![1e300]).write(&sys.create(&path).unwrap()).unwrap();
        assert!(Matrix::<f64>::load(&sys, &path, 1).is_ok());
        assert!(Matrix::<f32>::load(&sys, &path, 1).unwrap_err().to_string().contains("1e300 in row 0"));
    }

    #[test]
    fn truncation_and_nan_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let sys = Sys::default();
        let path = dir.path().join("m.npy");
        Matrix::from_rows(2, 1, vec![1.0, f64::NAN]).write(&sys.create(&path).unwrap()).unwrap();
        assert!(Matrix::<f64>::load(&sys, &path, 2).unwrap_err().to_string().contains("NaN in row 1"));
        let bytes = std::fs::read(&path).unwrap();
        for length in 0..bytes.len() {
            std::fs::write(&path, &bytes[..length]).unwrap();
            assert!(Matrix::<f64>::load(&sys, &path, 2).is_err(), "{length} bytes");
        }
    }
}
