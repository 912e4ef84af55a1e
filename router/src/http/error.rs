//! Errors as the OpenAI API spells them. Nothing else knows how an error looks on the wire.

use std::any::Any;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use generation::GenerateError;
use sampling::SamplingError;
use serde::Serialize;
use worker_api::WorkerError;

use crate::error::RouterError;

const RETRY_AFTER_BUSY_SECONDS: u64 = 1;
const RETRY_AFTER_UNAVAILABLE_SECONDS: u64 = 2;

#[derive(Debug, Serialize)]
struct Body {
    error: Detail,
}

#[derive(Debug, Serialize)]
struct Detail {
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

/// The body of an error that comes in the middle of a stream.
pub(super) fn event_json(error: &RouterError) -> String {
    to_json(&body(error))
}

impl IntoResponse for RouterError {
    fn into_response(self) -> Response {
        let status = status(&self);
        if status.is_server_error() {
            tracing::warn!(error = %self, status = status.as_u16(), "a request fails");
        }
        let mut response = (status, Json(body(&self))).into_response();
        let headers = response.headers_mut();
        let retry_after = match status {
            StatusCode::TOO_MANY_REQUESTS => Some(RETRY_AFTER_BUSY_SECONDS),
            StatusCode::SERVICE_UNAVAILABLE => Some(RETRY_AFTER_UNAVAILABLE_SECONDS),
            _ => None,
        };
        if let Some(seconds) = retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
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
        | RouterError::BodyCut => StatusCode::BAD_REQUEST,
        RouterError::Generate(error) => match error {
            GenerateError::QueueFull { .. } => StatusCode::TOO_MANY_REQUESTS,
            GenerateError::ShuttingDown | GenerateError::Gone(_) => StatusCode::SERVICE_UNAVAILABLE,
            GenerateError::Model(_) => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::BAD_REQUEST,
        },
        RouterError::Worker(error) => match error {
            WorkerError::Invalid(_) | WorkerError::PromptTooLong(_) => StatusCode::BAD_REQUEST,
            WorkerError::QueueFull(_) => StatusCode::TOO_MANY_REQUESTS,
            WorkerError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            WorkerError::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        },
        RouterError::UnknownModel { .. } | RouterError::UnknownRoute { .. } => {
            StatusCode::NOT_FOUND
        }
        RouterError::WrongMethod { .. } => StatusCode::METHOD_NOT_ALLOWED,
        RouterError::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        RouterError::Busy { .. } => StatusCode::TOO_MANY_REQUESTS,
        RouterError::Draining => StatusCode::SERVICE_UNAVAILABLE,
        RouterError::Panicked => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn body(error: &RouterError) -> Body {
    let status = status(error);
    let kind = match status {
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        status if status.is_server_error() => "server_error",
        _ => "invalid_request_error",
    };
    let (n_prompt_tokens, n_ctx) = match error {
        RouterError::Generate(GenerateError::PromptTooLong {
            prompt_tokens,
            context_length,
        }) => (Some(*prompt_tokens), Some(*context_length)),
        _ => (None, None),
    };
    Body {
        error: Detail {
            message: error.to_string(),
            kind,
            param: param(error),
            code: code(error),
            n_prompt_tokens,
            n_ctx,
        },
    }
}

fn param(error: &RouterError) -> Option<String> {
    match error {
        RouterError::Request(error) => error.field().map(str::to_owned),
        RouterError::Chat(_) => Some("messages".to_owned()),
        RouterError::UnknownModel { .. } => Some("model".to_owned()),
        RouterError::TooManyAnswers { .. } => Some("n".to_owned()),
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
        RouterError::Worker(WorkerError::Unavailable(_)) => Some("worker_unavailable"),
        RouterError::Worker(WorkerError::Internal(_))
        | RouterError::Generate(GenerateError::Model(_)) => Some("worker_failed"),
        RouterError::Generate(GenerateError::ShuttingDown) | RouterError::Draining => {
            Some("draining")
        }
        RouterError::UnknownModel { .. } => Some("model_not_found"),
        RouterError::UnknownRoute { .. } => Some("not_found"),
        RouterError::WrongMethod { .. } => Some("method_not_allowed"),
        RouterError::BodyTooLarge { .. } => Some("body_too_large"),
        RouterError::Panicked => Some("internal_error"),
        _ => None,
    }
}

fn to_json(body: &Body) -> String {
    serde_json::to_string(body).expect("strings and numbers are always JSON")
}
