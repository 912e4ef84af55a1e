//! Tiles of 16 weight rows times 16 columns on the matrix unit.
//!
//! Weights of a panel of inputs become bytes once for all columns of a call. A tile cannot be loaded before vector
//! stores have reached the cache, nor vectors before a tile's store has. So all is staggered: while the unit
//! multiplies, the next panel's weights are made, and the sums of the step before become floats.

use std::mem::MaybeUninit;
use std::ops::Range;

use tensor::DType;

use crate::cpu::lanes::{LANES, Lanes};
use crate::cpu::matmul::Quantised;
use crate::cpu::matmul::inner::{dtype_of, sub_scales, unit};
use crate::cpu::pack::{Layout, offset};
use crate::cpu::tiles::{DIGIT_LINES, Line, Sums, TILE_COLUMNS, Tiles};

/// Column tiles of one call.
pub(super) const MAX_TILES: usize = 4;

/// Lines of one unit of weights.
const UNIT_LINES: usize = 8;

/// Quantised activations in left-hand tiles.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    /// Whole tiles of them.
    count: usize,
    /// `[tile][64 inputs][column]`
    q: Vec<Line>,
    /// `[tile][group][column]`
    scale: Vec<f32>,
    /// The scale times the sum of 32 inputs: `[tile][unit][column]`.
    totals: Vec<f32>,
    /// Sums of 32 inputs, two units' i16 in one: `[tile][pair of units][column]`.
    pairs: Vec<i32>,
}

impl Columns {
    /// Sizes it for as many of `columns` as fill tiles.
    pub(crate) fn resize(&mut self, columns: usize, len: usize, group: usize) {
        self.count = columns / TILE_COLUMNS * TILE_COLUMNS;
        self.q.resize(self.count * len.div_ceil(64), Line([0; 64]));
        self.scale.resize(self.count * (len / group), 0.0);
        self.totals.resize(self.count * (len / 32), 0.0);
        self.pairs.resize(self.count * (len / 64), 0);
    }

    pub(crate) fn places(&mut self) -> Places {
        Places {
            count: self.count,
            q: self.q.as_mut_ptr(),
            scale: self.scale.as_mut_ptr(),
            totals: self.totals.as_mut_ptr(),
            pairs: self.pairs.as_mut_ptr(),
        }
    }
}

/// The vectors of [`Columns`], written column by column from several threads.
#[derive(Clone, Copy)]
pub(crate) struct Places {
    count: usize,
    q: *mut Line,
    scale: *mut f32,
    totals: *mut f32,
    pairs: *mut i32,
}

impl Places {
    /// Copies a column (a row of the batch) to its tile, if it is in one.
    ///
    /// # Safety
    /// The vectors were sized for this length and group, and nobody else writes this column.
    #[inline(always)]
    pub(crate) unsafe fn put(self, column: usize, q: &[i8], scale: &[f32], sums: &[i32]) {
        if column >= self.count {
            return;
        }
        let (tile, column) = (column / TILE_COLUMNS, column % TILE_COLUMNS);
        let at = |i: usize, count: usize| (tile * count + i) * TILE_COLUMNS + column;
        let (lines, units, groups) = (q.len().div_ceil(64), q.len() / 32, scale.len());
        for (i, q) in q.chunks(64).enumerate() {
            let target = self.q.add(at(i, lines)).cast::<i8>();
            target.copy_from_nonoverlapping(q.as_ptr(), q.len());
        }
        for (i, scale) in scale.iter().enumerate() {
            self.scale.add(at(i, groups)).write(*scale);
        }
        for (i, sums) in sums.chunks_exact(2).enumerate() {
            let total = scale[i * groups / units] * (sums[0] + sums[1]) as f32;
            self.totals.add(at(i, units)).write(total);
        }
        for (i, sums) in sums.chunks_exact(4).enumerate() {
            let pair = (sums[0] + sums[1]) & 0xffff | (sums[2] + sums[3]) << 16;
            self.pairs.add(at(i, units / 2)).write(pair);
        }
    }
}

/// What a step multiplies, or has multiplied.
#[derive(Clone, Copy)]
struct Step {
    panel: usize,
    /// Column tile.
    tile: usize,
    /// Which set of sums it has.
    turn: usize,
}

/// A product of a row tile with some column tiles, in panels of inputs.
trait Panels {
    /// Units of a panel.
    const UNITS: usize;

    /// Steps after which sums become floats; one more sets of sums.
    const LAG: usize;

    /// Makes bytes of some of a panel's units.
    unsafe fn expand(&mut self, panel: usize, units: Range<usize>);

    /// Multiplies for `now`, and adds to the outputs what was multiplied for `before`.
    unsafe fn step(&mut self, now: Option<Step>, before: Option<Step>);
}

