//! Tokens to text as they come: whole characters only, and nothing of a stop string.

use crate::Tokenizer;
use std::sync::Arc;

/// Decodes a generation token by token.
///
/// Text is held back while it may be the beginning of a stop string, and bytes while they are the
/// beginning of a character; so what was given out is never taken back, and the pieces joined are
/// the same for every way in which tokens arrive.
#[derive(Debug)]
pub struct OutputText {
    tokenizer: Arc<Tokenizer>,
    stops: Vec<String>,
    /// Bytes of a character that is not whole yet.
    bytes: Vec<u8>,
    /// Text that may turn out to be part of a stop string.
    held: String,
    stopped: bool,
}

impl OutputText {
    /// A decoder that ends at the earliest of `stops`; empty ones are ignored.
    #[must_use]
    pub fn new(tokenizer: Arc<Tokenizer>, mut stops: Vec<String>) -> Self {
        stops.retain(|stop| !stop.is_empty());
        OutputText { tokenizer, stops, bytes: Vec::new(), held: String::new(), stopped: false }
    }

    /// Takes a token and appends to `out` the text that is certain now. Returns true once a stop
    /// string is found: then `out` ends before it, and later tokens add nothing.
    pub fn push(&mut self, token: u32, out: &mut String) -> bool {
        if !self.stopped && !self.tokenizer.is_control(token) {
            self.bytes.extend_from_slice(self.tokenizer.token_bytes(token));
            self.take_characters();
            self.release(out);
        }
        self.stopped
    }

    /// Ends the generation: appends what was held back. Bytes of an unfinished character become
    /// one U+FFFD.
    pub fn finish(&mut self, out: &mut String) {
        if self.stopped {
            return;
        }
        if !self.bytes.is_empty() {
            self.bytes.clear();
            self.held.push(char::REPLACEMENT_CHARACTER);
            self.release(out);
        }
        if !self.stopped {
            out.push_str(&self.held);
        }
        self.held.clear();
    }

    /// Moves whole characters from `bytes` to `held`; bytes that can never become a character
    /// become U+FFFD.
    fn take_characters(&mut self) {
        let mut taken = 0;
        for chunk in self.bytes.utf8_chunks() {
            self.held.push_str(chunk.valid());
            taken += chunk.valid().len();
            let invalid = chunk.invalid();
            if invalid.is_empty() {
                continue;
            }
            let last = taken + invalid.len() == self.bytes.len();
            if last && may_continue(invalid) {
                break;
            }
            self.held.push(char::REPLACEMENT_CHARACTER);
            taken += invalid.len();
        }
        self.bytes.drain(..taken);
    }

    /// Gives out all of `held` that cannot belong to a stop string any more.
    fn release(&mut self, out: &mut String) {
        let found = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min();
        if let Some(at) = found {
            out.push_str(&self.held[..at]);
            self.held.clear();
            self.bytes.clear();
            self.stopped = true;
            return;
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let sure = self.held.len() - keep;
        out.push_str(&self.held[..sure]);
        self.held.drain(..sure);
    }
}

/// True if the bytes may be the beginning of a character.
fn may_continue(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

/// Length of the longest proper beginning of `stop` that `text` ends with.
fn overlap(text: &str, stop: &str) -> usize {
    let most = text.len().min(stop.len() - 1);
    let fits = |&n: &usize| text.as_bytes().ends_with(&stop.as_bytes()[..n]);
    (1..=most).rev().filter(|&n| stop.is_char_boundary(n)).find(fits).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TokenizerSource;
    use crate::bytes::alphabet;
    use proptest::prelude::*;

    /// One token a byte, then some words.
    fn tokenizer() -> Arc<Tokenizer> {
        let mut tokens: Vec<String> = alphabet().iter().map(char::to_string).collect();
        tokens.extend(["foo", "ba", "rĠbaz", "<|im_end|>"].map(str::to_owned));
        let mut kinds = vec![1; tokens.len()];
        kinds[259] = 3;
        let source = TokenizerSource {
            pre: "gpt-2".to_owned(),
            tokens,
            kinds,
            ..TokenizerSource::default()
        };
        Arc::new(Tokenizer::new(source).unwrap())
    }

    fn run(tokens: &[u32], stops: &[&str]) -> (Vec<String>, bool) {
        let stops = stops.iter().map(|&stop| stop.to_owned()).collect();
        let mut output = OutputText::new(tokenizer(), stops);
        let mut deltas = Vec::new();
        let mut stopped = false;
        for &token in tokens {
            let mut delta = String::new();
            stopped = output.push(token, &mut delta);
            deltas.push(delta);
            if stopped {
                break;
            }
        }
        let mut delta = String::new();
        output.finish(&mut delta);
        deltas.push(delta);
        (deltas, stopped)
    }

    fn bytes(text: &str) -> Vec<u32> {
        text.bytes().map(u32::from).collect()
    }

    #[test]
    fn a_stop_string_across_tokens_leaves_no_trace() {
        let (deltas, stopped) = run(&[256, 257, 258], &["bar"]);
        assert_eq!((deltas.concat().as_str(), stopped), ("foo", true));
        assert!(deltas.iter().all(|delta| !delta.contains('b')));
        assert_eq!(run(&bytes("xabcx"), &["bc", "abc"]).0.concat(), "x");
        assert_eq!(run(&bytes("stop"), &["s"]), (vec![String::new(); 2], true));
        assert_eq!(run(&bytes("aab"), &["aac"]).0.concat(), "aab");
    }

    #[test]
    fn characters_come_whole() {
        let text = "é🇩🇪👩‍👩‍👧 漢字";
        let (deltas, _) = run(&bytes(text), &[]);
        assert_eq!(deltas.concat(), text);
        assert!(deltas.iter().all(|delta| !delta.contains('\u{fffd}')));
        assert_eq!(run(&bytes("漢")[..2], &[]).0.concat(), "\u{fffd}");
        assert_eq!(run(&[0xff, u32::from(b'a'), 259], &[]).0.concat(), "\u{fffd}a");
    }

    proptest! {
        #[test]
        fn streaming_equals_cutting_at_the_earliest_stop(
            text in "[ab漢]{0,24}",
            stops in prop::collection::vec("[ab漢]{1,4}", 0..3),
        ) {
            let names: Vec<&str> = stops.iter().map(String::as_str).collect();
            let (deltas, stopped) = run(&bytes(&text), &names);
            // Found as soon as complete: the stop whose end comes first, then the earliest start.
            let end = names.iter().filter_map(|s| text.find(s).map(|at| at + s.len())).min();
            let expected = match end {
                None => &text[..],
                Some(end) => {
                    let seen = &text[..end];
                    &seen[..names.iter().filter_map(|s| seen.find(s)).min().unwrap_or(end)]
                }
            };
            prop_assert_eq!(stopped, end.is_some());
            prop_assert_eq!(deltas.concat(), expected);
        }
    }
}
