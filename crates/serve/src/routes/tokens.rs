//! `POST /tokenize` and `POST /detokenize`.

use super::chat;
use crate::app::App;
use crate::body;
use crate::wire::completions::token_ids;
use crate::wire::error::ApiError;
use crate::wire::fields::{Fields, wrong_type};
use crate::wire::messages;
use axum::Json;
use axum::extract::{Request, State};
use serde_json::{Value, json};

/// Text (`content` or `prompt`) or a conversation (`messages`) to tokens.
pub async fn tokenize(State(app): State<App>, request: Request) -> Result<Json<Value>, ApiError> {
    let body = body::read(request, app.config.body_limit_bytes).await?;
    tokio::task::spawn_blocking(move || to_tokens(&app, body))
        .await
        .unwrap_or(Err(ApiError::Internal))
        .map(Json)
}

fn to_tokens(app: &App, body: Value) -> Result<Value, ApiError> {
    let mut fields = Fields::of_body(body)?;
    app.resolve_model(fields.string("model")?)?;
    let with_pieces = fields.boolean("with_pieces")?.unwrap_or(false);
    let special = match fields.boolean("add_special")? {
        Some(special) => special,
        None => fields.boolean("add_special_tokens")?.unwrap_or(true),
    };
    let text = match fields.string("content")? {
        Some(text) => Some(text),
        None => fields.string("prompt")?,
    };
    let tokens = match text {
        Some(text) => app.encode("content", &text, special)?,
        None => match messages::read(&mut fields) {
            Ok(messages) => chat::prompt(app, &messages)?,
            Err(ApiError::MissingField { param }) if param == "messages" => {
                return Err(ApiError::MissingField { param: "content".to_owned() });
            }
            Err(error) => return Err(error),
        },
    };
    let count = tokens.len();
    let tokens: Value = if with_pieces {
        let tokenizer = &app.model.tokenizer;
        let piece = |id| {
            let piece = String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned();
            json!({ "id": id, "piece": piece })
        };
        tokens.into_iter().map(piece).collect()
    } else {
        tokens.into()
    };
    Ok(json!({ "tokens": tokens, "count": count, "max_model_len": app.window() }))
}

/// Tokens to text.
pub async fn detokenize(State(app): State<App>, request: Request) -> Result<Json<Value>, ApiError> {
    let body = body::read(request, app.config.body_limit_bytes).await?;
    let mut fields = Fields::of_body(body)?;
    app.resolve_model(fields.string("model")?)?;
    let tokens = match fields.take("tokens") {
        Some(Value::Array(items)) if items.is_empty() => Vec::new(),
        Some(Value::Array(items)) => token_ids("tokens", &items)?,
        Some(other) => return Err(wrong_type("tokens", "an array of token ids", &other)),
        None => return Err(ApiError::MissingField { param: "tokens".to_owned() }),
    };
    app.check_tokens("tokens", &tokens)?;
    let text = app.model.tokenizer.decode(&tokens);
    // The same text under the names that different clients look for.
    Ok(Json(json!({ "content": text, "prompt": text })))
}
