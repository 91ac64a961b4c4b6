//! Factors and results where they lie: in host memory, or in a GPU's.

use super::{Matrix, MatrixRef};
use crate::error::{Error, Result};
use std::marker::PhantomData;

/// A row-major matrix in GPU memory that the caller holds, as `DLPack` or `__cuda_array_interface__` describes it. It
/// is checked when used: an error says if that GPU has no such memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMatrix<T> {
    device: usize,
    address: u64,
    rows: usize,
    columns: usize,
    element: PhantomData<T>,
}

impl<T> DeviceMatrix<T> {
    /// `rows` x `columns` elements, row after row, from `address` on in the memory of GPU `device`, from 0.
    #[must_use]
    pub fn at(device: usize, address: u64, rows: usize, columns: usize) -> Self {
        Self { device, address, rows, columns, element: PhantomData }
    }

    /// The GPU, from 0.
    #[must_use]
    pub fn device(&self) -> usize {
        self.device
    }

    /// The address of the first element.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Rows and columns.
    #[must_use]
    pub fn shape(&self) -> (usize, usize) {
        (self.rows, self.columns)
    }

    /// Its bytes, if there are no more than memory can have.
    #[must_use]
    pub fn bytes(&self) -> Option<usize> {
        self.rows.checked_mul(self.columns)?.checked_mul(size_of::<T>())
    }
}

/// A factor where it lies.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum FactorView<'a, T> {
    /// In host memory.
    Host(MatrixRef<'a, T>),
    /// In a GPU's memory.
    Device(DeviceMatrix<T>),
}

impl<'a, T: Copy> FactorView<'a, T> {
    /// Rows and columns.
    #[must_use]
    pub fn shape(&self) -> (usize, usize) {
        match self {
            Self::Host(matrix) => (matrix.rows(), matrix.columns()),
            Self::Device(matrix) => matrix.shape(),
        }
    }

    /// The matrix, if it lies in host memory.
    pub(crate) fn on_host(self) -> Result<MatrixRef<'a, T>> {
        match self {
            Self::Host(matrix) => Ok(matrix),
            Self::Device(_) => Err(in_device_memory()),
        }
    }
}

/// The error of an operation on the CPU whose matrix is in device memory.
pub(crate) fn in_device_memory() -> Error {
    Error::request("factors or results lie in a GPU's memory, and this runs on the CPU: take `Device::Cuda`")
}

impl<'a, T> From<MatrixRef<'a, T>> for FactorView<'a, T> {
    fn from(matrix: MatrixRef<'a, T>) -> Self {
        Self::Host(matrix)
    }
}

impl<'a, T: Copy> From<&MatrixRef<'a, T>> for FactorView<'a, T> {
    fn from(matrix: &MatrixRef<'a, T>) -> Self {
        Self::Host(*matrix)
    }
}

impl<'a, T> From<&'a Matrix<T>> for FactorView<'a, T> {
    fn from(matrix: &'a Matrix<T>) -> Self {
        Self::Host(matrix.into())
    }
}

impl<T> From<DeviceMatrix<T>> for FactorView<'_, T> {
    fn from(matrix: DeviceMatrix<T>) -> Self {
        Self::Device(matrix)
    }
}

impl<T: Copy> From<&Self> for FactorView<'_, T> {
    fn from(view: &Self) -> Self {
        *view
    }
}
