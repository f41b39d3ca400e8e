//! Every way a request can be refused, each with exactly one status, type, code and retry rule.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::json;

/// What a retry of the same request can hope for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// The same request fails again.
    Never,
    /// The same request may succeed after this many seconds; sent as `Retry-After`.
    AfterSeconds(u64),
}

/// Why a request is refused or ends early, in the terms of the OpenAI API.
///
/// Messages are written for the person who reads the client's log: they name the field, the
/// numbers and, where there is one, the way out. They never contain internals.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// The body is not one JSON object with unique keys.
    #[error("the request body is not valid JSON: {0}")]
    InvalidJson(String),
    /// The body is declared as something other than JSON.
    #[error("content type `{0}` is not supported; send the body as application/json")]
    InvalidContentType(String),
    /// The connection ended, or broke the protocol, inside the body.
    #[error("the request body could not be read to its end")]
    IncompleteBody,
    /// A field that must be there is not.
    #[error("the field `{param}` is required")]
    MissingField {
        /// The field.
        param: String,
    },
    /// A field has a value that it cannot have.
    #[error("`{param}` {problem}")]
    InvalidField {
        /// The field.
        param: String,
        /// Completes the sentence that the field's name begins.
        problem: String,
    },
    /// A field asks for something that this server does not do; ignoring it would change the
    /// meaning of the request.
    #[error("`{param}` is not supported by this server: {problem}")]
    UnsupportedField {
        /// The field.
        param: String,
        /// What exactly is not supported, and the alternative if there is one.
        problem: String,
    },
    /// The model's chat template refuses the conversation.
    #[error("the model's chat template does not accept these messages: {0}")]
    InvalidConversation(String),
    /// Prompt, or prompt and one token, do not fit the window.
    #[error(
        "this model's maximum context length is {window} tokens, but the request needs {needed} \
         ({prompt} in the {param}); reduce the length of the {param}"
    )]
    ContextLengthExceeded {
        /// Field that holds the prompt: `messages` or `prompt`.
        param: &'static str,
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens that the request needs at least.
        needed: usize,
        /// Tokens that the server's window holds.
        window: usize,
    },
    /// The request carries no known API key.
    #[error("no valid API key was given; send it as `Authorization: Bearer KEY`")]
    Unauthorized,
    /// The request names a model that is not served.
    #[error("the model `{model}` is not served here; served: {served}")]
    ModelNotFound {
        /// The name asked for.
        model: String,
        /// The served names, separated by commas.
        served: String,
    },
    /// There is no such path.
    #[error("there is nothing at {0}")]
    NotFound(String),
    /// The path exists, the method does not.
    #[error("this path does not take {0} requests")]
    MethodNotAllowed(String),
    /// The body arrives too slowly.
    #[error("no part of the request body arrived for {seconds} s")]
    BodyTimeout {
        /// The longest accepted pause.
        seconds: u64,
    },
    /// The body is beyond the configured limit.
    #[error("the request body is larger than {limit_bytes} bytes")]
    BodyTooLarge {
        /// The limit.
        limit_bytes: usize,
    },
    /// All lanes are busy and the queue is full.
    #[error("the server is at capacity: {pending} requests are waiting; try again later")]
    QueueFull {
        /// Requests that wait.
        pending: usize,
        /// When a place is likely to be free.
        retry_after_s: u64,
    },
    /// The request waited longer than the server allows.
    #[error("the request waited {waited_ms} ms for a free lane, the longest wait allowed here")]
    QueueTimeout {
        /// How long it waited.
        waited_ms: u64,
    },
    /// The server is going down.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The engine does not run any more.
    #[error("the engine has stopped after a failure and serves no more requests")]
    EngineDown,
    /// The engine failed while it worked on this request.
    #[error("the engine failed while working on this request")]
    GenerationFailed,
    /// A defect in the server, contained to this request.
    #[error("internal error")]
    Internal,
}

/// Seconds after which a client may try again when nothing better is known.
const RETRY_DEFAULT_S: u64 = 1;

