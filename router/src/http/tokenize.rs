//! The tokenizer by itself, in the shapes of llama.cpp's server.

use std::sync::Arc;

use api_types::{DetokenizeRequest, TokenizeRequest};
use axum::Json;
use axum::extract::{Request, State as Shared};
use generation::GenerateError;
use serde_json::{Value, json};
use tokenizer::{EncodeOptions, Tokenizer};

use crate::error::RouterError;
use crate::http::body;
use crate::state::{State, offload};
use crate::target::Target;

/// Text to ids.
pub(super) async fn tokenize<T: Target>(
    Shared(state): Shared<Arc<State<T>>>,
    request: Request,
) -> Result<Json<Value>, RouterError> {
    let (parts, body) = request.into_parts();
    let body = body::read(&parts, body, state.config.max_body_bytes).await?;
    let tokenizer = Arc::clone(&state.words.tokenizer);
    offload(body.len(), move || {
        let request = TokenizeRequest::from_body(&body)?;
        let options = EncodeOptions {
            add_bos: request.add_special,
            parse_special: request.parse_special,
        };
        let ids = tokenizer.encode(&request.content, options);
        let tokens: Vec<Value> = if request.with_pieces {
            ids.iter().map(|&id| piece(&tokenizer, id)).collect()
        } else {
            ids.into_iter().map(Value::from).collect()
        };
        Ok(Json(json!({ "tokens": tokens })))
    })
    .await?
}

/// Ids to text, special tokens shown.
pub(super) async fn detokenize<T: Target>(
    Shared(state): Shared<Arc<State<T>>>,
    request: Request,
) -> Result<Json<Value>, RouterError> {
    let (parts, body) = request.into_parts();
    let body = body::read(&parts, body, state.config.max_body_bytes).await?;
    let tokenizer = Arc::clone(&state.words.tokenizer);
    offload(body.len(), move || {
        let ids = DetokenizeRequest::from_body(&body)?.tokens;
        let vocab_size = tokenizer.vocab_size() as u32;
        if let Some(&token) = ids.iter().find(|&&id| id >= vocab_size) {
            return Err(RouterError::Generate(GenerateError::UnknownToken {
                field: "tokens",
                token,
                vocab_size,
            }));
        }
        Ok(Json(json!({ "content": tokenizer.decode(&ids, true) })))
    })
    .await?
}

/// A token with its text, or its bytes where they are not whole characters.
fn piece(tokenizer: &Tokenizer, id: u32) -> Value {
    let bytes = tokenizer.token_bytes(id, true).unwrap_or_default();
    match std::str::from_utf8(&bytes) {
        Ok(text) => json!({ "id": id, "piece": text }),
        Err(_) => json!({ "id": id, "piece": &*bytes }),
    }
}
