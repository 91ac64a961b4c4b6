//! NumPy arrays as columns of indices, values and factors, without copies, and the engine's memory as NumPy arrays.

use blco::{Batch, DeviceMatrix, Error, FactorView, Matrix, MatrixRef, Real, Result};
use numpy::ndarray::{Array1, Array2, ArrayView1};
use numpy::{IntoPyArray, PyArray1, PyArray2, PyReadonlyArray1, PyReadonlyArray2};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

/// Integers of every width, and what they are called in messages of NumPy.
macro_rules! columns {
    ($($variant:ident $type:ty),*) => {
        /// The indices of a mode, held for Python.
        pub enum PyColumn<'py> { $($variant(PyReadonlyArray1<'py, $type>)),* }

        /// The same as the engine's threads read them.
        #[derive(Clone, Copy)]
        pub enum Column<'a> { $($variant(ArrayView1<'a, $type>)),* }

        impl<'py> PyColumn<'py> {
            /// An array of one axis and integers.
            pub fn of(array: &Bound<'py, PyAny>) -> PyResult<Self> {
                $(if let Ok(column) = array.extract() { return Ok(Self::$variant(column)); })*
                Err(PyTypeError::new_err("indices are NumPy arrays of one axis and integers"))
            }

            pub fn view(&self) -> Column<'_> {
                match self { $(Self::$variant(column) => Column::$variant(column.as_array())),* }
            }
        }

        impl Column<'_> {
            pub fn len(&self) -> usize {
                match self { $(Self::$variant(column) => column.len()),* }
            }

            /// The least and the largest of `from..to`; of indices that do not fit an `i128` there are none.
            fn range(&self, from: usize, to: usize) -> (i128, i128) {
                match self { $(Self::$variant(column) => {
                    let part = column.slice(numpy::ndarray::s![from..to]);
                    let first = part[0];
                    let (low, high) = part.iter().fold((first, first), |(low, high), &x| (low.min(x), high.max(x)));
                    (low.into(), high.into())
                }),* }
            }

            /// Puts `from..`, less `base`, into every `order`-th number of `out`. They have been found to fit.
            #[expect(
                clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_lossless,
                reason = "the range has been looked at; wrapping arithmetic gives the right 32 bits in any width"
            )]
            fn put(&self, from: usize, base: u32, order: usize, out: &mut [u32]) {
                match self { $(Self::$variant(column) => {
                    let nnz = out.len().div_ceil(order);
                    let part = column.slice(numpy::ndarray::s![from..from + nnz]);
                    for (to, &x) in out.iter_mut().step_by(order).zip(part) {
                        *to = (x as u32).wrapping_sub(base);
                    }
                }),* }
            }
        }
    };
}

columns!(I64 i64, I32 i32, U32 u32, U64 u64, I16 i16, U16 u16, I8 i8, U8 u8);

