//! What every way to read a store makes of it: refused by all, or the same nonzeros to all.

use crate::common::{self, Tensor};
use crate::runner;
use blco::internals::backend::host::{HostBackend, HostOp};
use blco::internals::dense::{Matrix, seeded_factors};
use blco::internals::encoding::TILE_NNZ;
use blco::internals::error::{Error, Result};
use blco::internals::format::tree::Recent;
use blco::internals::format::{ChunkView, Decoder};
use blco::internals::op::oracle::{self, OracleMode};
use blco::internals::op::salvage::Salvage;
use blco::internals::op::verify;
use blco::internals::store::{Formats, Store};
use blco::internals::stream::{Executor, Limits, plan};
use blco::internals::sys::Sys;
use std::path::Path;

/// Columns of the factors.
const RANK: usize = 2;
/// Values beyond this can add up to more than numbers hold, which is told of other than by refusing a store.
const LARGE: f64 = 1e300;

/// Dims up to which factors and vectors are made: some of the specification's vectors have larger ones.
const DIM_MAX: u32 = 1 << 20;

/// What was made of a store.
#[derive(Debug)]
pub struct Judgement {
    /// The nonzeros of cover 0, or why every reader of it refuses the store.
    pub read: std::result::Result<Tensor, String>,
    /// Why readers of another cover refuse it, if they do.
    pub elsewhere: Option<String>,
    /// Why a verifier refuses it, if it does.
    pub unverified: Option<String>,
}

impl Judgement {
    /// The nonzeros of cover 0, or why a reader of all covers refuses the store.
    pub fn read_all(&self) -> std::result::Result<&Tensor, &String> {
        self.read.as_ref().and_then(|tensor| self.elsewhere.as_ref().map_or(Ok(tensor), Err))
    }
}

/// A disagreement.
pub type Held = std::result::Result<(), String>;

/// Reads the store at `dir` in every way that the host has. An error where they disagree.
pub fn judge(dir: &Path) -> std::result::Result<Judgement, String> {
    let sys = Sys::default();
    let opened = Store::open(&sys, dir);
    let Ok(store) = &opened else {
        // Chunks without a manifest are salvaged, or refused.
        drop(salvaged(&sys, dir));
        let why = opened.unwrap_err().to_string();
        return Ok(Judgement { read: Err(why.clone()), elsewhere: None, unverified: Some(why) });
    };
    let (whole, unverified) = (store.whole(), verify(store).err().map(|e| e.to_string()));
    let is_small = whole.shape.dims().iter().all(|&dim| dim <= DIM_MAX);
    let (mut all_read, mut all_intact) = (Vec::new(), Vec::new());
    for cover in 0..whole.covers() {
        let view = &store.view(&[cover]);
        let read = common::exported(view).map_err(|e| e.to_string());
        if let (Err(why), None) = (&read, &unverified) {
            return Err(format!("verified, where export of cover {cover} refuses: {why}"));
        }
        let tensor = read.as_ref().ok();
        let served = (0..whole.shape.order()).filter(|&mode| whole.cover_for(mode) == cover);
        let served: Vec<usize> = served.collect();
        if is_small && !served.is_empty() {
            alike("MTTKRP", &read, mttkrp(view, &served, tensor)?)?;
        }
        if is_small && cover == 0 {
            for mode in modes(view) {
                alike(&format!("TTV along mode {}", mode + 1), &read, ttv(view, mode, tensor)?)?;
            }
        }
        let (intact, lost) = intact(view);
        if tensor.is_some_and(|tensor| *tensor != intact) {
            return Err(format!("chunks of cover {cover} one by one hold other nonzeros than the store"));
        }
        all_read.push(read);
        all_intact.push((lost, intact));
    }
    // Salvage reads the cover that has lost the fewest nonzeros.
    let (_, intact) = all_intact.into_iter().min_by_key(|(lost, _)| *lost).expect("a cover");
    match salvaged(&sys, dir) {
        Ok(Some(found)) if found != intact => {
            return Err("salvages other nonzeros than those of intact chunks".into());
        }
        Err(e) if intact.nnz() > 0 => {
            return Err(format!("salvages nothing, where chunks are intact: {e}"));
        }
        _ => {}
    }
    let mut all_read = all_read.into_iter();
    let read = all_read.next().expect("a cover");
    Ok(Judgement { read, elsewhere: all_read.find_map(std::result::Result::err), unverified })
}

fn alike(what: &str, read: &std::result::Result<Tensor, String>, result: Result<()>) -> Held {
    match (read, result) {
        (Ok(_), Ok(())) | (Err(_), Err(_)) => Ok(()),
        (Ok(_), Err(e)) => Err(format!("{what} refuses what is exported: {e}")),
        (Err(e), Ok(())) => Err(format!("{what} takes what is not exported: {e}")),
    }
}

