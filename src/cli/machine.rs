//! What the machine has.

use crate::backend::host::Vectors;
use crate::error::{Error, Result};
use std::path::PathBuf;

/// Processors that this process may use.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Bytes of memory that are available now; a large number where the system does not say.
pub fn available_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map_or(u64::MAX / 2, |kib| kib * 1024)
}

/// Where this user's programs keep what they can make again: `$XDG_CACHE_HOME/blco` or `~/.cache/blco`.
pub fn cache_directory() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
    Some(base.join("blco"))
}

/// The vector instructions that `BLCO_VECTORS` asks for: `avx2`, or `baseline` for what every machine of the architecture has; without it the widest.
pub fn vectors() -> Result<Vectors> {
    match std::env::var("BLCO_VECTORS").as_deref() {
        Err(_) => Ok(Vectors::Widest),
        Ok("avx2") => Ok(Vectors::Avx2),
        Ok("baseline") => Ok(Vectors::Baseline),
        Ok(other) => Err(Error::request(format!("BLCO_VECTORS={other}: give avx2 or baseline"))),
    }
}
