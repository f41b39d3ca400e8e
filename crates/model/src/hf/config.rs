//! `config.json` of the transformers library, as metadata under GGUF's keys.

use crate::LoadError;
use laneway_artifact::Value;
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// Model types and the architectures that compute them.
const TYPES: [(&str, &str); 8] = [
    ("llama", "llama"),
    ("mistral", "llama"),
    ("qwen2", "qwen2"),
    ("qwen3", "qwen3"),
    ("qwen3_5", "qwen35"),
    ("qwen3_5_text", "qwen35"),
    ("qwen3_5_moe", "qwen35moe"),
    ("qwen3_5_moe_text", "qwen35moe"),
];

/// What kind of model a folder holds.
#[derive(Clone, Debug)]
pub(super) struct Family {
    /// Its `model_type`.
    model_type: String,
    /// Value of `general.architecture`.
    pub architecture: &'static str,
}

fn error(key: &str, detail: impl Into<String>) -> LoadError {
    LoadError::Metadata { key: format!("config.json {key}"), detail: detail.into() }
}

/// The part that describes the text model.
fn text(config: &Json) -> &Json {
    match &config["text_config"] {
        nested @ Json::Object(_) => nested,
        _ => config,
    }
}

fn size_if_present(config: &Json, key: &str) -> Result<Option<u64>, LoadError> {
    match &text(config)[key] {
        Json::Null => Ok(None),
        value => match value.as_u64().filter(|&n| n <= u64::from(u32::MAX)) {
            Some(size) => Ok(Some(size)),
            None => Err(error(key, format!("{value}, expected a whole number below 2^32"))),
        },
    }
}

fn size(config: &Json, key: &str) -> Result<u64, LoadError> {
    match size_if_present(config, key)? {
        None | Some(0) => Err(error(key, "missing or 0, expected a positive number")),
        Some(size) => Ok(size),
    }
}

/// The rotation's parameters: in their own object since transformers 5, beside the sizes before.
fn rope<'a>(config: &'a Json, key: &str) -> &'a Json {
    let text = text(config);
    let places = [&text["rope_parameters"], &text["rope_scaling"], text];
    places.into_iter().map(|place| &place[key]).find(|v| !v.is_null()).unwrap_or(&Json::Null)
}

impl Family {
    /// Finds it by `model_type`.
    pub fn of(config: &Json) -> Result<Self, LoadError> {
        let found = text(config)["model_type"].as_str().or(config["model_type"].as_str());
        let found = found.ok_or_else(|| error("model_type", "missing"))?;
        match TYPES.iter().find(|(model_type, _)| *model_type == found) {
            Some(&(model_type, architecture)) => {
                Ok(Family { model_type: model_type.to_owned(), architecture })
            }
            None => {
                let known = TYPES.map(|(model_type, _)| model_type).join(", ");
                Err(error("model_type", format!("{found:?} is not supported (supported: {known})")))
            }
        }
    }

    /// Delta layers among attention layers.
    pub fn is_hybrid(&self) -> bool {
        self.architecture.starts_with("qwen35")
    }

    fn is_sparse(&self) -> bool {
        self.architecture == "qwen35moe"
    }

    /// Layers without those that draft.
    pub fn layers(&self, config: &Json) -> Result<u64, LoadError> {
        size(config, "num_hidden_layers")
    }

    /// The head is the embedding, also where a file holds it a second time.
    pub fn tied(&self, config: &Json) -> bool {
        const KEY: &str = "tie_word_embeddings";
        text(config)[KEY].as_bool().or(config[KEY].as_bool()).unwrap_or(false)
    }

