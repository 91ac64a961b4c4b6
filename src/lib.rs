//! An out-of-core engine for sparse tensors: coordinate text becomes a *store* of chunk files once, and operations on
//! every mode stream the chunks, on machines whose memory holds neither, on a GPU where there is one.
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
//! | to | there is |
//! |---|---|
//! | choose a device, threads, memory; stop what runs; see how far it is | [`Engine::builder`], [`Engine::cancel_handle`], [`EngineBuilder::progress`]; for each caller apart: [`Engine::separate`] |
//! | pack text, or a tensor from anywhere | [`Engine::read_text`], [`Source`]; [`Engine::pack`] with [`PackOptions`] |
//! | pack a table with labels | [`Engine::read_table`] with [`TableOptions`] gives a [`Table`], whose [`Table::labels`] go into [`PackOptions::labels`]; [`Store::labels`] |
//! | save what is intact of a damaged store | [`Engine::salvage`], a [`Source`] too |
//! | write it as text again, hold all of it against what packing makes | [`Engine::write_text`], [`Engine::verify`] |
//! | lay nonzeros out in a way of your own | [`ChunkFormat`], registered by [`EngineBuilder::format`] |
//! | look at a store, read its nonzeros | [`Store::summary`], [`Engine::inspect`], [`Engine::read`] |
//! | compute on a store | [`Engine::mttkrp`], [`Engine::ttv`], [`Engine::ttm`], [`Engine::ttmc`], [`Engine::norm`], [`Engine::inner`], [`Engine::cp_als`]; what you write yourself as a [`HostOp`]: [`Engine::stream`] |
//! | compute again and again | [`Engine::prepare_mttkrp`] and [`Engine::prepare_cp_als`], whose sessions keep the store's chunks in memory, the GPU's too |
//! | compute from factors in a GPU's memory, into it | [`MttkrpSession::mttkrp_on_device`] with [`DeviceMatrix`] |
//! | take results that memory does not hold | [`Engine::ttv`] and [`Engine::ttm_to`] hand them over in order, piece by piece |
//! | know beforehand what that takes | [`Engine::plan_pack`] gives a [`PackPlan`]; [`Engine::plan_mttkrp`], [`Engine::plan_ttm`], [`Engine::plan_ttmc`], [`Engine::plan_norm`], [`Engine::plan_inner`] and [`Engine::plan_cp_als`] an [`ExecutionPlan`]: data |
//!
//! Modes and indices count from 0 here, as in Rust; in files of text, in messages and in what the programs are told they count
//! from 1. Matrices are row-major. Every function that can fail gives an [`Error`] that says where, what, and what to do.
//!
//! # Determinism
//!
//! A store's bytes depend on the tensor and the options alone. On the CPU results have the same bits for any number of threads,
//! memory and chunks; on a GPU where the engine is [deterministic](EngineBuilder::deterministic).
//!
//! # Features
//!
//! | feature | brings |
//! |---|---|
//! | `cuda`, on by default | the GPU: the driver is loaded where there is one, nothing is needed to build |
//! | `cli`, on by default | the programs, and what terminals need |
//!
//! # Inside
//!
//! `pack::pack` makes a store, `stream::Executor::pass` runs over one; ARCHITECTURE.md in the repository has the rest.

#![cfg_attr(
    not(feature = "internals"),
    allow(
        dead_code,
        unused_imports,
        clippy::unused_self,
        reason = "some is for tests and for programs alone"
    )
)]

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
pub use backend::devices::{DevicePart, DevicesPass, DevicesPlan, Exchange, ExchangePlan};
pub use backend::host::{HostOp, Tiles};
pub use backend::plan::{
    BuildPlan, DevicePlan, ImageSet, Images, LanesPlan, LinkPlan, ModePlan, Place, Residence, Shortfall,
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
pub use op::inspect::{ModeStatistics, StoreStatistics};
pub use op::salvage::{Findings, Loss, MisplacedFile, Salvage, UnusedFile};
pub use op::ttm::Fibers;
pub use pack::{Duplicates, FormatOption, PackOptions, PackPlan, PackReport, PackSeconds, SpillReport};
pub use shape::{ModeOrder as LevelOrder, Shape};
pub use store::labels::{LabelKind, Labels, ModeInfo, ModesInfo, NewLabels};
pub use store::{Codec, Store, StoreSummary};
pub use stream::{DevicePass, PassReport, Plan, Span, Stage};
pub use table::{
    Nulls, NumberBins, Table, TableMode, TableOptions, TimeBins, Treatment, csv::CsvOptions, parse_modes,
};

/// Everything, as tests and benchmarks need it: no part of the interface.
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals {
    macro_rules! all_of {
        ($($name:ident)*) => { $(pub mod $name { pub use crate::$name::*; })* };
    }
    all_of! {
        backend chunk coo decomp dense encoding engine error format linear op pack publish random shape store stream sys table
    }
}
