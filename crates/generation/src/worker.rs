//! What a worker says of itself.

use crate::speculation::SpeculationStats;

/// The model that a worker has loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelDescription {
    /// `general.name` of the model file, or its file name.
    pub name: String,
    /// Architecture as the model file names it.
    pub architecture: String,
    /// Tokens that one sequence can hold, prompt and answer together.
    pub context_length: u32,
    /// Tokens there are.
    pub vocab_size: u32,
    /// Sequences decoded at a time; more wait.
    pub max_sequences: u32,
    /// Device, for people.
    pub device: String,
}

/// Counters since the worker's start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerStats {
    /// Sequences being decoded now.
    pub running_sequences: u32,
    /// Requests waiting now.
    pub queued_requests: u32,
    /// Prompt tokens computed.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Forward passes.
    pub steps: u64,
    /// Requests answered to their end.
    pub finished_requests: u64,
    /// Requests whose client left.
    pub cancelled_requests: u64,
    /// What speculation did.
    pub speculation: SpeculationStats,
    /// What prefixes were good for.
    pub prefix_cache: PrefixCacheStats,
    /// What it takes now.
    pub memory: MemoryStats,
}

/// Memory of a worker, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Bytes of the host that its process has in use.
    pub resident_bytes: Option<u64>,
    /// Bytes that its device can still give.
    pub device_free_bytes: Option<u64>,
}

/// States that are kept for prompts that begin in the same way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixCacheStats {
    /// Requests that went on from one.
    pub hits: u64,
    /// Prompt tokens that were not computed for it.
    pub reused_tokens: u64,
    /// Prefixes that made room.
    pub evictions: u64,
    /// Prefixes that are kept now.
    pub prefixes: u64,
    /// Bytes that they hold now beside pages, which would be free otherwise.
    pub bytes: u64,
    /// Those that are kept in files as well.
    pub disk: DiskCacheStats,
}

/// Prefixes in files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskCacheStats {
    /// Requests that went on from one that was read for them.
    pub hits: u64,
    /// Prefixes read.
    pub loaded: u64,
    /// Bytes of them.
    pub loaded_bytes: u64,
    /// Microseconds of reading, waits for the device included.
    pub load_us: u64,
    /// Prefixes written.
    pub saved: u64,
    /// Bytes of them, without what was there already.
    pub saved_bytes: u64,
    /// Microseconds of writing, waits for the device included.
    pub save_us: u64,
    /// Prefixes that were to be written and were not.
    pub dropped: u64,
    /// Files that made room.
    pub evictions: u64,
    /// Files that were not used.
    pub refused: RefusedFiles,
    /// Prefixes in files now.
    pub prefixes: u64,
    /// Bytes of all files of the folder.
    pub bytes: u64,
}

/// Files that were not used, by what was wrong with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusedFiles {
    /// Their bytes are not those written.
    pub damaged: u64,
    /// Of another version of the format.
    pub version: u64,
    /// Whole, but of something else.
    pub foreign: u64,
    /// They went.
    pub missing: u64,
    /// The system could not read them.
    pub unreadable: u64,
    /// Not of this program; left alone.
    pub unknown: u64,
}
