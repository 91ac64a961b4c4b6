//! The compressed tree of HOCFS stores and other tree formats (formats-spec/hocfs.md).
//!
//! Level 0 holds the indices of the first mode that occur. Each has as children the indices of the second mode that
//! occur with it, and so on. The last level holds **leaves**, one per nonzero, with the values. Nothing empty is
//! stored. A node of level 0 is a **slice**, a node of the last level but one a **fiber**. [`Tree`] is the plain form
//! in memory: it takes nonzeros in order and can be cut in two anywhere. `encode` builds a chunk's image from it,
//! `measure` tracks the image's length as it grows, [`TreeView`] reads it, and `build` decides which nonzeros go into
//! which chunk.

mod build;
mod encode;
mod measure;
mod padding;
mod record;
mod tiles;
mod view;

pub use build::TreeBuilder;
pub(crate) use build::{OPEN_CHUNKS, open_chunk_bytes, rebuilt_chunk_bytes};
pub use encode::TreeEncoder;
pub use measure::Meter;
#[cfg(feature = "cuda")]
pub(crate) use record::RECORD_BYTES;
pub(crate) use record::nodes_max;
pub use tiles::Recent;
pub(crate) use tiles::{FiberTile, walk};
pub(crate) use view::told_by;
pub use view::{Leaves, Nodes, TreeDecoder, TreeView};

use crate::encoding::TILE_NNZ;
use crate::shape::ORDER_MAX;

/// The index of padding among leaves. No dim is large enough for it to be a real index.
pub(crate) const PADDING: u32 = u32::MAX;

/// One level above the leaves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Level {
    /// The index of each node.
    pub indices: Vec<u32>,
    /// Where each node's children begin, counted over the whole next level. Strictly ascending from 0.
    pub starts: Vec<u32>,
}

/// The nonzeros of one chunk as a tree.
#[derive(Clone, Debug, PartialEq)]
pub struct Tree {
    /// The levels above the leaves, at least one.
    pub levels: Vec<Level>,
    /// The index of each leaf in the last level's mode.
    pub leaves: Vec<u32>,
    /// The value of each leaf.
    pub values: Vec<f64>,
    /// The coordinates of the last nonzero, level by level.
    last: [u32; ORDER_MAX],
}

impl Tree {
    /// An empty tree for tensors of `order`.
    #[must_use]
    pub fn new(order: usize) -> Self {
        let levels = vec![Level::default(); order - 1];
        Self { levels, leaves: Vec::new(), values: Vec::new(), last: [0; ORDER_MAX] }
    }

    /// The number of levels, leaves included.
    #[must_use]
    pub fn order(&self) -> usize {
        self.levels.len() + 1
    }

    /// Nonzeros.
    #[must_use]
    pub fn nnz(&self) -> usize {
        self.leaves.len()
    }

