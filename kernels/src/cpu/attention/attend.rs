//! Every node's query heads over what the node sees.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::buffer::KvValues;
use crate::cpu::attention::pages::{Kept, Rows};
use crate::cpu::attention::{Node, page_base};
use crate::cpu::lanes::{LANES, Lanes, Op, f_exp, f_max_lane, f_sigmoid, f_sum};
use crate::cpu::matmul::Shared;
use crate::device::PAGE_TOKENS;
use crate::kv::{self, Format, KvType, Side};

/// Vectors of dims whose sums are computed beside each other.
const WIDE: usize = 4;

/// A value as it is read: in f32, without rounding.
trait Float: Copy {
    /// # Safety
    /// As [`Lanes`]: 16 values can be read.
    unsafe fn load<L: Lanes>(source: *const Self) -> L::F;
}

impl Float for f32 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(source: *const Self) -> L::F {
        L::f_load(source)
    }
}

/// f16.
impl Float for u16 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(source: *const Self) -> L::F {
        L::f_load_f16(source)
    }
}

/// A thread's part: claims (node, kv head) pairs.
pub(crate) struct Attend<'a> {
    pub nodes: &'a [Node<'a>],
    pub next: &'a AtomicUsize,
    pub num_heads: usize,
    pub num_kv_heads: usize,
    pub head_dim: usize,
    pub gated: bool,
    /// Values are kept rotated.
    pub rotated: bool,
    pub q: &'a [f32],
    pub k: KvValues<'a>,
    pub v: KvValues<'a>,
    pub out: Shared,
}

/// What a query head has gathered so far, beside its output.
#[derive(Clone, Copy)]
struct Head {
    max: f32,
    total: f32,
    /// Scores of the run of keys at hand, then their weights.
    scores: [f32; PAGE_TOKENS],
    /// What everything before that run is multiplied by.
    shrink: f32,
}

impl Head {
    const NEW: Self = Self {
        max: f32::NEG_INFINITY,
        total: 0.0,
        scores: [0.0; PAGE_TOKENS],
        shrink: 0.0,
    };

    /// Weights of the keys in place of their scores.
    #[inline(always)]
    unsafe fn weigh<L: Lanes>(&mut self) {
        let scores = &mut self.scores;
        // Loops, not `map`: its closure may become a function of its own, without the instruction set.
        let mut s = [L::f_splat(0.0); PAGE_TOKENS / LANES];
        for (i, s) in s.iter_mut().enumerate() {
            *s = L::f_load(scores.as_ptr().add(i * LANES));
        }
        let top = f_max_lane::<L>(L::f_max(L::f_max(s[0], s[1]), L::f_max(s[2], s[3])));
        let new_max = self.max.max(top);
        // `e^-inf` is wanted where nothing came before.
        self.shrink = if self.max == f32::NEG_INFINITY {
            0.0
        } else {
            (self.max - new_max).exp()
        };
        self.max = new_max;
        let mut p = s;
        for (i, p) in p.iter_mut().enumerate() {
            *p = f_exp::<L>(L::f_sub(*p, L::f_splat(new_max)));
            L::f_store(scores.as_mut_ptr().add(i * LANES), *p);
        }
        let sum = f_sum::<L>(L::f_add(L::f_add(p[0], p[1]), L::f_add(p[2], p[3])));
        self.total = self.total.mul_add(self.shrink, sum);
    }
}

/// Memory of a thread: heads of a group, and room for what is not read in place.
struct Room {
    heads: Vec<Head>,
    /// Scores of whole pages, where a run of keys has some tokens of each.
    in_pages: Vec<Head>,
    keys: Vec<f32>,
    /// \[PAGE_TOKENS, D\].
    values: Vec<f32>,
}

impl Op for Attend<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let page = PAGE_TOKENS * self.head_dim;
        let mut room = Room {
            heads: vec![Head::NEW; self.num_heads / self.num_kv_heads],
            in_pages: vec![Head::NEW; self.num_heads / self.num_kv_heads],
            keys: vec![0.0; self.keys().room(page)],
            values: vec![0.0; self.values().room(page)],
        };
        loop {
            let item = self.next.fetch_add(1, Ordering::Relaxed);
            if item >= self.nodes.len() * self.num_kv_heads {
                return;
            }
            let node = &self.nodes[item / self.num_kv_heads];
            self.group::<L>(node, item % self.num_kv_heads, &mut room);
        }
    }
}

