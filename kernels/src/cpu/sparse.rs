//! Attention of a prompt's rows to the key blocks that weigh most.
//!
//! A thread takes a query block of one head: it weighs the key blocks by their mean keys and then goes over those that it
//! takes, a page at a time, with an online softmax.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::buffer::Buffer;
use crate::cpu::CpuDevice;
use crate::cpu::attention::{Heads, gammas};
use crate::cpu::lanes::{LANES, Lanes, Op, f_exp, f_max_lane, f_sum};
use crate::cpu::matmul::Shared;
use crate::cpu::ops::check;
use crate::device::{Device, KvAppendArgs, PAGE_TOKENS};
use crate::prompt::{KEY_BLOCK_TOKENS, SparseAttentionArgs, is_forced, mean_pages};

const OP: &str = "sparse_attention";
/// Pages of a key block.
const BLOCK_PAGES: usize = KEY_BLOCK_TOKENS / PAGE_TOKENS;
/// Rows that share what is loaded, and vectors that they go over at a time.
const ROWS: usize = 4;
const VECTORS: usize = 2;
const STEP: usize = VECTORS * LANES;

impl CpuDevice {
    pub(super) fn sparse_attention_op(&self, args: SparseAttentionArgs<'_>) {
        let segment = args.segment();
        let (first, rows) = (segment.committed_len, segment.parents.len());
        let SparseAttentionArgs {
            attention: args,
            num_tokens,
            threshold,
            means,
        } = args;
        let (heads, kv_heads, dim) = (args.num_heads, args.num_kv_heads, args.head_dim);
        assert!(heads.is_multiple_of(kv_heads), "{OP}: head sizes");
        if !dim.is_multiple_of(STEP) {
            return self.attention(args);
        }
        let (q_len, k_len) = (heads * dim, kv_heads * dim);
        check(OP, "q", args.q.len(), rows * q_len);
        check(OP, "out", args.out.len(), rows * q_len);
        let (q_norm, _) = gammas(args.head_norm);
        let position = segment.first_position + first;
        let at: Vec<_> = (0..rows).map(|row| (row, position + row)).collect();
        let of_heads = Heads::plain(dim, q_norm, args.rope);
        self.prepare_rows(args.q, q_len, of_heads, &at);
        self.kv_append(KvAppendArgs {
            num_kv_heads: kv_heads,
            head_dim: dim,
            k: args.k,
            v: args.v,
            k_norm: args.head_norm.map(|norm| norm.of_keys()),
            rope: args.rope,
            cache: args.cache,
            segments: args.segments,
        });
        if threshold > 0.0 {
            let len = mean_pages(num_tokens) * PAGE_TOKENS * k_len;
            check(OP, "means", means.len(), len);
            put_means(
                means,
                &args.k.host()[..rows * k_len],
                (kv_heads, dim),
                first,
            );
        }
        let next = AtomicUsize::new(0);
        let pages = Pages {
            num_kv_heads: kv_heads,
            head_dim: dim,
        };
        let (q, out) = (args.q.host(), Shared::new(args.out.host_mut()));
        let (cache, means) = (&*args.cache, &*means);
        self.pool.run(&|_| {
            self.dispatch(Attend {
                next: &next,
                num_tokens,
                threshold,
                first,
                rows,
                num_heads: heads,
                pages,
                list: segment.pages,
                q,
                keys: &cache.k,
                values: &cache.v,
                means,
                out,
            });
        });
    }
}

/// Puts the mean keys of `rows`, of which the first is token `first`, where keys of tokens would be.
fn put_means(means: &mut Buffer, rows: &[f32], (kv_heads, dim): (usize, usize), first: usize) {
    let pages = Pages {
        num_kv_heads: kv_heads,
        head_dim: dim,
    };
    let len = kv_heads * dim;
    for (i, rows) in rows.chunks(KEY_BLOCK_TOKENS * len).enumerate() {
        let key_block = first / KEY_BLOCK_TOKENS + i;
        let count = (rows.len() / len) as f32;
        for at in 0..len {
            let column = rows[at..].iter().step_by(len);
            let mean = column.sum::<f32>() / count;
            let page = pages.at((key_block / PAGE_TOKENS) as u32, at / dim);
            let offset = page + at % dim * PAGE_TOKENS + key_block % PAGE_TOKENS;
            means.write(offset, &[mean]);
        }
    }
}

