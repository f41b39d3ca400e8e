//! The HTTP server: OpenAI-compatible API over the engine.
#![forbid(unsafe_code)]

pub mod config;
pub mod wire;