#[inline(always)]
unsafe fn walk<P: Panels>(product: &mut P, panels: usize, tiles: usize) {
    product.expand(0, 0..P::UNITS);
    let steps = panels * tiles;
    let step = |i: usize| {
        (i < steps).then_some(Step {
            panel: i / tiles,
            tile: i % tiles,
            turn: i % (P::LAG + 1),
        })
    };
    for i in 0..steps + P::LAG {
        let now = step(i);
        if let Some(Step { panel, tile, .. }) = now
            && panel + 1 < panels
        {
            let part = tile * P::UNITS / tiles..(tile + 1) * P::UNITS / tiles;
            product.expand(panel + 1, part);
        }
        product.step(now, i.checked_sub(P::LAG).and_then(step));
    }
}

/// Units of a panel of quant blocks of 32.
const UNITS_OF_32: usize = 8;

/// These sums fill as a step goes on, so the step before is far enough.
const LAG_OF_32: usize = 1;

struct By32<'a, L: Lanes, const ID: u32> {
    p: *const u8,
    x: &'a Columns,
    units: usize,
    /// The first column tile.
    first: usize,
    tiles: Tiles,
    /// Weights of two panels.
    weights: MaybeUninit<[[Line; UNIT_LINES * UNITS_OF_32]; 2]>,
    sums: MaybeUninit<[[Sums; UNITS_OF_32]; LAG_OF_32 + 1]>,
    out: *mut [L::F; TILE_COLUMNS],
}

impl<L: Lanes, const ID: u32> Panels for By32<'_, L, ID> {
    const UNITS: usize = UNITS_OF_32;
    const LAG: usize = LAG_OF_32;

    #[inline(always)]
    unsafe fn expand(&mut self, panel: usize, units: Range<usize>) {
        let bytes = const { Layout::of(dtype_of(ID)) }.group_bytes();
        for u in units {
            // Pairs are multiplied: a last odd unit stands in for what would follow it.
            let from = (panel * UNITS_OF_32 + u).min(self.units - 1);
            let weights = unit::<L, ID>(self.p.add(from * bytes));
            let target = self.weights(panel).add(UNIT_LINES * u);
            for (i, &quad) in weights.iter().enumerate() {
                let quad = L::b_sub(quad, offset(const { dtype_of(ID) }) as u8);
                L::b_store(target.add(i).cast(), quad);
            }
        }
    }

    #[inline(always)]
    unsafe fn step(&mut self, now: Option<Step>, before: Option<Step>) {
        let layout = const { Layout::of(dtype_of(ID)) };
        let left = |s: Option<Step>| s.map_or(0, |s| self.units - s.panel * UNITS_OF_32);
        let (multiply, add) = (left(now), left(before));
        let (now, before) = (now.or(before), before.or(now));
        let (Some(now), Some(before)) = (now, before) else {
            return;
        };
        let x = (self.x.q.as_ptr())
            .add((self.first + now.tile) * self.units.div_ceil(2) * TILE_COLUMNS);
        let weights = self.weights(now.panel).cast_const();
        let now_sums = self.sums(now.turn);
        let sums = self.sums(before.turn).cast_const().cast::<i32>();
        let mut acc = *self.out.add(before.tile);
        for u in (0..UNITS_OF_32).step_by(2) {
            for u in u..(u + 2).min(add) {
                let sums = sums.add(u * TILE_COLUMNS * LANES);
                let at = before.panel * UNITS_OF_32 + u;
                let scales = self.p.add(at * layout.group_bytes() + layout.unit_bytes());
                let at = ((self.first + before.tile) * self.units + at) * TILE_COLUMNS;
                let d = L::f_load_f16(scales.cast());
                for (n, acc) in acc.iter_mut().enumerate() {
                    let scale = L::f_mul(d, L::f_splat(*self.x.scale.as_ptr().add(at + n)));
                    let dot = L::f_from_i(L::i_load(sums.add(n * LANES)));
                    *acc = L::f_fma(scale, dot, *acc);
                    if layout.min {
                        let m = L::f_load_f16(scales.add(2 * LANES).cast());
                        let total = L::f_splat(*self.x.totals.as_ptr().add(at + n));
                        *acc = L::f_fma(m, total, *acc);
                    }
                }
            }
            // After the loads above: these sums often are 4 KiB apart from those, and loads take them for the same.
            if u < multiply {
                let x = x.add((now.panel * UNITS_OF_32 + u) / 2 * TILE_COLUMNS);
                let weights = weights.add(UNIT_LINES * u);
                self.tiles.dot_pair(weights, x, now_sums.add(u));
            }
        }
        *self.out.add(before.tile) = acc;
    }
}

