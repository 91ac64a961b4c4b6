//! Copies between ordinary host memory and the device, in pieces through pinned buffers: all threads move one piece while the link moves
//! the next. The driver's own copies of such memory run at a sixth of the link's rate, and read into new pages one at a time.

use super::transfer::{Download, Pinned, Upload};
use super::{Device, Memory, Priority, Stream};
use crate::backend::device::staging_bytes;
use crate::error::Result;
use crate::sys::Sys;
use bytemuck::Pod;
use rayon::prelude::*;
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes that one thread moves at a time.
const SHARE_BYTES: usize = 1 << 20;

/// Pinned buffers and a stream for such copies.
#[derive(Debug)]
pub struct Staging {
    device: Arc<Device>,
    // Dropped before the stream whose copies use them.
    free: Vec<Pinned>,
    piece: usize,
    stream: Stream,
}

impl Staging {
    /// Buffers for copies of `bytes` bytes; `None` if these are too few to gain, or if the host has no memory for buffers. The driver's own
    /// copies are then used.
    #[must_use]
    pub fn worth(device: &Arc<Device>, sys: &Sys, bytes: u64) -> Option<Self> {
        const BUFFERS: usize = 4;
        let piece = usize::try_from(staging_bytes(bytes)).ok()? / BUFFERS;
        if piece == 0 { None } else { Self::new(device, sys, BUFFERS, piece).ok() }
    }

    /// Creates `buffers` buffers of `piece` bytes.
    pub fn new(device: &Arc<Device>, sys: &Sys, buffers: usize, piece: usize) -> Result<Self> {
        let free = (0..buffers).map(|_| device.pinned(sys, piece)).collect::<Result<_>>()?;
        Ok(Self { device: Arc::clone(device), free, piece, stream: device.stream(Priority::Lowest)? })
    }

    /// Writes `data` to the start of `memory`, and waits.
    pub fn write<T: Pod>(&mut self, memory: &Memory, data: &[T]) -> Result<()> {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        let mut under_way: VecDeque<Upload> = VecDeque::new();
        for (i, piece) in bytes.chunks(self.piece).enumerate() {
            if self.free.is_empty() {
                let first = under_way.pop_front().expect("a buffer is free or under way");
                self.free.push(first.finish()?);
            }
            let mut buffer = self.free.pop().expect("one was just given back");
            copy(&mut buffer.as_mut()[..piece.len()], piece);
            let done = Arc::new(self.device.event(false)?);
            under_way.push_back(self.stream.upload(buffer, piece.len(), memory, i * self.piece, &done)?);
        }
        for upload in under_way {
            self.free.push(upload.finish()?);
        }
        Ok(())
    }

    /// Reads `data` from the start of `memory`, and waits.
    pub fn read<T: Pod>(&mut self, memory: &Memory, data: &mut [T]) -> Result<()> {
        self.read_at(memory, 0, data)
    }

    /// Reads `data` from byte `offset` of `memory` on, and waits.
    pub fn read_at<T: Pod>(&mut self, memory: &Memory, offset: usize, data: &mut [T]) -> Result<()> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(data);
        let mut under_way: VecDeque<(Download, &mut [u8])> = VecDeque::new();
        for (i, piece) in bytes.chunks_mut(self.piece).enumerate() {
            if self.free.is_empty() {
                self.land(under_way.pop_front())?;
            }
            let buffer = self.free.pop().expect("a buffer is free or under way");
            let done = Arc::new(self.device.event(false)?);
            let download =
                self.stream.download(memory, offset + i * self.piece, piece.len(), buffer, &done)?;
            under_way.push_back((download, piece));
        }
        under_way.into_iter().try_for_each(|landing| self.land(Some(landing)))
    }

    /// Waits for a piece and copies it to its destination.
    fn land(&mut self, landing: Option<(Download, &mut [u8])>) -> Result<()> {
        if let Some((download, piece)) = landing {
            let buffer = download.finish()?;
            copy(piece, &buffer.as_ref()[..piece.len()]);
            self.free.push(buffer);
        }
        Ok(())
    }
}

fn copy(to: &mut [u8], from: &[u8]) {
    let shares = to.par_chunks_mut(SHARE_BYTES).zip(from.par_chunks(SHARE_BYTES));
    shares.for_each(|(to, from)| to.copy_from_slice(from));
}
