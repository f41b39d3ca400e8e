//! The tensors that an architecture implies, and a file's checked against them.

use crate::{Architecture, ExpertsConfig, FileTensor, LoadError, ModelConfig, ModelFile};
use laneway_ops::Ops;
use std::collections::BTreeMap;

pub(crate) const EMBEDDING: &str = "token_embd.weight";
pub(crate) const NORM: &str = "output_norm.weight";
pub(crate) const HEAD: &str = "output.weight";
/// Frequency factors of Llama 3's context extension, one a rotated pair.
pub(crate) const ROPE_FACTORS: &str = "rope_freqs.weight";
/// Gates and ups of all experts of a layer in one tensor.
pub(crate) const JOINED_EXPERTS: &str = "ffn_gate_up_exps.weight";

/// What becomes of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// A vector in f32.
    Vector,
    /// One matrix.
    Matrix,
    /// One matrix: what is left of the dimensions when the last one is the columns.
    Stacked,
    /// Two matrices whose rows alternate, so many at a time: queries and gates by heads, gates and
    /// ups by experts.
    AlternatingRows(usize),
    /// Two matrices: the first and the second half of the columns.
    HalvedColumns,
}

/// A tensor that an architecture implies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    pub used_as: Use,
    /// It belongs to the draft layer.
    pub draft: bool,
}

/// The file's tensors by name, all of them known and of the right shape.
pub(crate) struct Inventory<'a> {
    tensors: BTreeMap<&'a str, (FileTensor<'a>, Expected)>,
    pub tied: bool,
    pub rope_factors: bool,
    /// Gates and ups of experts are one tensor.
    pub joined_experts: bool,
}

/// What files of one architecture may have or not.
#[derive(Clone, Copy)]
struct Optional {
    tied: bool,
    rope_factors: bool,
    joined_experts: bool,
}

impl<'a> Inventory<'a> {
    pub fn take(
        architecture: &Architecture,
        config: &ModelConfig,
        file: &'a dyn ModelFile,
    ) -> Result<Self, LoadError> {
        let mut found: BTreeMap<_, _> = file.tensors().into_iter().map(|t| (t.name, t)).collect();
        let optional = Optional {
            tied: !found.contains_key(HEAD),
            rope_factors: found.contains_key(ROPE_FACTORS),
            joined_experts: found.contains_key(layer_tensor(0, JOINED_EXPERTS).as_str()),
        };
        let Optional { tied, rope_factors, joined_experts } = optional;
        let mut tensors = BTreeMap::new();
        for (name, expected) in expected(architecture, config, optional) {
            let Some(tensor) = found.remove(name.as_str()) else {
                return Err(LoadError::MissingTensor { name, expected: expected.shape });
            };
            if tensor.shape != expected.shape {
                let (found, expected) = (tensor.shape, expected.shape);
                return Err(LoadError::TensorShape { name, found, expected });
            }
            tensors.insert(tensor.name, (tensor, expected));
        }
        let names: Vec<_> = found.values().map(|t| format!("{} {:?}", t.name, t.shape)).collect();
        if names.is_empty() {
            Ok(Inventory { tensors, tied, rope_factors, joined_experts })
        } else {
            Err(LoadError::UnknownTensors { architecture: architecture.name, names })
        }
    }

    /// A tensor that the architecture implies.
    pub fn get(&self, name: &str) -> (&FileTensor<'a>, Use) {
        let (tensor, expected) = &self.tensors[name];
        (tensor, expected.used_as)
    }

    /// The tensors that are used; without `drafting` those of the draft layer are not.
    pub fn used(&self, drafting: bool) -> impl Iterator<Item = (&FileTensor<'a>, Use)> {
        let used = self.tensors.values().filter(move |(_, e)| drafting || !e.draft);
        used.map(|(tensor, expected)| (tensor, expected.used_as))
    }

    /// Bytes of all used weights once packed: matrices as the backend has them, vectors in f32.
    pub fn packed_bytes<B: Ops>(&self, backend: &B, drafting: bool) -> u64 {
        let bytes = |(tensor, used_as): (&FileTensor<'_>, Use)| {
            let matrix = |rows, cols| backend.packed_bytes(tensor.format, rows, cols);
            let (rows, cols) = tensor.rows_and_columns();
            match used_as {
                Use::Vector => tensor.elements() * size_of::<f32>(),
                Use::Matrix | Use::Stacked => matrix(rows, cols),
                Use::AlternatingRows(_) => 2 * matrix(rows / 2, cols),
                Use::HalvedColumns => 2 * matrix(rows, cols / 2),
            }
        };
        self.used(drafting).map(|tensor| bytes(tensor) as u64).sum()
    }
}

pub(crate) fn layer_tensor(layer: usize, name: &str) -> String {
    format!("blk.{layer}.{name}")
}

