//! One chunk file: what it says it is, whether it is whole, and its nonzeros.

use crate::coo::Batch;
use crate::encoding::TILE_NNZ;
use crate::error::{Error, Result, reason};
use crate::format::{ChunkView, Decoder, chunk_shape};
use crate::shape::Shape;
use crate::store::{ChunkHeader, Format, Formats, LoneReader, Store};
use crate::sys::{Sys, is_media_failure};
use rayon::prelude::*;
use std::path::Path;

/// Tiles that are decoded at once: enough for every thread, little memory.
const BATCH_TILES: usize = 128;

/// Bytes of the batch that is handed over and of its copy in tiles.
#[must_use]
pub fn batch_bytes(order: usize) -> u64 {
    2 * (BATCH_TILES * TILE_NNZ * (4 * order + 8)) as u64
}

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
    /// Its format.
    pub format: Format,
    /// Whether neighbours have the same coordinates.
    pub repeats: bool,
    /// Coordinates of the first nonzero.
    pub first: Vec<u32>,
    /// Coordinates of the last nonzero.
    pub last: Vec<u32>,
}

/// The damage that an error tells of, or the error itself where no file is to blame.
pub fn damage(error: Error) -> Result<String> {
    match error {
        Error::Corrupt { what, .. } => Ok(what),
        Error::Io { action, source, .. } if is_media_failure(&source) => {
            Ok(format!("cannot {action}: {}", reason(&source)))
        }
        other => Err(other),
    }
}

/// Reads and decodes chunk files, each independently.
pub(super) struct Examiner {
    sys: Sys,
    formats: Formats,
    /// The format of each partition, if there is a manifest.
    recorded: Option<Vec<Format>>,
    reader: LoneReader,
    /// Made again where a chunk is of another shape or format than the one before.
    decoder: Option<(Format, Decoder)>,
}

impl Examiner {
    /// Of chunks that take at most `memory` bytes, and are of `store` where its manifest is known.
    pub fn new(sys: &Sys, formats: &Formats, store: Option<&Store>, memory: u64) -> Result<Self> {
        let each = |store: &Store| store.whole().partitions.iter().map(|p| p.format.clone()).collect();
        let recorded = store.map(each);
        let mut reader = LoneReader::new(sys)?;
        reader.limit(memory);
        Ok(Self { sys: sys.clone(), formats: formats.clone(), recorded, reader, decoder: None })
    }

    /// Lets go of the memory; the next chunk takes it again.
    pub fn release(&mut self) -> Result<()> {
        self.reader.release()
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
        let (shape, format) = self.batches(path, header, &mut |batch| {
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
        Ok(Contents { shape, format, repeats, first, last })
    }

    /// Hands the nonzeros of a chunk to `sink`, in order, and returns the shape and format that the chunk gives.
    pub fn batches(
        &mut self,
        path: &Path,
        header: &ChunkHeader,
        sink: &mut dyn FnMut(Batch) -> Result<()>,
    ) -> Result<(Shape, Format)> {
        let Self { sys, formats, recorded, reader, decoder } = self;
        let image = reader.load(path, header)?;
        let shape = chunk_shape(header, image, path)?;
        let partition = header.partition as usize;
        let format = match recorded.as_ref().and_then(|recorded| recorded.get(partition)) {
            Some(format) => format.clone(),
            None => formats.of_chunk(header, image, path)?,
        };
        if decoder.as_ref().is_none_or(|(f, d)| *f != format || *d.shape() != shape) {
            *decoder = Some((format.clone(), Decoder::new(&shape, &format)));
        }
        let Some((_, decoder)) = decoder else { return Ok((shape, format)) };
        let view = ChunkView::open(decoder, header, image, path.to_path_buf())?;
        batches(sys, &view, shape.order(), sink)?;
        Ok((shape, format))
    }
}

/// Hands the nonzeros of a chunk of a tensor of `order` to `sink`, in order.
pub fn batches(
    sys: &Sys,
    view: &ChunkView<'_>,
    order: usize,
    sink: &mut dyn FnMut(Batch) -> Result<()>,
) -> Result<()> {
    (0..view.tiles()).step_by(BATCH_TILES).try_for_each(|tiles| {
        sys.check_cancelled()?;
        sink(decode(sys, view, tiles, order)?)
    })
}

/// The nonzeros of up to [`BATCH_TILES`] tiles from `first_tile` on.
fn decode(sys: &Sys, view: &ChunkView<'_>, first_tile: usize, order: usize) -> Result<Batch> {
    let tiles = first_tile..(first_tile + BATCH_TILES).min(view.tiles());
    let nnz = tiles.clone().map(|t| view.tile_nnz(t)).sum();
    let mut batch = Batch { indices: sys.vec(0, nnz * order)?, values: sys.vec(0.0, nnz)? };
    let (mut indices, mut values) = (&mut batch.indices[..], &mut batch.values[..]);
    let rooms = tiles.map(|t| {
        let nnz = view.tile_nnz(t);
        let rows = indices.split_off_mut(..nnz * order).unwrap_or_default();
        (t, rows, values.split_off_mut(..nnz).unwrap_or_default())
    });
    let rooms: Vec<_> = rooms.collect();
    let columns = || (vec![0; order * TILE_NNZ], vec![0.0; TILE_NNZ]);
    rooms.into_par_iter().try_for_each_init(columns, |(indices, values), (t, rows, out)| {
        let tile = view.decode(t, indices, values)?;
        out.copy_from_slice(tile.values);
        for m in 0..order {
            let places = rows.iter_mut().skip(m).step_by(order);
            places.zip(tile.column(m)).for_each(|(place, &index)| *place = index);
        }
        Ok(())
    })?;
    Ok(batch)
}
