//! The known formats: this program's own, and those that the caller registers.

use super::bcsf::Bcsf;
use super::blco::Blco;
use super::csf::Csf;
use super::fcoo::Fcoo;
use super::hbcsf::Hbcsf;
use super::hocfs::Hocfs;
use super::mmcsf::Mmcsf;
use super::trees::TreeOf;
use super::{Checked, ChunkFormat};
use crate::chunk::{ChunkCodes, ChunkHeader, Version};
use crate::encoding::{IndexEncoding, LeafRule};
use crate::error::{Error, Result};
use crate::linear::BitLayout;
use crate::shape::{ModeOrder, Shape};
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

/// Codes from here up are for private formats; no page of formats-spec will use them.
pub const PRIVATE_CODE: u32 = 1 << 31;

/// How the sections of a chunk are laid out. Operations ask for it if they use more than nonzeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout(pub u8);

impl Layout {
    /// Keys, BLCO blocks and 64-bit re-encoded indices (formats-spec/blco.md).
    pub const RAW: Self = Self(1);
    /// Packed columns in tiles, which kernels read without conversion (formats-spec/encodings.md).
    pub const TILED: Self = Self(2);
    /// A compressed tree (formats-spec/hocfs.md).
    pub const TREE: Self = Self(3);
    /// Columns of the product modes, and of the other modes by segment (formats-spec/formats.md).
    pub const SEGMENTS: Self = Self(4);
    /// Uncompressed indices and values (formats-spec/formats.md).
    pub const COORDINATES: Self = Self(5);
    /// Layouts of private formats start here.
    pub const PRIVATE: Self = Self(128);

    /// Whether chunks of this version of the container may use it.
    pub(crate) fn is_known(self, version: Version) -> bool {
        let newer = [Self::SEGMENTS, Self::COORDINATES].contains(&self) || self.0 >= Self::PRIVATE.0;
        [Self::RAW, Self::TILED, Self::TREE].contains(&self) || version > Version::One && newer
    }
}

/// What manifests record about a format: which it is, and its parameters. The record is unique: reading it
/// with [`ChunkFormat::read`] and recording the result gives the same record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatRecord {
    /// The format's code.
    pub code: u32,
    /// How its chunks are laid out. A private format has a private layout.
    pub layout: Layout,
    /// The sort order: by the index in the first of these modes, then by the next one's. It lists all modes of the
    /// tensor. `None` if the modes' bits are interleaved.
    pub levels: Option<ModeOrder>,
    /// Parameters that only the format itself reads.
    pub parameters: Vec<u8>,
}

impl FormatRecord {
    /// The layout of the linear index that nonzeros are sorted by.
    #[doc(hidden)]
    #[must_use]
    pub fn bit_layout(&self, shape: &Shape) -> BitLayout {
        let concatenated = |levels| BitLayout::concatenated(shape, levels);
        self.levels.as_ref().map_or_else(|| BitLayout::new(shape), concatenated)
    }

    /// Fails if it is invalid for a tensor of `order`: levels must name each mode once, and a private format needs a
    /// private layout.
    fn check(&self, order: usize) -> Checked<()> {
        let names_all = |levels: &ModeOrder| {
            levels.modes().len() == order && levels.modes().iter().all(|&mode| usize::from(mode) < order)
        };
        if !self.levels.as_ref().is_none_or(names_all) {
            return Err("modes of levels");
        }
        let is_private = self.code >= PRIVATE_CODE;
        if is_private == (self.layout.0 >= Layout::PRIVATE.0) { Ok(()) } else { Err("unknown layout") }
    }

    /// The codes in chunks' headers.
    #[must_use]
    pub fn chunk_codes(&self, version: Version, value_encoding: u8) -> ChunkCodes {
        let format = if version == Version::One { 0 } else { self.code };
        ChunkCodes { format, layout: self.layout.0, value_encoding }
    }
}

/// A format with its parameters. Two formats are equal if manifests record the same for both.
#[derive(Clone, Debug)]
pub struct Format {
    of: Arc<dyn ChunkFormat>,
    /// Whether sums along its tree are not used.
    is_flat: bool,
}

impl Format {
    /// Wraps a format.
    #[must_use]
    pub fn new(format: impl ChunkFormat) -> Self {
        Self { of: Arc::new(format), is_flat: false }
    }

    /// BLCO: linearized coordinates with interleaved bits of the modes.
    #[must_use]
    pub fn blco(encoding: IndexEncoding) -> Self {
        Self::new(Blco(encoding))
    }

    /// HOCFS: a compressed tree. Level l holds mode `levels.mode(l)`; slices of the main mode come first.
    #[must_use]
    pub fn hocfs(levels: ModeOrder, leaf: LeafRule) -> Self {
        Self::new(Hocfs { levels, leaf })
    }

