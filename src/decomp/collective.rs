//! Communication between members that decompose one tensor together: the interface below [`super::AlsBackend`].
//!
//! A **member** runs its own backend: a device, a process or a machine. It holds some of the nonzeros and all of every
//! factor. It **owns** a range of rows of each factor, in whole parts; an update divides rows into parts by their
//! number and the rank alone ([`super::update`]). [`super::update::update`] is the caller, once per mode of an
//! iteration:
//!
//! ```text
//! a pass over the own nonzeros        partial sums of all rows; other members have the other parts
//! reduce_scatter                      of the own rows: the sums of all members
//! the update of the own rows          new rows, and of each part its share of the Gram matrix and of the fit's inner products
//! gather                              new rows of all
//! all_reduce                          the Gram matrix and the inner products
//! ```
//!
//! The rest of an iteration is rank x rank algebra on equal numbers, which every member does itself.
//!
//! **Bits.** Members' sums are added in the members' order and parts in the rows' order, never in order of arrival.
//! Parts do not depend on members, so equal sums give the same bits for any number of members.

use crate::error::Result;
use crate::members::Group;
use std::fmt::Debug;
use std::ops::Range;

/// How a member reaches the others. All members make the same calls in the same order, with buffers of equal lengths.
///
/// # Errors
///
/// If one member fails, every call of the others ends with an error, so that none waits forever.
pub trait Collective: Debug + Send {
    /// The range of `parts` parts, from 0, that this member owns. The members' ranges ascend and cover all parts; some may be empty.
    fn owned(&self, parts: usize) -> Range<usize>;

    /// Replaces the numbers `own` of `sums`, those of this member's rows, by the sums over all members. The other numbers
    /// become zero, as the next pass needs them.
    fn reduce_scatter(&mut self, sums: &mut [f64], own: Range<usize>) -> Result<()>;

    /// Replaces all bytes of `rows` except `own` by those of the members that own them.
    fn gather(&mut self, rows: &mut [u8], own: Range<usize>) -> Result<()>;

    /// The sum of all members' `parts`, in order, each of `numbers` numbers; the same on every member.
    fn all_reduce(&mut self, parts: Vec<Vec<f64>>, numbers: usize) -> Result<Vec<f64>>;

    /// Whether there are no others, so that a pass gives the sums of all.
    fn is_alone(&self) -> bool {
        false
    }
}

/// The only member. It owns all rows and copies nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Local;

impl Collective for Local {
    fn owned(&self, parts: usize) -> Range<usize> {
        0..parts
    }

    fn reduce_scatter(&mut self, _sums: &mut [f64], _own: Range<usize>) -> Result<()> {
        Ok(())
    }

    fn gather(&mut self, _rows: &mut [u8], _own: Range<usize>) -> Result<()> {
        Ok(())
    }

    fn all_reduce(&mut self, parts: Vec<Vec<f64>>, numbers: usize) -> Result<Vec<f64>> {
        Ok(sum(parts, numbers))
    }

    fn is_alone(&self) -> bool {
        true
    }
}

/// Members with memory of their own. Sums are added in the members' order.
impl Collective for Group {
    fn owned(&self, parts: usize) -> Range<usize> {
        let (number, count) = (self.number(), self.count());
        parts * number / count..parts * (number + 1) / count
    }

    fn reduce_scatter(&mut self, sums: &mut [f64], own: Range<usize>) -> Result<()> {
        Self::reduce_scatter(self, sums, own)
    }

    fn gather(&mut self, rows: &mut [u8], own: Range<usize>) -> Result<()> {
        Self::gather(self, rows, own)
    }

    fn all_reduce(&mut self, parts: Vec<Vec<f64>>, numbers: usize) -> Result<Vec<f64>> {
        let all = self.all_numbers(&parts.concat())?;
        Ok(sum(all.chunks_exact(numbers.max(1)).map(<[f64]>::to_vec), numbers))
    }
}

/// The sum of `parts`, in order, each of `numbers` numbers.
pub(super) fn sum(parts: impl IntoIterator<Item = Vec<f64>>, numbers: usize) -> Vec<f64> {
    parts.into_iter().reduce(add).unwrap_or_else(|| vec![0.0; numbers])
}

/// `all` with the numbers of `part` added.
pub(super) fn add(mut all: Vec<f64>, part: Vec<f64>) -> Vec<f64> {
    all.iter_mut().zip(part).for_each(|(a, b)| *a += b);
    all
}

#[cfg(test)]
mod tests {
    use super::super::update::{Rule, update};
    use super::*;
    use crate::dense::{Matrix, Real};
    use crate::random::Counter;
    use bytemuck::{cast_slice, pod_read_unaligned};
    use std::sync::{Barrier, Mutex};

