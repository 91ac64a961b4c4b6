//! The one interface to the operating system. Every open, read, write, sync, rename, removal, thread and large
//! allocation of the packer, the stores and the executor goes through a [`Sys`], so that a test can make the n-th of
//! them fail ([`fault`]) or record their changes ([`record`]).
//!
//! Invariant: no other module of the library opens a file, spawns a thread or allocates a buffer that grows with the
//! data, except the few that ARCHITECTURE.md names. [`Sys::pool`] builds `rayon`'s pool once.

mod dir;
pub mod fault;
mod large_blocks;
mod names;
mod private;
pub mod record;
mod removal;
mod spill;
mod state;
pub mod sync;
mod temporary;

pub use dir::Dir;
pub use large_blocks::LargeBlocks;
pub use names::{Held, is_unsupported};
pub use private::PrivateDir;
pub use removal::each_name;
pub use spill::{SPILL_PREFIX, SpillDir, SpillOwner, is_spill_name, spill_name};
pub use state::FileState;
pub use temporary::Temporary;

use crate::error::{Error, Result};
use fault::{Call, Fault, Faults};
use memmap2::MmapMut;
use rayon::prelude::*;
use record::Recorder;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::cell::Cell;
use std::collections::TryReserveError;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use sync::{AtomicBool, Ordering};

/// The alignment of file pages, direct I/O and every I/O buffer, in bytes.
pub const PAGE: usize = 4096;

/// Buffers of at least this many bytes use huge pages if the system has them. They are populated 3 to 10 times faster,
/// and pinning them for a GPU speeds up as much.
const HUGE_BYTES: usize = 4 << 20;

/// A byte buffer aligned to a page.
pub type PageBuf = MmapMut;

/// Address space of a thread before it does anything: its stack (the standard library's default) and the C library's
/// data.
const THREAD_BYTES: usize = (2 << 20) + (256 << 10);

/// Fails if there is no room for `threads` more threads. Otherwise the C library would end the program with a message
/// of its own.
fn room_for_threads(threads: usize) -> io::Result<()> {
    MmapMut::map_anon(threads.saturating_mul(THREAD_BYTES)).map(drop)
}

/// Populates the pages of a new buffer, so that nothing waits for them later and a lack of memory shows now.
fn populate(buf: &mut PageBuf) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        if buf.len() >= HUGE_BYTES {
            // Without huge pages, small ones do.
            let _ = buf.advise(memmap2::Advice::HugePage);
        }
        match buf.advise(memmap2::Advice::PopulateWrite) {
            // Before Linux 5.14.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {}
            populated => return populated,
        }
    }
    buf.fill(0);
    Ok(())
}

/// Whether an error means that the medium has lost stored data. Errors that another user, more memory or fewer
/// open files would fix do not count.
#[must_use]
pub fn is_media_failure(error: &io::Error) -> bool {
    let lost = [libc::EIO, libc::EBADMSG, libc::EUCLEAN, libc::ENODATA];
    error.raw_os_error().is_some_and(|code| lost.contains(&code))
}

/// The directory that contains `path`'s name.
#[must_use]
pub fn directory(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The destination of an output named `path`: the target of a symbolic link, so that the link stays and its target is
/// replaced, as when a program writes into the file. Fails if the link is dangling.
pub fn behind_links(path: &Path) -> Result<PathBuf> {
    // A link with a trailing slash does not look like a link.
    let link: PathBuf = path.components().collect();
    if !link.is_symlink() {
        return Ok(path.to_path_buf());
    }
    link.canonicalize().map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => {
            let what = "is a symbolic link to nothing; remove it, or name another output";
            Error::request(format!("{}: {what}", path.display()))
        }
        _ => Error::io(path, "follow")(e),
    })
}