/// Every tensor that an architecture implies.
fn expected(
    architecture: &Architecture,
    config: &ModelConfig,
    optional: Optional,
) -> BTreeMap<String, Expected> {
    let &ModelConfig { vocabulary, hidden, layers, .. } = config;
    let Optional { tied, rope_factors, joined_experts } = optional;
    let mut list = List { tensors: BTreeMap::new(), joined_experts, draft: false };
    list.matrix(EMBEDDING.to_owned(), vocabulary, hidden);
    list.vector(NORM.to_owned(), hidden);
    if !tied {
        list.matrix(HEAD.to_owned(), vocabulary, hidden);
    }
    if rope_factors {
        list.vector(ROPE_FACTORS.to_owned(), config.rotary_dims / 2);
    }
    for layer in 0..layers {
        list.layer(architecture, config, layer, config.has_attention(layer));
    }
    if config.draft_layer {
        list.draft = true;
        list.layer(architecture, config, layers, true);
        for norm in ["enorm", "hnorm", "shared_head_norm"] {
            list.vector(layer_tensor(layers, &format!("nextn.{norm}.weight")), hidden);
        }
        let joined = layer_tensor(layers, "nextn.eh_proj.weight");
        list.add(joined, vec![hidden, 2 * hidden], Use::HalvedColumns);
    }
    list.tensors
}

struct List {
    tensors: BTreeMap<String, Expected>,
    joined_experts: bool,
    draft: bool,
}

impl List {
    fn add(&mut self, name: String, shape: Vec<usize>, used_as: Use) {
        self.tensors.insert(name, Expected { shape, used_as, draft: self.draft });
    }

    fn vector(&mut self, name: String, width: usize) {
        self.add(name, vec![width], Use::Vector);
    }

    fn matrix(&mut self, name: String, rows: usize, cols: usize) {
        self.add(name, vec![rows, cols], Use::Matrix);
    }

    fn layer(
        &mut self,
        architecture: &Architecture,
        config: &ModelConfig,
        layer: usize,
        attention: bool,
    ) {
        let &ModelConfig { hidden, inner, .. } = config;
        let name = |name: &str| layer_tensor(layer, name);
        self.vector(name("attn_norm.weight"), hidden);
        match config.delta {
            Some(delta) if !attention => self.delta(&name, hidden, &delta.spec(1, 0, 0)),
            _ => self.attention(&name, architecture, config),
        }
        self.vector(name(&format!("{}.weight", architecture.mlp_norm)), hidden);
        let suffix = if config.experts.is_some() { "_shexp" } else { "" };
        self.matrix(name(&format!("ffn_gate{suffix}.weight")), inner, hidden);
        self.matrix(name(&format!("ffn_up{suffix}.weight")), inner, hidden);
        self.matrix(name(&format!("ffn_down{suffix}.weight")), hidden, inner);
        if let Some(experts) = &config.experts {
            self.experts(&name, hidden, experts);
        }
    }

    fn experts(
        &mut self,
        name: &dyn Fn(&str) -> String,
        hidden: usize,
        &ExpertsConfig { count, inner, .. }: &ExpertsConfig,
    ) {
        self.matrix(name("ffn_gate_inp.weight"), count, hidden);
        self.add(name("ffn_gate_inp_shexp.weight"), vec![hidden], Use::Stacked);
        if self.joined_experts {
            let shape = vec![count, 2 * inner, hidden];
            self.add(name(JOINED_EXPERTS), shape, Use::AlternatingRows(inner));
        } else {
            for part in ["ffn_gate_exps.weight", "ffn_up_exps.weight"] {
                self.add(name(part), vec![count, inner, hidden], Use::Stacked);
            }
        }
        self.add(name("ffn_down_exps.weight"), vec![count, hidden, inner], Use::Stacked);
    }

    fn attention(
        &mut self,
        name: &dyn Fn(&str) -> String,
        architecture: &Architecture,
        config: &ModelConfig,
    ) {
        let &ModelConfig { hidden, head_dim, .. } = config;
        let (q, kv) = (config.q_width(), config.kv_width());
        for (part, width) in [("attn_q", q), ("attn_k", kv), ("attn_v", kv)] {
            let weight = name(&format!("{part}.weight"));
            if architecture.hybrid && part == "attn_q" {
                self.add(weight, vec![2 * q, hidden], Use::AlternatingRows(head_dim));
            } else {
                self.matrix(weight, width, hidden);
            }
            if architecture.qkv_bias {
                self.vector(name(&format!("{part}.bias")), width);
            }
        }
        if architecture.head_norm {
            self.vector(name("attn_q_norm.weight"), head_dim);
            self.vector(name("attn_k_norm.weight"), head_dim);
        }
        self.matrix(name("attn_output.weight"), hidden, q);
    }

    fn delta(
        &mut self,
        name: &dyn Fn(&str) -> String,
        hidden: usize,
        spec: &laneway_ops::DeltaSpec,
    ) {
        self.matrix(name("attn_qkv.weight"), spec.channels(), hidden);
        self.matrix(name("attn_gate.weight"), spec.value_width(), hidden);
        self.matrix(name("ssm_alpha.weight"), spec.value_heads, hidden);
        self.matrix(name("ssm_beta.weight"), spec.value_heads, hidden);
        self.add(name("ssm_conv1d.weight"), vec![spec.channels(), spec.kernel], Use::Vector);
        self.vector(name("ssm_a"), spec.value_heads);
        self.vector(name("ssm_dt.bias"), spec.value_heads);
        self.vector(name("ssm_norm.weight"), spec.value_dim);
        self.matrix(name("ssm_out.weight"), hidden, spec.value_width());
    }
}
