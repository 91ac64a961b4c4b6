//! HB-CSF, hybrid B-CSF (Nisa et al., IPDPS 2019, section V; formats-spec/formats.md). Each main mode has up to three
//! partitions: slices of one nonzero as coordinates, slices whose fibers all have one nonzero as CSL, and all others as
//! B-CSF.
//!
//! CSL is stored as a tree too. A fiber of one leaf costs only its index, since starts are predicted by a stride.

use super::bcsf::FIBER_SPLIT;
use super::coordinates::{self, CoordinatesBuilder, CoordinatesDecoder};
use super::partitions::{PartitionRecord, all_modes};
use super::tree::{self, TreeBuilder, TreeDecoder};
use super::{
    Checked, ChunkBuilder, ChunkFormat, Decoder, FiberCounts, Format, FormatRecord, Layout, PartitionPlan,
    Scheme, SliceKind, Takes, Trees,
};
use crate::chunk::{ChunkHeader, Version};
use crate::encoding::LeafRule;
use crate::encoding::values::ValueEncoding;
use crate::error::Result;
use crate::shape::{ModeOrder, Shape};

/// The roles and their codes in parameters.
const ROLES: [(SliceKind, u32); 3] =
    [(SliceKind::Single, 1), (SliceKind::Singletons, 2), (SliceKind::Fibers, 3)];

/// A partition of the format.
#[derive(Clone, Copy, Debug)]
pub struct Hbcsf {
    /// The order of modes, the main mode first.
    pub levels: ModeOrder,
    /// Which slices it has.
    pub slices: SliceKind,
    /// The most leaves of a fiber that one worker takes, for [`SliceKind::Fibers`].
    pub fiber_split: u32,
}

impl Hbcsf {
    fn is_coordinates(&self) -> bool {
        self.slices == SliceKind::Single
    }

    fn role(&self) -> u32 {
        ROLES.iter().find(|(slices, _)| *slices == self.slices).map_or(0, |(_, role)| *role)
    }
}

impl ChunkFormat for Hbcsf {
    fn code() -> u32 {
        5
    }

