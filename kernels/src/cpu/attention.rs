//! Attention over paged keys and values, along the parents of each node.
//!
//! Keys are taken in runs of [`PAGE_TOKENS`] aligned to slot 0, ascending, with an online softmax. A node of a tree finds
//! its ancestors' rows by slot, a plain chain finds them in place; the float operations are the same, so both give the
//! same bits. A window only leaves keys out; a draft block sees all rows of its segment, in place.

mod attend;
mod pages;

use std::ops::Range;

use crate::buffer::Buffer;
pub(crate) use crate::cpu::attention::attend::Attend;
use crate::device::{
    HeadNorm, KvLayer, PAGE_TOKENS, RopeArgs, RopeStyle, Segment, Visibility, Window,
};
use crate::kv::{self, Format, KvTypes, Side};

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

/// Indices that the node at index `at` sees of the `end` that there are, of its segment's window the `most` before it.
fn seen(at: usize, end: usize, window: Option<Window>, most: Option<usize>) -> Range<usize> {
    let first = most.map_or(0, |most| (at + 1).saturating_sub(most));
    let seen = match window {
        None => 0..end,
        Some(Window { tokens, causal }) => {
            let last = if causal { 0 } else { tokens - 1 };
            (at + 1).saturating_sub(tokens)..at.saturating_add(last).saturating_add(1).min(end)
        }
    };
    seen.start.max(first)..seen.end
}

/// Nodes of which each sees all others.
fn push_block<'a>(out: &mut Vec<Node<'a>>, segment: &Segment<'a>, window: Option<Window>) {
    let end = segment.committed_len + segment.parents.len();
    for (i, at) in (segment.committed_len..end).enumerate() {
        out.push(Node {
            row: segment.first_row + i,
            position: segment.first_position + at,
            pages: segment.pages,
            seen: seen(at, end, window, segment.window),
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
            seen: seen(at, at + 1, window, segment.window),
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

fn turn(x: &mut [f32], style: RopeStyle, turns: &[(f32, f32)]) {
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

/// Heads of a row, and what is done to them before they are kept or attend.
#[derive(Clone, Copy)]
pub(crate) struct Heads<'a> {
    /// From one to the next.
    pub stride: usize,
    pub dim: usize,
    pub norm: Gamma<'a>,
    pub rope: RopeArgs<'a>,
    /// Whether keys are kept rotated; see `kv/rotation.rs`.
    pub rotated: bool,
}

impl<'a> Heads<'a> {
    /// Heads side by side that are kept as they are.
    pub(crate) fn plain(dim: usize, norm: Gamma<'a>, rope: RopeArgs<'a>) -> Self {
        Self {
            stride: dim,
            dim,
            norm,
            rope,
            rotated: false,
        }
    }

    /// Norms the heads of one row and turns them to a position.
    pub(crate) fn prepare(&self, row: &mut [f32], position: usize) {
        let turns: Vec<(f32, f32)> = self
            .rope
            .inv_freq
            .iter()
            .map(|f| (position as f32 * f).sin_cos())
            .collect();
        for head in row.chunks_exact_mut(self.stride) {
            let head = &mut head[..self.dim];
            if let Some((gamma, eps)) = self.norm {
                norm_head(head, gamma, eps);
            }
            turn(head, self.rope.style, &turns);
            if self.rotated {
                kv::rotate(head);
            }
        }
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

/// Types of a layer's keys and values.
pub(crate) fn types_of(cache: &KvLayer) -> KvTypes {
    KvTypes {
        k: cache.k.kv_type(),
        v: cache.v.kv_type(),
    }
}

/// Rows of a layer's keys and values, and their buffers.
fn sides(cache: &mut KvLayer, head_dim: usize) -> [(Format, &mut Buffer); 2] {
    let types = types_of(cache);
    let format = |side, kv_type| Format {
        kv_type,
        side,
        head_dim,
    };
    [
        (format(Side::Keys, types.k), &mut cache.k),
        (format(Side::Values, types.v), &mut cache.v),
    ]
}

/// First unit of (page of `slot`, head).
fn page_base(
    format: Format,
    pages: &[u32],
    slot: usize,
    head: usize,
    num_kv_heads: usize,
) -> usize {
    (pages[slot / PAGE_TOKENS] as usize * num_kv_heads + head) * format.page_units()
}

/// Writes one row of keys and values to its slot.
pub(crate) fn store_row(
    cache: &mut KvLayer,
    pages: &[u32],
    slot: usize,
    head_dim: usize,
    k: &[f32],
    v: &[f32],
) {
    let heads = k.len() / head_dim;
    let mut rotated = Vec::new();
    let v = match types_of(cache).rotates_values() {
        true => {
            rotated.extend_from_slice(v);
            rotated.chunks_exact_mut(head_dim).for_each(kv::rotate);
            &rotated
        }
        false => v,
    };
    for ((format, buffer), rows) in sides(cache, head_dim).into_iter().zip([k, v]) {
        for (head, row) in rows.chunks_exact(head_dim).enumerate() {
            let base = page_base(format, pages, slot, head, heads);
            buffer.store_row(format, base, slot % PAGE_TOKENS, row);
        }
    }
}

/// Moves one row of keys and values to another slot. `shape`: heads, head dim.
pub(crate) fn move_row(
    cache: &mut KvLayer,
    pages: &[u32],
    (heads, head_dim): (usize, usize),
    from: usize,
    to: usize,
) {
    for (format, buffer) in sides(cache, head_dim) {
        for head in 0..heads {
            let places = |unit| {
                [from, to].map(|slot| {
                    page_base(format, pages, slot, head, heads)
                        + format.index(unit, slot % PAGE_TOKENS)
                })
            };
            buffer.move_units((0..format.units()).map(places));
        }
    }
}
