//! The body of `POST /v1/completions`.

use super::error::ApiError;
use super::fields::{Fields, integer, wrong_type};
use super::options::{Delivery, Options, TOP_LOGPROBS_MAX};
use super::refusals;
use laneway_execution::{SamplingParams, TokenId};
use serde_json::Value;

/// What to continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// A text, still to be tokenized.
    Text(String),
    /// Tokens as they are.
    Tokens(Vec<TokenId>),
}

/// A plain completion as asked for, checked as far as that is possible without the model.
#[derive(Clone, Debug, PartialEq)]
pub struct CompletionRequest {
    /// The model's name, if one is given.
    pub model: Option<String>,
    /// What to continue.
    pub prompt: Prompt,
    /// How to generate.
    pub options: Options,
    /// How to deliver.
    pub delivery: Delivery,
    /// Alternatives to report for each token; `None` reports no probabilities at all.
    pub logprobs: Option<usize>,
    /// Whether the prompt is returned before its continuation.
    pub echo: bool,
}

impl CompletionRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// The first field that is wrong or cannot be honoured, by name.
    pub fn read(body: Value, default: &SamplingParams) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(body)?;
        let model = fields.string("model")?;
        let prompt = prompt(&mut fields)?;
        refusals::check_completions(&mut fields)?;
        let options = Options::read(&mut fields, default)?;
        let delivery = Delivery::read(&mut fields)?;
        let echo = fields.boolean("echo")?.unwrap_or(false);
        let logprobs = fields.count("logprobs")?;
        if let Some(top) = logprobs.filter(|&top| top > TOP_LOGPROBS_MAX) {
            let problem = format!("is {top}, allowed is 0 to {TOP_LOGPROBS_MAX}");
            return Err(ApiError::invalid("logprobs", problem));
        }
        Ok(Self { model, prompt, options, delivery, logprobs, echo })
    }
}

/// A string, an array of token ids, or an array that holds exactly one of the two.
fn prompt(fields: &mut Fields) -> Result<Prompt, ApiError> {
    match fields.take("prompt") {
        None => Err(ApiError::MissingField { param: "prompt".to_owned() }),
        Some(Value::String(text)) => Ok(Prompt::Text(text)),
        Some(Value::Array(mut items)) => match items.first() {
            None => Err(ApiError::invalid("prompt", "must hold something to continue")),
            Some(Value::Number(_)) => token_ids("prompt", &items).map(Prompt::Tokens),
            Some(Value::String(_) | Value::Array(_)) if items.len() > 1 => {
                let problem = "one prompt is continued for a request; send several requests";
                Err(ApiError::unsupported("prompt", problem))
            }
            Some(_) => match items.swap_remove(0) {
                Value::String(text) => Ok(Prompt::Text(text)),
                Value::Array(tokens) => token_ids("prompt[0]", &tokens).map(Prompt::Tokens),
                other => Err(wrong_type("prompt[0]", "a string or an array of tokens", &other)),
            },
        },
        Some(other) => Err(wrong_type("prompt", "a string or an array of tokens", &other)),
    }
}

/// Token ids; whether the vocabulary has them is checked where the vocabulary is known.
///
/// # Errors
/// If an item is no whole number from 0 to 2³²−1, or if there is none.
pub fn token_ids(name: &str, items: &[Value]) -> Result<Vec<TokenId>, ApiError> {
    if items.is_empty() {
        return Err(ApiError::invalid(name, "must hold at least one token"));
    }
    let token = |(index, item): (usize, &Value)| {
        integer(item)
            .and_then(|token| TokenId::try_from(token).ok())
            .ok_or_else(|| wrong_type(format!("{name}[{index}]"), "a token id", item))
    };
    items.iter().enumerate().map(token).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(body: Value) -> Result<CompletionRequest, ApiError> {
        CompletionRequest::read(body, &SamplingParams::PLAIN)
    }

    #[test]
    fn prompts_come_in_four_spellings() {
        let prompt = |prompt: Value| read(json!({ "prompt": prompt })).unwrap().prompt;
        assert_eq!(prompt(json!("x")), Prompt::Text("x".into()));
        assert_eq!(prompt(json!(["x"])), Prompt::Text("x".into()));
        assert_eq!(prompt(json!([1, 2])), Prompt::Tokens(vec![1, 2]));
        assert_eq!(prompt(json!([[1, 2]])), Prompt::Tokens(vec![1, 2]));
    }

    #[test]
    fn faults_name_their_field() {
        for (body, field) in [
            (json!({}), "prompt"),
            (json!({"prompt": null}), "prompt"),
            (json!({"prompt": 5}), "prompt"),
            (json!({"prompt": []}), "prompt"),
            (json!({"prompt": [[]]}), "prompt[0]"),
            (json!({"prompt": ["a", "b"]}), "prompt"),
            (json!({"prompt": [[1], [2]]}), "prompt"),
            (json!({"prompt": [1, "b"]}), "prompt[1]"),
            (json!({"prompt": [1, -1]}), "prompt[1]"),
            (json!({"prompt": [1, 4294967296u64]}), "prompt[1]"),
            (json!({"prompt": [null]}), "prompt[0]"),
            (json!({"prompt": "x", "logprobs": 21}), "logprobs"),
            (json!({"prompt": "x", "logprobs": true}), "logprobs"),
            (json!({"prompt": "x", "echo": "yes"}), "echo"),
            (json!({"prompt": "x", "suffix": "y"}), "suffix"),
            (json!({"prompt": "x", "best_of": 2}), "best_of"),
        ] {
            assert_eq!(read(body).unwrap_err().param(), Some(field));
        }
    }
}