/// How pages of keys and values are laid out.
#[derive(Clone, Copy)]
struct Pages {
    num_kv_heads: usize,
    head_dim: usize,
}

impl Pages {
    /// Values of one head.
    fn len(self) -> usize {
        PAGE_TOKENS * self.head_dim
    }

    /// The first of them.
    fn at(self, page: u32, kv_head: usize) -> usize {
        (page as usize * self.num_kv_heads + kv_head) * self.len()
    }
}

/// A thread's part: claims query blocks of heads.
struct Attend<'a> {
    next: &'a AtomicUsize,
    num_tokens: usize,
    threshold: f32,
    /// Token of the first row, and rows.
    first: usize,
    rows: usize,
    num_heads: usize,
    pages: Pages,
    list: &'a [u32],
    /// \[N, H, D\], prepared.
    q: &'a [f32],
    keys: &'a Buffer,
    values: &'a Buffer,
    means: &'a Buffer,
    out: Shared,
}

/// What one thread works with.
struct Work {
    /// Queries of a query block, \[rows, D\].
    q: Vec<f32>,
    /// Sums of weighted values, \[rows, D\], and each row's largest score and sum of weights.
    sums: Vec<f32>,
    largest: Vec<f32>,
    totals: Vec<f32>,
    /// A page of keys, \[D, PAGE_TOKENS\], and one of values, \[PAGE_TOKENS, D\].
    keys: Vec<f32>,
    values: Vec<f32>,
    /// \[rows, PAGE_TOKENS\].
    scores: Vec<f32>,
}

impl Op for Attend<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let dim = self.pages.head_dim;
        let rows = KEY_BLOCK_TOKENS;
        let mut work = Work {
            q: vec![0.0; rows * dim],
            sums: vec![0.0; rows * dim],
            largest: vec![0.0; rows],
            totals: vec![0.0; rows],
            keys: vec![0.0; self.pages.len()],
            values: vec![0.0; self.pages.len()],
            scores: vec![0.0; rows * PAGE_TOKENS],
        };
        let num_blocks = self.rows.div_ceil(KEY_BLOCK_TOKENS);
        loop {
            let item = self.next.fetch_add(1, Ordering::Relaxed);
            if item >= num_blocks * self.num_heads {
                return;
            }
            // The last ones see the most.
            let block = num_blocks - 1 - item / self.num_heads;
            self.query_block::<L>(block, item % self.num_heads, &mut work);
        }
    }
}

