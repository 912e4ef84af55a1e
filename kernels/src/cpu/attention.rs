//! Attention over paged keys and values, along the parents of each node.
//!
//! Keys are taken in runs of [`PAGE_TOKENS`] aligned to slot 0, ascending, with an online softmax. A node of a tree finds
//! its ancestors' rows by slot, a plain chain finds them in place; the float operations are the same, so both give the
//! same bits. A window only leaves keys out; a draft block sees all rows of its segment, in place.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use half::f16;

use crate::buffer::KvValues;
use crate::cpu::lanes::{LANES, Lanes, Op, f_exp, f_max_lane, f_sigmoid, f_sum};
use crate::cpu::matmul::Shared;
use crate::device::{
    HeadNorm, KvLayer, PAGE_TOKENS, RopeArgs, RopeStyle, Segment, Visibility, Window,
};

/// A row of the batch, ready to attend. Indices count from slot 0 on along what the node sees: an index is a slot,
/// except on a tree's path.
#[derive(Debug)]
pub(crate) struct Node<'a> {
    pub row: usize,
    /// Position that queries and keys are rotated to.
    pub position: usize,
    pub pages: &'a [u32],
    /// Indices that it sees; never empty.
    pub seen: Range<usize>,
    /// Slots of the indices from the committed length on, where they differ from the indices.
    pub path: Option<(usize, Vec<u32>)>,
}

/// Where the nodes of the batch stand and which slots they see.
pub(crate) fn nodes<'a>(
    segments: &'a [Segment<'a>],
    visibility: Visibility,
    window: Option<Window>,
) -> Vec<Node<'a>> {
    let mut out = Vec::new();
    for segment in segments {
        match visibility {
            Visibility::Ancestors => push_tree(&mut out, segment, window),
            Visibility::All => push_block(&mut out, segment, window),
        }
    }
    out
}

/// Indices that the node at index `at` sees of the `end` that there are.
fn seen(at: usize, end: usize, window: Option<Window>) -> Range<usize> {
    match window {
        None => 0..end,
        Some(Window { tokens, causal }) => {
            let last = if causal { 0 } else { tokens - 1 };
            (at + 1).saturating_sub(tokens)..at.saturating_add(last).saturating_add(1).min(end)
        }
    }
}

/// Nodes of which each sees all others.
fn push_block<'a>(out: &mut Vec<Node<'a>>, segment: &Segment<'a>, window: Option<Window>) {
    let end = segment.committed_len + segment.parents.len();
    for (i, at) in (segment.committed_len..end).enumerate() {
        out.push(Node {
            row: segment.first_row + i,
            position: segment.first_position + at,
            pages: segment.pages,
            seen: seen(at, end, window),
            path: None,
        });
    }
}

/// Nodes that see their ancestors.
fn push_tree<'a>(out: &mut Vec<Node<'a>>, segment: &Segment<'a>, window: Option<Window>) {
    let chain = segment
        .parents
        .iter()
        .enumerate()
        .all(|(i, &p)| p + 1 == i as i32);
    let first = out.len();
    for (i, &parent) in segment.parents.iter().enumerate() {
        let at = match usize::try_from(parent) {
            Ok(parent) => out[first + parent].seen.end,
            Err(_) => segment.committed_len,
        };
        let path = (!chain).then(|| {
            let mut slots = vec![0; at + 1 - segment.committed_len];
            let mut node = i as i32;
            for slot in slots.iter_mut().rev() {
                *slot = (segment.committed_len + node as usize) as u32;
                node = segment.parents[node as usize];
            }
            (segment.committed_len, slots)
        });
        out.push(Node {
            row: segment.first_row + i,
            position: segment.first_position + at,
            pages: segment.pages,
            seen: seen(at, at + 1, window),
            path,
        });
    }
}

/// RMS norm of one head, in place, plain order.
fn norm_head(x: &mut [f32], gamma: &[f32], eps: f32) {
    let square: f32 = x.iter().map(|v| v * v).sum();
    let inverse = 1.0 / (square / x.len() as f32 + eps).sqrt();
    for (x, g) in x.iter_mut().zip(gamma) {
        *x = *x * inverse * g;
    }
}

fn rotate(x: &mut [f32], style: RopeStyle, turns: &[(f32, f32)]) {
    let half = turns.len();
    for (i, &(sin, cos)) in turns.iter().enumerate() {
        let (a, b) = match style {
            RopeStyle::Neox => (i, i + half),
            RopeStyle::Adjacent => (2 * i, 2 * i + 1),
        };
        let (u, v) = (x[a], x[b]);
        x[a] = u * cos - v * sin;
        x[b] = v * cos + u * sin;
    }
}

