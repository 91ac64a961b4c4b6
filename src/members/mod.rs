//! How processes that compute together reach each other.
//!
//! [`Links`] connects the members: threads of one process ([`threads`], for tests) or MPI's processes (`mpi`). Everything
//! is made of one call, in which a member sends to one other and receives from one other. [`Group`] makes collectives of
//! it: a broadcast along a tree, and pairwise exchanges for sums and rows. Every one of them adds in the members' order, so
//! that the same number of members gives the same bits in every run.

#[cfg(feature = "mpi")]
pub mod mpi;
pub mod threads;

use crate::error::{Error, Result};
use bytemuck::{cast_slice, cast_slice_mut};
use rayon::prelude::*;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

/// The most bytes of the members' sums that a member holds while it adds them up, and the most of each member's, which a cache holds.
pub const SCRATCH_BYTES: usize = 32 << 20;
const SLICE_BYTES: usize = 1 << 20;
/// Numbers that one thread adds up or clears at a time.
const PIECE: usize = 8 << 10;

/// Connects members, each of which makes the same calls in the same order.
pub trait Links: Debug + Send + Sync {
    /// The number of this member, from 0.
    fn number(&self) -> usize;

    /// The number of all members.
    fn count(&self) -> usize;

    /// The number of this member among those on its machine, in their order, and how many these are.
    fn on_machine(&self) -> (usize, usize);

    /// Sends bytes to a member and receives as many from a member as that one sends. Messages between two members arrive in
    /// order. Without a member, that half is left out.
    ///
    /// # Errors
    ///
    /// If the other member has failed or ended: no call waits for what does not come.
    fn exchange(&self, send: Option<(usize, &[u8])>, receive: Option<(usize, &mut [u8])>) -> Result<()>;

    /// Says that this member works, and gets on, or that it waits for an order. A member that works and does not get on
    /// for a stated time has failed.
    fn works(&self, _works: bool) {}
}

/// A member's view of all members. Clones are of the same member.
#[derive(Clone, Debug)]
pub struct Group {
    links: Arc<dyn Links>,
}

impl Group {
    /// The members that `links` connects.
    #[must_use]
    pub fn new(links: Arc<dyn Links>) -> Self {
        Self { links }
    }

    /// The number of this member, from 0.
    #[must_use]
    pub fn number(&self) -> usize {
        self.links.number()
    }

    /// The number of all members.
    #[must_use]
    pub fn count(&self) -> usize {
        self.links.count()
    }

    /// See [`Links::on_machine`].
    #[must_use]
    pub fn on_machine(&self) -> (usize, usize) {
        self.links.on_machine()
    }

    /// See [`Links::works`].
    pub fn works(&self, works: bool) {
        self.links.works(works);
    }

    /// Sends to a member.
    pub fn send(&self, to: usize, bytes: &[u8]) -> Result<()> {
        self.links.exchange(Some((to, bytes)), None)
    }

    /// Receives what that member sends.
    pub fn receive(&self, from: usize, bytes: &mut [u8]) -> Result<()> {
        self.links.exchange(None, Some((from, bytes)))
    }

    /// Replaces the bytes of all members by those of member 0.
    pub fn broadcast(&self, bytes: &mut [u8]) -> Result<()> {
        let (number, count) = (self.number(), self.count());
        let mut have = 1;
        while have < count {
            if number < have && number + have < count {
                self.send(number + have, bytes)?;
            } else if (have..2 * have).contains(&number) {
                self.receive(number - have, bytes)?;
            }
            have *= 2;
        }
        Ok(())
    }

    /// The same where only member 0 knows how many there are; the others' are replaced.
    pub fn broadcast_vec(&self, bytes: &mut Vec<u8>) -> Result<()> {
        let mut length = (bytes.len() as u64).to_le_bytes();
        self.broadcast(&mut length)?;
        let length = usize::try_from(u64::from_le_bytes(length)).unwrap_or(usize::MAX);
        bytes.resize(length, 0);
        self.broadcast(bytes)
    }

