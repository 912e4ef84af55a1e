//! From a conversation to the plan of its answers: what all chat APIs have in common.

use api_types::ChatRequest;
use chat::{ReasoningStart, RenderInput};

use crate::answer::AnswerPlan;
use crate::error::RouterError;
use crate::plan::AnswersPlan;
use crate::state::{State, Words};
use crate::target::Target;

/// Renders and encodes a conversation.
pub(crate) fn plan<T: Target>(
    state: &State<T>,
    request: ChatRequest,
) -> Result<AnswersPlan, RouterError> {
    state.check_model(request.options.model.as_deref())?;
    let mut kwargs = state.config.template_kwargs.clone();
    kwargs.extend(request.template_kwargs);
    let words: &Words = &state.words;
    let mut input = RenderInput {
        messages: request.messages,
        tools: Some(request.tools).filter(|tools| !tools.is_empty()),
        add_generation_prompt: request.add_generation_prompt,
        kwargs,
    };
    let prompt = words.render(&input)?;
    let ids = words.encode_prompt(&prompt);
    input.add_generation_prompt = false;
    // Where a template refuses that, nothing is known of the next turn.
    let history = words.render(&input).unwrap_or_default();
    let history_tokens = words.tokens_of_beginning(&ids, &prompt, &history);
    input.add_generation_prompt = request.add_generation_prompt;
    let asked = &request.compression;
    let compression = state
        .compressor
        .job(asked, &input, &prompt, &ids, history_tokens);
    let start = ReasoningStart::of_prompt(&prompt);
    let splits = start == ReasoningStart::Inside || words.tokenizer.token_id("</think>").is_some();
    let answer = AnswerPlan {
        stop: request.options.stop.clone(),
        include_stop: request.options.include_stop,
        stop_ids: words.stop_ids(request.options.ignore_eos),
        reasoning: splits.then_some(start),
        logprobs: request.top_logprobs.is_some(),
    };
    Ok(AnswersPlan {
        prompts: vec![(ids, answer)],
        history_tokens,
        compression,
        options: request.options,
        top_logprobs: request.top_logprobs,
    })
}