/// Modes along which TTV runs: that which streams, if one does, and one that does not.
pub fn modes(store: &Store) -> Vec<usize> {
    let levels = store.manifest().format().tree_levels();
    levels.map_or_else(|| vec![0], |levels| vec![levels.last(), levels.mode(0)])
}

fn pass<O: HostOp>(store: &Store, op: &mut O) -> Result<()> {
    let mut backend = HostBackend::new(store, op)?;
    let plan = plan(store, 0, &Limits { workers: Some(1), ..Limits::default() })?;
    Executor::new(store, &plan, &mut backend)?.pass(&mut backend, &|_| ()).map(drop)
}

fn verify(store: &Store) -> Result<()> {
    verify::verify(store, |part, op| pass(part, op))
}

/// The factors that a store is multiplied by.
pub fn factors(store: &Store) -> Vec<Matrix<f64>> {
    seeded_factors(store.sys(), &store.manifest().shape, RANK, 5).unwrap()
}

/// The vector for `mode`.
pub fn vector(store: &Store, mode: usize) -> Vec<f64> {
    runner::vector(store.manifest().shape.dims()[mode].into(), 5)
}

fn mttkrp(
    store: &Store,
    modes: &[usize],
    tensor: Option<&Tensor>,
) -> std::result::Result<Result<()>, String> {
    let factors = factors(store);
    match common::run(store, &factors, modes) {
        Ok(results) => {
            // Stores whose nonzeros are added up along trees have no such copies.
            let has_trees = store.whole().partitions.iter().any(|p| p.format.traversal().is_some());
            let again =
                if has_trees { Ok(results.clone()) } else { common::run_from_copies(store, &factors, modes) };
            let again = again.map_err(|e| format!("mode-sorted copies: {e}"))?;
            let mut all =
                results.iter().zip(&again).flat_map(|((_, a), (_, b))| a.data().iter().zip(b.data()));
            // Which of two NaNs comes out is the compiler's choice.
            if !all.all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()) {
                return Err("mode-sorted copies give other results than chunks".to_owned());
            }
            tensor.map_or(Ok(()), |tensor| check_mttkrp(tensor, &factors, &results)).map(Ok)
        }
        Err(e) => Ok(Err(e)),
    }
}

/// Holds results of MTTKRP of all modes against the definition.
pub fn check_mttkrp(tensor: &Tensor, factors: &[Matrix<f64>], results: &[(usize, Matrix<f64>)]) -> Held {
    check(tensor, results, "MTTKRP", |modes| oracle::mttkrp(&mut { tensor }, factors, modes))
}

/// Holds results of `what` against those that are `expected` of their modes.
pub fn check(
    tensor: &Tensor,
    results: &[(usize, Matrix<f64>)],
    what: &str,
    expected: impl FnOnce(&[usize]) -> Result<Vec<OracleMode>>,
) -> Held {
    if tensor.values.iter().any(|v| v.abs() > LARGE) {
        return Ok(());
    }
    let modes: Vec<usize> = results.iter().map(|(mode, _)| *mode).collect();
    let expected = expected(&modes).map_err(|e| e.to_string())?;
    for (expected, (mode, result)) in expected.iter().zip(results) {
        let comparison = expected.compare(result, tensor.order(), 1);
        if !comparison.holds {
            return Err(format!("{what} of mode {}: {:.2} of the bound", mode + 1, comparison.worst));
        }
    }
    Ok(())
}

fn ttv(store: &Store, mode: usize, tensor: Option<&Tensor>) -> std::result::Result<Result<()>, String> {
    let (x, mut found) = (vector(store, mode), Elements::default());
    let order = store.manifest().shape.order();
    let mut sink = |batches| {
        found.extend(runner::elements(batches, order));
        Ok(())
    };
    match runner::ttv(store, mode, &x, (1 << 30, Path::new("")), 1, &mut sink) {
        // The sum of an element.
        Err(Error::Request(what)) if what.contains("exceeds all numbers") => {
            Ok(tensor.map_or(Err(Error::Request(what)), |tensor| {
                assert!(tensor.values.iter().any(|v| v.abs() > LARGE), "small values add up to all too much");
                Ok(())
            }))
        }
        Err(e) => Ok(Err(e)),
        Ok(_) => tensor.map_or(Ok(()), |tensor| check_ttv(tensor, mode, &x, found)).map(Ok),
    }
}

