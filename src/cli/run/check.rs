//! The text of `--check`.

use crate::cli::nonzeros;
use crate::coo::tns::{ReadOptions, TnsReader};
use crate::coo::{Batch, Extent, Source};
use crate::engine::Engine;
use crate::error::Result;
use crate::store::Manifest;
use crate::sys::Sys;
use std::path::Path;

/// A text that a check reads, and what it found.
pub struct Checked {
    source: TnsReader,
    found: Option<Extent>,
}

impl Checked {
    pub fn open(sys: &Sys, input: &Path, options: ReadOptions) -> Result<Self> {
        Ok(Self { source: TnsReader::open(sys, input, options)?, found: None })
    }

    /// Bytes that it takes while it is read: the minimum if memory is bounded.
    pub fn hold(&mut self, engine: &Engine) -> u64 {
        let takes = self.source.memory(engine.threads());
        let bytes = if engine.options().memory.is_some() { takes.least } else { takes.most };
        self.source.limit(bytes);
        bytes
    }

    /// How the text differs from the store in dims and nnz, for a check that fails.
    pub fn differs(&self, manifest: &Manifest) -> Vec<String> {
        let Some(found) = &self.found else { return Vec::new() };
        let by = |dims: Vec<String>| dims.join(" x ");
        let text = by(found.dims.iter().map(ToString::to_string).collect());
        let store = by(manifest.shape.dims().iter().map(ToString::to_string).collect());
        let name = self.source.name();
        let dims = (text != store).then(|| format!("{name} has dims {text}, the store {store}"));
        let nnz = (found.nnz != manifest.nnz)
            .then(|| format!("{name} has {}, the store {}", nonzeros(found.nnz), manifest.nnz));
        dims.into_iter().chain(nnz).collect()
    }
}

impl Source for Checked {
    fn name(&self) -> String {
        self.source.name()
    }

    fn drain(&mut self, sink: &mut dyn FnMut(Batch) -> Result<()>) -> Result<Extent> {
        let extent = self.source.drain(sink)?;
        self.found = Some(extent.clone());
        Ok(extent)
    }
}
