//! The fields that chat and plain completions have in common.

use super::error::ApiError;
use super::fields::{Fields, integer, wrong_type};
use super::refusals;
use super::speculation::SpeculationFields;
use laneway_execution::{SamplingParams, TokenId};
use serde_json::Value;

/// Most stop strings of a request.
pub const STOP_STRINGS_MAX: usize = 16;
/// Longest stop string: text is held back for as long as it may still become one.
pub const STOP_BYTES_MAX: usize = 4096;
/// Most alternatives reported for a token.
pub const TOP_LOGPROBS_MAX: usize = 20;
/// Most entries of `logit_bias`; they are applied at every token.
pub const LOGIT_BIAS_MAX: usize = 4096;
/// Greatest bias, either way.
const LOGIT_BIAS_LIMIT: f64 = 100.0;

/// How to generate, whatever the prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Most tokens to generate; `None` is what the window leaves.
    pub max_tokens: Option<usize>,
    /// Shape of the distribution.
    pub sampling: SamplingParams,
    /// The seed, if the client chose one.
    pub seed: Option<u64>,
    /// Texts that end the output.
    pub stop: Vec<String>,
    /// Additions to single tokens' logits.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Whether to run through the model's own end marks.
    pub ignore_eos: bool,
    /// How to speculate.
    pub speculation: SpeculationFields,
}

/// How the response is delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivery {
    /// As events while it is generated.
    pub stream: bool,
    /// With a last event that carries the usage.
    pub include_usage: bool,
}

impl Options {
    /// Reads the common fields, refusing what cannot be honoured.
    ///
    /// # Errors
    /// The first field that is wrong, by name.
    pub fn read(fields: &mut Fields, default: &SamplingParams) -> Result<Self, ApiError> {
        let ignore_eos = fields.boolean("ignore_eos")?.unwrap_or(false);
        refusals::check_common(fields, ignore_eos)?;
        // The newer name wins, but a wrong value of the older one is still an error.
        let max_tokens = fields.count("max_tokens")?;
        let max_tokens = fields.count("max_completion_tokens")?.or(max_tokens);
        Ok(Self {
            max_tokens,
            sampling: sampling(fields, default)?,
            seed: seed(fields)?,
            stop: stop(fields)?,
            logit_bias: logit_bias(fields)?,
            ignore_eos,
            speculation: SpeculationFields::read(fields)?,
        })
    }
}

impl Delivery {
    /// Reads `stream` and `stream_options`.
    ///
    /// # Errors
    /// If one has the wrong type.
    pub fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let stream = fields.boolean("stream")?.unwrap_or(false);
        let include_usage = match fields.object("stream_options")? {
            Some(mut options) => options.boolean("include_usage")?.unwrap_or(false),
            None => false,
        };
        Ok(Self { stream, include_usage: stream && include_usage })
    }
}

fn sampling(fields: &mut Fields, default: &SamplingParams) -> Result<SamplingParams, ApiError> {
    let mut read = |field: &str, default: f32| -> Result<f32, ApiError> {
        // A value beyond f32 becomes infinite and fails the range check below.
        Ok(fields.number(field)?.map_or(default, |number| number as f32))
    };
    let mut params = SamplingParams {
        temperature: read("temperature", default.temperature)?,
        top_p: read("top_p", default.top_p)?,
        min_p: read("min_p", default.min_p)?,
        presence_penalty: read("presence_penalty", default.presence_penalty)?,
        frequency_penalty: read("frequency_penalty", default.frequency_penalty)?,
        repetition_penalty: read("repetition_penalty", default.repetition_penalty)?,
        top_k: default.top_k,
    };
    // −1 is a common spelling of "all".
    if let Some(top_k) = fields.integer("top_k", -1)? {
        params.top_k = u32::try_from(top_k.max(0)).unwrap_or(0);
    }
    params.validate().map_err(|error| {
        let problem = format!("is {}, allowed is {} to {}", error.value, error.low, error.high);
        ApiError::invalid(error.name, problem)
    })?;
    Ok(params)
}

fn seed(fields: &mut Fields) -> Result<Option<u64>, ApiError> {
    let Some(value) = fields.take("seed") else { return Ok(None) };
    // Negative seeds are legal in the API; two's complement keeps them distinct.
    let seed = value.as_u64().or_else(|| integer(&value).map(i64::cast_unsigned));
    seed.map(Some).ok_or_else(|| wrong_type("seed", "an integer", &value))
}

fn stop(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let items = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => vec![Value::String(text)],
        Some(Value::Array(items)) => items,
        Some(other) => return Err(wrong_type("stop", "a string or an array of strings", &other)),
    };
    if items.len() > STOP_STRINGS_MAX {
        let problem = format!("has {} strings, allowed are {STOP_STRINGS_MAX}", items.len());
        return Err(ApiError::invalid("stop", problem));
    }
    let mut stop = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        match item {
            Value::String(text) if text.len() > STOP_BYTES_MAX => {
                let problem = format!("is longer than {STOP_BYTES_MAX} bytes");
                return Err(ApiError::invalid(format!("stop[{index}]"), problem));
            }
            // An empty string would end every output before it begins; forms send it for "none".
            Value::String(text) if text.is_empty() => {}
            Value::String(text) => stop.push(text),
            other => return Err(wrong_type(format!("stop[{index}]"), "a string", &other)),
        }
    }
    Ok(stop)
}

