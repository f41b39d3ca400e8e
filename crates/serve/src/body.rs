//! Reads request bodies: JSON only, bounded in size, in values, and in the pauses between parts.

use crate::config::BODY_PAUSE_MAX;
use crate::json;
use crate::wire::error::ApiError;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use futures_util::StreamExt as _;
use serde_json::Value;

/// Reads the whole body and parses it.
///
/// # Errors
/// If it is no JSON, is too large, or does not arrive.
pub async fn read(request: Request, limit_bytes: usize) -> Result<Value, ApiError> {
    check_content_type(request.headers())?;
    let text = collect(request, limit_bytes).await?;
    json::parse(&text, json::values_max(limit_bytes))
        .map_err(|error| ApiError::InvalidJson(error.to_string()))
}

/// JSON by name; without a name the benefit of the doubt. Anything else is refused, because a
/// browser sends it across origins without asking for permission.
fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let value = String::from_utf8_lossy(value.as_bytes());
    let essence = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if essence == "application/json" || essence.ends_with("+json") {
        Ok(())
    } else {
        Err(ApiError::InvalidContentType(essence))
    }
}

async fn collect(request: Request, limit_bytes: usize) -> Result<Vec<u8>, ApiError> {
    let (parts, body) = request.into_parts();
    let declared = parts.headers.get(header::CONTENT_LENGTH);
    let declared = declared.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let too_large = ApiError::BodyTooLarge { limit_bytes };
    if declared.is_some_and(|bytes| bytes > limit_bytes as u64) {
        drain(body, limit_bytes).await;
        return Err(too_large);
    }
    // Grown as data arrives: a declared length alone reserves nothing.
    let mut text = Vec::new();
    let mut stream = body.into_data_stream();
    loop {
        match tokio::time::timeout(BODY_PAUSE_MAX, stream.next()).await {
            Err(_) => return Err(ApiError::BodyTimeout { seconds: BODY_PAUSE_MAX.as_secs() }),
            Ok(None) => return Ok(text),
            Ok(Some(Err(_))) => return Err(ApiError::IncompleteBody),
            Ok(Some(Ok(part))) if text.len() + part.len() > limit_bytes => {
                drop(text);
                drain(Body::from_stream(stream), limit_bytes).await;
                return Err(too_large);
            }
            Ok(Some(Ok(part))) => text.extend_from_slice(&part),
        }
    }
}

/// Reads and forgets up to as much again of a body that is refused: closing a connection with
/// unread data would reset it, and the client would see that instead of the answer.
async fn drain(body: Body, bytes_max: usize) {
    let mut left = bytes_max;
    let mut stream = body.into_data_stream();
    while let Ok(Some(Ok(part))) = tokio::time::timeout(BODY_PAUSE_MAX, stream.next()).await {
        left = left.saturating_sub(part.len());
        if left == 0 {
            return;
        }
    }
}
