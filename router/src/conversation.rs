//! From a conversation to the plan of its answers: what all chat APIs have in common.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use api_types::ChatRequest;
use chat::{ReasoningStart, RenderInput};
use serde_json::Map;
use tool_calls::Tools;

use crate::answer::{AnswerPlan, CallPlan};
use crate::calling::Calling;
use crate::config::DefaultThinking;
use crate::error::RouterError;
use crate::history::drop_attribution;
use crate::plan::{AnswersPlan, AskedGrammar};
use crate::state::{State, Words};
use crate::target::Target;

/// Stands behind a text that is to be found again in the prompt. No letter: templates have no reason to treat it as anything
/// but text.
const MARK: char = '\u{e001}';

/// Tools that are told of at most; their names come from clients.
const MAX_TOLD: usize = 64;

/// Types of tools that requests brought and nobody here can run, so that each is told of once.
#[derive(Debug, Default)]
pub(crate) struct SkippedTools(Mutex<BTreeSet<String>>);

impl SkippedTools {
    fn tell(&self, kinds: &[String]) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for kind in kinds {
            if told.len() < MAX_TOLD && told.insert(kind.clone()) {
                tracing::info!(
                    kind,
                    "tools of this type run on no machine here; requests go on without them"
                );
            }
        }
    }
}

/// The prompt of a conversation, as text.
pub(crate) fn prompt<T: Target>(
    state: &State<T>,
    mut request: ChatRequest,
) -> Result<String, RouterError> {
    let input = input(state, &mut request)?;
    let (prompt, _) = rendered(&state.words, &input, request.continue_final_message)?;
    Ok(prompt)
}

/// What the template is given of a request.
fn input<T: Target>(
    state: &State<T>,
    request: &mut ChatRequest,
) -> Result<RenderInput, RouterError> {
    state.check_model(request.options.model.as_deref())?;
    state.skipped_tools.tell(&request.skipped_tools);
    if !state.config.keep_attribution {
        drop_attribution(&mut request.messages);
    }
    let mut kwargs = Map::new();
    match state.config.thinking {
        DefaultThinking::Template => {}
        thinking => {
            let wanted = thinking == DefaultThinking::On;
            kwargs.insert("enable_thinking".to_owned(), wanted.into());
        }
    }
    kwargs.extend(state.config.template_kwargs.clone());
    kwargs.extend(request.thinking.template_kwargs());
    kwargs.extend(std::mem::take(&mut request.template_kwargs));
    let tools = std::mem::take(&mut request.tools);
    Ok(RenderInput {
        messages: std::mem::take(&mut request.messages),
        tools: Some(tools).filter(|tools| !tools.is_empty()),
        add_generation_prompt: request.add_generation_prompt,
        kwargs,
    })
}

/// Renders and encodes a conversation.
pub(crate) fn plan<T: Target>(
    state: &State<T>,
    mut request: ChatRequest,
) -> Result<AnswersPlan, RouterError> {
    let words: &Words = &state.words;
    let tools = Arc::new(Tools::from_nested(&request.tools));
    let calling = Calling {
        tools: &tools,
        choice: &request.tool_choice,
        is_parallel: request.parallel_tool_calls,
    };
    let calls_grammar = calling.grammar(words);
    // An answer that has to call has no other beginning, unless the prompt has begun its reasoning.
    let is_forced = calling.is_forced();
    let calls = (!request.tools.is_empty()).then(|| CallPlan {
        tools: Arc::clone(&tools),
        bare_json: true,
        is_parallel: request.parallel_tool_calls,
    });
    let mut input = input(state, &mut request)?;
    let (prompt, start) = rendered(words, &input, request.continue_final_message)?;
    let ids = words.encode_prompt(&prompt);
    input.add_generation_prompt = false;
    // Where a template refuses that, nothing is known of the next turn.
    let history = words.render(&input).unwrap_or_default();
    let history_tokens = words.tokens_of_beginning(&ids, &prompt, &history);
    input.add_generation_prompt = request.add_generation_prompt;
    let asked = &request.compression;
    let compressor = Some(&state.compressor).filter(|_| !request.continue_final_message);
    let compression = compressor
        .and_then(|compressor| compressor.job(asked, &input, &prompt, &ids, history_tokens));
    let splits = start == ReasoningStart::Inside || words.tokenizer.token_id("</think>").is_some();
    let must_match = calls_grammar.is_none() && request.response_format.is_some();
    let of_calls = |grammar| AskedGrammar {
        grammar,
        field: "tools".to_owned(),
    };
    // Calls that have a grammar leave no room for another one.
    let format = request.response_format.map(AskedGrammar::from);
    let grammar = calls_grammar.map(of_calls).or(format);
    let answer = AnswerPlan {
        stop: request.options.stop.clone(),
        include_stop: request.options.include_stop,
        stop_ids: words.stop_ids(request.options.ignore_eos),
        // Text that has to match is no reasoning, whatever marks stand in it.
        reasoning: splits
            .then_some(start)
            .filter(|start| *start == ReasoningStart::Inside || !(is_forced || must_match)),
        calls: calls.filter(|_| !must_match),
        logprobs: request.top_logprobs.is_some(),
    };
    Ok(AnswersPlan {
        prompts: vec![(ids, answer)],
        history_tokens,
        grammar,
        compression,
        options: request.options,
        thinking: request.thinking,
        top_logprobs: request.top_logprobs,
    })
}

/// The prompt, and where the answer begins: behind the prompt's opening of an assistant turn, or behind what the last message
/// says, where it `continues` that.
fn rendered(
    words: &Words,
    input: &RenderInput,
    continues: bool,
) -> Result<(String, ReasoningStart), RouterError> {
    if !continues {
        let prompt = words.render(input)?;
        let start = ReasoningStart::of_prompt(&prompt);
        return Ok((prompt, start));
    }
    let mut marked = input.clone();
    marked.add_generation_prompt = false;
    let mut start = ReasoningStart::Before;
    if let Some(last) = marked.messages.last_mut() {
        let said = last["content"].as_str().unwrap_or_default();
        start = ReasoningStart::of_beginning(said);
        last["content"] = format!("{said}{MARK}").into();
    }
    let mut prompt = words.render(&marked)?;
    let end = prompt.rfind(MARK).ok_or(RouterError::NotContinuable)?;
    prompt.truncate(end);
    Ok((prompt, start))
}
