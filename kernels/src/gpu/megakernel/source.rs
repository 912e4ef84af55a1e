//! The source of gpu/megakernel.cu for a step.

use tensor::DType;

use crate::device::DeltaNetShape;
use crate::gpu::attention::HeadShape;
use crate::gpu::delta_net;
use crate::gpu::driver::Source;
use crate::gpu::tables::NONE;
use crate::kv::{KvType, KvTypes};

/// What the kernel is compiled for.
#[derive(Clone, Copy)]
pub(super) struct Constants<'a> {
    /// A bit mask of the weights' types.
    pub types: u32,
    pub warps: usize,
    /// Pieces of the ring.
    pub stages: usize,
    /// Shared memory of what a phase works with, and of the sums of products.
    pub work_bytes: usize,
    pub slot_bytes: usize,
    pub copies_by_lanes: bool,
    /// The type of the table that ids are embedded by.
    pub embedded: Option<DType>,
    pub delta: Option<&'a DeltaNetShape>,
    pub heads: Option<&'a HeadShape>,
}

impl Constants<'_> {
    pub fn source(&self) -> Source {
        let is = |there: bool| u32::from(there).to_string();
        let embedded = self.embedded.map_or(NONE, DType::ggml_id);
        let mut defines = vec![
            ("EMBED_TYPE", embedded.to_string()),
            ("COPIES_BY_LANES", is(self.copies_by_lanes)),
            ("TYPES", self.types.to_string()),
            ("BLOCK_WARPS", self.warps.to_string()),
            ("STAGES", self.stages.to_string()),
            ("WORK_BYTES", self.work_bytes.to_string()),
            ("SLOT_BYTES", self.slot_bytes.to_string()),
            ("HAS_DELTA", is(self.delta.is_some())),
            ("HAS_ATTENTION", is(self.heads.is_some())),
        ];
        defines.extend(self.delta.map(delta_net::defines).unwrap_or_default());
        defines.extend(
            self.heads
                .map_or_else(Vec::new, HeadShape::megakernel_defines),
        );
        Source {
            name: "megakernel.cu",
            text: include_str!("../../../gpu/megakernel.cu"),
            defines,
        }
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
        Constants {
            types,
            warps: 16,
            stages,
            work_bytes: 17 << 10,
            slot_bytes: 8 << 10,
            copies_by_lanes: false,
            embedded,
            delta,
            heads: Some(&heads),
        }
        .source()
    });
    let by_lanes =
        [(&[DType::BF16][..], 8, bf16), (&mixed, 16, q6)].map(|(of, stages, embedded)| {
            Constants {
                types: types(of),
                warps: 8,
                stages,
                work_bytes: 17 << 10,
                slot_bytes: 8 << 10,
                copies_by_lanes: true,
                embedded,
                delta: Some(&hybrid),
                heads: Some(&of_hybrid),
            }
            .source()
        });
    by_bulk.into_iter().chain(by_lanes).collect()
}
