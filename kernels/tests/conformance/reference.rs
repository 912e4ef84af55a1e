//! The operations as their definitions read, in f64 and plain loops.

use kernels::{DeltaNetShape, RopeStyle, Window};

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|v| f64::from(*v)).collect()
}

pub(crate) fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(a, b)| f64::from(*a) * f64::from(*b))
        .sum()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub(crate) fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

pub(crate) fn rms_norm(x: &[f64], gamma: &[f32], eps: f32) -> Vec<f64> {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let inverse = 1.0 / (mean + f64::from(eps)).sqrt();
    x.iter()
        .zip(gamma)
        .map(|(x, g)| x * inverse * f64::from(*g))
        .collect()
}

/// The node and its ancestors, oldest first.
pub(crate) fn path_to(parents: &[i32], node: usize) -> Vec<usize> {
    let mut path = vec![node];
    let mut at = parents[node];
    while at >= 0 {
        path.push(at as usize);
        at = parents[at as usize];
    }
    path.reverse();
    path
}

/// What attention needs to know of a model.
pub(crate) struct AttentionModel {
    pub num_heads: usize,
    pub num_kv_heads: usize,
    pub head_dim: usize,
    pub gated: bool,
    pub style: RopeStyle,
    pub inv_freq: Vec<f32>,
    /// Query gamma, key gamma, epsilon.
    pub head_norm: Option<(Vec<f32>, Vec<f32>, f32)>,
}

/// Committed keys (rotated) and values of one sequence.
#[derive(Clone, Default)]
pub(crate) struct Past {
    rows: Vec<(Vec<f64>, Vec<f64>)>,
    first_position: usize,
}

impl Past {
    /// No rows yet, the first of which will stand at a position other than 0.
    pub(crate) fn starting_at(first_position: usize) -> Self {
        Self {
            rows: Vec::new(),
            first_position,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }
}

impl AttentionModel {
    fn head(&self, x: &[f32], gamma: Option<(&Vec<f32>, f32)>, position: usize) -> Vec<f64> {
        let mut x = wide(x);
        if let Some((gamma, eps)) = gamma {
            x = rms_norm(&x, gamma, eps);
        }
        let half = self.inv_freq.len();
        for (i, f) in self.inv_freq.iter().enumerate() {
            let (a, b) = match self.style {
                RopeStyle::Neox => (i, i + half),
                RopeStyle::Adjacent => (2 * i, 2 * i + 1),
            };
            let (sin, cos) = (position as f64 * f64::from(*f)).sin_cos();
            (x[a], x[b]) = (x[a] * cos - x[b] * sin, x[a] * sin + x[b] * cos);
        }
        x
    }

    /// Keys and values of one row at its position.
    fn remember(&self, k: &[f32], v: &[f32], position: usize) -> (Vec<f64>, Vec<f64>) {
        let gamma = self.head_norm.as_ref().map(|(_, k, eps)| (k, *eps));
        let keys = k
            .chunks_exact(self.head_dim)
            .flat_map(|head| self.head(head, gamma, position))
            .collect();
        (keys, wide(v))
    }

    /// One row at `position` that sees `rows`.
    pub(crate) fn attend(
        &self,
        q: &[f32],
        position: usize,
        rows: &[&(Vec<f64>, Vec<f64>)],
    ) -> Vec<f64> {
        let dim = self.head_dim;
        let stride = if self.gated { 2 * dim } else { dim };
        let gamma = self.head_norm.as_ref().map(|(q, _, eps)| (q, *eps));
        let mut out = Vec::new();
        for (h, q) in q.chunks_exact(stride).enumerate() {
            let kv = h * self.num_kv_heads / self.num_heads * dim;
            let query = self.head(&q[..dim], gamma, position);
            let scores: Vec<f64> = rows
                .iter()
                .map(|(k, _)| {
                    let dot: f64 = query.iter().zip(&k[kv..]).map(|(q, k)| q * k).sum();
                    dot / (dim as f64).sqrt()
                })
                .collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = scores.iter().map(|s| (s - max).exp()).sum();
            for d in 0..dim {
                let mixed: f64 = rows
                    .iter()
                    .zip(&scores)
                    .map(|((_, v), s)| (s - max).exp() / total * v[kv + d])
                    .sum();
                out.push(if self.gated {
                    mixed * sigmoid(f64::from(q[dim + d]))
                } else {
                    mixed
                });
            }
        }
        out
    }

    /// All nodes of a segment; nothing becomes part of the past.
    pub(crate) fn segment(&self, past: &Past, parents: &[i32], rows: &[[Vec<f32>; 3]]) -> Vec<f64> {
        let depth = |node| path_to(parents, node).len() - 1;
        let fresh: Vec<_> = rows
            .iter()
            .enumerate()
            .map(|(i, [_, k, v])| self.remember(k, v, past.len() + depth(i)))
            .collect();
        (0..parents.len())
            .flat_map(|node| {
                let path = path_to(parents, node);
                let seen: Vec<_> = past
                    .rows
                    .iter()
                    .chain(path.iter().map(|&i| &fresh[i]))
                    .collect();
                self.attend(&rows[node][0], seen.len() - 1, &seen)
            })
            .collect()
    }

