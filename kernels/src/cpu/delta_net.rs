//! Gated DeltaNet: causal convolution, delta rule, gated norm.
//!
//! Source: "Gated Delta Networks" (arXiv 2412.06464) in the form of Qwen3.5. Each step decays, reads, corrects, then
//! answers from the corrected state. A tree is walked depth first; the state after each node of the current path is
//! kept (columns of one head, in cache), so memory grows with depth and never with the number of nodes.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::cpu::lanes::{LANES, Lanes, Op, f_sigmoid, f_sum};
use crate::cpu::matmul::Shared;
use crate::device::{DeltaNetShape, Segment};

/// Inputs of the recurrence, after convolution and normalisation.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    /// \[N, channels\]: q (scaled), k (unit length), v.
    pub qkv: Vec<f32>,
    /// \[N, Hv\]: e^g.
    pub decay: Vec<f32>,
    /// \[N, Hv\]: beta after the sigmoid.
    pub beta: Vec<f32>,
}

/// What a row needs besides its neighbours.
#[derive(Clone, Copy)]
pub(crate) struct Weights<'a> {
    pub conv: &'a [f32],
    pub a: &'a [f32],
    pub dt_bias: &'a [f32],
}

fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// A thread's part of the convolution: claims (row, head) pairs, of q, then k, then v heads.
pub(crate) struct Convolve<'a> {
    pub shape: DeltaNetShape,
    pub weights: Weights<'a>,
    /// \[rows, taps\]: the row of channels that each tap multiplies.
    pub taps: &'a [&'a [f32]],
    /// Row of the batch that each row is.
    pub rows: &'a [usize],
    pub next: &'a AtomicUsize,
    /// \[N, channels\].
    pub out: Shared,
    /// \[N, Hv\].
    pub alpha: &'a [f32],
    /// \[N, Hv\].
    pub beta: &'a [f32],
    /// \[N, Hv\].
    pub decay: Shared,
    /// \[N, Hv\].
    pub strength: Shared,
}

impl Op for Convolve<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let (hk, hv) = (self.shape.num_k_heads, self.shape.num_v_heads);
        let (dk, dv) = (self.shape.k_dim, self.shape.v_dim);
        let heads = 2 * hk + hv;
        let scale = 1.0 / (dk as f32).sqrt();
        loop {
            let item = self.next.fetch_add(1, Ordering::Relaxed);
            if item >= self.rows.len() * heads {
                return;
            }
            let (row, head) = (item / heads, item % heads);
            let taps = &self.taps[row * self.shape.conv_taps..][..self.shape.conv_taps];
            let out = self.out.at(self.rows[row] * self.shape.conv_channels());
            if head == 0 {
                self.gates(self.rows[row] * hv, hv);
            }
            if head < 2 * hk {
                self.head::<L>(taps, head * dk, dk, out);
                let scale = if head < hk { scale } else { 1.0 };
                unit_length::<L>(out.add(head * dk), dk, scale);
            } else {
                self.head::<L>(taps, 2 * hk * dk + (head - 2 * hk) * dv, dv, out);
            }
        }
    }
}

impl Convolve<'_> {
    /// `silu` of the weighted taps of `len` channels from `first` on.
    #[inline(always)]
    unsafe fn head<L: Lanes>(&self, taps: &[&[f32]], first: usize, len: usize, out: *mut f32) {
        let n = taps.len();
        for channel in (first..first + len).step_by(LANES) {
            let count = LANES.min(first + len - channel);
            let weights = &self.weights.conv[channel * n..][..count * n];
            let mut sums = [0.0_f32; LANES];
            for (tap, row) in taps.iter().enumerate() {
                let row = &row[channel..][..count];
                for (lane, value) in row.iter().enumerate() {
                    sums[lane] += weights[lane * n + tap] * value;
                }
            }
            let sum = L::f_load(sums.as_ptr());
            store_some::<L>(out.add(channel), count, L::f_mul(sum, f_sigmoid::<L>(sum)));
        }
    }

    /// Decay and write strength of the row whose values begin at `first`.
    unsafe fn gates(&self, first: usize, heads: usize) {
        for head in 0..heads {
            let gate = softplus(self.alpha[first + head] + self.weights.dt_bias[head]);
            *self.decay.at(first + head) = (self.weights.a[head] * gate).exp();
            *self.strength.at(first + head) = 1.0 / (1.0 + (-self.beta[first + head]).exp());
        }
    }
}

