//! What speculation did, as the target counts it.

use generation::SpeculationStats;
use metrics::{Gauge, Key, KeyName, Label, Recorder, SharedString};
use metrics_exporter_prometheus::PrometheusRecorder;

use crate::metrics::METADATA;

const ACCEPTED_AT: &str = "tandem_speculation_accepted_at_position";
const STAGE: &str = "tandem_speculation_stage_seconds";

/// All start anew with the target, so that they are gauges here.
pub(super) struct SpeculationGauges {
    draft_up: Gauge,
    drafts_lost: Gauge,
    draft_timeouts: Gauge,
    rounds: Gauge,
    plain_tokens: Gauge,
    draft_tokens: Gauge,
    accepted_tokens: Gauge,
    checked_tokens: Gauge,
    mismatched_tokens: Gauge,
    /// Draft, channel, tree, verify, commit.
    stages: [Gauge; 5],
}

impl SpeculationGauges {
    pub fn new(recorder: &PrometheusRecorder) -> Self {
        describe(recorder);
        let gauge = |name| recorder.register_gauge(&Key::from_static_name(name), &METADATA);
        let stage = |name| labelled(recorder, STAGE, Label::new("stage", name));
        Self {
            draft_up: gauge("tandem_draft_up"),
            drafts_lost: gauge("tandem_drafts_lost"),
            draft_timeouts: gauge("tandem_draft_timeouts"),
            rounds: gauge("tandem_speculation_rounds"),
            plain_tokens: gauge("tandem_speculation_plain_tokens"),
            draft_tokens: gauge("tandem_speculation_draft_tokens"),
            accepted_tokens: gauge("tandem_speculation_accepted_tokens"),
            checked_tokens: gauge("tandem_lossless_checked_tokens"),
            mismatched_tokens: gauge("tandem_lossless_mismatches"),
            stages: ["draft", "channel", "tree", "verify", "commit"].map(stage),
        }
    }

    pub fn set(&self, recorder: &PrometheusRecorder, stats: &SpeculationStats) {
        self.draft_up.set(f64::from(u8::from(stats.draft_attached)));
        for (gauge, count) in [
            (&self.drafts_lost, stats.drafts_lost),
            (&self.draft_timeouts, stats.draft_timeouts),
            (&self.rounds, stats.rounds),
            (&self.plain_tokens, stats.plain_tokens),
            (&self.draft_tokens, stats.draft_tokens),
            (&self.accepted_tokens, stats.accepted_tokens),
            (&self.checked_tokens, stats.checked_tokens),
            (&self.mismatched_tokens, stats.mismatched_tokens),
        ] {
            gauge.set(count as f64);
        }
        let stages_us = [
            stats.draft_us,
            stats.channel_us,
            stats.tree_us,
            stats.verify_us,
            stats.commit_us,
        ];
        for (gauge, us) in self.stages.iter().zip(stages_us) {
            gauge.set(us as f64 / 1e6);
        }
        for (position, rounds) in accepted_at(&stats.rounds_by_accepted) {
            let label = Label::new("position", position.to_string());
            labelled(recorder, ACCEPTED_AT, label).set(rounds as f64);
        }
    }

    /// The target does not answer.
    pub fn set_down(&self) {
        self.draft_up.set(0.0);
    }
}

/// Positions after the anchor, from 1 on, and the rounds that accepted the draft token there: those that accepted as
/// many or more.
fn accepted_at(rounds_by_accepted: &[u64]) -> Vec<(usize, u64)> {
    let mut rounds = 0;
    let mut positions: Vec<(usize, u64)> = rounds_by_accepted
        .iter()
        .enumerate()
        .skip(1)
        .rev()
        .map(|(position, ended)| {
            rounds += ended;
            (position, rounds)
        })
        .collect();
    positions.reverse();
    positions
}

fn labelled(recorder: &PrometheusRecorder, name: &'static str, label: Label) -> Gauge {
    recorder.register_gauge(&Key::from_parts(name, vec![label]), &METADATA)
}

fn describe(recorder: &PrometheusRecorder) {
    for (name, text) in [
        ("tandem_draft_up", "Whether the target has a draft"),
        ("tandem_drafts_lost", "Drafts lost since the target's start"),
        (
            "tandem_draft_timeouts",
            "Proposals that did not come in time, since the target's start",
        ),
        (
            "tandem_speculation_rounds",
            "Drafts verified since the target's start",
        ),
        (
            "tandem_speculation_plain_tokens",
            "Tokens decoded without a draft since the target's start",
        ),
        (
            "tandem_speculation_draft_tokens",
            "Draft tokens verified since the target's start",
        ),
        (
            "tandem_speculation_accepted_tokens",
            "Draft tokens accepted since the target's start",
        ),
        (
            ACCEPTED_AT,
            "Rounds that accepted a draft token so many positions after the anchor, since the target's start",
        ),
        (
            STAGE,
            "Seconds of each stage of speculation since the target's start",
        ),
        (
            "tandem_lossless_checked_tokens",
            "Tokens held against plain decoding since the target's start",
        ),
        (
            "tandem_lossless_mismatches",
            "Tokens that plain decoding would have chosen otherwise; anything but 0 is a bug",
        ),
    ] {
        let text = SharedString::const_str(text);
        recorder.describe_gauge(KeyName::from_const_str(name), None, text);
    }
}

#[cfg(test)]
mod tests {
    use super::accepted_at;

    #[test]
    fn a_round_that_accepted_three_accepted_at_all_three_positions() {
        assert_eq!(accepted_at(&[5, 2, 0, 4]), [(1, 6), (2, 4), (3, 4)]);
        assert_eq!(accepted_at(&[]), []);
        assert_eq!(accepted_at(&[9]), []);
    }
}
