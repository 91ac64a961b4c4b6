//! NumPy files of two axes whose rows come piece by piece, and whose number of rows is known at the end.

use super::{Precision, Real};
use crate::error::Result;
use crate::sys::File;
use bytemuck::Pod;
use rayon::prelude::*;
use std::marker::PhantomData;

/// Bytes of the header, however many rows there are: a multiple of 64, as NumPy asks.
const HEADER_BYTES: usize = 128;

/// A number that such a file can hold.
pub trait Stored: Pod + Sync {
    /// NumPy's name of its type.
    const DESCR: &'static str;
}

impl Stored for u32 {
    const DESCR: &'static str = "<u4";
}

impl<T: Real> Stored for T {
    const DESCR: &'static str = match T::PRECISION {
        Precision::F64 => "<f8",
        Precision::F32 => "<f4",
    };
}

/// Writes the rows of a file.
#[derive(Debug)]
pub struct RowsFile<'a, N> {
    file: &'a File,
    columns: usize,
    rows: u64,
    numbers: PhantomData<N>,
}

impl<'a, N: Stored> RowsFile<'a, N> {
    /// Rows of `columns` numbers in `file`, which is empty.
    #[must_use]
    pub fn new(file: &'a File, columns: usize) -> Self {
        Self { file, columns, rows: 0, numbers: PhantomData }
    }

    /// Appends rows, each of `pieces` by any thread of the current pool.
    pub fn append(&mut self, pieces: &[&[N]]) -> Result<()> {
        let row_bytes = (self.columns * size_of::<N>()) as u64;
        let mut work = Vec::with_capacity(pieces.len());
        for piece in pieces {
            work.push((HEADER_BYTES as u64 + self.rows * row_bytes, piece));
            self.rows += (piece.len() / self.columns) as u64;
        }
        work.par_iter().try_for_each(|(at, piece)| self.file.write_all_at(bytemuck::cast_slice(piece), *at))
    }

    /// Writes the header.
    pub fn finish(self) -> Result<()> {
        self.file.write_all_at(&header(N::DESCR, self.rows, self.columns), 0)
    }
}

/// The header of an array of `rows` x `columns` numbers.
fn header(descr: &str, rows: u64, columns: usize) -> [u8; HEADER_BYTES] {
    let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
    let mut header = [b' '; HEADER_BYTES];
    header[..8].copy_from_slice(b"\x93NUMPY\x01\x00");
    #[expect(clippy::cast_possible_truncation, reason = "118")]
    header[8..10].copy_from_slice(&(HEADER_BYTES as u16 - 10).to_le_bytes());
    header[10..][..text.len()].copy_from_slice(text.as_bytes());
    header[HEADER_BYTES - 1] = b'\n';
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dense::Matrix;
    use crate::sys::Sys;

    #[test]
    fn what_came_in_pieces_is_read_as_a_matrix() {
        let (dir, sys) = (tempfile::tempdir().unwrap(), Sys::default());
        let path = dir.path().join("rows.npy");
        let file = sys.create(&path).unwrap();
        let mut rows = RowsFile::new(&file, 2);
        rows.append(&[&[1.0f64, 2.0], &[], &[3.0, 4.0, 5.0, 6.0]]).unwrap();
        rows.append(&[&[7.0, 8.0]]).unwrap();
        rows.finish().unwrap();
        let wanted = Matrix::from_rows(4, 2, (1..9).map(f64::from).collect());
        assert_eq!(Matrix::<f64>::load(&sys, &path, 4).unwrap(), wanted);
    }

    #[test]
    fn the_longest_header_fits() {
        let header = header("<f8", u64::MAX, usize::MAX);
        assert!(
            std::str::from_utf8(&header[10..]).unwrap().trim_end().ends_with("), }") && header[127] == b'\n'
        );
    }
}
