//! The options that chat completions and completions share.

use serde_json::Value;

use crate::error::RequestError;
use crate::fields::{Above, Fields, as_f32, shown};

/// Answers to one prompt at most.
const MAX_N: u32 = 16;
/// Stop strings at most.
const MAX_STOPS: usize = 16;
/// Characters of a stop string at most; text of this length may be held back.
const MAX_STOP_CHARS: usize = 1024;
/// Entries of `logit_bias` at most, as the OpenAI API has it.
const MAX_BIASES: usize = 1024;

/// Accepted because clients send them as a matter of course; they change nothing here.
const IGNORED: [&str; 14] = [
    "user",
    "metadata",
    "store",
    "service_tier",
    "prediction",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "verbosity",
    "session_id",
    "cache_prompt",
    "client_metadata",
    "include",
    "timings_per_token",
];

/// How an answer is made and sent.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerOptions {
    /// The model asked for; `None` takes the one there is.
    pub model: Option<String>,
    /// Whether the answer is sent as it grows.
    pub stream: bool,
    /// Whether a stream ends with the token counts.
    pub include_usage: bool,
    /// Whether a stream tells how far the prompt is.
    pub return_progress: bool,
    /// Answers per prompt, 1 to 16.
    pub n: u32,
    /// New tokens at most, from 1; `None` takes the default.
    pub max_tokens: Option<u32>,
    /// Tokens before which the answer does not end by itself.
    pub min_tokens: u32,
    /// Whether the tokens that end an answer are tokens like any other.
    pub ignore_eos: bool,
    /// Texts that end the answer; none is empty.
    pub stop: Vec<String>,
    /// Whether the text that ended the answer is part of it.
    pub include_stop: bool,
    /// Key of the random draws; `None` takes a random one.
    pub seed: Option<u64>,
    /// How tokens are chosen.
    pub sampling: SamplingOptions,
}

/// How tokens are chosen; `None` takes the default.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SamplingOptions {
    /// 0 to 2; 0 takes the most likely token.
    pub temperature: Option<f32>,
    /// Above 0, up to 1.
    pub top_p: Option<f32>,
    /// 0 is off.
    pub top_k: Option<u32>,
    /// 0 to 1.
    pub min_p: Option<f32>,
    /// Above 0; 1 is off.
    pub repetition_penalty: Option<f32>,
    /// -2 to 2.
    pub presence_penalty: Option<f32>,
    /// -2 to 2.
    pub frequency_penalty: Option<f32>,
    /// Generated tokens that the penalties look at.
    pub repetition_window: Option<u32>,
    /// Token ids and what is added to their logits, -100 to 100.
    pub logit_bias: Vec<(u32, f32)>,
}

impl AnswerOptions {
    pub(crate) fn take(fields: &mut Fields) -> Result<Self, RequestError> {
        fields.ignore(&IGNORED);
        let model = fields.string("model")?.filter(|name| !name.is_empty());
        let stream = fields.bool("stream")?.unwrap_or(false);
        let include_usage = take_include_usage(fields)?;
        let n = fields.integer(&["n"], 1..=MAX_N, Above::Refused)?;
        let limits = ["max_tokens", "max_completion_tokens"];
        Ok(Self {
            model,
            stream,
            include_usage,
            return_progress: fields.bool("return_progress")?.unwrap_or(false),
            n: n.unwrap_or(1),
            max_tokens: fields.integer(&limits, 1..=u32::MAX, Above::Clamped)?,
            min_tokens: fields
                .integer(&["min_tokens"], 0..=u32::MAX, Above::Clamped)?
                .unwrap_or(0),
            ignore_eos: fields.bool("ignore_eos")?.unwrap_or(false),
            stop: take_stops(fields)?,
            include_stop: fields.bool("include_stop_str_in_output")?.unwrap_or(false),
            seed: take_seed(fields)?,
            sampling: SamplingOptions::take(fields)?,
        })
    }
}

impl SamplingOptions {
    fn take(fields: &mut Fields) -> Result<Self, RequestError> {
        let repetition = ["repetition_penalty", "repeat_penalty", "rep_pen"];
        let window = ["repetition_window", "repeat_last_n", "rep_window"];
        let penalty = |x: f32| (-2.0..=2.0).contains(&x);
        Ok(Self {
            temperature: fields.float(
                &["temperature"],
                |x| (0.0..=2.0).contains(&x),
                "a number from 0 to 2",
            )?,
            top_p: fields.float(
                &["top_p"],
                |x| x > 0.0 && x <= 1.0,
                "a number above 0 and up to 1",
            )?,
            top_k: take_top_k(fields)?,
            min_p: fields.float(
                &["min_p"],
                |x| (0.0..=1.0).contains(&x),
                "a number from 0 to 1",
            )?,
            repetition_penalty: fields.float(&repetition, |x| x > 0.0, "a number above 0")?,
            presence_penalty: fields.float(
                &["presence_penalty"],
                penalty,
                "a number from -2 to 2",
            )?,
            frequency_penalty: fields.float(
                &["frequency_penalty"],
                penalty,
                "a number from -2 to 2",
            )?,
            repetition_window: fields.integer(&window, 0..=u32::MAX, Above::Clamped)?,
            logit_bias: take_logit_bias(fields)?,
        })
    }
}

