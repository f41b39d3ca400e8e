//! Fields that would change the meaning of a request and that this server does not honour.
//!
//! Everything that is not read elsewhere and does not stand here is accepted and ignored: clients
//! send many fields that only matter to their own provider. A field stands here if ignoring it
//! would give another output than the client asked for; its neutral values are accepted.

use super::error::ApiError;
use super::fields::{Fields, wrong_type};
use serde_json::Value;

/// A value of a refused field that asks for nothing.
#[derive(Clone, Copy, Debug)]
enum Neutral {
    /// Empty string, array or object, `false`, or 0.
    Empty,
    /// This number.
    Number(f64),
    /// This boolean.
    Boolean(bool),
    /// `{"type": "text"}`.
    TextFormat,
    /// `["text"]`.
    TextModality,
}

impl Neutral {
    fn holds(self, value: &Value) -> bool {
        match self {
            Self::Empty => match value {
                Value::Null | Value::Bool(false) => true,
                Value::Bool(true) => false,
                Value::Number(number) => number.as_f64() == Some(0.0),
                Value::String(text) => text.is_empty(),
                Value::Array(items) => items.is_empty(),
                Value::Object(fields) => fields.is_empty(),
            },
            Self::Number(neutral) => value.as_f64() == Some(neutral),
            Self::Boolean(neutral) => value.as_bool() == Some(neutral),
            Self::TextFormat => value.get("type").is_some_and(|kind| kind == "text"),
            Self::TextModality => {
                value.as_array().is_some_and(|all| all.iter().all(|m| m == "text"))
            }
        }
    }
}

type Refusal = (&'static str, Neutral, &'static str);

const STRUCTURED: &str = "output cannot be constrained yet; describe the format in the prompt";
const SAMPLER: &str = "this sampler is not implemented; see temperature, top_p, top_k, min_p";

/// Refused on every generating endpoint.
const COMMON: &[Refusal] = &[
    ("response_format", Neutral::TextFormat, STRUCTURED),
    ("structured_outputs", Neutral::Empty, STRUCTURED),
    ("guided_json", Neutral::Empty, STRUCTURED),
    ("guided_regex", Neutral::Empty, STRUCTURED),
    ("guided_choice", Neutral::Empty, STRUCTURED),
    ("guided_grammar", Neutral::Empty, STRUCTURED),
    ("json_schema", Neutral::Empty, STRUCTURED),
    ("grammar", Neutral::Empty, STRUCTURED),
    ("regex", Neutral::Empty, STRUCTURED),
    ("ebnf", Neutral::Empty, STRUCTURED),
    ("stop_token_ids", Neutral::Empty, "use `stop` with the tokens' texts"),
    ("bad_words", Neutral::Empty, "use `logit_bias`"),
    ("allowed_token_ids", Neutral::Empty, "use `logit_bias`"),
    ("include_stop_str_in_output", Neutral::Boolean(false), "stop strings are never returned"),
    ("skip_special_tokens", Neutral::Boolean(true), "special tokens are never returned as text"),
    ("prompt_logprobs", Neutral::Empty, "use /v1/completions with `echo` and `logprobs`"),
    ("truncate_prompt_tokens", Neutral::Empty, "prompts are never truncated"),
    ("logits_processors", Neutral::Empty, "use `logit_bias`"),
    ("use_beam_search", Neutral::Empty, SAMPLER),
    ("typical_p", Neutral::Number(1.0), SAMPLER),
    ("tfs_z", Neutral::Number(1.0), SAMPLER),
    ("top_a", Neutral::Empty, SAMPLER),
    ("mirostat", Neutral::Empty, SAMPLER),
    ("dry_multiplier", Neutral::Empty, SAMPLER),
    ("xtc_probability", Neutral::Empty, SAMPLER),
    ("dynatemp_range", Neutral::Empty, SAMPLER),
    ("modalities", Neutral::TextModality, "only text is generated"),
];

