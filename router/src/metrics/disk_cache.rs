//! Prefixes in files, as the target counts them.

use generation::DiskCacheStats;
use metrics::{Gauge, Key, KeyName, Label, Recorder, SharedString};
use metrics_exporter_prometheus::PrometheusRecorder;

use crate::metrics::METADATA;

const SERIES: [(&str, &str); 11] = [
    (
        "tandem_disk_cache_hits",
        "Requests that went on from a prefix read from files",
    ),
    ("tandem_disk_cache_loaded", "Prefixes read"),
    ("tandem_disk_cache_loaded_bytes", "Bytes of them"),
    ("tandem_disk_cache_load_seconds", "Time that it took"),
    ("tandem_disk_cache_saved", "Prefixes written"),
    (
        "tandem_disk_cache_saved_bytes",
        "Bytes of them, without what was there",
    ),
    ("tandem_disk_cache_save_seconds", "Time that it took"),
    (
        "tandem_disk_cache_dropped",
        "Prefixes that were to be written and were not",
    ),
    ("tandem_disk_cache_evictions", "Files that made room"),
    ("tandem_disk_cache_prefixes", "Prefixes in files now"),
    (
        "tandem_disk_cache_bytes",
        "Bytes of all files of the folder",
    ),
];

const REFUSED: (&str, &str) = (
    "tandem_disk_cache_refused",
    "Files that were not used, by what was wrong with them",
);
const REASONS: [&str; 6] = [
    "damaged",
    "version",
    "foreign",
    "missing",
    "unreadable",
    "unknown",
];

/// All start anew with the target, so that they are gauges here.
pub(super) struct DiskCacheGauges {
    series: [Gauge; 11],
    refused: [Gauge; 6],
}

impl DiskCacheGauges {
    pub fn new(recorder: &PrometheusRecorder) -> Self {
        for (name, text) in SERIES.into_iter().chain([REFUSED]) {
            let text = SharedString::const_str(text);
            recorder.describe_gauge(KeyName::from_const_str(name), None, text);
        }
        let gauge = |key: Key| recorder.register_gauge(&key, &METADATA);
        let refused = |reason| Key::from_parts(REFUSED.0, vec![Label::new("reason", reason)]);
        Self {
            series: SERIES.map(|(name, _)| gauge(Key::from_static_name(name))),
            refused: REASONS.map(|reason| gauge(refused(reason))),
        }
    }

    pub fn set(&self, stats: &DiskCacheStats) {
        let seconds = |us: u64| us as f64 / 1e6;
        let values = [
            stats.hits as f64,
            stats.loaded as f64,
            stats.loaded_bytes as f64,
            seconds(stats.load_us),
            stats.saved as f64,
            stats.saved_bytes as f64,
            seconds(stats.save_us),
            stats.dropped as f64,
            stats.evictions as f64,
            stats.prefixes as f64,
            stats.bytes as f64,
        ];
        for (gauge, value) in self.series.iter().zip(values) {
            gauge.set(value);
        }
        let refused = &stats.refused;
        let counts = [
            refused.damaged,
            refused.version,
            refused.foreign,
            refused.missing,
            refused.unreadable,
            refused.unknown,
        ];
        for (gauge, count) in self.refused.iter().zip(counts) {
            gauge.set(count as f64);
        }
    }
}
