//! Duplicates: nonzeros in linear order in, settled nonzeros in linear order out.

use super::Duplicates;
use crate::error::{Error, Result};
use crate::format::PENDING_NNZ;
use crate::linear::{BitLayout, Key, Linearizer, Nonzero};

/// Settles duplicates in a stream of nonzeros in linear order.
#[derive(Debug)]
pub struct Combiner<K> {
    duplicates: Duplicates,
    must_be_finite: bool,
    linearizer: Linearizer<K>,
    order: usize,
    /// The nonzero that the next ones may still belong to, and how many belong to it so far.
    open: Option<Nonzero<K>>,
    members: u64,
    settled: Vec<Nonzero<K>>,
    summed: u64,
    kept: u64,
}

impl<K: Key> Combiner<K> {
    pub fn new(layout: &BitLayout, duplicates: Duplicates) -> Self {
        Self {
            duplicates,
            must_be_finite: true,
            linearizer: Linearizer::new(layout),
            order: layout.order(),
            open: None,
            members: 0,
            settled: Vec::new(),
            summed: 0,
            kept: 0,
        }
    }

    /// Adds up values even if they overflow; the caller checks the sums.
    pub fn of_sums(layout: &BitLayout) -> Self {
        Self { must_be_finite: false, ..Self::new(layout, Duplicates::Sum) }
    }

    /// Nonzeros that were added to another.
    pub fn summed(&self) -> u64 {
        self.summed
    }

    /// Nonzeros kept beside another with the same coordinates.
    pub fn kept(&self) -> u64 {
        self.kept
    }

    /// Takes the next nonzeros. Those that are settled by now go to `sink`, at most [`PENDING_NNZ`] and one at once, with how many were taken
    /// since the last time; where none repeats, as they are.
    pub fn push(
        &mut self,
        mut sorted: &[Nonzero<K>],
        mut sink: impl FnMut(&[Nonzero<K>], usize) -> Result<()>,
    ) -> Result<()> {
        while !sorted.is_empty() {
            let (part, rest) = sorted.split_at(sorted.len().min(PENDING_NNZ));
            let as_it_is = self.duplicates != Duplicates::Count;
            if as_it_is && self.open.is_none() && !rest.is_empty() && !repeats(&sorted[..=part.len()]) {
                sink(part, part.len())?;
            } else {
                self.settle(part)?;
                if rest.first().is_some_and(|next| self.open.is_some_and(|open| open.linear != next.linear)) {
                    let closed = self.close();
                    self.settled.extend(closed);
                }
                sink(&self.settled, part.len())?;
            }
            sorted = rest;
        }
        Ok(())
    }

    /// Hands over the last nonzero, once no more come.
    pub fn finish(&mut self, mut sink: impl FnMut(&[Nonzero<K>]) -> Result<()>) -> Result<()> {
        self.close().map_or(Ok(()), |last| sink(&[last]))
    }

    /// Settles what comes before the last of `sorted`.
    fn settle(&mut self, sorted: &[Nonzero<K>]) -> Result<()> {
        self.settled.clear();
        for &next in sorted {
            let joins = self.open.is_some_and(|open| open.linear == next.linear);
            if !joins {
                let closed = self.close();
                self.settled.extend(closed);
                (self.open, self.members) = (Some(next), 1);
                continue;
            }
            self.members += 1;
            self.join(next)?;
        }
        Ok(())
    }

    /// Adds a nonzero to the open one, which has the same coordinates. They come in the order of their values.
    fn join(&mut self, next: Nonzero<K>) -> Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        match self.duplicates {
            Duplicates::Sum | Duplicates::Mean => {
                open.value += next.value;
                if self.must_be_finite && !open.value.is_finite() {
                    return Err(self.refuse(next.linear, "the values given for it add up to infinity"));
                }
            }
            Duplicates::Min | Duplicates::Count => {}
            Duplicates::Max => open.value = next.value,
            Duplicates::Keep => {
                self.kept += 1;
                self.settled.push(std::mem::replace(open, next));
                return Ok(());
            }
            Duplicates::Error => {
                let what = "it occurs more than once; `duplicates` sum adds up, keep keeps each";
                return Err(self.refuse(next.linear, what));
            }
        }
        self.summed += 1;
        Ok(())
    }

    /// The open nonzero, as all that belong to it make it.
    fn close(&mut self) -> Option<Nonzero<K>> {
        let mut closed = self.open.take()?;
        match self.duplicates {
            Duplicates::Count => closed.value = self.members as f64,
            Duplicates::Mean if self.members > 1 => closed.value /= self.members as f64,
            _ => {}
        }
        Some(closed)
    }

    fn refuse(&self, key: K, what: &str) -> Error {
        let at = self.linearizer.gather(key);
        let indices: Vec<String> = at[..self.order].iter().map(|i| (u64::from(*i) + 1).to_string()).collect();
        Error::request(format!("the nonzero at ({}), counted from 1: {what}", indices.join(", ")))
    }
}

