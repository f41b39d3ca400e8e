//! `GET /health`.

use crate::app::App;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::{Value, json};

/// Whether requests are served, and how busy the server is.
pub async fn show(State(app): State<App>) -> (StatusCode, Json<Value>) {
    let engine = app.model.engine.status();
    let (code, status) = if engine.failed {
        (StatusCode::SERVICE_UNAVAILABLE, "failed")
    } else {
        (StatusCode::OK, "ok")
    };
    let body = json!({
        "status": status,
        "model": app.model_id(),
        "context_length": app.window(),
        "lanes": { "total": engine.lanes, "busy": engine.lanes_busy },
        "queue": { "capacity": engine.queue_max, "waiting": engine.queue },
        "pages": { "total": engine.pages, "used": engine.pages_used },
        "speculation": {
            "rounds": engine.speculation.rounds,
            "drafted": engine.speculation.drafted,
            "accepted": engine.speculation.accepted,
        },
    });
    (code, Json(body))
}
