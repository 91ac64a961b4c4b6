//! Tensors that Python holds, as the packer takes them.

use crate::arrays::Coordinates;
use blco::{Batch, Error, Extent, Result, Shape, Size, Source, SourceMemory};
use crossbeam_channel::Receiver;
use rayon::prelude::*;

/// Nonzeros of a batch.
pub const BATCH_NNZ: usize = 1 << 16;
/// Modes at most.
const ORDER_MAX: usize = 8;
/// Bytes of a batch at most.
const BATCH_BYTES: u64 = (BATCH_NNZ * (4 * ORDER_MAX + 8)) as u64;
/// Batches that wait between who appends and the packer.
pub const WAITING: usize = 4;

/// A tensor in arrays. Batches are made by all threads of the current pool, some at a time.
pub struct ArraySource<'a> {
    tensor: Coordinates<'a>,
    /// What was said of the shape.
    dims: Option<Vec<u64>>,
    /// Once every index has been looked at.
    shape: Option<Shape>,
}

impl<'a> ArraySource<'a> {
    /// Without `dims` these follow from the largest indices.
    pub fn new(tensor: Coordinates<'a>, dims: Option<Vec<u64>>) -> Result<Self> {
        tensor.check()?;
        if tensor.nnz() == 0 {
            return Err(Error::input(tensor.name, "no nonzeros; a store holds at least one"));
        }
        Ok(Self { tensor, dims, shape: None })
    }

    /// The shape; looks at every index the first time.
    fn shape(&mut self) -> Result<&Shape> {
        if self.shape.is_none() {
            self.shape = Some(self.look()?);
        }
        Ok(self.shape.as_ref().expect("just made"))
    }

    fn look(&self) -> Result<Shape> {
        let Self { tensor, dims, .. } = self;
        let starts: Vec<usize> = (0..tensor.nnz()).step_by(BATCH_NNZ).collect();
        let end = |from: usize| (from + BATCH_NNZ).min(tensor.nnz());
        let larger = |mut a: Vec<u64>, b: Vec<u64>| {
            a.iter_mut().zip(b).for_each(|(a, b)| *a = b.max(*a));
            a
        };
        let met = starts.into_par_iter().map(|from| tensor.dims(from, end(from)));
        let met = met.try_reduce_with(|a, b| Ok(larger(a, b))).expect("there are nonzeros")?;
        let dims = match dims {
            Some(dims) if dims.len() != met.len() || met.iter().zip(dims).any(|(met, dim)| met > dim) => {
                let by = |dims: &[u64]| dims.iter().map(u64::to_string).collect::<Vec<_>>().join(" x ");
                let (met, dims) = (by(&met), by(dims));
                let what = format!("the indices need a shape of {met} or more; `shape` is {dims}");
                return Err(Error::input(tensor.name, what));
            }
            Some(dims) => dims.clone(),
            None => met,
        };
        Shape::new(&dims).map_err(|error| Error::input(tensor.name, error.to_string()))
    }
}

impl Source for ArraySource<'_> {
    fn name(&self) -> String {
        self.tensor.name.to_owned()
    }

    fn size(&self) -> Result<Option<Size>> {
        Ok(Some(Size { nnz: self.tensor.nnz() as u64, order: self.tensor.columns.len() }))
    }

    fn declared(&mut self) -> Result<Option<Shape>> {
        self.shape().cloned().map(Some)
    }

    fn memory(&self, threads: usize) -> SourceMemory {
        let bytes = threads as u64 * BATCH_BYTES;
        SourceMemory { least: bytes, most: bytes, help: "" }
    }

    fn drain(&mut self, sink: &mut dyn FnMut(Batch) -> Result<()>) -> Result<Extent> {
        let dims = self.shape()?.dims().iter().map(|&dim| dim.into()).collect();
        let nnz = self.tensor.nnz();
        let group = BATCH_NNZ * rayon::current_num_threads();
        for first in (0..nnz).step_by(group) {
            let starts: Vec<usize> = (first..nnz.min(first + group)).step_by(BATCH_NNZ).collect();
            let batch = |from: usize| self.tensor.batch(from, nnz.min(from + BATCH_NNZ));
            let batches: Vec<Batch> = starts.into_par_iter().map(batch).collect::<Result<_>>()?;
            batches.into_iter().try_for_each(&mut *sink)?;
        }
        Ok(Extent { dims, nnz: nnz as u64 })
    }
}

/// What somebody who appends sends to the packer.
pub enum Appended {
    Batch(Batch),
    /// All batches have been sent. Without it, what was sent is not a tensor.
    End,
}

/// A tensor that is appended batch by batch.
pub struct AppendedSource {
    pub received: Receiver<Appended>,
    pub shape: Option<Shape>,
}

impl Source for AppendedSource {
    fn name(&self) -> String {
        "what was appended".into()
    }

    fn declared(&mut self) -> Result<Option<Shape>> {
        Ok(self.shape.clone())
    }

    fn memory(&self, _threads: usize) -> SourceMemory {
        // Those that wait, the one that grows, and the one that is taken.
        let bytes = (WAITING as u64 + 2) * BATCH_BYTES;
        SourceMemory { least: bytes, most: bytes, help: "" }
    }

    fn drain(&mut self, sink: &mut dyn FnMut(Batch) -> Result<()>) -> Result<Extent> {
        let mut met: Vec<u64> = Vec::new();
        let mut nnz = 0;
        loop {
            match self.received.recv() {
                Ok(Appended::Batch(batch)) => {
                    nnz += batch.values.len() as u64;
                    met.resize(batch.order(), 0);
                    for row in batch.indices.chunks_exact(met.len()) {
                        met.iter_mut().zip(row).for_each(|(dim, &i)| *dim = (*dim).max(u64::from(i) + 1));
                    }
                    sink(batch)?;
                }
                Ok(Appended::End) if nnz == 0 => {
                    return Err(Error::input(self.name(), "no nonzeros; a store holds at least one"));
                }
                Ok(Appended::End) => break,
                Err(_) => return Err(Error::Cancelled),
            }
        }
        let dims =
            self.shape.as_ref().map_or(met, |shape| shape.dims().iter().map(|&dim| dim.into()).collect());
        Ok(Extent { dims, nnz })
    }
}