impl ApiError {
    /// A field with a wrong value; `problem` completes the sentence.
    pub fn invalid(param: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::InvalidField { param: param.into(), problem: problem.into() }
    }

    /// A field that cannot be honoured.
    pub fn unsupported(param: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::UnsupportedField { param: param.into(), problem: problem.into() }
    }

    /// The HTTP status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::InvalidJson(_)
            | Self::InvalidContentType(_)
            | Self::IncompleteBody
            | Self::MissingField { .. }
            | Self::InvalidField { .. }
            | Self::UnsupportedField { .. }
            | Self::InvalidConversation(_)
            | Self::ContextLengthExceeded { .. } => StatusCode::BAD_REQUEST,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::ModelNotFound { .. } | Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::BodyTimeout { .. } => StatusCode::REQUEST_TIMEOUT,
            Self::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::QueueFull { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::QueueTimeout { .. } | Self::ShuttingDown | Self::EngineDown => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::GenerationFailed | Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The class of the error, `error.type`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unauthorized => "authentication_error",
            Self::QueueFull { .. } => "rate_limit_error",
            _ if self.status().is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The machine-readable name, `error.code`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::InvalidJson(_) => "invalid_json",
            Self::InvalidContentType(_) => "invalid_content_type",
            Self::IncompleteBody => "incomplete_body",
            Self::MissingField { .. } => "missing_required_parameter",
            Self::InvalidField { .. } => "invalid_value",
            Self::UnsupportedField { .. } => "unsupported_parameter",
            Self::InvalidConversation(_) => "invalid_messages",
            Self::ContextLengthExceeded { .. } => "context_length_exceeded",
            Self::Unauthorized => "invalid_api_key",
            Self::ModelNotFound { .. } => "model_not_found",
            Self::NotFound(_) => "not_found",
            Self::MethodNotAllowed(_) => "method_not_allowed",
            Self::BodyTimeout { .. } => "request_timeout",
            Self::BodyTooLarge { .. } => "request_too_large",
            Self::QueueFull { .. } => "rate_limit_exceeded",
            Self::QueueTimeout { .. } => "queue_timeout",
            Self::ShuttingDown => "shutting_down",
            Self::EngineDown => "engine_unavailable",
            Self::GenerationFailed => "generation_failed",
            Self::Internal => "internal_error",
        }
    }

    /// The field at fault, `error.param`.
    #[must_use]
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::MissingField { param }
            | Self::InvalidField { param, .. }
            | Self::UnsupportedField { param, .. } => Some(param),
            Self::ContextLengthExceeded { param, .. } => Some(param),
            Self::InvalidConversation(_) => Some("messages"),
            Self::ModelNotFound { .. } => Some("model"),
            _ => None,
        }
    }

    /// Whether the same request may succeed later.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::QueueFull { retry_after_s, .. } => Retry::AfterSeconds((*retry_after_s).max(1)),
            Self::QueueTimeout { .. } | Self::ShuttingDown => Retry::AfterSeconds(RETRY_DEFAULT_S),
            _ => Retry::Never,
        }
    }

    /// The error as the API's JSON object, `{"error": {...}}`: the body of a refusal, and the
    /// event that ends a stream which had already begun.
    #[must_use]
    pub fn body(&self) -> impl Serialize + use<> {
        json!({ "error": {
            "message": self.to_string(),
            "type": self.kind(),
            "param": self.param(),
            "code": self.code(),
        }})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status(), axum::Json(self.body())).into_response();
        let headers = response.headers_mut();
        if let Retry::AfterSeconds(seconds) = self.retry() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self == Self::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // For the log, which is written where responses leave the server.
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Status, type, code, field and retry rule.
    type Facts = (u16, &'static str, &'static str, Option<&'static str>, Retry);

    /// One of each variant, with the status, type, code, field and retry rule it must have.
    #[rustfmt::skip]
    fn table() -> Vec<(ApiError, Facts)> {
        use ApiError::{
            BodyTimeout, BodyTooLarge, ContextLengthExceeded, EngineDown, GenerationFailed,
            IncompleteBody, Internal, InvalidContentType, InvalidConversation, InvalidField,
            InvalidJson, MethodNotAllowed, MissingField, ModelNotFound, NotFound, QueueFull,
            QueueTimeout, ShuttingDown, Unauthorized, UnsupportedField,
        };
        use Retry::{AfterSeconds, Never};
        const INVALID: &str = "invalid_request_error";
        let s = str::to_owned;
        vec![
            (InvalidJson(s("x")), (400, INVALID, "invalid_json", None, Never)),
            (InvalidContentType(s("x")), (400, INVALID, "invalid_content_type", None, Never)),
            (IncompleteBody, (400, INVALID, "incomplete_body", None, Never)),
            (MissingField { param: s("p") }, (400, INVALID, "missing_required_parameter", Some("p"), Never)),
            (InvalidField { param: s("p"), problem: s("x") }, (400, INVALID, "invalid_value", Some("p"), Never)),
            (UnsupportedField { param: s("p"), problem: s("x") }, (400, INVALID, "unsupported_parameter", Some("p"), Never)),
            (InvalidConversation(s("x")), (400, INVALID, "invalid_messages", Some("messages"), Never)),
            (ContextLengthExceeded { param: "messages", prompt: 3000, needed: 3001, window: 2048 }, (400, INVALID, "context_length_exceeded", Some("messages"), Never)),
            (Unauthorized, (401, "authentication_error", "invalid_api_key", None, Never)),
            (ModelNotFound { model: s("m"), served: s("a, b") }, (404, INVALID, "model_not_found", Some("model"), Never)),
            (NotFound(s("/x")), (404, INVALID, "not_found", None, Never)),
            (MethodNotAllowed(s("PUT")), (405, INVALID, "method_not_allowed", None, Never)),
            (BodyTimeout { seconds: 30 }, (408, INVALID, "request_timeout", None, Never)),
            (BodyTooLarge { limit_bytes: 1 }, (413, INVALID, "request_too_large", None, Never)),
            (QueueFull { pending: 2, retry_after_s: 7 }, (429, "rate_limit_error", "rate_limit_exceeded", None, AfterSeconds(7))),
            (QueueTimeout { waited_ms: 2000 }, (503, "server_error", "queue_timeout", None, AfterSeconds(1))),
            (ShuttingDown, (503, "server_error", "shutting_down", None, AfterSeconds(1))),
            (EngineDown, (503, "server_error", "engine_unavailable", None, Never)),
            (GenerationFailed, (500, "server_error", "generation_failed", None, Never)),
            (Internal, (500, "server_error", "internal_error", None, Never)),
        ]
    }

    #[test]
    fn every_variant_has_its_row_and_its_own_code() {
        let table = table();
        let mut variants: Vec<_> = table.iter().map(|row| std::mem::discriminant(&row.0)).collect();
        let rows = variants.len();
        variants.dedup();
        assert_eq!(variants.len(), rows);
        let mut codes: Vec<_> = table.iter().map(|row| row.0.code()).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), rows);
        for (error, expected) in table {
            let found =
                (error.status().as_u16(), error.kind(), error.code(), error.param(), error.retry());
            assert_eq!(found, expected);
            let response = error.clone().into_response();
            assert_eq!(response.status(), error.status());
            let retry = response.headers().get(header::RETRY_AFTER);
            let retry = retry.map(|value| value.to_str().unwrap().parse().unwrap());
            let expected = match error.retry() {
                Retry::Never => None,
                Retry::AfterSeconds(seconds) => Some(seconds),
            };
            assert_eq!(retry, expected);
            let body = serde_json::to_value(error.body()).unwrap();
            let mut fields: Vec<_> = body["error"].as_object().unwrap().keys().collect();
            fields.sort();
            assert_eq!(fields, ["code", "message", "param", "type"]);
        }
    }

    #[test]
    fn an_overflow_tells_both_counts() {
        let error = ApiError::ContextLengthExceeded {
            param: "messages",
            prompt: 3000,
            needed: 3001,
            window: 2048,
        };
        let message = error.to_string();
        assert!(message.contains("3000") && message.contains("2048"), "{message}");
    }
}
