//! Where things lie on this machine: the compiler, compiled kernels. The one file here that reads the environment.

use std::env::var_os;
use std::path::PathBuf;

/// Variable that names the library of NVRTC.
pub(crate) const NVRTC: &str = "TANDEM_NVRTC";
/// Variable with more options for NVRTC, such as `-lineinfo` for a profiler; kernels that were compiled with others are others.
pub(crate) const NVRTC_OPTIONS: &str = "TANDEM_NVRTC_OPTIONS";
/// Variable that names the folder of compiled kernels.
pub(crate) const KERNEL_CACHE: &str = "TANDEM_KERNEL_CACHE";
/// Variable that names a folder of compiled kernels that is only looked into, such as one of a container image.
pub(crate) const READ_ONLY_CACHE: &str = "TANDEM_KERNEL_CACHE_READONLY";

/// A folder or file that a variable names; an empty one names none.
fn named(variable: &str) -> Option<PathBuf> {
    var_os(variable)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

/// The library asked for.
pub(crate) fn nvrtc() -> Option<PathBuf> {
    named(NVRTC)
}

/// More options for it; of a value that is no text, none.
pub(crate) fn nvrtc_options() -> Vec<String> {
    let options = std::env::var(NVRTC_OPTIONS).unwrap_or_default();
    options.split_whitespace().map(str::to_owned).collect()
}

/// Folders of toolkits and of Python's packages.
pub(crate) fn nvrtc_folders() -> Vec<PathBuf> {
    let toolkits = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(named);
    let toolkits = toolkits.chain([PathBuf::from("/usr/local/cuda"), PathBuf::from("/opt/cuda")]);
    let mut folders: Vec<PathBuf> = toolkits
        .flat_map(|toolkit| {
            [
                toolkit.join("lib64"),
                toolkit.join("targets/x86_64-linux/lib"),
            ]
        })
        .collect();
    // `pip install nvidia-cuda-nvrtc` into an environment that is active.
    if let Some(environment) = named("VIRTUAL_ENV") {
        let pythons = std::fs::read_dir(environment.join("lib")).into_iter();
        for python in pythons.flatten().flatten() {
            let packages = python.path().join("site-packages/nvidia");
            folders.extend(["cu13/lib", "cuda_nvrtc/lib"].map(|path| packages.join(path)));
        }
    }
    folders
}

/// A library of ROCm by its names: as the system finds it, then in the folders of ROCm.
pub(crate) fn rocm_libraries(names: &[&str]) -> Vec<PathBuf> {
    let folders = ["ROCM_PATH", "HIP_PATH"].into_iter().filter_map(named);
    let folders = folders.chain([PathBuf::from("/opt/rocm")]);
    let by_name = names.iter().map(PathBuf::from);
    let in_folders = folders.flat_map(|folder| {
        let library = |name: &&str| folder.join("lib").join(name);
        names.iter().map(library).collect::<Vec<_>>()
    });
    by_name.chain(in_folders).collect()
}

/// The folder of compiled kernels, where there can be one.
pub(crate) fn kernel_cache() -> Option<PathBuf> {
    named(KERNEL_CACHE).or_else(|| {
        let cache = named("XDG_CACHE_HOME").filter(|path| path.is_absolute());
        let cache = cache.or_else(|| Some(named("HOME")?.join(".cache")))?;
        Some(cache.join("tandem").join("kernels"))
    })
}

/// A second one that is not written to.
pub(crate) fn read_only_kernel_cache() -> Option<PathBuf> {
    named(READ_ONLY_CACHE)
}
