//! Attention and its cache of keys and values.
//!
//! Three steps: queries and keys are normed and turned, and keys and values stored; every split of [`SPLIT`] places is
//! attended to by itself; and the splits of a row are put together in their order. A fourth where values are kept rotated. Nothing of this depends on how many
//! rows there are, so a row has the same bits in any company.

mod launches;
mod row;

use std::sync::atomic::Ordering;

use crate::buffer::Buffer;
use crate::device::{
    AttentionArgs, HeadNorm, KvAppendArgs, KvCommitArgs, KvLayer, PAGE_TOKENS, RopeArgs, RopeStyle,
    Visibility, Window,
};
use crate::error::DeviceError;
use crate::gpu::attention::launches::{
    AnswerArgs, AttendArgs, MOST_LAYERS, MOVES, MoveArgs, MovedLayer, PrepareArgs, Shape, THREADS,
    types_of,
};
pub(super) use crate::gpu::attention::launches::{SPLIT, Shape as HeadShape, sources};
use crate::gpu::device::GpuDevice;
use crate::gpu::driver::{DevicePtr, Launch};
use crate::gpu::linear::COLUMNS;
use crate::gpu::memory::ptr;
use crate::gpu::scratch::Scratch;
use crate::gpu::steps::{MAX_ROWS, seen_bucket};
use crate::gpu::tables::{HostTables, NONE, TablePtrs};

/// Scratch memory that the splits of one launch may fill; more rows go in several launches.
const PARTIALS_BYTES: usize = 64 << 20;
/// But no fewer rows than these, which share what they read.
const LEAST_ROWS: usize = 8;

/// Values from one query head to the next.
fn q_stride(args: &AttentionArgs<'_>) -> usize {
    args.head_dim * if args.gated { 2 } else { 1 }
}

/// A bug of the caller if it fails.
fn check(what: &str, got: usize, expected: usize) {
    assert!(
        got >= expected,
        "attention: {what} holds {got} values, {expected} are needed"
    );
}

/// Rows of keys and values, queries where there are any, and what is done to them before attention.
struct Fresh<'a> {
    q: Option<(&'a Buffer, usize)>,
    k: &'a Buffer,
    v: &'a Buffer,
    gammas: [DevicePtr; 2],
    eps: f32,
    rope: RopeArgs<'a>,
}

impl<'a> Fresh<'a> {
    fn of(args: &'a AttentionArgs<'_>, q_stride: usize) -> Self {
        let norm = args.head_norm.as_ref();
        let gamma = |pick: fn(&HeadNorm<'a>) -> &'a Buffer| {
            norm.map_or(DevicePtr::NULL, |norm| ptr(pick(norm)))
        };
        Self {
            q: Some((args.q, q_stride)),
            k: args.k,
            v: args.v,
            gammas: [gamma(|norm| norm.q_gamma), gamma(|norm| norm.k_gamma)],
            eps: norm.map_or(0.0, |norm| norm.eps),
            rope: args.rope,
        }
    }
}

impl GpuDevice {
    pub(super) fn attention_op(&self, args: AttentionArgs<'_>) -> Result<(), DeviceError> {
        let shape = Shape::of(&args);
        shape.check(args.cache, args.segments);
        assert!(
            args.window.is_none_or(|window| window.tokens > 0),
            "attention: a window holds at least the row itself"
        );
        let staged = self.tables(args.segments, args.visibility)?;
        let host = staged.host();
        let q_stride = q_stride(&args);
        let rows = host.rows.len();
        check("q", args.q.len(), rows * args.num_heads * q_stride);
        check("out", args.out.len(), rows * args.num_heads * args.head_dim);
        let fresh = Fresh::of(&args, q_stride);
        let prepare = self.prepare_args(&shape, &fresh, args.cache, (rows, staged.ptrs))?;
        self.attend(&shape, &args, &prepare, host)
    }

