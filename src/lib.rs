//! An out-of-core engine for sparse tensors. Text or a table is packed into a *store* of chunk files once. Operations stream the
//! chunks, on tensors larger than memory, on the CPU or an NVIDIA GPU.
//!
//! ```
//! use blco::{Cp, Engine, Matrix, Modes, PackOptions, ReadOptions};
//!
//! # fn main() -> blco::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let (text, store) = (dir.path().join("movies.tns"), dir.path().join("movies.blco"));
//! # std::fs::write(&text, "1 1 1 5\n2 1 3 3\n2 2 1 1\n3 2 2 4\n").unwrap();
//! let engine = Engine::new()?;
//! engine.pack(&mut engine.read_text(&text, ReadOptions::default())?, &PackOptions::new(store.clone()))?;
//!
//! let store = engine.open(&store)?;
//! let ones = |&dim: &u32| Matrix::from_rows(dim as usize, 8, vec![1.0; dim as usize * 8]);
//! let factors: Vec<Matrix<f64>> = store.dims().iter().map(ones).collect();
//! for (mode, sums) in engine.mttkrp(&store, &factors, Modes::All)? {
//!     println!("mode {mode}: {} x {}", sums.rows(), sums.columns());
//! }
//! let model = engine.cp_als::<f64>(&store, &Cp::rank(2))?;
//! println!("weights {:?}, fit {}", model.model.lambda.data(), model.fit());
//! # Ok(())
//! # }
//! ```
//!
//! # Where to look
//!
//! | to | use |
//! |---|---|
//! | choose device, threads and memory; cancel; follow progress | [`Engine::builder`], [`Engine::cancel_handle`], [`EngineBuilder::progress`]; separately for each caller: [`Engine::separate`] |
//! | pack text, or nonzeros from anywhere | [`Engine::read_text`], [`Source`]; [`Engine::pack`] with [`PackOptions`] |
//! | pack a table with labels | [`Engine::read_table`] with [`TableOptions`] gives a [`Table`], whose [`Table::labels`] go into [`PackOptions::labels`]; [`Store::labels`] |
//! | save the intact part of a damaged store | [`Engine::salvage`], which is a [`Source`] |
//! | write a store as text; check every byte of it | [`Engine::write_text`], [`Engine::verify`] |
//! | add a format of your own | [`ChunkFormat`], registered by [`EngineBuilder::format`] |
//! | describe a store; read its nonzeros | [`Store::summary`], [`Engine::inspect`], [`Engine::read`] |
//! | compute on a store | [`Engine::mttkrp`], [`Engine::ttv`], [`Engine::ttm`], [`Engine::ttmc`], [`Engine::norm`], [`Engine::inner`], [`Engine::cp_als`]; for an operation of your own, [`HostOp`] with [`Engine::stream`] |
//! | compute repeatedly | [`Engine::prepare_mttkrp`] and [`Engine::prepare_cp_als`], whose sessions keep chunks in host and GPU memory |
//! | compute from and into GPU memory | [`MttkrpSession::mttkrp_on_device`] with [`DeviceMatrix`] |
//! | get results that do not fit into memory | [`Engine::ttv`] and [`Engine::ttm_to`] deliver them in order, in pieces |
//! | know beforehand what an operation needs | [`Engine::plan_pack`] gives a [`PackPlan`]; [`Engine::plan_mttkrp`], [`Engine::plan_ttm`], [`Engine::plan_ttmc`], [`Engine::plan_norm`], [`Engine::plan_inner`] and [`Engine::plan_cp_als`] an [`ExecutionPlan`]: data |
//!
//! Modes and indices count from 0 in the library, and from 1 in text, messages and command lines. Matrices are row-major. Every
//! [`Error`] says where, what, and what to do.
//!
//! # Determinism
//!
//! A store's bytes depend only on the tensor and the options. On the CPU, results have the same bits for any number of threads, memory
//! and chunks; on a GPU if the engine is [deterministic](EngineBuilder::deterministic).
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `cuda`, on by default | the GPU backend. The driver is loaded at run time; building needs no toolkit |
//! | `cli`, on by default | the programs |
//! | `mpi` | programs that several processes run together; needs an installed MPI and libclang to build |
//!
//! # Inside
//!
//! `pack::pack` makes a store, and `stream::Executor::pass` runs over one. ARCHITECTURE.md in the repository explains the rest.

