//! What gpu/matmul.cu and gpu/matmul_row.cu take.

use crate::gpu::driver::DevicePtr;
use crate::gpu::linear::activate::Activated;
use crate::gpu::linear::narrow::sizes::row_tile_bytes;
use crate::gpu::linear::narrow::{Narrow, Place};
use crate::gpu::linear::work::{Activations, Job, Jobs, MAX_JOBS, dtypes};
use crate::gpu::matrix::TILE_ROWS;

/// See gpu/matmul.h.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct SharedWork {
    jobs: [Job; MAX_JOBS],
    row_words: [u32; MAX_JOBS],
    pub row: DevicePtr,
    pub gamma: DevicePtr,
    pub eps: f32,
    num_jobs: u32,
    cols: u32,
    pub accumulate: u32,
    share: u32,
    extra: u32,
    beside: u32,
    unused: u32,
}

/// See gpu/matmul.cu.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct RingArgs {
    work: SharedWork,
    x: Activations,
    factors: DevicePtr,
    num_rows: u32,
    round: u32,
    early_stages: u32,
    unused: u32,
}

/// See gpu/matmul_row.cu.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct RowArgs {
    work: SharedWork,
    warp_bytes: u32,
    sixteens: u32,
}

/// What a launch takes.
pub enum NarrowArgs {
    Ring(RingArgs),
    Row(RowArgs),
}

impl Narrow {
    /// What kernels take; `x`: of rows that are not made ready inside.
    pub fn args(&self, work: SharedWork, x: &Activated, num_rows: usize) -> NarrowArgs {
        match self.place {
            Place::Held(held) => NarrowArgs::Row(RowArgs {
                work,
                warp_bytes: held.warp_bytes as u32,
                sixteens: held.sixteens as u32,
            }),
            Place::Ring { stages, round } => NarrowArgs::Ring(RingArgs {
                work,
                x: x.forms,
                factors: x.factors,
                num_rows: num_rows as u32,
                round: round as u32,
                early_stages: self.choice.early_stages.min(stages) as u32,
                unused: 0,
            }),
        }
    }

    /// How the work is shared, without a row.
    pub fn share(&self, jobs: &Jobs, cols: usize) -> SharedWork {
        let mut row_words = [0; MAX_JOBS];
        let mut all = 0;
        for (words, job) in row_words.iter_mut().zip(&jobs.jobs[..jobs.count as usize]) {
            let types = &job.types[..self.matrices];
            let of_types = types.iter().flat_map(|id| dtypes(1 << id));
            let bytes: usize = of_types.map(|dtype| row_tile_bytes(dtype, cols)).sum();
            *words = (bytes / 16) as u32;
            all += job.rows.div_ceil(TILE_ROWS as u32) * *words;
        }
        let blocks = self.blocks as u32;
        let per = self.choice.per_multiprocessor as u32;
        SharedWork {
            jobs: jobs.jobs,
            row_words,
            row: DevicePtr::NULL,
            gamma: DevicePtr::NULL,
            eps: 0.0,
            num_jobs: jobs.count,
            cols: cols as u32,
            accumulate: 0,
            share: all / blocks,
            extra: all % blocks,
            beside: if blocks.is_multiple_of(per) { per } else { 1 },
            unused: 0,
        }
    }
}
