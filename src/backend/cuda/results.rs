//! Results that leave the device chunk by chunk, on the stream of the chunk's lane, while the next chunk
//! is computed and the one after it is copied (Li et al., TKDD 2019, section 6.2, steps 3.1 to 3.3). A lane is reused
//! when its results have been handed to the operation, in the chunks' order.

use super::driver::{Download, Event, Pinned, Upload};
use super::{CudaBackend, DeviceOp};
use crate::error::Result;
use crate::format::{ChunkView, Decoder};
use crate::store::{ChunkHeader, Store};
use crate::stream::{Free, Owner, Stage};
use std::collections::VecDeque;

/// Chunks whose results have not been handed over, and buffers of those whose results have been.
#[derive(Debug)]
pub(super) struct Results {
    leaving: VecDeque<Leaving>,
    pub(super) freed: VecDeque<Free<Pinned>>,
    decoder: Decoder,
}

/// A chunk whose results are on their way.
#[derive(Debug)]
struct Leaving {
    header: ChunkHeader,
    lane: usize,
    /// The image on the host, if the operation looks at it.
    image: Option<(Upload, Owner)>,
    results: Download,
    bytes: usize,
}

impl Results {
    pub(super) fn new(store: &Store) -> Self {
        let decoder = Decoder::new(&store.manifest().shape, store.manifest().format());
        Self { leaving: VecDeque::new(), freed: VecDeque::new(), decoder }
    }

    /// Chunks whose results have not been handed over.
    pub(super) fn len(&self) -> usize {
        self.leaving.len()
    }

    /// Whether such a chunk holds its buffer until they are.
    pub(super) fn hold_buffers(&self) -> bool {
        self.leaving.front().is_some_and(|first| first.image.is_some())
    }
}

impl<O: DeviceOp> CudaBackend<O> {
    /// Starts the way back of the results of a chunk, `bytes` on lane `lane`, when they are `computed`.
    pub(super) fn send_results(
        &mut self,
        header: ChunkHeader,
        lane: usize,
        image: Option<(Upload, Owner)>,
        bytes: usize,
        computed: &Event,
    ) -> Result<()> {
        let to = &mut self.lanes.all[lane];
        let Some(out) = &mut to.out else { return Ok(()) };
        let (start, returned) = self.log.clock.pair(Stage::Return, lane, Some(header.number as usize));
        to.stream.wait(computed)?;
        start.record(&to.stream)?;
        let arrived = out.arrived.take().expect("a lane's results have been handed over");
        let results = to.stream.download(&out.memory, 0, bytes, arrived, &returned)?;
        self.results.leaving.push_back(Leaving { header, lane, image, results, bytes });
        self.log.pass.returned_bytes += bytes as u64;
        Ok(())
    }

    /// Hands the results of the first chunk over, when they have come; then its lane is free, and its image's buffer.
    pub(super) fn hand_over(&mut self) -> Result<()> {
        let Some(Leaving { header, lane, image, results, bytes }) = self.results.leaving.pop_front() else {
            return Ok(());
        };
        let arrived = results.finish()?;
        let image = image.map(|(upload, owner)| Ok(Free { buffer: upload.finish()?, owner })).transpose()?;
        let number = header.number as usize;
        let view = image.as_ref().map(|image| {
            let image = &image.buffer.as_ref()[..header.image_bytes as usize];
            ChunkView::open(&self.results.decoder, &header, image, self.store.chunk_path(number))
        });
        self.op.take(number, view.transpose()?.as_ref(), &arrived.as_ref()[..bytes])?;
        self.results.freed.extend(image);
        if let Some(out) = &mut self.lanes.all[lane].out {
            out.arrived = Some(arrived);
        }
        Ok(())
    }

    /// Hands over what has come.
    pub(super) fn hand_over_what_is_done(&mut self) -> Result<()> {
        while let Some(first) = self.results.leaving.front()
            && first.results.is_done()?
        {
            self.hand_over()?;
        }
        Ok(())
    }
}
