//! TTV along the leaves' mode of a tree: fiber after fiber, elements out in order.

use super::outlet::{Ends, Outlet, TASK_TILES};
use super::{Sink, fibers_max};
use crate::backend::host::{Batch as Tiles, HostOp};
use crate::dense::Real;
use crate::encoding::TILE_NNZ;
use crate::error::{Error, Result};
use crate::format::ChunkView;
use crate::format::tree::{Leaves, Nodes, TreeView};
use crate::store::{Format, Manifest, Store};
use rayon::prelude::*;
use std::time::Instant;

/// Padding adds nothing: x + -0.0 is x for every x.
const NOTHING: f64 = -0.0;

/// The operation.
pub struct Streamed<'a, 's, T> {
    vector: &'a [T],
    simd: pulp::Arch,
    /// Sums of a chunk's fibers.
    sums: Vec<f64>,
    outlet: Outlet<'s>,
    /// Seconds of computing and of handing over, for each chunk.
    steps: Vec<[f64; 2]>,
}

/// Bytes that it holds for a store, the vector included.
#[must_use]
pub fn host_bytes<T: Real>(manifest: &Manifest, mode: usize) -> u64 {
    // A chunk's sums, and its elements as they are handed over.
    let elements = fibers_max(manifest) * (2 * 8 + 4 * (manifest.shape.order() as u64 - 1));
    u64::from(manifest.shape.dims()[mode]) * size_of::<T>() as u64 + elements
}

impl<'a, 's, T: Real> Streamed<'a, 's, T> {
    /// TTV of `store`, whose leaves' mode has as many indices as `vector` elements. Elements go to `sink`; without one
    /// they are counted.
    pub fn new(store: &Store, vector: &'a [T], sink: Option<Sink<'s>>) -> Result<Self> {
        let (sys, manifest) = (store.sys(), store.manifest());
        let Format::Hocfs { levels, .. } = manifest.format else {
            return Err(Error::request("elements stream out of hocfs stores alone"));
        };
        Ok(Self {
            vector,
            simd: pulp::Arch::new(),
            sums: sys.vec(0.0, usize::try_from(fibers_max(manifest)).unwrap_or(usize::MAX))?,
            outlet: Outlet::new(&levels, sink),
            steps: sys.vec([0.0; 2], 0)?,
        })
    }

    /// Forgets what came out, for another pass, of which elements are handed over where it is the `last`.
    pub fn reset(&mut self, last: bool) {
        self.outlet.reset(last);
        self.steps.clear();
    }

    /// Hands over the last element. The number of all of them, and the seconds of each chunk's computing and handing
    /// over.
    pub fn finish(&mut self) -> Result<(u64, Vec<[f64; 2]>)> {
        Ok((self.outlet.finish::<T>()?, std::mem::take(&mut self.steps)))
    }

    /// The sums of all fibers of a chunk, the first of which goes on with what is carried.
    fn compute(&mut self, view: &TreeView<'_>, ends: &Ends) -> Result<()> {
        let before = self.outlet.carried(ends).unwrap_or(NOTHING);
        let fibers = ends.fibers;
        let Self { vector, simd, sums, .. } = self;
        let tasks = sums[..fibers].par_chunks_mut(TASK_TILES * TILE_NNZ).enumerate();
        tasks.try_for_each(|(task, sums)| {
            let before = if task == 0 { before } else { NOTHING };
            simd.dispatch(AddFibers { view, first_tile: task * TASK_TILES, vector, before, sums })
        })
    }
}

impl<T: Real> HostOp for Streamed<'_, '_, T> {
    fn chunk(&mut self, chunk: &ChunkView<'_>) -> Result<()> {
        let ChunkView::Tree(view) = chunk else {
            return Err(Error::request("elements stream out of trees alone"));
        };
        let start = Instant::now();
        let ends = Ends::of(view)?;
        self.compute(view, &ends)?;
        let computed = start.elapsed();
        self.outlet.put::<T, f64>(&ends, Some(view), &self.sums[..ends.fibers])?;
        self.steps.push([computed, start.elapsed().saturating_sub(computed)].map(|step| step.as_secs_f64()));
        Ok(())
    }

    fn takes_tiles(&self) -> bool {
        false
    }

    fn batch(&mut self, _: &Tiles<'_>) -> Result<()> {
        Ok(())
    }
}

/// The products of a tile of leaves; padding gives [`NOTHING`].
#[inline(always)]
fn multiply<T: Real>(leaves: &mut Leaves, vector: &[T]) {
    let Leaves { indices, values, padded, .. } = leaves;
    if *padded {
        for (value, &index) in values.iter_mut().zip(&*indices) {
            *value = match vector.get(index as usize) {
                Some(&x) => (T::nearest(*value) * x).widen(),
                None => NOTHING,
            };
        }
        return;
    }
    // First some elements, then their products: these are made a vector at a time.
    let (values, _) = values.as_chunks_mut::<GATHERED>();
    for (values, indices) in values.iter_mut().zip(indices.as_chunks::<GATHERED>().0) {
        let elements = indices.map(|index| vector[index as usize]);
        for (value, x) in values.iter_mut().zip(elements) {
            *value = (T::nearest(*value) * x).widen();
        }
    }
}

/// Adds up the fibers of tile `first_tile` and on into `sums`; the first one's sum begins with `before`.
struct AddFibers<'a, T> {
    view: &'a TreeView<'a>,
    first_tile: usize,
    vector: &'a [T],
    before: f64,
    sums: &'a mut [f64],
}

