//! AMD's run-time compiler, found on this machine: sources to machine code of one chip. It needs no GPU.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use libloading::Library;

use crate::error::DeviceError;
use crate::gpu::driver::{Source, refused};
use crate::gpu::hip::api::{call, find};
use crate::gpu::modules::HEADERS;

/// The library, the latest version first; it has come with the runtime since version 5 and stands alone since 6.
const NAMES: [&str; 9] = [
    "libhiprtc.so.7",
    "libhiprtc.so.6",
    "libhiprtc.so.5",
    "libhiprtc.so",
    "libamdhip64.so.5",
    "libamdhip64.so",
    "hiprtc0700.dll",
    "hiprtc0602.dll",
    "hiprtc0507.dll",
];
/// How every source is compiled.
const OPTIONS: [&str; 3] = ["-std=c++17", "-O3", "-ffp-contract=off"];
const SUCCESS: c_int = 0;
const ERROR_COMPILATION: c_int = 6;

type Program = *mut c_void;
type OfProgram<T> = unsafe extern "C" fn(Program, T) -> c_int;

/// The library and the calls that are made.
#[derive(Debug)]
pub(super) struct Hiprtc {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    code_size: OfProgram<*mut usize>,
    code: OfProgram<*mut c_char>,
    log_size: OfProgram<*mut usize>,
    log: OfProgram<*mut c_char>,
    /// The functions above are in it.
    _library: Library,
}

impl Hiprtc {
    /// Finds the library.
    pub(super) fn load() -> Result<Self, DeviceError> {
        find(&NAMES, Self::from_library).map_err(|why| {
            refused(format_args!(
                "hiprtc, which compiles kernels for AMD GPUs, is not there (no libhiprtc.so){why}: install ROCm's \
                 hip-runtime"
            ))
        })
    }

    /// Looks all calls up; what is missing is the error.
    fn from_library(library: Library) -> Result<Self, String> {
        macro_rules! call {
            ($name:literal) => {
                // SAFETY: hiprtc's header declares the function as the field has it.
                unsafe { call(&library, $name) }?
            };
        }
        Ok(Self {
            version: call!("hiprtcVersion"),
            error_string: call!("hiprtcGetErrorString"),
            create: call!("hiprtcCreateProgram"),
            destroy: call!("hiprtcDestroyProgram"),
            compile: call!("hiprtcCompileProgram"),
            code_size: call!("hiprtcGetCodeSize"),
            code: call!("hiprtcGetCode"),
            log_size: call!("hiprtcGetProgramLogSize"),
            log: call!("hiprtcGetProgramLog"),
            _library: library,
        })
    }

    /// Version and options: what decides about the code besides the source.
    pub(super) fn identity(&self) -> String {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: two places for the answer.
        unsafe { (self.version)(&mut major, &mut minor) };
        format!("hiprtc {major}.{minor} {}", OPTIONS.join(" "))
    }

    /// Machine code for a chip such as `gfx1100`.
    pub(super) fn compile(&self, source: &Source, arch: &str) -> Result<Vec<u8>, DeviceError> {
        let c = |text: &str| {
            CString::new(text).map_err(|_| refused(format_args!("{}: a zero byte", source.name)))
        };
        let (text, name) = (c(source.text)?, c(source.name)?);
        let pairs: Vec<(CString, CString)> = HEADERS
            .iter()
            .map(|(name, text)| Ok((c(name)?, c(text)?)))
            .collect::<Result<_, DeviceError>>()?;
        let names: Vec<_> = pairs.iter().map(|(name, _)| name.as_ptr()).collect();
        let texts: Vec<_> = pairs.iter().map(|(_, text)| text.as_ptr()).collect();
        let defines = source.defines.iter();
        let options: Vec<CString> = OPTIONS
            .iter()
            .map(|option| c(option))
            .chain([c(&format!("--offload-arch={arch}"))])
            .chain(defines.map(|(name, value)| c(&format!("-D{name}={value}"))))
            .collect::<Result<_, _>>()?;
        let options: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program = OwnedProgram(std::ptr::null_mut(), self);
        // SAFETY: strings and lists that live until the program goes, with their count.
        let created = unsafe {
            (self.create)(
                &mut program.0,
                text.as_ptr(),
                name.as_ptr(),
                count(&names),
                texts.as_ptr(),
                names.as_ptr(),
            )
        };
        self.check("hiprtcCreateProgram", created)?;
        // SAFETY: a program, and a list with its count.
        let code = unsafe { (self.compile)(program.0, count(&options), options.as_ptr()) };
        if code == ERROR_COMPILATION {
            let log = self.bytes(&program, self.log_size, self.log)?;
            let log = String::from_utf8_lossy(&log);
            return Err(DeviceError::Compile {
                name: source.name,
                log: log.trim_end_matches('\0').trim().to_owned(),
            });
        }
        self.check("hiprtcCompileProgram", code)?;
        self.bytes(&program, self.code_size, self.code)
    }

    /// What a program has, by its size and its getter.
    fn bytes(
        &self,
        program: &OwnedProgram<'_>,
        size: OfProgram<*mut usize>,
        get: OfProgram<*mut c_char>,
    ) -> Result<Vec<u8>, DeviceError> {
        let mut len = 0;
        // SAFETY: a program, and a place for the answer.
        self.check("hiprtc's size of a result", unsafe {
            size(program.0, &mut len)
        })?;
        let mut bytes = vec![0_u8; len];
        // SAFETY: room for as much as it said.
        let got = unsafe { get(program.0, bytes.as_mut_ptr().cast()) };
        self.check("hiprtc's result", got)?;
        Ok(bytes)
    }

    fn check(&self, call: &str, code: c_int) -> Result<(), DeviceError> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: it answers any number with a text of its own.
        let text = unsafe { (self.error_string)(code) };
        if text.is_null() {
            return Err(refused(format_args!("{call}: error {code}")));
        }
        // SAFETY: as above.
        let text = unsafe { CStr::from_ptr(text) };
        Err(refused(format_args!("{call}: {}", text.to_string_lossy())))
    }
}

/// A program that goes when it is dropped.
struct OwnedProgram<'a>(Program, &'a Hiprtc);

impl Drop for OwnedProgram<'_> {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: made by `create`, and not used again.
            unsafe { (self.1.destroy)(&mut self.0) };
        }
    }
}

fn count<T>(list: &[T]) -> c_int {
    c_int::try_from(list.len()).expect("a few dozen")
}
