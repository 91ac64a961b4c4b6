//! Views that are decoded by one call per tile: those of registered formats, and of layouts without a view of their
//! own. Decoded nonzeros are checked here, because no operation checks them again.

use super::{ChunkDecoder, DecodedTile, NonzeroView, check_dims, wrong_section};
use crate::chunk::ChunkHeader;
use crate::encoding::TILE_NNZ;
use crate::encoding::values::ValueEncoding;
use crate::error::{Error, Result};
use crate::shape::{ORDER_MAX, Shape};
use std::ops::Range;
use std::path::PathBuf;

/// A chunk's image, checked by its format.
#[derive(Debug)]
pub struct OtherView<'a> {
    shape: &'a Shape,
    path: PathBuf,
    number: u32,
    image: &'a [u8],
    payload_at: usize,
    nnz: usize,
    first_nonzero: u64,
    value_encoding: ValueEncoding,
    nonzeros: Box<dyn NonzeroView + 'a>,
}

impl<'a> OtherView<'a> {
    pub(super) fn open(
        shape: &'a Shape,
        decoder: &'a dyn ChunkDecoder,
        header: &ChunkHeader,
        image: &'a [u8],
        path: PathBuf,
    ) -> Result<Self> {
        let wrong = |what| Error::corrupt(&path, format!("chunk {}: corrupt: {what}", header.number));
        check_dims(shape, header, image).map_err(|what| wrong_section(&path, header, what))?;
        let value_encoding = ValueEncoding::from_code(header.codes.value_encoding);
        let value_encoding = value_encoding.ok_or_else(|| wrong("unknown value encoding"))?;
        let nonzeros = decoder.open(header, image).map_err(|what| wrong_section(&path, header, what))?;
        Ok(Self {
            shape,
            path,
            number: header.number,
            image,
            payload_at: header.header_bytes(),
            nnz: header.nnz as usize,
            first_nonzero: header.first_nonzero,
            value_encoding,
            nonzeros,
        })
    }

    /// Slots of the first tile that lie in earlier chunks.
    #[expect(clippy::cast_possible_truncation, reason = "less than a tile")]
    fn before(&self) -> usize {
        (self.first_nonzero % TILE_NNZ as u64) as usize
    }

    pub(super) fn tiles(&self) -> usize {
        (self.before() + self.nnz).div_ceil(TILE_NNZ)
    }

    pub(super) fn first_tile(&self) -> u64 {
        self.first_nonzero / TILE_NNZ as u64
    }

    /// The chunk's nonzeros that are in tile `t`.
    fn range(&self, t: usize) -> Range<usize> {
        let end = ((t + 1) * TILE_NNZ - self.before()).min(self.nnz);
        (t * TILE_NNZ).saturating_sub(self.before())..end
    }

    pub(super) fn tile_nnz(&self, t: usize) -> usize {
        self.range(t).len()
    }

    pub(super) fn value_encoding(&self) -> ValueEncoding {
        self.value_encoding
    }

    pub(super) fn payload(&self) -> &[u8] {
        &self.image[self.payload_at..]
    }

    pub(super) fn value_bytes(&self) -> u64 {
        self.nonzeros.value_bytes()
    }

    pub(super) fn index_bytes(&self) -> u64 {
        self.nonzeros.index_bytes()
    }

    pub(super) fn stored_values_within(&self, low: f64, high: f64) -> bool {
        self.nonzeros.stored_values_within(low, high)
    }

    pub(super) fn for_each_values(&self, mut take: impl FnMut(&[f64])) -> Result<()> {
        let (mut indices, mut values) = (vec![0; self.shape.order() * TILE_NNZ], [0.0; TILE_NNZ]);
        (0..self.tiles()).try_for_each(|t| {
            take(self.decode(t, &mut indices, &mut values)?.values);
            Ok(())
        })
    }

    /// Never returns an index outside the dims or a value that is not finite, whatever the format does.
    pub(super) fn decode<'b>(
        &self,
        t: usize,
        indices: &'b mut [u32],
        values: &'b mut [f64],
    ) -> Result<DecodedTile<'b>> {
        let range = self.range(t);
        let nnz = range.len();
        let mut sound = self.nonzeros.decode(range, indices, values);
        let (mut low, mut high) = ([0; ORDER_MAX], [0; ORDER_MAX]);
        for (m, column) in indices.chunks_exact_mut(TILE_NNZ).enumerate().take(self.shape.order()) {
            let (used, rest) = column.split_at_mut(nnz);
            low[m] = used.iter().copied().min().unwrap_or(0);
            high[m] = used.iter().copied().max().unwrap_or(0);
            rest.fill(low[m]);
            sound &= high[m] < self.shape.dims()[m];
        }
        let values = &values[..nnz];
        let finite = values.iter().all(|v| v.is_finite());
        if !sound || !finite {
            let rule = if sound { "image-value" } else { "image-index" };
            let what = format!("chunk {}: corrupt: tile {t}: a number out of range", self.number);
            return Err(Error::corrupt(&self.path, what).breaks(rule));
        }
        Ok(DecodedTile { nnz, low, high, indices, values })
    }
}
