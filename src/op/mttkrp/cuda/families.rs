//! The kernels of a store's chunks: a family for each layout in which they are on the device.

use crate::backend::cuda::driver::Device;
use crate::backend::cuda::expand::{is_made, layout_there, layouts_there};
use crate::backend::cuda::kernels::{KernelLayout, MttkrpKernels, Specialisation, WideKernels};
use crate::backend::device::KernelSource;
use crate::backend::plan::Reads;
use crate::encoding::values::ValueEncoding;
use crate::error::Result;
use crate::store::{ChunkEntry, Store};
use std::sync::Arc;

/// The families of a store: trees and segments come first, if kernels read them as they lie.
#[derive(Debug)]
pub(super) struct Families(Vec<Family>);

/// The kernels for chunks of one layout.
#[derive(Debug)]
pub(super) struct Family {
    spec: Specialisation,
    pub kernels: MttkrpKernels,
    /// Kernels with products in f64, once a pass has requested them.
    pub wide: Option<WideKernels>,
}

impl Families {
    /// Loads the kernels that `source` says for factors of `factor_bytes` in total. `spec` is theirs but for what the store's chunks are.
    pub fn load(
        device: &Arc<Device>,
        store: &Store,
        spec: &Specialisation,
        source: &KernelSource,
        factor_bytes: u64,
    ) -> Result<Self> {
        let reads = if source.as_they_lie { Reads::AsTheyLie } else { Reads::Nonzeros };
        let family = |layout| {
            let decimals = has_decimals(store, reads, layout);
            let spec = Specialisation { layout, decimals, ..*spec };
            let kernels = source.load(device, store.sys(), &spec, factor_bytes)?;
            Ok(Family { spec, kernels, wide: None })
        };
        layouts_there(store, reads).into_iter().map(family).collect::<Result<_>>().map(Self)
    }

    /// The first family. Kernels that work on rows are the same in all.
    pub fn first(&self) -> &Family {
        &self.0[0]
    }

    /// The kernels for chunks of a layout.
    pub fn of(&self, layout: KernelLayout) -> &Family {
        let family = self.0.iter().find(|family| family.spec.layout == layout);
        family.expect("a family for each layout of the store")
    }

    /// Whether some read trees or segments as they lie.
    pub fn as_they_lie(&self) -> bool {
        self.first().spec.layout.is_as_packed()
    }

    /// Loads those with products in f64, once.
    pub fn load_wide(&mut self, device: &Arc<Device>) -> Result<()> {
        for family in self.0.iter_mut().filter(|family| family.wide.is_none()) {
            family.wide = Some(WideKernels::load(device, &family.spec, &family.kernels.variant)?);
        }
        Ok(())
    }
}

/// Whether kernels meet decimals in chunks of a layout: what was converted has none.
fn has_decimals(store: &Store, reads: Reads, layout: KernelLayout) -> bool {
    let decimal = |chunk: &ChunkEntry| chunk.value_encoding == Some(ValueEncoding::Decimal as u8);
    let mut chunks = store.manifest().chunks.iter().enumerate();
    chunks.any(|(number, chunk)| {
        decimal(chunk) && !is_made(store, number, reads) && layout_there(store, number, reads) == layout
    })
}