/// Norms and rotates the heads of one row. `stride`: from one head to the next.
pub(crate) fn prepare_heads(
    row: &mut [f32],
    stride: usize,
    head_dim: usize,
    norm: Gamma<'_>,
    rope: RopeArgs<'_>,
    position: usize,
) {
    let turns: Vec<(f32, f32)> = rope
        .inv_freq
        .iter()
        .map(|f| (position as f32 * f).sin_cos())
        .collect();
    for head in row.chunks_exact_mut(stride) {
        let head = &mut head[..head_dim];
        if let Some((gamma, eps)) = norm {
            norm_head(head, gamma, eps);
        }
        rotate(head, rope.style, &turns);
    }
}

/// Gamma and epsilon of a norm of heads.
pub(crate) type Gamma<'a> = Option<(&'a [f32], f32)>;

/// Gammas of query and key norms as host slices.
pub(crate) fn gammas<'a>(norm: Option<HeadNorm<'a>>) -> (Gamma<'a>, Gamma<'a>) {
    match norm {
        Some(n) => (
            Some((n.q_gamma.host(), n.eps)),
            Some((n.k_gamma.host(), n.eps)),
        ),
        None => (None, None),
    }
}

/// Index of the first element of (page of `slot`, head) in a layer's keys or values.
fn page_base(
    pages: &[u32],
    slot: usize,
    head: usize,
    num_kv_heads: usize,
    head_dim: usize,
) -> usize {
    (pages[slot / PAGE_TOKENS] as usize * num_kv_heads + head) * PAGE_TOKENS * head_dim
}

/// Writes one row of keys (transposed) and values to its slot.
pub(crate) fn store_row(
    cache: &mut KvLayer,
    pages: &[u32],
    slot: usize,
    head_dim: usize,
    k: &[f32],
    v: &[f32],
) {
    let heads = k.len() / head_dim;
    let token = slot % PAGE_TOKENS;
    let rows = k.chunks_exact(head_dim).zip(v.chunks_exact(head_dim));
    for (head, (k, v)) in rows.enumerate() {
        let base = page_base(pages, slot, head, heads, head_dim);
        cache.k.scatter(base + token, PAGE_TOKENS, k);
        cache.v.write(base + token * head_dim, v);
    }
}

/// Moves one row of keys and values to another slot.
pub(crate) fn move_row(
    cache: &mut KvLayer,
    pages: &[u32],
    shape: (usize, usize),
    from: usize,
    to: usize,
) {
    let (heads, head_dim) = shape;
    for head in 0..heads {
        let source = page_base(pages, from, head, heads, head_dim);
        let target = page_base(pages, to, head, heads, head_dim);
        let (from, to) = (from % PAGE_TOKENS, to % PAGE_TOKENS);
        cache
            .k
            .copy_within(source + from, target + to, PAGE_TOKENS, head_dim);
        cache.v.copy_within(
            source + from * head_dim,
            target + to * head_dim,
            1,
            head_dim,
        );
    }
}

/// A value of the cache as attention reads it: in f32, without rounding.
trait KvValue: Copy {
    /// # Safety
    /// As [`Lanes`]: 16 values can be read.
    unsafe fn load<L: Lanes>(source: *const Self) -> L::F;
}

impl KvValue for f32 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(source: *const Self) -> L::F {
        L::f_load(source)
    }
}

impl KvValue for f16 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(source: *const Self) -> L::F {
        L::f_load_f16(source.cast())
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
    pub q: &'a [f32],
    pub k: KvValues<'a>,
    pub v: KvValues<'a>,
    pub out: Shared,
}

impl Op for Attend<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        loop {
            let item = self.next.fetch_add(1, Ordering::Relaxed);
            if item >= self.nodes.len() * self.num_kv_heads {
                return;
            }
            let node = &self.nodes[item / self.num_kv_heads];
            let kv_head = item % self.num_kv_heads;
            let group = self.num_heads / self.num_kv_heads;
            for head in kv_head * group..(kv_head + 1) * group {
                match (self.k, self.v) {
                    (KvValues::F32(k), KvValues::F32(v)) => {
                        self.head::<L, f32>(k, v, node, head, kv_head);
                    }
                    (KvValues::F16(k), KvValues::F16(v)) => {
                        self.head::<L, f16>(k, v, node, head, kv_head);
                    }
                    _ => panic!("keys and values of a layer are of one type"),
                }
            }
        }
    }
}

