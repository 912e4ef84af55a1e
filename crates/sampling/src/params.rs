//! The parameters of one request.

use crate::SamplingError;

/// How tokens are chosen. The default is greedy without penalties or filters.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// 0 is arg-max, up to 2.
    pub temperature: f32,
    /// Mass kept by the nucleus cut, in (0, 1]; 1 is off.
    pub top_p: f32,
    /// Number of most likely tokens kept; 0 is off.
    pub top_k: u32,
    /// Tokens below this fraction of the most likely one's probability are dropped; 0 is off.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of generated tokens; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of every generated token; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted per occurrence from the logit of every generated token; 0 is off.
    pub frequency_penalty: f32,
    /// How many of the latest generated tokens the three penalties look at; 0 turns them off.
    pub repetition_window: usize,
    /// Added to the logits before anything else.
    pub logit_bias: Vec<(u32, f32)>,
    /// Key of the random draws.
    pub seed: u64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_window: 256,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

impl SamplingParams {
    /// Whether the token is the one of the largest logit, whatever was generated before.
    #[must_use]
    pub fn is_argmax(&self) -> bool {
        let has_penalties = self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0;
        self.temperature == 0.0
            && self.logit_bias.is_empty()
            && (self.repetition_window == 0 || !has_penalties)
    }

    /// Says whether every number is inside its range.
    pub fn validate(&self) -> Result<(), SamplingError> {
        let top_p = self.top_p > 0.0 && self.top_p <= 1.0;
        let repetition = self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite();
        check(
            "temperature",
            self.temperature,
            (0.0..=2.0).contains(&self.temperature),
            "0 to 2",
        )?;
        check("top_p", self.top_p, top_p, "above 0 and up to 1")?;
        check(
            "min_p",
            self.min_p,
            (0.0..=1.0).contains(&self.min_p),
            "0 to 1",
        )?;
        check(
            "repetition_penalty",
            self.repetition_penalty,
            repetition,
            "a finite number above 0",
        )?;
        for (field, value) in [
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ] {
            check(field, value, value.is_finite(), "a finite number")?;
        }
        match self
            .logit_bias
            .iter()
            .find(|(_, bias)| !(-100.0..=100.0).contains(bias))
        {
            Some(&(token, bias)) => Err(SamplingError::Bias { token, bias }),
            None => Ok(()),
        }
    }

    pub(crate) fn penalises(&self) -> bool {
        self.repetition_window > 0
            && (self.repetition_penalty != 1.0
                || self.presence_penalty != 0.0
                || self.frequency_penalty != 0.0)
    }
}

fn check(
    field: &'static str,
    value: f32,
    fits: bool,
    expected: &'static str,
) -> Result<(), SamplingError> {
    if fits {
        Ok(())
    } else {
        Err(SamplingError::OutOfRange {
            field,
            value,
            expected,
        })
    }
}
