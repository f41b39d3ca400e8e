//! Response bodies of the generating endpoints.

use laneway_engine::SpeculationStats;
use serde::Serialize;
use serde::ser::SerializeMap;

/// Tokens counted for a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt, cached ones included.
    pub prompt: usize,
    /// Prompt tokens that did not have to be computed.
    pub cached: usize,
    /// Tokens generated.
    pub completion: usize,
}

impl Serialize for Usage {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(4))?;
        map.serialize_entry("prompt_tokens", &self.prompt)?;
        map.serialize_entry("completion_tokens", &self.completion)?;
        map.serialize_entry("total_tokens", &(self.prompt + self.completion))?;
        let details = serde_json::json!({ "cached_tokens": self.cached });
        map.serialize_entry("prompt_tokens_details", &details)?;
        map.end()
    }
}

/// Where the time of a request went, in milliseconds; the names that local clients already show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Timings {
    /// Prompt tokens taken from the cache.
    pub cache_n: usize,
    /// Prompt tokens computed.
    pub prompt_n: usize,
    /// Time from the first to the last computed prompt token.
    pub prompt_ms: f64,
    /// Computed prompt tokens a second.
    pub prompt_per_second: f64,
    /// Tokens generated.
    pub predicted_n: usize,
    /// Time from the first generated token to the last.
    pub predicted_ms: f64,
    /// Generated tokens a second, the first one not counted.
    pub predicted_per_second: f64,
    /// Time in the queue.
    pub queue_ms: f64,
    /// Time from admission to the first token as predicted at admission.
    pub ttft_predicted_ms: f64,
    /// The same as it came out.
    pub ttft_ms: f64,
    /// What came of speculation, if there was any.
    #[serde(flatten)]
    pub drafts: Option<Drafts>,
}

/// What came of speculation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drafts(pub SpeculationStats);

impl Serialize for Drafts {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(4))?;
        map.serialize_entry("draft_rounds", &self.0.rounds)?;
        map.serialize_entry("draft_n", &self.0.drafted)?;
        map.serialize_entry("draft_n_accepted", &self.0.accepted)?;
        map.serialize_entry("draft_n_accepted_by_position", self.0.accepted_by_place())?;
        map.end()
    }
}

/// One reported token of a chat completion.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChatLogprob {
    /// The token's text; for a part of a character, with a replacement character.
    pub token: String,
    /// Natural-log probability.
    pub logprob: f32,
    /// The token's exact bytes.
    pub bytes: Vec<u8>,
    /// The most likely tokens at this place; empty inside of another token's list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_logprobs: Option<Vec<ChatLogprob>>,
}

/// Probabilities of a chat choice.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChatLogprobs {
    /// One entry for each token.
    pub content: Vec<ChatLogprob>,
}

/// Probabilities of a plain completion: parallel arrays, as the older API has them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CompletionLogprobs {
    /// Texts of the tokens.
    pub tokens: Vec<String>,
    /// Natural-log probabilities; `null` for the first token of an echoed prompt.
    pub token_logprobs: Vec<Option<f32>>,
    /// The most likely tokens at each place.
    pub top_logprobs: Vec<Option<serde_json::Map<String, serde_json::Value>>>,
    /// Where each token begins in the text, in characters.
    pub text_offset: Vec<usize>,
}

/// Fields that every object about one request carries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Head {
    /// Name of the response.
    pub id: String,
    /// Kind of the object.
    pub object: &'static str,
    /// When the request arrived, in Unix seconds.
    pub created: u64,
    /// The model's name as the client wrote it.
    pub model: String,
}

/// A whole response, or one event of a stream.
#[derive(Clone, Debug, Serialize)]
pub struct Envelope<'a, C> {
    /// Who this is about.
    #[serde(flatten)]
    pub head: &'a Head,
    /// No choice in a usage event, else exactly one.
    pub choices: &'a [C],
    /// Token counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Where the time went.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
    /// The seed that reproduces the output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

/// The part of a chat message that an event adds, or a whole message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChatText {
    /// `assistant`, in the first event and in whole messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// Text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
}

/// The choice of a chat event.
#[derive(Clone, Debug, Serialize)]
pub struct ChatDelta {
    /// Always 0.
    pub index: u32,
    /// What is new.
    pub delta: ChatText,
    /// Probabilities of the tokens that are new.
    pub logprobs: Option<ChatLogprobs>,
    /// Why the output ended; null until then.
    pub finish_reason: Option<&'static str>,
}

/// The choice of a whole chat response.
#[derive(Clone, Debug, Serialize)]
pub struct ChatChoice {
    /// Always 0.
    pub index: u32,
    /// The message.
    pub message: ChatText,
    /// Probabilities of all tokens.
    pub logprobs: Option<ChatLogprobs>,
    /// Why the output ended.
    pub finish_reason: Option<&'static str>,
}

/// The choice of a plain completion, streamed or whole.
#[derive(Clone, Debug, Serialize)]
pub struct TextChoice {
    /// Always 0.
    pub index: u32,
    /// What is new, or all of it.
    pub text: String,
    /// Probabilities of the tokens of `text`.
    pub logprobs: Option<CompletionLogprobs>,
    /// Why the output ended; null until then.
    pub finish_reason: Option<&'static str>,
}
