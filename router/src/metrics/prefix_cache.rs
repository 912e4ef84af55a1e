//! What prefixes were good for, as the target counts it.

use generation::PrefixCacheStats;
use metrics::{Gauge, Key, KeyName, Recorder, SharedString};
use metrics_exporter_prometheus::PrometheusRecorder;

use crate::metrics::METADATA;

const SERIES: [(&str, &str); 5] = [
    (
        "tandem_prefix_cache_hits",
        "Requests that went on from a prefix",
    ),
    (
        "tandem_prefix_cache_reused_tokens",
        "Prompt tokens that were not computed for it",
    ),
    ("tandem_prefix_cache_evictions", "Prefixes that made room"),
    ("tandem_prefix_cache_prefixes", "Prefixes kept now"),
    (
        "tandem_prefix_cache_bytes",
        "Bytes that they hold now beside pages, which would be free otherwise",
    ),
];

/// All start anew with the target, so that they are gauges here.
pub(super) struct PrefixCacheGauges([Gauge; 5]);

impl PrefixCacheGauges {
    pub fn new(recorder: &PrometheusRecorder) -> Self {
        Self(SERIES.map(|(name, text)| {
            let text = SharedString::const_str(text);
            recorder.describe_gauge(KeyName::from_const_str(name), None, text);
            recorder.register_gauge(&Key::from_static_name(name), &METADATA)
        }))
    }

    pub fn set(&self, stats: &PrefixCacheStats) {
        let counts = [
            stats.hits,
            stats.reused_tokens,
            stats.evictions,
            stats.prefixes,
            stats.bytes,
        ];
        for (gauge, count) in self.0.iter().zip(counts) {
            gauge.set(count as f64);
        }
    }
}