    /// How rows are normed, rotated and stored.
    fn prepare_args(
        &self,
        shape: &Shape,
        fresh: &Fresh<'_>,
        cache: &KvLayer,
        (rows, tables): (usize, TablePtrs),
    ) -> Result<PrepareArgs, DeviceError> {
        let width = shape.num_kv_heads * shape.head_dim;
        check("k", fresh.k.len(), rows * width);
        check("v", fresh.v.len(), rows * width);
        assert!(
            2 * fresh.rope.inv_freq.len() <= shape.head_dim,
            "attention: more rotated dims than a head has"
        );
        let num_heads = fresh.q.map_or(0, |_| shape.num_heads);
        Ok(PrepareArgs {
            q: fresh.q.map_or(DevicePtr::NULL, |(q, _)| ptr(q)),
            k: ptr(fresh.k),
            v: ptr(fresh.v),
            q_gamma: fresh.gammas[0],
            k_gamma: fresh.gammas[1],
            turns: self.turns.of(&self.driver, fresh.rope.inv_freq)?,
            cache_k: ptr(&cache.k),
            cache_v: ptr(&cache.v),
            tables,
            eps: fresh.eps,
            num_heads: num_heads as u32,
            num_kv_heads: shape.num_kv_heads as u32,
            q_stride: fresh.q.map_or(0, |(_, stride)| stride as u32),
            pairs: fresh.rope.inv_freq.len() as u32,
            adjacent: u32::from(fresh.rope.style == RopeStyle::Adjacent),
        })
    }

    fn prepare_heads(
        &self,
        shape: &Shape,
        prepare: &PrepareArgs,
        rows: usize,
    ) -> Result<(), DeviceError> {
        let heads = prepare.num_heads + prepare.num_kv_heads;
        let launch = Launch {
            grid: [rows as u32, heads.div_ceil(THREADS / 32), 1],
            threads: THREADS,
            shared_bytes: 0,
        };
        // Behind products of few rows there is room everywhere.
        let launch = match rows > COLUMNS {
            true => launch.spread(self.facts()),
            false => launch,
        };
        self.launch(&shape.keys_and_values(), "prepare", launch, prepare)
    }

    /// Makes rows ready, and attends to what is stored.
    fn attend(
        &self,
        shape: &Shape,
        args: &AttentionArgs<'_>,
        prepare: &PrepareArgs,
        host: &HostTables,
    ) -> Result<(), DeviceError> {
        let (num_rows, tables) = (host.rows.len(), prepare.tables);
        let longest = args.segments.iter().map(|s| s.parents.len()).max();
        let longest = longest.unwrap_or(0);
        let is_raw = self.attends_to_raw_rows(shape, longest);
        if !is_raw {
            self.prepare_heads(shape, prepare, num_rows)?;
        }
        // What is recorded must do for all steps of its bucket, whether they are trees or chains.
        let is_recorded = num_rows <= MAX_ROWS;
        let most_seen = match is_recorded {
            true => seen_bucket(host.most_seen()),
            false => host.most_seen(),
        };
        let num_splits = most_seen.div_ceil(SPLIT);
        let splits_of_row = shape.num_heads * num_splits;
        let row_bytes = splits_of_row * (shape.head_dim + 2) * size_of::<f32>();
        let rows_at_once = (PARTIALS_BYTES / row_bytes)
            .next_multiple_of(LEAST_ROWS)
            .min(num_rows);
        let partials = self.scratch(Scratch::Partials, rows_at_once * row_bytes)?;
        let partials_bytes = rows_at_once * splits_of_row * shape.head_dim * size_of::<f32>();
        let may_branch = longest > 1 && args.visibility == Visibility::Ancestors;
        let branches = || host.rows.iter().any(|row| row.path != NONE);
        // Nodes of a segment reach over so many splits at most, wherever they begin.
        let path_splits = match may_branch && (is_recorded || branches()) {
            true => (longest - 1) / SPLIT + 2,
            false => 0,
        };
        let (window, causal) = match args.window {
            None => (0, false),
            Some(Window { tokens, causal }) => (u32::try_from(tokens).unwrap_or(u32::MAX), causal),
        };
        for first_row in (0..num_rows).step_by(rows_at_once.max(1)) {
            let attend = AttendArgs {
                q: ptr(args.q),
                k: ptr(&args.cache.k),
                v: ptr(&args.cache.v),
                tables,
                partials,
                sums: partials.add(partials_bytes),
                out: ptr(args.out),
                tickets: DevicePtr::NULL,
                first_row: first_row as u32,
                end_row: (first_row + rows_at_once).min(num_rows) as u32,
                num_heads: shape.num_heads as u32,
                num_kv_heads: shape.num_kv_heads as u32,
                q_stride: q_stride(args) as u32,
                gated: u32::from(args.gated && !shape.types.rotates_values()),
                num_splits: num_splits as u32,
                window,
                causal: u32::from(causal),
                tile_rows: 0,
                path_splits: path_splits as u32,
            };
            self.launch_attend(shape, &attend, is_raw.then_some(prepare), longest)?;
        }
        match shape.types.rotates_values() {
            true => self.rotate_answers(shape, args, num_rows, tables),
            false => Ok(()),
        }
    }

