//! The HTTP server: OpenAI-compatible API over the engine.
#![forbid(unsafe_code)]
