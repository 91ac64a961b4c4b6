//! Removes a file or a directory with all that is in it, without asking for memory: for the end of a program that has none.

use super::sync::pause;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, openat, unlinkat};
use rustix::io::Errno;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

/// Bytes of a directory that are read at once.
const READ_BYTES: usize = 2048;

/// Removes what is at `path` in `dir`; false where something of it is still there. Follows no symbolic link.
pub(super) fn remove(dir: impl AsFd, path: &CStr) -> bool {
    pause();
    match unlinkat(&dir, path, AtFlags::empty()) {
        // What unlinking a directory says, by system.
        Err(Errno::ISDIR | Errno::PERM) => {}
        removed => return removed.is_ok(),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(inside) = openat(&dir, path, flags, Mode::empty()) else { return false };
    let mut buffer = [MaybeUninit::uninit(); READ_BYTES];
    let mut entries = RawDir::new(&inside, &mut buffer);
    while let Some(Ok(entry)) = entries.next() {
        let is_itself = matches!(entry.file_name().to_bytes(), b"." | b"..");
        if !is_itself {
            match entry.file_type() {
                FileType::Directory | FileType::Unknown => drop(remove(&inside, entry.file_name())),
                _ => {
                    pause();
                    let _ = unlinkat(&inside, entry.file_name(), AtFlags::empty());
                }
            }
        }
    }
    pause();
    unlinkat(&dir, path, AtFlags::REMOVEDIR).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::CWD;

    #[test]
    fn trees_go_and_what_links_lead_to_stays() {
        let place = tempfile::tempdir().unwrap();
        let (tree, other) = (place.path().join("tree"), place.path().join("other"));
        std::fs::create_dir_all(tree.join("a/b")).unwrap();
        std::fs::create_dir(&other).unwrap();
        for n in 0..300 {
            std::fs::write(tree.join(format!("a/a-name-that-is-long-enough-{n}")), "x").unwrap();
        }
        std::fs::write(other.join("kept"), "x").unwrap();
        std::os::unix::fs::symlink(&other, tree.join("a/b/link")).unwrap();
        let name = std::ffi::CString::new(tree.to_str().unwrap()).unwrap();
        assert!(remove(CWD, &name));
        assert!(!tree.exists() && other.join("kept").exists());
        assert!(!remove(CWD, &name));
    }
}
