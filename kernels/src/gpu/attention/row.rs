//! Attention of rows by themselves, by clusters: see gpu/attention_row.cu.

use std::sync::atomic::Ordering;

use crate::device::PAGE_TOKENS;
use crate::gpu::attention::launches::{
    AttendArgs, MAX_COLUMNS, PrepareArgs, SPLIT, STATIC_BYTES, Shape,
};
use crate::gpu::device::GpuDevice;
use crate::gpu::driver::{Launch, Source};
use crate::kv::KvType;

/// Blocks of a cluster that attends to a row's split.
const PAGES_OF_SPLIT: usize = SPLIT / PAGE_TOKENS;
/// Clusters of a launch for each that runs at a time with a multiprocessor for every block, at most.
const CLUSTERS_AT_ONCE: usize = 3;

impl Shape {
    /// See gpu/attention_row.cu.
    pub(super) fn attend_row(&self, pairs: u32) -> Source {
        let mut source = self.source(
            "attention_row.cu",
            include_str!("../../../gpu/attention_row.cu"),
        );
        source.defines.extend([
            ("GROUP", self.group().to_string()),
            ("TURNED_PAIRS", pairs.to_string()),
        ]);
        source
    }

    /// Whether that knows such heads.
    fn fits_row(&self, prepare: &PrepareArgs) -> bool {
        // A lane has both of a pair.
        let is_turned = prepare.adjacent == 0 && prepare.pairs.is_multiple_of(32);
        let is_plain = |kv_type| matches!(kv_type, KvType::F16 | KvType::Bf16);
        is_turned
            && is_plain(self.types.k)
            && is_plain(self.types.v)
            && self.head_dim.is_multiple_of(16 * PAGES_OF_SPLIT)
            && self.head_dim <= PAGE_TOKENS * PAGES_OF_SPLIT
            && self.group() < MAX_COLUMNS
    }

    pub(super) fn row_launch(&self, args: &AttendArgs) -> Launch {
        let rows = args.end_row - args.first_row;
        let halves = (self.head_dim + SPLIT) * PAGE_TOKENS * 2;
        let pitches = (self.head_dim + SPLIT) * 4 + 2 * 32;
        Launch {
            grid: [
                rows * args.num_splits * PAGES_OF_SPLIT as u32,
                self.num_kv_heads as u32,
                1,
            ],
            threads: 256,
            shared_bytes: (MAX_COLUMNS * pitches + halves) as u32,
        }
    }
}

impl GpuDevice {
    /// Whether a cluster takes a split of a row by itself: where there are so few that their latency counts. Pages are read before the launches in front
    /// of it have ended, so nothing but attention may write them.
    pub(super) fn attends_by_clusters(
        &self,
        shape: &Shape,
        args: &AttendArgs,
        raw: &PrepareArgs,
    ) -> bool {
        let facts = self.facts();
        let rows = (args.end_row - args.first_row) as usize;
        let clusters = rows * shape.num_kv_heads * args.num_splits as usize;
        let at_a_time = facts.clusters_of(PAGES_OF_SPLIT);
        // Emulation has no speed to choose by.
        let are_few = clusters <= CLUSTERS_AT_ONCE * at_a_time || facts.arch == "host";
        let room = facts.shared_bytes_per_block as usize;
        // Relaxed: the thread that drives the device asks.
        !self.appends.load(Ordering::Relaxed)
            && shape.fits_row(raw)
            && at_a_time > 0
            && are_few
            && shape.row_launch(args).shared_bytes as usize + STATIC_BYTES <= room
    }
}
