//! Quantised and float matrix products over tiles of 16 rows.
//!
//! Integer dot products are exact; per group of inputs there is one float multiply-add for each output (two with
//! mins), inputs ascending. So an output's bits depend on its row and its column alone, never on how many columns
//! share the call, on threads, or on the instruction set.

mod inner;
mod tiled;

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use tensor::DType;

use crate::cpu::lanes::{LANES, Lanes, Op, f_max_lane, f_sigmoid};
use crate::cpu::matmul::inner::{by32, by256, floats};
use crate::cpu::matmul::tiled::MAX_TILES;
use crate::cpu::pack::PackedMatrix;
use crate::cpu::tiles::{TILE_COLUMNS, Tiles};

pub(crate) use tiled::{Columns, Places};

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
    /// The same for the matrix unit.
    pub columns: Columns,
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
        let mut configured = false;
        while let Some((product, tiles)) = self.claim() {
            let mut column = 0;
            if L::TILES && product.is_tiled(self.tiles, self.x.num_columns) {
                if !configured {
                    self.tiles.configure();
                    configured = true;
                }
                while self.x.num_columns - column >= TILE_COLUMNS {
                    let first = column / TILE_COLUMNS;
                    let last = (first + MAX_TILES).min(self.x.num_columns / TILE_COLUMNS);
                    for tile in tiles.clone() {
                        self.column_tiles::<L>(product, tile, first..last);
                    }
                    column = last * TILE_COLUMNS;
                }
            }
            while column < self.x.num_columns {
                let count = match self.x.num_columns - column {
                    8.. => 8,
                    4.. => 4,
                    2.. => 2,
                    _ => 1,
                };
                for tile in tiles.clone() {
                    match count {
                        8 => self.tile::<L, 8>(product, tile, column),
                        4 => self.tile::<L, 4>(product, tile, column),
                        2 => self.tile::<L, 2>(product, tile, column),
                        _ => self.tile::<L, 1>(product, tile, column),
                    }
                }
                column += count;
            }
        }
        if configured {
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
        let mut sums = matrix_tile::<L, N>(product.weight, self.x, tile, column);
        if let Some(up) = product.up {
            let others = matrix_tile::<L, N>(up, self.x, tile, column);
            gate::<L, N>(&mut sums, &others);
        }
        product.store::<L, N>(tile, column, sums);
    }

    /// 16 outputs of some tiles of columns, by the matrix unit.
    #[inline(always)]
    unsafe fn column_tiles<L: Lanes>(
        &self,
        product: &Product<'_>,
        tile: usize,
        columns: Range<usize>,
    ) {
        let part = |w| matrix_tiles::<L>(w, self.x, self.tiles, tile, columns.clone());
        let mut sums = part(product.weight);
        if let Some(up) = product.up {
            let others = part(up);
            for (sums, others) in sums.iter_mut().zip(&others) {
                gate::<L, TILE_COLUMNS>(sums, others);
            }
        }
        for (columns, sums) in columns.zip(sums) {
            product.store::<L, TILE_COLUMNS>(tile, columns * TILE_COLUMNS, sums);
        }
    }
}

