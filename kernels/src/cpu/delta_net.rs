//! Gated DeltaNet: causal convolution, delta rule, gated norm.
//!
//! Source: "Gated Delta Networks" (arXiv 2412.06464) in the form of Qwen3.5. Each step decays, reads, corrects, then
//! answers from the corrected state. A tree is walked depth first; the state after each node of the current path is
//! kept (columns of one head, in cache), so memory grows with depth and never with the number of nodes.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::cpu::lanes::{LANES, Lanes, Op, f_sigmoid};
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

fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

fn unit_length(x: &mut [f32], scale: f32) {
    let square: f32 = x.iter().map(|v| v * v).sum();
    let inverse = scale / (square + 1e-6).sqrt();
    x.iter_mut().for_each(|v| *v *= inverse);
}

/// Convolves and normalises one row. `taps[j]` is the row that tap `j` multiplies.
pub(crate) fn prepare_row(shape: &DeltaNetShape, w: Weights<'_>, taps: &[&[f32]], qkv: &mut [f32]) {
    let n = taps.len();
    for (channel, out) in qkv.iter_mut().enumerate() {
        let weight = &w.conv[channel * n..][..n];
        let mut sum = 0.0;
        for (tap, weight) in taps.iter().zip(weight) {
            sum += weight * tap[channel];
        }
        *out = silu(sum);
    }
    let keys = shape.num_k_heads * shape.k_dim;
    for head in qkv[..keys].chunks_exact_mut(shape.k_dim) {
        unit_length(head, 1.0 / (shape.k_dim as f32).sqrt());
    }
    for head in qkv[keys..2 * keys].chunks_exact_mut(shape.k_dim) {
        unit_length(head, 1.0);
    }
}

/// Decay and write strength of one row.
pub(crate) fn prepare_gates(
    w: Weights<'_>,
    alpha: &[f32],
    beta: &[f32],
    decay: &mut [f32],
    strength: &mut [f32],
) {
    for head in 0..decay.len() {
        decay[head] = (w.a[head] * softplus(alpha[head] + w.dt_bias[head])).exp();
        strength[head] = 1.0 / (1.0 + (-beta[head]).exp());
    }
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
