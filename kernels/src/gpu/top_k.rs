//! The likeliest ids of rows of logits.

use crate::device::TopKArgs;
use crate::error::DeviceError;
use crate::gpu::device::GpuDevice;
use crate::gpu::driver::{DevicePtr, Launch, Source};
use crate::gpu::scratch::Scratch;

/// Logits of a slice; see gpu/top_k.cu.
const SLICE: usize = 2048;
const THREADS: u32 = 256;

/// See gpu/top_k.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct KernelArgs {
    logits: DevicePtr,
    best: DevicePtr,
    sums: DevicePtr,
    ids: DevicePtr,
    log_probs: DevicePtr,
    values: DevicePtr,
    vocab_size: u32,
    k: u32,
    num_slices: u32,
    per_slice: u32,
}

fn source() -> Source {
    Source {
        name: "top_k.cu",
        text: include_str!("../../gpu/top_k.cu"),
        defines: Vec::new(),
    }
}

/// All that this module launches; see [`crate::gpu::sources`].
pub(super) fn sources() -> Vec<Source> {
    vec![source()]
}

fn check(what: &str, got: usize, expected: usize) {
    assert!(
        got >= expected,
        "top_k: {what} holds {got} values, {expected} are needed"
    );
}

impl GpuDevice {
    pub(super) fn top_k_op(&self, args: TopKArgs<'_>) -> Result<(), DeviceError> {
        let (rows, k) = (args.num_rows, args.k);
        assert!(k <= args.vocab_size, "top_k: more ids than the vocabulary");
        check("logits", args.logits.len(), rows * args.vocab_size);
        check("ids", args.ids.len(), rows * k);
        for (what, there) in [("log_probs", &args.log_probs), ("values", &args.values)] {
            if let Some(there) = there {
                check(what, there.len(), rows * k);
            }
        }
        if rows == 0 || k == 0 {
            return Ok(());
        }
        if let Some(best) = self.best_of_step(&args)? {
            args.ids[0] = best;
            return Ok(());
        }
        let num_slices = args.vocab_size.div_ceil(SLICE);
        let per_slice = k.min(SLICE);
        let best_bytes = rows * num_slices * per_slice * size_of::<u64>();
        let sums_bytes = rows * num_slices * 2 * size_of::<f32>();
        let best = self.scratch(Scratch::Partials, best_bytes + sums_bytes)?;
        let ids = self.scratch(Scratch::Results, 3 * rows * k * size_of::<u32>())?;
        let kernel_args = KernelArgs {
            logits: args.logits.on_gpu().memory.ptr(),
            best,
            sums: best.add(best_bytes),
            ids,
            log_probs: ids.add(rows * k * size_of::<u32>()),
            values: ids.add(2 * rows * k * size_of::<u32>()),
            vocab_size: args.vocab_size as u32,
            k: k as u32,
            num_slices: num_slices as u32,
            per_slice: per_slice as u32,
        };
        let slices = Launch {
            grid: [num_slices as u32, rows as u32, 1],
            threads: THREADS,
            shared_bytes: 0,
        };
        self.launch(&source(), "top_k_slices", slices, &kernel_args)?;
        let merge = Launch {
            grid: [rows as u32, 1, 1],
            threads: THREADS,
            shared_bytes: (num_slices * size_of::<u32>()) as u32,
        };
        self.launch(&source(), "top_k_merge", merge, &kernel_args)?;

        let mut results = vec![0_u32; 3 * rows * k];
        // SAFETY: scratch memory of this size, and a vector of as many bytes.
        unsafe {
            self.driver
                .copy_to_host(results.as_mut_ptr().cast(), ids, size_of_val(&results[..]));
        }
        let (ids, of_ids) = results.split_at(rows * k);
        args.ids[..rows * k].copy_from_slice(ids);
        let of_ids = of_ids.chunks_exact(rows * k);
        for (wanted, of_ids) in [args.log_probs, args.values].into_iter().zip(of_ids) {
            for (to, bits) in wanted.into_iter().flatten().zip(of_ids) {
                *to = f32::from_bits(*bits);
            }
        }
        Ok(())
    }
}
