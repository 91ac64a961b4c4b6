//! Where kernels note chunks with numbers out of range.

use super::driver::{Device, Memory};
use crate::error::Result;
use std::sync::Arc;

/// The smallest number of such a chunk, on the device.
#[derive(Debug)]
pub struct Fault(Memory);

impl Fault {
    /// Room for it; [`Fault::clear`] makes it ready.
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        device.memory(size_of::<u32>()).map(Self)
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.0.address()
    }

    /// Forgets what was noted. No kernel is at work.
    pub fn clear(&mut self) -> Result<()> {
        self.0.write(&[u32::MAX])
    }

    /// The chunk that was noted, if one was. No kernel is at work.
    pub fn chunk(&self) -> Result<Option<u32>> {
        let mut number = [0];
        self.0.read(&mut number)?;
        Ok((number[0] != u32::MAX).then_some(number[0]))
    }
}
