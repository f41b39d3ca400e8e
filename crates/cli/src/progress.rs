//! Progress on standard error, shown when it is a terminal and silent otherwise.

use indicatif::{ProgressBar, ProgressStyle};
use std::borrow::Cow;
use std::time::Duration;

/// A line of progress; gone when finished or dropped.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// Progress without a known end.
    #[must_use]
    pub fn spinner(message: impl Into<Cow<'static, str>>) -> Self {
        let bar = ProgressBar::new_spinner().with_message(message);
        bar.enable_steady_tick(Duration::from_millis(100));
        Progress(bar)
    }

    /// Progress through `total` bytes.
    #[must_use]
    pub fn bytes(message: impl Into<Cow<'static, str>>, total: u64) -> Self {
        Self::bar("{msg} {wide_bar} {bytes}/{total_bytes}", message, total)
    }

    /// Progress through `total` tokens.
    #[must_use]
    pub fn tokens(message: impl Into<Cow<'static, str>>, total: u64) -> Self {
        Self::bar("{msg} {wide_bar} {pos}/{len} tokens", message, total)
    }

    fn bar(template: &str, message: impl Into<Cow<'static, str>>, total: u64) -> Self {
        let style = ProgressStyle::with_template(template).unwrap_or(ProgressStyle::default_bar());
        Progress(ProgressBar::new(total).with_style(style).with_message(message))
    }

    /// Moves to `done`.
    pub fn set(&self, done: u64) {
        self.0.set_position(done);
    }

    /// Moves to `done` of `total`.
    pub fn set_of(&self, done: u64, total: u64) {
        self.0.set_length(total);
        self.0.set_position(done);
    }

    /// Clears the line.
    pub fn finish(self) {
        self.0.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
