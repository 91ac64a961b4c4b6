//! Protects results on a GPU: a CUDA device, or else the mock driver that `BLCO_MOCK_CUDA` names, with each test in its own
//! process there. Without both, the tests say `skipped`.

#![cfg(feature = "cuda")]
#![allow(clippy::print_stderr, reason = "says what was skipped")]
#![allow(clippy::print_stdout, reason = "what was measured")]
#![allow(clippy::type_complexity, reason = "tables of cases")]
#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/ttv_elements.rs"]
mod elements;
#[path = "../common/cpd.rs"]
mod naive;
#[path = "../common/on_a_device.rs"]
mod on_a_device;
#[path = "../common/ttv.rs"]
mod runner;
#[path = "../../fuzz/stores/mod.rs"]
mod stores;

mod cpd;
mod fibers;
mod mode_sorted;
mod mttkrp;
mod mutants;
mod processes;
mod staging;
mod ttm;
mod ttmc;
mod ttv;
mod views;
