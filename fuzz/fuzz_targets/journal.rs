//! Fuzzes journals of killed packs, signed or not.

#![no_main]

#[path = "../bodies.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::resume::journal(data));
