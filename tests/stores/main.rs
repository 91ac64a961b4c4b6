//! Protects stores: their bytes, the detection of damage and false data, publication and repair.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../fuzz/bodies.rs"]
mod bodies;
#[path = "../common/mod.rs"]
mod common;
#[path = "../../fuzz/models.rs"]
mod models;
#[path = "../common/programs.rs"]
mod programs;

mod corpora;
mod covers;
mod damage;
mod false_statistics;
mod hocfs;
mod parts;
mod publication;
mod repair;
mod specification;
