//! Planning: memory, bytes and threads of a pass, computed before anything is allocated.

use crate::error::{Error, Result};
use crate::store::Store;
use bytesize::ByteSize;
use serde::Serialize;

/// Buffers of all workers together: two each, one filled while the other is in use, or one where there are more workers. (A buffer is
/// in use for a twentieth of the time that it takes to fill it from the page cache.)
const BUFFERS_MAX: usize = 12;
/// The most workers by default: from the page cache, twelve read twice as fast as four, and more hardly faster than twelve.
const WORKERS_MAX: usize = 12;
/// The same if files are read directly: more made no disk in the records faster.
const DIRECT_WORKERS_MAX: usize = 4;

/// Memory of a program without data: mostly the pages of its code that a run touches, as measured in optimised builds.
const PROGRAM_BYTES: u64 = 9 << 20;
/// Memory of a thread: the part of its stack that it uses.
const THREAD_BYTES: u64 = 48 << 10;

/// What a pass may use.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Host memory in bytes that the command may use; `None` for the available memory.
    pub memory: Option<u64>,
    /// Compute threads.
    pub threads: usize,
    /// Reading threads; `None` to choose.
    pub workers: Option<usize>,
    /// Host memory in bytes that is available now. Also decides whether files are read past the page cache.
    pub available: u64,
    /// Planned passes. Chunks are kept in memory only if there are at least two.
    pub passes: u32,
    /// The number of leading chunks that a device holds from the first pass on. They are not kept in host
    /// memory too.
    pub held: usize,
    /// Bytes held after the passes end, if that is more than passes take.
    pub afterwards: u64,
    /// What would reduce memory, for the error if there is too little.
    pub less: &'static str,
}

/// Two threads, one pass and no bound on memory.
impl Default for Limits {
    fn default() -> Self {
        Self {
            memory: None,
            threads: 2,
            workers: None,
            available: u64::MAX,
            passes: 1,
            held: 0,
            afterwards: 0,
            less: "",
        }
    }
}

/// What passes will use. Memory is `program +` the larger of `operation + workers * (buffers_per_worker * buffer +
/// scratch) + kept` and `afterwards`.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// Compute threads.
    pub threads: usize,
    /// Workers: reading threads. If files are read directly, each has a second thread that checks what it has read.
    pub workers: usize,
    /// Buffers of each worker.
    pub buffers_per_worker: usize,
    /// Bytes of a buffer.
    pub buffer_bytes: usize,
    /// Bytes of each worker's scratch for undoing the codec.
    pub scratch_bytes: usize,
    /// Bytes of the program without data, its threads, and the store's list of chunks.
    pub program_bytes: u64,
    /// Bytes that the operation and the backend hold: factors, results, decoded tiles.
    pub operation_bytes: u64,
    /// Chunks kept in memory between passes.
    #[serde(serialize_with = "count")]
    pub kept: Vec<usize>,
    /// Bytes of these chunks.
    pub kept_bytes: u64,
    /// Bytes held after the passes end.
    pub afterwards_bytes: u64,
    /// Total bytes.
    pub memory_bytes: u64,
    /// Bytes read from files in one pass.
    pub file_bytes: u64,
    /// Chunks in one pass.
    pub chunks: usize,
    /// Whether files are read past the page cache, because the cache cannot hold them.
    pub direct_reads: bool,
}

/// Plans passes over `store` for an operation that holds `operation_bytes` of host memory.
pub fn plan(store: &Store, operation_bytes: u64, limits: &Limits) -> Result<Plan> {
    let chunks = store.manifest().chunks.len();
    let file_bytes: u64 = store.manifest().chunks.iter().map(|c| c.file_bytes).sum();
    let direct_reads = file_bytes.saturating_add(operation_bytes) > limits.available;
    let workers = limits.workers.unwrap_or_else(|| default_workers(limits.threads, direct_reads));
    let workers = workers.clamp(1, chunks.max(1));
    let mut plan = Plan {
        threads: limits.threads,
        workers,
        buffers_per_worker: buffers_per_worker(workers),
        buffer_bytes: store.buffer_bytes(),
        scratch_bytes: store.scratch_bytes(),
        program_bytes: 0,
        operation_bytes,
        kept: Vec::new(),
        kept_bytes: 0,
        afterwards_bytes: limits.afterwards,
        memory_bytes: 0,
        file_bytes,
        chunks,
        direct_reads,
    };
    plan.program_bytes = program_bytes(limits.threads + plan.workers) + store.held_bytes();
    let bound = limits.memory.unwrap_or(limits.available);
    while plan.bytes() > bound {
        match (plan.workers, plan.buffers_per_worker) {
            (1, 1) => return Err(too_large(&plan, bound, limits)),
            (1, _) => plan.buffers_per_worker = 1,
            _ => {
                plan.workers -= 1;
                plan.program_bytes -= THREAD_BYTES;
            }
        }
    }
    if limits.passes > 1 {
        // Without a limit from the user, half of the memory is left to others.
        plan.keep(store, limits.memory.unwrap_or(limits.available / 2), limits.held);
    }
    plan.memory_bytes = plan.bytes();
    Ok(plan)
}

/// Bytes of a program with `threads` threads and no data.
#[must_use]
pub fn program_bytes(threads: usize) -> u64 {
    PROGRAM_BYTES + THREAD_BYTES * threads as u64
}

/// The number of workers beside `threads` compute threads if the user names none.
#[must_use]
pub fn default_workers(threads: usize, direct_reads: bool) -> usize {
    threads.clamp(2, if direct_reads { DIRECT_WORKERS_MAX } else { WORKERS_MAX })
}

