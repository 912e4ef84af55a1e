//! Lets those in who have a key.

use std::sync::Arc;

use axum::extract::{Request, State as Shared};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::error::RouterError;
use crate::state::State;
use crate::target::Target;

/// Where clients of the Messages API have their key.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const SCHEME: &str = "bearer";

/// Refuses a request without one of the keys, where there are any.
pub(super) async fn check<T: Target>(
    Shared(state): Shared<Arc<State<T>>>,
    request: Request,
    next: Next,
) -> Response {
    let keys = &state.config.keys;
    if keys.is_empty() {
        return next.run(request).await;
    }
    let given = given(request.headers());
    match given {
        Some(key) if keys.admit(key) => next.run(request).await,
        given => {
            state.metrics.unauthorized.increment(1);
            let fault = given.map_or(RouterError::NoKey, |_| RouterError::WrongKey);
            let mut response = fault.into_response();
            let headers = response.headers_mut();
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            response
        }
    }
}

/// The key of a request: what goes with `Authorization: Bearer`, or else `x-api-key`.
fn given(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let value = value.as_bytes();
        let (scheme, key) = value.split_at_checked(SCHEME.len())?;
        let key = key.strip_prefix(b" ")?.trim_ascii();
        scheme
            .eq_ignore_ascii_case(SCHEME.as_bytes())
            .then_some(key)
    });
    bearer.or_else(|| headers.get(X_API_KEY).map(HeaderValue::as_bytes))
}
