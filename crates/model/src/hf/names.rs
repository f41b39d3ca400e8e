//! Names of the transformers library's tensors, and the names that binding knows them by.

use super::config::Family;
use crate::file::Reading;

/// What a tensor becomes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub name: String,
    pub reading: Reading,
}

/// Whether a norm is stored as its distance from 1, where the family does so.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Norm,
    Decay,
}
use Kind::{Decay, Norm, Plain};

/// Tensors outside the layers.
const WHOLE: [(&str, &str, Kind); 3] = [
    ("embed_tokens.weight", "token_embd.weight", Plain),
    ("norm.weight", "output_norm.weight", Norm),
    ("lm_head.weight", "output.weight", Plain),
];

/// Tensors of the draft part outside its layers; they belong to its first layer.
const DRAFT: [(&str, &str, Kind); 4] = [
    ("fc.weight", "nextn.eh_proj.weight", Plain),
    ("pre_fc_norm_embedding.weight", "nextn.enorm.weight", Norm),
    ("pre_fc_norm_hidden.weight", "nextn.hnorm.weight", Norm),
    ("norm.weight", "nextn.shared_head_norm.weight", Norm),
];

/// Tensors of a layer.
const LAYER: [(&str, &str, Kind); 32] = [
    ("input_layernorm.weight", "attn_norm.weight", Norm),
    ("self_attn.q_proj.weight", "attn_q.weight", Plain),
    ("self_attn.q_proj.bias", "attn_q.bias", Plain),
    ("self_attn.k_proj.weight", "attn_k.weight", Plain),
    ("self_attn.k_proj.bias", "attn_k.bias", Plain),
    ("self_attn.v_proj.weight", "attn_v.weight", Plain),
    ("self_attn.v_proj.bias", "attn_v.bias", Plain),
    ("self_attn.q_norm.weight", "attn_q_norm.weight", Norm),
    ("self_attn.k_norm.weight", "attn_k_norm.weight", Norm),
    ("self_attn.o_proj.weight", "attn_output.weight", Plain),
    ("linear_attn.in_proj_qkv.weight", "attn_qkv.weight", Plain),
    ("linear_attn.in_proj_z.weight", "attn_gate.weight", Plain),
    ("linear_attn.in_proj_a.weight", "ssm_alpha.weight", Plain),
    ("linear_attn.in_proj_b.weight", "ssm_beta.weight", Plain),
    ("linear_attn.conv1d.weight", CONVOLUTION, Plain),
    ("linear_attn.dt_bias", "ssm_dt.bias", Plain),
    ("linear_attn.A_log", "ssm_a", Decay),
    ("linear_attn.norm.weight", "ssm_norm.weight", Plain),
    ("linear_attn.out_proj.weight", "ssm_out.weight", Plain),
    ("mlp.gate_proj.weight", "ffn_gate.weight", Plain),
    ("mlp.up_proj.weight", "ffn_up.weight", Plain),
    ("mlp.down_proj.weight", "ffn_down.weight", Plain),
    ("mlp.gate.weight", "ffn_gate_inp.weight", Plain),
    ("mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight", Plain),
    ("mlp.experts.gate_up_proj.weight", "ffn_gate_up_exps.weight", Plain),
    ("mlp.experts.down_proj", "ffn_down_exps.weight", Plain),
    ("mlp.experts.down_proj.weight", "ffn_down_exps.weight", Plain),
    ("mlp.shared_expert_gate.weight", SHARED_GATE, Plain),
    ("mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight", Plain),
    ("mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight", Plain),
    ("mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight", Plain),
    // Under one of two names, by family: see `layer`.
    ("post_attention_layernorm.weight", "ffn_norm.weight", Norm),
];

const EXPERTS: &str = "mlp.experts.";
const CONVOLUTION: &str = "ssm_conv1d.weight";
const SHARED_GATE: &str = "ffn_gate_inp_shexp.weight";

