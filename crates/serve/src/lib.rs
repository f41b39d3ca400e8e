//! The HTTP server: OpenAI-compatible API over the engine.
#![forbid(unsafe_code)]

pub mod config;
mod json;
mod request_log;
mod server;
mod sse;
mod body;
pub mod wire;
