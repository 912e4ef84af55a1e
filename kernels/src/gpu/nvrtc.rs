//! NVIDIA's run-time compiler, found on this machine: sources to machine code of one chip. It needs no GPU.
//!
//! Loaded by hand: cudarc's own loader knows neither paths nor versions later than its bindings, and panics.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

use libloading::Library;

use crate::error::DeviceError;
use crate::gpu::driver::{Source, refused};
use crate::gpu::modules::HEADERS;
use crate::gpu::places;

/// Names under which a system has it, the latest first.
const NAMES: [&str; 4] = [
    "libnvrtc.so.13",
    "libnvrtc.so.12",
    "libnvrtc.so",
    "nvrtc64_130_0.dll",
];
/// How every source is compiled.
/// A product and a sum become one operation where the source says so, and nowhere else: kernels that share an expression then round it alike.
const OPTIONS: [&str; 3] = [
    "-std=c++17",
    "--device-as-default-execution-space",
    "--fmad=false",
];
const SUCCESS: c_int = 0;
const ERROR_COMPILATION: c_int = 6;

type Program = *mut c_void;
type OfProgram<T> = unsafe extern "C" fn(Program, T) -> c_int;

/// The library and the calls that are made.
#[derive(Debug)]
pub(crate) struct Nvrtc {
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
    cubin_size: OfProgram<*mut usize>,
    cubin: OfProgram<*mut c_char>,
    log_size: OfProgram<*mut usize>,
    log: OfProgram<*mut c_char>,
    num_archs: unsafe extern "C" fn(*mut c_int) -> c_int,
    archs: unsafe extern "C" fn(*mut c_int) -> c_int,
    /// What it is asked besides `OPTIONS`.
    more_options: Vec<String>,
    /// The functions above are in it.
    _library: Library,
}

impl Nvrtc {
    /// Finds the library.
    pub(crate) fn load() -> Result<Self, DeviceError> {
        let is_named = places::nvrtc().is_some();
        let mut last = None;
        for candidate in candidates() {
            match open(&candidate).and_then(Self::from_library) {
                Ok(nvrtc) => return Ok(nvrtc),
                // Of a file that is there or asked for the reason counts, of names that nobody knows it does not.
                Err(error) if is_named || (candidate.is_absolute() && candidate.exists()) => {
                    last = Some(format!("{}: {error}", candidate.display()));
                }
                Err(_) => {}
            }
        }
        let why = last.map_or(String::new(), |last| format!(" ({last})"));
        Err(DeviceError::Driver {
            what: format!(
                "NVRTC, which compiles kernels for NVIDIA GPUs, is not there{why}: install the CUDA toolkit's libnvrtc \
                 (Debian, Ubuntu: cuda-nvrtc-13-0; or `pip install nvidia-cuda-nvrtc`) and name the library in {} if \
                 it lies in no usual place",
                places::NVRTC
            ),
        })
    }

    fn from_library(library: Library) -> Result<Self, libloading::Error> {
        macro_rules! call {
            ($name:literal) => {
                // SAFETY: NVRTC's header declares the function as the field has it.
                *unsafe { library.get(concat!($name, "\0").as_bytes()) }?
            };
        }
        Ok(Self {
            version: call!("nvrtcVersion"),
            error_string: call!("nvrtcGetErrorString"),
            create: call!("nvrtcCreateProgram"),
            destroy: call!("nvrtcDestroyProgram"),
            compile: call!("nvrtcCompileProgram"),
            cubin_size: call!("nvrtcGetCUBINSize"),
            cubin: call!("nvrtcGetCUBIN"),
            log_size: call!("nvrtcGetProgramLogSize"),
            log: call!("nvrtcGetProgramLog"),
            num_archs: call!("nvrtcGetNumSupportedArchs"),
            archs: call!("nvrtcGetSupportedArchs"),
            more_options: places::nvrtc_options(),
            _library: library,
        })
    }

    /// `NVRTC 13.0`.
    pub(crate) fn version(&self) -> String {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: two places for the answer.
        unsafe { (self.version)(&mut major, &mut minor) };
        format!("NVRTC {major}.{minor}")
    }

