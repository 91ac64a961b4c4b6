//! Fuzzes stores of several chunks, changed as the input says and signed again: every reader agrees on them.

#![no_main]

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../../tests/common/ttv.rs"]
mod runner;
#[path = "../stores/mod.rs"]
mod stores;

use std::sync::LazyLock;
use stores::{Given, Lying, agree::judge, bases, mutant};

static BASES: LazyLock<Vec<Lying>> = LazyLock::new(bases);

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let lying = mutant(&BASES, &mut Given(data));
    lying.write(dir.path());
    if let Err(what) = judge(dir.path()) {
        panic!("{}: {what}", lying.story.join("; "));
    }
});
