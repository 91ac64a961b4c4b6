//! Fuzzes models that are given to `--score`.

#![no_main]

#[path = "../models.rs"]
mod models;

libfuzzer_sys::fuzz_target!(|data: &[u8]| models::models(data));