/// Serializes a path for reports as messages show it. Names need not be UTF-8; JSON must be.
pub fn shown_path<S: serde::Serializer>(path: &Path, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

thread_local! {
    /// Whether this thread is inside [`trying`].
    static TRIES: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is asking for memory that it can do without. Then an allocator may report failure; otherwise a
/// lack of memory ends the program.
#[must_use]
pub fn is_trying() -> bool {
    TRIES.try_with(Cell::get).unwrap_or(false)
}

/// Runs `allocate`, which reports a lack of memory.
fn trying<T>(allocate: impl FnOnce() -> std::result::Result<T, TryReserveError>) -> io::Result<T> {
    TRIES.set(true);
    let allocated = allocate();
    TRIES.set(false);
    allocated.map_err(|_| io::ErrorKind::OutOfMemory.into())
}

thread_local! {
    /// Whether this thread is inside [`contained`].
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic of this thread becomes an error, so that nothing needs to be printed.
#[must_use]
pub fn is_contained() -> bool {
    CONTAINED.try_with(Cell::get).unwrap_or(false)
}

/// Runs a third-party decoder, which may panic on a damaged file. Returns the panic message as an error.
#[cfg(feature = "arrow")]
pub fn contained<T>(decode: impl FnOnce() -> T) -> std::result::Result<T, String> {
    let outer = CONTAINED.replace(true);
    // The decoder's data is not used after a panic.
    let decoded = std::panic::catch_unwind(std::panic::AssertUnwindSafe(decode));
    CONTAINED.set(outer);
    decoded.map_err(|panic| match panic.downcast::<String>() {
        Ok(told) => *told,
        Err(panic) => {
            panic.downcast::<&str>().map_or_else(|_| "it cannot be decoded".into(), |told| told.to_string())
        }
    })
}

/// What a test has attached to a handle.
#[derive(Debug, Default)]
struct Hooks {
    faults: Option<Arc<Faults>>,
    recorder: Option<Arc<Recorder>>,
}

/// A handle to the operating system. Cheap to clone; clones share the fault counter.
#[derive(Clone, Debug, Default)]
pub struct Sys {
    /// `None` outside tests.
    hooks: Option<Arc<Hooks>>,
    cancel: Arc<AtomicBool>,
    /// A second stop flag, shared by handles that work together.
    stop: Option<Arc<AtomicBool>>,
    temporaries: Arc<temporary::Registry>,
}

impl Sys {
    /// A handle on which the calls that `faults` selects fail.
    #[must_use]
    pub fn with_faults(faults: Arc<Faults>) -> Self {
        Self::hooked(Hooks { faults: Some(faults), recorder: None })
    }

    /// A handle whose changes to the file system are recorded by `recorder`.
    #[must_use]
    pub fn recorded(recorder: Arc<Recorder>) -> Self {
        Self::hooked(Hooks { faults: None, recorder: Some(recorder) })
    }

    fn hooked(hooks: Hooks) -> Self {
        Self { hooks: Some(Arc::new(hooks)), ..Self::default() }
    }

    fn faults(&self) -> Option<&Faults> {
        self.hooks.as_ref()?.faults.as_deref()
    }

    /// Whether an injected failure has not occurred yet.
    #[must_use]
    pub fn fault_is_due(&self) -> bool {
        self.faults().is_some_and(|faults| !faults.struck())
    }

    /// The same handle without injected failures, for cleaning up. Failures there are harmless and not
    /// reported.
    #[must_use]
    pub fn quiet(&self) -> Self {
        let recorder = self.hooks.as_ref().and_then(|hooks| hooks.recorder.clone());
        let hooks = recorder.map(|recorder| Arc::new(Hooks { faults: None, recorder: Some(recorder) }));
        Self { hooks, ..self.clone() }
    }

    /// The flag that asks all work through this handle to stop.
    #[must_use]
    pub fn cancel_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancel)
    }

    /// The same handle with its own stop flag.
    #[must_use]
    pub fn with_own_cancel(&self) -> Self {
        Self { cancel: Arc::default(), ..self.clone() }
    }

    /// The same handle with a second stop flag. Several that work together share it, and stop when one of them
    /// fails.
    #[must_use]
    pub fn with_stop(&self, stop: Arc<AtomicBool>) -> Self {
        Self { stop: Some(stop), ..self.clone() }
    }

    /// Removes everything temporary now, even if it is in use: for ending at once when asking to stop has not
    /// helped.
    pub fn abandon(&self) {
        self.temporaries.remove_all(&self.quiet());
    }

    /// Runs `name`, which renames temporary files to their final names, as one step: [`Sys::abandon`] comes before or
    /// after it. Returns [`Error::Cancelled`] if it came before. All renames through this handle happen inside this
    /// function.
    pub fn publish<T>(&self, name: impl FnOnce() -> Result<T>) -> Result<T> {
        self.temporaries.publish(name)
    }

    /// Whether this thread is inside [`Sys::publish`]. Until it returns, another thread that calls
    /// [`Sys::abandon`] waits.
    #[must_use]
    pub fn is_publishing() -> bool {
        temporary::Registry::is_publishing()
    }

    /// [`Error::Cancelled`] once the flag is set. Long loops check it once per batch or chunk.
    pub fn check_cancelled(&self) -> Result<()> {
        let stopped = self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed));
        if stopped || self.cancel.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Counts a call, and returns the fault that a test has injected for it, if any.
    fn pass(&self, call: Call) -> io::Result<Option<Fault>> {
        match self.faults().and_then(|f| f.strike(call)) {
            Some(Fault::Errno(code)) => Err(io::Error::from_raw_os_error(code)),
            other => Ok(other),
        }
    }

    /// Passes a change to a test's recorder, if there is one.
    fn record(&self, note: impl FnOnce(&Recorder)) {
        if let Some(recorder) = self.hooks.as_ref().and_then(|hooks| hooks.recorder.as_deref()) {
            note(recorder);
        }
    }

    /// Opens an existing file for reading. With `direct`, past the page cache if the file system supports
    /// that.
    pub fn open(&self, path: &Path, direct: bool) -> Result<File> {
        let open = |flags: i32| {
            self.pass(Call::Open)?;
            std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)
        };
        let file = match open(if direct { libc::O_DIRECT } else { 0 }) {
            Err(e) if direct && e.raw_os_error() == Some(libc::EINVAL) => open(0),
            other => other,
        };
        file.map(|inner| File { inner, path: path.to_path_buf(), sys: self.clone() })
            .map_err(Error::io(path, "open"))
    }

    /// Runs `make`, which creates something at `path`.
    fn make<T>(&self, path: &Path, make: impl FnOnce() -> io::Result<T>) -> Result<T> {
        let make =
            || self.pass(Call::Open).and_then(|_| make()).inspect(|_| self.record(|r| r.created(path)));
        self.publish(|| make().map_err(Error::io(path, "create")))
    }

    /// Creates a file that must not exist yet, for writing.
    pub fn create(&self, path: &Path) -> Result<File> {
        self.make(path, || std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(path))
            .map(|inner| File { inner, path: path.to_path_buf(), sys: self.clone() })
    }

    /// Opens an existing file for reading and writing.
    pub fn open_existing(&self, path: &Path) -> Result<File> {
        self.pass(Call::Open)
            .and_then(|_| std::fs::OpenOptions::new().read(true).write(true).open(path))
            .map(|inner| File { inner, path: path.to_path_buf(), sys: self.clone() })
            .map_err(Error::io(path, "open"))
    }

    /// Free bytes for this user on the file system of `path`.
    pub fn free_bytes(&self, path: &Path) -> Result<u64> {
        let facts = rustix::fs::statvfs(path).map_err(|e| Error::io(path, "inspect")(e.into()))?;
        Ok(facts.f_bavail.saturating_mul(facts.f_frsize))
    }

    /// Creates one directory.
    pub fn create_dir(&self, path: &Path) -> Result<()> {
        self.make(path, || std::fs::create_dir(path))
    }

    /// Opens a directory, to lock it.
    pub fn open_dir(&self, path: &Path) -> Result<File> {
        self.pass(Call::Open)
            .and_then(|_| std::fs::File::open(path))
            .map(|inner| File { inner, path: path.to_path_buf(), sys: self.clone() })
            .map_err(Error::io(path, "open"))
    }

    /// Renames within a file system, replacing a file at `to`.
    pub fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.pass(Call::Rename)
            .and_then(|_| std::fs::rename(from, to))
            .inspect(|()| self.record(|r| r.renamed(from, to)))
            .map_err(Error::io(to, "rename to"))
    }

    /// Swaps two names in one step, so that neither is ever absent.
    pub fn exchange(&self, a: &Path, b: &Path) -> Result<()> {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        self.pass(Call::Exchange)
            .and_then(|_| renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).map_err(io::Error::from))
            .inspect(|()| self.record(|r| r.exchanged(a, b)))
            .map_err(Error::io(b, "replace"))
    }

    /// Removes one file.
    pub fn remove_file(&self, path: &Path) -> Result<()> {
        self.pass(Call::Remove)
            .and_then(|_| std::fs::remove_file(path))
            .inspect(|()| self.record(|r| r.removed(path)))
            .map_err(Error::io(path, "remove"))
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, path: &Path) -> Result<()> {
        self.pass(Call::Remove)
            .and_then(|_| std::fs::remove_dir(path))
            .inspect(|()| self.record(|r| r.removed(path)))
            .map_err(Error::io(path, "remove"))
    }

    /// Removes a directory and what is in it.
    pub fn remove_tree(&self, path: &Path) -> Result<()> {
        self.pass(Call::Remove)
            .and_then(|_| removal::remove_tree(path))
            .inspect(|()| self.record(|r| r.removed(path)))
            .map_err(Error::io(path, "remove"))
    }

    /// Syncs the directory entry of `path`.
    pub fn sync_name(&self, path: &Path) -> Result<()> {
        let dir = directory(path);
        self.pass(Call::Sync)
            .and_then(|_| match std::fs::File::open(dir) {
                // A user who may write to a directory may not be allowed to read it (a drop box), and syncing it needs
                // read permission. Its file system can be synced through the file that has just been named there.
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                    rustix::fs::syncfs(std::fs::File::open(path)?)?;
                    self.record(Recorder::synced_all);
                    Ok(())
                }
                opened => self.sync_opened(&opened?),
            })
            .map_err(Error::io(dir, "sync"))
    }

    /// Syncs the entries of a directory.
    pub fn sync_dir(&self, path: &Path) -> Result<()> {
        self.pass(Call::Sync)
            .and_then(|_| self.sync_opened(&std::fs::File::open(path)?))
            .map_err(Error::io(path, "sync"))
    }

    fn sync_opened(&self, file: &std::fs::File) -> io::Result<()> {
        file.sync_all()?;
        self.record(|r| r.synced(file));
        Ok(())
    }

    /// Starts a named thread in `scope`.
    pub fn spawn<'scope, T: Send + 'scope>(
        &self,
        scope: &'scope sync::Scope<'scope, '_>,
        name: String,
        body: impl FnOnce() -> T + Send + 'scope,
    ) -> Result<sync::ScopedJoinHandle<'scope, T>> {
        self.pass(Call::Spawn)
            .and_then(|_| room_for_threads(1))
            .and_then(|()| sync::spawn(scope, name, body))
            .map_err(|source| Error::Resource { action: "start a thread", source })
    }

    /// A pool of `threads` compute threads.
    pub fn pool(&self, threads: usize) -> Result<rayon::ThreadPool> {
        self.start_pool(threads, |_| {})
    }

    /// The same, with each thread pinned to one of the processors available to this process, in turn.
    pub fn pinned_pool(&self, threads: usize) -> Result<rayon::ThreadPool> {
        let allowed = sched_getaffinity(None);
        let allowed =
            allowed.map_err(|e| Error::Resource { action: "ask for processors", source: e.into() })?;
        let processors: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&i| allowed.is_set(i)).collect();
        self.start_pool(threads, move |thread| {
            let mut one = CpuSet::new();
            one.set(processors[thread % processors.len()]);
            // If the system refuses, the thread stays where it was.
            let _ = sched_setaffinity(None, &one);
        })
    }

    fn start_pool(
        &self,
        threads: usize,
        begin: impl Fn(usize) + Send + Sync + 'static,
    ) -> Result<rayon::ThreadPool> {
        self.pass(Call::Spawn)
            .and_then(|_| room_for_threads(threads))
            .and_then(|()| {
                rayon::ThreadPoolBuilder::new()
                    .num_threads(threads)
                    .thread_name(|i| format!("compute-{i}"))
                    .start_handler(begin)
                    .build()
                    .map_err(io::Error::other)
            })
            .map_err(|source| Error::Resource { action: "start the compute threads", source })
    }

    /// A zeroed buffer of `bytes`, rounded up to whole pages.
    pub fn page_buf(&self, bytes: usize) -> Result<PageBuf> {
        let bytes = bytes.next_multiple_of(PAGE);
        self.pass(Call::Allocate)
            .and_then(|_| {
                let mut buf = MmapMut::map_anon(bytes)?;
                populate(&mut buf)?;
                Ok(buf)
            })
            .map_err(|source| Error::Resource { action: "allocate an I/O buffer", source })
    }

    /// A vector of `len` copies of `value`. Fails if memory is short.
    pub fn vec<T: Clone>(&self, value: T, len: usize) -> Result<Vec<T>> {
        self.pass(Call::Allocate)
            .and_then(|_| {
                let mut vec = Vec::new();
                trying(|| vec.try_reserve_exact(len))?;
                vec.resize(len, value);
                Ok(vec)
            })
            .map_err(|source| Error::Resource { action: "allocate memory", source })
    }

    /// A vector of `len` items, each made from its index by the threads of the current pool, which therefore touch its
    /// pages first. Fails if memory is short.
    pub fn par_vec<T: Send>(&self, len: usize, make: impl Fn(usize) -> T + Send + Sync) -> Result<Vec<T>> {
        /// Items that justify another thread.
        const ITEMS_MIN: usize = 1 << 14;
        let mut vec = Vec::new();
        self.reserve(&mut vec, len, len)?;
        vec.par_extend((0..len).into_par_iter().with_min_len(ITEMS_MIN).map(make));
        Ok(vec)
    }

    /// Makes room in `vec` for `len` items: doubles its capacity, up to `len_max`. Fails if memory is short.
    pub fn reserve<T>(&self, vec: &mut Vec<T>, len: usize, len_max: usize) -> Result<()> {
        if len <= vec.capacity() {
            return Ok(());
        }
        let room = (2 * vec.capacity()).min(len_max).max(len) - vec.len();
        self.pass(Call::Allocate)
            .and_then(|_| trying(|| vec.try_reserve_exact(room)))
            .map_err(|source| Error::Resource { action: "allocate memory", source })
    }
}

