//! Every kernel compiles for every chip, which needs compilers and no GPU. What is not on this machine is skipped.
//!
//! An operation's sources are found by the `sources()` of its file (`kernels/src/gpu.rs` has the list of those). A kernel
//! that spills more than a few registers on a chip of today is an error, too: it would be slow without a word.

use std::path::PathBuf;
use std::sync::Mutex;
use std::thread;

use kernels::{AheadCompiler, KernelSource};

const CUDA: [&str; 7] = [
    "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120",
];
const HIP: [&str; 3] = ["gfx1100", "gfx1151", "gfx1201"];
/// Of a stack frame: addresses and counts of outer loops, which wait there while inner loops have the registers for sums.
const FEW_BYTES: usize = 128;
/// Computed with instructions that stand in for those that it lacks.
const MAY_SPILL: &str = "sm_75";

#[test]
fn every_kernel_compiles_for_nvidia() {
    match AheadCompiler::nvrtc(kept()) {
        Ok(compiler) => check(&compiler, &CUDA, |arch, said| {
            (arch != MAY_SPILL).then(|| spills(said)).flatten()
        }),
        Err(error) => eprintln!("skipped: {error}"),
    }
}

#[test]
fn every_kernel_compiles_for_amd() {
    match AheadCompiler::clang(kept()) {
        // What these chips do with it is not known yet.
        Ok(compiler) => check(&compiler, &HIP, |_, _| None),
        Err(error) => eprintln!("skipped: {error}"),
    }
}

fn kept() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("compiled")
}

/// Compiles all for all, on as many threads as there are processors; `complaint` looks at what the compiler said.
fn check(
    compiler: &AheadCompiler,
    archs: &[&'static str],
    complaint: impl Fn(&str, &str) -> Option<String> + Sync,
) {
    for arch in archs.iter().filter(|arch| !compiler.knows(arch)) {
        eprintln!("skipped: this compiler does not know {arch}");
    }
    let sources = KernelSource::all();
    assert!(!sources.is_empty());
    let known = archs.iter().filter(|arch| compiler.knows(arch));
    let jobs = known.flat_map(|arch| sources.iter().map(move |source| (*arch, source)));
    let jobs = Mutex::new(jobs);
    let wrong = Mutex::new(Vec::new());
    let work = || {
        loop {
            let Some((arch, source)) = jobs.lock().expect("no panic before").next() else {
                return;
            };
            let wrong_here = match compiler.compile(source, arch) {
                Ok(said) => complaint(arch, &said),
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

/// The lines of ptxas that tell of memory where registers should be.
fn spills(said: &str) -> Option<String> {
    let mut function = "";
    let mut found = Vec::new();
    for line in said.lines() {
        if line.contains("Compiling entry function") || line.contains("Function properties") {
            function = line;
        } else if line.contains("bytes stack frame") && !is_few(line) {
            found.push(format!("{function}: {line}"));
        }
    }
    (!found.is_empty()).then(|| found.join("\n"))
}

/// Whether a line such as `ptxas .  8 bytes stack frame, ...` says little.
fn is_few(line: &str) -> bool {
    let before = line.split(" bytes").next().unwrap_or_default();
    let bytes = before.split_whitespace().last().map(str::parse);
    matches!(bytes, Some(Ok(0..=FEW_BYTES)))
}
