//! The source of gpu/megakernel.cu for a step.

use tensor::DType;

use crate::device::DeltaNetShape;
use crate::gpu::attention::HeadShape;
use crate::gpu::delta_net;
use crate::gpu::driver::Source;
use crate::gpu::tables::NONE;
use crate::kv::{KvType, KvTypes};

/// The kernel for steps with such weights, and with such layers where there are some.
pub(super) fn source(
    types: u32,
    warps: usize,
    stages: usize,
    copies_by_lanes: bool,
    embedded: Option<DType>,
    delta: Option<&DeltaNetShape>,
    heads: Option<&HeadShape>,
) -> Source {
    let mut defines = vec![
        (
            "EMBED_TYPE",
            embedded.map_or(NONE, DType::ggml_id).to_string(),
        ),
        ("COPIES_BY_LANES", u32::from(copies_by_lanes).to_string()),
        ("TYPES", types.to_string()),
        ("BLOCK_WARPS", warps.to_string()),
        ("STAGES", stages.to_string()),
        ("HAS_DELTA", u32::from(delta.is_some()).to_string()),
        ("HAS_ATTENTION", u32::from(heads.is_some()).to_string()),
    ];
    defines.extend(delta.map(delta_net::defines).unwrap_or_default());
    defines.extend(heads.map_or_else(Vec::new, HeadShape::megakernel_defines));
    Source {
        name: "megakernel.cu",
        text: include_str!("../../../gpu/megakernel.cu"),
        defines,
    }
}

/// For steps of published small models: hybrid ones with several types of weights, and a dense one; see [`crate::gpu::sources`].
pub(in crate::gpu) fn sources() -> Vec<Source> {
    let hybrid = DeltaNetShape {
        num_k_heads: 16,
        num_v_heads: 16,
        k_dim: 128,
        v_dim: 128,
        conv_taps: 4,
    };
    let heads = |num_heads, num_kv_heads, head_dim, kv_type| HeadShape {
        num_heads,
        num_kv_heads,
        head_dim,
        types: KvTypes::both(kv_type),
    };
    let types = |dtypes: &[DType]| dtypes.iter().fold(0, |mask, d| mask | 1 << d.ggml_id());
    let of_hybrid = heads(8, 2, 256, KvType::F16);
    let of_dense = heads(16, 8, 128, KvType::Q8_0);
    let mixed = [DType::Q4K, DType::Q6K, DType::Q8_0];
    let (bf16, q8, q6) = (Some(DType::BF16), Some(DType::Q8_0), Some(DType::Q6K));
    let by_bulk = [
        (types(&[DType::BF16]), 17, bf16, Some(&hybrid), of_hybrid),
        (types(&[DType::Q8_0]), 40, q8, Some(&hybrid), of_hybrid),
        (types(&mixed), 40, q6, Some(&hybrid), of_hybrid),
        (types(&[DType::BF16]), 17, bf16, None, of_dense),
    ]
    .map(|(types, stages, embedded, delta, heads)| {
        source(types, 16, stages, false, embedded, delta, Some(&heads))
    });
    let by_lanes =
        [(&[DType::BF16][..], 8, bf16), (&mixed, 16, q6)].map(|(of, stages, embedded)| {
            let (delta, heads) = (Some(&hybrid), Some(&of_hybrid));
            source(types(of), 8, stages, true, embedded, delta, heads)
        });
    by_bulk.into_iter().chain(by_lanes).collect()
}