/// Scales a head to the length `scale`.
#[inline(always)]
unsafe fn unit_length<L: Lanes>(head: *mut f32, len: usize, scale: f32) {
    let mut squares = L::f_splat(0.0);
    for at in (0..len).step_by(LANES) {
        let x = load_some::<L>(head.add(at), LANES.min(len - at));
        squares = L::f_fma(x, x, squares);
    }
    let inverse = L::f_splat(scale / (f_sum::<L>(squares) + 1e-6).sqrt());
    for at in (0..len).step_by(LANES) {
        let count = LANES.min(len - at);
        let x = load_some::<L>(head.add(at), count);
        store_some::<L>(head.add(at), count, L::f_mul(x, inverse));
    }
}

/// The first `count` lanes; the others are 0.
#[inline(always)]
unsafe fn load_some<L: Lanes>(source: *const f32, count: usize) -> L::F {
    if count == LANES {
        return L::f_load(source);
    }
    let mut lanes = [0.0_f32; LANES];
    std::ptr::copy_nonoverlapping(source, lanes.as_mut_ptr(), count);
    L::f_load(lanes.as_ptr())
}

/// Stores the first `count` lanes.
#[inline(always)]
unsafe fn store_some<L: Lanes>(target: *mut f32, count: usize, value: L::F) {
    if count == LANES {
        return L::f_store(target, value);
    }
    let mut lanes = [0.0_f32; LANES];
    L::f_store(lanes.as_mut_ptr(), value);
    std::ptr::copy_nonoverlapping(lanes.as_ptr(), target, count);
}

/// One step of a walk: the node, and how many nodes lie above it.
type Visit = (usize, usize);

/// Nodes depth first, children in index order.
pub(crate) fn depth_first(parents: &[i32]) -> Vec<Visit> {
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); parents.len() + 1];
    for (i, &parent) in parents.iter().enumerate() {
        children[(parent + 1) as usize].push(i);
    }
    let mut stack: Vec<Visit> = children[0].iter().rev().map(|&n| (n, 0)).collect();
    let mut out = Vec::with_capacity(parents.len());
    while let Some((node, depth)) = stack.pop() {
        out.push((node, depth));
        stack.extend(children[node + 1].iter().rev().map(|&n| (n, depth + 1)));
    }
    out
}

/// A thread's part: claims (segment, value head) pairs.
pub(crate) struct Recur<'a> {
    pub shape: DeltaNetShape,
    pub segments: &'a [Segment<'a>],
    pub next: &'a AtomicUsize,
    pub prepared: &'a Prepared,
    pub z: &'a [f32],
    pub gamma: &'a [f32],
    pub eps: f32,
    pub state: Shared,
    /// None: only the state moves (commit).
    pub out: Option<Shared>,
}

impl Op for Recur<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let mut scratch = Vec::new();
        loop {
            let item = self.next.fetch_add(1, Ordering::Relaxed);
            if item >= self.segments.len() * self.shape.num_v_heads {
                return;
            }
            let (segment, head) = (
                &self.segments[item / self.shape.num_v_heads],
                item % self.shape.num_v_heads,
            );
            let mut column = 0;
            while column < self.shape.v_dim {
                if self.shape.v_dim - column >= 4 * LANES {
                    self.columns::<L, 4>(segment, head, column, &mut scratch);
                    column += 4 * LANES;
                } else {
                    self.columns::<L, 1>(segment, head, column, &mut scratch);
                    column += LANES;
                }
            }
            if let Some(out) = self.out {
                for node in 0..segment.parents.len() {
                    self.gated_norm::<L>(segment.first_row + node, head, out);
                }
            }
        }
    }
}