impl<L: Lanes, const ID: u32> By32<'_, L, ID> {
    #[inline(always)]
    fn weights(&mut self, panel: usize) -> *mut Line {
        let start = self.weights.as_mut_ptr().cast::<Line>();
        start.wrapping_add(panel % 2 * UNIT_LINES * UNITS_OF_32)
    }

    #[inline(always)]
    fn sums(&mut self, turn: usize) -> *mut Sums {
        let start = self.sums.as_mut_ptr().cast::<Sums>();
        start.wrapping_add(turn * UNITS_OF_32)
    }
}

/// Quant blocks of 32 with float scales: adds to `tiles` column tiles of outputs from the tile `first` on.
#[inline(always)]
pub(super) unsafe fn by32<L: Lanes, const ID: u32>(
    p: *const u8,
    x: &Quantised,
    len: usize,
    columns: Range<usize>,
    tiles: Tiles,
    out: *mut [L::F; TILE_COLUMNS],
) {
    let mut product = By32::<L, ID> {
        p,
        x: &x.columns,
        units: len / 32,
        first: columns.start,
        tiles,
        weights: MaybeUninit::uninit(),
        sums: MaybeUninit::uninit(),
        out,
    };
    walk(
        &mut product,
        (len / 32).div_ceil(UNITS_OF_32),
        columns.len(),
    );
}

/// Units of 256 inputs.
const UNITS_OF_256: usize = 8;

/// These sums are stored where a step ends, too late for the next one.
const LAG_OF_256: usize = 2;

/// Sub-scales are integers, so weights times sub-scales are summed over all 256 inputs at once. Such products exceed a
/// byte: each octal digit of the sub-scale has its own weights and sums. Digits of types with an offset are signed,
/// -3 to 4, and the offset is subtracted first.
const fn digits(dtype: DType) -> usize {
    match dtype {
        // At most 31 * 7; -4 * 4 to 4 * 4.
        DType::Q4K | DType::Q5K | DType::Q3K => 2,
        // -32 * 4 to 31 * 4.
        _ => 3,
    }
}

const fn is_signed(dtype: DType) -> bool {
    offset(dtype) != 0
}

struct By256<'a, L: Lanes, const ID: u32, const D: usize, const SIGNED: bool> {
    p: *const u8,
    x: &'a Columns,
    groups: usize,
    /// The first column tile.
    first: usize,
    tiles: Tiles,
    /// `[panel % 2][digit][unit][quad]`
    weights: MaybeUninit<[[[Line; DIGIT_LINES]; D]; 2]>,
    sums: MaybeUninit<[[Sums; D]; LAG_OF_256 + 1]>,
    out: *mut [L::F; TILE_COLUMNS],
}