fn take_include_usage(fields: &mut Fields) -> Result<bool, RequestError> {
    let Some(value) = fields.value("stream_options") else {
        return Ok(false);
    };
    let mut options = Fields::at("stream_options", value)?;
    let include_usage = options.bool("include_usage")?.unwrap_or(false);
    Ok(include_usage)
}

/// -1 is what other servers take for "off".
fn take_top_k(fields: &mut Fields) -> Result<Option<u32>, RequestError> {
    let Some(value) = fields.value("top_k") else {
        return Ok(None);
    };
    if value.as_i64() == Some(-1) {
        return Ok(Some(0));
    }
    let top_k = value.as_u64().map(|k| u32::try_from(k).unwrap_or(u32::MAX));
    top_k
        .map(Some)
        .ok_or_else(|| fields.wrong("top_k", &value, "a whole number from 0"))
}

/// Any 64-bit whole number; -1 is what other servers take for "random".
fn take_seed(fields: &mut Fields) -> Result<Option<u64>, RequestError> {
    let Some(value) = fields.value("seed") else {
        return Ok(None);
    };
    match (value.as_u64(), value.as_i64()) {
        (_, Some(-1)) => Ok(None),
        (Some(seed), _) => Ok(Some(seed)),
        (None, Some(negative)) => Ok(Some(negative.cast_unsigned())),
        (None, None) => Err(fields.wrong("seed", &value, "a 64-bit whole number")),
    }
}

/// The first of two names counts, and each has to be right.
fn take_stops(fields: &mut Fields) -> Result<Vec<String>, RequestError> {
    let stops = take_stop(fields, "stop")?;
    let sequences = take_stop(fields, "stop_sequences")?;
    Ok(stops.or(sequences).unwrap_or_default())
}

fn take_stop(fields: &mut Fields, name: &str) -> Result<Option<Vec<String>>, RequestError> {
    let Some(value) = fields.value(name) else {
        return Ok(None);
    };
    let stops = match value {
        Value::String(stop) => vec![stop],
        Value::Array(items) => items
            .into_iter()
            .enumerate()
            .map(|(index, item)| match item {
                Value::String(stop) => Ok(stop),
                other => Err(RequestError::wrong(
                    format!("{name}[{index}]"),
                    shown(&other),
                    "a string",
                )),
            })
            .collect::<Result<_, _>>()?,
        other => return Err(fields.wrong(name, &other, "a string or a list of strings")),
    };
    if stops.len() > MAX_STOPS {
        let found = format!("a list of {}", stops.len());
        let expected = format!("{MAX_STOPS} strings at most");
        return Err(RequestError::wrong(name, found, expected));
    }
    if stops.iter().any(|s| s.chars().count() > MAX_STOP_CHARS) {
        let expected = format!("strings of {MAX_STOP_CHARS} characters at most");
        return Err(RequestError::wrong(name, "too long", expected));
    }
    Ok(Some(stops.into_iter().filter(|s| !s.is_empty()).collect()))
}

fn take_logit_bias(fields: &mut Fields) -> Result<Vec<(u32, f32)>, RequestError> {
    let map = fields.object("logit_bias")?.unwrap_or_default();
    if map.len() > MAX_BIASES {
        let found = format!("an object of {} entries", map.len());
        let expected = format!("{MAX_BIASES} at most");
        return Err(RequestError::wrong("logit_bias", found, expected));
    }
    map.into_iter()
        .map(|(key, value)| {
            let token: u32 = key.parse().map_err(|_| {
                let found = format!("an object with the key {}", shown(&key.as_str().into()));
                RequestError::wrong("logit_bias", found, "token ids as keys")
            })?;
            let bias = as_f32(&value).filter(|bias| (-100.0..=100.0).contains(bias));
            bias.map(|bias| (token, bias)).ok_or_else(|| {
                let field = format!("logit_bias.{token}");
                RequestError::wrong(field, shown(&value), "a number from -100 to 100")
            })
        })
        .collect()
}