/// Of a group of heads, as many as are computed beside each other: all alike, as far as that goes.
fn at_once<L: Lanes>(heads: usize) -> usize {
    heads.div_ceil(heads.div_ceil(L::HEADS))
}

/// Where a node finds a run of keys: indices `first..first + count`, of which it sees those from `skip` on.
#[derive(Clone, Copy)]
struct Run<'a> {
    node: &'a Node<'a>,
    first: usize,
    skip: usize,
    count: usize,
}

impl Run<'_> {
    fn slot(&self, i: usize) -> usize {
        let index = self.first + i;
        match &self.node.path {
            Some((committed, slots)) if index >= *committed => slots[index - committed] as usize,
            _ => index,
        }
    }

    fn is_in_place(&self) -> bool {
        match &self.node.path {
            Some((committed, _)) => self.first + self.count <= *committed,
            None => true,
        }
    }
}

impl Attend<'_> {
    fn kept<'a>(&self, side: Side, units: KvValues<'a>) -> Kept<'a> {
        Kept {
            format: Format {
                kv_type: units.kv_type(),
                side,
                head_dim: self.head_dim,
            },
            units,
        }
    }

    fn keys(&self) -> Kept<'_> {
        self.kept(Side::Keys, self.k)
    }

    fn values(&self) -> Kept<'_> {
        self.kept(Side::Values, self.v)
    }

    /// A query head of a node, and its gate if there is one.
    fn query(&self, node: &Node<'_>, head: usize) -> &[f32] {
        let stride = self.query_len();
        &self.q[(node.row * self.num_heads + head) * stride..][..stride]
    }

    /// Of a query head and its gate.
    fn query_len(&self) -> usize {
        self.head_dim * if self.gated { 2 } else { 1 }
    }

    fn out_at(&self, node: &Node<'_>, head: usize) -> *mut f32 {
        self.out
            .at((node.row * self.num_heads + head) * self.head_dim)
    }

    /// Attends for all query heads of a key head, which read the same keys and values.
    #[inline(always)]
    unsafe fn group<L: Lanes>(&self, node: &Node<'_>, kv_head: usize, room: &mut Room) {
        let first_head = kv_head * room.heads.len();
        for i in 0..room.heads.len() {
            room.heads[i] = Head::NEW;
            let out = self.out_at(node, first_head + i);
            for d in 0..self.head_dim / LANES {
                L::f_store(out.add(d * LANES), L::f_splat(0.0));
            }
        }
        for block in node.seen.start / PAGE_TOKENS..node.seen.end.div_ceil(PAGE_TOKENS) {
            let first = block * PAGE_TOKENS;
            let run = Run {
                node,
                first,
                // Keys of this block that have left the window.
                skip: node.seen.start.saturating_sub(first),
                count: (node.seen.end - first).min(PAGE_TOKENS),
            };
            self.score::<L>(run, kv_head, room);
            for head in &mut room.heads {
                head.scores[..run.skip].fill(f32::NEG_INFINITY);
                head.scores[run.count..].fill(f32::NEG_INFINITY);
                head.weigh::<L>();
            }
            self.mix::<L>(run, kv_head, room);
        }
        for (i, head) in room.heads.iter().enumerate() {
            self.finish::<L>(node, first_head + i, head.total);
        }
    }

    /// Scores of a run of keys for all heads.
    #[inline(always)]
    unsafe fn score<L: Lanes>(&self, run: Run<'_>, kv_head: usize, room: &mut Room) {
        let (kept, node) = (self.keys(), run.node);
        let (first_head, stride) = (kv_head * room.heads.len(), self.query_len());
        let queries = &self.q[(node.row * self.num_heads + first_head) * stride..]
            [..room.heads.len() * stride];
        let base = |slot| page_base(kept.format, node.pages, slot, kv_head, self.num_kv_heads);
        if run.is_in_place() {
            let keys = kept.keys::<L>(base(run.first), &mut room.keys);
            self.score_page::<L>(keys, queries, &mut room.heads);
            return;
        }
        // Slots ascend along a path, so each page is scored once.
        let mut i = run.skip;
        while i < run.count {
            let page = run.slot(i) / PAGE_TOKENS;
            let end = (i..run.count).find(|&i| run.slot(i) / PAGE_TOKENS != page);
            let end = end.unwrap_or(run.count);
            let keys = kept.keys::<L>(base(run.slot(i)), &mut room.keys);
            self.score_page::<L>(keys, queries, &mut room.in_pages);
            for (head, in_page) in room.heads.iter_mut().zip(&room.in_pages) {
                for i in i..end {
                    head.scores[i] = in_page.scores[run.slot(i) % PAGE_TOKENS];
                }
            }
            i = end;
        }
    }

    #[inline(always)]
    unsafe fn score_page<L: Lanes>(&self, keys: Rows, queries: &[f32], heads: &mut [Head]) {
        match keys {
            Rows::F32(keys) => self.score_floats::<L, f32>(keys, queries, heads),
            Rows::F16(keys) => self.score_floats::<L, u16>(keys, queries, heads),
        }
    }

    /// Scaled products of the queries with all keys of a page.
    #[inline(always)]
    unsafe fn score_floats<L: Lanes, E: Float>(
        &self,
        keys: *const E,
        queries: &[f32],
        heads: &mut [Head],
    ) {
        let at_once = at_once::<L>(heads.len());
        let queries = queries.chunks(at_once * self.query_len());
        for (heads, queries) in heads.chunks_mut(at_once).zip(queries) {
            let queries = queries.as_ptr();
            match heads {
                [_, _, _, _, _, _] => self.score_some::<L, E, 6>(keys, queries, heads),
                [_, _, _, _, _] => self.score_some::<L, E, 5>(keys, queries, heads),
                [_, _, _, _] => self.score_some::<L, E, 4>(keys, queries, heads),
                [_, _, _] => self.score_some::<L, E, 3>(keys, queries, heads),
                [_, _] => self.score_some::<L, E, 2>(keys, queries, heads),
                _ => self.score_some::<L, E, 1>(keys, queries, heads),
            }
        }
    }

    /// Of `H` heads, for which keys are loaded once: each lane sums over D as a loop of fused multiply-adds would.
    #[inline(always)]
    unsafe fn score_some<L: Lanes, E: Float, const H: usize>(
        &self,
        keys: *const E,
        queries: *const f32,
        heads: &mut [Head],
    ) {
        let (dim, stride) = (self.head_dim, self.query_len());
        let scale = L::f_splat(1.0 / (dim as f32).sqrt());
        let mut sums = [[L::f_splat(0.0); PAGE_TOKENS / LANES]; H];
        for d in 0..dim {
            let mut key = [L::f_splat(0.0); PAGE_TOKENS / LANES];
            for (i, key) in key.iter_mut().enumerate() {
                *key = E::load::<L>(keys.add(d * PAGE_TOKENS + i * LANES));
            }
            for (h, sums) in sums.iter_mut().enumerate() {
                let q = L::f_splat(*queries.add(h * stride + d));
                for (sum, &key) in sums.iter_mut().zip(&key) {
                    *sum = L::f_fma(q, key, *sum);
                }
            }
        }
        for (head, sums) in heads.iter_mut().zip(&sums) {
            for (i, &sum) in sums.iter().enumerate() {
                L::f_store(
                    head.scores.as_mut_ptr().add(i * LANES),
                    L::f_mul(sum, scale),
                );
            }
        }
    }

    /// Adds the weighted values of a run of keys to the outputs of all heads.
    #[inline(always)]
    unsafe fn mix<L: Lanes>(&self, run: Run<'_>, kv_head: usize, room: &mut Room) {
        let (kept, node, dim) = (self.values(), run.node, self.head_dim);
        let mut floats = [std::ptr::null::<f32>(); PAGE_TOKENS];
        let mut halves = [std::ptr::null::<u16>(); PAGE_TOKENS];
        for i in run.skip..run.count {
            let slot = run.slot(i);
            let base = page_base(kept.format, node.pages, slot, kv_head, self.num_kv_heads);
            let room = match room.values.is_empty() {
                true => &mut [],
                false => &mut room.values[i * dim..][..dim],
            };
            match kept.values::<L>(base, slot % PAGE_TOKENS, room) {
                Rows::F32(row) => floats[i] = row,
                Rows::F16(row) => halves[i] = row,
            }
        }
        let out = self.out_at(node, kv_head * room.heads.len());
        match kept.format.kv_type {
            KvType::F16 => self.mix_rows::<L, u16>(&halves, run, &room.heads, out),
            _ => self.mix_rows::<L, f32>(&floats, run, &room.heads, out),
        }
    }

    #[inline(always)]
    unsafe fn mix_rows<L: Lanes, E: Float>(
        &self,
        rows: &[*const E; PAGE_TOKENS],
        run: Run<'_>,
        heads: &[Head],
        out: *mut f32,
    ) {
        let at_once = at_once::<L>(heads.len());
        for (i, heads) in heads.chunks(at_once).enumerate() {
            let out = out.add(i * at_once * self.head_dim);
            match heads {
                [_, _, _, _, _, _] => self.mix_some::<L, E, 6>(rows, run, heads, out),
                [_, _, _, _, _] => self.mix_some::<L, E, 5>(rows, run, heads, out),
                [_, _, _, _] => self.mix_some::<L, E, 4>(rows, run, heads, out),
                [_, _, _] => self.mix_some::<L, E, 3>(rows, run, heads, out),
                [_, _] => self.mix_some::<L, E, 2>(rows, run, heads, out),
                _ => self.mix_some::<L, E, 1>(rows, run, heads, out),
            }
        }
    }

    /// Of `H` heads, for which values are loaded once.
    #[inline(always)]
    unsafe fn mix_some<L: Lanes, E: Float, const H: usize>(
        &self,
        rows: &[*const E; PAGE_TOKENS],
        run: Run<'_>,
        heads: &[Head],
        out: *mut f32,
    ) {
        let mut d = 0;
        while d + WIDE * LANES <= self.head_dim {
            self.mix_dims::<L, E, H, WIDE>(rows, run, heads, out, d);
            d += WIDE * LANES;
        }
        while d < self.head_dim {
            self.mix_dims::<L, E, H, 1>(rows, run, heads, out, d);
            d += LANES;
        }
    }

    /// Of `V` vectors of dims from `d` on, whose sums do not wait for each other: each adds row after row.
    #[inline(always)]
    unsafe fn mix_dims<L: Lanes, E: Float, const H: usize, const V: usize>(
        &self,
        rows: &[*const E; PAGE_TOKENS],
        run: Run<'_>,
        heads: &[Head],
        out: *mut f32,
        d: usize,
    ) {
        let at = |h: usize, v: usize| out.add(h * self.head_dim + d + v * LANES);
        let mut sums = [[L::f_splat(0.0); V]; H];
        for (h, sums) in sums.iter_mut().enumerate() {
            for (v, sum) in sums.iter_mut().enumerate() {
                *sum = L::f_mul(L::f_load(at(h, v)), L::f_splat(heads[h].shrink));
            }
        }
        for i in run.skip..run.count {
            let mut value = [L::f_splat(0.0); V];
            for (v, value) in value.iter_mut().enumerate() {
                *value = E::load::<L>(rows[i].add(d + v * LANES));
            }
            for (h, sums) in sums.iter_mut().enumerate() {
                let weight = L::f_splat(heads[h].scores[i]);
                for (sum, &value) in sums.iter_mut().zip(&value) {
                    *sum = L::f_fma(weight, value, *sum);
                }
            }
        }
        for (h, sums) in sums.iter().enumerate() {
            for (v, &sum) in sums.iter().enumerate() {
                L::f_store(at(h, v), sum);
            }
        }
    }

    /// Divides by the sum of the weights, takes the values' rotation back, and applies the gate.
    #[inline(always)]
    unsafe fn finish<L: Lanes>(&self, node: &Node<'_>, head: usize, total: f32) {
        let (dim, q, out) = (
            self.head_dim,
            self.query(node, head),
            self.out_at(node, head),
        );
        for d in (0..dim).step_by(LANES) {
            let value = L::f_div(L::f_load(out.add(d)), L::f_splat(total));
            L::f_store(out.add(d), value);
        }
        if self.rotated {
            kv::rotate_back(std::slice::from_raw_parts_mut(out, dim));
        }
        if self.gated {
            for d in (0..dim).step_by(LANES) {
                let gate = f_sigmoid::<L>(L::f_load(q.as_ptr().add(dim + d)));
                L::f_store(out.add(d), L::f_mul(L::f_load(out.add(d)), gate));
            }
        }
    }
}
