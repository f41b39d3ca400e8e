//! Server-sent events, with the time at which each one was complete.

use super::body::Body;
use anyhow::{Context, Result, bail};
use std::collections::VecDeque;
use std::time::Instant;

/// Longest event.
const EVENT_BYTES_MAX: usize = 1 << 20;

/// One event or comment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its data, lines joined.
    pub data: String,
    /// Its comment lines, joined; those of an event without data stand alone.
    pub comment: String,
    /// When its last byte arrived.
    pub arrived: Instant,
}

/// A stream of events.
#[derive(Debug)]
pub struct Events {
    body: Body,
    parser: Parser,
}

impl Events {
    pub(super) fn new(body: Body) -> Self {
        Events { body, parser: Parser::default() }
    }

    /// The next event; none at the end of the stream.
    ///
    /// # Errors
    /// When the stream breaks off.
    pub async fn next(&mut self) -> Result<Option<Event>> {
        loop {
            if let Some(event) = self.parser.ready.pop_front() {
                return Ok(Some(event));
            }
            let Some(piece) = self.body.next().await? else { return Ok(None) };
            self.parser.feed(&piece, Instant::now())?;
        }
    }
}

#[derive(Debug, Default)]
struct Parser {
    /// The line that is not yet complete.
    line: Vec<u8>,
    data: Vec<String>,
    comment: Vec<String>,
    ready: VecDeque<Event>,
}

impl Parser {
    fn feed(&mut self, piece: &[u8], now: Instant) -> Result<()> {
        for &byte in piece {
            if byte == b'\n' {
                let line = std::mem::take(&mut self.line);
                self.end_line(std::str::from_utf8(&line).context("an event is no UTF-8")?, now);
            } else if self.line.len() == EVENT_BYTES_MAX {
                bail!("an event longer than {EVENT_BYTES_MAX} bytes");
            } else {
                self.line.push(byte);
            }
        }
        Ok(())
    }

    fn end_line(&mut self, line: &str, now: Instant) {
        let line = line.trim_end_matches('\r');
        let value = |rest: &str| rest.strip_prefix(' ').unwrap_or(rest).to_owned();
        if line.is_empty() {
            let (data, comment) = (self.data.join("\n"), self.comment.join("\n"));
            if !(self.data.is_empty() && self.comment.is_empty()) {
                self.ready.push_back(Event { data, comment, arrived: now });
            }
            self.data.clear();
            self.comment.clear();
        } else if let Some(rest) = line.strip_prefix("data:") {
            self.data.push(value(rest));
        } else if let Some(rest) = line.strip_prefix(':') {
            self.comment.push(value(rest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_parsed_however_they_are_cut() {
        let text = ": hello\n\ndata: a\r\ndata: b\r\n\r\nevent: x\ndata:c\n\ndata: unfinished";
        for step in 1..text.len() {
            let mut parser = Parser::default();
            for piece in text.as_bytes().chunks(step) {
                parser.feed(piece, Instant::now()).unwrap();
            }
            let found: Vec<_> = parser.ready.iter().map(|e| (&*e.data, &*e.comment)).collect();
            assert_eq!(found, [("", "hello"), ("a\nb", ""), ("c", "")], "pieces of {step}");
        }
    }
}
