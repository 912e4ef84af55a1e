//! What the router counts, as Prometheus reads it. Each router has a recorder of its own.

mod compression;
mod disk_cache;
mod prefix_cache;
mod speculation;

use std::fmt;
use std::time::Duration;

use generation::{CloseKind, WorkerStats};
use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, Recorder, SharedString,
};
use metrics_exporter_prometheus::{
    BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};

use crate::answer::Tally;
use crate::deadlines::Wait;
use crate::metrics::compression::CompressionSeries;
use crate::metrics::disk_cache::DiskCacheGauges;
use crate::metrics::prefix_cache::PrefixCacheGauges;
use crate::metrics::speculation::SpeculationGauges;

/// How often samples are folded into the histograms when nobody asks for them.
const UPKEEP: Duration = Duration::from_secs(5);

const FIRST_TOKEN: &str = "tandem_time_to_first_token_seconds";
const INTER_TOKEN: &str = "tandem_inter_token_seconds";
const QUEUE: &str = "tandem_queue_seconds";
const REQUEST: &str = "tandem_request_seconds";
const TIMEOUTS: &str = "tandem_timeouts_total";
const REQUESTS: &str = "tandem_requests_total";

const FIRST_TOKEN_BUCKETS: [f64; 14] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];
const INTER_TOKEN_BUCKETS: [f64; 12] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 1.0, 5.0,
];

static METADATA: Metadata<'static> =
    Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

/// The series of one router.
pub(crate) struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    /// Answers being made.
    pub in_flight: Gauge,
    /// Requests refused because too many are being answered.
    pub rejected: Counter,
    /// Requests whose client left.
    pub cancelled: Counter,
    /// Requests without a key, or with a wrong one.
    pub unauthorized: Counter,
    /// Requests that failed after their answer began.
    pub failed: Counter,
    pub prompt_tokens: Counter,
    pub cached_tokens: Counter,
    pub generated_tokens: Counter,
    reasoning_tokens: Counter,
    forced_closes: Counter,
    degenerate_answers: Counter,
    pub queue: Histogram,
    request: Histogram,
    pub first_token: Histogram,
    pub inter_token: Histogram,
    pub compression: CompressionSeries,
    worker: WorkerGauges,
    speculation: SpeculationGauges,
    prefix_cache: PrefixCacheGauges,
    disk_cache: DiskCacheGauges,
}

struct WorkerGauges {
    up: Gauge,
    running_sequences: Gauge,
    queued_requests: Gauge,
    prompt_tokens: Gauge,
    generated_tokens: Gauge,
    steps: Gauge,
    finished_requests: Gauge,
    cancelled_requests: Gauge,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    pub fn new() -> Result<Self, BuildError> {
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Full(FIRST_TOKEN.to_owned()), &FIRST_TOKEN_BUCKETS)?
            .set_buckets_for_metric(Matcher::Full(INTER_TOKEN.to_owned()), &INTER_TOKEN_BUCKETS)?
            .set_buckets_for_metric(Matcher::Full(QUEUE.to_owned()), &FIRST_TOKEN_BUCKETS)?
            .set_buckets_for_metric(Matcher::Full(REQUEST.to_owned()), &FIRST_TOKEN_BUCKETS)?
            .set_buckets_for_metric(
                Matcher::Full(compression::SECONDS.to_owned()),
                &compression::BUCKETS,
            )?
            .build_recorder();
        describe(&recorder);
        let counter = |name| recorder.register_counter(&Key::from_static_name(name), &METADATA);
        let gauge = |name| recorder.register_gauge(&Key::from_static_name(name), &METADATA);
        let histogram = |name| recorder.register_histogram(&Key::from_static_name(name), &METADATA);
        Ok(Self {
            in_flight: gauge("tandem_answers_in_flight"),
            rejected: counter("tandem_requests_rejected_total"),
            cancelled: counter("tandem_requests_cancelled_total"),
            unauthorized: counter("tandem_requests_unauthorized_total"),
            failed: counter("tandem_answers_failed_total"),
            prompt_tokens: counter("tandem_prompt_tokens_total"),
            cached_tokens: counter("tandem_prompt_tokens_cached_total"),
            generated_tokens: counter("tandem_generated_tokens_total"),
            reasoning_tokens: counter("tandem_reasoning_tokens_total"),
            forced_closes: counter("tandem_reasoning_forced_closes_total"),
            degenerate_answers: counter("tandem_answers_degenerate_total"),
            queue: histogram(QUEUE),
            request: histogram(REQUEST),
            first_token: histogram(FIRST_TOKEN),
            inter_token: histogram(INTER_TOKEN),
            compression: CompressionSeries::new(&recorder),
            worker: WorkerGauges {
                up: gauge("tandem_worker_up"),
                running_sequences: gauge("tandem_worker_running_sequences"),
                queued_requests: gauge("tandem_worker_queued_requests"),
                prompt_tokens: gauge("tandem_worker_prompt_tokens"),
                generated_tokens: gauge("tandem_worker_generated_tokens"),
                steps: gauge("tandem_worker_steps"),
                finished_requests: gauge("tandem_worker_finished_requests"),
                cancelled_requests: gauge("tandem_worker_cancelled_requests"),
            },
            speculation: SpeculationGauges::new(&recorder),
            prefix_cache: PrefixCacheGauges::new(&recorder),
            disk_cache: DiskCacheGauges::new(&recorder),
            handle: recorder.handle(),
            recorder,
        })
    }

    pub fn request_ended(&self, route: &str, status: u16) {
        let labels = vec![
            Label::new("route", route.to_owned()),
            Label::new("status", status.to_string()),
        ];
        self.recorder
            .register_counter(&Key::from_parts(REQUESTS, labels), &METADATA)
            .increment(1);
    }

    /// A request that generates has ended, however it did.
    pub fn request_took(&self, time: Duration) {
        self.request.record(time);
    }

    /// Something was waited for in vain.
    pub fn timed_out(&self, wait: Wait) {
        let labels = vec![Label::new("wait", wait.name())];
        self.recorder
            .register_counter(&Key::from_parts(TIMEOUTS, labels), &METADATA)
            .increment(1);
    }

    /// What an answer that is complete thought.
    pub fn note_reasoning(&self, tally: &Tally) {
        self.reasoning_tokens
            .increment(tally.reasoning_tokens.into());
        if tally.close == Some(CloseKind::Hard) {
            self.forced_closes.increment(1);
        }
        if tally.is_degenerate {
            self.degenerate_answers.increment(1);
        }
    }

    /// Takes the counters of the target; `None` if it does not answer. They start anew with the target, so that they
    /// are gauges here.
    pub fn set_worker(&self, stats: Option<WorkerStats>) {
        let worker = &self.worker;
        worker.up.set(if stats.is_some() { 1.0 } else { 0.0 });
        let Some(stats) = stats else {
            return self.speculation.set_down();
        };
        self.speculation.set(&self.recorder, &stats.speculation);
        self.prefix_cache.set(&stats.prefix_cache);
        self.disk_cache.set(&stats.prefix_cache.disk);
        worker.running_sequences.set(stats.running_sequences);
        worker.queued_requests.set(stats.queued_requests);
        worker.prompt_tokens.set(stats.prompt_tokens as f64);
        worker.generated_tokens.set(stats.generated_tokens as f64);
        worker.steps.set(stats.steps as f64);
        worker.finished_requests.set(stats.finished_requests as f64);
        worker
            .cancelled_requests
            .set(stats.cancelled_requests as f64);
    }

    /// The text that Prometheus reads.
    pub fn render(&self) -> String {
        self.handle.render()
    }

    /// Keeps the samples of the histograms from piling up; never ends.
    pub async fn keep_up(&self) {
        let mut ticks = tokio::time::interval(UPKEEP);
        loop {
            ticks.tick().await;
            self.handle.run_upkeep();
        }
    }
}

