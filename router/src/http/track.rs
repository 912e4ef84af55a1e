//! The name of a request, its span, and its record.

use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State as Shared};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tracing::{Instrument, info_span};

use crate::error::RouterError;
use crate::http::body::BodyTime;
use crate::http::error::{Dialect, write_body};
use crate::random;
use crate::record::RequestRecord;
use crate::state::State;
use crate::target::Target;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The same for clients of the Messages API.
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// Longest path and headers. Beyond a multiple of it the transport refuses them by itself, without a body.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// Longest name that is taken over from a client.
const MAX_ID_BYTES: usize = 128;

/// Keeps the name that the client gave or makes one, and follows the request to its end.
pub(super) async fn track<T: Target>(
    Shared(state): Shared<Arc<State<T>>>,
    mut request: Request,
    next: Next,
) -> Response {
    let id = given_id(&request).unwrap_or_else(|| random::name("req-"));
    // Paths that nobody serves share a name, so that their number stays bounded.
    let route = request.extensions().get::<MatchedPath>();
    let route = route.map_or("other", MatchedPath::as_str).to_owned();
    let span = info_span!("request", request_id = %id, route);
    let metrics = Arc::clone(&state.metrics);
    let method = request.method().clone();
    let dialect = Dialect::of(request.uri().path(), request.headers());
    let record = Arc::new(RequestRecord::new(id, method, route, metrics));
    let extensions = request.extensions_mut();
    extensions.insert(Arc::clone(&record));
    extensions.insert(BodyTime(state.config.times.body));
    let response = match check_head(&request) {
        Ok(()) => next.run(request).instrument(span).await,
        Err(refusal) => refusal.into_response(),
    };
    record.responded(response.status());
    let mut response = write_body(response, dialect, &record.id);
    if let Ok(id) = HeaderValue::from_str(&record.id) {
        let headers = response.headers_mut();
        if dialect == Dialect::Anthropic {
            headers.insert(ANTHROPIC_REQUEST_ID, id.clone());
        }
        headers.insert(REQUEST_ID, id);
    }
    response
}

fn check_head(request: &Request) -> Result<(), RouterError> {
    let fields = request.headers().iter();
    let fields = fields.map(|(name, value)| name.as_str().len() + value.len());
    let uri = request.uri().path_and_query();
    let uri = uri.map_or(0, |uri| uri.as_str().len());
    if fields.sum::<usize>() + uri > MAX_HEAD_BYTES {
        let limit = MAX_HEAD_BYTES;
        return Err(RouterError::HeadTooLarge { limit });
    }
    Ok(())
}

fn given_id(request: &Request) -> Option<String> {
    let id = request.headers().get(REQUEST_ID)?.to_str().ok()?;
    let fits =
        !id.is_empty() && id.len() <= MAX_ID_BYTES && id.bytes().all(|b| b.is_ascii_graphic());
    fits.then(|| id.to_owned())
}
