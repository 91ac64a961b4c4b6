//! NVRTC, NVIDIA's run-time compiler, if it is installed. It is searched for at run time and is optional.
//!
//! A kernel that cannot be compiled is not a [`crate::error::Error`]: the embedded kernels are used. The reason is
//! one line for a report.

#![expect(unsafe_code, reason = "NVRTC is a C library")]

use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;

/// Major versions that the kernels are known to compile with, best first.
const MAJORS: [u32; 2] = [13, 12];
/// Directories of toolkits that the loader may not know.
const DIRECTORIES: [&str; 2] = ["/usr/local/cuda/lib64", "/opt/cuda/lib64"];

/// `nvrtcProgram`.
type NvrtcProgram = *mut c_void;
/// `nvrtcResult`; 0 is success.
type Status = c_int;

/// A file by name and text.
#[derive(Clone, Copy, Debug)]
pub struct SourceFile {
    /// As `#include` names it.
    pub name: &'static str,
    /// Its text, without NUL.
    pub text: &'static str,
}

/// The functions in use, as nvrtc.h of CUDA 12 and 13 declares them.
#[derive(Debug)]
struct Functions {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status,
    architecture_count: unsafe extern "C" fn(*mut c_int) -> Status,
    architectures: unsafe extern "C" fn(*mut c_int) -> Status,
    error_string: unsafe extern "C" fn(Status) -> *const c_char,
    create: unsafe extern "C" fn(
        *mut NvrtcProgram,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Status,
    destroy: unsafe extern "C" fn(*mut NvrtcProgram) -> Status,
    compile: unsafe extern "C" fn(NvrtcProgram, c_int, *const *const c_char) -> Status,
    log_size: unsafe extern "C" fn(NvrtcProgram, *mut usize) -> Status,
    log: unsafe extern "C" fn(NvrtcProgram, *mut c_char) -> Status,
    cubin_size: unsafe extern "C" fn(NvrtcProgram, *mut usize) -> Status,
    cubin: unsafe extern "C" fn(NvrtcProgram, *mut c_char) -> Status,
}

impl Functions {
    fn of(library: &Library) -> Result<Self, libloading::Error> {
        // SAFETY: each name has the type of its field in nvrtc.h, from CUDA 11.2 on. The pointers are called only
        // by `Nvrtc`, which keeps the library loaded.
        unsafe {
            Ok(Self {
                version: *library.get(c"nvrtcVersion")?,
                architecture_count: *library.get(c"nvrtcGetNumSupportedArchs")?,
                architectures: *library.get(c"nvrtcGetSupportedArchs")?,
                error_string: *library.get(c"nvrtcGetErrorString")?,
                create: *library.get(c"nvrtcCreateProgram")?,
                destroy: *library.get(c"nvrtcDestroyProgram")?,
                compile: *library.get(c"nvrtcCompileProgram")?,
                log_size: *library.get(c"nvrtcGetProgramLogSize")?,
                log: *library.get(c"nvrtcGetProgramLog")?,
                cubin_size: *library.get(c"nvrtcGetCUBINSize")?,
                cubin: *library.get(c"nvrtcGetCUBIN")?,
            })
        }
    }

