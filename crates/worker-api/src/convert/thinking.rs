//! How reasoning is marked and bounded.

use generation::ThinkingLimit;
use proto::target::v1 as wire;

use crate::error::WorkerError;

pub(super) fn to_proto(limit: ThinkingLimit) -> wire::Thinking {
    wire::Thinking {
        budget: limit.budget,
        starts_inside: limit.starts_inside,
        open_id: limit.open_id,
        close_id: Some(limit.close_id),
        terminator: limit.terminator,
        blank_ids: limit.blank_ids,
    }
}

pub(super) fn from_proto(limit: wire::Thinking) -> Result<ThinkingLimit, WorkerError> {
    let close_id = limit.close_id.ok_or_else(|| {
        WorkerError::Invalid("GenerateRequest.thinking.close_id is missing".to_owned())
    })?;
    Ok(ThinkingLimit {
        budget: limit.budget,
        starts_inside: limit.starts_inside,
        open_id: limit.open_id,
        close_id,
        terminator: limit.terminator,
        blank_ids: limit.blank_ids,
    })
}