fn buffers_per_worker(workers: usize) -> usize {
    (BUFFERS_MAX / workers).clamp(1, 2)
}

/// The most bytes of buffers for the default number of workers.
#[must_use]
pub fn buffers_bytes(store: &Store, threads: usize) -> u64 {
    let workers = default_workers(threads, false);
    (buffers_max(workers) * store.buffer_bytes() + workers * store.scratch_bytes()) as u64
}

/// The most buffers of this number of workers or fewer.
fn buffers_max(workers: usize) -> usize {
    (2 * workers).min(BUFFERS_MAX)
}

impl Plan {
    /// Bytes of the same passes with one worker that has one buffer.
    #[must_use]
    pub fn least_bytes(&self) -> u64 {
        let program_bytes = self.program_bytes - THREAD_BYTES * (self.workers as u64 - 1);
        Self { workers: 1, buffers_per_worker: 1, program_bytes, kept_bytes: 0, ..self.clone() }.bytes()
    }

    fn bytes(&self) -> u64 {
        let worker = self.buffers_per_worker * self.buffer_bytes + self.scratch_bytes;
        let passes =
            self.operation_bytes.saturating_add(self.workers as u64 * worker as u64) + self.kept_bytes;
        self.program_bytes.saturating_add(passes.max(self.afterwards_bytes))
    }

    /// Keeps the first chunks that `bound` has room for: a cyclic scan gains nothing from a changing set. The
    /// first `held` are on a device.
    fn keep(&mut self, store: &Store, bound: u64, held: usize) {
        for number in held..self.chunks {
            let bytes = store.chunk_buffer_bytes(number) as u64;
            if self.bytes() + bytes > bound {
                break;
            }
            self.kept.push(number);
            self.kept_bytes += bytes;
        }
    }
}

fn count<S: serde::Serializer>(kept: &[usize], serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_u64(kept.len() as u64)
}

/// The error if even `plan`, the smallest possible, exceeds `bound`.
fn too_large(plan: &Plan, bound: u64, limits: &Limits) -> Error {
    let computed = plan.operation_bytes.max(plan.afterwards_bytes);
    let of_which = format!(", {} of it for the computation", ByteSize(computed));
    too_little(plan.bytes(), bound, limits.memory.is_some(), &of_which, limits.less)
}

/// The error if `least` bytes are needed and `bound` are allowed, by `--memory` if it was `asked` for. The size in the
/// message is sufficient.
#[must_use]
pub fn too_little(least: u64, bound: u64, asked: bool, of_which: &str, less: &str) -> Error {
    let least = rounded_up(least);
    let limit = if asked { "`memory` allows" } else { "this machine can give" };
    let ways: Vec<&str> = [less, if asked { "raise it" } else { "use a machine with more memory" }]
        .into_iter()
        .filter(|way| !way.is_empty())
        .collect();
    Error::request(format!(
        "needs at least {}{of_which}; {limit} {}, {} too little: {}",
        shown(least),
        ByteSize(bound),
        ByteSize(least.saturating_sub(bound)),
        ways.join(", or "),
    ))
}

/// Names at least this many bytes; what a user reads and passes as it is suffices.
#[must_use]
pub fn enough(bytes: u64) -> String {
    shown(rounded_up(bytes))
}

/// At least this many bytes, rounded up so that one digit shows them exactly: whole MiB, or tenths of small sizes and
/// of TiB.
fn rounded_up(bytes: u64) -> u64 {
    const MIB: u64 = 1 << 20;
    let tenth = match bytes {
        0..=0x200_0000 => MIB / 10,
        0x200_0001..0x100_0000_0000 => return bytes.next_multiple_of(MIB),
        _ => (1 << 40) / 10,
    };
    // A tenth is not a whole number of bytes, so parsing it can give a few more or fewer.
    (bytes.saturating_add(10) / tenth + 1).saturating_mul(tenth)
}

/// Shows a result of [`rounded_up`] in the unit in which one digit is exact, so that a user can pass it as it is.
fn shown(bytes: u64) -> String {
    let (unit, name) = if bytes < 1 << 40 { (1 << 20, "MiB") } else { (1 << 40, "TiB") };
    let tenths = bytes / (unit / 10);
    let whole = bytes.saturating_add(unit / 20) / unit;
    if bytes.abs_diff(whole * unit) < unit / 20 {
        format!("{whole} {name}")
    } else {
        format!("{}.{} {name}", tenths / 10, tenths % 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is set aside for buffers is enough for the workers that are then planned.
    #[test]
    fn buffers_of_default_workers_are_set_aside() {
        for threads in 1..=100 {
            for direct in [false, true] {
                let workers = default_workers(threads, direct);
                let most = buffers_max(default_workers(threads, false));
                assert!((1..=most).contains(&(workers * buffers_per_worker(workers))), "{threads} {direct}");
            }
        }
        assert_eq!([1, 6, 64].map(|threads| default_workers(threads, false)), [2, 6, 12]);
        assert_eq!([2, 6, 7, 64].map(buffers_per_worker), [2, 2, 1, 1]);
    }

    /// The size shown is sufficient when a user passes it, and only slightly larger than needed.
    #[test]
    fn sizes_that_are_named_are_enough() {
        for bytes in
            (0..64 << 20).step_by(77_777).chain([1 << 20, (32 << 20) + 1, 5 << 40, (5 << 40) + 1, 1 << 60])
        {
            let text = enough(bytes);
            let read = parse_size::parse_size(&text).unwrap();
            assert!((bytes..=bytes + bytes / 4 + (105 << 10)).contains(&read), "{bytes}: {text} is {read}");
        }
    }
}