/// An open file with its path. Reads and writes retry on EINTR and continue after short transfers.
#[derive(Debug)]
pub struct File {
    inner: std::fs::File,
    path: PathBuf,
    sys: Sys,
}

impl File {
    /// The path that it was opened with.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file's metadata.
    pub fn metadata(&self) -> Result<std::fs::Metadata> {
        self.inner.metadata().map_err(Error::io(&self.path, "inspect"))
    }

    /// A second handle to the open file, for [`File::read_at`]. Only one of the two may be read as a stream.
    pub fn duplicate(&self) -> Result<Self> {
        let inner = self.inner.try_clone().map_err(Error::io(&self.path, "open"))?;
        Ok(Self { inner, path: self.path.clone(), sys: self.sys.clone() })
    }

    /// Whether `path` still names this file or directory.
    #[must_use]
    pub fn is_at(&self, path: &Path) -> bool {
        use std::os::unix::fs::MetadataExt;
        let number = |found: io::Result<std::fs::Metadata>| found.map(|m| (m.dev(), m.ino())).ok();
        let here = number(self.inner.metadata());
        here.is_some() && here == number(path.metadata())
    }

    /// Takes an exclusive lock that lasts as long as the process. Returns false if another process holds it.
    pub fn try_lock(&self) -> Result<bool> {
        match self.inner.try_lock() {
            Ok(()) => Ok(true),
            Err(std::fs::TryLockError::WouldBlock) => Ok(false),
            Err(std::fs::TryLockError::Error(e)) => Err(Error::io(&self.path, "lock")(e)),
        }
    }

