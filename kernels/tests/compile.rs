//! Every kernel compiles for every chip, which needs compilers and no GPU. What is not on this machine is skipped.
//!
//! An operation's sources are found by the `sources()` of its file (`kernels/src/gpu.rs` has the list of those). A kernel
//! that spills registers on a chip of today is an error, too: it would be slow without a word.

use std::path::PathBuf;
use std::sync::Mutex;
use std::thread;

use kernels::{AheadCompiler, KernelSource};

const CUDA: [&str; 7] = [
    "sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120",
];
const HIP: [&str; 3] = ["gfx1100", "gfx1151", "gfx1201"];
/// Here the compiler keeps addresses and counts of outer loops in memory, so that inner loops have all registers for sums;
/// and how many bytes of a stack frame that may take.
const MAY_SPILL_A_LITTLE: [(&str, usize); 6] = [
    ("matmul_fed.cu", 104),
    ("matmul_wide.cu", 104),
    ("matmul.cu", 48),
    ("delta_heads.cu", 16),
    ("megakernel.cu", 144),
    ("pack.cu", 8),
];
/// Computed with instructions that stand in for those that it lacks.
const MAY_SPILL: &str = "sm_75";
/// Kernels for the only chip that multiplies by groups of four warps and leaves sums where products are fed; elsewhere they are never launched.
const OF_ONE_CHIP: ([&str; 2], &str) = (["-DGROUPED=1", "-DREST=8"], "sm_90a");

#[test]
fn every_kernel_compiles_for_nvidia() {
    match AheadCompiler::nvrtc(kept()) {
        Ok(compiler) => check(&compiler, &CUDA, |source, arch, said| {
            let mut known = MAY_SPILL_A_LITTLE.iter();
            let few = known.find(|(name, _)| source.starts_with(name));
            let few = few.map_or(0, |(_, bytes)| *bytes);
            let (defines, chip) = OF_ONE_CHIP;
            let is_used = arch == chip || !defines.iter().any(|define| source.contains(define));
            (arch != MAY_SPILL && is_used)
                .then(|| spills(said, few))
                .flatten()
        }),
        Err(error) => eprintln!("skipped: {error}"),
    }
}

#[test]
fn every_kernel_compiles_for_amd() {
    match AheadCompiler::clang(kept()) {
        // What these chips do with it is not known yet.
        Ok(compiler) => check(&compiler, &HIP, |_, _, _| None),
        Err(error) => eprintln!("skipped: {error}"),
    }
}

fn kept() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("compiled")
}

/// Compiles all for all, on as many threads as there are processors; `complaint` looks at what the compiler said of a source
/// for a chip.
fn check(
    compiler: &AheadCompiler,
    archs: &[&'static str],
    complaint: impl Fn(&str, &str, &str) -> Option<String> + Sync,
) {
    for arch in archs.iter().filter(|arch| !compiler.knows(arch)) {
        eprintln!("skipped: this compiler does not know {arch}");
    }
    let sources = KernelSource::all();
    assert!(!sources.is_empty());
    let known = archs.iter().filter(|arch| compiler.knows(arch));
    let jobs = known.flat_map(|arch| sources.iter().map(move |source| (*arch, source)));
    let jobs = jobs.filter(|(arch, source)| is_of(&source.label(), arch));
    let jobs = Mutex::new(jobs);
    let wrong = Mutex::new(Vec::new());
    let work = || {
        loop {
            let Some((arch, source)) = jobs.lock().expect("no panic before").next() else {
                return;
            };
            let wrong_here = match compiler.compile(source, arch) {
                Ok(said) => complaint(&source.label(), arch, &said),
                Err(error) => Some(error.to_string()),
            };
            if let Some(what) = wrong_here {
                let what = format!("{} for {arch}: {what}", source.label());
                wrong.lock().expect("no panic before").push(what);
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let wrong = wrong.into_inner().expect("no panic before");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Whether a chip may ask for a source: it keeps as many pages of 128 dims as its shared memory holds, and the kernel with most of
/// them is slow to compile.
fn is_of(source: &str, arch: &str) -> bool {
    let stages = match arch {
        "sm_80" | "sm_90a" | "sm_100" => 5,
        "sm_86" | "sm_89" | "sm_120" => 3,
        _ => 2,
    };
    !source.starts_with("sparse.cu -DHEAD_DIM=128")
        || source.contains(&format!("-DSTAGES={stages}"))
}

/// The lines of ptxas that tell of memory where registers should be, of more than `few` bytes.
fn spills(said: &str, few: usize) -> Option<String> {
    let mut function = "";
    let mut found = Vec::new();
    for line in said.lines() {
        if line.contains("Compiling entry function") || line.contains("Function properties") {
            function = line;
        } else if line.contains("bytes stack frame") && !is_few(line, few) {
            found.push(format!("{function}: {line}"));
        }
    }
    (!found.is_empty()).then(|| found.join("\n"))
}

/// Whether a line such as `ptxas .  8 bytes stack frame, ...` says little.
fn is_few(line: &str, few: usize) -> bool {
    let before = line.split(" bytes").next().unwrap_or_default();
    let bytes = before.split_whitespace().last().map(str::parse::<usize>);
    matches!(bytes, Some(Ok(bytes)) if bytes <= few)
}