    /// Takes the rotation of values back, and applies gates.
    fn rotate_answers(
        &self,
        shape: &Shape,
        args: &AttentionArgs<'_>,
        num_rows: usize,
        tables: TablePtrs,
    ) -> Result<(), DeviceError> {
        let answers = AnswerArgs {
            out: ptr(args.out),
            q: ptr(args.q),
            tables,
            num_heads: shape.num_heads as u32,
            q_stride: q_stride(args) as u32,
        };
        let launch = Launch {
            grid: [
                num_rows as u32,
                (shape.num_heads as u32).div_ceil(THREADS / 32),
                1,
            ],
            threads: THREADS,
            shared_bytes: 0,
        };
        self.launch(&shape.keys_and_values(), "rotate_answers", launch, &answers)
    }

    pub(super) fn kv_append_op(&self, args: KvAppendArgs<'_>) -> Result<(), DeviceError> {
        let shape = Shape {
            num_heads: args.num_kv_heads,
            num_kv_heads: args.num_kv_heads,
            head_dim: args.head_dim,
            types: types_of(args.cache),
        };
        shape.check(args.cache, args.segments);
        // Relaxed: the thread that drives the device asks.
        self.appends.store(true, Ordering::Relaxed);
        // Rows follow one another, as where each sees all.
        let staged = self.tables(args.segments, Visibility::All)?;
        let fresh = Fresh {
            q: None,
            k: args.k,
            v: args.v,
            gammas: [
                DevicePtr::NULL,
                args.k_norm.map_or(DevicePtr::NULL, |norm| ptr(norm.gamma)),
            ],
            eps: args.k_norm.map_or(0.0, |norm| norm.eps),
            rope: args.rope,
        };
        let rows = staged.host().rows.len();
        let prepare = self.prepare_args(&shape, &fresh, args.cache, (rows, staged.ptrs))?;
        self.prepare_heads(&shape, &prepare, rows)
    }

    pub(super) fn kv_commit_op(&self, args: KvCommitArgs<'_>) -> Result<(), DeviceError> {
        let moves: Vec<_> = args
            .path
            .iter()
            .enumerate()
            .filter(|&(to, &from)| from != to)
            .map(|(to, from)| [args.committed_len + from, args.committed_len + to])
            .collect();
        let page = |slot: usize| args.pages[slot / PAGE_TOKENS];
        let place = |slot: usize| page(slot) * PAGE_TOKENS as u32 + (slot % PAGE_TOKENS) as u32;
        let last_page = moves.iter().flatten().map(|&slot| page(slot)).max();
        for layers in args.layers.chunks(MOST_LAYERS) {
            let mut move_args = MoveArgs {
                layers: [MovedLayer::NONE; MOST_LAYERS],
                count: 0,
                from: [0; MOVES],
                to: [0; MOVES],
            };
            let shape = Shape {
                num_heads: layers[0].num_kv_heads,
                num_kv_heads: layers[0].num_kv_heads,
                head_dim: args.head_dim,
                types: types_of(layers[0].cache),
            };
            for (to, layer) in move_args.layers.iter_mut().zip(layers) {
                let shape = Shape {
                    num_kv_heads: layer.num_kv_heads,
                    ..shape
                };
                shape.check_cache(layer.cache, last_page.as_ref());
                *to = MovedLayer {
                    k: ptr(&layer.cache.k),
                    v: ptr(&layer.cache.v),
                    num_kv_heads: layer.num_kv_heads as u32,
                };
            }
            let most_heads = layers.iter().map(|layer| layer.num_kv_heads).max();
            for moves in moves.chunks(MOVES) {
                move_args.count = moves.len() as u32;
                for (i, slots) in moves.iter().enumerate() {
                    [move_args.from[i], move_args.to[i]] = slots.map(place);
                }
                let launch = Launch {
                    grid: [most_heads.unwrap_or(0) as u32, 2, layers.len() as u32],
                    threads: THREADS,
                    shared_bytes: 0,
                };
                self.launch(&shape.keys_and_values(), "move_rows", launch, &move_args)?;
            }
        }
        Ok(())
    }
}