impl Recur<'_> {
    /// Walks the segment over `W` vectors of columns of one head.
    #[inline(always)]
    unsafe fn columns<L: Lanes, const W: usize>(
        &self,
        s: &Segment<'_>,
        head: usize,
        column: usize,
        scratch: &mut Vec<f32>,
    ) {
        let (dk, dv) = (self.shape.k_dim, self.shape.v_dim);
        let committed = self
            .state
            .at((s.state_index * self.shape.num_v_heads + head) * dk * dv + column);
        if s.advance {
            for node in 0..s.parents.len() {
                self.step::<L, W>(s.first_row + node, head, column, committed, dv);
            }
            return;
        }
        let width = W * LANES;
        let order = depth_first(s.parents);
        let deepest = order.iter().map(|v| v.1).max().unwrap_or(0);
        scratch.resize((deepest + 1) * dk * width, 0.0);
        for (node, depth) in order {
            let target = scratch.as_mut_ptr().add(depth * dk * width);
            for i in 0..dk {
                for w in 0..W {
                    let from = if depth == 0 {
                        committed.add(i * dv + w * LANES).cast_const()
                    } else {
                        target
                            .sub(dk * width)
                            .add(i * width + w * LANES)
                            .cast_const()
                    };
                    L::f_store(target.add(i * width + w * LANES), L::f_load(from));
                }
            }
            self.step::<L, W>(s.first_row + node, head, column, target, width);
        }
    }

    /// One token on a state whose rows are `stride` apart.
    #[inline(always)]
    unsafe fn step<L: Lanes, const W: usize>(
        &self,
        row: usize,
        head: usize,
        column: usize,
        state: *mut f32,
        stride: usize,
    ) {
        let shape = &self.shape;
        let (dk, dv, keys) = (shape.k_dim, shape.v_dim, shape.num_k_heads * shape.k_dim);
        let qkv = self.prepared.qkv.as_ptr().add(row * shape.conv_channels());
        let key_head = head % shape.num_k_heads;
        let (q, k) = (qkv.add(key_head * dk), qkv.add(keys + key_head * dk));
        let v = qkv.add(2 * keys + head * dv + column);
        let gate = row * shape.num_v_heads + head;
        let decay = L::f_splat(*self.prepared.decay.as_ptr().add(gate));
        let beta = L::f_splat(*self.prepared.beta.as_ptr().add(gate));
        let mut read = [L::f_splat(0.0); W];
        for i in 0..dk {
            let k = L::f_splat(*k.add(i));
            for (w, read) in read.iter_mut().enumerate() {
                let at = state.add(i * stride + w * LANES);
                let s = L::f_mul(L::f_load(at), decay);
                L::f_store(at, s);
                *read = L::f_fma(s, k, *read);
            }
        }
        let mut delta = read;
        for (w, delta) in delta.iter_mut().enumerate() {
            *delta = L::f_mul(beta, L::f_sub(L::f_load(v.add(w * LANES)), *delta));
        }
        let mut answer = [L::f_splat(0.0); W];
        for i in 0..dk {
            let (k, q) = (L::f_splat(*k.add(i)), L::f_splat(*q.add(i)));
            for w in 0..W {
                let at = state.add(i * stride + w * LANES);
                let s = L::f_fma(k, delta[w], L::f_load(at));
                L::f_store(at, s);
                answer[w] = L::f_fma(s, q, answer[w]);
            }
        }
        if let Some(out) = self.out {
            for (w, &answer) in answer.iter().enumerate() {
                L::f_store(
                    out.at((row * shape.num_v_heads + head) * dv + column + w * LANES),
                    answer,
                );
            }
        }
    }

    #[inline(always)]
    unsafe fn gated_norm<L: Lanes>(&self, row: usize, head: usize, out: Shared) {
        let dv = self.shape.v_dim;
        let at = (row * self.shape.num_v_heads + head) * dv;
        let mut square = 0.0;
        for i in 0..dv {
            let v = *out.at(at + i);
            square += v * v;
        }
        let inverse = L::f_splat(1.0 / (square / dv as f32 + self.eps).sqrt());
        for i in (0..dv).step_by(LANES) {
            let z = L::f_load(self.z.as_ptr().add(at + i));
            let gate = L::f_mul(z, f_sigmoid::<L>(z));
            let normed = L::f_mul(
                L::f_mul(L::f_load(out.at(at + i)), inverse),
                L::f_load(self.gamma.as_ptr().add(i)),
            );
            L::f_store(out.at(at + i), L::f_mul(normed, gate));
        }
    }
}
