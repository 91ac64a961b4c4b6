//! Compiled kernels kept between runs, in a directory that only this user can write. A file that differs from
//! what was written under its name is ignored.

use crate::error::Result;
use crate::sys::{PrivateDir, Sys};
use std::path::Path;
use xxhash_rust::xxh3::xxh3_128;

/// How a file begins: then the key, the checksum of what follows, and the kernel.
const MAGIC: [u8; 8] = *b"BLCOcub1";
const HEADER_BYTES: usize = MAGIC.len() + 16 + 16;
/// No kernel is longer.
const FILE_BYTES_MAX: usize = 16 << 20;

/// The open cache.
#[derive(Debug)]
pub struct Cache {
    directory: PrivateDir,
}

fn name(key: u128) -> String {
    format!("{key:032x}.cubin")
}

fn header(key: u128, kernel: &[u8]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..24].copy_from_slice(&key.to_le_bytes());
    header[24..].copy_from_slice(&xxh3_128(kernel).to_le_bytes());
    header
}

impl Cache {
    /// Opens the cache, and creates it if it does not exist. Fails if it must not be trusted.
    pub fn open(sys: &Sys, path: &Path) -> Result<Self> {
        Ok(Self { directory: sys.private_dir(path)? })
    }

    /// The kernel kept under `key`, if it is there and whole.
    #[must_use]
    pub fn get(&self, key: u128) -> Option<Vec<u8>> {
        let mut file = self.directory.read(&name(key), FILE_BYTES_MAX).ok()?;
        let (found, kernel) = file.split_at_checked(HEADER_BYTES)?;
        (!kernel.is_empty() && found == header(key, kernel)).then(|| file.split_off(HEADER_BYTES))
    }

    /// Keeps a kernel under `key`.
    pub fn put(&self, key: u128, kernel: &[u8]) -> Result<()> {
        self.directory.write(&name(key), &[&header(key, kernel), kernel].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fault::{Fault, Faults};
    use std::fs;
    use std::sync::Arc;

    const KERNEL: &[u8] = b"not a kernel, but as good here";

    #[test]
    fn what_is_kept_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(&Sys::default(), dir.path()).unwrap();
        assert_eq!(cache.get(7), None);
        cache.put(7, KERNEL).unwrap();
        assert_eq!(cache.get(7).unwrap(), KERNEL);
        assert_eq!(cache.get(8), None);
    }

    #[test]
    fn any_damage_is_a_miss() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(&Sys::default(), dir.path()).unwrap();
        cache.put(7, KERNEL).unwrap();
        let path = dir.path().join(name(7));
        let whole = fs::read(&path).unwrap();
        for bytes in 0..whole.len() {
            fs::write(&path, &whole[..bytes]).unwrap();
            assert_eq!(cache.get(7), None, "{bytes} bytes left");
        }
        for bit in 0..8 * whole.len() {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, &flipped).unwrap();
            assert_eq!(cache.get(7), None, "bit {bit}");
        }
        fs::write(&path, [&whole[..], b"x"].concat()).unwrap();
        assert_eq!(cache.get(7), None, "longer");
        fs::write(dir.path().join(name(8)), &whole).unwrap();
        assert_eq!(cache.get(8), None, "under another key's name");
        fs::write(&path, &whole).unwrap();
        assert_eq!(cache.get(7).unwrap(), KERNEL);
    }

    /// Whatever call fails, a kernel is found whole or not at all, and nothing temporary stays.
    #[test]
    fn failing_calls_are_misses() {
        let mut nth = 0;
        loop {
            let dir = tempfile::tempdir().unwrap();
            let faults = Arc::new(Faults::new(None, nth, Fault::Errno(libc::EIO)));
            let sys = Sys::with_faults(Arc::clone(&faults));
            let cache = Cache::open(&sys, &dir.path().join("cache"));
            let kept = cache.as_ref().is_ok_and(|c| c.put(7, KERNEL).is_ok());
            let found = cache.ok().and_then(|c| c.get(7));
            assert!(found.as_deref().is_none_or(|f| f == KERNEL));
            if !faults.struck() {
                assert!(kept && found.is_some());
                break;
            }
            let left = fs::read_dir(dir.path().join("cache")).map_or(0, Iterator::count);
            assert_eq!(left, usize::from(kept), "call {nth}");
            nth += 1;
        }
        assert!(nth >= 6, "only {nth} calls pass the seam");
    }
}