    /// Everything that the architecture asks for.
    pub fn metadata(
        &self,
        config: &Json,
        has_drafts: bool,
    ) -> Result<BTreeMap<String, Value>, LoadError> {
        self.refuse_other_mathematics(config)?;
        let mut out = Entries { prefix: self.architecture, entries: BTreeMap::new() };
        let architecture = Value::Text(self.architecture.to_owned());
        out.entries.insert("general.architecture".to_owned(), architecture);
        let layers = self.layers(config)?;
        let heads = size(config, "num_attention_heads")?;
        let hidden = size(config, "hidden_size")?;
        let head_dim = match (size_if_present(config, "head_dim")?, self.architecture) {
            (Some(dim), _) => dim,
            (None, "llama" | "qwen2") => hidden / heads,
            (None, _) => return Err(error("head_dim", "missing")),
        };
        let drafts = self.draft_layers(config, has_drafts)?;
        out.size("block_count", layers + drafts);
        out.size("context_length", size(config, "max_position_embeddings")?);
        out.size("embedding_length", hidden);
        out.size("attention.head_count", heads);
        let kv_heads = size_if_present(config, "num_key_value_heads")?.unwrap_or(heads);
        out.size("attention.head_count_kv", kv_heads);
        out.size("attention.key_length", head_dim);
        out.size("attention.value_length", head_dim);
        let epsilon = &text(config)["rms_norm_eps"];
        let epsilon = epsilon.as_f64().ok_or_else(|| error("rms_norm_eps", "missing"))?;
        out.float("attention.layer_norm_rms_epsilon", epsilon);
        self.rotation(config, head_dim, &mut out)?;
        if self.is_sparse() {
            out.size("expert_count", size(config, "num_experts")?);
            out.size("expert_used_count", size(config, "num_experts_per_tok")?);
            out.size("expert_feed_forward_length", size(config, "moe_intermediate_size")?);
            let shared = size(config, "shared_expert_intermediate_size")?;
            out.size("expert_shared_feed_forward_length", shared);
        } else {
            out.size("feed_forward_length", size(config, "intermediate_size")?);
        }
        if self.is_hybrid() {
            out.size("nextn_predict_layers", drafts);
            out.size("full_attention_interval", interval(config, layers)?);
            delta(config, &mut out)?;
        }
        Ok(out.entries)
    }

    /// Published models derived from others often lack the layer that their configuration states.
    fn draft_layers(&self, config: &Json, has_drafts: bool) -> Result<u64, LoadError> {
        let stated = size_if_present(config, "mtp_num_hidden_layers")?.unwrap_or(0);
        let dedicated = "mtp_use_dedicated_embeddings";
        if stated > 0 && text(config)[dedicated] == true {
            return Err(error(dedicated, "true is not supported"));
        }
        Ok(if self.is_hybrid() && has_drafts { stated } else { 0 })
    }

    fn rotation(&self, config: &Json, head_dim: u64, out: &mut Entries) -> Result<(), LoadError> {
        let number = |key: &str, default: f64| match rope(config, key) {
            Json::Null => Ok(default),
            value => value.as_f64().ok_or_else(|| error(key, format!("{value}, not a number"))),
        };
        out.float("rope.freq_base", number("rope_theta", 10_000.0)?);
        let partial = "partial_rotary_factor";
        let share = number(partial, if self.is_hybrid() { 0.25 } else { 1.0 })?;
        let rotated = head_dim as f64 * share;
        if !(rotated >= 2.0 && share <= 1.0) {
            return Err(error(partial, format!("{share} of heads of {head_dim} elements")));
        }
        out.size("rope.dimension_count", rotated as u64);
        let kind = match rope(config, "rope_type") {
            Json::Null => rope(config, "type"),
            kind => kind,
        };
        match kind.as_str() {
            None if kind.is_null() => Ok(()),
            Some("default" | "none") => Ok(()),
            Some("linear") => {
                out.entries.insert(out.key("rope.scaling.type"), Value::Text("linear".to_owned()));
                out.float("rope.scaling.factor", number("factor", 1.0)?);
                Ok(())
            }
            _ => {
                let detail = format!("{kind} is not supported (supported: default, linear)");
                Err(error("rope_type", detail))
            }
        }
    }

