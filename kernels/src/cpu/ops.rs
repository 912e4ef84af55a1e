//! [`Device`] for the CPU: shape checks, scratch and the split over threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use tensor::DType;

use crate::buffer::Buffer;
use crate::cpu::CpuDevice;
use crate::cpu::attention::{self, Attend, Heads};
use crate::cpu::bandwidth;
use crate::cpu::matmul::{Activations, Part, Product, Queue, Shared, Store};
use crate::cpu::pack::PackedMatrix;
use crate::cpu::top_k::TopKRow;
use crate::device::{
    AttentionArgs, DeltaNetArgs, DeltaNetCommitArgs, Device, GatedLinearArgs, KvAppendArgs,
    KvCommitArgs, KvLayer, LinearArgs, Matrix, MatrixSource, Segment, StoreColumnsArgs, TopKArgs,
};
use crate::error::DeviceError;
use crate::kv::KvType;
use crate::prompt::{SparseAttentionArgs, TailProductsArgs, TailWeightsArgs};

/// Rows below which preparing them on one thread beats waking the others.
const SOLO_ROWS: usize = 4;

impl CpuDevice {
    /// Runs `work(i)` for `0..count`, on all threads when that pays.
    pub(crate) fn each(&self, count: usize, work: impl Fn(usize) + Sync) {
        if count < SOLO_ROWS {
            return (0..count).for_each(work);
        }
        let threads = self.pool.threads();
        self.pool
            .run(&|t| (t * count / threads..(t + 1) * count / threads).for_each(&work));
    }

    fn multiply(&self, products: &[Product<'_>], x: &Activations) {
        let queue = Queue::new();
        let threads = self.pool.threads();
        self.pool.run(&|_| {
            self.dispatch(Part {
                products,
                x,
                queue: &queue,
                threads,
                tiles: self.tier.tiles(),
            })
        });
    }

    /// Prepares rows of `len` values. `at`: row and position.
    pub(super) fn prepare_rows(
        &self,
        values: &mut Buffer,
        len: usize,
        heads: Heads<'_>,
        at: &[(usize, usize)],
    ) {
        let rows = at.iter().map(|(row, _)| row + 1).max().unwrap_or(0);
        check("attention", "rows", values.len(), rows * len);
        let values = Shared::new(values.host_mut());
        self.each(at.len(), |i| {
            let (row, position) = at[i];
            // SAFETY: each row is prepared by one thread only; the size was checked above.
            let row = unsafe { std::slice::from_raw_parts_mut(values.at(row * len), len) };
            heads.prepare(row, position);
        });
    }
}

pub(super) fn check(op: &str, what: &str, got: usize, expected: usize) {
    assert!(
        got >= expected,
        "{op}: {what} holds {got} values, {expected} are needed"
    );
}

impl Device for CpuDevice {
    fn name(&self) -> String {
        format!(
            "cpu ({}, {} threads)",
            self.tier.name(),
            self.pool.threads()
        )
    }

    fn arithmetic(&self) -> String {
        // The number of threads decides none.
        format!("cpu {}", self.tier.name())
    }

    fn read_bandwidth(&self) -> f64 {
        bandwidth::measure(self)
    }

    fn free_memory(&self) -> Option<u64> {
        let limit = self.memory_limit.load(Ordering::Relaxed);
        available_memory().map(|available| available.min(limit))
    }

    fn limit_memory(&self, bytes: u64) {
        self.memory_limit.store(bytes, Ordering::Relaxed);
    }

    fn load_matrix(&self, source: MatrixSource<'_>) -> Result<Matrix, DeviceError> {
        PackedMatrix::pack(source).map(Matrix::host)
    }

    fn zeros(&self, len: usize) -> Result<Buffer, DeviceError> {
        Buffer::zeros(len)
    }

    fn kv_zeros(&self, len: usize, kv_type: KvType) -> Result<Buffer, DeviceError> {
        Buffer::kv_zeros(len, kv_type)
    }

    fn write(&self, buffer: &mut Buffer, offset: usize, values: &[f32]) {
        buffer.write(offset, values);
    }

    fn read(&self, buffer: &Buffer, offset: usize, values: &mut [f32]) {
        buffer.read(offset, values);
    }

