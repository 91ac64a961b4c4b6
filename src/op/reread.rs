//! A store as a source of nonzeros, for packing it in another format without text in between.

use super::salvage::{batch_bytes, batches};
use crate::coo::{Batch, Extent, Size, Source, SourceMemory};
use crate::error::Result;
use crate::format::{ChunkView, Decoder};
use crate::shape::Shape;
use crate::store::Store;

/// The nonzeros of a store's view in its order. Every chunk is verified when it is read; damage is an error.
#[derive(Debug)]
pub struct StoreSource {
    store: Store,
}

impl StoreSource {
    /// The nonzeros of `store`.
    #[must_use]
    pub fn new(store: Store) -> Self {
        Self { store }
    }

    /// Whether coordinates may repeat.
    #[must_use]
    pub fn may_repeat(&self) -> bool {
        self.store.manifest().may_repeat
    }
}

impl Source for StoreSource {
    fn is_checked(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        self.store.path().display().to_string()
    }

    fn identity(&self) -> Result<Option<String>> {
        Ok(Some(format!("store {:016x}", self.store.id())))
    }

    fn size(&self) -> Result<Option<Size>> {
        let manifest = self.store.manifest();
        Ok(Some(Size { nnz: manifest.nnz, order: manifest.shape.order() }))
    }

    fn declared(&mut self) -> Result<Option<Shape>> {
        Ok(Some(self.store.manifest().shape.clone()))
    }

    fn memory(&self, _threads: usize) -> SourceMemory {
        let buffers = (self.store.buffer_bytes() + self.store.scratch_bytes()) as u64;
        let bytes = buffers + self.store.held_bytes() + batch_bytes(self.store.manifest().shape.order());
        SourceMemory { least: bytes, most: bytes, help: "" }
    }

    fn drain(&mut self, sink: &mut dyn FnMut(Batch) -> Result<()>) -> Result<Extent> {
        let Self { store } = self;
        let (manifest, sys) = (store.manifest(), store.sys());
        let shape = &manifest.shape;
        let (mut buffer, mut scratch) = (sys.page_buf(store.buffer_bytes())?, store.scratch()?);
        for ((_, chunks), partition) in store.parts().zip(&manifest.partitions) {
            let decoder = Decoder::new(shape, &partition.format);
            for number in chunks {
                let (header, _) = store.load(number, &mut buffer, &mut scratch)?;
                let image = &buffer[..header.image_bytes as usize];
                let view = ChunkView::open(&decoder, &header, image, store.chunk_path(number))?;
                batches(sys, &view, shape.order(), sink)?;
            }
        }
        let dims = shape.dims().iter().map(|&dim| dim.into()).collect();
        Ok(Extent { dims, nnz: manifest.nnz })
    }
}