impl Attend<'_> {
    /// All that is done for the query block `block` of the rows here.
    #[inline(always)]
    unsafe fn query_block<L: Lanes>(&self, block: usize, head: usize, work: &mut Work) {
        let dim = self.pages.head_dim;
        let first_row = block * KEY_BLOCK_TOKENS;
        let rows = first_row..(first_row + KEY_BLOCK_TOKENS).min(self.rows);
        let count = rows.len();
        let query_block = self.first / KEY_BLOCK_TOKENS + block;
        let kv_head = head * self.pages.num_kv_heads / self.num_heads;
        // Rows are computed by ROWS; those beyond the last are zeros.
        work.q.fill(0.0);
        for (row, to) in rows.clone().zip(work.q.chunks_exact_mut(dim)) {
            to.copy_from_slice(&self.q[(row * self.num_heads + head) * dim..][..dim]);
        }
        work.sums.fill(0.0);
        work.largest.fill(f32::NEG_INFINITY);
        work.totals.fill(0.0);
        for key_block in self.taken::<L>(query_block, kv_head, count, work) {
            for page in key_block * BLOCK_PAGES..(key_block + 1) * BLOCK_PAGES {
                if page * PAGE_TOKENS < self.first + rows.end {
                    let token = self.first + first_row;
                    self.attend::<L>(page, kv_head, token..token + count, work);
                }
            }
        }
        for (i, row) in rows.enumerate() {
            let out = self.out.at((row * self.num_heads + head) * dim);
            let total = L::f_splat(work.totals[i]);
            for d in (0..dim).step_by(LANES) {
                let sum = L::f_load(work.sums.as_ptr().add(i * dim + d));
                L::f_store(out.add(d), L::f_div(sum, total));
            }
        }
    }

    /// Key blocks that a query block takes, ascending.
    #[inline(always)]
    unsafe fn taken<L: Lanes>(
        &self,
        query_block: usize,
        kv_head: usize,
        rows: usize,
        work: &mut Work,
    ) -> Vec<usize> {
        let num_blocks = query_block + 1;
        let forced = |key_block: &usize| is_forced(self.num_tokens, query_block, *key_block);
        if self.threshold == 0.0 || (0..num_blocks).all(|key_block| forced(&key_block)) {
            return (0..num_blocks).collect();
        }
        let row_len = num_blocks.next_multiple_of(PAGE_TOKENS);
        let mut scores = vec![f32::NEG_INFINITY; rows * row_len];
        for page in 0..row_len / PAGE_TOKENS {
            self.means
                .read(self.pages.at(page as u32, kv_head), &mut work.keys);
            self.score::<L>(rows, work);
            let seen = (num_blocks - page * PAGE_TOKENS).min(PAGE_TOKENS);
            for (row, from) in work.scores.chunks_exact(PAGE_TOKENS).take(rows).enumerate() {
                let to = &mut scores[row * row_len + page * PAGE_TOKENS..][..seen];
                to.copy_from_slice(&from[..seen]);
            }
        }
        let mut weights = vec![0.0; row_len];
        for row in scores.chunks_exact_mut(row_len) {
            let (_, total) = exponentials::<L>(row, f32::NEG_INFINITY);
            for n in (0..row_len).step_by(LANES) {
                let share = L::f_div(L::f_load(row.as_ptr().add(n)), L::f_splat(total));
                let sum = L::f_add(L::f_load(weights.as_ptr().add(n)), share);
                L::f_store(weights.as_mut_ptr().add(n), sum);
            }
        }
        let largest = weights.iter().copied().fold(0.0, f32::max);
        let least = self.threshold * largest;
        let is_taken = |key_block: &usize| forced(key_block) || weights[*key_block] >= least;
        (0..num_blocks).filter(is_taken).collect()
    }

    /// Adds a page that stands at place `page` to the sums of rows, which are those of `tokens`.
    #[inline(always)]
    unsafe fn attend<L: Lanes>(
        &self,
        page: usize,
        kv_head: usize,
        tokens: Range<usize>,
        work: &mut Work,
    ) {
        let at = self.pages.at(self.list[page], kv_head);
        self.keys.read(at, &mut work.keys);
        self.values.read(at, &mut work.values);
        self.score::<L>(tokens.len(), work);
        let dim = self.pages.head_dim;
        let first_key = page * PAGE_TOKENS;
        let rows = tokens.len().next_multiple_of(ROWS);
        for i in 0..rows {
            let row = &mut work.scores[i * PAGE_TOKENS..][..PAGE_TOKENS];
            let seen = (tokens.start + i + 1).saturating_sub(first_key);
            row[seen.min(PAGE_TOKENS)..].fill(f32::NEG_INFINITY);
            if seen == 0 {
                row.fill(0.0);
                continue;
            }
            let before = work.largest[i];
            let (largest, total) = exponentials::<L>(row, before);
            work.largest[i] = largest;
            if largest > before {
                // `e^-inf` is wanted where nothing came before.
                let shrink = (before - largest).exp();
                work.totals[i] *= shrink;
                let sums = work.sums.as_mut_ptr().add(i * dim);
                for d in (0..dim).step_by(LANES) {
                    let sum = L::f_mul(L::f_load(sums.add(d)), L::f_splat(shrink));
                    L::f_store(sums.add(d), sum);
                }
            }
            work.totals[i] += total;
        }
        for first in (0..rows).step_by(ROWS) {
            for d in (0..dim).step_by(STEP) {
                let sums = work.sums.as_mut_ptr().add(first * dim + d);
                let weights = &work.scores[first * PAGE_TOKENS..];
                let values = work.values.as_ptr().add(d);
                add_products::<L>(sums, dim, weights, PAGE_TOKENS, values, dim, PAGE_TOKENS);
            }
        }
    }

    /// Scaled products of the queries with a page of keys.
    #[inline(always)]
    unsafe fn score<L: Lanes>(&self, rows: usize, work: &mut Work) {
        let dim = self.pages.head_dim;
        let scale = L::f_splat(1.0 / (dim as f32).sqrt());
        work.scores.fill(0.0);
        for first in (0..rows).step_by(ROWS) {
            for key in (0..PAGE_TOKENS).step_by(STEP) {
                let scores = work.scores.as_mut_ptr().add(first * PAGE_TOKENS + key);
                let (q, keys) = (&work.q[first * dim..], work.keys.as_ptr().add(key));
                add_products::<L>(scores, PAGE_TOKENS, q, dim, keys, PAGE_TOKENS, dim);
            }
        }
        let scores = work.scores.as_mut_ptr();
        for at in (0..rows * PAGE_TOKENS).step_by(LANES) {
            L::f_store(scores.add(at), L::f_mul(L::f_load(scores.add(at)), scale));
        }
    }
}

