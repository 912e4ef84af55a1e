//! Compiling with no GPU around: the check that every kernel compiles for every chip, for tests.

use std::path::PathBuf;
use std::process::Command;

use crate::error::DeviceError;
use crate::gpu::driver::Source;
use crate::gpu::image_cache::{ImageCache, ImageId};
use crate::gpu::modules::HEADERS;
use crate::gpu::nvrtc::Nvrtc;

/// What clang is told: freestanding, as hiprtc does it.
const HIP_OPTIONS: [&str; 11] = [
    "-x",
    "hip",
    "--cuda-device-only",
    // A bundle of one asks for a program that not every package of clang has.
    "--no-gpu-bundle-output",
    "-nogpulib",
    "-nogpuinc",
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",
    "-Rpass-analysis=kernel-resource-usage",
    "-c",
];
const CUDA_OPTIONS: [&str; 1] = ["--ptxas-options=-v"];
/// Room for what compilers said of each source and chip.
const MAX_BYTES: u64 = 64 << 20;

/// A source with its constants.
#[derive(Clone, Debug)]
pub struct KernelSource(Source);

impl KernelSource {
    /// Every one that operations ask for.
    #[must_use]
    pub fn all() -> Vec<Self> {
        crate::gpu::sources().into_iter().map(Self).collect()
    }

    /// File and constants.
    #[must_use]
    pub fn label(&self) -> String {
        let defines = self.0.defines.iter();
        let defines = defines.map(|(name, value)| format!(" -D{name}={value}"));
        self.0.name.to_owned() + &defines.collect::<String>()
    }
}

/// A compiler of this machine.
#[derive(Debug)]
pub struct AheadCompiler {
    kind: Kind,
    identity: String,
    /// What it said before of what has not changed since.
    kept: ImageCache,
}

#[derive(Debug)]
enum Kind {
    Nvrtc(Nvrtc),
    /// Name of the program.
    Clang(&'static str),
}

impl AheadCompiler {
    /// For CUDA's chips; `kept` is a folder for what it says.
    ///
    /// # Errors
    /// There is no NVRTC.
    pub fn nvrtc(kept: PathBuf) -> Result<Self, DeviceError> {
        let nvrtc = Nvrtc::load()?;
        Ok(Self {
            identity: format!("{} {}", nvrtc.identity(), CUDA_OPTIONS.join(" ")),
            kind: Kind::Nvrtc(nvrtc),
            kept: ImageCache::new(Some(kept), None, MAX_BYTES),
        })
    }

    /// For AMD's chips; `kept` is a folder for what it says.
    ///
    /// # Errors
    /// There is no clang.
    pub fn clang(kept: PathBuf) -> Result<Self, DeviceError> {
        let find = |name: &'static str| {
            let output = Command::new(name).arg("--version").output().ok()?;
            let version = String::from_utf8_lossy(&output.stdout);
            let version = version.lines().next()?.to_owned();
            output.status.success().then_some((name, version))
        };
        let found = ["clang-19", "clang"].into_iter().find_map(find);
        let (name, version) = found.ok_or_else(|| DeviceError::Driver {
            what: "there is no clang-19 or clang".to_owned(),
        })?;
        Ok(Self {
            identity: format!("{version} {}", HIP_OPTIONS.join(" ")),
            kind: Kind::Clang(name),
            kept: ImageCache::new(Some(kept), None, MAX_BYTES),
        })
    }

    /// Whether it knows a chip.
    #[must_use]
    pub fn knows(&self, arch: &str) -> bool {
        match &self.kind {
            Kind::Nvrtc(nvrtc) => nvrtc.knows(arch),
            Kind::Clang(_) => true,
        }
    }

    /// What it says of a source that it compiles: registers, spills.
    ///
    /// # Errors
    /// It does not compile.
    pub fn compile(&self, source: &KernelSource, arch: &str) -> Result<String, DeviceError> {
        let id = ImageId::new(&source.0, arch, Some(&self.identity));
        if let Some(kept) = self.kept.get(&id) {
            return Ok(String::from_utf8_lossy(&kept.image).into_owned());
        }
        let said = match &self.kind {
            Kind::Nvrtc(nvrtc) => nvrtc.compile_with(&source.0, arch, &CUDA_OPTIONS)?.1,
            Kind::Clang(program) => clang(program, &source.0, arch)?,
        };
        self.kept.put(&id, said.as_bytes());
        Ok(said)
    }
}

fn clang(program: &str, source: &Source, arch: &str) -> Result<String, DeviceError> {
    let failed = |error: std::io::Error| DeviceError::Driver {
        what: format!("{program}: {error}"),
    };
    let folder = tempfile::tempdir().map_err(failed)?;
    for (name, text) in HEADERS.iter().chain([&(source.name, source.text)]) {
        std::fs::write(folder.path().join(name), text).map_err(failed)?;
    }
    let defines = source.defines.iter();
    let output = Command::new(program)
        .current_dir(folder.path())
        .args(HIP_OPTIONS)
        .arg(format!("--offload-arch={arch}"))
        .args(defines.map(|(name, value)| format!("-D{name}={value}")))
        .args([source.name, "-o", "kernels.o"])
        .output()
        .map_err(failed)?;
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() {
        return Ok(log);
    }
    Err(DeviceError::Compile {
        name: source.name,
        log,
    })
}
