//! Quantised and float matrix products over tiles of 16 rows.
//!
//! Integer dot products are exact; per group of inputs there is one float multiply-add for each output (two with
//! mins), inputs ascending. So an output's bits depend on its row and its column alone, never on how many columns
//! share the call, on threads, or on the instruction set.

mod inner;

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use tensor::DType;

use crate::cpu::lanes::{LANES, Lanes, Op, f_max_lane, f_sigmoid};
use crate::cpu::matmul::inner::{by32, by256, floats};
use crate::cpu::pack::PackedMatrix;
use crate::cpu::tiles::{TILE_COLUMNS, Tiles};

/// Row tiles that a thread walks for each group of columns, so that weights stay in its L2.
const TILES_PER_JOB: usize = 8;

/// Activations of N columns (rows of the batch), as f32 and as int8.
#[derive(Debug, Default)]
pub(crate) struct Activations {
    pub num_columns: usize,
    pub len: usize,
    pub values: Vec<f32>,
    pub by32: Quantised,
    pub by256: Quantised,
}

/// int8 with one scale for each `group` inputs, and sums of 16.
#[derive(Debug, Default)]
pub(crate) struct Quantised {
    pub q: Vec<i8>,
    pub scale: Vec<f32>,
    pub sums: Vec<i32>,
}

impl Quantised {
    /// Sizes it for `columns` rows of `len`.
    pub(crate) fn resize(&mut self, columns: usize, len: usize, group: usize) {
        self.q.resize(columns * len, 0);
        self.scale.resize(columns * (len / group), 0.0);
        self.sums.resize(columns * (len / 16), 0);
    }
}

/// int8 = round(x 127 / amax) for each `group` inputs (a multiple of 16), ties to even.
///
/// # Safety
/// The instruction set of `L` is available.
#[inline(always)]
pub(crate) unsafe fn quantise_row<L: Lanes>(
    x: &[f32],
    group: usize,
    q: &mut [i8],
    scale: &mut [f32],
    sums: &mut [i32],
) {
    for (((x, q), scale), sums) in x
        .chunks_exact(group)
        .zip(q.chunks_exact_mut(group))
        .zip(scale)
        .zip(sums.chunks_exact_mut(group / LANES))
    {
        let mut largest = L::f_splat(0.0);
        for x in x.chunks_exact(LANES) {
            let x = L::f_load(x.as_ptr());
            let magnitude = L::f_max(x, L::f_sub(L::f_splat(0.0), x));
            largest = L::f_max(magnitude, largest);
        }
        let amax = f_max_lane::<L>(largest);
        *scale = amax / 127.0;
        let inverse = L::f_splat(if amax > 0.0 { 127.0 / amax } else { 0.0 });
        for ((x, q), sum) in x
            .chunks_exact(LANES)
            .zip(q.chunks_exact_mut(LANES))
            .zip(sums)
        {
            let mut rounded = [0; LANES];
            let value = L::i_round(L::f_mul(L::f_load(x.as_ptr()), inverse));
            L::i_store(rounded.as_mut_ptr(), value);
            for (q, v) in q.iter_mut().zip(rounded) {
                *q = v as i8;
            }
            *sum = rounded.iter().sum();
        }
    }
}

/// A target that several threads write, each its own outputs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared(*mut f32);
// SAFETY: threads write disjoint outputs: a tile's rows belong to the one thread that claimed it.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    pub(crate) fn new(values: &mut [f32]) -> Self {
        Self(values.as_mut_ptr())
    }

    #[inline(always)]
    pub(crate) fn at(self, offset: usize) -> *mut f32 {
        self.0.wrapping_add(offset)
    }
}

/// What becomes of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    Overwrite,
    Accumulate,
}

/// One matrix, or a gate and up pair.
#[derive(Debug)]
pub(crate) struct Product<'a> {
    pub weight: &'a PackedMatrix,
    /// With it, the output is `silu(weight x) * (up x)`.
    pub up: Option<&'a PackedMatrix>,
    pub out: Shared,
    pub store: Store,
}

/// Claims jobs of tiles across products; shared by the threads of one call.
pub(crate) struct Queue {
    next: AtomicUsize,
}

impl Queue {
    pub(crate) fn new() -> Self {
        Self {
            next: AtomicUsize::new(0),
        }
    }
}

/// A thread's part of a call.
pub(crate) struct Part<'a> {
    pub products: &'a [Product<'a>],
    pub x: &'a Activations,
    pub queue: &'a Queue,
    pub threads: usize,
    pub tiles: Tiles,
}

fn tiles_per_job(tiles: usize, threads: usize) -> usize {
    (tiles / (threads * 4)).clamp(1, TILES_PER_JOB)
}

impl Op for Part<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let tiled = self.tiles != Tiles::None && self.x.num_columns >= TILE_COLUMNS;
        if tiled {
            self.tiles.configure();
        }
        while let Some((product, tiles)) = self.claim() {
            let tiled = tiled && product.is_quantised();
            let mut column = 0;
            while column < self.x.num_columns {
                let count = match self.x.num_columns - column {
                    TILE_COLUMNS.. if tiled => TILE_COLUMNS,
                    8.. => 8,
                    4.. => 4,
                    2.. => 2,
                    _ => 1,
                };
                for tile in tiles.clone() {
                    match count {
                        TILE_COLUMNS => self.tile::<L, TILE_COLUMNS>(product, tile, column),
                        8 => self.tile::<L, 8>(product, tile, column),
                        4 => self.tile::<L, 4>(product, tile, column),
                        2 => self.tile::<L, 2>(product, tile, column),
                        _ => self.tile::<L, 1>(product, tile, column),
                    }
                }
                column += count;
            }
        }
        if tiled {
            self.tiles.release();
        }
    }
}

