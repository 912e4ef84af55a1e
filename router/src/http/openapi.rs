//! The OpenAPI document, made from the types of requests and answers.

mod document;

use std::sync::LazyLock;

use api_types::{
    AnthropicEvent, AnthropicMessage, ChatBody, ChatChunk, ChatCompletion, Completion,
    CompletionBody, DetokenizeBody, InputTokens, MessagesBody, ResponseEvent, ResponseObject,
    ResponsesBody, TokenizeBody,
};
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use serde_json::{Value, json};

use crate::http::error::{AnthropicBody, OpenAiBody};
use crate::http::openapi::document::{Answer, Document};

static DOCUMENT: LazyLock<String> = LazyLock::new(|| document().to_string());

/// The document.
pub(super) async fn openapi() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], DOCUMENT.as_str())
}

/// Every route, with what it takes and gives; but not those that only say that something is not offered.
fn document() -> Value {
    let mut document = Document::new();
    chats(&mut document);
    messages(&mut document);
    text(&mut document);
    service(&mut document);
    document.finish()
}

fn chats(document: &mut Document) {
    let failure = document.failure::<OpenAiBody>();
    let answer = document.streamed::<ChatCompletion, ChatChunk>("The answer, or its chunks.");
    document
        .post::<ChatBody>("/v1/chat/completions", "Go on with a conversation")
        .gives(answer)
        .fails(&failure);
    let answer = document.streamed::<ResponseObject, ResponseEvent>("The answer, or its events.");
    document
        .post::<ResponsesBody>("/v1/responses", "Go on with a conversation, by items")
        .gives(answer)
        .fails(&failure);
    let answer = document.json::<InputTokens>("The number of tokens.");
    document
        .post::<ResponsesBody>(
            "/v1/responses/input_tokens",
            "Count the tokens of a conversation",
        )
        .gives(answer)
        .fails(&failure);
    let answer = document.json::<InputTokens>("The number of tokens.");
    document
        .post::<ChatBody>(
            "/v1/chat/completions/input_tokens",
            "Count the tokens of a conversation",
        )
        .gives(answer)
        .fails(&failure);
    for (path, summary) in [
        ("/v1/responses/{id}", "An earlier answer: none is stored"),
        (
            "/v1/responses/{id}/input_items",
            "Its conversation: none is stored",
        ),
    ] {
        document.get(path, summary).fails(&failure);
    }
}

fn messages(document: &mut Document) {
    let failure = document.failure::<AnthropicBody>();
    let answer =
        document.streamed::<AnthropicMessage, AnthropicEvent>("The answer, or its events.");
    document
        .post::<MessagesBody>("/v1/messages", "Go on with a conversation, by blocks")
        .gives(answer)
        .fails(&failure);
    let tokens = json!({ "input_tokens": { "type": "integer" } });
    document
        .post::<MessagesBody>(
            "/v1/messages/count_tokens",
            "Count the tokens of a conversation",
        )
        .gives(Answer::object("The number of tokens.", tokens))
        .fails(&failure);
}

fn text(document: &mut Document) {
    let failure = document.failure::<OpenAiBody>();
    let answer = document.streamed::<Completion, Completion>("The answer, or its chunks.");
    document
        .post::<CompletionBody>("/v1/completions", "Go on with text")
        .gives(answer)
        .fails(&failure);
    let tokens = json!({ "type": "array", "items": { "anyOf": [
        { "type": "integer" },
        { "type": "object", "required": ["id", "piece"], "properties": {
            "id": { "type": "integer" },
            "piece": { "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "integer" } }] },
        } },
    ] } });
    document
        .post::<TokenizeBody>("/tokenize", "Text to token ids")
        .gives(Answer::object("The ids.", json!({ "tokens": tokens })))
        .fails(&failure);
    document
        .post::<DetokenizeBody>("/detokenize", "Token ids to text")
        .gives(Answer::object(
            "The text.",
            json!({ "content": { "type": "string" } }),
        ))
        .fails(&failure);
    document
        .post::<ChatBody>("/apply-template", "A conversation to its prompt")
        .gives(Answer::object(
            "The prompt.",
            json!({ "prompt": { "type": "string" } }),
        ))
        .fails(&failure);
}

fn service(document: &mut Document) {
    let failure = document.failure::<OpenAiBody>();
    let number = json!({ "type": ["integer", "null"] });
    let model = json!({ "type": "object",
        "required": [
            "id", "object", "created", "owned_by", "context_length", "max_context_length",
            "type", "display_name", "created_at", "lifecycle", "max_input_tokens",
        ],
        "properties": {
            "id": { "type": "string" },
            "object": { "const": "model" },
            "created": { "type": "integer" },
            "owned_by": { "type": "string" },
            "context_length": number,
            "max_context_length": number,
            "type": { "const": "model" },
            "display_name": { "type": "string" },
            "created_at": { "type": "string", "format": "date-time" },
            "lifecycle": { "const": "active" },
            "max_input_tokens": number,
        },
    });
    let list = json!({
        "object": { "const": "list" },
        "data": { "type": "array", "items": model },
        "has_more": { "const": false },
        "first_id": { "type": "string" },
        "last_id": { "type": "string" },
    });
    document
        .get("/v1/models", "The models")
        .gives(Answer::object("A list of one.", list))
        .fails(&failure);
    document
        .get("/v1/models/{id}", "A model")
        .gives(Answer::schema("The model.", model))
        .fails(&failure);
    let status = json!({ "status": { "type": "string" } });
    for (path, summary) in [
        ("/health", "Whether the target answers"),
        ("/health/ready", "Whether another request would be taken"),
        ("/readyz", "Whether another request would be taken"),
        ("/health/live", "Whether the process is alive"),
        ("/livez", "Whether the process is alive"),
    ] {
        let no = json!({ "status": { "type": "string" }, "reason": { "type": "string" } });
        document
            .get(path, summary)
            .gives(Answer::object("Yes.", status.clone()))
            .gives(Answer::object("No, and why.", no).with_status("503"))
            .fails(&failure);
    }
    document
        .get("/props", "The settings in force")
        .gives(Answer::schema("The settings.", json!({ "type": "object" })))
        .fails(&failure);
    let slot = json!({ "type": "object", "required": ["id", "request_id", "route", "state"] });
    document
        .get("/slots", "The requests at work or waiting")
        .gives(Answer::schema(
            "The requests.",
            json!({ "type": "array", "items": slot }),
        ))
        .fails(&failure);
    let page = || Answer::text("The page.", "text/html");
    document
        .get(
            "/",
            "A page with a chat; for clients of JSON, whether the target answers",
        )
        .gives(page().or_json(json!({ "type": "object" })))
        .fails(&failure);
    document
        .get("/status", "The page, at its live view")
        .gives(page())
        .fails(&failure);
    document
        .get("/web/{name}", "What the page consists of")
        .gives(Answer::text("The file.", "*/*"))
        .fails(&failure);
    document
        .get("/status/json", "What is at work, and how")
        .gives(Answer::schema("All of it.", json!({ "type": "object" })))
        .fails(&failure);
    document
        .get("/status/events", "The same again and again, without an end")
        .gives(Answer::text("Server-sent events.", "text/event-stream"))
        .fails(&failure);
    document
        .get("/metrics", "Series for Prometheus")
        .gives(Answer::text("The series.", "text/plain"))
        .fails(&failure);
    document
        .get("/openapi.json", "This document")
        .gives(Answer::schema("The document.", json!({ "type": "object" })))
        .fails(&failure);
}
