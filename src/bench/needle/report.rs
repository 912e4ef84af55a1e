//! What came of the prompts, as a table or as JSON.

use std::io::{Write, stdout};

use anyhow::Result;
use serde_json::{Value, json};

use crate::cli::Tokens;

/// What came of one prompt.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// That the model saw.
    pub prompt_tokens: u64,
    /// That were sent.
    pub original_tokens: u64,
    /// The facts asked for reached the model.
    pub is_kept: bool,
    /// The answer has them.
    pub is_answered: bool,
    /// From the request to the first token.
    pub first_seconds: f64,
    /// Of that, to choose what is kept.
    pub compression_ms: Option<f64>,
}

/// Prompts of one length that were treated in one way.
#[derive(Debug)]
pub(super) struct Row {
    pub ctx: Tokens,
    pub mode: String,
    pub outcomes: Vec<Outcome>,
}

#[derive(Debug)]
pub(super) struct Report {
    /// Facts were asked for, not only the time.
    pub is_needle: bool,
    pub rows: Vec<Row>,
}

impl Row {
    fn median(&self, value: impl Fn(&Outcome) -> f64) -> f64 {
        let mut values: Vec<f64> = self.outcomes.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        let (low, high) = ((values.len() - 1) / 2, values.len() / 2);
        f64::midpoint(values[low], values[high])
    }

    fn share(&self, holds: impl Fn(&Outcome) -> bool) -> f64 {
        let count = self
            .outcomes
            .iter()
            .filter(|outcome| holds(outcome))
            .count();
        count as f64 / self.outcomes.len() as f64
    }

    /// Tokens that the model saw, of those that were sent.
    fn seen_share(&self) -> f64 {
        let sum = |value: fn(&Outcome) -> u64| self.outcomes.iter().map(value).sum::<u64>() as f64;
        sum(|outcome| outcome.prompt_tokens) / sum(|outcome| outcome.original_tokens)
    }

    fn compression_seconds(&self) -> f64 {
        self.median(|outcome| outcome.compression_ms.unwrap_or(0.0) / 1e3)
    }

    fn json(&self) -> Value {
        json!({
            "ctx": self.ctx.0,
            "compression": self.mode,
            "cases": self.outcomes.len(),
            "prompt_tokens": self.median(|outcome| outcome.original_tokens as f64),
            "seen_share": self.seen_share(),
            "kept_share": self.share(|outcome| outcome.is_kept),
            "answered_share": self.share(|outcome| outcome.is_answered),
            "first_token_seconds": self.median(|outcome| outcome.first_seconds),
            "compression_seconds": self.compression_seconds(),
        })
    }
}

impl Report {
    pub fn print(&self, as_json: bool) -> Result<()> {
        let mut out = stdout().lock();
        if as_json {
            let rows: Vec<Value> = self.rows.iter().map(Row::json).collect();
            writeln!(out, "{}", json!({"results": rows}))?;
            return Ok(());
        }
        let (facts, line) = if self.is_needle {
            (" facts kept | answered |", " ---------: | -------: |")
        } else {
            ("", "")
        };
        writeln!(
            out,
            "|   ctx | compression | cases | prompt tokens | seen |{facts} first token s | of it compression |\n\
             | ----: | ----------- | ----: | ------------: | ---: |{line} ------------: | ----------------: |"
        )?;
        for row in &self.rows {
            let percent = |share: f64| format!("{:.0} %", share * 100.0);
            let facts = if self.is_needle {
                let kept = percent(row.share(|outcome| outcome.is_kept));
                let answered = percent(row.share(|outcome| outcome.is_answered));
                format!(" {kept:>10} | {answered:>8} |")
            } else {
                String::new()
            };
            writeln!(
                out,
                "| {:>5} | {:11} | {:5} | {:13.0} | {:>4} |{facts} {:13.3} | {:17.3} |",
                row.ctx.to_string(),
                row.mode,
                row.outcomes.len(),
                row.median(|outcome| outcome.original_tokens as f64),
                percent(row.seen_share()),
                row.median(|outcome| outcome.first_seconds),
                row.compression_seconds(),
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_sums_up_its_outcomes() {
        let outcome = |prompt_tokens, is_kept, first_seconds| Outcome {
            prompt_tokens,
            original_tokens: 1000,
            is_kept,
            is_answered: false,
            first_seconds,
            compression_ms: Some(500.0),
        };
        let row = Row {
            ctx: Tokens(1024),
            mode: "always".to_owned(),
            outcomes: vec![outcome(100, true, 3.0), outcome(300, false, 1.0)],
        };
        assert_eq!(row.seen_share(), 0.2);
        assert_eq!(row.share(|outcome| outcome.is_kept), 0.5);
        assert_eq!(row.median(|outcome| outcome.first_seconds), 2.0);
        assert_eq!(row.json()["compression_seconds"], 0.5);
    }
}
