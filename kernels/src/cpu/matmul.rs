//! Quantised and float matrix products over tiles of 16 rows.
//!
//! Integer dot products are exact; per group of inputs there is one float multiply-add for each output (two with
//! mins), inputs ascending. So an output's bits depend on its row and its column alone, never on how many columns
//! share the call, on threads, or on the instruction set.

use std::sync::atomic::{AtomicUsize, Ordering};

use tensor::DType;

use crate::cpu::lanes::{LANES, Lanes, Op, f_sigmoid};
use crate::cpu::pack::{IQ4_TABLE, Layout, PackedMatrix, offset};

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

/// int8 = round(x 127 / amax) for each `group` inputs, ties to even.
pub(crate) fn quantise_row(
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
        .zip(sums.chunks_exact_mut(group / 16))
    {
        let amax = x
            .iter()
            .fold(0.0_f32, |m, v| if v.abs() > m { v.abs() } else { m });
        *scale = amax / 127.0;
        let inverse = if amax > 0.0 { 127.0 / amax } else { 0.0 };
        for ((x, q), sum) in x.chunks_exact(16).zip(q.chunks_exact_mut(16)).zip(sums) {
            let mut total = 0;
            for (x, q) in x.iter().zip(q) {
                let v = (x * inverse).round_ties_even() as i32;
                *q = v as i8;
                total += v;
            }
            *sum = total;
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
}

fn tiles_per_job(tiles: usize, threads: usize) -> usize {
    (tiles / (threads * 4)).clamp(1, TILES_PER_JOB)
}

impl Op for Part<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        loop {
            let mut job = self.queue.next.fetch_add(1, Ordering::Relaxed);
            let mut claimed = None;
            for product in self.products {
                let tiles = product.weight.rows.div_ceil(LANES);
                let per_job = tiles_per_job(tiles, self.threads);
                let jobs = tiles.div_ceil(per_job);
                if job < jobs {
                    claimed = Some((product, job * per_job..tiles.min((job + 1) * per_job)));
                    break;
                }
                job -= jobs;
            }
            let Some((product, tiles)) = claimed else {
                return;
            };
            let mut column = 0;
            while column < self.x.num_columns {
                let count = match self.x.num_columns - column {
                    8.. => 8,
                    4.. => 4,
                    2.. => 2,
                    _ => 1,
                };
                for tile in tiles.clone() {
                    match count {
                        8 => product_tile::<L, 8>(product, self.x, tile, column),
                        4 => product_tile::<L, 4>(product, self.x, tile, column),
                        2 => product_tile::<L, 2>(product, self.x, tile, column),
                        _ => product_tile::<L, 1>(product, self.x, tile, column),
                    }
                }
                column += count;
            }
        }
    }
}

