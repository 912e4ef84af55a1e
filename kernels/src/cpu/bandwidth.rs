//! How fast this machine reads memory: the denominator of every decode figure.

use std::time::Instant;

use crate::cpu::CpuDevice;
use crate::cpu::lanes::{LANES, Lanes, Op, f_sum};

/// Larger than the last-level cache of most machines.
const BYTES: usize = 512 << 20;
const REPETITIONS: usize = 5;

/// Sums a thread's share in eight independent chains, so that loads are not waited for.
struct Read<'a> {
    values: &'a [f32],
    sum: &'a mut f32,
}

impl Op for Read<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let mut sums = [L::f_splat(0.0); 8];
        for chunk in self.values.chunks_exact(8 * LANES) {
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = L::f_add(*sum, L::f_load(chunk.as_ptr().add(i * LANES)));
            }
        }
        for sum in sums {
            *self.sum += f_sum::<L>(sum);
        }
    }
}

/// Bytes a second, the best of a few passes over a buffer beyond the caches with all threads.
pub(crate) fn measure(device: &CpuDevice) -> f64 {
    let values = vec![1.0_f32; BYTES / 4];
    let threads = device.threads();
    let share = values.len() / threads;
    let mut best = f64::INFINITY;
    for _ in 0..REPETITIONS {
        let started = Instant::now();
        device.pool.run(&|t| {
            let mut sum = 0.0;
            device.dispatch(Read {
                values: &values[t * share..][..share],
                sum: &mut sum,
            });
            std::hint::black_box(sum);
        });
        best = best.min(started.elapsed().as_secs_f64());
    }
    (share * threads * 4) as f64 / best
}
