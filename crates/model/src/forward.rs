//! The forward pass of the decoder family, written once over the op contract.

use crate::{Architecture, LlamaConfig};
use laneway_execution::{StepBatch, StepOutput};
use laneway_ops::{OpError, Ops, Product};

/// Sees the residual stream after a layer: its index, and all rows.
pub(crate) type Probe<'a> = dyn FnMut(usize, &[f32]) + 'a;

/// Packed weights.
pub(crate) struct Weights<B: Ops> {
    pub embedding: B::Matrix,
    pub layers: Vec<Layer<B>>,
    pub norm: B::Vector,
    /// None if the embedding is the output head too.
    pub head: Option<B::Matrix>,
}

/// Packed weights of one layer.
pub(crate) struct Layer<B: Ops> {
    pub attention_norm: B::Vector,
    pub q: Projection<B>,
    pub k: Projection<B>,
    pub v: Projection<B>,
    /// Norms of query and key heads.
    pub head_norms: Option<(B::Vector, B::Vector)>,
    pub output: B::Matrix,
    pub mlp_norm: B::Vector,
    pub gate: B::Matrix,
    pub up: B::Matrix,
    pub down: B::Matrix,
}

/// A matrix that may have a bias.
pub(crate) struct Projection<B: Ops> {
    pub matrix: B::Matrix,
    pub bias: Option<B::Vector>,
}

impl<B: Ops> Projection<B> {
    fn onto<'a>(&'a self, out: &'a mut B::Activations) -> Product<'a, B> {
        Product { matrix: &self.matrix, bias: self.bias.as_ref(), out, accumulate: false }
    }
}

/// The step arena: one set of activations, reused by every layer of every step.
pub(crate) struct Arena<B: Ops> {
    /// The residual stream.
    hidden: B::Activations,
    normed: B::Activations,
    q: B::Activations,
    k: B::Activations,
    v: B::Activations,
    /// Query and key heads after their norms, for architectures that have them.
    normed_heads: Option<(B::Activations, B::Activations)>,
    attended: B::Activations,
    inner: B::Activations,
    /// Rows of the residual stream that are sampled.
    sampled: B::Activations,
}

impl<B: Ops> Arena<B> {
    pub fn new(
        backend: &mut B,
        config: &LlamaConfig,
        architecture: &Architecture,
    ) -> Result<Self, OpError> {
        let (hidden, q, kv) = (config.hidden, config.q_width(), config.kv_width());
        let normed_heads = if architecture.head_norm {
            Some((backend.new_activations(q)?, backend.new_activations(kv)?))
        } else {
            None
        };
        Ok(Arena {
            hidden: backend.new_activations(hidden)?,
            normed: backend.new_activations(hidden)?,
            q: backend.new_activations(q)?,
            k: backend.new_activations(kv)?,
            v: backend.new_activations(kv)?,
            normed_heads,
            attended: backend.new_activations(q)?,
            inner: backend.new_activations(config.inner)?,
            sampled: backend.new_activations(hidden)?,
        })
    }
}

/// Runs one validated step.
pub(crate) fn forward<B: Ops>(
    backend: &mut B,
    config: &LlamaConfig,
    weights: &Weights<B>,
    rope: &B::Rope,
    pool: &mut B::KvPool,
    arena: &mut Arena<B>,
    batch: &StepBatch,
    output: &mut StepOutput,
    mut probe: Option<&mut Probe<'_>>,
) -> Result<(), OpError> {
    let epsilon = config.norm_epsilon;
    backend.begin_step(batch)?;
    backend.embed(&weights.embedding, &mut arena.hidden)?;
    for (index, layer) in weights.layers.iter().enumerate() {
        attention(backend, config, index, layer, rope, pool, arena)?;
        mlp(backend, config, layer, arena)?;
        if let Some(probe) = &mut probe {
            probe(index, &backend.read(&arena.hidden, batch.rows())?);
        }
    }
    if batch.samples.is_empty() {
        return Ok(());
    }
    let Arena { hidden, normed, sampled, .. } = arena;
    backend.gather_samples(hidden, sampled)?;
    backend.rms_norm(sampled, &weights.norm, epsilon, normed)?;
    backend.logits_sample(normed, weights.head.as_ref().unwrap_or(&weights.embedding), output)
}

/// `hidden += attention(norm(hidden))`.
fn attention<B: Ops>(
    backend: &mut B,
    config: &LlamaConfig,
    index: usize,
    layer: &Layer<B>,
    rope: &B::Rope,
    pool: &mut B::KvPool,
    arena: &mut Arena<B>,
) -> Result<(), OpError> {
    let Arena { hidden, normed, q, k, v, normed_heads, attended, .. } = arena;
    let epsilon = config.norm_epsilon;
    backend.rms_norm(hidden, &layer.attention_norm, epsilon, normed)?;
    backend.linear(normed, &mut [layer.q.onto(q), layer.k.onto(k), layer.v.onto(v)])?;
    let (q, k) = match (&layer.head_norms, normed_heads) {
        (Some((q_norm, k_norm)), Some((normed_q, normed_k))) => {
            backend.rms_norm(q, q_norm, epsilon, normed_q)?;
            backend.rms_norm(k, k_norm, epsilon, normed_k)?;
            (normed_q, normed_k)
        }
        _ => (q, k),
    };
    backend.rope(rope, q)?;
    backend.rope(rope, k)?;
    backend.kv_append(pool, index, k, v)?;
    backend.attention(pool, index, q, config.attention_scale(), attended)?;
    accumulate(backend, attended, &layer.output, hidden)
}

/// `hidden += mlp(norm(hidden))`.
fn mlp<B: Ops>(
    backend: &mut B,
    config: &LlamaConfig,
    layer: &Layer<B>,
    arena: &mut Arena<B>,
) -> Result<(), OpError> {
    let Arena { hidden, normed, inner, .. } = arena;
    backend.rms_norm(hidden, &layer.mlp_norm, config.norm_epsilon, normed)?;
    backend.gate_up_swiglu(normed, &layer.gate, &layer.up, inner)?;
    accumulate(backend, inner, &layer.down, hidden)
}

fn accumulate<B: Ops>(
    backend: &mut B,
    x: &B::Activations,
    matrix: &B::Matrix,
    out: &mut B::Activations,
) -> Result<(), OpError> {
    backend.linear(x, &mut [Product { matrix, bias: None, out, accumulate: true }])
}