impl Part<'_> {
    /// Row tiles of a product that no other thread has.
    fn claim(&self) -> Option<(&Product<'_>, Range<usize>)> {
        let mut job = self.queue.next.fetch_add(1, Ordering::Relaxed);
        for product in self.products {
            let tiles = product.weight.rows.div_ceil(LANES);
            let per_job = tiles_per_job(tiles, self.threads);
            let jobs = tiles.div_ceil(per_job);
            if job < jobs {
                return Some((product, job * per_job..tiles.min((job + 1) * per_job)));
            }
            job -= jobs;
        }
        None
    }

    /// 16 outputs of N columns.
    #[inline(always)]
    unsafe fn tile<L: Lanes, const N: usize>(
        &self,
        product: &Product<'_>,
        tile: usize,
        column: usize,
    ) {
        let mut sums = matrix_tile::<L, N>(product.weight, self.x, self.tiles, tile, column);
        if let Some(up) = product.up {
            let others = matrix_tile::<L, N>(up, self.x, self.tiles, tile, column);
            for i in 0..N {
                sums[i] = L::f_mul(L::f_mul(sums[i], f_sigmoid::<L>(sums[i])), others[i]);
            }
        }
        product.store::<L, N>(tile, column, sums);
    }
}

impl Product<'_> {
    fn is_quantised(&self) -> bool {
        self.weight.dtype.is_quantised() && self.up.is_none_or(|up| up.dtype.is_quantised())
    }

    #[inline(always)]
    unsafe fn store<L: Lanes, const N: usize>(&self, tile: usize, column: usize, sums: [L::F; N]) {
        let rows = self.weight.rows;
        let valid = (rows - tile * LANES).min(LANES);
        for (i, &sum) in sums.iter().enumerate() {
            let target = self.out.at((column + i) * rows + tile * LANES);
            if valid == LANES {
                let sum = if self.store == Store::Accumulate {
                    L::f_add(L::f_load(target), sum)
                } else {
                    sum
                };
                L::f_store(target, sum);
            } else {
                let mut lanes = [0.0_f32; LANES];
                L::f_store(lanes.as_mut_ptr(), sum);
                for (lane, value) in lanes.iter().enumerate().take(valid) {
                    let target = target.add(lane);
                    *target = if self.store == Store::Accumulate {
                        *target + value
                    } else {
                        *value
                    };
                }
            }
        }
    }
}

struct Enabled<F>(F);

/// One tile in a function of its own, so that formats and column counts do not swell their caller.
#[inline(always)]
unsafe fn matrix_tile<L: Lanes, const N: usize>(
    w: &PackedMatrix,
    x: &Activations,
    tiles: Tiles,
    tile: usize,
    col: usize,
) -> [L::F; N] {
    let mut sums = [L::f_splat(0.0); N];
    struct Tile<'a, const N: usize> {
        w: &'a PackedMatrix,
        x: &'a Activations,
        tiles: Tiles,
        tile: usize,
        col: usize,
        sums: *mut u8,
    }
    impl<const N: usize> Op for Enabled<Tile<'_, N>> {
        #[inline(always)]
        unsafe fn run<L: Lanes>(self) {
            let Tile {
                w,
                x,
                tiles,
                tile,
                col,
                sums,
            } = self.0;
            let p = w.tile(tile).as_ptr();
            let sums = &mut *sums.cast::<[L::F; N]>();
            const fn d(dtype: DType) -> u32 {
                dtype.ggml_id()
            }
            match w.dtype {
                DType::Q4_0 => by32::<L, N, { d(DType::Q4_0) }>(p, x, col, tiles, sums),
                DType::Q4_1 => by32::<L, N, { d(DType::Q4_1) }>(p, x, col, tiles, sums),
                DType::Q5_0 => by32::<L, N, { d(DType::Q5_0) }>(p, x, col, tiles, sums),
                DType::Q5_1 => by32::<L, N, { d(DType::Q5_1) }>(p, x, col, tiles, sums),
                DType::Q8_0 => by32::<L, N, { d(DType::Q8_0) }>(p, x, col, tiles, sums),
                DType::Iq4Nl => by32::<L, N, { d(DType::Iq4Nl) }>(p, x, col, tiles, sums),
                DType::Q2K => by256::<L, N, { d(DType::Q2K) }>(p, x, col, tiles, sums),
                DType::Q3K => by256::<L, N, { d(DType::Q3K) }>(p, x, col, tiles, sums),
                DType::Q4K => by256::<L, N, { d(DType::Q4K) }>(p, x, col, tiles, sums),
                DType::Q5K => by256::<L, N, { d(DType::Q5K) }>(p, x, col, tiles, sums),
                DType::Q6K => by256::<L, N, { d(DType::Q6K) }>(p, x, col, tiles, sums),
                DType::Iq4Xs => by256::<L, N, { d(DType::Iq4Xs) }>(p, x, col, tiles, sums),
                DType::F32 => floats::<L, N, { d(DType::F32) }>(p, x, col, sums),
                DType::F16 => floats::<L, N, { d(DType::F16) }>(p, x, col, sums),
                DType::BF16 => floats::<L, N, { d(DType::BF16) }>(p, x, col, sums),
            }
        }
    }
    L::vectorize(Enabled(Tile::<N> {
        w,
        x,
        tiles,
        tile,
        col,
        sums: (&raw mut sums).cast(),
    }));
    sums
}

#[cfg(test)]
mod tests;