fn describe(recorder: &PrometheusRecorder) {
    let say = |text: &'static str| SharedString::const_str(text);
    for (name, text) in [
        (
            REQUESTS,
            "Requests by route and status; 499: the client left",
        ),
        (
            "tandem_requests_rejected_total",
            "Requests refused with 429",
        ),
        (
            "tandem_requests_cancelled_total",
            "Requests whose client left",
        ),
        ("tandem_answers_failed_total", "Answers that broke off"),
        ("tandem_prompt_tokens_total", "Tokens of the prompts"),
        (
            "tandem_prompt_tokens_cached_total",
            "Prompt tokens found in the cache",
        ),
        ("tandem_generated_tokens_total", "Tokens generated"),
        (
            "tandem_reasoning_tokens_total",
            "Tokens generated that are reasoning",
        ),
        (
            "tandem_reasoning_forced_closes_total",
            "Answers whose reasoning was closed by its budget",
        ),
        (
            "tandem_answers_degenerate_total",
            "Answers that ran in a loop behind a forced close and were ended",
        ),
        (
            "tandem_requests_unauthorized_total",
            "Requests without a key, or with a wrong one",
        ),
        (
            TIMEOUTS,
            "Requests ended because something took too long, by what was waited for",
        ),
    ] {
        recorder.describe_counter(KeyName::from_const_str(name), None, say(text));
    }
    for (name, text) in [
        (FIRST_TOKEN, "From the request to its first token"),
        (INTER_TOKEN, "From a token to the next"),
        (QUEUE, "From the call to the target to its beginning"),
        (REQUEST, "From a request that generates to its end"),
    ] {
        recorder.describe_histogram(KeyName::from_const_str(name), None, say(text));
    }
    for (name, text) in [
        ("tandem_answers_in_flight", "Answers being made"),
        ("tandem_worker_up", "Whether the target answers"),
        ("tandem_worker_running_sequences", "Sequences being decoded"),
        (
            "tandem_worker_queued_requests",
            "Requests waiting at the target",
        ),
        (
            "tandem_worker_prompt_tokens",
            "Prompt tokens computed since the target's start",
        ),
        (
            "tandem_worker_generated_tokens",
            "Tokens generated since the target's start",
        ),
        (
            "tandem_worker_steps",
            "Forward passes since the target's start",
        ),
        (
            "tandem_worker_finished_requests",
            "Requests finished since the target's start",
        ),
        (
            "tandem_worker_cancelled_requests",
            "Requests cancelled since the target's start",
        ),
    ] {
        recorder.describe_gauge(KeyName::from_const_str(name), None, say(text));
    }
}