    /// Nodes of all levels, leaves included.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.levels.iter().map(|level| level.indices.len()).sum::<usize>() + self.leaves.len()
    }

    /// Nodes of `level`.
    #[must_use]
    pub fn level_nodes(&self, level: usize) -> usize {
        self.levels.get(level).map_or(self.leaves.len(), |level| level.indices.len())
    }

    /// Adds the next nonzero; `at` holds its coordinates from the first level's to the leaves'.
    ///
    /// # Panics
    /// With 2^32 nonzeros. Builders of chunks stay below that.
    pub fn push(&mut self, at: &[u32], value: f64) {
        let inner = self.levels.len();
        let same = at[..inner].iter().zip(&self.last).take_while(|(a, b)| a == b).count();
        let first = if self.leaves.is_empty() { 0 } else { same };
        for (level, &index) in at.iter().enumerate().take(inner).skip(first) {
            let start =
                u32::try_from(self.level_nodes(level + 1)).expect("a chunk has fewer than 2^32 nodes");
            self.levels[level].indices.push(index);
            self.levels[level].starts.push(start);
        }
        self.leaves.push(at[inner]);
        self.values.push(value);
        self.last[..at.len()].copy_from_slice(at);
    }

    /// Adds nonzeros, as [`Tree::push`] would one by one: at most [`TILE_NNZ`]. `columns` holds their indices, from the first
    /// level's to the leaves'.
    ///
    /// # Panics
    /// With 2^32 nodes of a level, more than [`TILE_NNZ`] nonzeros, or columns of another length than `values`.
    pub fn extend(&mut self, columns: &[&[u32]], values: &[f64]) {
        let (inner, nnz) = (self.levels.len(), values.len());
        assert!(columns.iter().all(|column| column.len() == nnz), "an index of each level for each nonzero");
        let Some(end) = nnz.checked_sub(1) else { return };
        // Whether nonzero i has a new node of the level, 0 or 1; and of the one above.
        let mut new = [[0u8; TILE_NNZ]; ORDER_MAX];
        let mut above = [0; TILE_NNZ];
        above[0] = u8::from(self.leaves.is_empty());
        for ((new, column), last) in new.iter_mut().zip(&columns[..inner]).zip(self.last) {
            let (column, new, above) = (&column[..nnz], &mut new[..nnz], &mut above[..nnz]);
            above[0] |= u8::from(column[0] != last);
            for ((above, &index), &before) in above[1..].iter_mut().zip(&column[1..]).zip(column) {
                *above |= u8::from(index != before);
            }
            new.copy_from_slice(above);
        }
        new[inner] = [1; TILE_NNZ];
        for (l, column) in columns[..inner].iter().enumerate() {
            let fits = |nodes: usize| u32::try_from(nodes).expect("a chunk has fewer than 2^32 nodes");
            fits(self.level_nodes(l + 1) + nnz);
            let mut child = fits(self.level_nodes(l + 1));
            let (mut indices, mut starts) = ([0; TILE_NNZ], [0; TILE_NNZ]);
            let mut nodes = 0;
            // Without branches: what is not a new node is overwritten by the next.
            for ((&index, &is_new), &children) in column.iter().zip(&new[l][..nnz]).zip(&new[l + 1]) {
                (indices[nodes], starts[nodes]) = (index, child);
                nodes += usize::from(is_new);
                child += u32::from(children);
            }
            self.levels[l].indices.extend_from_slice(&indices[..nodes]);
            self.levels[l].starts.extend_from_slice(&starts[..nodes]);
        }
        self.leaves.extend_from_slice(columns[inner]);
        self.values.extend_from_slice(values);
        for (last, column) in self.last.iter_mut().zip(columns) {
            *last = column[end];
        }
    }

    /// Passes every nonzero to `take`, in order, as [`Tree::push`] took it.
    pub fn for_each<E>(&self, mut take: impl FnMut(&[u32], f64) -> Result<(), E>) -> Result<(), E> {
        let mut at = [0; ORDER_MAX];
        // The next node of each level.
        let mut next = [0; ORDER_MAX];
        for (leaf, (&index, &value)) in self.leaves.iter().zip(&self.values).enumerate() {
            let mut child = leaf;
            for (l, level) in self.levels.iter().enumerate().rev() {
                if level.starts.get(next[l]).is_none_or(|&start| start as usize != child) {
                    break;
                }
                at[l] = level.indices[next[l]];
                child = next[l];
                next[l] += 1;
            }
            at[self.levels.len()] = index;
            take(&at[..self.order()], value)?;
        }
        Ok(())
    }

    /// The first leaf of the last node of `level`.
    #[must_use]
    pub fn last_start(&self, level: usize) -> usize {
        let mut node = self.level_nodes(level).saturating_sub(1);
        for level in &self.levels[level..] {
            node = level.starts[node] as usize;
        }
        node
    }

    /// Removes and returns the leaves from `at` on, with their levels. A node with leaves on both sides is in both
    /// trees.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        let mut rest = Self::new(self.order());
        rest.last = self.last;
        let mut end = self.leaves.len();
        rest.leaves = split(&mut self.leaves, at);
        rest.values = split(&mut self.values, at);
        // Children before `cut` stay; those from `shift` on go into the rest.
        let (mut cut, mut shift) = (at, at);
        for (level, behind) in self.levels.iter_mut().zip(&mut rest.levels).rev() {
            let nodes = level.starts.len();
            let stay = level.starts.partition_point(|&start| (start as usize) < cut);
            let last_end = level.starts.get(stay).map_or(end, |&start| start as usize);
            let from = if last_end > shift { stay - 1 } else { stay };
            behind.indices = split(&mut level.indices, from);
            behind.starts = split(&mut level.starts, from);
            if from < stay {
                level.indices.push(behind.indices[0]);
                level.starts.push(behind.starts[0]);
            }
            // The first child can be one with leaves on both sides.
            for start in &mut behind.starts {
                *start = u32::try_from((*start as usize).saturating_sub(shift)).expect("less than before");
            }
            (cut, shift, end) = (stay, from, nodes);
        }
        rest
    }
}