#![cfg_attr(
    not(feature = "internals"),
    allow(
        dead_code,
        unused_imports,
        clippy::unused_self,
        reason = "some is for tests and for programs alone"
    )
)]

/// What documents show in Rust compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../docs/guide/mttkrp.md")]
struct Documents;

#[cfg(not(target_endian = "little"))]
compile_error!("stores are little-endian and used as they lie; a big-endian port needs a swapping view");

mod backend;
mod chunk;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
mod coo;
mod decomp;
mod dense;
mod encoding;
mod engine;
mod error;
mod format;
mod linear;
mod members;
mod op;
mod pack;
mod publish;
mod random;
mod shape;
mod store;
mod stream;
mod sys;
mod table;

pub use backend::device::{DeviceOrder, Facts};
pub use backend::devices::{
    DevicePart, DevicesPass, DevicesPlan, Divide, Exchange, ExchangePlan, ModeDivision,
};
pub use backend::host::{HostOp, Tiles};
pub use backend::plan::{
    BuildPlan, DevicePlan, ImageSet, Images, LanesPlan, LinkPlan, ModePlan, Place, RangesPlan, Residence,
    Shortfall,
};
pub use chunk::{ChunkCodes, ChunkHeader, SectionKind, Version};
pub use coo::tns::{IndexBase, ReadOptions, TnsReader};
pub use coo::{Batch, Extent, Size, Source, SourceMemory};
pub use decomp::{Als, Decomposition, Iteration, Model, StartReport, Stop};
pub use dense::{DeviceMatrix, FactorView, Matrix, MatrixRef, Precision, Real};
pub use encoding::values::ValueEncoding;
pub use encoding::{IndexEncoding, LeafRule, TILE_NNZ};
pub use engine::{
    Cancel, Cp, CpSession, Device, DeviceSet, Engine, EngineBuilder, ExecutionPlan, ModeSortedPlan, Modes,
    MttkrpSession, Progress,
};
pub use error::{Damage, Error, Result};
pub use format::fcoo::FcooFor;
pub use format::mmcsf::Assign;
pub use format::{
    BuiltChunk, Checked, ChunkBuilder, ChunkDecoder, ChunkFormat, ChunkRanges, ChunkSink, ClosedChunk,
    DecodedTile, Decoder, Format, FormatRecord, Layout, Made, NonzeroView, SortedTile, TileWorker, Trees,
};
#[doc(hidden)]
pub use members::Links;
pub use op::inspect::{ModeStatistics, StoreStatistics};
pub use op::salvage::{Findings, Loss, MisplacedFile, Salvage, UnusedFile};
pub use op::ttm::Fibers;
pub use pack::{Duplicates, FormatOption, PackOptions, PackPlan, PackReport, PackSeconds, SpillReport};
pub use shape::{ModeOrder as LevelOrder, Shape};
pub use store::labels::{LabelKind, Labels, ModeInfo, ModesInfo, NewLabels};
pub use store::{Codec, Store, StoreSummary};
pub use stream::{DevicePass, PassReport, Plan, Span, Stage};
pub use sys::LargeBlocks;
pub use table::{
    Nulls, NumberBins, Table, TableMode, TableOptions, TimeBins, Treatment, csv::CsvOptions, parse_modes,
};

/// Everything, for tests and benchmarks. Not part of the interface.
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals {
    macro_rules! all_of {
        ($($name:ident)*) => { $(pub mod $name { pub use crate::$name::*; })* };
    }
    all_of! {
        backend chunk coo decomp dense encoding engine error format linear members op pack publish random shape store stream sys table
    }
}
