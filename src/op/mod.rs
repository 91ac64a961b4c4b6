//! Operations: what is computed from the tiles of a store. Each states its determinism class.

pub mod export;
pub mod inspect;
pub mod mttkrp;
pub mod oracle;
pub mod read;
pub mod reread;
mod rows;
pub mod salvage;
pub mod storage;
pub mod ttv;
pub mod verify;