    /// The architectures that it compiles for, 75 for compute capability 7.5; none if it does not report them.
    fn supported(&self) -> Vec<c_int> {
        let mut count = 0;
        // SAFETY: the pointer is to a live integer.
        let counted = unsafe { (self.architecture_count)(&raw mut count) };
        let mut all = vec![0; if counted == 0 { usize::try_from(count).unwrap_or(0) } else { 0 }];
        // SAFETY: the pointer is to as many integers as the previous call returned.
        let told = all.is_empty() || unsafe { (self.architectures)(all.as_mut_ptr()) } == 0;
        if told { all } else { Vec::new() }
    }
}

/// An error unless a device of that compute capability is among the `supported`. It says for which NVRTC must
/// compile, and what to do.
fn serves((major, minor): (u32, u32), supported: &[c_int]) -> Result<(), String> {
    let wanted = c_int::try_from(10 * major + minor).unwrap_or(c_int::MAX);
    if supported.is_empty() || supported.contains(&wanted) {
        return Ok(());
    }
    // CUDA 13 does not support devices older than 7.5.
    let other = if supported.iter().all(|&s| s > wanted) { "an older" } else { "a newer" };
    Err(format!(
        "compute capability {major}.{minor}: install {other} NVRTC too, or take the embedded kernels"
    ))
}

/// A loaded NVRTC.
#[derive(Debug)]
pub struct Nvrtc {
    functions: Functions,
    version: (u32, u32),
    name: PathBuf,
    /// Loaded while the functions can be called, with the library that NVRTC loads by name when it compiles.
    _libraries: (Library, Option<Library>),
}

impl Nvrtc {
    /// The newest NVRTC that is installed, compiles for devices of a compute capability and is no newer than the driver, whose version
    /// is 12080 for CUDA 12.8. It is searched for in `directory`, or else in the loader's and toolkits' directories. The error is one line.
    pub fn find(
        driver_version: u32,
        capability: (u32, u32),
        directory: Option<&Path>,
    ) -> Result<Self, String> {
        let mut reason = String::from("NVRTC (libnvrtc.so) is not installed");
        for path in candidates(directory) {
            // SAFETY: loading runs the library's initializers, as for any program that is linked to it; which
            // library a name means is up to the user who starts the program.
            let Ok(library) = (unsafe { Library::new(&path) }) else { continue };
            match Self::accept(library, &path, driver_version / 1000, capability) {
                Ok(nvrtc) => return Ok(nvrtc),
                Err(refused) => reason = format!("{}: {refused}", path.display()),
            }
        }
        Err(reason)
    }

    /// Takes a loaded library if its version is supported.
    fn accept(
        library: Library,
        path: &Path,
        driver_major: u32,
        capability: (u32, u32),
    ) -> Result<Self, String> {
        let functions = Functions::of(&library).map_err(|e| format!("not an NVRTC: {e}"))?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the pointers are to live integers.
        let status = unsafe { (functions.version)(&raw mut major, &raw mut minor) };
        let (Ok(major), Ok(minor), 0) = (u32::try_from(major), u32::try_from(minor), status) else {
            return Err("does not tell its version".into());
        };
        if !MAJORS.contains(&major) {
            return Err(format!("version {major}.{minor} is not known to this program"));
        }
        if major > driver_major {
            return Err(format!("version {major}.{minor} is newer than the driver's CUDA {driver_major}"));
        }
        serves(capability, &functions.supported())
            .map_err(|what| format!("version {major}.{minor} does not compile for {what}"))?;
        // NVRTC looks it up by name when it compiles, but the loader may not know its directory.
        let builtins = path.with_file_name(format!("libnvrtc-builtins.so.{major}.{minor}"));
        // SAFETY: as for NVRTC itself, of which this is a part.
        let builtins = unsafe { Library::new(builtins) }.ok();
        Ok(Self {
            functions,
            version: (major, minor),
            name: path.to_path_buf(),
            _libraries: (library, builtins),
        })
    }

    /// Major and minor version.
    #[must_use]
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// The file, or the name that the loader resolved.
    #[must_use]
    pub fn name(&self) -> &Path {
        &self.name
    }

    /// Compiles `source` to a device binary. Headers are found by name among `headers`. The error is one line.
    pub fn compile(
        &self,
        source: SourceFile,
        headers: &[SourceFile],
        options: &[String],
    ) -> Result<Vec<u8>, String> {
        let texts = strings(headers.iter().map(|h| h.text));
        let names = strings(headers.iter().map(|h| h.name));
        let options = strings(options.iter().map(String::as_str));
        let (text, name) = (c_string(source.text), c_string(source.name));
        let (texts, names, options) = (pointers(&texts), pointers(&names), pointers(&options));

        let mut program = Created { nvrtc: self, handle: ptr::null_mut() };
        // SAFETY: all pointers are to NUL-terminated strings, in the numbers passed, and outlive the call;
        // NVRTC copies them.
        let created = unsafe {
            (self.functions.create)(
                &raw mut program.handle,
                text.as_ptr(),
                name.as_ptr(),
                count(&names),
                texts.as_ptr(),
                names.as_ptr(),
            )
        };
        self.check(created)?;
        // SAFETY: the program is created; the strings are NUL-terminated and outlive the call.
        let compiled = unsafe { (self.functions.compile)(program.handle, count(&options), options.as_ptr()) };
        self.check(compiled).map_err(|status| {
            let log = program.bytes(self.functions.log_size, self.functions.log).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            let first = log.trim_matches('\0').lines().find(|line| !line.trim().is_empty());
            format!("{status}: {}", first.unwrap_or("no reason is given"))
        })?;
        let cubin = program.bytes(self.functions.cubin_size, self.functions.cubin)?;
        if cubin.is_empty() { Err("NVRTC made nothing".into()) } else { Ok(cubin) }
    }

