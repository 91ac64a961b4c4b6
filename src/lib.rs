//! An out-of-core engine for sparse tensors: coordinate text becomes a *store* of chunk files once, and
//! operations on every mode stream the chunks, on machines whose memory holds neither.
//!
//! **Read first:** [`pack::pack`], which makes a store, and [`stream::Executor::pass`], which runs over one.
//!
//! ```text
//! pack    coo::Source -> runs (sort) -> combine (duplicates) -> cut (tiles, chunks) -> store::Staging
//! run     store::Store -> [ worker threads: read, verify, decode ] -> stream::Backend -> an operation in op
//! ```
//!
//! | module | what it is for |
//! |---|---|
//! | [`error`], [`shape`], [`random`], [`sys`] | one error type; dims; a counter-based generator; the seam to the system |
//! | [`publish`] | how stores, results, checkpoints and files get their names |
//! | [`dense`] | factors and results, NumPy files |
//! | [`coo`] | coordinate text, generated tensors |
//! | [`linear`] | the linear index and BLCO's re-encoding |
//! | [`encoding`] | packed columns, tiles, values |
//! | [`store`] | manifest, chunks, checksums |
//! | [`mod@format`] | BLCO and HOCFS chunk images: building them, checked views of them |
//! | [`pack`] | the packer |
//! | [`stream`] | the executor: plan, workers, passes |
//! | [`backend`] | where the work is done |
//! | [`op`] | MTTKRP, its oracle, TTV, inspection, verification, salvage |
//! | [`decomp`] | CP decompositions |
//! | [`cli`] | the programs |
//!
//! # Example
//!
//! ```
//! use blco::coo::generate::{GenerateSpec, Generator};
//! use blco::{backend::host::HostBackend, dense, op::mttkrp::Mttkrp, pack, store, stream, sys::Sys};
//!
//! # fn main() -> blco::error::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let target = dir.path().join("example.blco");
//! let sys = Sys::default();
//! let spec = GenerateSpec { dims: vec![40, 30, 20], nnz: 5000, ..GenerateSpec::default() };
//! let options = pack::PackOptions::new(target.clone());
//! pack::pack(&sys, &mut Generator::new(&sys, spec)?, &options, &|_, _, _| {})?;
//!
//! let store = store::Store::open(&sys, &target)?;
//! let factors = dense::seeded_factors::<f64>(&sys, &store.manifest().shape, 8, 0)?;
//! let mut mttkrp = Mttkrp::new(&sys, &factors, &[0, 1, 2], 2)?;
//! let mut backend = HostBackend::new(&store, &mut mttkrp)?;
//! let plan = stream::plan(&store, 0, &stream::Limits::default())?;
//! stream::Executor::new(&store, &plan, &mut backend)?.pass(&mut backend, &|_| {})?;
//! for (mode, result) in mttkrp.finish() {
//!     println!("mode {}: {} x {}", mode + 1, result.rows(), result.columns());
//! }
//! # Ok(())
//! # }
//! ```

#[cfg(not(target_endian = "little"))]
compile_error!("stores are little-endian and used as they lie; a big-endian port needs a swapping view");

pub mod backend;
pub mod cli;
pub mod coo;
pub mod decomp;
pub mod dense;
pub mod encoding;
pub mod error;
pub mod format;
pub mod linear;
pub mod op;
pub mod pack;
pub mod publish;
pub mod random;
pub mod shape;
pub mod store;
pub mod stream;
pub mod sys;
