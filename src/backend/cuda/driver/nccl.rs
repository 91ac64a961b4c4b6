//! NCCL, NVIDIA's library of collectives. It is looked for at run time and never required.
//!
//! Its absence is not an [`Error`]: copies between devices replace it. The reason is one line for a report.

use super::{Device, Memory, Stream};
use crate::error::{Error, Result};
use bytemuck::{Pod, Zeroable};
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Range;
use std::sync::Arc;

/// The library's name since version 2.0. The name without a number exists only if headers are installed too.
const LIBRARY: &str = "libnccl.so.2";
/// The oldest version whose functions have the types below.
const VERSION_MIN: c_int = 2400;
// `ncclUint8`, `ncclFloat64` and `ncclSum`.
const UINT8: c_int = 1;
const FLOAT64: c_int = 8;
const SUM: c_int = 0;

/// `ncclUniqueId`, by which communicators of several processes find each other.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct UniqueId([u8; 128]);

/// `ncclComm_t`.
type Communicator = *mut c_void;
/// `ncclResult_t`; 0 is success.
type Status = c_int;

/// The functions in use, as nccl.h declares them.
#[derive(Debug)]
struct Functions {
    version: unsafe extern "C" fn(*mut c_int) -> Status,
    error_string: unsafe extern "C" fn(Status) -> *const c_char,
    init_all: unsafe extern "C" fn(*mut Communicator, c_int, *const c_int) -> Status,
    unique_id: unsafe extern "C" fn(*mut UniqueId) -> Status,
    init_rank: unsafe extern "C" fn(*mut Communicator, c_int, UniqueId, c_int) -> Status,
    destroy: unsafe extern "C" fn(Communicator) -> Status,
    abort: unsafe extern "C" fn(Communicator) -> Status,
    group_start: unsafe extern "C" fn() -> Status,
    group_end: unsafe extern "C" fn() -> Status,
    reduce_scatter: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        Communicator,
        *mut c_void,
    ) -> Status,
    reduce: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        c_int,
        Communicator,
        *mut c_void,
    ) -> Status,
    all_gather:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Communicator, *mut c_void) -> Status,
    broadcast: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        Communicator,
        *mut c_void,
    ) -> Status,
}

impl Functions {
    fn of(library: &Library) -> std::result::Result<Self, libloading::Error> {
        // SAFETY: each name has the type of its field in nccl.h, from version 2.4 on. The pointers are called only
        // by `Nccl`, which keeps the library loaded.
        unsafe {
            Ok(Self {
                version: *library.get(c"ncclGetVersion")?,
                error_string: *library.get(c"ncclGetErrorString")?,
                init_all: *library.get(c"ncclCommInitAll")?,
                unique_id: *library.get(c"ncclGetUniqueId")?,
                init_rank: *library.get(c"ncclCommInitRank")?,
                destroy: *library.get(c"ncclCommDestroy")?,
                abort: *library.get(c"ncclCommAbort")?,
                group_start: *library.get(c"ncclGroupStart")?,
                group_end: *library.get(c"ncclGroupEnd")?,
                reduce_scatter: *library.get(c"ncclReduceScatter")?,
                reduce: *library.get(c"ncclReduce")?,
                all_gather: *library.get(c"ncclAllGather")?,
                broadcast: *library.get(c"ncclBroadcast")?,
            })
        }
    }
}

/// A loaded NCCL, and its communicators once they are created.
#[derive(Debug)]
pub struct Nccl {
    functions: Functions,
    version: c_int,
    communicators: Vec<Communicator>,
    devices: Vec<Arc<Device>>,
    /// The number of the first of `devices` among all members: some may be those of other processes.
    first: usize,
    /// Whether some are.
    is_joined: bool,
    /// Whether a call has failed. After that, communicators do not wait for each other.
    failed: bool,
    /// Keeps the library loaded while its functions can be called.
    _library: Library,
}

// SAFETY: communicators may be used from any thread, one at a time; `Nccl` lends itself to one.
unsafe impl Send for Nccl {}