    /// Fills `buf` from byte `offset` on. Returns the number of bytes read, which is smaller than requested
    /// only at the end of the file.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            let rest = &mut buf[done..];
            let read = match self.sys.pass(Call::Read) {
                Ok(Some(Fault::Short)) => {
                    let half = rest.len().div_ceil(2);
                    self.inner.read_at(&mut rest[..half], offset + done as u64)
                }
                Ok(_) => self.inner.read_at(rest, offset + done as u64),
                Err(e) => Err(e),
            };
            match read {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::io(&self.path, "read")(e)),
            }
        }
        Ok(done)
    }

    /// Writes all of `buf` at byte `offset`.
    pub fn write_all_at(&self, mut buf: &[u8], mut offset: u64) -> Result<()> {
        while !buf.is_empty() {
            let written = match self.sys.pass(Call::Write) {
                Ok(Some(Fault::Short)) => self.inner.write_at(&buf[..buf.len().div_ceil(2)], offset),
                Ok(_) => self.inner.write_at(buf, offset),
                Err(e) => Err(e),
            };
            match written {
                Ok(0) => return Err(Error::io(&self.path, "write")(io::ErrorKind::WriteZero.into())),
                Ok(n) => {
                    self.sys.record(|r| r.wrote(&self.inner, offset, &buf[..n]));
                    buf = &buf[n..];
                    offset += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::io(&self.path, "write")(e)),
            }
        }
        Ok(())
    }

    /// Syncs the contents. A failure is final: written data may be lost.
    pub fn sync(&self) -> Result<()> {
        self.sys
            .pass(Call::Sync)
            .and_then(|_| self.sys.sync_opened(&self.inner))
            .map_err(Error::io(&self.path, "sync"))
    }
}

/// For decoders that read a stream. Counts as a call, like [`File::read_at`].
impl io::Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self.sys.pass(Call::Read)? {
            Some(Fault::Short) => self.inner.read(&mut buf[..1]),
            _ => self.inner.read(buf),
        }
    }
}

/// For encoders that write a stream from the start. Counts as a call, like [`File::write_all_at`].
impl io::Write for &File {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let n = match self.sys.pass(Call::Write)? {
            Some(Fault::Short) => (&self.inner).write(&buf[..1.min(buf.len())]),
            _ => (&self.inner).write(buf),
        }?;
        self.sys.record(|r| r.appended(&self.inner, &buf[..n]));
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// For encoders that go back to fill in lengths.
impl io::Seek for &File {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        (&self.inner).seek(to)
    }
}
