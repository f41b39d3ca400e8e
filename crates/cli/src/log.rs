//! Log output: text on standard error.

use crate::settings::LogSettings;
use anyhow::{Context, Result};
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Starts logging.
///
/// # Errors
/// A filter that cannot be read.
pub fn start(settings: &LogSettings) -> Result<()> {
    let filter = EnvFilter::builder()
        .parse(&settings.log_level)
        .with_context(|| format!("--log-level {:?} is no level or filter", settings.log_level))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    Ok(())
}
