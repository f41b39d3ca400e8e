//! Which path does what, and what surrounds every request.

mod chat;
mod completions;
mod health;
mod models;
mod page;
mod tokens;

use crate::app::App;
use crate::wire::error::ApiError;
use crate::{auth, cors};
use axum::Router;
use axum::extract::Request;
use axum::http::{Method, Uri};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::FutureExt as _;
use std::panic::AssertUnwindSafe;

/// All routes. `/health` and the page are open; everything else asks for a key if there is one.
pub(crate) fn router(app: App) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat::complete))
        .route("/v1/completions", post(completions::complete))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::show))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route_layer(from_fn_with_state(app.clone(), auth::check))
        .route("/health", get(health::show))
        .route("/", get(page::show))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(app.clone(), cors::apply))
        .layer(from_fn(observe))
        .with_state(app)
}

async fn not_found(uri: Uri) -> ApiError {
    ApiError::NotFound(uri.path().to_owned())
}

async fn method_not_allowed(method: Method) -> ApiError {
    ApiError::MethodNotAllowed(method.to_string())
}

/// Logs refusals, and keeps a panic from reaching beyond the request it belongs to.
async fn observe(request: Request, next: Next) -> Response {
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    // Handlers share nothing that a panic could leave half-changed: the engine's thread is on
    // the other side of a mailbox, and locks there survive a panic.
    let response = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    let response = response.unwrap_or_else(|_| ApiError::Internal.into_response());
    let Some(error) = response.extensions().get::<ApiError>() else { return response };
    if error.status().is_client_error() {
        tracing::info!(
            target: "laneway::request",
            status = "refused",
            %method,
            path,
            http = error.status().as_u16(),
            code = error.code(),
            message = %error,
        );
    } else {
        tracing::warn!(
            target: "laneway::request",
            %method,
            path,
            http = error.status().as_u16(),
            code = error.code(),
            message = %error,
        );
    }
    response
}
