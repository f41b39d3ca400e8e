//! `POST /v1/completions`.

use crate::app::App;
use crate::dialect::{Completion, Dialect};
use crate::generation::Job;
use crate::respond::respond;
use crate::wire::completions::{CompletionRequest, Prompt};
use crate::wire::error::ApiError;
use crate::wire::options::Delivery;
use crate::{body, ids};
use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::Value;

/// Continues a text.
pub async fn complete(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let body = body::read(request, app.config.body_limit_bytes).await?;
    let worker = app.clone();
    let (job, delivery) = tokio::task::spawn_blocking(move || prepare(&worker, body))
        .await
        .unwrap_or(Err(ApiError::Internal))?;
    respond(&app, job, delivery, Completion::default()).await
}

fn prepare(app: &App, body: Value) -> Result<(Job, Delivery), ApiError> {
    let request = CompletionRequest::read(body, &app.config.default_sampling)?;
    let model = app.resolve_model(request.model)?;
    app.check_biases(&request.options)?;
    let (prompt, text) = match request.prompt {
        Prompt::Tokens(tokens) => {
            app.check_tokens("prompt", &tokens)?;
            let text = request.echo.then(|| app.model.tokenizer.decode(&tokens));
            (tokens, text)
        }
        Prompt::Text(text) => {
            let tokens = app.encode("prompt", &text, true)?;
            (tokens, request.echo.then_some(text))
        }
    };
    if prompt.is_empty() {
        // A model predicts from something; an empty text has not even a first token.
        return Err(ApiError::invalid("prompt", "must hold something to continue"));
    }
    let job = Job {
        id: ids::name(Completion::PREFIX),
        endpoint: Completion::PATH,
        param: "prompt",
        model,
        stream: request.delivery.stream,
        prompt,
        echo: text,
        options: request.options,
        logprobs: request.logprobs,
    };
    Ok((job, request.delivery))
}