impl Product<'_> {
    /// Whether the matrix unit does the columns that fill its tiles.
    fn is_tiled(&self, tiles: Tiles, columns: usize) -> bool {
        let pays = |w: &PackedMatrix| tiles.pays(w.dtype, columns);
        pays(self.weight) && self.up.is_none_or(pays)
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

/// `silu(sums) * others`.
#[inline(always)]
unsafe fn gate<L: Lanes, const N: usize>(sums: &mut [L::F; N], others: &[L::F; N]) {
    for i in 0..N {
        sums[i] = L::f_mul(L::f_mul(sums[i], f_sigmoid::<L>(sums[i])), others[i]);
    }
}

struct Enabled<F>(F);

/// One tile in a function of its own, so that formats and column counts do not swell their caller.
#[inline(always)]
unsafe fn matrix_tile<L: Lanes, const N: usize>(
    w: &PackedMatrix,
    x: &Activations,
    tile: usize,
    col: usize,
) -> [L::F; N] {
    let mut sums = [L::f_splat(0.0); N];
    struct Tile<'a, const N: usize> {
        w: &'a PackedMatrix,
        x: &'a Activations,
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
                DType::Q4_0 => by32::<L, N, { d(DType::Q4_0) }>(p, x, col, sums),
                DType::Q4_1 => by32::<L, N, { d(DType::Q4_1) }>(p, x, col, sums),
                DType::Q5_0 => by32::<L, N, { d(DType::Q5_0) }>(p, x, col, sums),
                DType::Q5_1 => by32::<L, N, { d(DType::Q5_1) }>(p, x, col, sums),
                DType::Q8_0 => by32::<L, N, { d(DType::Q8_0) }>(p, x, col, sums),
                DType::Iq4Nl => by32::<L, N, { d(DType::Iq4Nl) }>(p, x, col, sums),
                DType::Q2K => by256::<L, N, { d(DType::Q2K) }>(p, x, col, sums),
                DType::Q3K => by256::<L, N, { d(DType::Q3K) }>(p, x, col, sums),
                DType::Q4K => by256::<L, N, { d(DType::Q4K) }>(p, x, col, sums),
                DType::Q5K => by256::<L, N, { d(DType::Q5K) }>(p, x, col, sums),
                DType::Q6K => by256::<L, N, { d(DType::Q6K) }>(p, x, col, sums),
                DType::Iq4Xs => by256::<L, N, { d(DType::Iq4Xs) }>(p, x, col, sums),
                DType::F32 => floats::<L, N, { d(DType::F32) }>(p, x, col, sums),
                DType::F16 => floats::<L, N, { d(DType::F16) }>(p, x, col, sums),
                DType::BF16 => floats::<L, N, { d(DType::BF16) }>(p, x, col, sums),
            }
        }
    }
    L::vectorize(Enabled(Tile::<N> {
        w,
        x,
        tile,
        col,
        sums: (&raw mut sums).cast(),
    }));
    sums
}

/// As [`matrix_tile`], for tiles of columns on the matrix unit.
#[inline(always)]
unsafe fn matrix_tiles<L: Lanes>(
    w: &PackedMatrix,
    x: &Activations,
    tiles: Tiles,
    tile: usize,
    columns: Range<usize>,
) -> [[L::F; TILE_COLUMNS]; MAX_TILES] {
    let mut sums = [[L::f_splat(0.0); TILE_COLUMNS]; MAX_TILES];
    struct TileColumns<'a> {
        w: &'a PackedMatrix,
        x: &'a Activations,
        tiles: Tiles,
        tile: usize,
        columns: Range<usize>,
        sums: *mut u8,
    }
    impl Op for Enabled<TileColumns<'_>> {
        #[inline(always)]
        unsafe fn run<L: Lanes>(self) {
            let TileColumns {
                w,
                x,
                tiles,
                tile,
                columns: c,
                sums,
            } = self.0;
            let (p, len) = (w.tile(tile).as_ptr(), x.len);
            let sums = sums.cast::<[L::F; TILE_COLUMNS]>();
            const fn d(dtype: DType) -> u32 {
                dtype.ggml_id()
            }
            let (a, b) = (&x.by32, &x.by256);
            match w.dtype {
                DType::Q4_0 => tiled::by32::<L, { d(DType::Q4_0) }>(p, a, len, c, tiles, sums),
                DType::Q4_1 => tiled::by32::<L, { d(DType::Q4_1) }>(p, a, len, c, tiles, sums),
                DType::Q5_0 => tiled::by32::<L, { d(DType::Q5_0) }>(p, a, len, c, tiles, sums),
                DType::Q5_1 => tiled::by32::<L, { d(DType::Q5_1) }>(p, a, len, c, tiles, sums),
                DType::Q8_0 => tiled::by32::<L, { d(DType::Q8_0) }>(p, a, len, c, tiles, sums),
                DType::Iq4Nl => tiled::by32::<L, { d(DType::Iq4Nl) }>(p, a, len, c, tiles, sums),
                DType::Q3K => {
                    tiled::by256::<L, { d(DType::Q3K) }, 2, true>(p, b, len, c, tiles, sums)
                }
                DType::Q4K => {
                    tiled::by256::<L, { d(DType::Q4K) }, 2, false>(p, b, len, c, tiles, sums)
                }
                DType::Q5K => {
                    tiled::by256::<L, { d(DType::Q5K) }, 2, false>(p, b, len, c, tiles, sums)
                }
                DType::Q6K => {
                    tiled::by256::<L, { d(DType::Q6K) }, 3, true>(p, b, len, c, tiles, sums)
                }
                DType::Q2K | DType::Iq4Xs | DType::F32 | DType::F16 | DType::BF16 => {
                    unreachable!("no tiles pay for {}", w.dtype)
                }
            }
        }
    }
    L::vectorize(Enabled(TileColumns {
        w,
        x,
        tiles,
        tile,
        columns,
        sums: (&raw mut sums).cast(),
    }));
    sums
}

#[cfg(test)]
mod tests;
