//! Reasoning tokens by effort.

use api_types::Effort;
use serde::{Deserialize, Serialize};

/// Reasoning tokens by effort, as far as they are said.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct EffortTiers {
    /// What "low" and "minimal" allow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low: Option<u32>,
    /// What "medium" allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub medium: Option<u32>,
    /// What "high" allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high: Option<u32>,
    /// What "x-high" allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub x_high: Option<u32>,
    /// What "max" allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
}

impl EffortTiers {
    /// What is said of `effort`.
    pub(crate) fn get(&self, effort: Effort) -> Option<u32> {
        match effort {
            Effort::Low => self.low,
            Effort::Medium => self.medium,
            Effort::High => self.high,
            Effort::XHigh => self.x_high,
            Effort::Max => self.max,
        }
    }
}