    /// What each member gives, in their order; all lengths are equal.
    pub fn all_gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut all = vec![own.to_vec(); self.count()];
        for (to, from) in self.rounds() {
            self.links.exchange(Some((to, own)), Some((from, &mut all[from])))?;
        }
        Ok(all)
    }

    /// Waits until all members have come here.
    pub fn meet(&self) -> Result<()> {
        // Of a byte, since links may leave out messages without any.
        self.all_gather(&[0]).map(drop)
    }

    /// In each round: whom this member sends to, and whom it receives from.
    fn rounds(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (number, count) = (self.number(), self.count());
        (1..count).map(move |step| ((number + step) % count, (number + count - step) % count))
    }

    /// Each member's range, in their order.
    fn ranges(&self, own: &Range<usize>) -> Result<Vec<Range<usize>>> {
        let own: Vec<u8> = [own.start as u64, own.end as u64].iter().flat_map(|x| x.to_le_bytes()).collect();
        let number = |bytes: &[u8]| {
            usize::try_from(u64::from_le_bytes(bytes.try_into().unwrap_or_default())).unwrap_or(usize::MAX)
        };
        let all = self.all_gather(&own)?;
        Ok(all.iter().map(|both| number(&both[..8])..number(&both[8..])).collect())
    }

    /// Replaces the numbers `own` of `sums`, this member's range, by the sums over all members; the others become zero. Ranges
    /// of the members ascend and cover all numbers. Adds on the current rayon pool.
    pub fn reduce_scatter(&self, sums: &mut [f64], own: Range<usize>) -> Result<()> {
        let (number, count) = (self.number(), self.count());
        let ranges = self.ranges(&own)?;
        let longest = ranges.iter().map(Range::len).max().unwrap_or(0);
        let slice = SLICE_BYTES.min(SCRATCH_BYTES / count) / size_of::<f64>();
        let slice = slice.clamp(1, longest.max(1));
        let mut received = vec![vec![0.0; slice]; count];
        for at in (0..longest).step_by(slice) {
            let part = |of: &Range<usize>| (of.start + at).min(of.end)..(of.start + at + slice).min(of.end);
            let mine = part(&own);
            for (to, from) in self.rounds() {
                let send = cast_slice(&sums[part(&ranges[to])]);
                let into = cast_slice_mut(&mut received[from][..mine.len()]);
                self.links.exchange(Some((to, send)), Some((from, into)))?;
            }
            received[number][..mine.len()].copy_from_slice(&sums[mine.clone()]);
            sums[mine].par_chunks_mut(PIECE).enumerate().for_each(|(i, sums)| {
                sums.copy_from_slice(&received[0][i * PIECE..][..sums.len()]);
                for other in &received[1..] {
                    sums.iter_mut().zip(&other[i * PIECE..]).for_each(|(sum, x)| *sum += x);
                }
            });
        }
        let (before, behind) = sums.split_at_mut(own.end);
        for others in [&mut before[..own.start], behind] {
            others.par_chunks_mut(PIECE).for_each(|sums| sums.fill(0.0));
        }
        Ok(())
    }

    /// Replaces all bytes of `rows` but `own` by those of the members that own them.
    pub fn gather(&self, rows: &mut [u8], own: Range<usize>) -> Result<()> {
        let ranges = self.ranges(&own)?;
        for (to, from) in self.rounds() {
            let (own, theirs) = disjoint(rows, &own, &ranges[from]);
            self.links.exchange(Some((to, own)), Some((from, theirs)))?;
        }
        Ok(())
    }

    /// Replaces all bytes of member 0's `rows` but its own by those of the members that own them.
    pub fn collect(&self, rows: &mut [u8], own: Range<usize>) -> Result<()> {
        let ranges = self.ranges(&own)?;
        if self.number() > 0 {
            return self.send(0, &rows[own]);
        }
        (1..self.count()).try_for_each(|from| self.receive(from, &mut rows[ranges[from].clone()]))
    }

    /// The numbers of all members one after the other, in their order; they may be of different lengths.
    pub fn all_numbers(&self, own: &[f64]) -> Result<Vec<f64>> {
        let lengths = self.ranges(&(0..own.len()))?;
        let mut all: Vec<Vec<f64>> = lengths.iter().map(|range| vec![0.0; range.len()]).collect();
        all[self.number()].copy_from_slice(own);
        for (to, from) in self.rounds() {
            let into = cast_slice_mut(&mut all[from]);
            self.links.exchange(Some((to, cast_slice(own))), Some((from, into)))?;
        }
        Ok(all.concat())
    }

    /// An error unless all members have the same number for `what`: it names the first that differs.
    pub fn agree(&self, what: &str, number: u64) -> Result<()> {
        let all = self.all_gather(&number.to_le_bytes())?;
        match all.iter().position(|bytes| *bytes != all[0]) {
            None => Ok(()),
            Some(member) => {
                Err(Error::request(format!("process {member} has another {what} than process 0")))
            }
        }
    }
}

