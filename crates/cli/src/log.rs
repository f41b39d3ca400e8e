//! Log output: text on standard error.

use crate::settings::LogSettings;
use anyhow::{Context, Result};
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Starts logging, at `default` if the settings say nothing.
///
/// # Errors
/// A filter that cannot be read.
pub fn start(settings: &LogSettings, default: &str) -> Result<()> {
    let level = settings.log_level.as_deref().unwrap_or(default);
    let filter = EnvFilter::builder()
        .parse(level)
        .with_context(|| format!("--log-level {level:?} is no level or filter"))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    Ok(())
}
