//! Duplicates: nonzeros in linear order in, settled nonzeros in linear order out.

use super::Duplicates;
use super::split::split;
use crate::error::{Error, Result};
use crate::format::PENDING_NNZ;
use crate::linear::{BitLayout, Key, Linearizer, Nonzero};
use rayon::prelude::*;

/// Nonzeros of a stretch that one thread settles, at least.
const STRETCH_NNZ: usize = 1 << 13;

/// Settles duplicates in a stream of nonzeros in linear order.
#[derive(Debug)]
pub struct Combiner<K> {
    rule: Rule<K>,
    /// Nonzeros that are settled at once.
    part_nnz: usize,
    /// One for each stretch of a part. The first has what is open between parts.
    settlers: Vec<Settler<K>>,
    /// What they have settled, side by side; and of the part before, which is handed over meanwhile.
    settled: Vec<Nonzero<K>>,
    ready: Vec<Nonzero<K>>,
}

/// What becomes of nonzeros that have the same coordinates.
#[derive(Debug)]
struct Rule<K> {
    duplicates: Duplicates,
    must_be_finite: bool,
    linearizer: Linearizer<K>,
    order: usize,
}

impl<K: Key> Combiner<K> {
    pub fn new(layout: &BitLayout, duplicates: Duplicates) -> Self {
        let (linearizer, order) = (Linearizer::new(layout), layout.order());
        let rule = Rule { duplicates, must_be_finite: true, linearizer, order };
        let (settled, ready) = (Vec::new(), Vec::new());
        Self { rule, part_nnz: PENDING_NNZ, settlers: vec![Settler::default()], settled, ready }
    }

    /// Adds up values even if they overflow; the caller checks the sums.
    pub fn of_sums(layout: &BitLayout) -> Self {
        let mut combiner = Self::new(layout, Duplicates::Sum);
        combiner.rule.must_be_finite = false;
        combiner
    }

    /// Settles `part_nnz` nonzeros at once instead of [`PENDING_NNZ`].
    pub fn in_parts_of(self, part_nnz: usize) -> Self {
        Self { part_nnz, ..self }
    }

    /// Nonzeros that were added to another.
    pub fn summed(&self) -> u64 {
        self.settlers.iter().map(|settler| settler.summed).sum()
    }

    /// Nonzeros kept beside another with the same coordinates.
    pub fn kept(&self) -> u64 {
        self.settlers.iter().map(|settler| settler.kept).sum()
    }

    /// Takes the next nonzeros. Those that are settled by now go to `sink`, a part and one at most, with how many were taken
    /// since the last time; where none repeats, as they are. While `sink` has a part, the next one is settled.
    pub fn push(
        &mut self,
        mut sorted: &[Nonzero<K>],
        mut sink: impl FnMut(&[Nonzero<K>], usize) -> Result<()> + Send,
    ) -> Result<()> {
        // What `sink` gets next, in place of what `ready` holds if the part stays as it is; and how many nonzeros the part took.
        let mut ready: (Option<&[Nonzero<K>]>, usize) = (None, 0);
        while !sorted.is_empty() {
            let (part, rest) = sorted.split_at(sorted.len().min(self.part_nnz));
            let settled = std::mem::take(&mut self.ready);
            let hand_over = || if ready.1 > 0 { sink(ready.0.unwrap_or(&settled), ready.1) } else { Ok(()) };
            let (handed_over, as_it_was) = rayon::join(hand_over, || self.prepare(part, rest));
            self.ready = std::mem::replace(&mut self.settled, settled);
            handed_over?;
            ready = (as_it_was?.then_some(part), part.len());
            sorted = rest;
        }
        if ready.1 > 0 { sink(ready.0.unwrap_or(&self.ready), ready.1) } else { Ok(()) }
    }

    /// Settles a part into `settled`, or finds that it may stay as it is.
    fn prepare(&mut self, part: &[Nonzero<K>], rest: &[Nonzero<K>]) -> Result<bool> {
        let may_stay = self.rule.duplicates != Duplicates::Count && self.settlers[0].open.is_none();
        let stays = may_stay && !rest.is_empty() && !repeats(part, rest.first());
        if !stays {
            self.settle(part, rest.first())?;
        }
        Ok(stays)
    }

    /// Hands over the last nonzero, once no more come.
    pub fn finish(&mut self, mut sink: impl FnMut(&[Nonzero<K>]) -> Result<()>) -> Result<()> {
        self.settlers[0].close(&self.rule).map_or(Ok(()), |last| sink(&[last]))
    }

