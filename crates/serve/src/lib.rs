//! The HTTP server: OpenAI-compatible API over the engine.
//!
//! A request body is read strictly ([`wire`]), becomes a prompt by the chat template and the
//! tokenizer, and is handed to the engine. Its events come back through a mailbox and become
//! text: put together, or sent on as they come. Whoever drops the response, at any moment, drops
//! the request's place in the engine with it; so a client that hangs up costs one more step at
//! most.
//!
//! This crate knows no device and no model's mathematics.
#![forbid(unsafe_code)]

mod account;
mod app;
mod auth;
mod body;
pub mod config;
mod cors;
mod dialect;
mod generation;
mod ids;
mod json;
mod mailbox;
mod request_log;
mod respond;
mod routes;
mod server;
mod sse;
pub mod wire;

pub use app::Model;
pub use config::ServerConfig;
pub use request_log::Record;

use app::App;
use request_log::RequestLog;
use std::future::Future;
use std::io;
use tokio::net::TcpListener;

/// Serves a model until `shutdown` resolves.
///
/// Requests that run then may end within [`config::SHUTDOWN_GRACE`]; new connections are not
/// accepted any more. When the future resolves, all connections are closed and the request log is
/// complete. Dropping the future instead cuts everything off.
///
/// # Errors
/// If the request log cannot be opened. Nothing is served then.
///
/// # Panics
/// If no model name is configured.
pub async fn serve(
    listener: TcpListener,
    config: ServerConfig,
    model: Model,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let (log, writer) = match &config.request_log {
        Some(path) => {
            let (log, writer) = RequestLog::open(path)?;
            (Some(log), Some(writer))
        }
        None => (None, None),
    };
    let router = routes::router(App::new(config, model, log));
    server::run(listener, router, shutdown).await;
    if let Some(writer) = writer {
        // Joining a thread blocks, and the writer may wait for a slow disk.
        let _ = tokio::task::spawn_blocking(|| writer.finish()).await;
    }
    Ok(())
}
