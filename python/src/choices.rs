//! What an engine is made of.

use crate::error::exception;
use blco::Device;
use pyo3::prelude::*;
use std::path::PathBuf;

/// What was chosen, of which engines are made.
#[derive(Clone, Debug)]
pub struct Choices {
    pub device: Device,
    pub device_number: Option<usize>,
    pub device_memory: Option<u64>,
    pub threads: Option<usize>,
    pub memory: Option<u64>,
    pub temp_dir: Option<PathBuf>,
    pub deterministic: bool,
    pub pin_threads: bool,
}

impl Choices {
    pub fn builder(&self) -> blco::EngineBuilder {
        let Self { device, deterministic, pin_threads, .. } = *self;
        let mut builder = blco::Engine::builder().device(device);
        builder = builder.deterministic(deterministic).pin_threads(pin_threads);
        if let Some(number) = self.device_number {
            builder = builder.device_number(number);
        }
        if let Some(bytes) = self.device_memory {
            builder = builder.device_memory(bytes);
        }
        if let Some(threads) = self.threads {
            builder = builder.threads(threads);
        }
        if let Some(bytes) = self.memory {
            builder = builder.memory(bytes);
        }
        if let Some(directory) = &self.temp_dir {
            builder = builder.temp_dir(directory);
        }
        builder
    }

    /// An engine with threads of its own, at most `threads`, for work that waits for Python: threads that wait are missing to all
    /// other work of their engine, and Python may wait for that.
    pub fn aside(&self, threads: usize) -> PyResult<blco::Engine> {
        let threads = Some(self.threads.map_or(threads, |most| most.min(threads)));
        let aside = Self { threads, device: Device::Cpu, ..self.clone() };
        aside.builder().build().map_err(|error| exception(&error))
    }
}
