//! A worker's look at a chunk, how a pass went, the error of numbers that kernels refuse.

use super::clock::EventClock;
use super::driver::Device;
use crate::backend::device::Facts;
use crate::error::{Error, Result};
use crate::format::{ChunkView, Decoder};
use crate::store::{ChunkHeader, Partition, Store};
use crate::stream::{DevicePass, Inspector};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// How a pass goes.
#[derive(Debug)]
pub(super) struct PassLog {
    pub(super) clock: EventClock,
    /// So far.
    pub(super) pass: DevicePass,
    begun: Instant,
}

impl PassLog {
    pub(super) fn new(device: &Arc<Device>) -> Result<Self> {
        Ok(Self { clock: EventClock::new(device)?, pass: DevicePass::default(), begun: Instant::now() })
    }

    /// Starts a new pass.
    pub(super) fn begin(&mut self) {
        (self.pass, self.begun) = (DevicePass::default(), Instant::now());
    }

    /// A chunk of `bytes` is on its way to the device.
    pub(super) fn copied(&mut self, bytes: usize) {
        self.pass.copied_chunks += 1;
        self.pass.copied_bytes += bytes as u64;
    }

    /// The report of a finished pass. Its kernels moved `moved` bytes; the link moves `link_bytes_per_second`.
    pub(super) fn end(&mut self, facts: &Facts, link_bytes_per_second: f64, moved: f64) -> DevicePass {
        let pass = &mut self.pass;
        pass.link_share =
            pass.copied_bytes as f64 / (link_bytes_per_second * self.begun.elapsed().as_secs_f64());
        pass.memory_share = facts.memory_share(moved, pass.kernel_seconds);
        *pass
    }
}

/// Opens every image before it is copied, and looks at it.
pub(super) fn inspector(
    store: &Store,
    look: impl Fn(&ChunkHeader, &ChunkView<'_>) -> Result<()> + Send + Sync + 'static,
) -> Inspector {
    let manifest = store.manifest();
    let decoder = |partition: &Partition| Decoder::new(&manifest.shape, &partition.format);
    let decoders: Vec<Decoder> = manifest.partitions.iter().map(decoder).collect();
    let store = store.clone();
    Arc::new(move |header, image| {
        let number = store.number_in_view(header.number as usize);
        let decoder = &decoders[store.part_of(number)];
        look(header, &ChunkView::open_for_device(decoder, header, image, store.chunk_path(number))?)
    })
}

/// The error of a number out of range in chunk `number` of what is read of `store`.
pub(super) fn out_of_range(store: &Store, number: u32) -> Error {
    let chunks = store.manifest().chunks.len();
    let of_store = if (number as usize) < chunks { store.number_of(number as usize) } else { 0 };
    out_of_range_in(store.path(), (chunks, of_store), number)
}

/// The same for the chunk with number `of_store` in the store. Numbers from `chunks` on are images of sorted nonzeros.
/// Chunks are verified before any image is made from them.
fn out_of_range_in(directory: &Path, (chunks, of_store): (usize, usize), number: u32) -> Error {
    let Some(image) = (number as usize).checked_sub(chunks) else {
        let path = Store::chunk_path_in(directory, of_store);
        return Error::corrupt(path, format!("chunk {of_store}: corrupt: a number out of range"));
    };
    Error::Device {
        action: "work on sorted nonzeros",
        what: format!(
            "a number out of range in image {image} of them, made from chunks without any: memory has lost bits; run again, or take \
             `DeviceOrder::Store`"
        ),
        out_of_memory: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only the number of a chunk is reported as one.
    #[test]
    fn images_are_not_told_as_chunks() {
        let told = |number| out_of_range_in(Path::new("s"), (5, number as usize), number).to_string();
        assert_eq!(told(4), "s/chunk-000004.bin: chunk 4: corrupt: a number out of range");
        for (number, image) in [(5, "image 0 of"), (7, "image 2 of")] {
            let told = told(number);
            assert!(told.contains(image) && !told.contains("chunk-") && told.lines().count() == 1, "{told}");
        }
    }
}
