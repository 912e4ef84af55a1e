//! How much the last rows of a prompt attend to each of its tokens.

use crate::device::{Norm, RopeArgs, RopeStyle};
use crate::error::DeviceError;
use crate::gpu::device::GpuDevice;
use crate::gpu::driver::{DevicePtr, Launch, Source};
use crate::gpu::scratch::Scratch;
use crate::prompt::{TailProductsArgs, TailWeightsArgs};

/// See gpu/tail.cu.
const THREADS: u32 = 256;
const KEYS: usize = 128;

/// How queries or keys become what attends; see gpu/turns.h.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct HeadArgs {
    gamma: DevicePtr,
    turns: DevicePtr,
    eps: f32,
    pairs: u32,
    adjacent: u32,
}

/// See gpu/tail.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct ProductsArgs {
    q: DevicePtr,
    k: DevicePtr,
    products: DevicePtr,
    of_queries: HeadArgs,
    of_keys: HeadArgs,
    num_heads: u32,
    num_kv_heads: u32,
    num_tokens: u32,
    num_queries: u32,
    first_key: u32,
    num_keys: u32,
}

/// See gpu/tail.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct WeightsArgs {
    products: DevicePtr,
    tops: DevicePtr,
    out: DevicePtr,
    num_heads: u32,
    num_tokens: u32,
    num_queries: u32,
}

fn source(head_dim: usize, group: usize) -> Source {
    Source {
        name: "tail.cu",
        text: include_str!("../../gpu/tail.cu"),
        defines: vec![
            ("HEAD_DIM", head_dim.to_string()),
            ("GROUP", group.to_string()),
        ],
    }
}

/// All that is launched for heads of common models; see [`crate::gpu::sources`].
pub(super) fn sources() -> Vec<Source> {
    vec![source(128, 2), source(64, 3)]
}

fn check(what: &str, got: usize, expected: usize) {
    assert!(
        got >= expected,
        "tail of a prompt: {what} holds {got} values, {expected} are needed"
    );
}

impl GpuDevice {
    pub(super) fn head_args(
        &self,
        norm: Option<Norm<'_>>,
        rope: RopeArgs<'_>,
    ) -> Result<HeadArgs, DeviceError> {
        let turns = match rope.inv_freq {
            [] => DevicePtr::NULL,
            inv_freq => self.turns.of(&self.driver, inv_freq)?,
        };
        Ok(HeadArgs {
            gamma: norm.map_or(DevicePtr::NULL, |norm| norm.gamma.on_gpu().memory.ptr()),
            turns,
            eps: norm.map_or(0.0, |norm| norm.eps),
            pairs: rope.inv_freq.len() as u32,
            adjacent: u32::from(rope.style == RopeStyle::Adjacent),
        })
    }

    pub(super) fn tail_products_op(&self, args: TailProductsArgs<'_>) -> Result<(), DeviceError> {
        let (heads, kv_heads, dim) = (args.num_heads, args.num_kv_heads, args.head_dim);
        let (tokens, queries, keys) = (args.num_tokens, args.num_queries, args.num_keys);
        assert!(
            queries <= tokens && args.first_key + keys <= tokens,
            "tail of a prompt: more rows than it has"
        );
        check("q", args.q.len(), queries * heads * dim);
        check("k", args.k.len(), keys * kv_heads * dim);
        check("out", args.out.len(), queries * heads * tokens);
        let norm = args.head_norm;
        let products = ProductsArgs {
            q: args.q.on_gpu().memory.ptr(),
            k: args.k.on_gpu().memory.ptr(),
            products: args.out.on_gpu().memory.ptr(),
            of_queries: self.head_args(norm.map(|norm| norm.of_queries()), args.rope)?,
            of_keys: self.head_args(norm.map(|norm| norm.of_keys()), args.rope)?,
            num_heads: heads as u32,
            num_kv_heads: kv_heads as u32,
            num_tokens: tokens as u32,
            num_queries: queries as u32,
            first_key: args.first_key as u32,
            num_keys: keys as u32,
        };
        let group = heads / kv_heads;
        let launch = Launch {
            grid: [keys.div_ceil(KEYS) as u32, kv_heads as u32, 1],
            threads: THREADS,
            shared_bytes: (queries * group * dim * size_of::<f32>()) as u32,
        };
        self.launch(&source(dim, group), "tail_products", launch, &products)
    }

    pub(super) fn tail_weights_op(&self, args: TailWeightsArgs<'_>) -> Result<(), DeviceError> {
        let (heads, tokens, queries) = (args.num_heads, args.num_tokens, args.num_queries);
        assert!(queries <= tokens, "tail of a prompt: more rows than it has");
        check("products", args.products.len(), queries * heads * tokens);
        check("out", args.out.len(), queries * tokens);
        let tops = queries * heads * 2 * size_of::<f32>();
        let weights = WeightsArgs {
            products: args.products.on_gpu().memory.ptr(),
            tops: self.scratch(Scratch::Partials, tops)?,
            out: args.out.on_gpu().memory.ptr(),
            num_heads: heads as u32,
            num_tokens: tokens as u32,
            num_queries: queries as u32,
        };
        // These kernels look at no head's dims.
        let source = source(64, 1);
        let of = |columns: usize| Launch {
            grid: [columns as u32, queries as u32, 1],
            threads: THREADS,
            shared_bytes: 0,
        };
        self.launch(&source, "tail_tops", of(heads), &weights)?;
        let runs = tokens.div_ceil(THREADS as usize);
        self.launch(&source, "tail_weights", of(runs), &weights)
    }
}