/// `out[r, c] += sum over i of a[r, i] b[i, c]` for ROWS rows and STEP columns; rows are so many values apart.
#[inline(always)]
unsafe fn add_products<L: Lanes>(
    out: *mut f32,
    out_len: usize,
    a: &[f32],
    a_len: usize,
    b: *const f32,
    b_len: usize,
    count: usize,
) {
    let mut sums = [[L::f_splat(0.0); VECTORS]; ROWS];
    for (r, sums) in sums.iter_mut().enumerate() {
        for (c, sum) in sums.iter_mut().enumerate() {
            *sum = L::f_load(out.add(r * out_len + c * LANES));
        }
    }
    let rows: [&[f32]; ROWS] = std::array::from_fn(|r| &a[r * a_len..][..count]);
    for i in 0..count {
        let b: [L::F; VECTORS] = std::array::from_fn(|c| L::f_load(b.add(i * b_len + c * LANES)));
        for (sums, row) in sums.iter_mut().zip(rows) {
            let a = L::f_splat(row[i]);
            for (sum, &b) in sums.iter_mut().zip(&b) {
                *sum = L::f_fma(a, b, *sum);
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        for (c, &sum) in sums.iter().enumerate() {
            L::f_store(out.add(r * out_len + c * LANES), sum);
        }
    }
}

/// Scores become the exponentials of what they are less the largest, of those `before` too, which comes back with their
/// sum.
#[inline(always)]
unsafe fn exponentials<L: Lanes>(row: &mut [f32], before: f32) -> (f32, f32) {
    let row_end = row.len();
    let row = row.as_mut_ptr();
    let mut top = L::f_splat(before);
    for at in (0..row_end).step_by(LANES) {
        top = L::f_max(top, L::f_load(row.add(at)));
    }
    let largest = f_max_lane::<L>(top);
    let mut sum = L::f_splat(0.0);
    for at in (0..row_end).step_by(LANES) {
        let weight = f_exp::<L>(L::f_sub(L::f_load(row.add(at)), L::f_splat(largest)));
        L::f_store(row.add(at), weight);
        sum = L::f_add(sum, weight);
    }
    (largest, f_sum::<L>(sum))
}
