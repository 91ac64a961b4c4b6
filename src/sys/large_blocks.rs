//! The allocator of programs that compute: large blocks begin at cache lines and use huge pages.

#![expect(
    unsafe_code,
    reason = "a global allocator is an unsafe trait, and huge pages are asked for by a system call"
)]

use std::alloc::{GlobalAlloc, Layout, System};

/// The system's allocator, but large blocks begin at a cache line and ask for huge pages.
///
/// The programs and the Python package allocate with it. Without it, passes over tensors with long modes take up to 1.6 times as long in a
/// program of your own:
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: blco::LargeBlocks = blco::LargeBlocks;
/// # fn main() {}
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct LargeBlocks;

/// The size from which a block begins at a cache line.
const LINES_FROM: usize = 1 << 20;
/// The size from which a block uses huge pages: factors, results, the packer's sort buffers.
const HUGE_FROM: usize = 64 << 20;

// SAFETY: every block is the system allocator's. Those of `alloc` may have a larger alignment than was asked for, and the C
// library resizes and frees blocks of any alignment alike.
unsafe impl GlobalAlloc for LargeBlocks {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the trait's contract.
        with_huge_pages(unsafe { System.alloc(at_lines(layout)) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the trait's contract.
        with_huge_pages(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller keeps the trait's contract.
        unsafe { System.realloc(block, layout, bytes) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the trait's contract.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Rows of matrices, whose bytes are often a multiple of a cache line's, then touch no line more than they fill. (The system's large blocks
/// begin 16 bytes behind a line.)
fn at_lines(layout: Layout) -> Layout {
    const LINE_BYTES: usize = 64;
    if cfg!(unix) && layout.size() >= LINES_FROM {
        layout.align_to(LINE_BYTES).unwrap_or(layout)
    } else {
        layout
    }
}

/// Touching a block then takes a five-hundredth of the faults, and random rows miss the TLB less often. If the system has no huge pages, small
/// ones are used.
fn with_huge_pages(block: *mut u8, bytes: usize) -> *mut u8 {
    #[cfg(target_os = "linux")]
    if bytes >= HUGE_FROM && !block.is_null() {
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
