//! Protects the programs as users run them: requests, reports, exit statuses, the names and surroundings that they work in, results
//! against the oracle and numpy.

#![allow(clippy::print_stderr, reason = "says what was skipped")]
#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/programs.rs"]
mod programs;

mod cli;
#[cfg(feature = "arrow")]
mod columns;
mod compare;
mod conventions;
mod cpd;
mod gpu;
mod mistakes;
mod npz;
mod products;
mod replacing;
mod surroundings;
mod tables;
mod ttv;
