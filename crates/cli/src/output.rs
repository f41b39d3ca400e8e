//! Standard output: data only. A reader that has had enough ends the program without a fuss.

use anyhow::Result;
use std::io::{self, ErrorKind, Write};

/// Writes `text` and makes it visible.
///
/// # Errors
/// If it cannot be written, most likely since nobody reads any more; see [`is_closed`].
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// True if an error says that nobody reads the output any more.
#[must_use]
pub fn is_closed(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}
