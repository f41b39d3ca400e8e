//! Permission for pages of other origins to call the API from a browser.

use crate::app::App;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Headers of ours that scripts may read.
const EXPOSED: &str = "retry-after, x-request-id, x-laneway-predicted-ttft-ms";
/// How long a browser may remember a permission.
const MAX_AGE_SECONDS: &str = "86400";

/// Answers preflight requests and marks all other responses.
pub async fn apply(State(app): State<App>, request: Request, next: Next) -> Response {
    let origin = allowed(request.headers(), &app.config.allowed_origins);
    let is_preflight = request.method() == Method::OPTIONS;
    let asked = request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let mut response = if is_preflight {
        (StatusCode::NO_CONTENT, [(header::ALLOW, "GET, HEAD, POST, OPTIONS")]).into_response()
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    headers.insert(header::VARY, HeaderValue::from_static("origin"));
    let Some(origin) = origin else { return response };
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
    if is_preflight {
        let methods = HeaderValue::from_static("GET, POST, OPTIONS");
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
        // Keys travel in headers, never in cookies, so any header may be sent.
        let asked = asked.unwrap_or(HeaderValue::from_static("authorization, content-type"));
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked);
        let age = HeaderValue::from_static(MAX_AGE_SECONDS);
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, age);
    }
    response
}

/// The permission for the origin of a request, if it has one and it is allowed.
fn allowed(headers: &HeaderMap, origins: &[String]) -> Option<HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    if origins.iter().any(|allowed| allowed == "*") {
        return Some(HeaderValue::from_static("*"));
    }
    origins.iter().any(|allowed| allowed.as_bytes() == origin.as_bytes()).then(|| origin.clone())
}
