//! Folders against their GGUF twin, and what is refused.

use super::HfModel;
use super::config::Family;
use super::names::target;
use crate::file::{ModelFile, Reading};
use crate::{Layout, ModelConfig};
use laneway_artifact::{Gguf, HfFolder};
use laneway_numerics::WeightFormat;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;

fn tiny_hybrid() -> PathBuf {
    let shared = std::env::var_os("LANEWAY_SHARED").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    );
    shared.join("models/tiny-hybrid")
}

fn both() -> (HfModel, Gguf) {
    let folder = HfFolder::open(tiny_hybrid()).expect("the folder");
    let gguf = Gguf::open(tiny_hybrid().join("tiny-hybrid-f16.gguf")).expect("its twin");
    (HfModel::new(folder).expect("a model"), gguf)
}

#[test]
fn a_folder_says_what_its_twin_says() {
    let (folder, gguf) = both();
    let shapes = |file: &dyn ModelFile| -> BTreeMap<String, Vec<usize>> {
        file.tensors().into_iter().map(|t| (t.name.to_owned(), t.shape)).collect()
    };
    assert_eq!(shapes(&folder), shapes(&gguf));
    let (mut found, mut twin) =
        (ModelConfig::from_file(&folder).unwrap(), ModelConfig::from_file(&gguf).unwrap());
    // The one thing that differs by design.
    for config in [&mut found, &mut twin] {
        config.delta.as_mut().unwrap().sharing = laneway_ops::HeadSharing::Grouped;
    }
    assert_eq!(found, twin);
    assert_eq!(folder.layout(), Layout::HuggingFace);
}

fn values(file: &dyn ModelFile, name: &str) -> Vec<f32> {
    let tensor = file.tensors().into_iter().find(|tensor| tensor.name == name).expect(name);
    let size = if tensor.format == WeightFormat::F32 { 4 } else { 2 };
    let mut out: Vec<f32> = tensor
        .data()
        .chunks_exact(size)
        .map(|b| match tensor.format {
            WeightFormat::F32 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
            WeightFormat::Bf16 => f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16),
            other => panic!("{name} is {other}"),
        })
        .collect();
    tensor.reading.apply(&mut out);
    out
}

#[test]
fn vectors_read_as_their_twins() {
    let (folder, gguf) = both();
    for name in [
        "output_norm.weight",
        "blk.0.attn_norm.weight",
        "blk.0.ssm_norm.weight",
        "blk.3.attn_q_norm.weight",
        "blk.3.post_attention_norm.weight",
        "blk.8.nextn.enorm.weight",
        "blk.8.nextn.shared_head_norm.weight",
    ] {
        assert_eq!(values(&folder, name), values(&gguf, name), "{name}");
    }
    // The converter reorders value heads from grouped to tiled: 0 1 2 3 becomes 0 2 1 3.
    for name in ["blk.0.ssm_a", "blk.0.ssm_dt.bias"] {
        let (grouped, tiled) = (values(&folder, name), values(&gguf, name));
        for (at, head) in [0, 2, 1, 3].into_iter().enumerate() {
            let (a, b) = (grouped[head], tiled[at]);
            assert!((a - b).abs() <= 1e-6 * a.abs(), "{name}: {a} and {b}");
        }
    }
}

#[test]
fn names_by_family() {
    let family = |model_type: &str| Family::of(&json!({"model_type": model_type})).unwrap();
    let name = |model_type: &str, tied: bool, source: &str| {
        target(&family(model_type), 8, tied, source).map(|t| (t.name, t.reading))
    };
    let plain = |name: &str| Some((name.to_owned(), Reading::Plain));
    let norm = |name: &str| Some((name.to_owned(), Reading::PlusOne));
    let mlp_norm = "layers.2.post_attention_layernorm.weight";
    for (found, expected) in [
        (name("llama", false, &format!("model.{mlp_norm}")), plain("blk.2.ffn_norm.weight")),
        (
            name("qwen3_5", false, &format!("model.language_model.{mlp_norm}")),
            norm("blk.2.post_attention_norm.weight"),
        ),
        (name("qwen2", false, "lm_head.weight"), plain("output.weight")),
        (name("qwen2", true, "lm_head.weight"), None),
        (name("qwen3_5", false, "model.visual.blocks.0.norm1.weight"), None),
        (name("qwen3", false, "model.visual.x"), plain("model.visual.x")),
        (name("qwen3_5", false, "mtp.norm.weight"), norm("blk.8.nextn.shared_head_norm.weight")),
        (
            name("qwen3_5_moe", false, "model.layers.0.mlp.experts.gate_up_proj"),
            plain("blk.0.ffn_gate_up_exps.weight"),
        ),
        (
            name("qwen3_5_moe", false, "model.layers.0.mlp.experts.3.up_proj.weight"),
            plain("blk.0.mlp.experts.3.up_proj.weight"),
        ),
    ] {
        assert_eq!(found, expected);
    }
}

fn llama(changes: Value) -> Value {
    let mut config = json!({
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 128, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
    });
    let Value::Object(changes) = changes else { panic!("no object") };
    config.as_object_mut().unwrap().extend(changes);
    config
}

#[test]
fn what_would_be_another_model_is_refused_by_name() {
    let refusal = |changes: Value| {
        let config = llama(changes);
        let found = Family::of(&config).and_then(|family| family.metadata(&config, false));
        found.expect_err("a refusal").to_string()
    };
    for (changes, expected) in [
        (json!({"model_type": "gemma"}), "\"gemma\" is not supported (supported: llama, mistral"),
        (json!({"hidden_act": "gelu"}), "hidden_act: \"gelu\" is not supported"),
        (json!({"quantization_config": {"quant_method": "fp8"}}), "by \"fp8\" is not supported"),
        (json!({"model_type": "mistral", "sliding_window": 4096}), "a window of 4096"),
        (json!({"rope_scaling": {"rope_type": "yarn"}}), "rope_type: \"yarn\" is not supported"),
        (json!({"attention_bias": true}), "attention_bias: true is not supported"),
        (json!({"hidden_size": -1}), "hidden_size: -1, expected a whole number"),
        (json!({"rms_norm_eps": null}), "rms_norm_eps: missing"),
        (json!({"layer_types": ["sliding_attention"]}), "\"sliding_attention\" is not supported"),
    ] {
        let found = refusal(changes);
        assert!(found.contains(expected), "{found}");
    }
}

#[test]
fn rotation_is_found_where_either_version_puts_it() {
    let base = |changes: Value| {
        let config = llama(changes);
        Family::of(&config).unwrap().metadata(&config, false).unwrap()["llama.rope.freq_base"]
            .clone()
    };
    let expected = laneway_artifact::Value::F64(5e5);
    assert_eq!(base(json!({"rope_theta": 5e5, "rope_scaling": null})), expected);
    assert_eq!(base(json!({"rope_parameters": {"rope_theta": 5e5}})), expected);
}