impl Attend<'_> {
    /// Scaled products of `q` with all keys of the page that holds `slot`: each lane sums over D as a loop of fused
    /// multiply-adds would.
    #[inline(always)]
    unsafe fn score_page<L: Lanes, E: KvValue>(
        &self,
        k: &[E],
        node: &Node<'_>,
        kv_head: usize,
        q: &[f32],
        slot: usize,
        scores: &mut [f32; PAGE_TOKENS],
    ) {
        let dim = self.head_dim;
        let scale = L::f_splat(1.0 / (dim as f32).sqrt());
        let base = page_base(node.pages, slot, kv_head, self.num_kv_heads, dim);
        let keys = k[base..][..dim * PAGE_TOKENS].as_ptr();
        let mut sums = [L::f_splat(0.0); PAGE_TOKENS / LANES];
        for (d, &q) in q.iter().enumerate().take(dim) {
            let q = L::f_splat(q);
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = L::f_fma(q, E::load::<L>(keys.add(d * PAGE_TOKENS + i * LANES)), *sum);
            }
        }
        for (i, &sum) in sums.iter().enumerate() {
            L::f_store(scores.as_mut_ptr().add(i * LANES), L::f_mul(sum, scale));
        }
    }

    #[inline(always)]
    unsafe fn head<L: Lanes, E: KvValue>(
        &self,
        k: &[E],
        v: &[E],
        node: &Node<'_>,
        head: usize,
        kv_head: usize,
    ) {
        let dim = self.head_dim;
        let q_stride = if self.gated { 2 * dim } else { dim };
        let q = &self.q[(node.row * self.num_heads + head) * q_stride..][..q_stride];
        let out = self.out.at((node.row * self.num_heads + head) * dim);
        let vectors = dim / LANES;
        for d in 0..vectors {
            L::f_store(out.add(d * LANES), L::f_splat(0.0));
        }
        let (mut max, mut total) = (f32::NEG_INFINITY, 0.0_f32);
        let mut scores = [0.0_f32; PAGE_TOKENS];
        for block in node.seen.start / PAGE_TOKENS..node.seen.end.div_ceil(PAGE_TOKENS) {
            let first = block * PAGE_TOKENS;
            let count = (node.seen.end - first).min(PAGE_TOKENS);
            // Keys of this block that have left the window.
            let skip = node.seen.start.saturating_sub(first);
            let slot_of = |index: usize| match &node.path {
                Some((committed, slots)) if index >= *committed => {
                    slots[index - committed] as usize
                }
                _ => index,
            };
            let in_place = match &node.path {
                Some((committed, _)) => first + count <= *committed,
                None => true,
            };
            if in_place {
                self.score_page::<L, E>(k, node, kv_head, q, first, &mut scores);
            } else {
                // Slots ascend along a path, so each page is scored once.
                let (mut page, mut page_scores) = (usize::MAX, [0.0_f32; PAGE_TOKENS]);
                for i in skip..count {
                    let slot = slot_of(first + i);
                    if slot / PAGE_TOKENS != page {
                        page = slot / PAGE_TOKENS;
                        self.score_page::<L, E>(k, node, kv_head, q, slot, &mut page_scores);
                    }
                    scores[i] = page_scores[slot % PAGE_TOKENS];
                }
            }
            scores[..skip].fill(f32::NEG_INFINITY);
            scores[count..].fill(f32::NEG_INFINITY);
            let s = [0, 1, 2, 3].map(|i| L::f_load(scores.as_ptr().add(i * LANES)));
            let top = f_max_lane::<L>(L::f_max(L::f_max(s[0], s[1]), L::f_max(s[2], s[3])));
            let new_max = max.max(top);
            // `e^-inf` is wanted where nothing came before.
            let shrink = if max == f32::NEG_INFINITY {
                0.0
            } else {
                (max - new_max).exp()
            };
            max = new_max;
            let p = s.map(|s| f_exp::<L>(L::f_sub(s, L::f_splat(new_max))));
            for (i, &p) in p.iter().enumerate() {
                L::f_store(scores.as_mut_ptr().add(i * LANES), p);
            }
            let sum = f_sum::<L>(L::f_add(L::f_add(p[0], p[1]), L::f_add(p[2], p[3])));
            total = total.mul_add(shrink, sum);
            let mut rows = [std::ptr::null::<E>(); PAGE_TOKENS];
            for (i, row) in rows.iter_mut().enumerate().take(count).skip(skip) {
                let slot = slot_of(first + i);
                let base = page_base(node.pages, slot, kv_head, self.num_kv_heads, dim);
                *row = v[base + slot % PAGE_TOKENS * dim..].as_ptr();
            }
            for d in 0..vectors {
                let mut acc = L::f_mul(L::f_load(out.add(d * LANES)), L::f_splat(shrink));
                for i in skip..count {
                    acc = L::f_fma(
                        L::f_splat(scores[i]),
                        E::load::<L>(rows[i].add(d * LANES)),
                        acc,
                    );
                }
                L::f_store(out.add(d * LANES), acc);
            }
        }
        for d in 0..vectors {
            let mut value = L::f_div(L::f_load(out.add(d * LANES)), L::f_splat(total));
            if self.gated {
                let gate = L::f_load(q.as_ptr().add(dim + d * LANES));
                value = L::f_mul(value, f_sigmoid::<L>(gate));
            }
            L::f_store(out.add(d * LANES), value);
        }
    }
}