    /// Settles a part, but for its last coordinates where `next` or nothing yet is known to follow them. Stretches of the part, each of whole
    /// coordinates, are settled in parallel.
    fn settle(&mut self, part: &[Nonzero<K>], next: Option<&Nonzero<K>>) -> Result<()> {
        let stretches = stretches(part);
        let Self { rule, settlers, settled, .. } = self;
        settlers.resize_with(stretches.len().max(settlers.len()), Settler::default);
        let (last, others) = settlers[..stretches.len()].split_last_mut().expect("a part has a stretch");
        let settle = |(settler, stretch): (&mut Settler<K>, &&[Nonzero<K>])| {
            settler.settle(rule, stretch)?;
            settler.settle_open(rule);
            Ok(())
        };
        // Collected, so that the first bad coordinates are reported.
        let (done, last_done) = rayon::join(
            || others.par_iter_mut().zip(&stretches).map(settle).collect::<Vec<Result<()>>>(),
            || last.settle(rule, stretches[stretches.len() - 1]),
        );
        done.into_iter().collect::<Result<()>>()?;
        last_done?;
        if next.is_some_and(|next| last.open.is_some_and(|open| open.linear != next.linear)) {
            last.settle_open(rule);
        }
        if others.is_empty() {
            std::mem::swap(settled, &mut settlers[0].settled);
            return Ok(());
        }
        let open = (last.open.take(), std::mem::take(&mut last.members));
        (settlers[0].open, settlers[0].members) = open;
        let settlers = &settlers[..stretches.len()];
        let lengths = settlers.iter().map(|settler| settler.settled.len());
        settled.resize(lengths.clone().sum(), Nonzero::default());
        let copies = split(settled, lengths).into_par_iter().zip(settlers);
        copies.for_each(|(target, settler)| target.copy_from_slice(&settler.settled));
        Ok(())
    }
}

/// Cuts a part where coordinates end, into one stretch or into some for each thread.
fn stretches<K: Key>(part: &[Nonzero<K>]) -> Vec<&[Nonzero<K>]> {
    let count = (part.len() / STRETCH_NNZ).clamp(1, 2 * rayon::current_num_threads());
    let (mut stretches, mut from) = (Vec::with_capacity(count), 0);
    for i in 1..count {
        let before = (i * part.len() / count).max(from + 1) - 1;
        let Some(last) = part.get(before) else { break };
        let end = before + part[before..].partition_point(|n| n.linear <= last.linear);
        stretches.push(&part[from..end]);
        from = end;
    }
    if from < part.len() {
        stretches.push(&part[from..]);
    }
    stretches
}

/// Settles the nonzeros of a stretch one after the other.
#[derive(Debug)]
struct Settler<K> {
    /// The nonzero that the next ones may still belong to, and how many belong to it so far.
    open: Option<Nonzero<K>>,
    members: u64,
    settled: Vec<Nonzero<K>>,
    summed: u64,
    kept: u64,
}

impl<K> Default for Settler<K> {
    fn default() -> Self {
        Self { open: None, members: 0, settled: Vec::new(), summed: 0, kept: 0 }
    }
}

impl<K: Key> Settler<K> {
    /// Settles what comes before the last of `sorted`.
    fn settle(&mut self, rule: &Rule<K>, sorted: &[Nonzero<K>]) -> Result<()> {
        self.settled.clear();
        for &next in sorted {
            let joins = self.open.is_some_and(|open| open.linear == next.linear);
            if !joins {
                self.settle_open(rule);
                (self.open, self.members) = (Some(next), 1);
                continue;
            }
            self.members += 1;
            self.join(rule, next)?;
        }
        Ok(())
    }

    /// Settles the open nonzero: no more belong to it.
    fn settle_open(&mut self, rule: &Rule<K>) {
        let closed = self.close(rule);
        self.settled.extend(closed);
    }

    /// Adds a nonzero to the open one, which has the same coordinates. They come in the order of their values.
    fn join(&mut self, rule: &Rule<K>, next: Nonzero<K>) -> Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        match rule.duplicates {
            Duplicates::Sum | Duplicates::Mean => {
                open.value += next.value;
                if rule.must_be_finite && !open.value.is_finite() {
                    return Err(rule.refuse(next.linear, "the values given for it add up to infinity"));
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
                return Err(rule.refuse(next.linear, what));
            }
        }
        self.summed += 1;
        Ok(())
    }

    /// The open nonzero, as all that belong to it make it.
    fn close(&mut self, rule: &Rule<K>) -> Option<Nonzero<K>> {
        let mut closed = self.open.take()?;
        match rule.duplicates {
            Duplicates::Count => closed.value = self.members as f64,
            Duplicates::Mean if self.members > 1 => closed.value /= self.members as f64,
            _ => {}
        }
        Some(closed)
    }
}

impl<K: Key> Rule<K> {
    fn refuse(&self, key: K, what: &str) -> Error {
        let at = self.linearizer.gather(key);
        let indices: Vec<String> = at[..self.order].iter().map(|i| (u64::from(*i) + 1).to_string()).collect();
        Error::request(format!("the nonzero at ({}), counted from 1: {what}", indices.join(", ")))
    }
}

/// Whether a coordinate stands twice in `sorted`, or the last one in `next` too. Counts, so that vectors do it.
fn repeats<K: Key>(sorted: &[Nonzero<K>], next: Option<&Nonzero<K>>) -> bool {
    let goes_on = sorted.last().zip(next).is_some_and(|(last, next)| last.linear == next.linear);
    let equal = |pair: &[Nonzero<K>]| usize::from(pair[0].linear == pair[1].linear);
    let among = |starts: &[Nonzero<K>]| starts.windows(2).map(equal).sum::<usize>() > 0;
    // Stretches share a nonzero with the next one.
    let stretch = |i: usize| &sorted[i * STRETCH_NNZ..sorted.len().min((i + 1) * STRETCH_NNZ + 1)];
    goes_on || (0..sorted.len().div_ceil(STRETCH_NNZ)).into_par_iter().any(|i| among(stretch(i)))
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
