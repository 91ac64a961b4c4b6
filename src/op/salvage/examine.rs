//! One chunk file: what it says it is, whether it is whole, and its nonzeros.

use crate::coo::Batch;
use crate::encoding::{IndexEncoding, TILE_NNZ};
use crate::error::{Error, Result};
use crate::format::blco::{ChunkView, Decoder, chunk_shape};
use crate::shape::Shape;
use crate::store::{ChunkHeader, LoneReader};
use crate::sys::{Sys, is_media_failure};
use rayon::prelude::*;
use std::path::Path;

/// Tiles that are decoded at once: enough for every thread, little memory.
const BATCH_TILES: usize = 128;

/// A chunk file that has been looked at.
#[derive(Debug)]
pub(super) struct Examined {
    /// Its name in the store's directory.
    pub file: String,
    /// Its header, where that is whole.
    pub header: Option<ChunkHeader>,
    /// What is in it, or why that cannot be used.
    pub contents: std::result::Result<Contents, String>,
}

/// What an intact chunk holds.
#[derive(Debug)]
pub(super) struct Contents {
    /// The tensor's shape.
    pub shape: Shape,
    /// Whether neighbours have the same coordinates.
    pub repeats: bool,
    /// Coordinates of the first nonzero.
    pub first: Vec<u32>,
    /// Coordinates of the last nonzero.
    pub last: Vec<u32>,
}

/// The damage that an error tells of, or the error itself where no file is to blame.
pub(super) fn damage(error: Error) -> Result<String> {
    match error {
        Error::Corrupt { what, .. } => Ok(what),
        Error::Io { action, source, .. } if is_media_failure(&source) => {
            Ok(format!("cannot {action}: {source}"))
        }
        other => Err(other),
    }
}

/// Reads and decodes chunk files, each by itself.
pub(super) struct Examiner {
    sys: Sys,
    reader: LoneReader,
    /// Made again where a chunk is of another shape or encoding than the one before.
    decoder: Option<(IndexEncoding, Decoder)>,
}

impl Examiner {
    pub fn new(sys: &Sys) -> Result<Self> {
        Ok(Self { sys: sys.clone(), reader: LoneReader::new(sys)?, decoder: None })
    }

    /// Bytes that it holds.
    pub fn host_bytes(&self) -> u64 {
        self.reader.bytes()
    }

    /// Looks at `file` in `dir`, down to every nonzero. `refuse` says of a whole header why the chunk is not wanted.
    pub fn examine(
        &mut self,
        dir: &Path,
        file: String,
        refuse: &dyn Fn(&ChunkHeader) -> Option<String>,
    ) -> Result<Examined> {
        let path = dir.join(&file);
        let header = match self.reader.header(&path) {
            Ok(header) => header,
            Err(error) => return Ok(Examined { file, header: None, contents: Err(damage(error)?) }),
        };
        let contents = match refuse(&header) {
            Some(reason) => Err(reason),
            None => match self.contents(&path, &header) {
                Ok(contents) => Ok(contents),
                Err(error) => Err(damage(error)?),
            },
        };
        Ok(Examined { file, header: Some(header), contents })
    }

    /// Decodes everything once, to know that it can be.
    fn contents(&mut self, path: &Path, header: &ChunkHeader) -> Result<Contents> {
        let order = usize::from(header.order);
        let (mut first, mut last, mut repeats) = (Vec::new(), Vec::new(), false);
        let shape = self.batches(path, header, &mut |batch| {
            for row in batch.indices.chunks_exact(order) {
                repeats |= last == row;
                last.clear();
                last.extend_from_slice(row);
            }
            if first.is_empty() {
                first.extend(batch.indices.iter().take(order));
            }
            Ok(())
        })?;
        Ok(Contents { shape, repeats, first, last })
    }

    /// Hands the nonzeros of a chunk to `sink`, in order, and returns the shape that the chunk gives.
    pub fn batches(
        &mut self,
        path: &Path,
        header: &ChunkHeader,
        sink: &mut dyn FnMut(Batch) -> Result<()>,
    ) -> Result<Shape> {
        let Self { sys, reader, decoder } = self;
        let image = reader.load(path, header)?;
        let shape = chunk_shape(header, image, path)?;
        let encoding = IndexEncoding::from_code(header.index_encoding.into())
            .ok_or_else(|| Error::corrupt(path, "unknown index encoding"))?;
        if decoder.as_ref().is_none_or(|(e, d)| *e != encoding || *d.shape() != shape) {
            *decoder = Some((encoding, Decoder::new(&shape, encoding)));
        }
        let Some((_, decoder)) = decoder else { return Ok(shape) };
        let view = ChunkView::open(decoder, header, image, path.to_path_buf())?;
        for tiles in (0..view.tiles()).step_by(BATCH_TILES) {
            sys.check_cancelled()?;
            sink(decode(sys, &view, tiles, header.nnz as usize, shape.order())?)?;
        }
        Ok(shape)
    }
}

/// The nonzeros of up to [`BATCH_TILES`] tiles from `first_tile` on, of a chunk of `nnz`.
fn decode(sys: &Sys, view: &ChunkView<'_>, first_tile: usize, nnz: usize, order: usize) -> Result<Batch> {
    let nnz = (nnz - first_tile * TILE_NNZ).min(BATCH_TILES * TILE_NNZ);
    let mut batch = Batch { indices: sys.vec(0, nnz * order)?, values: sys.vec(0.0, nnz)? };
    let rooms = batch.indices.par_chunks_mut(TILE_NNZ * order).zip(batch.values.par_chunks_mut(TILE_NNZ));
    let columns = || (vec![0; order * TILE_NNZ], vec![0.0; TILE_NNZ]);
    rooms.enumerate().try_for_each_init(columns, |(indices, values), (t, (rows, out))| {
        let tile = view.decode(first_tile + t, indices, values)?;
        out.copy_from_slice(tile.values);
        for m in 0..order {
            let places = rows.iter_mut().skip(m).step_by(order);
            places.zip(tile.column(m)).for_each(|(place, &index)| *place = index);
        }
        Ok(())
    })?;
    Ok(batch)
}
