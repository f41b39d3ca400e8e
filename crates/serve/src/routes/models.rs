//! `GET /v1/models` and `GET /v1/models/{id}`.

use crate::app::App;
use crate::wire::error::ApiError;
use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

/// All served names. `data` is OpenAI's list; `models` is the list that local clients read.
pub async fn list(State(app): State<App>) -> Json<Value> {
    let ids = &app.config.model_ids;
    let data: Vec<_> = ids.iter().map(|id| describe(&app, id)).collect();
    let models: Vec<_> = ids
        .iter()
        .map(|id| {
            json!({
                "name": id,
                "model": id,
                "slug": id,
                "display_name": id,
                "type": "model",
                "capabilities": ["completion"],
                "context_length": app.window(),
                "context_window": app.window(),
            })
        })
        .collect();
    Json(json!({ "object": "list", "data": data, "models": models }))
}

/// One served name; names may contain slashes.
pub async fn show(State(app): State<App>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    let id = app.resolve_model(Some(id))?;
    Ok(Json(describe(&app, &id)))
}

fn describe(app: &App, id: &str) -> Value {
    json!({
        "id": id,
        "object": "model",
        "created": app.started,
        "owned_by": "laneway",
        "root": app.model_id(),
        // The same number under the names that different clients look for.
        "context_length": app.window(),
        "context_window": app.window(),
        "max_model_len": app.window(),
    })
}
