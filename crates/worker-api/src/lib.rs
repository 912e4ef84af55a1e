//! Calls to the workers over gRPC: conversions, clients, status codes.

#![forbid(unsafe_code)]

mod client;
mod connect;
mod convert;
mod draft_client;
mod error;
mod health;
mod joining;
mod prefill;
mod prefill_client;
mod session;
mod stage;
mod stage_client;
mod status;

pub use client::{Attachment, GenerateStream, Parking, RoundStream, TargetClient};
pub use convert::{
    compress_event_to_proto, compress_request_from_proto, description_to_proto,
    draft_stats_to_proto, draft_to_proto, event_to_proto, later_stage_from_proto,
    prefill_stats_to_proto, prefill_to_proto, request_from_proto, round_to_proto,
    session_from_proto, session_to_proto, stage_session_to_proto, stats_to_proto,
    transports_from_proto,
};
pub use draft_client::{DraftClient, OpenSession};
pub use error::{SessionError, WorkerError};
pub use health::check_health;
pub use joining::{Joined, join};
pub use prefill::{
    CompressError, CompressEvent, CompressPhase, CompressProgress, CompressRequest,
    CompressTimings, Compression, PrefillDescription, PrefillStats,
};
pub use prefill_client::{CompressStream, PrefillClient};
pub use session::{DraftDescription, DraftSession, DraftStats, SpeculationDescription};
pub use stage::{LaterStage, StageDescription, StageSession};
pub use stage_client::{OpenStage, StageClient};
pub use status::{compress_status, park_status, session_status, to_status};
// Of a worker's counters; who only fills it in needs no more of requests than this.
pub use generation::MemoryStats;
// Of a session; who only passes it on needs no more of channels than this.
pub use tensor_channel::Transport;
