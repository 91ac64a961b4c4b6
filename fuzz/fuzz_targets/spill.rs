//! Fuzzes the frames of killed packs' temporary files, sealed or not.

#![no_main]

#[path = "../bodies.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::resume::spill(data));
