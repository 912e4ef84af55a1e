//! What speculation did, and how a target speculates.

use generation::{SpeculationConfig, SpeculationStats, SpeculationTimings, UnknownSpeculationMode};
use proto::target::v1 as wire;

use crate::convert::transports_from_proto;
use crate::error::WorkerError;
use crate::session::SpeculationDescription;

pub(crate) fn speculation_from_proto(model: &wire::ModelDescription) -> SpeculationDescription {
    SpeculationDescription {
        mode: model.speculation.clone(),
        hidden_size: model.hidden_size,
        num_layers: model.num_layers,
        transports: transports_from_proto(&model.transports),
    }
}

pub(super) fn config_to_proto(config: SpeculationConfig) -> wire::Speculation {
    wire::Speculation {
        mode: config.mode.name().to_owned(),
        budget: u32::try_from(config.budget).unwrap_or(u32::MAX),
    }
}

pub(super) fn config_from_proto(
    config: &wire::Speculation,
) -> Result<SpeculationConfig, WorkerError> {
    let mode = config.mode.parse();
    Ok(SpeculationConfig {
        mode: mode
            .map_err(|error: UnknownSpeculationMode| WorkerError::Invalid(error.to_string()))?,
        budget: config.budget as usize,
    })
}

pub(super) fn timings_to_proto(timings: &SpeculationTimings) -> wire::SpeculationTimings {
    wire::SpeculationTimings {
        rounds: timings.rounds,
        draft_tokens: timings.draft_tokens,
        draft_accepted_tokens: timings.accepted_tokens,
        draft_ms: timings.draft_ms,
        channel_ms: timings.channel_ms,
        tree_ms: timings.tree_ms,
        verify_ms: timings.verify_ms,
        commit_ms: timings.commit_ms,
    }
}

pub(super) fn timings_from_proto(timings: &wire::SpeculationTimings) -> SpeculationTimings {
    SpeculationTimings {
        rounds: timings.rounds,
        draft_tokens: timings.draft_tokens,
        accepted_tokens: timings.draft_accepted_tokens,
        draft_ms: timings.draft_ms,
        channel_ms: timings.channel_ms,
        tree_ms: timings.tree_ms,
        verify_ms: timings.verify_ms,
        commit_ms: timings.commit_ms,
    }
}

pub(super) fn stats_to_proto(stats: SpeculationStats) -> wire::SpeculationStats {
    wire::SpeculationStats {
        draft_attached: stats.draft_attached,
        drafts_lost: stats.drafts_lost,
        draft_timeouts: stats.draft_timeouts,
        rounds: stats.rounds,
        plain_tokens: stats.plain_tokens,
        draft_tokens: stats.draft_tokens,
        draft_accepted_tokens: stats.accepted_tokens,
        rounds_by_accepted: stats.rounds_by_accepted,
        draft_us: stats.draft_us,
        channel_us: stats.channel_us,
        tree_us: stats.tree_us,
        verify_us: stats.verify_us,
        commit_us: stats.commit_us,
        lossless_checked_tokens: stats.checked_tokens,
        lossless_mismatches: stats.mismatched_tokens,
    }
}

pub(super) fn stats_from_proto(stats: wire::SpeculationStats) -> SpeculationStats {
    SpeculationStats {
        draft_attached: stats.draft_attached,
        drafts_lost: stats.drafts_lost,
        draft_timeouts: stats.draft_timeouts,
        rounds: stats.rounds,
        plain_tokens: stats.plain_tokens,
        draft_tokens: stats.draft_tokens,
        accepted_tokens: stats.draft_accepted_tokens,
        rounds_by_accepted: stats.rounds_by_accepted,
        draft_us: stats.draft_us,
        channel_us: stats.channel_us,
        tree_us: stats.tree_us,
        verify_us: stats.verify_us,
        commit_us: stats.commit_us,
        checked_tokens: stats.lossless_checked_tokens,
        mismatched_tokens: stats.lossless_mismatches,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stats_come_back_as_they_went() {
        let stats = SpeculationStats {
            draft_attached: true,
            drafts_lost: 1,
            draft_timeouts: 2,
            rounds: 3,
            plain_tokens: 4,
            draft_tokens: 5,
            accepted_tokens: 6,
            rounds_by_accepted: vec![7, 8],
            draft_us: 9,
            channel_us: 10,
            tree_us: 11,
            verify_us: 12,
            commit_us: 13,
            checked_tokens: 14,
            mismatched_tokens: 15,
        };
        assert_eq!(stats_from_proto(stats_to_proto(stats.clone())), stats);
    }
}
