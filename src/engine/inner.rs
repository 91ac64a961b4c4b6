//! Norms and inner products, on the CPU.

use super::{Engine, ExecutionPlan};
use crate::backend::host::{computing_bytes, decoded_bytes};
use crate::error::{Error, Result};
use crate::linear::{Key, Nonzero, Wide};
use crate::op::inner::{Inner, Norm, Part, sums_bytes};
use crate::store::Store;
use crate::stream::{Limits, PassReport, Plan};

/// The least nonzeros of a part.
const PART_NNZ_MIN: u64 = 1 << 16;

/// The plan of an inner product.
#[derive(Clone, Debug)]
pub(crate) struct InnerPlan {
    pub uses: ExecutionPlan,
    /// The passes over the store whose parts are held in memory, and over the other.
    pub passes: u64,
    /// Nonzeros of a part.
    room: u64,
    /// Whether parts of the first store are held, which then has fewer nonzeros.
    first: bool,
    /// The plan of a pass over the other store.
    other: Plan,
}

/// A number, and the passes that it took.
pub(crate) struct NumberOutcome {
    pub number: f64,
    pub passes: Vec<PassReport>,
}

impl Engine {
    /// The Frobenius norm of a store's tensor, from one pass over its values. Each square is rounded once, and so is their sum. Repeated
    /// coordinates count as different ones.
    ///
    /// # Errors
    ///
    /// [`Error::Request`] if the squares overflow; errors of reading the store.
    pub fn norm(&self, store: &Store) -> Result<f64> {
        let plan = self.plan_norm(store)?;
        Ok(self.run_norm(store, &plan)?.number)
    }

    /// Plans [`Engine::norm`].
    ///
    /// # Errors
    ///
    /// [`Error::Request`] if memory is too small.
    pub fn plan_norm(&self, store: &Store) -> Result<ExecutionPlan> {
        let threads = self.threads();
        let host = self.plan_stream(store, [sums_bytes(threads) + computing_bytes(threads), 0])?;
        Ok(ExecutionPlan {
            host,
            device: None,
            notes: self.notes_of_cpu(),
            devices: None,
            mode_sorted: None,
            made_for: None,
        })
    }

    pub(crate) fn run_norm(&self, store: &Store, plan: &ExecutionPlan) -> Result<NumberOutcome> {
        let store = &store.clone().with_direct_reads(plan.host.direct_reads);
        let (norm, passes) = self.install(|| {
            let mut op = Norm::new();
            let pass = self.stream_by(store, &mut op, &plan.host, "computing")?;
            Ok::<_, Error>((op.sum_squares().sqrt(), vec![pass]))
        })?;
        number(norm, passes, "the norm")
    }

    /// The inner product of two stores with the same dims, in any formats: the sum over all coordinates of the product of their values.
    /// Each product is rounded once, and so is the sum. The tensor with fewer nonzeros is held in memory, in parts if necessary, while
    /// both stream past.
    ///
    /// ```
    /// # use blco::{Engine, PackOptions, ReadOptions};
    /// # fn main() -> blco::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let engine = Engine::new()?;
    /// # let store = |name: &str, text: &str| {
    /// #     let (input, path) = (dir.path().join(format!("{name}.tns")), dir.path().join(name));
    /// #     std::fs::write(&input, text).unwrap();
    /// #     engine.pack(&mut engine.read_text(&input, ReadOptions::default())?, &PackOptions::new(path.clone()))?;
    /// #     engine.open(&path)
    /// # };
    /// let a = store("a", "1 1 1 5\n2 1 3 3\n2 2 1 1\n")?;
    /// let b = store("b", "1 1 1 2\n2 1 3 -1\n2 2 3 7\n")?;
    /// assert_eq!(engine.inner(&a, &b)?, 7.0);
    /// assert_eq!(engine.inner(&a, &a)?, engine.norm(&a)?.powi(2).round());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Request`] if dims differ or a product overflows; errors of reading the stores.
    pub fn inner(&self, a: &Store, b: &Store) -> Result<f64> {
        let plan = self.settle_inner(a, b)?;
        Ok(self.run_inner([a, b], &plan)?.number)
    }

