//! Errors as the APIs spell them. Nothing else knows how an error looks on the wire.

use std::any::Any;

use axum::Json;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use generation::GenerateError;
use sampling::SamplingError;
use schemars::JsonSchema;
use serde::Serialize;
use worker_api::WorkerError;

use crate::error::RouterError;

const RETRY_AFTER_BUSY_SECONDS: u64 = 1;
const RETRY_AFTER_UNAVAILABLE_SECONDS: u64 = 2;

/// Where the Messages API lives; everything else speaks as OpenAI does.
const MESSAGES: &str = "/v1/messages";
/// Sent by every client of the Messages API, wherever it calls.
const ANTHROPIC_VERSION: &str = "anthropic-version";

/// Whose shape errors have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    OpenAi,
    Anthropic,
}

impl Dialect {
    /// What the client of a request speaks.
    pub fn of(path: &str, headers: &HeaderMap) -> Self {
        let below = path.strip_prefix(MESSAGES);
        if below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            || headers.contains_key(ANTHROPIC_VERSION)
        {
            Self::Anthropic
        } else {
            Self::OpenAi
        }
    }
}

/// The body of an error as OpenAI has it, also in the middle of a stream.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OpenAiError")]
pub(super) struct OpenAiBody {
    error: OpenAiDetail,
}

#[derive(Debug, Serialize, JsonSchema)]
struct OpenAiDetail {
    message: String,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<String>,
    code: Option<&'static str>,
    /// Length of a prompt that is too long.
    #[serde(skip_serializing_if = "Option::is_none")]
    n_prompt_tokens: Option<usize>,
    /// What the context holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    n_ctx: Option<usize>,
}

/// The body of an error as Anthropic has it, also in the middle of a stream.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AnthropicError")]
pub(super) struct AnthropicBody {
    #[serde(rename = "type")]
    kind: &'static str,
    error: AnthropicDetail,
    request_id: String,
}

