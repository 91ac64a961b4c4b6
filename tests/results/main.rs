//! Protects what is computed: MTTKRP, TTV, SpTTM, SpTTMc, inner products and CP-ALS on the CPU against their definitions, and the same bits however they are run.

#![allow(clippy::print_stderr, reason = "says what was measured")]
#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/ttv_elements.rs"]
mod elements;
#[path = "../common/cpd.rs"]
mod naive;
#[path = "../common/ttv.rs"]
mod runner;

mod cpd;
mod cpd_digits;
mod determinism;
mod instruction_sets;
mod lists;
mod mode_sorted;
mod mttkrp;
mod products;
mod readahead;
mod real_tensors;
mod ttv;
