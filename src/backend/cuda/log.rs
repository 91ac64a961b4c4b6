//! A worker's look at a chunk, how a pass went, the error of numbers that kernels refuse.

use super::clock::EventClock;
use super::driver::Device;
use crate::backend::device::Facts;
use crate::error::{Error, Result};
use crate::format::{ChunkView, Decoder};
use crate::store::{ChunkHeader, Store};
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

    /// Begins anew.
    pub(super) fn begin(&mut self) {
        (self.pass, self.begun) = (DevicePass::default(), Instant::now());
    }

    /// A chunk of `bytes` is on its way to the device.
    pub(super) fn copied(&mut self, bytes: usize) {
        self.pass.copied_chunks += 1;
        self.pass.copied_bytes += bytes as u64;
    }

    /// How the pass went, now that all is done and read: `moved` bytes by kernels, over a link that moves so many a second.
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
    let decoder = Decoder::new(&manifest.shape, manifest.format());
    let directory = store.path().to_path_buf();
    Arc::new(move |header, image| {
        let path = Store::chunk_path_in(&directory, header.number as usize);
        look(header, &ChunkView::open_for_device(&decoder, header, image, path)?)
    })
}

/// The error of a number out of range in chunk `number` of `store`.
pub(super) fn out_of_range(store: &Store, number: u32) -> Error {
    let chunks = store.manifest().chunks.len();
    let at = number as usize;
    let number_in_store =
        if at < chunks { u32::try_from(store.number_of(at)).unwrap_or(number) } else { number };
    out_of_range_in(store.path(), chunks, number, number_in_store)
}

/// From so many chunks on, in an image of sorted nonzeros. Chunks are verified before any image is made of them.
fn out_of_range_in(directory: &Path, chunks: usize, at: u32, number: u32) -> Error {
    let Some(image) = (at as usize).checked_sub(chunks) else {
        let path = Store::chunk_path_in(directory, number as usize);
        return Error::corrupt(path, format!("chunk {number}: corrupt: a number out of range"));
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

    /// Only a chunk's number is told as one.
    #[test]
    fn images_are_not_told_as_chunks() {
        let told = |number| out_of_range_in(Path::new("s"), 5, number, number).to_string();
        assert_eq!(told(4), "s/chunk-000004.bin: chunk 4: corrupt: a number out of range");
        for (number, image) in [(5, "image 0 of"), (7, "image 2 of")] {
            let told = told(number);
            assert!(told.contains(image) && !told.contains("chunk-") && told.lines().count() == 1, "{told}");
        }
    }
}