impl Nccl {
    /// Loads the library that the loader finds. The error is one line.
    pub fn find() -> std::result::Result<Self, String> {
        // SAFETY: loading runs the library's initializers, as for any program that is linked to it; which
        // library a name means is up to the user who starts the program.
        let library =
            unsafe { Library::new(LIBRARY) }.map_err(|_| format!("NCCL ({LIBRARY}) is not installed"))?;
        let functions = Functions::of(&library).map_err(|e| format!("{LIBRARY} is no NCCL: {e}"))?;
        let mut version = 0;
        // SAFETY: the pointer is to a live integer.
        let told = unsafe { (functions.version)(&raw mut version) };
        if told != 0 || version < VERSION_MIN {
            return Err(format!("NCCL is of version {version}; 2.4 or newer serves"));
        }
        let (communicators, devices) = (Vec::new(), Vec::new());
        let (first, is_joined, failed) = (0, false, false);
        Ok(Self { functions, version, communicators, devices, first, is_joined, failed, _library: library })
    }

    /// The version's number, as NCCL gives it.
    #[must_use]
    pub fn version(&self) -> i32 {
        self.version
    }

    /// The name and version, for a report.
    #[must_use]
    pub fn name(&self) -> String {
        // Since 2.9 a number has five digits: 22703 for 2.27.3.
        let base = if self.version < 10_000 { 1000 } else { 10_000 };
        let (major, rest) = (self.version / base, self.version % base);
        format!("NCCL {major}.{}.{}", rest / 100, rest % 100)
    }

    /// Creates a communicator for each of `devices`, which are all members. The error is one line.
    pub fn connect(&mut self, devices: &[Arc<Device>]) -> std::result::Result<(), String> {
        let ordinals: Vec<c_int> = devices.iter().map(|device| device.ordinal).collect();
        let mut communicators = vec![std::ptr::null_mut(); ordinals.len()];
        let count = c_int::try_from(ordinals.len()).unwrap_or(0);
        // SAFETY: both lists have `count` entries, and devices are not named twice.
        let made = unsafe { (self.functions.init_all)(communicators.as_mut_ptr(), count, ordinals.as_ptr()) };
        if made != 0 {
            return Err(format!("{} does not start: {}", self.name(), self.words(made)));
        }
        (self.communicators, self.devices) = (communicators, devices.to_vec());
        Ok(())
    }

    /// What another process needs for [`Nccl::join`]. The error is one line.
    pub fn unique_id(&self) -> std::result::Result<UniqueId, String> {
        let mut id = UniqueId::zeroed();
        // SAFETY: the pointer is to a live id.
        let made = unsafe { (self.functions.unique_id)(&raw mut id) };
        if made == 0 { Ok(id) } else { Err(format!("{} does not start: {}", self.name(), self.words(made))) }
    }

    /// Creates a communicator for `device`, member `number` of `count`. The others do the same in their processes, with the same `id`; it
    /// waits for them. The error is one line.
    pub fn join(
        &mut self,
        device: &Arc<Device>,
        id: UniqueId,
        (number, count): (usize, usize),
    ) -> Result<std::result::Result<(), String>> {
        device.bind()?;
        let narrow = |n: usize| c_int::try_from(n).unwrap_or(c_int::MAX);
        let mut communicator = std::ptr::null_mut();
        // SAFETY: the pointer is to a live communicator, which is the current context's.
        let made =
            unsafe { (self.functions.init_rank)(&raw mut communicator, narrow(count), id, narrow(number)) };
        if made != 0 {
            return Ok(Err(format!("{} does not connect processes: {}", self.name(), self.words(made))));
        }
        (self.communicators, self.devices) = (vec![communicator], vec![Arc::clone(device)]);
        (self.first, self.is_joined) = (number, true);
        Ok(Ok(()))
    }

    fn words(&self, status: Status) -> String {
        // SAFETY: the function gives a string that is always there, for any number.
        let text = unsafe { CStr::from_ptr((self.functions.error_string)(status)) };
        text.to_string_lossy().into_owned()
    }

    /// Runs `call` for each device of this process, with its number among all members, communicator, memory address and stream, as one NCCL
    /// group.
    fn group(
        &mut self,
        action: &'static str,
        members: &[(&Memory, &Stream)],
        call: impl Fn(&Functions, usize, u64, Communicator, *mut c_void) -> Status,
    ) -> Result<()> {
        debug_assert_eq!(members.len(), self.communicators.len(), "a communicator for each device");
        // SAFETY: a plain call.
        let mut status = unsafe { (self.functions.group_start)() };
        let own = members.iter().zip(&self.communicators);
        for (number, ((memory, stream), &communicator)) in (self.first..).zip(own) {
            if status == 0 {
                stream.device.bind()?;
                status = call(&self.functions, number, memory.at, communicator, stream.stream.cast());
            }
        }
        // SAFETY: the group was started.
        let ended = unsafe { (self.functions.group_end)() };
        match [status, ended].into_iter().find(|&status| status != 0) {
            None => Ok(()),
            Some(status) => {
                self.failed = true;
                let what = format!("{}: {}", self.name(), self.words(status));
                Err(Error::Device { action, what, out_of_memory: false })
            }
        }
    }