/// Values, held for Python.
pub enum PyValues<'py> {
    F64(PyReadonlyArray1<'py, f64>),
    F32(PyReadonlyArray1<'py, f32>),
    I64(PyReadonlyArray1<'py, i64>),
    I32(PyReadonlyArray1<'py, i32>),
}

/// The same as the engine's threads read them.
#[derive(Clone, Copy)]
pub enum Values<'a> {
    F64(ArrayView1<'a, f64>),
    F32(ArrayView1<'a, f32>),
    I64(ArrayView1<'a, i64>),
    I32(ArrayView1<'a, i32>),
}

impl<'py> PyValues<'py> {
    pub fn of(array: &Bound<'py, PyAny>) -> PyResult<Self> {
        let found = array.extract().map(Self::F64);
        let found = found.or_else(|_| array.extract().map(Self::F32));
        let found = found.or_else(|_| array.extract().map(Self::I64));
        let found = found.or_else(|_| array.extract().map(Self::I32));
        let what = "values are a NumPy array of one axis of float64, float32, int64 or int32";
        found.map_err(|_: PyErr| PyTypeError::new_err(what))
    }

    pub fn view(&self) -> Values<'_> {
        match self {
            Self::F64(values) => Values::F64(values.as_array()),
            Self::F32(values) => Values::F32(values.as_array()),
            Self::I64(values) => Values::I64(values.as_array()),
            Self::I32(values) => Values::I32(values.as_array()),
        }
    }
}

impl Values<'_> {
    pub fn len(&self) -> usize {
        match self {
            Self::F64(values) => values.len(),
            Self::F32(values) => values.len(),
            Self::I64(values) => values.len(),
            Self::I32(values) => values.len(),
        }
    }

    /// `from..to`. Integers that f64 does not hold are an error, as in text.
    fn part(&self, from: usize, to: usize) -> std::result::Result<Vec<f64>, (usize, i64)> {
        use numpy::ndarray::s;
        match self {
            Self::F64(values) => Ok(values.slice(s![from..to]).to_vec()),
            Self::F32(values) => Ok(values.slice(s![from..to]).iter().map(|&x| x.into()).collect()),
            Self::I32(values) => Ok(values.slice(s![from..to]).iter().map(|&x| x.into()).collect()),
            Self::I64(values) => {
                let exact = |(i, &x): (usize, &i64)| {
                    let near = x as f64;
                    #[expect(clippy::cast_possible_truncation, reason = "it has no digits behind the point")]
                    if near as i128 == i128::from(x) { Ok(near) } else { Err((from + i, x)) }
                };
                values.slice(s![from..to]).iter().enumerate().map(exact).collect()
            }
        }
    }
}

/// A tensor in coordinate form in somebody else's memory.
#[derive(Clone)]
pub struct Coordinates<'a> {
    /// Of each mode.
    pub columns: Vec<Column<'a>>,
    pub values: Values<'a>,
    /// What indices count from.
    pub base: u32,
    /// What messages call it.
    pub name: &'a str,
}

impl Coordinates<'_> {
    pub fn nnz(&self) -> usize {
        self.values.len()
    }

    /// An error unless every column is as long as the values.
    pub fn check(&self) -> Result<()> {
        let nnz = self.nnz();
        match self.columns.iter().position(|column| column.len() != nnz) {
            Some(mode) => {
                let what =
                    format!("{} indices of mode {} and {nnz} values", self.columns[mode].len(), mode + 1);
                Err(Error::input(self.name, what))
            }
            None => Ok(()),
        }
    }

    /// The dims that hold nonzeros `from..to`, of which there are some: the largest index of each mode, plus one.
    pub fn dims(&self, from: usize, to: usize) -> Result<Vec<u64>> {
        let dim = |(mode, column): (usize, &Column<'_>)| {
            let (low, high) = column.range(from, to);
            let base = i128::from(self.base);
            let dim = u64::try_from(high - base + 1).unwrap_or(u64::MAX);
            let limit = u64::from(u32::MAX);
            if low >= base && dim <= limit {
                return Ok(dim);
            }
            let wrong = if low < base { low } else { high };
            let what = format!(
                "index {wrong} of mode {}: indices are {base} to {}",
                mode + 1,
                u64::from(u32::MAX) - 1 + u64::from(self.base)
            );
            Err(Error::input(self.name, what))
        };
        self.columns.iter().enumerate().map(dim).collect()
    }

    /// Nonzeros `from..to` as a batch. Their indices have been found to be within [`Coordinates::dims`].
    pub fn batch(&self, from: usize, to: usize) -> Result<Batch> {
        let order = self.columns.len();
        let mut indices = vec![0; (to - from) * order];
        for (mode, column) in self.columns.iter().enumerate() {
            column.put(from, self.base, order, &mut indices[mode..]);
        }
        let values = self.values.part(from, to).map_err(|(at, value)| {
            let what = format!("the value {value} of nonzero {at} has no f64; give floats");
            Error::input(self.name, what)
        })?;
        Ok(Batch { indices, values })
    }
}

/// A matrix, held for Python: an array, or memory of a GPU.
enum PyMatrix<'py, T: numpy::Element> {
    Host(PyReadonlyArray2<'py, T>),
    Device(DeviceMatrix<T>),
}

/// Where a GPU's memory holds a matrix: the GPU, the address, rows and columns.
pub type DeviceAt = (usize, u64, usize, usize);

/// The same for the engine.
pub fn device_matrix<T>((device, address, rows, columns): DeviceAt) -> DeviceMatrix<T> {
    DeviceMatrix::at(device, address, rows, columns)
}

/// Factors, held for Python.
pub struct PyFactors<'py, T: numpy::Element>(Vec<PyMatrix<'py, T>>);

impl<'py, T: Real + numpy::Element> PyFactors<'py, T> {
    /// Each is an array of two axes, or a [`DeviceAt`].
    pub fn of(factors: &[Bound<'py, PyAny>]) -> PyResult<Self> {
        let one = |factor: &Bound<'py, PyAny>| match factor.extract::<DeviceAt>() {
            Ok(at) => Ok(PyMatrix::Device(device_matrix(at))),
            Err(_) => factor.extract().map(PyMatrix::Host).map_err(|_| {
                PyTypeError::new_err(
                    "factors and matrices are NumPy arrays of two axes, all of float64 or all of float32",
                )
            }),
        };
        factors.iter().map(one).collect::<PyResult<_>>().map(Self)
    }

    /// Their memory; arrays must be C-contiguous.
    pub fn views(&self) -> PyResult<Vec<FactorView<'_, T>>> {
        self.0.iter().map(PyMatrix::view).collect()
    }

    /// The same where all of it is arrays.
    pub fn on_host(&self) -> PyResult<Vec<MatrixRef<'_, T>>> {
        let on_host = |view| match view {
            FactorView::Host(matrix) => Ok(matrix),
            _ => Err(PyTypeError::new_err("this takes NumPy arrays; GPU arrays are for MTTKRP")),
        };
        self.views()?.into_iter().map(on_host).collect()
    }
}

