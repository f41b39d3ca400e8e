//! `POST /v1/chat/completions`.

use crate::app::App;
use crate::dialect::{Chat, Dialect};
use crate::generation::Job;
use crate::respond::respond;
use crate::wire::chat::ChatRequest;
use crate::wire::error::ApiError;
use crate::{body, ids};
use axum::extract::{Request, State};
use axum::response::Response;
use laneway_execution::TokenId;
use laneway_frontend::TemplateError;
use serde_json::Value;

/// Answers a conversation.
pub async fn complete(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let body = body::read(request, app.config.body_limit_bytes).await?;
    let worker = app.clone();
    // Long prompts take a while to render and tokenize; other connections go on meanwhile.
    let (job, delivery) = tokio::task::spawn_blocking(move || prepare(&worker, body))
        .await
        .unwrap_or(Err(ApiError::Internal))?;
    respond(&app, job, delivery, Chat).await
}

fn prepare(app: &App, body: Value) -> Result<(Job, crate::wire::options::Delivery), ApiError> {
    let request = ChatRequest::read(body, &app.config.default_sampling)?;
    let model = app.resolve_model(request.model)?;
    app.check_biases(&request.options)?;
    let prompt = prompt(app, &request.messages)?;
    let job = Job {
        id: ids::name(Chat::PREFIX),
        endpoint: Chat::PATH,
        param: "messages",
        model,
        stream: request.delivery.stream,
        prompt,
        echo: None,
        options: request.options,
        logprobs: request.logprobs,
    };
    Ok((job, request.delivery))
}

/// The tokens of a conversation, up to where the answer begins.
pub(super) fn prompt(app: &App, messages: &[Value]) -> Result<Vec<TokenId>, ApiError> {
    let Some(template) = &app.model.template else {
        let problem = "the model has no chat template";
        return Err(ApiError::InvalidConversation(problem.to_owned()));
    };
    let text = template.render(messages).map_err(|error| {
        ApiError::InvalidConversation(match error {
            TemplateError::Refused(reason) => reason,
            other => other.to_string(),
        })
    })?;
    // Templates write the token that begins a text themselves.
    app.encode("messages", &text, false)
}