    fn finish(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn gather_rows(&self, x: &Buffer, row_len: usize, rows: &[usize], out: &mut Buffer) {
        for (row, out) in rows.iter().zip(out.host_mut().chunks_exact_mut(row_len)) {
            out.copy_from_slice(&x.host()[row * row_len..][..row_len]);
        }
    }

    fn store_columns(&self, args: StoreColumnsArgs<'_>) {
        let (len, out_len) = (args.row_len, args.out_len);
        assert!(
            args.first_column + len <= out_len,
            "store_columns: rows are too wide"
        );
        let rows = args.x.host().chunks_exact(len);
        let outs = args.out.host_mut().chunks_exact_mut(out_len);
        for (row, out) in rows.zip(outs).take(args.num_rows) {
            out[args.first_column..][..len].copy_from_slice(row);
        }
    }

    fn embed(&self, table: &Matrix, ids: &[u32], out: &mut Buffer) {
        for (id, out) in ids
            .iter()
            .zip(out.host_mut().chunks_exact_mut(table.cols()))
        {
            table.packed().row(*id as usize, out);
        }
    }

    fn linear(&self, args: LinearArgs<'_, '_>) {
        let Some(first) = args.projections.first() else {
            return;
        };
        let len = first.weight.cols();
        check("linear", "x", args.x.len(), args.num_rows * len);
        let dtypes: Vec<DType> = args
            .projections
            .iter()
            .map(|p| p.weight.packed().dtype)
            .collect();
        let mut x = self
            .activations
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.activate(
            &mut x,
            args.x.host(),
            args.num_rows,
            len,
            args.norm,
            &dtypes,
        );
        let store = if args.accumulate {
            Store::Accumulate
        } else {
            Store::Overwrite
        };
        let products: Vec<Product<'_>> = args
            .projections
            .iter_mut()
            .map(|p| {
                assert_eq!(
                    p.weight.cols(),
                    len,
                    "linear: all projections read the same rows"
                );
                check(
                    "linear",
                    "out",
                    p.out.len(),
                    args.num_rows * p.weight.rows(),
                );
                Product {
                    weight: p.weight.packed(),
                    up: None,
                    out: Shared::new(p.out.host_mut()),
                    store,
                }
            })
            .collect();
        self.multiply(&products, &x);
    }

    fn gated_linear(&self, args: GatedLinearArgs<'_>) {
        let (len, rows) = (args.gate.cols(), args.gate.rows());
        assert_eq!(
            (args.up.cols(), args.up.rows()),
            (len, rows),
            "gated_linear: gate and up have one shape"
        );
        check("gated_linear", "x", args.x.len(), args.num_rows * len);
        check("gated_linear", "out", args.out.len(), args.num_rows * rows);
        let mut x = self
            .activations
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let dtypes = [args.gate.packed().dtype, args.up.packed().dtype];
        self.activate(
            &mut x,
            args.x.host(),
            args.num_rows,
            len,
            args.norm,
            &dtypes,
        );
        let out = Shared::new(args.out.host_mut());
        let up = Some(args.up.packed());
        self.multiply(
            &[Product {
                weight: args.gate.packed(),
                up,
                out,
                store: Store::Overwrite,
            }],
            &x,
        );
    }

    fn attention(&self, args: AttentionArgs<'_>) {
        let (heads, kv_heads, dim) = (args.num_heads, args.num_kv_heads, args.head_dim);
        assert!(
            dim.is_multiple_of(16) && heads.is_multiple_of(kv_heads),
            "attention: head sizes"
        );
        assert!(
            args.window.is_none_or(|window| window.tokens > 0),
            "attention: a window holds at least the row itself"
        );
        let nodes = attention::nodes(args.segments, args.visibility, args.window);
        let rows = nodes.iter().map(|n| n.row + 1).max().unwrap_or(0);
        let q_stride = if args.gated { 2 * dim } else { dim };
        check("attention", "q", args.q.len(), rows * heads * q_stride);
        check("attention", "out", args.out.len(), rows * heads * dim);
        let (q_norm, k_norm) = attention::gammas(args.head_norm);
        let at: Vec<_> = nodes.iter().map(|n| (n.row, n.position)).collect();
        let (q_len, k_len) = (heads * q_stride, kv_heads * dim);
        let types = attention::types_of(args.cache);
        let of_heads = |stride, norm| Heads {
            stride,
            dim,
            norm,
            rope: args.rope,
            rotated: types.rotates_keys(),
        };
        self.prepare_rows(args.q, q_len, of_heads(q_stride, q_norm), &at);
        self.prepare_rows(args.k, k_len, of_heads(dim, k_norm), &at);
        store_rows(args.cache, args.segments, (k_len, dim), args.k, args.v);
        let next = AtomicUsize::new(0);
        let out = Shared::new(args.out.host_mut());
        let (q, k, v) = (args.q.host(), args.cache.k.kv(), args.cache.v.kv());
        self.pool.run(&|_| {
            self.dispatch(Attend {
                nodes: &nodes,
                next: &next,
                num_heads: heads,
                num_kv_heads: kv_heads,
                head_dim: dim,
                gated: args.gated,
                rotated: types.rotates_values(),
                q,
                k,
                v,
                out,
            });
        });
    }

    fn sparse_attention(&self, args: SparseAttentionArgs<'_>) {
        self.sparse_attention_op(args);
    }

    fn tail_products(&self, args: TailProductsArgs<'_>) {
        self.tail_products_op(args);
    }

    fn tail_weights(&self, args: TailWeightsArgs<'_>) {
        self.tail_weights_op(args);
    }

    fn kv_append(&self, args: KvAppendArgs<'_>) {
        let (dim, width) = (args.head_dim, args.num_kv_heads * args.head_dim);
        let at: Vec<_> = args
            .segments
            .iter()
            .flat_map(|s| {
                let first = s.first_position + s.committed_len;
                (0..s.parents.len()).map(move |i| (s.first_row + i, first + i))
            })
            .collect();
        let norm = args.k_norm.map(|norm| (norm.gamma.host(), norm.eps));
        let heads = Heads {
            stride: dim,
            dim,
            norm,
            rope: args.rope,
            rotated: attention::types_of(args.cache).rotates_keys(),
        };
        self.prepare_rows(args.k, width, heads, &at);
        store_rows(args.cache, args.segments, (width, dim), args.k, args.v);
    }

    fn top_k(&self, args: TopKArgs<'_>) {
        let (rows, k) = (args.num_rows, args.k);
        assert!(k <= args.vocab_size, "top_k: more ids than the vocabulary");
        check("top_k", "logits", args.logits.len(), rows * args.vocab_size);
        check("top_k", "ids", args.ids.len(), rows * k);
        for (what, there) in [("log_probs", &args.log_probs), ("values", &args.values)] {
            if let Some(there) = there {
                check("top_k", what, there.len(), rows * k);
            }
        }
        if rows == 0 || k == 0 {
            return;
        }
        let mut log_probs = args.log_probs.map(|all| all.chunks_exact_mut(k));
        let mut values = args.values.map(|all| all.chunks_exact_mut(k));
        let of_rows = std::iter::repeat_with(|| {
            let log_probs = log_probs.as_mut().and_then(Iterator::next);
            (log_probs, values.as_mut().and_then(Iterator::next))
        });
        let answers = args.ids.chunks_exact_mut(k).zip(of_rows);
        let rows = args
            .logits
            .host()
            .chunks_exact(args.vocab_size)
            .zip(answers);
        let queue = Mutex::new(rows.take(args.num_rows));
        self.pool.run(&|_| {
            let take = || {
                let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
                queue.next()
            };
            while let Some((logits, (ids, (log_probs, values)))) = take() {
                self.dispatch(TopKRow {
                    logits,
                    ids,
                    log_probs,
                    values,
                });
            }
        });
    }

    fn kv_commit(&self, args: KvCommitArgs<'_>) {
        for layer in args.layers {
            for (i, node) in args.path.iter().enumerate() {
                let (from, to) = (args.committed_len + node, args.committed_len + i);
                if from != to {
                    let heads = (layer.num_kv_heads, args.head_dim);
                    attention::move_row(layer.cache, args.pages, heads, from, to);
                }
            }
        }
    }

    fn delta_net(&self, args: DeltaNetArgs<'_>) {
        self.delta_net_op(args);
    }

    fn delta_net_commit(&self, args: DeltaNetCommitArgs<'_>) {
        self.delta_net_commit_op(args);
    }
}

/// What the system says that it can give.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

/// Writes rows of keys and values to the slots after the committed ones. `shape`: values of a row, head dim.
fn store_rows(
    cache: &mut KvLayer,
    segments: &[Segment<'_>],
    (width, head_dim): (usize, usize),
    k: &Buffer,
    v: &Buffer,
) {
    for segment in segments {
        for row in 0..segment.parents.len() {
            let at = (segment.first_row + row) * width;
            attention::store_row(
                cache,
                segment.pages,
                segment.committed_len + row,
                head_dim,
                &k.host()[at..][..width],
                &v.host()[at..][..width],
            );
        }
    }
}
