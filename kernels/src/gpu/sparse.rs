//! Attention of a prompt's rows to the key blocks that weigh most.

use crate::device::{AttentionArgs, KvAppendArgs, PAGE_TOKENS, Visibility};
use crate::error::DeviceError;
use crate::gpu::device::GpuDevice;
use crate::gpu::driver::{DevicePtr, Launch, Source};
use crate::gpu::memory::ptr;
use crate::gpu::scratch::Scratch;
use crate::gpu::tables::TablePtrs;
use crate::gpu::tail::HeadArgs;
use crate::kv::KvType;
use crate::prompt::{
    DENSE_BLOCKS, KEY_BLOCK_TOKENS, NEAR_BLOCKS, SINK_BLOCKS, SparseAttentionArgs, mean_pages,
};

/// See gpu/sparse.cu.
const THREADS: u32 = 256;
const WARPS: usize = 8;
const MAX_HEAD_DIM: usize = 128;
/// Shared memory that kernels take beside what launches ask for.
const STATIC_BYTES: usize = 2048;
/// See gpu/warpgroup.h; lines begin at a multiple of eight.
const LINE_BYTES: usize = 128;
const ALIGN_BYTES: usize = 8 * LINE_BYTES;
/// Pages in shared memory at a time, as many of these as fit: see gpu/sparse.cu.
const STAGES: [usize; 3] = [5, 3, 2];

/// See gpu/sparse.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct KernelArgs {
    q: DevicePtr,
    k: DevicePtr,
    v: DevicePtr,
    means: DevicePtr,
    taken: DevicePtr,
    out: DevicePtr,
    tables: TablePtrs,
    of_queries: HeadArgs,
    num_heads: u32,
    num_kv_heads: u32,
    num_rows: u32,
    taken_len: u32,
    num_blocks: u32,
    sink_blocks: u32,
    near_blocks: u32,
    dense_blocks: u32,
    threshold: f32,
}

fn source(head_dim: usize, group: usize, stages: usize) -> Source {
    Source {
        name: "sparse.cu",
        text: include_str!("../../gpu/sparse.cu"),
        defines: vec![
            ("HEAD_DIM", head_dim.to_string()),
            ("GROUP", group.to_string()),
            ("STAGES", stages.to_string()),
        ],
    }
}

/// All that is launched for heads of common models; see [`crate::gpu::sources`].
pub(super) fn sources() -> Vec<Source> {
    let of_128 = STAGES.map(|stages| source(128, 2, stages));
    of_128
        .into_iter()
        .chain([source(64, 2, STAGES[0])])
        .collect()
}

/// Shared memory of a page of keys, and of one of keys and values; see gpu/warpgroup.h.
fn page_bytes(head_dim: usize) -> (usize, usize) {
    let keys = head_dim * LINE_BYTES;
    let halves = head_dim.div_ceil(LINE_BYTES / size_of::<u16>());
    (keys, keys + halves * PAGE_TOKENS * LINE_BYTES)
}

impl GpuDevice {
    pub(super) fn sparse_attention_op(
        &self,
        args: SparseAttentionArgs<'_>,
    ) -> Result<(), DeviceError> {
        let segment = args.segment();
        let SparseAttentionArgs {
            attention: args,
            num_tokens,
            threshold,
            means,
        } = args;
        let (heads, kv_heads, dim) = (args.num_heads, args.num_kv_heads, args.head_dim);
        let Some(stages) = self.stages(&args) else {
            return self.attention_op(args);
        };
        let rows = segment.parents.len();
        let check = |what: &str, got: usize, expected: usize| {
            assert!(
                got >= expected,
                "sparse_attention: {what} holds {got} values, {expected} are needed"
            );
        };
        check("q", args.q.len(), rows * heads * dim);
        check("out", args.out.len(), rows * heads * dim);
        if threshold > 0.0 {
            let len = mean_pages(num_tokens) * PAGE_TOKENS * kv_heads * dim;
            check("means", means.len(), len);
            assert!(means.on_gpu().kv_type == KvType::F16, "means are of f16");
        }
        self.kv_append_op(KvAppendArgs {
            num_kv_heads: kv_heads,
            head_dim: dim,
            k: args.k,
            v: args.v,
            k_norm: args.head_norm.map(|norm| norm.of_keys()),
            rope: args.rope,
            cache: args.cache,
            segments: args.segments,
        })?;
        let query_blocks = rows.div_ceil(KEY_BLOCK_TOKENS);
        let num_blocks = num_tokens.div_ceil(KEY_BLOCK_TOKENS);
        let taken_len = num_blocks + 1;
        let taken_bytes = query_blocks * heads * taken_len * size_of::<u32>();
        let norm = args.head_norm.map(|norm| norm.of_queries());
        let kernel_args = KernelArgs {
            q: ptr(args.q),
            k: ptr(&args.cache.k),
            v: ptr(&args.cache.v),
            means: match threshold > 0.0 {
                true => ptr(means),
                false => DevicePtr::NULL,
            },
            taken: self.scratch(Scratch::Lists, taken_bytes)?,
            out: ptr(args.out),
            // Those of the rows that were appended.
            tables: self.tables(args.segments, Visibility::All)?.ptrs,
            of_queries: self.head_args(norm, args.rope)?,
            num_heads: heads as u32,
            num_kv_heads: kv_heads as u32,
            num_rows: rows as u32,
            taken_len: taken_len as u32,
            num_blocks: num_blocks as u32,
            sink_blocks: SINK_BLOCKS as u32,
            near_blocks: NEAR_BLOCKS as u32,
            dense_blocks: DENSE_BLOCKS as u32,
            threshold,
        };
        let source = source(dim, heads / kv_heads, stages);
        let launch = |name, grid: [usize; 2], shared_bytes: usize| {
            let launch = Launch {
                grid: [grid[0] as u32, grid[1] as u32, 1],
                threads: THREADS,
                shared_bytes: shared_bytes as u32,
            };
            self.launch(&source, name, launch, &kernel_args)
        };
        launch("prepare_queries", [rows, heads.div_ceil(WARPS)], 0)?;
        let (keys, both) = page_bytes(dim);
        if threshold > 0.0 {
            launch("put_means", [query_blocks, kv_heads], 0)?;
        }
        let weights = num_blocks.next_multiple_of(PAGE_TOKENS) * size_of::<f32>();
        launch("take", [query_blocks, heads], ALIGN_BYTES + keys + weights)?;
        let shared_bytes = ALIGN_BYTES + stages * both;
        launch("attend_taken", [query_blocks, heads], shared_bytes)
    }

    /// Pages that shared memory holds at a time; `None` where these kernels do not do, and attention's own have to.
    fn stages(&self, args: &AttentionArgs<'_>) -> Option<usize> {
        let facts = self.facts();
        let has_units = facts.arch.starts_with("sm_") || facts.arch == "host";
        let is_f16 = [&args.cache.k, &args.cache.v]
            .iter()
            .all(|kept| kept.on_gpu().kv_type == KvType::F16);
        let fits_kernel = args.head_dim.is_multiple_of(16) && args.head_dim <= MAX_HEAD_DIM;
        let (_, both) = page_bytes(args.head_dim);
        let taken = STATIC_BYTES + ALIGN_BYTES;
        let room = (facts.shared_bytes_per_block as usize).saturating_sub(taken);
        let mut stages = STAGES.into_iter();
        let stages = stages.find(|stages| stages * both <= room)?;
        (has_units && is_f16 && fits_kernel).then_some(stages)
    }
}