    /// Plans [`Engine::inner`].
    ///
    /// # Errors
    ///
    /// [`Error::Request`] if dims differ or memory is too small.
    pub fn plan_inner(&self, a: &Store, b: &Store) -> Result<ExecutionPlan> {
        Ok(self.settle_inner(a, b)?.uses)
    }

    pub(crate) fn settle_inner(&self, a: &Store, b: &Store) -> Result<InnerPlan> {
        let (shape, other) = (&a.manifest().shape, &b.manifest().shape);
        if shape != other {
            let what = format!(
                "has dims {other}, {} has {shape}; an inner product is of two tensors of the same dims",
                a.path().display()
            );
            return Err(Error::request(format!("{}: {what}", b.path().display())));
        }
        let threads = self.threads();
        let first = a.manifest().nnz <= b.manifest().nnz;
        let [part, other] = if first { [a, b] } else { [b, a] };
        let held = sums_bytes(threads) + computing_bytes(threads) + part.held_bytes().max(other.held_bytes());
        let size = if shape.linear_bits() <= u64::BITS {
            size_of::<Nonzero<u64>>()
        } else {
            size_of::<Nonzero<Wide>>()
        };
        let decoded = decoded_bytes(shape.order(), 1);
        let free = self.room(part, held + decoded)?.min(self.room(other, held + decoded)?);
        let nnz = part.manifest().nnz;
        let room = (free / size as u64).max(PART_NNZ_MIN).min(nnz);
        let bytes = held + room * size as u64 + decoded;
        // For each part, one pass over its store loads it, and one over the other store multiplies by it.
        let plan = |store| self.plan_host(store, bytes, &Limits { less: "", ..self.limits(1) });
        let uses = ExecutionPlan {
            host: plan(part)?,
            device: None,
            notes: self.notes_of_cpu(),
            devices: None,
            mode_sorted: None,
            made_for: None,
        };
        Ok(InnerPlan { uses, passes: nnz.div_ceil(room.max(1)), room, first, other: plan(other)? })
    }

    pub(crate) fn run_inner(&self, [a, b]: [&Store; 2], plan: &InnerPlan) -> Result<NumberOutcome> {
        let stores = if plan.first { [a, b] } else { [b, a] };
        self.install(|| {
            if a.manifest().shape.linear_bits() <= u64::BITS {
                self.inner_by::<u64>(stores, plan)
            } else {
                self.inner_by::<Wide>(stores, plan)
            }
        })
    }

    fn inner_by<K: Key>(&self, [of_part, other]: [&Store; 2], plan: &InnerPlan) -> Result<NumberOutcome> {
        let of_part = &of_part.clone().with_direct_reads(plan.uses.host.direct_reads);
        let other = &other.clone().with_direct_reads(plan.other.direct_reads);
        let shape = &of_part.manifest().shape;
        let mut part = Part::<K>::new(self.sys(), shape, usize::try_from(plan.room).unwrap_or(usize::MAX))?;
        let (inner, mut passes, mut from) = (Inner::new(), Vec::new(), 0);
        loop {
            part.start(from);
            passes.push(self.stream_by(of_part, &mut part, &plan.uses.host, "sorting")?);
            from += part.sort();
            let mut pass = inner.with(&part);
            passes.push(self.stream_by(other, &mut pass, &plan.other, "computing")?);
            drop(pass);
            if from >= of_part.manifest().nnz {
                return number(inner.total(), passes, "the inner product");
            }
        }
    }
}

fn number(number: f64, passes: Vec<PassReport>, what: &str) -> Result<NumberOutcome> {
    let beyond = || Error::request(format!("{what} exceeds all numbers"));
    if number.is_finite() { Ok(NumberOutcome { number, passes }) } else { Err(beyond()) }
}
