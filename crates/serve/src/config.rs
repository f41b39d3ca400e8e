//! Settings of the server, and every limit of the HTTP side in one place.

use laneway_execution::SamplingParams;
use std::path::PathBuf;
use std::time::Duration;

/// Longest pause between two parts of a request body.
pub const BODY_PAUSE_MAX: Duration = Duration::from_secs(30);
/// Longest time for a request's headers to arrive, on a new or a kept connection.
pub const HEADERS_TIME_MAX: Duration = Duration::from_secs(60);
/// Longest time that data may stay unacknowledged before a peer counts as gone.
pub const PEER_SILENCE_MAX: Duration = Duration::from_secs(30);
/// Most open connections; further ones wait in the listener's backlog.
pub const CONNECTIONS_MAX: usize = 1024;
/// How long running requests may take to end once the server is told to stop.
pub const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);
/// Records that may wait for the request log's writer before new ones are dropped.
pub const REQUEST_LOG_BACKLOG_MAX: usize = 1024;

/// Settings of the server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Names that clients may use for the model, the first one being its proper name.
    pub model_ids: Vec<String>,
    /// Keys that open the API; none leaves it open to all.
    pub api_keys: Vec<String>,
    /// Largest accepted request body.
    pub body_limit_bytes: usize,
    /// Longest silence on a stream; comments fill it.
    pub keep_alive: Duration,
    /// Where to write one JSON object for each request.
    pub request_log: Option<PathBuf>,
    /// Values of the sampling fields that a request leaves out.
    pub default_sampling: SamplingParams,
    /// Origins whose pages may call the API from a browser; `*` stands for all.
    pub allowed_origins: Vec<String>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            model_ids: vec!["default".to_owned()],
            api_keys: Vec::new(),
            body_limit_bytes: 32 << 20,
            keep_alive: Duration::from_secs(5),
            request_log: None,
            default_sampling: SamplingParams::PLAIN,
            allowed_origins: vec!["*".to_owned()],
        }
    }
}