/// Refused for chat completions in addition.
const CHAT: &[Refusal] = &[
    ("audio", Neutral::Empty, "only text is generated"),
    ("web_search_options", Neutral::Empty, "the server has no access to the web"),
    ("functions", Neutral::Empty, "function calls are not supported yet"),
    ("chat_template", Neutral::Empty, "the model's own template is used"),
    ("continue_final_message", Neutral::Boolean(false), "use /v1/completions"),
    ("add_generation_prompt", Neutral::Boolean(true), "use /v1/completions"),
    ("echo", Neutral::Boolean(false), "use /v1/completions"),
];

/// Refused for plain completions in addition.
const COMPLETIONS: &[Refusal] = &[
    ("suffix", Neutral::Empty, "filling in the middle is not supported yet"),
    ("prompt_embeds", Neutral::Empty, "send `prompt`"),
];

/// Checks what every generating endpoint refuses.
pub(super) fn check_common(fields: &mut Fields, ignore_eos: bool) -> Result<(), ApiError> {
    check_single(fields, "n")?;
    check_single(fields, "best_of")?;
    // With end marks ignored, the only other end is `max_tokens` or a stop string.
    if fields.count("min_tokens")?.is_some_and(|least| least > 0) && !ignore_eos {
        return Err(ApiError::unsupported("min_tokens", "combine it with `ignore_eos: true`"));
    }
    check(fields, COMMON)
}

/// Checks what chat completions refuse, tools included.
pub(super) fn check_chat(fields: &mut Fields) -> Result<(), ApiError> {
    check(fields, CHAT)?;
    match fields.take("function_call") {
        None => {}
        Some(Value::String(choice)) if choice == "none" || choice == "auto" => {}
        Some(_) => {
            let problem = "function calls are not supported yet";
            return Err(ApiError::unsupported("function_call", problem));
        }
    }
    check_tools(fields)
}

/// Checks what plain completions refuse.
pub(super) fn check_completions(fields: &mut Fields) -> Result<(), ApiError> {
    check(fields, COMPLETIONS)
}

fn check(fields: &mut Fields, refusals: &[Refusal]) -> Result<(), ApiError> {
    for &(field, neutral, problem) in refusals {
        if fields.take(field).is_some_and(|value| !neutral.holds(&value)) {
            return Err(ApiError::unsupported(field, problem));
        }
    }
    Ok(())
}

/// `n` and `best_of`: one choice, no more and no less.
fn check_single(fields: &mut Fields, field: &str) -> Result<(), ApiError> {
    match fields.integer(field, 1)? {
        None | Some(1) => Ok(()),
        Some(_) => {
            let problem = "one choice is generated for a request; send several requests";
            Err(ApiError::unsupported(field, problem))
        }
    }
}

/// Tools that the model may call are refused until calls are parsed; tools that it must not call
/// are ignored, as are empty lists.
fn check_tools(fields: &mut Fields) -> Result<(), ApiError> {
    const PROBLEM: &str =
        "tool calls are not supported yet; remove the field or set `tool_choice` to \"none\"";
    let tools = fields.array("tools")?.unwrap_or_default();
    if let Some(index) = tools.iter().position(|tool| !tool.is_object()) {
        return Err(wrong_type(format!("tools[{index}]"), "an object", &tools[index]));
    }
    match fields.take("tool_choice") {
        Some(Value::String(choice)) if choice == "none" => Ok(()),
        None if tools.is_empty() => Ok(()),
        Some(Value::String(choice)) if choice == "auto" && tools.is_empty() => Ok(()),
        None => Err(ApiError::unsupported("tools", PROBLEM)),
        Some(Value::String(choice)) if choice == "auto" => {
            Err(ApiError::unsupported("tools", PROBLEM))
        }
        Some(Value::String(choice)) if choice == "required" => {
            Err(ApiError::unsupported("tool_choice", PROBLEM))
        }
        Some(Value::Object(_)) => Err(ApiError::unsupported("tool_choice", PROBLEM)),
        Some(other) => {
            let expected = "\"none\", \"auto\", \"required\" or a named tool";
            Err(wrong_type("tool_choice", expected, &other))
        }
    }
}
