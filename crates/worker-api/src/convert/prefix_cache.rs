//! What prefixes were good for.

use generation::{DiskCacheStats, PrefixCacheStats, RefusedFiles};
use proto::target::v1 as wire;

pub(super) fn stats_to_proto(stats: PrefixCacheStats) -> wire::PrefixCacheStats {
    wire::PrefixCacheStats {
        hits: stats.hits,
        reused_tokens: stats.reused_tokens,
        evictions: stats.evictions,
        prefixes: stats.prefixes,
        bytes: stats.bytes,
        disk: Some(disk_to_proto(stats.disk)),
    }
}

fn disk_to_proto(stats: DiskCacheStats) -> wire::DiskCacheStats {
    let refused = stats.refused;
    wire::DiskCacheStats {
        hits: stats.hits,
        loaded: stats.loaded,
        loaded_bytes: stats.loaded_bytes,
        load_us: stats.load_us,
        saved: stats.saved,
        saved_bytes: stats.saved_bytes,
        save_us: stats.save_us,
        dropped: stats.dropped,
        evictions: stats.evictions,
        refused: Some(wire::RefusedFiles {
            damaged: refused.damaged,
            version: refused.version,
            foreign: refused.foreign,
            missing: refused.missing,
            unreadable: refused.unreadable,
            unknown: refused.unknown,
        }),
        prefixes: stats.prefixes,
        bytes: stats.bytes,
    }
}

pub(super) fn stats_from_proto(stats: wire::PrefixCacheStats) -> PrefixCacheStats {
    PrefixCacheStats {
        hits: stats.hits,
        reused_tokens: stats.reused_tokens,
        evictions: stats.evictions,
        prefixes: stats.prefixes,
        bytes: stats.bytes,
        disk: disk_from_proto(stats.disk.unwrap_or_default()),
    }
}

fn disk_from_proto(stats: wire::DiskCacheStats) -> DiskCacheStats {
    let refused = stats.refused.unwrap_or_default();
    DiskCacheStats {
        hits: stats.hits,
        loaded: stats.loaded,
        loaded_bytes: stats.loaded_bytes,
        load_us: stats.load_us,
        saved: stats.saved,
        saved_bytes: stats.saved_bytes,
        save_us: stats.save_us,
        dropped: stats.dropped,
        evictions: stats.evictions,
        refused: RefusedFiles {
            damaged: refused.damaged,
            version: refused.version,
            foreign: refused.foreign,
            missing: refused.missing,
            unreadable: refused.unreadable,
            unknown: refused.unknown,
        },
        prefixes: stats.prefixes,
        bytes: stats.bytes,
    }
}