    /// Refuses what would make another model of it.
    fn refuse_other_mathematics(&self, config: &Json) -> Result<(), LoadError> {
        let text = text(config);
        for holder in [config, text] {
            if let method @ Json::Object(_) = &holder["quantization_config"] {
                let method = &method["quant_method"];
                let detail = format!("quantization by {method} is not supported");
                return Err(error("quantization_config", detail));
            }
        }
        match &text["hidden_act"] {
            Json::Null => {}
            Json::String(name) if name == "silu" => {}
            other => {
                return Err(error("hidden_act", format!("{other} is not supported: use silu")));
            }
        }
        for key in ["attention_bias", "mlp_bias"] {
            if text[key] == true {
                return Err(error(key, "true is not supported"));
            }
        }
        if self.is_hybrid() && text["attn_output_gate"] == false {
            return Err(error("attn_output_gate", "false is not supported"));
        }
        // Qwen states a window that it uses only when it says so.
        let window = &text["sliding_window"];
        let used = match self.model_type.as_str() {
            "mistral" => !window.is_null(),
            _ => text["use_sliding_window"] == true,
        };
        if used {
            return Err(error("sliding_window", format!("a window of {window} is not supported")));
        }
        let kinds = text["layer_types"].as_array().into_iter().flatten();
        let known = |kind: &Json| {
            kind == "full_attention" || (self.is_hybrid() && kind == "linear_attention")
        };
        match kinds.into_iter().find(|kind| !known(kind)) {
            Some(kind) => Err(error("layer_types", format!("{kind} is not supported"))),
            None => Ok(()),
        }
    }
}

/// Metadata in the making.
struct Entries {
    prefix: &'static str,
    entries: BTreeMap<String, Value>,
}

impl Entries {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    fn size(&mut self, key: &str, value: u64) {
        self.entries.insert(self.key(key), Value::Unsigned(value));
    }

    fn float(&mut self, key: &str, value: f64) {
        self.entries.insert(self.key(key), Value::F64(value));
    }
}

/// Every so many layers one has attention; the layers' list has to say the same.
fn interval(config: &Json, layers: u64) -> Result<u64, LoadError> {
    let Some(kinds) = text(config)["layer_types"].as_array() else {
        return size(config, "full_attention_interval");
    };
    if kinds.len() as u64 != layers {
        let detail = format!("{} kinds for {layers} layers", kinds.len());
        return Err(error("layer_types", detail));
    }
    let full = |kind: &Json| kind == "full_attention";
    let first = kinds.iter().position(full);
    let first = first.ok_or_else(|| error("layer_types", "no layer has full attention"))?;
    let interval = first + 1;
    let strays =
        |(layer, kind): &(usize, &Json)| full(kind) != (layer + 1).is_multiple_of(interval);
    match kinds.iter().enumerate().find(strays) {
        Some((layer, kind)) => {
            let detail = format!("layer {layer} is {kind}, but attention is in every {interval}th");
            Err(error("layer_types", detail))
        }
        None => Ok(interval as u64),
    }
}

fn delta(config: &Json, out: &mut Entries) -> Result<(), LoadError> {
    let key_dim = size(config, "linear_key_head_dim")?;
    let value_dim = size(config, "linear_value_head_dim")?;
    if key_dim != value_dim {
        let detail = format!("{value_dim} beside keys of {key_dim} is not supported");
        return Err(error("linear_value_head_dim", detail));
    }
    let value_heads = size(config, "linear_num_value_heads")?;
    out.size("ssm.conv_kernel", size(config, "linear_conv_kernel_dim")?);
    out.size("ssm.state_size", key_dim);
    out.size("ssm.group_count", size(config, "linear_num_key_heads")?);
    out.size("ssm.time_step_rank", value_heads);
    out.size("ssm.inner_size", value_heads * value_dim);
    Ok(())
}
