//! One chunk file: its header, whether it is intact, and its nonzeros.

use crate::coo::Batch;
use crate::encoding::TILE_NNZ;
use crate::error::{Error, Result, reason};
use crate::format::tree::Recent;
use crate::format::{ChunkView, Decoder, chunk_shape};
use crate::shape::Shape;
use crate::store::{ChunkHeader, Format, Formats, LoneReader, Store};
use crate::sys::{Sys, is_media_failure};
use rayon::prelude::*;
use std::path::Path;

/// Tiles decoded together: enough work for every thread in little memory.
const BATCH_TILES: usize = 128;

/// Bytes of the current batch and of its copy in tiles.
#[must_use]
pub fn batch_bytes(order: usize) -> u64 {
    2 * (BATCH_TILES * TILE_NNZ * (4 * order + 8)) as u64
}

/// An examined chunk file.
#[derive(Debug)]
pub(super) struct Examined {
    /// Its name in the store's directory.
    pub file: String,
    /// Its header, if that is intact.
    pub header: Option<ChunkHeader>,
    /// Its contents, or why they cannot be used.
    pub contents: std::result::Result<Contents, String>,
}

/// The contents of an intact chunk.
#[derive(Debug)]
pub(super) struct Contents {
    /// The tensor's shape.
    pub shape: Shape,
    /// Its format.
    pub format: Format,
    /// Whether adjacent nonzeros have equal coordinates.
    pub repeats: bool,
    /// Coordinates of the first nonzero.
    pub first: Vec<u32>,
    /// Coordinates of the last nonzero.
    pub last: Vec<u32>,
}

/// The damage that an error describes, or the error itself if no file is at fault.
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
    /// Replaced if a chunk has another shape or format than the previous one.
    decoder: Option<(Format, Decoder)>,
}

impl Examiner {
    /// For chunks that take at most `memory` bytes and, if its manifest is known, belong to `store`.
    pub fn new(sys: &Sys, formats: &Formats, store: Option<&Store>, memory: u64) -> Result<Self> {
        let each = |store: &Store| store.whole().partitions.iter().map(|p| p.format.clone()).collect();
        let recorded = store.map(each);
        let mut reader = LoneReader::new(sys)?;
        reader.limit(memory);
        Ok(Self { sys: sys.clone(), formats: formats.clone(), recorded, reader, decoder: None })
    }

    /// Frees the memory. The next chunk allocates it again.
    pub fn release(&mut self) -> Result<()> {
        self.reader.release()
    }

    /// Bytes of memory that it holds.
    pub fn host_bytes(&self) -> u64 {
        self.reader.bytes()
    }

    /// Examines `file` in `dir` down to every nonzero. `refuse` returns why the chunk of an intact header is not
    /// wanted.
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

    /// Decodes everything once to check that this is possible.
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

    /// Passes the nonzeros of a chunk to `sink`, in order. Returns the shape and format that the chunk records.
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

/// Passes the nonzeros of a chunk of a tensor of `order` to `sink`, in order.
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
    let columns = || (Recent::default(), vec![0; order * TILE_NNZ], vec![0.0; TILE_NNZ]);
    rooms.into_par_iter().try_for_each_init(columns, |(recent, indices, values), (t, rows, out)| {
        let tile = view.decode(t, recent, indices, values)?;
        out.copy_from_slice(tile.values);
        for m in 0..order {
            let places = rows.iter_mut().skip(m).step_by(order);
            places.zip(tile.column(m)).for_each(|(place, &index)| *place = index);
        }
        Ok(())
    })?;
    Ok(batch)
}