impl<L: Lanes, const ID: u32, const D: usize, const SIGNED: bool> Panels
    for By256<'_, L, ID, D, SIGNED>
{
    const UNITS: usize = UNITS_OF_256;
    const LAG: usize = LAG_OF_256;

    #[inline(always)]
    unsafe fn expand(&mut self, panel: usize, units: Range<usize>) {
        let layout = const { Layout::of(dtype_of(ID)) };
        for u in units {
            let p = self.unit(panel, u);
            let weights = unit::<L, ID>(p);
            let (mut s0, mut s1, ..) = sub_scales::<L, ID>(p.add(layout.unit_bytes()));
            for digit in 0..D {
                let (d0, d1);
                if digit + 1 < D {
                    (d0, s0) = octal::<L, SIGNED>(s0);
                    (d1, s1) = octal::<L, SIGNED>(s1);
                } else {
                    (d0, d1) = (s0, s1);
                }
                let target = self
                    .weights(panel)
                    .add(DIGIT_LINES * digit + UNIT_LINES * u);
                for (i, &quad) in weights.iter().enumerate() {
                    let quad = L::b_sub(quad, offset(const { dtype_of(ID) }) as u8);
                    let d = if i < 4 { d0 } else { d1 };
                    let quad = if SIGNED {
                        L::b_mul::<false>(quad, d)
                    } else {
                        L::b_mul::<true>(quad, d)
                    };
                    L::b_store(target.add(i).cast(), quad);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn step(&mut self, now: Option<Step>, before: Option<Step>) {
        let layout = const { Layout::of(dtype_of(ID)) };
        let (multiply, add) = (now.is_some(), before.is_some());
        let (now, before) = (now.or(before), before.or(now));
        let (Some(now), Some(before)) = (now, before) else {
            return;
        };
        let at = (self.first + now.tile) * self.groups + now.panel;
        let x = self.x.q.as_ptr().add(at * 4 * TILE_COLUMNS);
        let weights = self.weights(now.panel).cast_const();
        let now_sums = self.sums(now.turn);

        let sums = self.sums(before.turn).cast_const().cast::<i32>();
        let at = (self.first + before.tile) * self.groups + before.panel;
        let x_scale = self.x.scale.as_ptr().add(at * TILE_COLUMNS);
        let pairs = (self.x.pairs.as_ptr()).add(at * UNITS_OF_256 / 2 * TILE_COLUMNS);
        let mut mins = [L::i_splat(0); UNITS_OF_256 / 2];
        if layout.min {
            for (pair, mins) in mins.iter_mut().enumerate() {
                let min = |unit: usize| {
                    let sub = self.unit(before.panel, unit).add(layout.unit_bytes());
                    sub_scales::<L, ID>(sub).2
                };
                let high = L::i_mul(min(2 * pair + 1), L::i_splat(1 << 16));
                *mins = L::i_add(min(2 * pair), high);
            }
        }
        let scales = self.unit(before.panel, UNITS_OF_256);
        let d = L::f_load_f16(scales.cast());
        let out = self.out.add(before.tile).cast::<L::F>();
        for quarter in 0..4 {
            let columns = if add {
                quarter * 4..quarter * 4 + 4
            } else {
                0..0
            };
            for n in columns {
                let sum = |digit: usize| L::i_load(sums.add((digit * TILE_COLUMNS + n) * LANES));
                let mut total = sum(D - 1);
                for digit in (0..D - 1).rev() {
                    total = L::i_add(L::i_mul(total, L::i_splat(8)), sum(digit));
                }
                let scale = L::f_splat(*x_scale.add(n));
                let acc = L::f_fma(L::f_mul(d, scale), L::f_from_i(total), *out.add(n));
                *out.add(n) = acc;
                if layout.min {
                    let mut down = L::i_splat(0);
                    for (pair, &mins) in mins.iter().enumerate() {
                        down = L::dot2(down, mins, *pairs.add(pair * TILE_COLUMNS + n));
                    }
                    let m = L::f_load_f16(scales.add(2 * LANES).cast());
                    let m = L::f_sub(L::f_splat(0.0), L::f_mul(m, scale));
                    *out.add(n) = L::f_fma(m, L::f_from_i(down), acc);
                }
            }
            if multiply {
                let x = x.add(quarter * TILE_COLUMNS);
                let weights = weights.add(quarter * 2 * UNIT_LINES);
                (self.tiles).dot_quarter::<D, SIGNED>(quarter, weights, x, now_sums);
            }
        }
    }
}

/// The lowest digit, and what is above it.
#[inline(always)]
unsafe fn octal<L: Lanes, const SIGNED: bool>(s: L::I) -> (L::I, L::I) {
    let low = if SIGNED { 3 } else { 0 };
    let up = L::i_add(s, L::i_splat(low));
    let digit = L::i_add(L::i_and(up, 7), L::i_splat(-low));
    // A shift by 3; `up` has the same quotient as `s - digit`.
    (digit, L::i_shr4(L::i_add(up, up)))
}

impl<L: Lanes, const ID: u32, const D: usize, const SIGNED: bool> By256<'_, L, ID, D, SIGNED> {
    /// Packed weights of a unit; of one after the last: the scales of the group.
    #[inline(always)]
    fn unit(&self, panel: usize, unit: usize) -> *const u8 {
        let layout = const { Layout::of(dtype_of(ID)) };
        let at = panel * layout.group_bytes() + unit * (layout.unit_bytes() + layout.sub_bytes());
        self.p.wrapping_add(at)
    }

    #[inline(always)]
    fn weights(&mut self, panel: usize) -> *mut Line {
        let start = self.weights.as_mut_ptr().cast::<Line>();
        start.wrapping_add(panel % 2 * D * DIGIT_LINES)
    }

    #[inline(always)]
    fn sums(&mut self, turn: usize) -> *mut Sums {
        let start = self.sums.as_mut_ptr().cast::<Sums>();
        start.wrapping_add(turn * D)
    }
}

/// Quant blocks of 256 with integer sub-scales; else as [`by32`].
#[inline(always)]
pub(super) unsafe fn by256<L: Lanes, const ID: u32, const D: usize, const SIGNED: bool>(
    p: *const u8,
    x: &Quantised,
    len: usize,
    columns: Range<usize>,
    tiles: Tiles,
    out: *mut [L::F; TILE_COLUMNS],
) {
    const {
        let dtype = const { dtype_of(ID) };
        assert!(digits(dtype) == D && is_signed(dtype) == SIGNED);
    }
    let mut product = By256::<L, ID, D, SIGNED> {
        p,
        x: &x.columns,
        groups: len / 256,
        first: columns.start,
        tiles,
        weights: MaybeUninit::uninit(),
        sums: MaybeUninit::uninit(),
        out,
    };
    walk(&mut product, len / 256, columns.len());
}