#[inline(always)]
unsafe fn product_tile<L: Lanes, const N: usize>(
    product: &Product<'_>,
    x: &Activations,
    tile: usize,
    column: usize,
) {
    let mut sums = matrix_tile::<L, N>(product.weight, x, tile, column);
    if let Some(up) = product.up {
        let others = matrix_tile::<L, N>(up, x, tile, column);
        for i in 0..N {
            sums[i] = L::f_mul(L::f_mul(sums[i], f_sigmoid::<L>(sums[i])), others[i]);
        }
    }
    let rows = product.weight.rows;
    let valid = (rows - tile * LANES).min(LANES);
    for (i, &sum) in sums.iter().enumerate() {
        let target = product.out.at((column + i) * rows + tile * LANES);
        if valid == LANES {
            let sum = if product.store == Store::Accumulate {
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
                *target = if product.store == Store::Accumulate {
                    *target + value
                } else {
                    *value
                };
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

/// The inverse of [`DType::ggml_id`], for const generics.
const fn dtype_of(id: u32) -> DType {
    let mut i = 0;
    while i < DType::ALL.len() {
        if DType::ALL[i].ggml_id() == id {
            return DType::ALL[i];
        }
        i += 1;
    }
    panic!("an id that came from a DType")
}

/// The eight vectors of one unit: inputs 4i..4i+4 of 16 rows as unsigned bytes.
#[inline(always)]
unsafe fn unit<L: Lanes, const ID: u32>(p: *const u8) -> [L::B; 8] {
    let dtype = dtype_of(ID);
    let bits = Layout::of(dtype).bits;
    if bits == 8 {
        return [0, 1, 2, 3, 4, 5, 6, 7].map(|i| L::b_load(p.add(64 * i)));
    }
    if bits < 4 {
        let (a, b) = (L::b_load(p), L::b_load(p.add(64)));
        let low = [
            L::b_bits::<0>(a, 3),
            L::b_bits::<2>(a, 3),
            L::b_bits::<4>(a, 3),
            L::b_bits::<6>(a, 3),
            L::b_bits::<0>(b, 3),
            L::b_bits::<2>(b, 3),
            L::b_bits::<4>(b, 3),
            L::b_bits::<6>(b, 3),
        ];
        return if bits == 3 {
            join_bit::<L, 2>(low, p.add(128))
        } else {
            low
        };
    }
    let n = [0, 1, 2, 3].map(|i| L::b_load(p.add(64 * i)));
    let low = [
        L::b_bits::<0>(n[0], 15),
        L::b_bits::<0>(n[1], 15),
        L::b_bits::<0>(n[2], 15),
        L::b_bits::<0>(n[3], 15),
        L::b_bits::<4>(n[0], 15),
        L::b_bits::<4>(n[1], 15),
        L::b_bits::<4>(n[2], 15),
        L::b_bits::<4>(n[3], 15),
    ];
    match bits {
        5 => join_bit::<L, 4>(low, p.add(256)),
        6 => {
            let (a, b) = (L::b_load(p.add(256)), L::b_load(p.add(320)));
            [
                L::b_join::<4>(low[0], L::b_bits::<0>(a, 3)),
                L::b_join::<4>(low[1], L::b_bits::<2>(a, 3)),
                L::b_join::<4>(low[2], L::b_bits::<4>(a, 3)),
                L::b_join::<4>(low[3], L::b_bits::<6>(a, 3)),
                L::b_join::<4>(low[4], L::b_bits::<0>(b, 3)),
                L::b_join::<4>(low[5], L::b_bits::<2>(b, 3)),
                L::b_join::<4>(low[6], L::b_bits::<4>(b, 3)),
                L::b_join::<4>(low[7], L::b_bits::<6>(b, 3)),
            ]
        }
        _ if matches!(dtype, DType::Iq4Nl | DType::Iq4Xs) => low.map(|v| L::b_table(&IQ4_TABLE, v)),
        _ => low,
    }
}

#[inline(always)]
unsafe fn join_bit<L: Lanes, const SHIFT: i32>(low: [L::B; 8], plane: *const u8) -> [L::B; 8] {
    let h = L::b_load(plane);
    [
        L::b_join::<SHIFT>(low[0], L::b_bits::<0>(h, 1)),
        L::b_join::<SHIFT>(low[1], L::b_bits::<1>(h, 1)),
        L::b_join::<SHIFT>(low[2], L::b_bits::<2>(h, 1)),
        L::b_join::<SHIFT>(low[3], L::b_bits::<3>(h, 1)),
        L::b_join::<SHIFT>(low[4], L::b_bits::<4>(h, 1)),
        L::b_join::<SHIFT>(low[5], L::b_bits::<5>(h, 1)),
        L::b_join::<SHIFT>(low[6], L::b_bits::<6>(h, 1)),
        L::b_join::<SHIFT>(low[7], L::b_bits::<7>(h, 1)),
    ]
}

/// Dot product of quads `from..to` of a unit, on top of `sum`.
#[inline(always)]
unsafe fn quads<L: Lanes, const ID: u32>(
    mut sum: L::I,
    w: &[L::B; 8],
    x: *const i8,
    from: usize,
    to: usize,
) -> L::I {
    let wide = matches!(dtype_of(ID), DType::Q8_0 | DType::Iq4Nl | DType::Iq4Xs);
    for i in from..to {
        sum = if wide {
            L::dot4::<true>(sum, w[i], x.add(4 * i))
        } else {
            L::dot4::<false>(sum, w[i], x.add(4 * i))
        };
    }
    sum
}

/// Quant blocks of 32 with float scales.
#[inline(always)]
unsafe fn by32<L: Lanes, const N: usize, const ID: u32>(
    p: *const u8,
    x: &Activations,
    col: usize,
    sums: &mut [L::F; N],
) {
    let dtype = dtype_of(ID);
    let layout = Layout::of(dtype);
    let mut acc = *sums;
    let groups = x.len / 32;
    for g in 0..groups {
        let p = p.add(g * layout.group_bytes());
        let w = unit::<L, ID>(p);
        let d = L::f_load_f16(p.add(layout.unit_bytes()).cast());
        for (n, acc) in acc.iter_mut().enumerate() {
            let c = col + n;
            let scale = *x.by32.scale.as_ptr().add(c * groups + g);
            let s = x.by32.sums.as_ptr().add(c * 2 * groups + 2 * g);
            let total = *s + *s.add(1);
            let start = L::i_splat(-offset(dtype) * total);
            let q = x.by32.q.as_ptr().add(c * x.len + 32 * g);
            let dot = L::f_from_i(quads::<L, ID>(start, &w, q, 0, 8));
            *acc = L::f_fma(L::f_mul(d, L::f_splat(scale)), dot, *acc);
            if layout.min {
                let m = L::f_load_f16(p.add(layout.unit_bytes() + 2 * LANES).cast());
                *acc = L::f_fma(m, L::f_splat(scale * total as f32), *acc);
            }
        }
    }
    *sums = acc;
}

/// Quant blocks of 256 with integer sub-scales.
#[inline(always)]
unsafe fn by256<L: Lanes, const N: usize, const ID: u32>(
    p: *const u8,
    x: &Activations,
    col: usize,
    sums: &mut [L::F; N],
) {
    let dtype = dtype_of(ID);
    let layout = Layout::of(dtype);
    let stride = layout.unit_bytes() + layout.sub_bytes();
    let mut acc = *sums;
    let groups = x.len / 256;
    for g in 0..groups {
        let p = p.add(g * layout.group_bytes());
        let mut totals = [L::i_splat(0); N];
        let mut mins = [L::i_splat(0); N];
        for u in 0..8 {
            let p = p.add(u * stride);
            let w = unit::<L, ID>(p);
            let sub = p.add(layout.unit_bytes());
            let (s0, s1, m0, m1) = sub_scales::<L, ID>(sub);
            for n in 0..N {
                let c = col + n;
                let q = x.by256.q.as_ptr().add(c * x.len + 256 * g + 32 * u);
                let s = x.by256.sums.as_ptr().add(c * 16 * groups + 16 * g + 2 * u);
                let (a, b) = (*s, *s.add(1));
                if layout.sub == 16 {
                    let first = quads::<L, ID>(L::i_splat(-offset(dtype) * a), &w, q, 0, 4);
                    let second = quads::<L, ID>(L::i_splat(-offset(dtype) * b), &w, q, 4, 8);
                    totals[n] = L::i_add(
                        totals[n],
                        L::i_add(L::i_mul(first, s0), L::i_mul(second, s1)),
                    );
                } else {
                    let dot = quads::<L, ID>(L::i_splat(-offset(dtype) * (a + b)), &w, q, 0, 8);
                    totals[n] = L::i_add(totals[n], L::i_mul(dot, s0));
                }
                if layout.min && layout.sub == 16 {
                    let both = L::i_add(L::i_mul(m0, L::i_splat(a)), L::i_mul(m1, L::i_splat(b)));
                    mins[n] = L::i_add(mins[n], both);
                } else if layout.min {
                    mins[n] = L::i_add(mins[n], L::i_mul(m0, L::i_splat(a + b)));
                }
            }
        }
        let scales = p.add(8 * stride);
        let d = L::f_load_f16(scales.cast());
        for n in 0..N {
            let scale = L::f_splat(*x.by256.scale.as_ptr().add((col + n) * groups + g));
            acc[n] = L::f_fma(L::f_mul(d, scale), L::f_from_i(totals[n]), acc[n]);
            if layout.min {
                let m = L::f_load_f16(scales.add(2 * LANES).cast());
                let down = L::f_sub(L::f_splat(0.0), L::f_mul(m, scale));
                acc[n] = L::f_fma(down, L::f_from_i(mins[n]), acc[n]);
            }
        }
    }
    *sums = acc;
}

/// Scales of both halves and mins of both halves of a unit (the same twice where a sub-scale covers 32 inputs).
#[inline(always)]
unsafe fn sub_scales<L: Lanes, const ID: u32>(sub: *const u8) -> (L::I, L::I, L::I, L::I) {
    match dtype_of(ID) {
        DType::Q2K => {
            let (a, b) = (L::i_load_u8(sub), L::i_load_u8(sub.add(LANES)));
            (L::i_and(a, 15), L::i_and(b, 15), L::i_shr4(a), L::i_shr4(b))
        }
        DType::Q4K | DType::Q5K => {
            let (s, m) = (L::i_load_u8(sub), L::i_load_u8(sub.add(LANES)));
            (s, s, m, m)
        }
        DType::Iq4Xs => {
            let s = L::i_load_i8(sub);
            (s, s, s, s)
        }
        _ => {
            let (a, b) = (L::i_load_i8(sub), L::i_load_i8(sub.add(LANES)));
            (a, b, a, b)
        }
    }
}

/// f32, f16 and bf16 weights: four chains of multiply-adds by input index modulo 4, then `(0+1)+(2+3)`.
#[inline(always)]
unsafe fn floats<L: Lanes, const N: usize, const ID: u32>(
    p: *const u8,
    x: &Activations,
    col: usize,
    sums: &mut [L::F; N],
) {
    let load = |k: usize| match dtype_of(ID) {
        DType::F32 => L::f_load(p.cast::<f32>().add(k * LANES)),
        DType::F16 => L::f_load_f16(p.cast::<u16>().add(k * LANES)),
        _ => L::f_load_bf16(p.cast::<u16>().add(k * LANES)),
    };
    let mut chains = [[L::f_splat(0.0); 4]; N];
    let whole = x.len / 4 * 4;
    let mut k = 0;
    while k < whole {
        for j in 0..4 {
            let w = load(k + j);
            for (n, chains) in chains.iter_mut().enumerate() {
                let v = *x.values.as_ptr().add((col + n) * x.len + k + j);
                chains[j] = L::f_fma(w, L::f_splat(v), chains[j]);
            }
        }
        k += 4;
    }
    for j in 0..x.len - whole {
        let w = load(whole + j);
        for (n, chains) in chains.iter_mut().enumerate() {
            let v = *x.values.as_ptr().add((col + n) * x.len + whole + j);
            chains[j] = L::f_fma(w, L::f_splat(v), chains[j]);
        }
    }
    for n in 0..N {
        let c = chains[n];
        sums[n] = L::f_add(L::f_add(c[0], c[1]), L::f_add(c[2], c[3]));
    }
}
