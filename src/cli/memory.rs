//! Out of memory: a program ends with one line and exit status 2, and leaves no temporary files.
//!
//! Planned memory is allocated by `Sys`, which returns ordinary errors. Everything else (messages, lists, libraries) is small, and Rust
//! aborts if its allocation fails. So the programs allocate through [`Allocator`]: if the system is out of memory, the thread that asked
//! ends the program, using memory that was reserved for this.

#![expect(
    unsafe_code,
    reason = "a global allocator is an unsafe trait, and its last words must not allocate: libc writes them"
)]

use crate::sys::{LargeBlocks, Sys, is_contained, is_trying};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, UnsafeCell};
use std::io::Write;
use std::panic::PanicHookInfo;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::time::Duration;

/// [`LargeBlocks`], except that it ends the program when memory runs out.
#[derive(Debug)]
pub struct Allocator;

/// The handle whose temporary files are removed, and the program's name.
static PROGRAM: OnceLock<(Sys, String)> = OnceLock::new();
/// Whether a thread ends the program.
static ENDING: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread ends the program.
    static ENDS_HERE: Cell<bool> = const { Cell::new(false) };
}

/// Bytes that the ending thread may use of its own reserve.
const RESERVE_BYTES: usize = 256 << 10;
/// Blocks that are returned to the system's allocator for the C code that removes directories.
const SPARE_BLOCKS: usize = 4;
/// Bytes of each block: less than the size from which the allocator maps memory from the system.
const SPARE_BYTES: usize = 64 << 10;

/// Memory that is part of the program's image.
#[repr(align(16))]
struct Reserve {
    bytes: UnsafeCell<[u8; RESERVE_BYTES]>,
    taken: AtomicUsize,
}

// SAFETY: `taken` hands out each byte once.
unsafe impl Sync for Reserve {}

static RESERVE: Reserve = Reserve { bytes: UnsafeCell::new([0; RESERVE_BYTES]), taken: AtomicUsize::new(0) };
static SPARE: [AtomicPtr<u8>; SPARE_BLOCKS] = [const { AtomicPtr::new(null_mut()) }; SPARE_BLOCKS];

impl Reserve {
    /// Takes some of it; null if there is too little.
    fn take(&self, layout: Layout) -> *mut u8 {
        let start = self.bytes.get().cast::<u8>();
        let taken = self.taken.fetch_add(layout.size() + layout.align(), Ordering::Relaxed);
        let at = (start as usize + taken).next_multiple_of(layout.align()) - start as usize;
        if at.saturating_add(layout.size()) > RESERVE_BYTES {
            return null_mut();
        }
        // SAFETY: inside the reserve, as was just checked.
        unsafe { start.add(at) }
    }

    fn holds(&self, block: *mut u8) -> bool {
        let start = self.bytes.get() as usize;
        (start..start + RESERVE_BYTES).contains(&(block as usize))
    }
}

fn spare_layout() -> Layout {
    Layout::from_size_align(SPARE_BYTES, 16).expect("a power of two")
}

/// Called when the system is out of memory. Returns null to a thread that only tries ([`is_trying`]), and reserved memory to the thread
/// that ends the program. All other threads never return.
#[cold]
fn exhausted(layout: Layout) -> *mut u8 {
    if is_trying() {
        return null_mut();
    }
    if ENDS_HERE.try_with(Cell::get) != Ok(true) {
        end()
    }
    RESERVE.take(layout)
}

// SAFETY: every block is that allocator's, or of the reserve, which is never given back; a null pointer is handed on
// where this returns at all.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the trait's contract.
        let block = unsafe { LargeBlocks.alloc(layout) };
        if block.is_null() { exhausted(layout) } else { block }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the trait's contract. The reserve is zero where it was not taken.
        let block = unsafe { LargeBlocks.alloc_zeroed(layout) };
        if block.is_null() { exhausted(layout) } else { block }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        let kept = RESERVE.holds(old);
        // SAFETY: the caller keeps the trait's contract; the block is the system's.
        let block = if kept { null_mut() } else { unsafe { LargeBlocks.realloc(old, layout, bytes) } };
        if !block.is_null() {
            return block;
        }
        let Ok(larger) = Layout::from_size_align(bytes, layout.align()) else { return null_mut() };
        let block = exhausted(larger);
        if !block.is_null() {
            // SAFETY: both are that long, and the reserve hands out each byte once. The old block is not missed any more.
            unsafe { block.copy_from_nonoverlapping(old, layout.size().min(bytes)) };
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if !RESERVE.holds(block) {
            // SAFETY: the caller keeps the trait's contract; the block is the system's.
            unsafe { LargeBlocks.dealloc(block, layout) }
        }
    }
}

