//! Requests of the Messages API.

use serde_json::{Map, Value};

use super::content::Conversation;
use super::tools::Tools;
use crate::chat::ChatRequest;
use crate::compression::CompressionOptions;
use crate::error::RequestError;
use crate::fields::Fields;
use crate::format::ResponseFormat;
use crate::messages;
use crate::options::AnswerOptions;
use crate::thinking::ThinkingOptions;
use crate::tokens::missing;

impl ChatRequest {
    /// Reads and checks a body of `POST /v1/messages`, or of its `count_tokens`. Fields that are not known are passed
    /// over: clients of this API send new ones with every version.
    ///
    /// # Errors
    /// Everything that [`RequestError`] lists.
    pub fn from_messages_body(body: &[u8]) -> Result<Self, RequestError> {
        let mut fields = Fields::of_body(body)?;
        // A thread goes on from messages that a server would have kept: passed over, it would be answered without them.
        fields.refuse(&["thread"])?;
        let mut conversation = Conversation::default();
        if let Some(system) = fields.value("system") {
            conversation.add_system("system", system)?;
        }
        let items = fields.array("messages")?;
        let items = items.ok_or_else(|| missing("messages"))?;
        if items.is_empty() {
            return Err(messages::empty());
        }
        for (index, item) in items.into_iter().enumerate() {
            conversation.add(&format!("messages[{index}]"), item)?;
        }
        let tools = Tools::take(&mut fields, &conversation.referenced_tools)?;
        let (thinking, format) = take_thinking(&mut fields)?;
        let options = AnswerOptions::take(&mut fields)?;
        if options.n != 1 {
            let what = "more than one answer is";
            return Err(RequestError::unsupported("n", what));
        }
        let messages = messages::assemble(conversation.system, conversation.turns)?;
        // In this API an answer goes on with what an assistant has begun.
        let continue_final_message = messages::is_begun(&messages);
        Ok(Self {
            messages,
            tools: tools.listed,
            tool_choice: tools.choice,
            parallel_tool_calls: tools.parallel,
            skipped_tools: tools.skipped,
            add_generation_prompt: !continue_final_message,
            continue_final_message,
            thinking,
            template_kwargs: Map::new(),
            response_format: ResponseFormat::take(&mut fields, format)?,
            top_logprobs: None,
            compression: CompressionOptions::take(&mut fields)?,
            options,
        })
    }
}

/// How much thinking is wanted; an effort says how much of it, and not whether. What the answer has to match stands beside it.
fn take_thinking(
    fields: &mut Fields,
) -> Result<(ThinkingOptions, Option<ResponseFormat>), RequestError> {
    let (mut options, mut format) = (ThinkingOptions::default(), None);
    if let Some(thinking) = fields.value("thinking") {
        let object = thinking.as_object();
        if object.is_some_and(|object| object.get("type").is_none_or(Value::is_null)) {
            return Err(missing("thinking.type"));
        }
        options.take_thinking(thinking)?;
    }
    if let Some(config) = fields.value("output_config") {
        let mut config = Fields::at("output_config", config)?;
        if let Some(effort) = config.string("effort")?
            && options.wanted == Some(true)
        {
            options = options.with_effort(&effort);
        }
        if let Some(value) = config.value("format") {
            format = ResponseFormat::of_flat(&config.path("format"), value)?;
        }
    }
    Ok((options, format))
}