/// Removes and returns the elements from `at` on. Copies the shorter part, and neither part keeps unused capacity, so
/// both together take little more than the original.
fn split<T: Copy>(vec: &mut Vec<T>, at: usize) -> Vec<T> {
    if at >= vec.len() / 2 {
        let rest = vec[at..].to_vec();
        vec.truncate(at);
        vec.shrink_to_fit();
        return rest;
    }
    let first = vec[..at].to_vec();
    vec.drain(..at);
    vec.shrink_to_fit();
    std::mem::replace(vec, first)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Rows = Vec<([u32; 4], f64)>;

    fn rows(tree: &Tree) -> Rows {
        let mut found = Vec::new();
        for (leaf, (&index, &value)) in tree.leaves.iter().zip(&tree.values).enumerate() {
            let mut at = [0, 0, 0, index];
            let mut node = leaf;
            for (l, level) in tree.levels.iter().enumerate().rev() {
                node = level.starts.partition_point(|&start| start as usize <= node) - 1;
                at[l] = level.indices[node];
            }
            found.push((at, value));
        }
        let mut handed = Vec::new();
        let take = |at: &[u32], value| {
            handed.push((at.try_into().unwrap(), value));
            Ok::<_, ()>(())
        };
        tree.for_each(take).unwrap();
        assert_eq!(handed, found);
        found
    }

    fn tree(rows: &Rows) -> Tree {
        let mut tree = Tree::new(4);
        for (at, value) in rows {
            tree.push(at, *value);
        }
        tree
    }

    fn example() -> Rows {
        let mut rows: Rows = (0..60u32).map(|i| ([i / 20, i / 7 % 4, i / 2, i % 5], f64::from(i))).collect();
        rows.sort_by_key(|row| row.0);
        rows
    }

    #[test]
    fn nothing_empty_is_there_and_nonzeros_come_back() {
        let rows_in = example();
        let tree = tree(&rows_in);
        assert_eq!(rows(&tree), rows_in);
        assert_eq!(tree.level_nodes(0), 3);
        for (l, level) in tree.levels.iter().enumerate() {
            assert!(level.starts[0] == 0 && level.starts.is_sorted_by(|a, b| a < b));
            assert!((*level.starts.last().unwrap() as usize) < tree.level_nodes(l + 1));
        }
    }

    /// Both halves equal the trees built from the nonzeros before and after the cut.
    #[test]
    fn a_tree_can_be_cut_anywhere() {
        let all = example();
        for at in 1..all.len() {
            let mut first = tree(&all);
            let rest = first.split_off(at);
            let (before, behind) = (tree(&all[..at].to_vec()), tree(&all[at..].to_vec()));
            assert_eq!((&first.levels, &first.leaves), (&before.levels, &before.leaves), "cut at {at}");
            assert_eq!(rest, behind, "cut at {at}");
        }
    }
}