/// Blocks of at least this many bytes have pages of their own: a list in them grows without a copy, and its memory
/// returns to the system when freed. Plans rely on it; by default the allocator raises the size to that of freed
/// blocks.
#[cfg(target_env = "gnu")]
const PAGED_BYTES: libc::c_int = 128 << 10;

/// Reserves memory, and remembers the program's name and its temporary files.
pub(super) fn prepare(sys: &Sys, name: &str) {
    if PROGRAM.set((sys.clone(), name.to_owned())).is_err() {
        return;
    }
    // SAFETY: sets a number of the system's allocator.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, PAGED_BYTES)
    };
    for spare in &SPARE {
        // SAFETY: the layout is not empty.
        spare.store(unsafe { System.alloc(spare_layout()) }, Ordering::Relaxed);
    }
    // SAFETY: the handler calls what may be called where C's allocator has no more.
    unsafe { libc::signal(libc::SIGABRT, aborted as *const () as libc::sighandler_t) };
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| match panic {
        panic if is_of_memory(panic) => end(),
        _ if is_contained() => {}
        panic => usual(panic),
    }));
}

/// Gives the arenas of threads that start later, where the allocator has their smaller blocks, their whole part of the address space at once.
/// By default an arena grows by a few pages at a time, each time by a system call for which all threads wait: on 16 threads, packing takes 1.3
/// times as long. Such arenas keep what is freed in them. No plan knows of that, so they must be less than an eighth of `memory`.
pub(super) fn make_arenas_whole(memory: u64, threads: usize) {
    const ARENA_BYTES: libc::c_int = 64 << 20;
    if ARENA_BYTES as u64 * threads as u64 <= memory / 8 {
        // SAFETY: sets a number of the system's allocator.
        #[cfg(target_env = "gnu")]
        unsafe {
            libc::mallopt(libc::M_TOP_PAD, ARENA_BYTES)
        };
    }
}

/// Whether a panic means that the system is out of memory: libraries and starting threads panic then.
fn is_of_memory(panic: &PanicHookInfo<'_>) -> bool {
    const TOLD: [&str; 4] = [
        "failed to allocate an alternative stack",
        "alternative stack guard page",
        "os error 12",
        "zstd returned null",
    ];
    let text = panic.payload_as_str().unwrap_or_default();
    TOLD.iter().any(|told| text.contains(told))
}

/// The C library aborts if it has no memory for a thread's data, with a line of its own. Ends the program as [`end`] does, without another
/// line. An abort for another reason dies of the signal.
extern "C" fn aborted(signal: libc::c_int) {
    const TRIED_BYTES: usize = 1 << 20;
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: maps new pages, which are not used.
    let there = unsafe { libc::mmap(null_mut(), TRIED_BYTES, access, kind, -1, 0) } != libc::MAP_FAILED;
    if !there {
        end_without_a_word()
    }
    // SAFETY: the signal comes again when this returns, to the system's own handler.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

/// Ends the program: removes temporary files and writes one line. If another thread is about to report how the program ends, waits for it
/// for a while.
fn end() -> ! {
    const GRACE: Duration = Duration::from_secs(2);
    give_up();
    if !super::tells() {
        std::thread::sleep(GRACE);
    }
    let name = PROGRAM.get().map_or("blco", |(_, name)| name);
    let mut line = [0u8; 200];
    let mut rest = &mut line[..];
    let _ = writeln!(
        rest,
        "{name}: cannot allocate memory: the system is out of memory; run it on a larger machine, or with a smaller --memory"
    );
    let left = rest.len();
    // SAFETY: writes bytes of `line`. (The lock of `std::io::stderr` may be held by a thread that waits for this one.)
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len() - left) };
    exit()
}

fn end_without_a_word() -> ! {
    give_up();
    exit()
}

fn exit() -> ! {
    // SAFETY: ends the process without destructors, which may wait for threads that wait.
    unsafe { libc::_exit(2) }
}

/// Removes temporary files. If another thread is already doing so, waits for it, except during a rename, for which the other thread waits.
fn give_up() {
    if ENDING.swap(true, Ordering::Relaxed) && !Sys::is_publishing() {
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    let _ = ENDS_HERE.try_with(|here| here.set(true));
    for spare in &SPARE {
        let block = spare.swap(null_mut(), Ordering::Relaxed);
        if !block.is_null() {
            // SAFETY: it was allocated by `prepare` with this layout.
            unsafe { System.dealloc(block, spare_layout()) };
        }
    }
    if let Some((sys, _)) = PROGRAM.get() {
        sys.abandon();
    }
}
