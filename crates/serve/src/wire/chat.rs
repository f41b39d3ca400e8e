//! The body of `POST /v1/chat/completions`.

use super::error::ApiError;
use super::fields::Fields;
use super::options::{Delivery, Options, TOP_LOGPROBS_MAX};
use super::{messages, refusals};
use laneway_execution::SamplingParams;
use serde_json::Value;

/// A chat completion as asked for, checked as far as that is possible without the model.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatRequest {
    /// The model's name, if one is given.
    pub model: Option<String>,
    /// The conversation in canonical form.
    pub messages: Vec<Value>,
    /// How to generate.
    pub options: Options,
    /// How to deliver.
    pub delivery: Delivery,
    /// Alternatives to report for each token; `None` reports no probabilities at all.
    pub logprobs: Option<usize>,
}

impl ChatRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// The first field that is wrong or cannot be honoured, by name.
    pub fn read(body: Value, default: &SamplingParams) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(body)?;
        let model = fields.string("model")?;
        let messages = messages::read(&mut fields)?;
        refusals::check_chat(&mut fields)?;
        let options = Options::read(&mut fields, default)?;
        let delivery = Delivery::read(&mut fields)?;
        let logprobs = logprobs(&mut fields)?;
        Ok(Self { model, messages, options, delivery, logprobs })
    }
}

fn logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let wanted = fields.boolean("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs")?;
    match top {
        Some(top) if top > TOP_LOGPROBS_MAX => {
            let problem = format!("is {top}, allowed is 0 to {TOP_LOGPROBS_MAX}");
            Err(ApiError::invalid("top_logprobs", problem))
        }
        Some(top) if top > 0 && !wanted => {
            Err(ApiError::invalid("top_logprobs", "needs `logprobs: true`"))
        }
        _ => Ok(wanted.then_some(top.unwrap_or(0))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(extra: &Value) -> Result<ChatRequest, ApiError> {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "x"}]});
        let fields = body.as_object_mut().expect("an object");
        fields.extend(extra.as_object().expect("an object").clone());
        ChatRequest::read(body, &SamplingParams::PLAIN)
    }

    #[test]
    fn probabilities_are_asked_for_in_two_fields() {
        let logprobs = |extra: Value| read(&extra).map(|request| request.logprobs);
        assert_eq!(logprobs(json!({})), Ok(None));
        assert_eq!(logprobs(json!({"logprobs": false, "top_logprobs": 0})), Ok(None));
        assert_eq!(logprobs(json!({"logprobs": true})), Ok(Some(0)));
        assert_eq!(logprobs(json!({"logprobs": true, "top_logprobs": 5})), Ok(Some(5)));
        for wrong in [
            json!({"top_logprobs": 5}),
            json!({"logprobs": true, "top_logprobs": 21}),
            json!({"logprobs": true, "top_logprobs": -1}),
        ] {
            assert_eq!(logprobs(wrong).unwrap_err().param(), Some("top_logprobs"));
        }
    }

    #[test]
    fn tools_are_ignored_only_where_they_must_not_be_called() {
        let tool = json!({"type": "function", "function": {"name": "f"}});
        for fine in [
            json!({"tools": []}),
            json!({"tools": null, "tool_choice": null}),
            json!({"tools": [], "tool_choice": "auto", "parallel_tool_calls": false}),
            json!({"tools": [tool], "tool_choice": "none"}),
            json!({"functions": [], "function_call": "auto"}),
        ] {
            assert!(read(&fine).is_ok(), "{fine}");
        }
        for (wrong, field) in [
            (json!({"tools": [tool]}), "tools"),
            (json!({"tools": [tool], "tool_choice": "auto"}), "tools"),
            (json!({"tools": vec![&tool; 128], "tool_choice": "required"}), "tool_choice"),
            (json!({"tools": [], "tool_choice": "required"}), "tool_choice"),
            (json!({"tool_choice": {"type": "function"}}), "tool_choice"),
            (json!({"tools": [tool], "tool_choice": 5}), "tool_choice"),
            (json!({"tools": ["f"]}), "tools[0]"),
            (json!({"tools": {}}), "tools"),
            (json!({"functions": [{}]}), "functions"),
            (json!({"function_call": {"name": "f"}}), "function_call"),
            (json!({"audio": {"voice": "x"}}), "audio"),
            (json!({"modalities": ["text", "audio"]}), "modalities"),
            (json!({"stream": 1}), "stream"),
            (json!({"stream": true, "stream_options": 1}), "stream_options"),
            (json!({"model": 5}), "model"),
        ] {
            assert_eq!(read(&wrong).unwrap_err().param(), Some(field), "{wrong}");
        }
    }
}