    /// A member that is one of several threads, with their messages and a barrier.
    #[derive(Debug)]
    struct Thread<'a>(usize, &'a Mutex<Vec<Vec<u8>>>, &'a Barrier);

    impl Thread<'_> {
        /// The message of each member, in the members' order.
        fn exchange(&self, bytes: &[u8]) -> Vec<Vec<u8>> {
            let Self(number, posts, barrier) = self;
            posts.lock().unwrap()[*number] = bytes.to_vec();
            barrier.wait();
            let all = posts.lock().unwrap().clone();
            barrier.wait();
            all
        }
    }

    impl Collective for Thread<'_> {
        fn owned(&self, parts: usize) -> Range<usize> {
            let members = self.1.lock().unwrap().len();
            parts * self.0 / members..parts * (self.0 + 1) / members
        }

        fn reduce_scatter(&mut self, sums: &mut [f64], own: Range<usize>) -> Result<()> {
            let all = self.exchange(cast_slice(sums)).into_iter().map(|post| numbers_of(&post));
            let total = all.reduce(add).unwrap();
            sums.fill(0.0);
            sums[own.clone()].copy_from_slice(&total[own]);
            Ok(())
        }

        fn gather(&mut self, rows: &mut [u8], own: Range<usize>) -> Result<()> {
            rows.copy_from_slice(&self.exchange(&rows[own]).concat());
            Ok(())
        }

        fn all_reduce(&mut self, parts: Vec<Vec<f64>>, numbers: usize) -> Result<Vec<f64>> {
            let all = numbers_of(&self.exchange(cast_slice(&parts.concat())).concat());
            Ok(sum(all.chunks_exact(numbers).map(<[f64]>::to_vec), numbers))
        }
    }

    fn numbers_of(bytes: &[u8]) -> Vec<f64> {
        bytes.chunks_exact(size_of::<f64>()).map(pod_read_unaligned).collect()
    }

    /// Numbers whose sum depends on the order of additions.
    fn random(n: usize, stream: u64) -> Vec<f64> {
        (0..n as u64).map(|i| Counter::new(9, stream).unit(i) - 0.5).collect()
    }

    /// The bits of the Gram matrix and of the factor that an update by `rule` gives.
    fn updated<T: Real>(
        mut sums: Vec<f64>,
        rank: usize,
        rule: &Rule,
        members: &mut dyn Collective,
    ) -> Vec<u64> {
        let mut factor = Matrix::from_rows(sums.len() / rank, rank, vec![T::nearest(0.5); sums.len()]);
        let got = update(&mut sums, &mut factor, rule, true, members).unwrap();
        assert!(sums.iter().all(|&x| x == 0.0));
        let numbers = factor.data().iter().map(|x| x.widen()).chain(got.gram).chain(got.inner);
        numbers.map(f64::to_bits).collect()
    }

    fn members_are_as_one<T: Real>(rows: usize, rank: usize, rule: &Rule) {
        for members in 1..=5 {
            let shares: Vec<Vec<f64>> = (0..members as u64).map(|m| random(rows * rank, m)).collect();
            let wanted = updated::<T>(sum(shares.clone(), rows * rank), rank, rule, &mut Local);
            let (posts, barrier) = (&Mutex::new(vec![Vec::new(); members]), &Barrier::new(members));
            std::thread::scope(|scope| {
                let run = |(m, share)| {
                    scope.spawn(move || updated::<T>(share, rank, rule, &mut Thread(m, posts, barrier)))
                };
                for thread in shares.into_iter().enumerate().map(run).collect::<Vec<_>>() {
                    assert!(thread.join().unwrap() == wanted, "{rows} x {rank}, {members} members");
                }
            });
        }
    }

    /// Fewer parts than members, as many, more; both rules, both precisions.
    #[test]
    fn members_have_the_bits_of_one() {
        for (rows, rank) in [(7, 3), (600, 2), (1500, 4), (5000, 11)] {
            let [of_sums, of_old, of_new] = [1.0, 2.0, 0.5].map(|x| vec![x; rank]);
            let gram = (0..rank * rank).map(|i| if i % (rank + 1) == 0 { 1.0 } else { 0.25 }).collect();
            let nonneg = Rule::NonNegative { gram, of_sums, of_old, of_new };
            for rule in [Rule::Linear { matrix: random(rank * rank, 99) }, nonneg] {
                members_are_as_one::<f64>(rows, rank, &rule);
                members_are_as_one::<f32>(rows, rank, &rule);
            }
        }
    }
}