/// What the tensor `name` becomes in a model of so many `layers`; `None` if it has no part in the
/// text model. A name that is not known stays as it is, so that binding refuses it by name.
pub(super) fn target(family: &Family, layers: u64, tied: bool, name: &str) -> Option<Target> {
    let unknown = Some(Target { name: name.to_owned(), reading: Reading::Plain });
    let hybrid = family.is_hybrid();
    if hybrid && (name.starts_with("model.visual.") || name.starts_with("visual.")) {
        return None;
    }
    if let Some(rest) = name.strip_prefix("mtp.").filter(|_| hybrid) {
        if let Some(&(_, name, kind)) = DRAFT.iter().find(|(source, ..)| *source == rest) {
            return Some(found(hybrid, format!("blk.{layers}.{name}"), kind));
        }
        return layer(hybrid, layers, rest).or(unknown);
    }
    let inner = match name.strip_prefix("model.") {
        Some(inner) if hybrid => inner.strip_prefix("language_model.").unwrap_or(inner),
        Some(inner) => inner,
        None => name,
    };
    if inner == "lm_head.weight" && tied {
        return None;
    }
    if inner.ends_with("self_attn.rotary_emb.inv_freq") {
        // Old checkpoints hold what follows from the configuration.
        return None;
    }
    if let Some(&(_, name, kind)) = WHOLE.iter().find(|(source, ..)| *source == inner) {
        return Some(found(hybrid, name.to_owned(), kind));
    }
    layer(hybrid, 0, inner).or(unknown)
}

/// The target of a matrix of one expert, and which expert that is, where a checkpoint has them each
/// by itself.
pub(super) fn expert(target: &Target) -> Option<(String, usize)> {
    const PARTS: [(&str, &str); 3] = [
        ("gate_proj.weight", "ffn_gate_exps.weight"),
        ("up_proj.weight", "ffn_up_exps.weight"),
        ("down_proj.weight", "ffn_down_exps.weight"),
    ];
    let (layer, rest) = target.name.split_once(EXPERTS)?;
    let (number, part) = rest.split_once('.')?;
    let &(_, name) = PARTS.iter().find(|(source, _)| *source == part)?;
    Some((format!("{layer}{name}"), number.parse().ok()?))
}

/// What `layers.N.…` becomes, if it is known; layers are counted from `first`.
fn layer(hybrid: bool, first: u64, name: &str) -> Option<Target> {
    let (number, rest) = name.strip_prefix("layers.")?.split_once('.')?;
    let number = u64::from(number.parse::<u32>().ok()?) + first;
    if let Some(expert) = rest.strip_prefix(EXPERTS).filter(|expert| hybrid && is_one(expert)) {
        return Some(found(hybrid, format!("blk.{number}.{EXPERTS}{expert}"), Plain));
    }
    let &(_, name, kind) = LAYER.iter().find(|(source, ..)| *source == rest)?;
    let name = match name {
        "ffn_norm.weight" if hybrid => "post_attention_norm.weight",
        name => name,
    };
    Some(found(hybrid, format!("blk.{number}.{name}"), kind))
}

/// True for `N.…`.
fn is_one(expert: &str) -> bool {
    expert.split_once('.').is_some_and(|(number, _)| number.parse::<u32>().is_ok())
}

fn found(hybrid: bool, name: String, kind: Kind) -> Target {
    let reading = match kind {
        Norm if hybrid => Reading::PlusOne,
        Plain | Norm => Reading::Plain,
        Decay => Reading::NegativeExp,
    };
    Target { name, reading }
}

/// The shape that binding expects where the library has a dimension of one more.
pub(super) fn shape(name: &str, shape: &[usize]) -> Vec<usize> {
    match *shape {
        [channels, 1, kernel] if name.ends_with(CONVOLUTION) => vec![channels, kernel],
        [1, hidden] if name.ends_with(SHARED_GATE) => vec![hidden],
        _ => shape.to_vec(),
    }
}