impl<T: Real + numpy::Element> PyMatrix<'_, T> {
    fn view(&self) -> PyResult<FactorView<'_, T>> {
        match self {
            Self::Host(array) => Ok(FactorView::Host(matrix(array)?)),
            Self::Device(matrix) => Ok(FactorView::Device(*matrix)),
        }
    }
}

/// The memory of an array, which must be C-contiguous.
fn matrix<'a, T: Real + numpy::Element>(factor: &'a PyReadonlyArray2<'_, T>) -> PyResult<MatrixRef<'a, T>> {
    let (rows, columns) = factor.as_array().dim();
    let what = "factors are C-contiguous; take numpy.ascontiguousarray";
    let data = factor.as_slice().map_err(|_| PyTypeError::new_err(what))?;
    Ok(MatrixRef::from_rows(rows, columns, data))
}

/// A matrix as an array, without a copy.
pub fn array2<T: Real + numpy::Element>(py: Python<'_>, matrix: Matrix<T>) -> Bound<'_, PyArray2<T>> {
    let axes = (matrix.rows(), matrix.columns());
    let array = Array2::from_shape_vec(axes, matrix.into_vec()).expect("rows x columns numbers");
    array.into_pyarray(py)
}

/// Indices (nonzeros x modes) and values.
pub type Arrays<'py> = (Bound<'py, PyArray2<u32>>, Bound<'py, PyArray1<f64>>);

/// A batch as arrays, without a copy.
pub fn batch_arrays(py: Python<'_>, batch: Batch, order: usize) -> Arrays<'_> {
    let indices = Array2::from_shape_vec((batch.values.len(), order), batch.indices);
    let indices = indices.expect("order indices of each nonzero").into_pyarray(py);
    (indices, Array1::from_vec(batch.values).into_pyarray(py))
}

/// Fibers as arrays, without a copy: indices of all modes but one, and a row of numbers for each.
pub fn fiber_arrays<T: Real + numpy::Element>(
    py: Python<'_>,
    fibers: blco::Fibers<T>,
    order: usize,
    rank: usize,
) -> FiberArrays<'_, T> {
    let count = fibers.values.len() / rank.max(1);
    let indices = Array2::from_shape_vec((count, order - 1), fibers.coordinates);
    let rows = Array2::from_shape_vec((count, rank), fibers.values);
    (
        indices.expect("an index of each mode but one").into_pyarray(py),
        rows.expect("rank numbers of each fiber").into_pyarray(py),
    )
}

/// Indices (fibers x modes) and rows (fibers x rank).
pub type FiberArrays<'py, T> = (Bound<'py, PyArray2<u32>>, Bound<'py, PyArray2<T>>);
