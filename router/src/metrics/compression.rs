//! What became of long prompts.

use std::time::Duration;

use api_types::CompressionReport;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Recorder, SharedString};
use metrics_exporter_prometheus::PrometheusRecorder;

use crate::compression::Skip;
use crate::metrics::METADATA;

/// Seconds that choosing took; 0 where all was remembered.
pub(super) const SECONDS: &str = "tandem_compression_seconds";
const RUNS: &str = "tandem_compressions_total";
const SKIPPED: &str = "tandem_compressions_skipped_total";
const DRAFT_MOVES: &str = "tandem_draft_moves_total";
const DRAFT_MOVE_SECONDS: &str = "tandem_draft_move_seconds";
const TARGET_MOVES: &str = "tandem_target_moves_total";
const TARGET_MOVE_SECONDS: &str = "tandem_target_move_seconds";

pub(super) const BUCKETS: [f64; 12] = [
    0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0,
];

/// The series of prompts that are made shorter.
pub(crate) struct CompressionSeries {
    /// Of whole prompts, and of messages one by one.
    runs: [Counter; 2],
    tokens_in: Counter,
    tokens_out: Counter,
    seconds: Histogram,
    skipped: [Counter; Skip::ALL.len()],
    pub draft: Moves,
    pub target: Moves,
}

/// The series of a worker that leaves its device for long prompts and comes back, and what the last time of each took.
pub(crate) struct Moves([(Counter, Gauge); 2]);

impl Moves {
    fn new(recorder: &PrometheusRecorder, count: &'static str, seconds: &'static str) -> Self {
        Self(["parked", "unparked"].map(|move_| {
            let key = |name| Key::from_parts(name, vec![Label::new("move", move_)]);
            (
                recorder.register_counter(&key(count), &METADATA),
                recorder.register_gauge(&key(seconds), &METADATA),
            )
        }))
    }

    /// It left.
    pub fn parked(&self, elapsed: Duration) {
        self.moved(0, elapsed);
    }

    /// It came back.
    pub fn unparked(&self, elapsed: Duration) {
        self.moved(1, elapsed);
    }

    fn moved(&self, which: usize, elapsed: Duration) {
        let (count, seconds) = &self.0[which];
        count.increment(1);
        seconds.set(elapsed.as_secs_f64());
    }
}

impl CompressionSeries {
    pub fn new(recorder: &PrometheusRecorder) -> Self {
        describe(recorder);
        let counter = |name| recorder.register_counter(&Key::from_static_name(name), &METADATA);
        let labelled =
            |name, label| recorder.register_counter(&Key::from_parts(name, vec![label]), &METADATA);
        Self {
            runs: ["prompt", "messages"].map(|scope| labelled(RUNS, Label::new("scope", scope))),
            tokens_in: counter("tandem_compression_tokens_in_total"),
            tokens_out: counter("tandem_compression_tokens_out_total"),
            seconds: recorder.register_histogram(&Key::from_static_name(SECONDS), &METADATA),
            draft: Moves::new(recorder, DRAFT_MOVES, DRAFT_MOVE_SECONDS),
            target: Moves::new(recorder, TARGET_MOVES, TARGET_MOVE_SECONDS),
            skipped: Skip::ALL.map(|skip| labelled(SKIPPED, Label::new("reason", skip.as_str()))),
        }
    }

    /// A prompt was made shorter.
    pub fn ran(&self, report: &CompressionReport, elapsed: Duration) {
        self.runs[usize::from(report.scope != "prompt")].increment(1);
        self.tokens_in.increment(report.original_tokens.into());
        self.tokens_out.increment(report.kept_tokens.into());
        self.seconds.record(elapsed);
    }

    /// A prompt stays whole, or a part of it.
    pub fn skipped(&self, skip: Skip) {
        for (known, counter) in Skip::ALL.iter().zip(&self.skipped) {
            if *known == skip {
                counter.increment(1);
            }
        }
    }
}

fn describe(recorder: &PrometheusRecorder) {
    for (name, text) in [
        (RUNS, "Prompts made shorter, by what was weighed together"),
        (
            "tandem_compression_tokens_in_total",
            "Tokens of such prompts as they were sent",
        ),
        (
            "tandem_compression_tokens_out_total",
            "Tokens of them that the model saw",
        ),
        (SKIPPED, "Prompts that stayed whole, or parts of them"),
        (
            DRAFT_MOVES,
            "How often the draft left its device for a long prompt, and came back",
        ),
        (
            TARGET_MOVES,
            "How often the target left its device for a long prompt, and came back",
        ),
    ] {
        let text = SharedString::const_str(text);
        recorder.describe_counter(KeyName::from_const_str(name), None, text);
    }
    for (name, text) in [
        (DRAFT_MOVE_SECONDS, "What the draft's last move took"),
        (TARGET_MOVE_SECONDS, "What the target's last move took"),
    ] {
        let text = SharedString::const_str(text);
        recorder.describe_gauge(KeyName::from_const_str(name), None, text);
    }
    let text = SharedString::const_str("What making a prompt shorter took");
    recorder.describe_histogram(KeyName::from_const_str(SECONDS), None, text);
}