#[derive(Debug, Serialize, JsonSchema)]
struct AnthropicDetail {
    #[serde(rename = "type")]
    kind: &'static str,
    message: String,
    /// What a client can do something about by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<AnthropicDetails>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct AnthropicDetails {
    error_code: &'static str,
    /// Fields of the request.
    unsupported: [&'static str; 1],
}

/// The response has a status and the error beside it; [`write_body`] knows the request and gives it a body.
impl IntoResponse for RouterError {
    fn into_response(self) -> Response {
        let status = status(&self);
        if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED {
            tracing::warn!(error = %self, status = status.as_u16(), "a request fails");
        }
        let mut response = status.into_response();
        let retry_after = match status {
            StatusCode::TOO_MANY_REQUESTS => Some(RETRY_AFTER_BUSY_SECONDS),
            StatusCode::SERVICE_UNAVAILABLE => Some(RETRY_AFTER_UNAVAILABLE_SECONDS),
            _ => None,
        };
        if let Some(seconds) = retry_after {
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// Where `response` carries an error, gives it the body that the client reads.
pub(super) fn write_body(response: Response, dialect: Dialect, request_id: &str) -> Response {
    let Some(error) = response.extensions().get::<RouterError>() else {
        return response;
    };
    let body = match dialect {
        Dialect::OpenAi => Json(openai(error)).into_response(),
        Dialect::Anthropic => Json(anthropic(error, request_id)).into_response(),
    };
    let (mut parts, _) = response.into_parts();
    let (written, body) = body.into_parts();
    parts.headers.extend(written.headers);
    // It was that of no body.
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, body)
}

/// The answer to a request in which something panicked.
pub(super) fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!(panic = text.unwrap_or("no text"), "a request panicked");
    RouterError::Panicked.into_response()
}

fn status(error: &RouterError) -> StatusCode {
    match error {
        RouterError::Request(_)
        | RouterError::Chat(_)
        | RouterError::TooManyAnswers { .. }
        | RouterError::NotContinuable
        | RouterError::Grammar { .. }
        | RouterError::BodyCut => StatusCode::BAD_REQUEST,
        RouterError::Generate(error) => match error {
            GenerateError::QueueFull { .. } => StatusCode::TOO_MANY_REQUESTS,
            GenerateError::ShuttingDown | GenerateError::Gone(_) | GenerateError::Away(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            GenerateError::Model(_) => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::BAD_REQUEST,
        },
        RouterError::Worker(error) => match error {
            WorkerError::Invalid(_) | WorkerError::Grammar(_) | WorkerError::PromptTooLong(_) => {
                StatusCode::BAD_REQUEST
            }
            WorkerError::QueueFull(_) => StatusCode::TOO_MANY_REQUESTS,
            WorkerError::NoRoom(_) | WorkerError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            WorkerError::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        },
        RouterError::BodyTooSlow { .. } => StatusCode::REQUEST_TIMEOUT,
        RouterError::TooLong { .. } => StatusCode::GATEWAY_TIMEOUT,
        RouterError::NoKey | RouterError::WrongKey => StatusCode::UNAUTHORIZED,
        RouterError::UnknownModel { .. }
        | RouterError::UnknownRoute { .. }
        | RouterError::NotStored { .. } => StatusCode::NOT_FOUND,
        RouterError::WrongMethod { .. } => StatusCode::METHOD_NOT_ALLOWED,
        RouterError::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        RouterError::HeadTooLarge { .. } => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        RouterError::NotOffered { .. } => StatusCode::NOT_IMPLEMENTED,
        RouterError::Busy { .. } | RouterError::TooManyWatchers => StatusCode::TOO_MANY_REQUESTS,
        RouterError::Draining => StatusCode::SERVICE_UNAVAILABLE,
        RouterError::Panicked => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The error as OpenAI spells it.
pub(super) fn openai(error: &RouterError) -> OpenAiBody {
    let kind = match status(error) {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::NOT_IMPLEMENTED => "invalid_request_error",
        status if status.is_server_error() => "server_error",
        _ => "invalid_request_error",
    };
    let (n_prompt_tokens, n_ctx) = too_long(error).unzip();
    let message = match code(error) {
        // Clients that shorten conversations look for this word in the message.
        Some(code @ "context_length_exceeded") => format!("{error} ({code})"),
        _ => error.to_string(),
    };
    OpenAiBody {
        error: OpenAiDetail {
            message,
            kind,
            param: param(error),
            code: code(error),
            n_prompt_tokens,
            n_ctx,
        },
    }
}

/// The kind of failure as the answers of the Responses API have it.
pub(super) fn response_code(error: &RouterError) -> &'static str {
    match status(error) {
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_exceeded",
        status if status.is_client_error() => "invalid_prompt",
        _ => "server_error",
    }
}

/// The error as Anthropic spells it.
pub(super) fn anthropic(error: &RouterError, request_id: &str) -> AnthropicBody {
    let kind = match status(error) {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        StatusCode::GATEWAY_TIMEOUT => "timeout_error",
        StatusCode::NOT_IMPLEMENTED => "invalid_request_error",
        status if status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    };
    // These words and numbers are what clients look for before they shorten a conversation.
    let message = match (error, too_long(error)) {
        (_, Some((prompt, limit))) => {
            format!("prompt is too long: {prompt} tokens > {limit} maximum")
        }
        (RouterError::Worker(WorkerError::PromptTooLong(said)), None) => {
            format!("prompt is too long: {said}")
        }
        _ => error.to_string(),
    };
    AnthropicBody {
        kind: "error",
        error: AnthropicDetail {
            kind,
            message,
            details: details(error),
        },
        request_id: request_id.to_owned(),
    }
}

/// Told that threads are not kept, the official clients send whole conversations.
fn details(error: &RouterError) -> Option<AnthropicDetails> {
    let is_thread = param(error).as_deref() == Some("thread");
    is_thread.then_some(AnthropicDetails {
        error_code: "thread_unsupported_request",
        unsupported: ["thread"],
    })
}

/// Tokens of a prompt that is too long, and those that there is room for.
fn too_long(error: &RouterError) -> Option<(usize, usize)> {
    match error {
        RouterError::Generate(GenerateError::PromptTooLong {
            prompt_tokens,
            context_length,
        }) => Some((*prompt_tokens, *context_length)),
        _ => None,
    }
}

fn param(error: &RouterError) -> Option<String> {
    match error {
        RouterError::Request(error) => error.field().map(str::to_owned),
        RouterError::Chat(_) => Some("messages".to_owned()),
        RouterError::UnknownModel { .. } => Some("model".to_owned()),
        RouterError::Grammar { field, .. } => Some(field.clone()),
        RouterError::TooManyAnswers { .. } => Some("n".to_owned()),
        RouterError::NotContinuable => Some("continue_final_message".to_owned()),
        RouterError::Generate(error) => match error {
            GenerateError::EmptyPrompt => Some("prompt".to_owned()),
            GenerateError::UnknownToken { field, .. } => Some((*field).to_owned()),
            GenerateError::Sampling(SamplingError::OutOfRange { field, .. }) => {
                Some((*field).to_owned())
            }
            GenerateError::Sampling(SamplingError::Bias { .. }) => Some("logit_bias".to_owned()),
            _ => None,
        },
        _ => None,
    }
}

fn code(error: &RouterError) -> Option<&'static str> {
    match error {
        RouterError::Request(api_types::RequestError::UnknownField { .. }) => Some("unknown_field"),
        RouterError::Request(api_types::RequestError::Unsupported { .. }) => Some("unsupported"),
        RouterError::Generate(GenerateError::PromptTooLong { .. })
        | RouterError::Worker(WorkerError::PromptTooLong(_)) => Some("context_length_exceeded"),
        RouterError::Generate(GenerateError::QueueFull { .. })
        | RouterError::Worker(WorkerError::QueueFull(_))
        | RouterError::Busy { .. } => Some("queue_full"),
        RouterError::Worker(WorkerError::NoRoom(_) | WorkerError::Unavailable(_)) => {
            Some("worker_unavailable")
        }
        RouterError::Worker(WorkerError::Internal(_))
        | RouterError::Generate(GenerateError::Model(_)) => Some("worker_failed"),
        RouterError::Generate(GenerateError::ShuttingDown) | RouterError::Draining => {
            Some("draining")
        }
        RouterError::BodyTooSlow { .. } | RouterError::TooLong { .. } => Some("timeout"),
        RouterError::NoKey | RouterError::WrongKey => Some("invalid_api_key"),
        RouterError::UnknownModel { .. } => Some("model_not_found"),
        RouterError::UnknownRoute { .. } => Some("not_found"),
        RouterError::NotStored { .. } => Some("response_not_found"),
        RouterError::WrongMethod { .. } => Some("method_not_allowed"),
        RouterError::BodyTooLarge { .. } => Some("body_too_large"),
        RouterError::HeadTooLarge { .. } => Some("headers_too_large"),
        RouterError::NotOffered { .. } => Some("unsupported"),
        RouterError::Panicked => Some("internal_error"),
        _ => None,
    }
}