    /// Adds up `numbers` f64 numbers over all members, in place; `members` are those of this process. Each member receives the numbers that
    /// it owns: `each` numbers for every member, and the rest for the last one.
    pub fn reduce_scatter(
        &mut self,
        members: &[(&Memory, &Stream)],
        owned: &[Range<usize>],
        numbers: usize,
    ) -> Result<()> {
        const BYTES: u64 = size_of::<f64>() as u64;
        let (each, last) = shares(owned);
        check(members, numbers * size_of::<f64>());
        let at = |base: u64, number: usize| base + number as u64 * BYTES;
        self.group("add up sums over devices", members, |f, number, base, communicator, stream| {
            let mut status = 0;
            if each > 0 {
                let own = at(base, number * each) as *mut c_void;
                // SAFETY: all numbers are inside the allocation, which outlives the stream's work.
                status = unsafe {
                    (f.reduce_scatter)(base as *const c_void, own, each, FLOAT64, SUM, communicator, stream)
                };
            }
            let behind = each * owned.len();
            if status == 0 && behind < numbers {
                let rest = at(base, behind) as *mut c_void;
                // SAFETY: as above.
                status = unsafe {
                    (f.reduce)(rest, rest, numbers - behind, FLOAT64, SUM, last, communicator, stream)
                };
            }
            status
        })
    }

    /// Distributes the bytes that each member owns to all members. Ranges follow each other.
    pub fn all_gather(&mut self, members: &[(&Memory, &Stream)], owned: &[Range<usize>]) -> Result<()> {
        let (each, last) = shares(owned);
        let bytes = owned.last().map_or(0, |own| own.end);
        check(members, bytes);
        if owned.iter().rev().skip(1).any(|own| own.len() != each) || bytes < each * owned.len() {
            return self.broadcasts(members, owned);
        }
        self.group("gather rows from devices", members, |f, number, base, communicator, stream| {
            let mut status = 0;
            if each > 0 {
                let own = (base + (number * each) as u64) as *const c_void;
                // SAFETY: all bytes are inside the allocation, which outlives the stream's work.
                status =
                    unsafe { (f.all_gather)(own, base as *mut c_void, each, UINT8, communicator, stream) };
            }
            let behind = each * owned.len();
            if status == 0 && behind < bytes {
                let rest = (base + behind as u64) as *mut c_void;
                // SAFETY: as above.
                status =
                    unsafe { (f.broadcast)(rest, rest, bytes - behind, UINT8, last, communicator, stream) };
            }
            status
        })
    }

    /// The same for ranges of any lengths: a broadcast from each owner.
    fn broadcasts(&mut self, members: &[(&Memory, &Stream)], owned: &[Range<usize>]) -> Result<()> {
        self.group("gather rows from devices", members, |f, _, base, communicator, stream| {
            let mut status = 0;
            for (root, own) in (0..).zip(owned).filter(|(_, own)| !own.is_empty()) {
                let own_at = (base + own.start as u64) as *mut c_void;
                if status == 0 {
                    // SAFETY: all bytes are inside the allocation, which outlives the stream's work.
                    status = unsafe {
                        (f.broadcast)(own_at, own_at, own.len(), UINT8, root, communicator, stream)
                    };
                }
            }
            status
        })
    }
}

/// The share of each member but the last, and the number of the last, which owns as much and the rest.
fn shares(owned: &[Range<usize>]) -> (usize, c_int) {
    let each = owned.first().map_or(0, |own| if owned.len() == 1 { 0 } else { own.len() });
    (each, c_int::try_from(owned.len().saturating_sub(1)).unwrap_or(0))
}

fn check(members: &[(&Memory, &Stream)], bytes: usize) {
    assert!(members.iter().all(|(memory, _)| bytes <= memory.bytes), "a collective fits the device memory");
}

impl Drop for Nccl {
    fn drop(&mut self) {
        if self.devices.iter().any(|device| device.is_lost()) {
            return;
        }
        for &communicator in &self.communicators {
            // Destroying waits for the other members, which another process may keep longer.
            let aborts = self.failed || self.is_joined;
            let end = if aborts { self.functions.abort } else { self.functions.destroy };
            // SAFETY: made in `connect` or `join`, ended here only; the streams' work is done.
            let _ = unsafe { end(communicator) };
        }
    }
}