/// Compiled for the vectors that the machine has. (A closure that is called once by way of a shim would not be: what it
/// calls is inlined into the shim, and that not into what `pulp` compiles.)
impl<T: Real> pulp::WithSimd for AddFibers<'_, T> {
    type Output = Result<()>;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) -> Result<()> {
        let Self { view, first_tile, vector, mut before, sums } = self;
        let (mut nodes, mut leaves) = (Nodes::default(), Leaves::default());
        // The products that are there: those of slots `at` to `at` + 512.
        let mut at = usize::MAX;
        for (tile, sums) in (first_tile..).zip(sums.chunks_mut(TILE_NNZ)) {
            view.starts(view.order() - 2, tile, &mut nodes)?;
            let mut fiber = 0;
            while fiber < sums.len() {
                let inside =
                    add_inside(&leaves.values, at, &nodes.starts[fiber..], &mut sums[fiber..], &mut before);
                fiber += inside;
                if fiber == sums.len() {
                    break;
                }
                // The next fiber goes on in another tile of leaves, or begins there.
                let (mut slot, end) = (nodes.starts[fiber] as usize, nodes.starts[fiber + 1] as usize);
                let mut total = std::mem::replace(&mut before, NOTHING);
                while slot < end {
                    if at != slot / TILE_NNZ * TILE_NNZ {
                        at = slot / TILE_NNZ * TILE_NNZ;
                        view.leaves(at / TILE_NNZ, &mut leaves)?;
                        multiply(&mut leaves, vector);
                    }
                    let stop = end.min(at + TILE_NNZ);
                    let products = &leaves.values[slot - at..stop - at];
                    total = products.iter().fold(total, |total, product| total + product);
                    slot = stop;
                }
                sums[fiber] = total;
                fiber += 1;
            }
        }
        Ok(())
    }
}

/// Elements of the vector that are looked up before they are multiplied.
const GATHERED: usize = 16;
/// Products of a fiber that are added in rounds over all fibers; the rest fiber by fiber.
const ROUNDS: usize = 4;
/// Long fibers that are added up side by side: one addition would wait for the one before.
const ABREAST: usize = 4;

/// Adds up the first fibers, as far as they lie among the `products` of slots `at` and on; how many do.
///
/// In rounds: the first products of all fibers, then the second ones of those that have two, and so on. Most fibers are short, of
/// lengths that no processor guesses: nothing branches on them, and sums of different fibers do not wait for each other. Each fiber is
/// added up in order all the same.
#[inline(always)]
fn add_inside(
    products: &[f64; TILE_NNZ],
    at: usize,
    starts: &[u32],
    sums: &mut [f64],
    before: &mut f64,
) -> usize {
    let Ok(at) = u32::try_from(at) else { return 0 };
    let slot = |start: u32| start.wrapping_sub(at) as usize;
    if slot(starts[0]) >= TILE_NNZ {
        return 0;
    }
    let fibers = starts[1..=sums.len()].partition_point(|&end| slot(end) <= TILE_NNZ);
    let (starts, sums) = (&starts[..=fibers], &mut sums[..fibers]);
    // `at` begins a tile. Remainders stand for checks: all places are inside.
    let product = |start: u32, k: usize| products[(start as usize + k) % TILE_NNZ];
    let (mut longer, mut count) = ([0u16; TILE_NNZ], 0);
    for ((fiber, sum), bounds) in (0u16..).zip(&mut *sums).zip(starts.windows(2)) {
        *sum = product(bounds[0], 0);
        longer[count % TILE_NNZ] = fiber;
        count += usize::from(bounds[1] - bounds[0] > 1);
    }
    if let Some(first) = sums.first_mut() {
        *first += std::mem::replace(before, NOTHING);
    }
    for done in 1..ROUNDS {
        let round = count;
        count = 0;
        for i in 0..round {
            let fiber = longer[i % TILE_NNZ];
            let bounds = &starts[usize::from(fiber)..][..2];
            sums[usize::from(fiber)] += product(bounds[0], done);
            longer[count % TILE_NNZ] = fiber;
            count += usize::from((bounds[1] - bounds[0]) as usize > done + 1);
        }
    }
    for group in longer[..count].chunks(ABREAST) {
        add_abreast(products, starts, sums, group);
    }
    fibers
}

/// Adds all products but the first [`ROUNDS`] of at most [`ABREAST`] fibers that have more.
#[inline(always)]
fn add_abreast(products: &[f64; TILE_NNZ], starts: &[u32], sums: &mut [f64], group: &[u16]) {
    let product = |start: u32, k: usize| products[(start as usize + k) % TILE_NNZ];
    let start = |fiber: u16| starts[usize::from(fiber)];
    let length = |fiber: u16| (starts[usize::from(fiber) + 1] - start(fiber)) as usize;
    let mut done = ROUNDS;
    if let Ok(fibers) = <[u16; ABREAST]>::try_from(group) {
        let mut totals = fibers.map(|fiber| sums[usize::from(fiber)]);
        let shortest = fibers.map(length).into_iter().fold(TILE_NNZ, usize::min);
        for k in ROUNDS..shortest {
            for (total, fiber) in totals.iter_mut().zip(fibers.map(start)) {
                *total += product(fiber, k);
            }
        }
        fibers.iter().zip(totals).for_each(|(&fiber, total)| sums[usize::from(fiber)] = total);
        done = shortest;
    }
    for &fiber in group {
        let sum = &mut sums[usize::from(fiber)];
        *sum = (done..length(fiber)).fold(*sum, |sum, k| sum + product(start(fiber), k));
    }
}