    /// How its chunks are laid out.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.record().layout
    }

    /// The layout of the linear index that nonzeros are sorted by.
    #[doc(hidden)]
    #[must_use]
    pub fn bit_layout(&self, shape: &Shape) -> BitLayout {
        self.record().bit_layout(shape)
    }

    /// The order of modes of the tree along which the CPU adds up sums. `None` multiplies out each nonzero.
    #[doc(hidden)]
    #[must_use]
    pub fn traversal(&self) -> Option<ModeOrder> {
        self.of.traversal().filter(|_| !self.is_flat)
    }

    /// The same, of which the CPU multiplies out each nonzero.
    #[doc(hidden)]
    #[must_use]
    pub fn flat(self) -> Self {
        Self { is_flat: true, ..self }
    }

    /// The modes of a tree's levels, if chunks hold trees.
    #[must_use]
    pub fn tree_levels(&self) -> Option<ModeOrder> {
        self.record().levels.filter(|_| self.layout() == Layout::TREE)
    }
}

impl Deref for Format {
    type Target = dyn ChunkFormat;

    fn deref(&self) -> &Self::Target {
        &*self.of
    }
}

impl PartialEq for Format {
    fn eq(&self, other: &Self) -> bool {
        self.record() == other.record()
    }
}

impl Eq for Format {}

/// How to read a format with one code.
#[derive(Clone, Copy, Debug)]
struct Known {
    code: u32,
    read: fn(&FormatRecord, usize) -> Checked<Format>,
    of_chunk: fn(&ChunkHeader, &[u8]) -> Checked<Format>,
}

impl Known {
    fn of<F: ChunkFormat>() -> Self {
        Self {
            code: F::code(),
            read: |record, order| F::read(record, order).map(Format::new),
            of_chunk: |header, image| F::of_chunk(header, image).map(Format::new),
        }
    }
}

/// The formats that can be read.
#[derive(Clone, Debug)]
pub struct Formats(Vec<Known>);

/// This program's formats.
impl Default for Formats {
    fn default() -> Self {
        Self(vec![
            Known::of::<Blco>(),
            Known::of::<Hocfs>(),
            Known::of::<TreeOf<Csf>>(),
            Known::of::<TreeOf<Bcsf>>(),
            Known::of::<Hbcsf>(),
            Known::of::<TreeOf<Mmcsf>>(),
            Known::of::<Fcoo>(),
        ])
    }
}

impl Formats {
    /// Registers a format.
    pub fn register<F: ChunkFormat>(&mut self) {
        self.0.push(Known::of::<F>());
    }

    /// Fails if a registered format has a code that is not private or is taken.
    pub fn check(&self) -> Result<()> {
        for (at, known) in self.0.iter().enumerate().skip(Self::default().0.len()) {
            if known.code < PRIVATE_CODE {
                let what =
                    format!("format {}: codes of formats that are registered are from 2^31 up", known.code);
                return Err(Error::request(what));
            }
            if self.0[..at].iter().any(|other| other.code == known.code) {
                return Err(Error::request(format!("format {}: registered twice", known.code)));
            }
        }
        Ok(())
    }

    fn find(&self, code: u32) -> Option<&Known> {
        self.0.iter().find(|known| known.code == code)
    }

    /// Whether stores of the format with this code can be read.
    #[must_use]
    pub fn is_known(&self, code: u32) -> bool {
        self.find(code).is_some()
    }

    /// The format that a manifest of a tensor of `order` records.
    pub fn read(&self, record: &FormatRecord, order: usize) -> Checked<Format> {
        let known = self.find(record.code).ok_or("unknown format")?;
        record.check(order)?;
        let format = (known.read)(record, order)?;
        // A format's parameters must have one encoding only.
        if format.record() == *record {
            Ok(format)
        } else {
            Err("layout, order of modes or parameters of a partition")
        }
    }

    /// The format that a chunk reveals without its store's manifest.
    pub fn of_chunk(&self, header: &ChunkHeader, image: &[u8], path: &Path) -> Result<Format> {
        let code = match (header.version, Layout(header.codes.layout)) {
            (Version::One, Layout::TREE) => Hocfs::code(),
            (Version::One, _) => Blco::code(),
            _ => header.codes.format,
        };
        let known = self.find(code).ok_or_else(|| Error::unusable(path, format!("unknown format {code}")))?;
        let wrong = |what| Error::corrupt(path, format!("chunk {}: corrupt: {what}", header.number));
        let format = (known.of_chunk)(header, image).map_err(wrong)?;
        let record = format.record();
        record.check(header.order.into()).map_err(wrong)?;
        if record.chunk_codes(header.version, header.codes.value_encoding) != header.codes {
            return Err(wrong("layout"));
        }
        Ok(format)
    }
}
