//! What several bodies share.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value};

/// How an answer is made and sent.
#[derive(JsonSchema)]
pub struct Options {
    /// The model; without it the one there is.
    pub model: Option<String>,
    /// Whether the answer is sent as it grows, as server-sent events.
    pub stream: Option<bool>,
    /// What a stream has beside the answer.
    pub stream_options: Option<StreamOptions>,
    /// Whether a stream tells how far the prompt is.
    pub return_progress: Option<bool>,
    /// Tokens before which the answer does not end by itself.
    #[schemars(range(min = 0))]
    pub min_tokens: Option<u32>,
    /// Whether the tokens that end an answer are tokens like any other.
    pub ignore_eos: Option<bool>,
    /// Texts that end the answer.
    pub stop: Option<Stop>,
    /// Whether the text that ended the answer is part of it.
    pub include_stop_str_in_output: Option<bool>,
    /// Key of the random draws; -1 is a random one.
    #[schemars(default, schema_with = "whole_number")]
    pub seed: Option<i64>,
    /// 0 takes the most likely token.
    #[schemars(range(min = 0.0, max = 2.0))]
    pub temperature: Option<f32>,
    /// Share of the likely tokens that are drawn from.
    #[schemars(range(min = 0.000001, max = 1.0))]
    pub top_p: Option<f32>,
    /// The number of tokens that are drawn from; 0 and -1 are all of them.
    #[schemars(default, schema_with = "whole_number", range(min = -1))]
    pub top_k: Option<i64>,
    /// Least probability of a token that is drawn, as a share of the likeliest one's.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub min_p: Option<f32>,
    /// Divides what speaks for tokens that are there already; 1 is off.
    #[schemars(range(min = 0.000001))]
    pub repetition_penalty: Option<f32>,
    /// Taken from tokens that are there already.
    #[schemars(range(min = -2.0, max = 2.0))]
    pub presence_penalty: Option<f32>,
    /// Taken from tokens each time that they are there.
    #[schemars(range(min = -2.0, max = 2.0))]
    pub frequency_penalty: Option<f32>,
    /// Generated tokens that the penalties look at.
    #[schemars(range(min = 0))]
    pub repetition_window: Option<u32>,
    /// Token ids, and what is added to what speaks for them.
    #[schemars(default, schema_with = "biases")]
    pub logit_bias: Option<BTreeMap<String, f32>>,
}

/// What a stream has beside the answer.
#[derive(JsonSchema)]
pub struct StreamOptions {
    /// Whether it ends with the token counts.
    pub include_usage: Option<bool>,
}

/// Texts that end the answer.
#[derive(JsonSchema)]
#[schemars(untagged)]
pub enum Stop {
    /// One.
    One(#[schemars(length(max = 1024))] String),
    /// Several.
    Several(#[schemars(length(max = 16), inner(length(max = 1024)))] Vec<String>),
}

/// Whether a long prompt is made shorter.
#[derive(JsonSchema)]
#[schemars(untagged)]
pub enum Compression {
    /// When.
    Mode(Mode),
    /// When, and how much.
    Options(CompressionFields),
}

/// How a long prompt is made shorter.
#[derive(JsonSchema)]
pub struct CompressionFields {
    /// When.
    pub mode: Option<Mode>,
    /// Share of what may be cut that is kept.
    #[schemars(range(min = 0.000001, max = 1.0))]
    pub keep_ratio: Option<f64>,
    /// Whether the usage has the prompt that the model saw.
    pub return_prompt: Option<bool>,
}

/// When a prompt is made shorter.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub enum Mode {
    /// Never.
    Off,
    /// When it is long.
    Auto,
    /// Whatever its length.
    Always,
}

/// A JSON object.
pub type Object = Map<String, Value>;

/// Without a format: some take "int64" for a bound, and larger ones are taken as well.
fn whole_number(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": ["integer", "null"] })
}

fn biases(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": ["object", "null"],
        "propertyNames": { "pattern": "^[0-9]{1,5}$" },
        "maxProperties": 1024,
        "additionalProperties": { "type": "number", "minimum": -100, "maximum": 100 },
    })
}
