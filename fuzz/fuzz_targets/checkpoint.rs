//! Fuzzes a checkpoint's files.

#![no_main]

#[path = "../models.rs"]
mod models;

libfuzzer_sys::fuzz_target!(|data: &[u8]| models::checkpoint(data));
