//! What a worker takes.

use generation::MemoryStats;
use proto::worker::v1 as wire;

pub(super) fn memory_to_proto(memory: MemoryStats) -> wire::Memory {
    wire::Memory {
        resident_bytes: memory.resident_bytes,
        device_free_bytes: memory.device_free_bytes,
    }
}

pub(super) fn memory_from_proto(memory: wire::Memory) -> MemoryStats {
    MemoryStats {
        resident_bytes: memory.resident_bytes,
        device_free_bytes: memory.device_free_bytes,
    }
}
