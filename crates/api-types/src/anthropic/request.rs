//! Requests of the Messages API.

use serde_json::{Map, Value};

use super::content::Conversation;
use super::tools::Tools;
use crate::chat::ChatRequest;
use crate::compression::CompressionOptions;
use crate::error::RequestError;
use crate::fields::{Above, Fields};
use crate::messages;
use crate::options::AnswerOptions;
use crate::tokens::missing;

impl ChatRequest {
    /// Reads and checks a body of `POST /v1/messages`, or of its `count_tokens`. Fields that are not known are passed
    /// over: clients of this API send new ones with every version.
    ///
    /// # Errors
    /// Everything that [`RequestError`] lists.
    pub fn from_messages_body(body: &[u8]) -> Result<Self, RequestError> {
        let mut fields = Fields::of_body(body)?;
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
        let template_kwargs = take_thinking(&mut fields)?;
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
            template_kwargs,
            top_logprobs: None,
            compression: CompressionOptions::take(&mut fields)?,
            options,
        })
    }
}

/// The switches for thinking become what templates call them.
fn take_thinking(fields: &mut Fields) -> Result<Map<String, Value>, RequestError> {
    let mut kwargs = Map::new();
    if let Some(thinking) = fields.value("thinking") {
        let mut thinking = Fields::at("thinking", thinking)?;
        let kind = thinking.string("type")?;
        let wanted = match kind.as_deref() {
            Some("enabled" | "adaptive") => true,
            Some("disabled") => false,
            Some(other) => {
                let expected = "\"enabled\", \"adaptive\" or \"disabled\"";
                return Err(thinking.wrong("type", &other.into(), expected));
            }
            None => return Err(missing("thinking.type")),
        };
        thinking.integer(&["budget_tokens"], 1..=u32::MAX, Above::Clamped)?;
        kwargs.insert("enable_thinking".to_owned(), wanted.into());
    }
    if let Some(config) = fields.value("output_config") {
        let mut config = Fields::at("output_config", config)?;
        if let Some(effort) = config.string("effort")? {
            kwargs.insert("reasoning_effort".to_owned(), effort.into());
        }
    }
    Ok(kwargs)
}