    fn read(record: &FormatRecord, order: usize) -> Checked<Self> {
        let levels = record.levels.filter(|levels| levels.modes().len() == order).ok_or("modes of levels")?;
        let bytes: [u8; 8] = record.parameters[..].try_into().map_err(|_| "parameters of a partition")?;
        let [role, fiber_split] = [0, 4].map(|at| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i])));
        let slices = ROLES.iter().find(|(_, known)| *known == role).ok_or("parameters of a partition")?.0;
        match (slices, fiber_split) {
            (SliceKind::Fibers, 0) => Err("parameters of a partition"),
            (SliceKind::Fibers, _) | (_, 0) => Ok(Self { levels, slices, fiber_split }),
            _ => Err("parameters of a partition"),
        }
    }

    fn of_chunk(header: &ChunkHeader, image: &[u8]) -> Checked<Self> {
        if header.codes.layout == Layout::COORDINATES.0 {
            return Err("coordinates, which do not tell their order of modes; the manifest does");
        }
        let (levels, leaf) = tree::told_by(header, image)?;
        let slices = SliceKind::Fibers;
        let found = Self { levels, slices, fiber_split: FIBER_SPLIT };
        if leaf == LeafRule::Csr { Ok(found) } else { Err("unknown leaf rule") }
    }

    fn record(&self) -> FormatRecord {
        let layout = if self.is_coordinates() { Layout::COORDINATES } else { Layout::TREE };
        let split = if self.slices == SliceKind::Fibers { self.fiber_split } else { 0 };
        let parameters = [self.role(), split].into_iter().flat_map(u32::to_le_bytes).collect();
        FormatRecord { code: Self::code(), layout, levels: Some(self.levels), parameters }
    }

    fn name(&self) -> &'static str {
        "hbcsf"
    }

    fn options(&self) -> String {
        format!(
            "--format hbcsf {:?} --fiber-split {}, levels of modes {:?}",
            self.slices,
            self.fiber_split,
            self.levels.modes()
        )
    }

    fn cuts_at_tiles(&self) -> bool {
        false
    }

    fn nonzero_bytes_min(&self) -> u64 {
        if self.is_coordinates() { 4 } else { 2 }
    }

    fn has_value_encoding(&self, code: u8) -> bool {
        let stored = [ValueEncoding::F32, ValueEncoding::F64];
        ValueEncoding::from_code(code).is_some_and(|e| !self.is_coordinates() || stored.contains(&e))
    }

    fn open_chunk_bytes(&self, chunk_bytes: u64) -> u64 {
        if self.is_coordinates() {
            coordinates::open_chunk_bytes(chunk_bytes)
        } else {
            tree::open_chunk_bytes(chunk_bytes)
        }
    }

    fn rebuilt_chunk_bytes(
        &self,
        chunk_bytes: u64,
        headers: &mut dyn Iterator<Item = Result<ChunkHeader>>,
    ) -> Result<u64> {
        if self.is_coordinates() {
            return Ok(coordinates::open_chunk_bytes(chunk_bytes));
        }
        tree::rebuilt_chunk_bytes(LeafRule::Csr, chunk_bytes, headers)
    }

    fn builder(&self, version: Version, shape: &Shape, chunk_bytes: u64) -> Box<dyn ChunkBuilder> {
        let code = Self::code();
        if self.is_coordinates() {
            let layout = Layout::COORDINATES.0;
            return Box::new(CoordinatesBuilder::new(version, shape, code, layout, chunk_bytes));
        }
        Box::new(TreeBuilder::new(version, shape, &self.levels, LeafRule::Csr, code, chunk_bytes))
    }

    fn decoder(&self, shape: &Shape) -> Decoder {
        if self.is_coordinates() {
            return Decoder::Other(shape.clone(), Box::new(CoordinatesDecoder(shape.clone())));
        }
        Decoder::Tree(TreeDecoder::new(shape, &self.levels, LeafRule::Csr))
    }

    fn check_among(&self, all: &[PartitionRecord], at: usize, _order: usize) -> Checked<()> {
        let covers = all[at].covers;
        if !covers.is_power_of_two() {
            return Err("covers of the format");
        }
        for (other, record) in all.iter().enumerate().filter(|(other, _)| *other != at) {
            let own = record.format.record();
            let alike = own.levels.is_some_and(|levels| levels.mode(0) == self.levels.mode(0));
            if alike != (record.covers == covers) || alike && own.parameters[..4] == self.role().to_le_bytes()
            {
                return Err(if other < at { "covers of the format" } else { "roles of a main mode" });
            }
        }
        Ok(())
    }

    fn distance(&self, mode: usize) -> usize {
        self.levels.modes().iter().position(|&of_level| usize::from(of_level) == mode).unwrap_or(0)
    }

    fn traversal(&self) -> Option<ModeOrder> {
        Some(self.levels)
    }

    fn cover_key(&self) -> u32 {
        u32::try_from(self.levels.mode(0)).unwrap_or(u32::MAX)
    }

    fn takes(&self) -> Takes {
        Takes::Slices(self.slices)
    }

    /// Coordinates have all indices, CSL a slice's index and pointer and all others, B-CSF those of a tree (section V, Figure 4).
    fn paper_index_bytes(&self, counts: &FiberCounts) -> Option<u64> {
        let below = counts.nodes.len() as u64;
        Some(match self.slices {
            SliceKind::Single => 4 * (below + 1) * counts.nnz,
            SliceKind::Singletons => 4 * (2 * counts.slices() + below * counts.nnz),
            SliceKind::Fibers => counts.tree_bytes() + 8 * (counts.split_fibers - counts.fibers()),
        })
    }

    fn beside(&self, plan: &PartitionPlan) -> Vec<PartitionPlan> {
        let other = |(slices, _)| {
            let fiber_split = if slices == SliceKind::Fibers { FIBER_SPLIT } else { 0 };
            let format = Format::new(Self { slices, fiber_split, ..*self });
            PartitionPlan { format, takes: Takes::Slices(slices), ..*plan }
        };
        ROLES.into_iter().filter(|(slices, _)| *slices != self.slices).map(other).collect()
    }
}

/// The partitions of a tensor of `shape`: a cover for each main mode.
#[must_use]
pub fn scheme(shape: &Shape, trees: Trees, fiber_split: u32) -> Scheme {
    let (order, orders) = (shape.order(), trees.orders(shape));
    let alone = orders.len() == 1;
    let partitions = (0..).zip(orders).flat_map(|(cover, levels)| {
        ROLES.map(|(slices, _)| {
            let fiber_split = if slices == SliceKind::Fibers { fiber_split } else { 0 };
            PartitionPlan {
                format: Format::new(Hbcsf { levels, slices, fiber_split }),
                targets: if alone { all_modes(order) } else { 1 << levels.mode(0) },
                covers: 1 << cover,
                takes: Takes::Slices(slices),
            }
        })
    });
    Scheme { partitions: partitions.collect() }
}