    fn check(&self, status: Status) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: any number is allowed; the string is static.
        let text = unsafe { (self.functions.error_string)(status).as_ref().map(|c| CStr::from_ptr(c)) };
        let (major, minor) = self.version;
        let text = text.map_or_else(|| format!("error {status}").into(), CStr::to_string_lossy);
        Err(format!("NVRTC {major}.{minor}: {text}"))
    }
}

/// A program, destroyed when dropped. The handle is null until it is created.
struct Created<'a> {
    nvrtc: &'a Nvrtc,
    handle: NvrtcProgram,
}

impl Created<'_> {
    /// Text that a pair of functions returns about the program: its length, then the bytes.
    fn bytes(
        &self,
        size: unsafe extern "C" fn(NvrtcProgram, *mut usize) -> Status,
        get: unsafe extern "C" fn(NvrtcProgram, *mut c_char) -> Status,
    ) -> Result<Vec<u8>, String> {
        let mut bytes = 0;
        // SAFETY: the program is created, the pointer is to a live integer.
        self.nvrtc.check(unsafe { size(self.handle, &raw mut bytes) })?;
        let mut buffer = vec![0; bytes];
        // SAFETY: as above; `get` fills the number of bytes that `size` returned.
        self.nvrtc.check(unsafe { get(self.handle, buffer.as_mut_ptr().cast()) })?;
        Ok(buffer)
    }
}

impl Drop for Created<'_> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: created, and destroyed only here.
            unsafe { (self.nvrtc.functions.destroy)(&raw mut self.handle) };
        }
    }
}

/// The names to try, in order.
fn candidates(directory: Option<&Path>) -> Vec<PathBuf> {
    let names = || {
        let numbered = MAJORS.iter().map(|major| format!("libnvrtc.so.{major}"));
        numbered.chain([String::from("libnvrtc.so")]).map(PathBuf::from)
    };
    if let Some(directory) = directory {
        return names().map(|name| directory.join(name)).collect();
    }
    let installed = DIRECTORIES.iter().flat_map(|d| names().map(|name| Path::new(d).join(name)));
    names().chain(installed).collect()
}

fn c_string(text: &str) -> CString {
    CString::new(text).expect("sources and options hold no NUL")
}

fn strings<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<CString> {
    texts.map(c_string).collect()
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|s| s.as_ptr()).collect()
}

fn count(pointers: &[*const c_char]) -> c_int {
    c_int::try_from(pointers.len()).expect("a handful")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CUDA 13 does not compile for Volta, which the embedded kernels serve, nor 12.0 for Blackwell.
    #[test]
    fn what_an_nvrtc_does_not_compile_for_is_told() {
        let thirteen = [75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121];
        assert_eq!(serves((9, 0), &thirteen), Ok(()));
        assert_eq!(serves((12, 1), &thirteen), Ok(()));
        assert_eq!(serves((7, 0), &[]), Ok(()), "it does not tell");
        let refused = serves((7, 0), &thirteen).unwrap_err();
        let wanted = "compute capability 7.0: install an older NVRTC too, or take the embedded kernels";
        assert_eq!(refused, wanted);
        assert!(serves((10, 0), &[50, 70, 90]).unwrap_err().contains("a newer"));
        assert!(serves((8, 8), &[50, 80, 90]).unwrap_err().contains("a newer"));
    }
}
