//! What was measured, as tables and as JSON.

use std::io::{Write, stdout};

use anyhow::Result;
use models::DecodeTraffic;
use serde_json::{Value, json};

use super::energy::Energy;

/// Tokens per second.
pub(super) struct Speed {
    pub test: String,
    pub tokens_per_second: f64,
    /// Half the way from the slowest repetition to the fastest.
    pub spread: f64,
    /// Bytes that a decoded token moves at least.
    pub bytes_per_token: Option<u64>,
}

/// Milliseconds of a tree's step and of what follows it.
pub(super) struct Tree {
    pub rows: usize,
    pub depth: usize,
    pub verify_ms: f64,
    pub commit_ms: f64,
}

/// All of it.
pub(super) struct Report {
    pub model: String,
    pub file_bytes: u64,
    pub device: String,
    /// Bytes a second that the device reads; of several devices none.
    pub bandwidth: Option<f64>,
    pub traffic: DecodeTraffic,
    pub speeds: Vec<Speed>,
    pub trees: Vec<Tree>,
    pub energies: Vec<Energy>,
}

impl Report {
    pub fn json(&self) -> Value {
        let speed = |speed: &Speed| {
            json!({
                "test": speed.test,
                "tokens_per_second": speed.tokens_per_second,
                "spread": speed.spread,
                "bytes_per_token": speed.bytes_per_token,
            })
        };
        let tree = |tree: &Tree| {
            json!({
                "rows": tree.rows,
                "depth": tree.depth,
                "verify_ms": tree.verify_ms,
                "commit_ms": tree.commit_ms,
            })
        };
        let energy = |energy: &Energy| {
            json!({
                "test": energy.test,
                "tokens": energy.tokens,
                "seconds": energy.seconds,
                "joules": energy.joules,
                "watts": energy.watts(),
                "idle_watts": energy.idle_watts,
                "limit_watts": energy.limit_watts,
                "tokens_per_joule": energy.tokens_per_joule(),
                "tokens_per_joule_over_idle": energy.tokens_per_joule_over_idle(),
            })
        };
        json!({
            "model": self.model,
            "file_bytes": self.file_bytes,
            "device": self.device,
            "read_bytes_per_second": self.bandwidth,
            "results": self.speeds.iter().map(speed).collect::<Vec<_>>(),
            "trees": self.trees.iter().map(tree).collect::<Vec<_>>(),
            "energy": self.energies.iter().map(energy).collect::<Vec<_>>(),
        })
    }

    pub fn print(&self) -> Result<()> {
        let mut out = stdout().lock();
        writeln!(
            out,
            "model  {} ({:.1} MB)\ndevice {}",
            self.model,
            self.file_bytes as f64 / 1e6,
            self.device
        )?;
        let bytes = self.traffic.after(0);
        let megabytes = bytes as f64 / 1e6;
        match self.bandwidth {
            Some(bandwidth) => writeln!(
                out,
                "memory {:.1} GB/s read; a decoded token moves {megabytes:.1} MB or more: {:.3} ms",
                bandwidth / 1e9,
                bytes as f64 / bandwidth * 1e3
            )?,
            None => writeln!(
                out,
                "memory a decoded token moves {megabytes:.1} MB or more"
            )?,
        }
        if !self.speeds.is_empty() {
            self.print_speeds(&mut out)?;
        }
        if !self.trees.is_empty() {
            self.print_trees(&mut out)?;
        }
        if !self.energies.is_empty() {
            self.print_energies(&mut out)?;
        }
        Ok(())
    }

    fn print_energies(&self, out: &mut impl Write) -> Result<()> {
        writeln!(
            out,
            "\n| energy         | tokens/J | over idle |     W | idle W | cap W |\n\
             | -------------- | -------: | --------: | ----: | -----: | ----: |"
        )?;
        for energy in &self.energies {
            writeln!(
                out,
                "| {:14} | {:8.3} | {:9.3} | {:5.0} | {:6.0} | {:5.0} |",
                energy.test,
                energy.tokens_per_joule(),
                energy.tokens_per_joule_over_idle(),
                energy.watts(),
                energy.idle_watts,
                energy.limit_watts
            )?;
        }
        Ok(())
    }

    fn print_speeds(&self, out: &mut impl Write) -> Result<()> {
        writeln!(
            out,
            "\n| test           |    tok/s | +- half range |   GB/s | share |\n\
             | -------------- | -------: | ------------: | -----: | ----: |"
        )?;
        for speed in &self.speeds {
            // A decoded token reads all weights once; a prompt reads them once for many tokens.
            let rate = speed
                .bytes_per_token
                .map(|bytes| bytes as f64 * speed.tokens_per_second);
            let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
            let gigabytes = or_dash(rate.map(|rate| format!("{:.1}", rate / 1e9)));
            let share = rate.zip(self.bandwidth).map(|(rate, all)| rate / all);
            let share = or_dash(share.map(|share| format!("{:.0} %", share * 100.0)));
            writeln!(
                out,
                "| {:14} | {:8.1} | {:13.1} | {gigabytes:>6} | {share:>5} |",
                speed.test, speed.tokens_per_second, speed.spread
            )?;
        }
        Ok(())
    }

    fn print_trees(&self, out: &mut impl Write) -> Result<()> {
        writeln!(
            out,
            "\n| verified rows | depth | verify ms | commit ms | of one row |\n\
             | ------------: | ----: | --------: | --------: | ---------: |"
        )?;
        for tree in &self.trees {
            let single = |other: &&Tree| other.rows == 1 && other.depth == tree.depth;
            let single = self.trees.iter().find(single);
            let ratio = single.map_or("-".to_owned(), |single| {
                format!("{:.2}", tree.verify_ms / single.verify_ms)
            });
            writeln!(
                out,
                "| {:13} | {:5} | {:9.3} | {:9.3} | {ratio:>10} |",
                tree.rows, tree.depth, tree.verify_ms, tree.commit_ms
            )?;
        }
        Ok(())
    }
}