/// Coordinates without the mode of the vector, and values.
pub type Elements = Vec<(Vec<u32>, f64)>;

/// Holds elements of TTV against the definition. A fiber that a tree has twice, which a verifier minds, gives two that are one together.
pub fn check_ttv(tensor: &Tensor, mode: usize, x: &[f64], mut found: Elements) -> Held {
    let place =
        |at: &mut dyn Iterator<Item = u32>| at.fold(0u128, |place, index| place << 16 | u128::from(index));
    let mut wanted: Vec<(u128, f64)> = tensor
        .rows()
        .map(|(row, value)| {
            let rest = row.iter().enumerate().filter(|(m, _)| *m != mode).map(|(_, &index)| index);
            (place(&mut rest.into_iter()), value * x[row[mode] as usize])
        })
        .collect();
    let mut found: Vec<(u128, f64)> =
        found.drain(..).map(|(at, value)| (place(&mut at.into_iter()), value)).collect();
    wanted.sort_by_key(|element| element.0);
    found.sort_by_key(|element| element.0);
    let same = |a: &(u128, f64), b: &(u128, f64)| a.0 == b.0;
    let mut sums = found.chunk_by(same);
    for products in wanted.chunk_by(same) {
        let Some(parts) = sums.next().filter(|parts| parts[0].0 == products[0].0) else {
            return Err(format!("TTV along mode {}: other elements", mode + 1));
        };
        let sum = |of: &[(u128, f64)]| of.iter().map(|(_, value)| value).sum::<f64>();
        let absolute: f64 = products.iter().map(|(_, value)| value.abs()).sum();
        // As many additions on both sides, in two orders; the products are the same.
        let added = products.len() + parts.len();
        let bound = absolute * f64::EPSILON / 2.0 * 2.0 * added as f64;
        let error = (sum(parts) - sum(products)).abs();
        if absolute <= LARGE && (error > bound || error.is_nan()) {
            return Err(format!("TTV along mode {}: {error:e} beside {bound:e}", mode + 1));
        }
    }
    if sums.next().is_none() {
        Ok(())
    } else {
        Err(format!("TTV along mode {}: too many elements", mode + 1))
    }
}

/// The nonzeros of all chunks that can be read, each by itself, and how many nonzeros the others have by the manifest.
fn intact(store: &Store) -> (Tensor, u64) {
    let shape = &store.manifest().shape;
    let mut all = Tensor { dims: shape.dims().iter().map(|&d| d.into()).collect(), ..Tensor::default() };
    let mut lost = 0;
    for (partition, chunks) in store.parts() {
        let decoder = Decoder::new(shape, &store.whole().partitions[partition].format);
        for number in chunks {
            let before = (all.indices.len(), all.values.len());
            if chunk(store, &decoder, number, &mut all).is_err() {
                all.indices.truncate(before.0);
                all.values.truncate(before.1);
                lost += store.manifest().chunks[number].nnz;
            }
        }
    }
    (all, lost)
}

fn chunk(store: &Store, decoder: &Decoder, number: usize, all: &mut Tensor) -> Result<()> {
    let mut buffer = store.sys().page_buf(store.chunk_buffer_bytes(number))?;
    let (header, _) = store.load(number, &mut buffer, &mut store.scratch()?)?;
    let image = &buffer[..header.image_bytes as usize];
    let view = ChunkView::open(decoder, &header, image, store.chunk_path(number))?;
    let order = all.order();
    let (mut indices, mut values) = (vec![0; order * TILE_NNZ], vec![0.0; TILE_NNZ]);
    let mut recent = Recent::default();
    for t in 0..view.tiles() {
        let tile = view.decode(t, &mut recent, &mut indices, &mut values)?;
        for i in 0..tile.nnz {
            all.indices.extend((0..order).map(|m| tile.column(m)[i]));
        }
        all.values.extend_from_slice(tile.values);
    }
    Ok(())
}

/// What salvage finds; `None` where chunks lie in other files than their own, of which it makes more than readers do.
fn salvaged(sys: &Sys, dir: &Path) -> Result<Option<Tensor>> {
    let mut salvage = Salvage::scan(sys, &Formats::default(), dir, 1 << 20, u64::MAX, &|_, _| ())?;
    let tensor = Tensor::read(&mut salvage)?;
    let inside = |row: &[u32]| row.iter().zip(&tensor.dims).all(|(&index, &dim)| u64::from(index) < dim);
    assert!(tensor.rows().all(|(row, value)| inside(row) && value.is_finite()));
    assert_eq!(salvage.findings().nnz, tensor.nnz() as u64);
    Ok(salvage.findings().misplaced.is_empty().then_some(tensor))
}