fn logit_bias(fields: &mut Fields) -> Result<Vec<(TokenId, f32)>, ApiError> {
    let Some(biases) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    let mut read = Vec::new();
    for (key, value) in biases.into_rest() {
        let name = format!("logit_bias.{key}");
        let Ok(token) = key.parse::<TokenId>() else {
            return Err(ApiError::invalid(name, "must be named by a token id"));
        };
        let bias = value.as_f64().ok_or_else(|| wrong_type(&*name, "a number", &value))?;
        if !(-LOGIT_BIAS_LIMIT..=LOGIT_BIAS_LIMIT).contains(&bias) {
            return Err(ApiError::invalid(name, format!("is {bias}, allowed is -100 to 100")));
        }
        read.push((token, bias as f32));
    }
    if read.len() > LOGIT_BIAS_MAX {
        let problem = format!("has {} entries, allowed are {LOGIT_BIAS_MAX}", read.len());
        return Err(ApiError::invalid("logit_bias", problem));
    }
    // "7" and "07" name one token: like equal keys, that cannot be meant.
    read.sort_by_key(|&(token, _)| token);
    if let Some(pair) = read.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        let problem = format!("names token {} twice", pair[0].0);
        return Err(ApiError::invalid("logit_bias", problem));
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(body: Value) -> Result<Options, ApiError> {
        Options::read(&mut Fields::of_body(body)?, &SamplingParams::PLAIN)
    }

    fn fault(body: Value) -> String {
        let error = read(body).expect_err("must be refused");
        error.param().expect("names a field").to_owned()
    }

    #[test]
    fn neutral_values_mean_the_defaults() {
        let default = read(json!({})).unwrap();
        let neutral = json!({
            "max_tokens": null, "stop": null, "logit_bias": {}, "seed": null, "n": 1,
            "response_format": {"type": "text"}, "min_tokens": 0, "top_k": -1, "stop_token_ids": [],
            "user": "u", "metadata": {"a": 1}, "store": false, "service_tier": "auto",
            "prompt_cache_key": "k", "reasoning_effort": "high", "anything": [{}],
        });
        assert_eq!(read(neutral).unwrap(), default);
        assert_eq!(default.max_tokens, None);
    }

    #[test]
    fn max_tokens_is_a_count_and_the_newer_name_wins() {
        for wrong in [json!(-1), json!(1.5), json!("5"), json!(true), json!([1])] {
            assert_eq!(fault(json!({"max_tokens": wrong.clone()})), "max_tokens");
            assert_eq!(fault(json!({"max_completion_tokens": wrong})), "max_completion_tokens");
        }
        let both = read(json!({"max_tokens": 3, "max_completion_tokens": 7})).unwrap();
        assert_eq!(both.max_tokens, Some(7));
        assert_eq!(read(json!({"max_tokens": 4.0})).unwrap().max_tokens, Some(4));
        assert_eq!(read(json!({"max_tokens": 0})).unwrap().max_tokens, Some(0));
        let huge = read(json!({"max_tokens": u64::MAX})).unwrap();
        assert!(huge.max_tokens > Some(1 << 40));
    }

    #[test]
    fn every_fault_names_its_field() {
        for (body, field) in [
            (json!({"temperature": "hot"}), "temperature"),
            (json!({"temperature": -0.1}), "temperature"),
            (json!({"temperature": 1e300}), "temperature"),
            (json!({"top_p": 0}), "top_p"),
            (json!({"top_k": -2}), "top_k"),
            (json!({"min_p": 1.5}), "min_p"),
            (json!({"presence_penalty": 3}), "presence_penalty"),
            (json!({"frequency_penalty": [0]}), "frequency_penalty"),
            (json!({"repetition_penalty": 0}), "repetition_penalty"),
            (json!({"seed": 1.5}), "seed"),
            (json!({"seed": "1"}), "seed"),
            (json!({"stop": 5}), "stop"),
            (json!({"stop": ["a", 5]}), "stop[1]"),
            (json!({"stop": vec!["a"; 17]}), "stop"),
            (json!({"stop": "a".repeat(STOP_BYTES_MAX + 1)}), "stop[0]"),
            (json!({"logit_bias": [1]}), "logit_bias"),
            (json!({"logit_bias": {"x": 1}}), "logit_bias.x"),
            (json!({"logit_bias": {"5": "1"}}), "logit_bias.5"),
            (json!({"logit_bias": {"5": 101}}), "logit_bias.5"),
            (json!({"logit_bias": {"5": 1, "05": 2}}), "logit_bias"),
            (json!({"ignore_eos": 1}), "ignore_eos"),
            (json!({"n": 0}), "n"),
            (json!({"n": 2}), "n"),
            (json!({"response_format": {"type": "json_object"}}), "response_format"),
            (json!({"min_tokens": 3}), "min_tokens"),
            (json!({"guided_regex": "a+"}), "guided_regex"),
            (json!({"mirostat": 2}), "mirostat"),
        ] {
            assert_eq!(fault(body), field);
        }
    }

    #[test]
    fn seeds_cover_the_whole_64_bit_range() {
        let seed = |value: Value| read(json!({"seed": value})).unwrap().seed;
        assert_eq!(seed(json!(-1)), Some(u64::MAX));
        assert_eq!(seed(json!(u64::MAX)), Some(u64::MAX));
        assert_eq!(seed(json!(42)), Some(42));
    }

    #[test]
    fn a_minimum_is_harmless_when_the_end_is_ignored_anyway() {
        assert!(read(json!({"min_tokens": 8, "ignore_eos": true})).unwrap().ignore_eos);
    }
}