    /// A draft block: its rows follow the past and see each other, all through a window.
    pub(crate) fn block(
        &self,
        past: &Past,
        window: Option<Window>,
        rows: &[[Vec<f32>; 3]],
    ) -> Vec<f64> {
        let mut all = past.clone();
        self.commit(&mut all, rows);
        let sees = |from: usize, to: usize| match window {
            None => true,
            Some(Window { tokens, causal }) => from.abs_diff(to) < tokens && !(causal && to > from),
        };
        let places = past.len()..all.len();
        places
            .zip(rows)
            .flat_map(|(at, [q, _, _])| {
                let seen: Vec<_> = (0..all.len())
                    .filter(|&to| sees(at, to))
                    .map(|to| &all.rows[to])
                    .collect();
                self.attend(q, past.first_position + at, &seen)
            })
            .collect()
    }

    /// Adds rows that follow one another.
    pub(crate) fn commit<'a>(
        &self,
        past: &mut Past,
        rows: impl IntoIterator<Item = &'a [Vec<f32>; 3]>,
    ) {
        for [_, k, v] in rows {
            let row = self.remember(k, v, past.first_position + past.len());
            past.rows.push(row);
        }
    }
}

/// Weights of a gated DeltaNet layer.
pub(crate) struct DeltaModel {
    pub shape: DeltaNetShape,
    /// \[channels, taps\].
    pub conv: Vec<f32>,
    pub a: Vec<f32>,
    pub dt_bias: Vec<f32>,
    pub gamma: Vec<f32>,
    pub eps: f32,
}

/// States of one sequence.
#[derive(Clone)]
pub(crate) struct DeltaState {
    /// \[Hv, dk, dv\].
    pub recurrent: Vec<f64>,
    /// Rows before the convolution, oldest first.
    pub history: Vec<Vec<f32>>,
}

/// One row: qkv, z, alpha, beta.
pub(crate) type DeltaRow = [Vec<f32>; 4];

impl DeltaModel {
    pub(crate) fn start(&self) -> DeltaState {
        DeltaState {
            recurrent: vec![0.0; self.shape.state_len()],
            history: vec![vec![0.0; self.shape.conv_channels()]; self.shape.conv_taps - 1],
        }
    }

    fn convolve(&self, history: &[Vec<f32>], row: &[f32]) -> Vec<f64> {
        let taps = self.shape.conv_taps;
        (0..row.len())
            .map(|c| {
                let w = wide(&self.conv[c * taps..][..taps]);
                let past: f64 = (0..taps - 1).map(|t| w[t] * f64::from(history[t][c])).sum();
                silu(past + w[taps - 1] * f64::from(row[c]))
            })
            .collect()
    }

    /// One token: the state moves and the layer's output comes back.
    pub(crate) fn step(
        &self,
        state: &mut DeltaState,
        [qkv, z, alpha, beta]: &DeltaRow,
    ) -> Vec<f64> {
        let DeltaNetShape {
            num_k_heads,
            num_v_heads,
            k_dim,
            v_dim,
            ..
        } = self.shape;
        let mixed = self.convolve(&state.history, qkv);
        state.history.remove(0);
        state.history.push(qkv.clone());
        let unit = |x: &[f64]| -> Vec<f64> {
            let length = (x.iter().map(|v| v * v).sum::<f64>() + 1e-6).sqrt();
            x.iter().map(|v| v / length).collect()
        };
        let mut out = Vec::new();
        for h in 0..num_v_heads {
            let at = h % num_k_heads * k_dim;
            let q = unit(&mixed[at..][..k_dim]);
            let k = unit(&mixed[num_k_heads * k_dim + at..][..k_dim]);
            let v = &mixed[2 * num_k_heads * k_dim + h * v_dim..][..v_dim];
            let dt = f64::from(alpha[h]) + f64::from(self.dt_bias[h]);
            let decay = (f64::from(self.a[h]) * dt.exp().ln_1p()).exp();
            let strength = sigmoid(f64::from(beta[h]));
            let s = &mut state.recurrent[h * k_dim * v_dim..][..k_dim * v_dim];
            s.iter_mut().for_each(|s| *s *= decay);
            let answer: Vec<f64> = (0..v_dim)
                .map(|c| {
                    let read: f64 = (0..k_dim).map(|i| s[i * v_dim + c] * k[i]).sum();
                    let delta = strength * (v[c] - read);
                    (0..k_dim).for_each(|i| s[i * v_dim + c] += k[i] * delta);
                    let read: f64 = (0..k_dim).map(|i| s[i * v_dim + c] * q[i]).sum();
                    read / (k_dim as f64).sqrt()
                })
                .collect();
            let gate = &z[h * v_dim..][..v_dim];
            out.extend(
                rms_norm(&answer, &self.gamma, self.eps)
                    .iter()
                    .zip(gate)
                    .map(|(y, z)| y * silu(f64::from(*z))),
            );
        }
        out
    }

    /// All nodes of a segment, each on its own walk from the committed state, which stays.
    pub(crate) fn segment(
        &self,
        state: &DeltaState,
        parents: &[i32],
        rows: &[DeltaRow],
    ) -> Vec<f64> {
        (0..parents.len())
            .flat_map(|node| {
                let mut state = state.clone();
                let mut last = Vec::new();
                for i in path_to(parents, node) {
                    last = self.step(&mut state, &rows[i]);
                }
                last
            })
            .collect()
    }
}
