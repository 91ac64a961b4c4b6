//! Where memory ends: a program then ends with one line and exit status 2, and leaves nothing temporary.
//!
//! What a plan foresees is allocated by `Sys`, whose errors are ordinary ones. Everything else (a message, a list, what
//! a library keeps) is small and cannot fail in Rust but by aborting. So the programs allocate through [`Allocator`]:
//! where the system has no more, the thread that asked ends the program, on memory that was set aside for it.

#![expect(
    unsafe_code,
    reason = "a global allocator is an unsafe trait, and its last words must not allocate: libc writes them"
)]

use crate::sys::{Sys, is_contained, is_trying};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, UnsafeCell};
use std::io::Write;
use std::panic::PanicHookInfo;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::time::Duration;

/// The allocator of the programs: the system's, but that it ends the program where there is no more.
#[derive(Debug)]
pub struct Allocator;

/// The handle whose temporary files go, and the program's name.
static PROGRAM: OnceLock<(Sys, String)> = OnceLock::new();
/// Whether a thread ends the program.
static ENDING: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread does.
    static ENDS_HERE: Cell<bool> = const { Cell::new(false) };
}

/// Bytes that the ending thread may take of its own reserve.
const RESERVE_BYTES: usize = 256 << 10;
/// Blocks that are given back to the system's allocator for what removes directories, in C.
const SPARE_BLOCKS: usize = 4;
/// Bytes of each: below the size from which the allocator asks the system itself.
const SPARE_BYTES: usize = 64 << 10;

/// Memory that is part of the program.
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
    /// Some of it, or null.
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

/// Bytes from which a block of memory takes huge pages: factors, results, what a packer sorts.
const HUGE_BYTES: usize = 64 << 20;

/// Asks the system for huge pages under a large block: touching it then takes a five-hundredth of the faults, and random rows miss the
/// TLB less often. Where the system has none, small ones serve.
fn with_huge_pages(block: *mut u8, bytes: usize) -> *mut u8 {
    #[cfg(target_os = "linux")]
    if bytes >= HUGE_BYTES {
        const PAGE: usize = 4096;
        let begin = block as usize / PAGE * PAGE;
        // SAFETY: advice changes no contents; a block of this size is a mapping of its own, whose first page may hold the
        // allocator's header.
        unsafe {
            libc::madvise(begin as *mut libc::c_void, block as usize + bytes - begin, libc::MADV_HUGEPAGE)
        };
    }
    block
}

fn spare_layout() -> Layout {
    Layout::from_size_align(SPARE_BYTES, 16).expect("a power of two")
}

/// Memory where the system has none: none for who asks whether there is any, the reserve for who ends the program. Nobody
/// else comes back.
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

// SAFETY: every block is the system allocator's, or of the reserve, which is never given back; a null pointer is handed on
// where this returns at all.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the trait's contract.
        let block = unsafe { System.alloc(layout) };
        if block.is_null() { exhausted(layout) } else { with_huge_pages(block, layout.size()) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the trait's contract. The reserve is zero where it was not taken.
        let block = unsafe { System.alloc_zeroed(layout) };
        if block.is_null() { exhausted(layout) } else { with_huge_pages(block, layout.size()) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        let kept = RESERVE.holds(old);
        // SAFETY: the caller keeps the trait's contract; the block is the system's.
        let block = if kept { null_mut() } else { unsafe { System.realloc(old, layout, bytes) } };
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
            unsafe { System.dealloc(block, layout) }
        }
    }
}

/// Bytes from which a block is pages of its own: a list of them grows without being copied, and goes back to the system when
/// it is freed. What plans count on; the allocator by itself raises the size to that of what is freed.
#[cfg(target_env = "gnu")]
const PAGED_BYTES: libc::c_int = 128 << 10;

/// Sets memory aside, and takes note of who is to be ended and what is to be removed then.
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

/// Whether a panic tells that the system has no memory: what libraries and threads that start make of it.
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

/// C's library aborts where it has no memory for what it keeps of a thread, and says so in one line. Ends the program then as elsewhere, without
/// another line; whoever aborts while there is memory has another reason, and dies of the signal.
extern "C" fn aborted(signal: libc::c_int) {
    const TRIED_BYTES: usize = 1 << 20;
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: maps new pages, which nobody uses.
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

/// Ends the program: what is temporary goes, one line tells why. Where another thread is about to tell how it ends, that thread ends it, unless it cannot
/// for long.
fn end() -> ! {
    const GRACE: Duration = Duration::from_secs(2);
    give_up();
    if !super::tells() {
        std::thread::sleep(GRACE);
    }
    let name = PROGRAM.get().map_or("blco", |(_, name)| name);
    let mut line = [0u8; 200];
    let mut rest = &mut line[..];
    let _ =
        writeln!(rest, "{name}: cannot allocate memory: the system has no more; run it where there is more");
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

/// Removes what is temporary. Where another thread does already, waits for that; but not in the middle of giving a name, which the
/// other waits for.
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
