//! Flags of `tandem bench --needle` and `--ttft`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use kernels::DeviceName;

/// Long prompts through a whole set.
#[derive(Debug, Args)]
pub(crate) struct NeedleArgs {
    /// Hide facts in long prompts and ask for them: did they reach the model, does it answer, and when does it begin?
    #[arg(long, conflicts_with = "ttft")]
    pub needle: bool,
    /// Only measure how long the first token of long prompts takes.
    #[arg(long)]
    pub ttft: bool,
    /// With --needle or --ttft: tokens of a prompt and its answer, such as 8k,32k.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "8k",
        value_name = "TOKENS"
    )]
    pub ctx: Vec<Tokens>,
    /// With --needle or --ttft: prompts of each length, each made by a seed of its own.
    #[arg(long, default_value_t = 10, value_name = "N")]
    pub cases: usize,
    /// With --needle: facts that a prompt asks for.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub needles: usize,
    /// With --needle or --ttft: how prompts are treated, off (whole), always (made shorter) or both.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "off,always",
        value_name = "MODE"
    )]
    pub compression: Vec<String>,
    /// With --needle or --ttft: share that compression keeps of what may be cut [default: the router's].
    #[arg(long, value_name = "SHARE")]
    pub keep_ratio: Option<f64>,
    /// With --needle or --ttft: GGUF file of the prefill drafter [default: the demo's for the demo model].
    #[arg(long, value_name = "FILE")]
    pub prefill_drafter: Option<PathBuf>,
    /// Device of the prefill drafter: cpu, or cuda:N for NVIDIA's GPU number N.
    #[arg(long, default_value_t = DeviceName::Cpu)]
    pub prefill_device: DeviceName,
    /// Tokens of an answer at most.
    #[arg(long, default_value_t = 32, value_name = "N")]
    pub answer_tokens: usize,
    /// Seed of the first prompt; the same seeds make the same prompts.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
}

/// A number of tokens: `8192` or `8k`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tokens(pub usize);

impl FromStr for Tokens {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (digits, unit) = match text.strip_suffix(['k', 'K']) {
            Some(digits) => (digits, 1024),
            None => (text, 1),
        };
        let number = digits.parse::<usize>().ok();
        let tokens = number.and_then(|number| number.checked_mul(unit));
        let tokens = tokens.filter(|&tokens| tokens > 0);
        tokens.map(Self).ok_or_else(|| {
            format!("`{text}` is no number of tokens; expected something such as 8192 or 8k")
        })
    }
}

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_multiple_of(1024) {
            write!(f, "{}k", self.0 / 1024)
        } else {
            write!(f, "{}", self.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_written_in_thousands_or_not() {
        for (text, tokens) in [("8k", 8192), ("128K", 131_072), ("1000", 1000)] {
            assert_eq!(text.parse(), Ok(Tokens(tokens)));
        }
        assert_eq!(Tokens(8192).to_string(), "8k");
        assert_eq!(Tokens(1000).to_string(), "1000");
        for text in ["", "k", "0", "8m", "-1", "99999999999999999999k"] {
            assert!(
                text.parse::<Tokens>().unwrap_err().contains("tokens"),
                "{text}"
            );
        }
    }
}