/// Whether a coordinate stands twice in `sorted`. Counts, so that vectors do it.
fn repeats<K: Key>(sorted: &[Nonzero<K>]) -> bool {
    sorted.windows(2).map(|pair| usize::from(pair[0].linear == pair[1].linear)).sum::<usize>() > 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Shape;

    fn combine(duplicates: Duplicates, sorted: &[(u64, f64)]) -> Result<Vec<(u64, f64)>> {
        let layout = BitLayout::new(&Shape::new(&[16, 16]).unwrap());
        let mut combiner = Combiner::new(&layout, duplicates);
        let sorted: Vec<_> = sorted.iter().map(|&(linear, value)| Nonzero { linear, value }).collect();
        let mut out = Vec::new();
        let mut sink = |settled: &[Nonzero<u64>]| {
            out.extend_from_slice(settled);
            Ok(())
        };
        sorted.chunks(2).try_for_each(|slice| combiner.push(slice, |settled, _| sink(settled)))?;
        combiner.finish(&mut sink)?;
        Ok(out.into_iter().map(|n: Nonzero<u64>| (n.linear, n.value)).collect())
    }

    #[test]
    fn duplicates_meet_across_slices() {
        let sorted = [(1, 1.0), (3, -2.0), (3, 0.5), (3, 4.0), (9, 1.0)];
        assert_eq!(combine(Duplicates::Sum, &sorted).unwrap(), [(1, 1.0), (3, 2.5), (9, 1.0)]);
        assert_eq!(combine(Duplicates::Keep, &sorted).unwrap(), sorted);
        let message = combine(Duplicates::Error, &sorted).unwrap_err().to_string();
        assert!(message.contains("(2, 2), counted from 1"), "{message}");
    }

    /// Parts that go on as they are, and such that are settled: what comes out does not depend on where repetitions meet a part's end.
    #[test]
    fn parts_are_settled_alike_wherever_they_end() {
        let part = PENDING_NNZ as u64;
        let nnz = 4 * part + 3;
        // Positions that repeat the coordinate before them.
        let inside: &[u64] = &[part / 2, 2 * part + 1];
        let at_ends: &[u64] = &[part, 2 * part - 1, 2 * part, 3 * part, 3 * part + 1];
        let at_last: &[u64] = &[nnz - 2, nnz - 1];
        for repeated in [&[], inside, at_ends, at_last] {
            let linear = |i: u64| i - repeated.iter().filter(|&&at| at <= i).count() as u64;
            let sorted: Vec<(u64, f64)> = (0..nnz).map(|i| (linear(i), 1.0)).collect();
            let nonzeros: Vec<_> = sorted.iter().map(|&(linear, value)| Nonzero { linear, value }).collect();
            let mut sums: Vec<f64> = vec![0.0; usize::try_from(linear(nnz - 1)).unwrap() + 1];
            for &(linear, value) in &sorted {
                sums[usize::try_from(linear).unwrap()] += value;
            }
            let layout = BitLayout::new(&Shape::new(&[1 << 10, 1 << 10]).unwrap());
            for duplicates in [Duplicates::Sum, Duplicates::Keep] {
                let mut combiner = Combiner::new(&layout, duplicates);
                let (mut out, mut all_taken) = (Vec::new(), 0);
                let sink = |settled: &[Nonzero<u64>], taken| {
                    assert!(settled.len() <= PENDING_NNZ + 1);
                    all_taken += taken;
                    out.extend(settled.iter().map(|n| (n.linear, n.value)));
                    Ok(())
                };
                combiner.push(&nonzeros, sink).unwrap();
                combiner
                    .finish(|last| {
                        out.extend(last.iter().map(|n| (n.linear, n.value)));
                        Ok(())
                    })
                    .unwrap();
                assert_eq!(all_taken as u64, nnz);
                if duplicates == Duplicates::Sum {
                    assert!(out == (0u64..).zip(sums.iter().copied()).collect::<Vec<_>>(), "{repeated:?}");
                    assert_eq!(combiner.summed(), repeated.len() as u64);
                } else {
                    assert!(out == sorted, "{repeated:?}");
                    assert_eq!(combiner.kept(), repeated.len() as u64);
                }
            }
        }
    }

    /// The other rules, wherever slices end.
    #[test]
    fn duplicates_follow_their_rule() {
        let sorted = [(1, 1.5), (3, -2.0), (3, 0.5), (3, 3.0), (9, 1.0), (9, 2.0)];
        for (rule, values) in [
            (Duplicates::Mean, [1.5, 0.5, 1.5]),
            (Duplicates::Min, [1.5, -2.0, 1.0]),
            (Duplicates::Max, [1.5, 3.0, 2.0]),
            (Duplicates::Count, [1.0, 3.0, 2.0]),
        ] {
            let settled = combine(rule, &sorted).unwrap();
            assert_eq!(settled, [1, 3, 9].into_iter().zip(values).collect::<Vec<_>>(), "{rule:?}");
        }
    }

    #[test]
    fn negative_zero_survives_and_overflow_does_not() {
        let sum = combine(Duplicates::Sum, &[(0, -0.0), (1, -0.0), (1, -0.0)]).unwrap();
        assert!(sum.iter().all(|n| n.1.to_bits() == (-0.0f64).to_bits()));
        assert!(combine(Duplicates::Sum, &[(1, f64::MAX), (1, f64::MAX)]).is_err());
    }
}
