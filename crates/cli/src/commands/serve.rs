//! `laneway serve`: loads a model and answers over HTTP until told to stop.

use crate::settings::{ContextSettings, ModelSettings, PoolSettings, ServerSettings};
use clap::Args;

/// Serve a model over HTTP: OpenAI-compatible API and a chat page
#[derive(Args, Debug)]
pub struct Settings {
    #[command(flatten)]
    pub model: ModelSettings,
    #[command(flatten)]
    pub context: ContextSettings,
    #[command(flatten)]
    pub pool: PoolSettings,
    #[command(flatten)]
    pub server: ServerSettings,
}
