//! Lists and removes directories without allocating memory, for a program that ends because it has none.

use super::sync::pause;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, open, openat, unlinkat};
use rustix::io::Errno;
use rustix::path::Arg;
use std::ffi::{CStr, OsStr};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Bytes of a directory listing per read.
const READ_BYTES: usize = 2048;

/// How directories are opened here.
const OPEN: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn is_itself(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

/// Calls `visit` with each name in the directory `dir` until it returns false. It may remove the entry.
pub fn each_name(dir: &Path, mut visit: impl FnMut(&OsStr) -> bool) -> io::Result<()> {
    let open = open(dir, OPEN, Mode::empty())?;
    let mut buffer = [MaybeUninit::uninit(); READ_BYTES];
    let mut entries = RawDir::new(&open, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        if !is_itself(entry.file_name()) && !visit(OsStr::from_bytes(entry.file_name().to_bytes())) {
            break;
        }
    }
    Ok(())
}

/// Removes the directory `path` and its contents. Follows no symbolic link.
pub(super) fn remove_tree(path: &Path) -> io::Result<()> {
    let gone = path.into_with_c_str(|path| Ok(remove(CWD, path)));
    // To get the error.
    if gone.is_ok_and(|gone| gone) { Ok(()) } else { std::fs::remove_dir_all(path) }
}

/// Removes `path` in `dir`. Returns false if part of it remains. Follows no symbolic link.
fn remove(dir: impl AsFd, path: &CStr) -> bool {
    pause();
    match unlinkat(&dir, path, AtFlags::empty()) {
        // The errors of unlinking a directory, which differ by system.
        Err(Errno::ISDIR | Errno::PERM) => {}
        removed => return removed.is_ok(),
    }
    let Ok(inside) = openat(&dir, path, OPEN, Mode::empty()) else { return false };
    let mut buffer = [MaybeUninit::uninit(); READ_BYTES];
    let mut entries = RawDir::new(&inside, &mut buffer);
    while let Some(Ok(entry)) = entries.next() {
        if !is_itself(entry.file_name()) {
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