    /// Version and options: what decides about the code besides the source.
    pub(crate) fn identity(&self) -> String {
        let mut identity = format!("{} {}", self.version(), OPTIONS.join(" "));
        for option in &self.more_options {
            identity.push(' ');
            identity.push_str(option);
        }
        identity
    }

    /// Whether it knows a chip.
    pub(crate) fn knows(&self, arch: &str) -> bool {
        let mut count = 0;
        // SAFETY: a place for the answer.
        unsafe { (self.num_archs)(&mut count) };
        let mut archs = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: room for as many as it said.
        unsafe { (self.archs)(archs.as_mut_ptr()) };
        let arch = arch.strip_suffix('a').unwrap_or(arch);
        archs.iter().any(|known| arch == format!("sm_{known}"))
    }

    /// Machine code for a chip such as `sm_90`.
    pub(crate) fn compile(&self, source: &Source, arch: &str) -> Result<Vec<u8>, DeviceError> {
        self.compile_with(source, arch, &[]).map(|built| built.0)
    }

    /// Machine code, and what the compiler said, asked with more options.
    pub(crate) fn compile_with(
        &self,
        source: &Source,
        arch: &str,
        more: &[&str],
    ) -> Result<(Vec<u8>, String), DeviceError> {
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
            .chain(more)
            .copied()
            .chain(self.more_options.iter().map(String::as_str))
            .map(c)
            .chain([c(&format!("--gpu-architecture={arch}"))])
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
        self.check("nvrtcCreateProgram", created)?;
        // SAFETY: a program, and a list with its count.
        let code = unsafe { (self.compile)(program.0, count(&options), options.as_ptr()) };
        let log = text_of(&self.bytes(&program, self.log_size, self.log)?);
        if code == ERROR_COMPILATION {
            let name = source.name;
            return Err(DeviceError::Compile { name, log });
        }
        self.check("nvrtcCompileProgram", code)?;
        Ok((self.bytes(&program, self.cubin_size, self.cubin)?, log))
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
        self.check("NVRTC's size of a result", unsafe {
            size(program.0, &mut len)
        })?;
        let mut bytes = vec![0_u8; len];
        // SAFETY: room for as much as it said.
        let got = unsafe { get(program.0, bytes.as_mut_ptr().cast()) };
        self.check("NVRTC's result", got)?;
        Ok(bytes)
    }

    fn check(&self, call: &str, code: c_int) -> Result<(), DeviceError> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: it answers any number with a text of its own.
        let text = unsafe { CStr::from_ptr((self.error_string)(code)) };
        Err(refused(format_args!("{call}: {}", text.to_string_lossy())))
    }
}

/// A program that goes when it is dropped.
struct OwnedProgram<'a>(Program, &'a Nvrtc);

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

fn text_of(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.trim_end_matches('\0').trim().to_owned()
}

/// Where it may be, the likeliest first.
fn candidates() -> Vec<PathBuf> {
    if let Some(named) = places::nvrtc() {
        // Named, so no other.
        return vec![named];
    }
    let by_name = NAMES.iter().map(PathBuf::from);
    let in_folders = places::nvrtc_folders()
        .into_iter()
        .flat_map(|folder| NAMES.map(|name| folder.join(name)));
    by_name.chain(in_folders).collect()
}

/// Opens the library; what it looks for at run time is loaded first, as it may lie beside it and in no usual place.
fn open(path: &Path) -> Result<Library, libloading::Error> {
    let folder = path.parent().filter(|_| path.is_absolute());
    let beside = folder.and_then(|folder| std::fs::read_dir(folder).ok());
    for entry in beside.into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name.to_string_lossy().starts_with("libnvrtc-builtins.so") {
            // SAFETY: a part of NVRTC that holds data.
            let builtins = unsafe { Library::new(entry.path()) };
            // Stays loaded, so that NVRTC finds it by its name.
            std::mem::forget(builtins);
        }
    }
    // SAFETY: NVRTC's constructors only set itself up.
    unsafe { Library::new(path) }
}
