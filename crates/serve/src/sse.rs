//! Framing of server-sent events.
//!
//! Written by hand because the frames are the contract: which comment comes first, that an error
//! is the last event, and that nothing follows it.

use axum::body::Bytes;
use serde::Serialize;

/// The event that ends a stream which came to its proper end.
pub const DONE: &str = "data: [DONE]\n\n";

/// Frames not yet handed to the connection.
#[derive(Debug, Default)]
pub struct Frames {
    buffer: Vec<u8>,
}

impl Frames {
    /// Appends one event.
    ///
    /// # Panics
    /// If `value` cannot be written as JSON, which no type of [`crate::wire`] can bring about.
    pub fn data(&mut self, value: &impl Serialize) {
        self.buffer.extend_from_slice(b"data: ");
        // JSON text never contains a raw line break, so the event stays one line.
        serde_json::to_writer(&mut self.buffer, value).expect("wire types are valid JSON");
        self.buffer.extend_from_slice(b"\n\n");
    }

    /// Appends a comment, which event parsers skip; `text` must be one line.
    pub fn comment(&mut self, text: &str) {
        debug_assert!(!text.contains(['\r', '\n']), "a comment is one line");
        self.buffer.extend_from_slice(b": ");
        self.buffer.extend_from_slice(text.as_bytes());
        self.buffer.extend_from_slice(b"\n\n");
    }

    /// Appends the end mark.
    pub fn done(&mut self) {
        self.buffer.extend_from_slice(DONE.as_bytes());
    }

    /// True if nothing is waiting.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Bytes that are waiting.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Takes all frames for the connection.
    pub fn take(&mut self) -> Bytes {
        Bytes::from(std::mem::take(&mut self.buffer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_one_line_each() {
        let mut frames = Frames::default();
        frames.comment("position 2");
        frames.data(&serde_json::json!({"text": "a\nb\u{2028}"}));
        frames.done();
        let text = String::from_utf8(frames.take().to_vec()).unwrap();
        assert_eq!(text, ": position 2\n\ndata: {\"text\":\"a\\nb\u{2028}\"}\n\ndata: [DONE]\n\n");
        assert!(frames.is_empty());
    }
}
