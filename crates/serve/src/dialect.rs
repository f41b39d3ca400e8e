//! What chat and plain completions write differently: the choice, and the probabilities in it.

use crate::wire::reply::{
    ChatChoice, ChatDelta, ChatLogprob, ChatLogprobs, ChatText, CompletionLogprobs, TextChoice,
};
use serde::Serialize;
use serde_json::{Map, json};

/// A token and its probability, ready to be reported.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenReport {
    /// The token.
    pub token: ScoredToken,
    /// The most likely tokens at its place.
    pub top: Vec<ScoredToken>,
}

/// A token's bytes and its probability, if it has one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ScoredToken {
    /// The exact bytes; empty for special tokens.
    pub bytes: Vec<u8>,
    /// Natural-log probability; `None` for the first token of a prompt.
    pub logprob: Option<f32>,
}

impl ScoredToken {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// A part of an output, or all of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Part {
    /// The text.
    pub text: String,
    /// Reports of its tokens; `None` if none were asked for.
    pub tokens: Option<Vec<TokenReport>>,
    /// Why the output ended, in its last part.
    pub finish: Option<&'static str>,
}

/// How an endpoint writes choices.
pub(crate) trait Dialect: Send + 'static {
    /// Prefix of response names.
    const PREFIX: &'static str;
    /// `object` of whole responses.
    const WHOLE: &'static str;
    /// `object` of stream events.
    const EVENT: &'static str;
    /// Path of the endpoint.
    const PATH: &'static str;
    /// The choice of a stream event.
    type Delta: Serialize;
    /// The choice of a whole response.
    type Choice: Serialize;

    /// The choice of the event that opens a stream, if there is one.
    fn opening(&self) -> Option<Self::Delta>;
    /// The choice of a stream event.
    fn delta(&mut self, part: Part) -> Self::Delta;
    /// The choice of a whole response.
    fn choice(&mut self, part: Part) -> Self::Choice;
}

/// `/v1/chat/completions`.
#[derive(Debug)]
pub(crate) struct Chat;

impl Dialect for Chat {
    const PREFIX: &'static str = "chatcmpl";
    const WHOLE: &'static str = "chat.completion";
    const EVENT: &'static str = "chat.completion.chunk";
    const PATH: &'static str = "/v1/chat/completions";
    type Delta = ChatDelta;
    type Choice = ChatChoice;

    fn opening(&self) -> Option<ChatDelta> {
        let delta = ChatText { role: Some("assistant"), content: Some(String::new()) };
        Some(ChatDelta { index: 0, delta, logprobs: None, finish_reason: None })
    }

    fn delta(&mut self, part: Part) -> ChatDelta {
        let content = (!part.text.is_empty()).then_some(part.text);
        ChatDelta {
            index: 0,
            delta: ChatText { role: None, content },
            logprobs: part.tokens.map(chat_logprobs),
            finish_reason: part.finish,
        }
    }

    fn choice(&mut self, part: Part) -> ChatChoice {
        ChatChoice {
            index: 0,
            message: ChatText { role: Some("assistant"), content: Some(part.text) },
            logprobs: part.tokens.map(chat_logprobs),
            finish_reason: part.finish,
        }
    }
}

fn chat_logprobs(tokens: Vec<TokenReport>) -> ChatLogprobs {
    let entry = |token: ScoredToken| ChatLogprob {
        token: token.text(),
        logprob: token.logprob.unwrap_or(0.0),
        bytes: token.bytes,
        top_logprobs: None,
    };
    let report = |report: TokenReport| ChatLogprob {
        top_logprobs: Some(report.top.into_iter().map(entry).collect()),
        ..entry(report.token)
    };
    ChatLogprobs { content: tokens.into_iter().map(report).collect() }
}

/// `/v1/completions`.
#[derive(Debug, Default)]
pub(crate) struct Completion {
    /// Characters of the tokens reported so far.
    offset: usize,
}

impl Dialect for Completion {
    const PREFIX: &'static str = "cmpl";
    const WHOLE: &'static str = "text_completion";
    const EVENT: &'static str = "text_completion";
    const PATH: &'static str = "/v1/completions";
    type Delta = TextChoice;
    type Choice = TextChoice;

    fn opening(&self) -> Option<TextChoice> {
        None
    }

    fn delta(&mut self, part: Part) -> TextChoice {
        TextChoice {
            index: 0,
            text: part.text,
            logprobs: part.tokens.map(|tokens| self.logprobs(tokens)),
            finish_reason: part.finish,
        }
    }

    fn choice(&mut self, part: Part) -> TextChoice {
        self.delta(part)
    }
}

impl Completion {
    fn logprobs(&mut self, tokens: Vec<TokenReport>) -> CompletionLogprobs {
        let mut all = CompletionLogprobs::default();
        for TokenReport { token, top } in tokens {
            let text = token.text();
            all.text_offset.push(self.offset);
            self.offset += text.chars().count();
            all.top_logprobs.push(token.logprob.map(|_| {
                let mut entries = Map::new();
                for other in top {
                    // Two tokens can look alike; the more likely one, which comes first, stays.
                    entries.entry(other.text()).or_insert(json!(other.logprob));
                }
                entries
            }));
            all.token_logprobs.push(token.logprob);
            all.tokens.push(text);
        }
        all
    }
}