/// Two ranges of bytes, which do not overlap.
fn disjoint<'a>(bytes: &'a mut [u8], one: &Range<usize>, other: &Range<usize>) -> (&'a [u8], &'a mut [u8]) {
    if one.end <= other.start {
        let (before, after) = bytes.split_at_mut(other.start);
        (&before[one.clone()], &mut after[..other.len()])
    } else {
        let (before, after) = bytes.split_at_mut(one.start.max(other.end));
        (&after[one.start - one.start.max(other.end)..][..one.len()], &mut before[other.clone()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::scope;

    /// What each of `count` members makes.
    fn each<R: Send>(count: usize, make: impl Fn(Group) -> R + Sync) -> Vec<R> {
        scope(|scope| {
            let make = &make;
            let members = threads::links(count, std::time::Duration::from_secs(20));
            let started: Vec<_> =
                members.into_iter().map(|links| scope.spawn(move || make(Group::new(links)))).collect();
            started.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    /// Ranges of unequal lengths, some empty.
    fn own(number: usize, count: usize, n: usize) -> Range<usize> {
        let end = |number: usize| if number == count { n } else { n * number * number / (count * count) };
        end(number)..end(number + 1)
    }

    #[test]
    fn collectives_do_what_they_say() {
        const N: usize = 1003;
        for count in 1..=5 {
            let sums =
                |number: usize| -> Vec<f64> { (0..N).map(|i| 0.1 * (i * (number + 1)) as f64).collect() };
            let total: Vec<f64> =
                (0..N).map(|i| (1..count).fold(sums(0)[i], |sum, number| sum + sums(number)[i])).collect();
            each(count, |group| {
                let (number, mut mine) = (group.number(), sums(group.number()));
                let own = own(number, count, N);
                group.reduce_scatter(&mut mine, own.clone()).unwrap();
                for (i, &x) in mine.iter().enumerate() {
                    assert_eq!(x.to_bits(), if own.contains(&i) { total[i] } else { 0.0 }.to_bits());
                }
                let bytes = own.start * 8..own.end * 8;
                let mut gathered = mine.clone();
                group.gather(cast_slice_mut(&mut gathered), bytes.clone()).unwrap();
                assert_eq!(gathered, total);
                group.collect(cast_slice_mut(&mut mine), bytes).unwrap();
                assert!(number > 0 || mine == total);
                let mut text = if number == 0 { b"all the same".to_vec() } else { vec![7; number] };
                group.broadcast_vec(&mut text).unwrap();
                assert_eq!(text, b"all the same");
                let numbers = group.all_numbers(&vec![number as f64; number]).unwrap();
                assert_eq!(numbers, (0..count).flat_map(|r| vec![r as f64; r]).collect::<Vec<_>>());
                group.agree("store", 5).unwrap();
            });
        }
    }

    #[test]
    fn who_differs_is_named() {
        let differ = each(4, |group| group.agree("store", u64::from(group.number() == 2)).unwrap_err());
        assert!(
            differ.iter().all(|e| e.to_string() == "process 2 has another store than process 0"),
            "{differ:?}"
        );
    }

    /// One that ends early, and one that does nothing.
    #[test]
    fn nobody_waits_for_a_member_that_has_ended() {
        let ended = each(3, |group| if group.number() == 1 { Ok(()) } else { group.agree("store", 1) });
        assert!(ended[0].is_err() && ended[2].is_err(), "{ended:?}");
        let hangs = scope(|scope| {
            let members = threads::links(2, std::time::Duration::from_millis(50));
            let first = Group::new(Arc::clone(&members[0]));
            let result = scope.spawn(move || first.agree("store", 1)).join().unwrap();
            drop(members);
            result
        });
        let what = "process 1 has sent nothing for 50 ms";
        assert!(hangs.as_ref().is_err_and(|e| e.to_string().starts_with(what)), "{hangs:?}");
    }
}
