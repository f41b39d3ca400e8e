//! The forward pass of the decoder family, written once over the op contract.

use crate::ModelConfig;
use crate::weights::{Attention, Delta, Dense, Layer, Mixer, Mlp, Weights};
use laneway_execution::{Drafting, StepBatch, StepOutput};
use laneway_ops::{DeltaRows, Experts, OpError, Ops, Product};

/// Sees the residual stream after a layer: its index, and all rows.
pub(crate) type Probe<'a> = dyn FnMut(usize, &[f32]) + 'a;

/// What sequences leave behind, and how rows are placed in it.
pub(crate) struct Memory<B: Ops> {
    pub kv: B::KvPool,
    pub states: Option<B::StatePool>,
    pub rope: B::Rope,
}

/// The step arena: one set of activations, reused by every layer of every step.
pub(crate) struct Arena<B: Ops> {
    /// The residual stream.
    pub hidden: B::Activations,
    pub normed: B::Activations,
    attention: AttentionArena<B>,
    delta: Option<DeltaArena<B>>,
    inner: B::Activations,
    /// Logits of the experts, and the gate of the shared one.
    router: Option<(B::Activations, B::Activations)>,
    /// Rows of the residual stream that are sampled.
    pub sampled: B::Activations,
    /// Which rows these are.
    pub rows: Vec<usize>,
    /// Every row behind the last norm, for the draft layer.
    pub last: Option<B::Activations>,
}

struct AttentionArena<B: Ops> {
    q: B::Activations,
    k: B::Activations,
    v: B::Activations,
    /// Query and key heads after their norms, for architectures that have them.
    normed_heads: Option<(B::Activations, B::Activations)>,
    gate: Option<B::Activations>,
    read: B::Activations,
}

struct DeltaArena<B: Ops> {
    qkv: B::Activations,
    convolved: B::Activations,
    gate: B::Activations,
    alpha: B::Activations,
    beta: B::Activations,
    read: B::Activations,
    normed: B::Activations,
}

impl<B: Ops> Arena<B> {
    pub fn new(
        backend: &mut B,
        config: &ModelConfig,
        weights: &Weights<B>,
    ) -> Result<Self, OpError> {
        let hidden = config.hidden;
        let (mut head_norms, mut gated) = (false, false);
        let drafts = weights.draft.iter().map(|draft| &draft.layer);
        for layer in weights.layers.iter().chain(drafts) {
            if let Mixer::Attention(attention) = &layer.mixer {
                head_norms |= attention.head_norms.is_some();
                gated |= attention.gate.is_some();
            }
        }
        let last = weights.draft.as_ref().map(|_| backend.new_activations(hidden));
        Ok(Arena {
            hidden: backend.new_activations(hidden)?,
            normed: backend.new_activations(hidden)?,
            attention: AttentionArena::new(backend, config, head_norms, gated)?,
            delta: DeltaArena::new(backend, config)?,
            inner: backend.new_activations(config.inner)?,
            router: match config.experts {
                Some(experts) => {
                    Some((backend.new_activations(experts.count)?, backend.new_activations(1)?))
                }
                None => None,
            },
            sampled: backend.new_activations(hidden)?,
            rows: Vec::new(),
            last: last.transpose()?,
        })
    }
}

impl<B: Ops> AttentionArena<B> {
    fn new(
        backend: &mut B,
        config: &ModelConfig,
        head_norms: bool,
        gated: bool,
    ) -> Result<Self, OpError> {
        let (q, kv) = (config.q_width(), config.kv_width());
        let mut optional =
            |wanted: bool, width| wanted.then(|| backend.new_activations(width)).transpose();
        let (normed_q, normed_k) = (optional(head_norms, q)?, optional(head_norms, kv)?);
        Ok(AttentionArena {
            normed_heads: normed_q.zip(normed_k),
            gate: optional(gated, q)?,
            q: backend.new_activations(q)?,
            k: backend.new_activations(kv)?,
            v: backend.new_activations(kv)?,
            read: backend.new_activations(q)?,
        })
    }
}

impl<B: Ops> DeltaArena<B> {
    fn new(backend: &mut B, config: &ModelConfig) -> Result<Option<Self>, OpError> {
        let Some(spec) = config.delta_spec(0, 0) else { return Ok(None) };
        let (channels, values) = (spec.channels(), spec.value_width());
        Ok(Some(DeltaArena {
            qkv: backend.new_activations(channels)?,
            convolved: backend.new_activations(channels)?,
            gate: backend.new_activations(values)?,
            alpha: backend.new_activations(spec.value_heads)?,
            beta: backend.new_activations(spec.value_heads)?,
            read: backend.new_activations(values)?,
            normed: backend.new_activations(values)?,
        }))
    }
}

/// Runs one validated step, up to its samples.
pub(crate) fn forward<B: Ops>(
    backend: &mut B,
    config: &ModelConfig,
    weights: &Weights<B>,
    memory: &mut Memory<B>,
    arena: &mut Arena<B>,
    batch: &StepBatch,
    output: &mut StepOutput,
    mut probe: Option<&mut Probe<'_>>,
) -> Result<(), OpError> {
    backend.begin_step(batch)?;
    backend.embed(&weights.embedding, &mut arena.hidden)?;
    let (mut attention_layer, mut delta_layer) = (0, 0);
    for (index, layer) in weights.layers.iter().enumerate() {
        let of_its_kind = match layer.mixer {
            Mixer::Attention(_) => &mut attention_layer,
            Mixer::Delta(_) => &mut delta_layer,
        };
        run_layer(backend, config, *of_its_kind, layer, memory, arena)?;
        *of_its_kind += 1;
        if let Some(probe) = &mut probe {
            probe(index, &backend.read(&arena.hidden, batch.rows())?);
        }
    }
    let Arena { hidden, normed, sampled, rows, last, .. } = arena;
    let drafting = batch.segments.iter().any(|segment| segment.drafting != Drafting::Off);
    rows.clear();
    rows.extend(batch.samples.iter().map(|sample| sample.row));
    match last {
        Some(last) if drafting => {
            backend.rms_norm(hidden, &weights.norm, config.norm_epsilon, last)?;
            backend.gather_rows(last, rows, normed)?;
        }
        _ => {
            backend.gather_rows(hidden, rows, sampled)?;
            backend.rms_norm(sampled, &weights.norm, config.norm_epsilon, normed)?;
        }
    }
    if rows.is_empty() {
        return Ok(());
    }
    backend.logits_sample(normed, weights.head(), output)
}

/// `hidden += mixer(norm(hidden))`, then `hidden += mlp(norm(hidden))`; `index` counts layers of
/// the same kind.
pub(crate) fn run_layer<B: Ops>(
    backend: &mut B,
    config: &ModelConfig,
    index: usize,
    layer: &Layer<B>,
    memory: &mut Memory<B>,
    arena: &mut Arena<B>,
) -> Result<(), OpError> {
    backend.rms_norm(&arena.hidden, &layer.norm, config.norm_epsilon, &mut arena.normed)?;
    match &layer.mixer {
        Mixer::Attention(weights) => attention(backend, config, index, weights, memory, arena)?,
        Mixer::Delta(weights) => delta(backend, config, index, weights, memory, arena)?,
    }
    mlp(backend, config, layer, arena)
}

/// `hidden += attention(normed)`.
fn attention<B: Ops>(
    backend: &mut B,
    config: &ModelConfig,
    index: usize,
    weights: &Attention<B>,
    memory: &mut Memory<B>,
    arena: &mut Arena<B>,
) -> Result<(), OpError> {
    let Arena { hidden, normed, attention, .. } = arena;
    let AttentionArena { q, k, v, normed_heads, gate, read } = attention;
    let Memory { kv, rope, .. } = memory;
    let epsilon = config.norm_epsilon;
    backend.linear(normed, &mut [weights.q.onto(q), weights.k.onto(k), weights.v.onto(v)])?;
    let (q, k) = match (&weights.head_norms, normed_heads) {
        (Some((q_norm, k_norm)), Some((normed_q, normed_k))) => {
            backend.rms_norm(q, q_norm, epsilon, normed_q)?;
            backend.rms_norm(k, k_norm, epsilon, normed_k)?;
            (normed_q, normed_k)
        }
        _ => (q, k),
    };
    backend.rope(rope, q)?;
    backend.rope(rope, k)?;
    backend.kv_append(kv, index, k, v)?;
    backend.attention(kv, index, q, config.attention_scale(), read)?;
    if let (Some(matrix), Some(gate)) = (&weights.gate, gate) {
        backend.linear(normed, &mut [onto(matrix, gate)])?;
        backend.sigmoid_gate(gate, read)?;
    }
    accumulate(backend, read, &weights.output, hidden)
}

/// `hidden += delta(normed)`.
fn delta<B: Ops>(
    backend: &mut B,
    config: &ModelConfig,
    index: usize,
    weights: &Delta<B>,
    memory: &mut Memory<B>,
    arena: &mut Arena<B>,
) -> Result<(), OpError> {
    const OP: &str = "gated_delta";
    let missing = || OpError::Shape { op: OP, detail: "the model has no recurrent state".into() };
    let Arena { hidden, normed, delta, .. } = arena;
    let DeltaArena { qkv, convolved, gate, alpha, beta, read, normed: normed_read } =
        delta.as_mut().ok_or_else(missing)?;
    let states = memory.states.as_mut().ok_or_else(missing)?;
    let mut inputs = [
        onto(&weights.qkv, qkv),
        onto(&weights.gate, gate),
        onto(&weights.alpha, alpha),
        onto(&weights.beta, beta),
    ];
    backend.linear(normed, &mut inputs)?;
    backend.causal_conv(states, index, &weights.conv, qkv, convolved)?;
    let (rate, bias) = (&weights.rate, &weights.bias);
    let rows = DeltaRows { qkv: convolved, alpha, beta, rate, bias };
    backend.gated_delta(states, index, rows, read)?;
    backend.gated_rms_norm(read, &weights.norm, config.norm_epsilon, gate, normed_read)?;
    accumulate(backend, normed_read, &weights.output, hidden)
}

/// `hidden += mlp(norm(hidden))`.
fn mlp<B: Ops>(
    backend: &mut B,
    config: &ModelConfig,
    layer: &Layer<B>,
    arena: &mut Arena<B>,
) -> Result<(), OpError> {
    let Arena { hidden, normed, inner, router, .. } = arena;
    backend.rms_norm(hidden, &layer.mlp_norm, config.norm_epsilon, normed)?;
    match (&layer.mlp, router, config.experts) {
        (Mlp::Sparse(sparse), Some((logits, gate)), Some(experts)) => {
            let mut routes = [onto(&sparse.router, logits), onto(&sparse.shared_gate, gate)];
            backend.linear(normed, &mut routes)?;
            let (chosen, down) = (experts.chosen, &sparse.down);
            let experts = Experts { gate: &sparse.gate, up: &sparse.up, down, chosen };
            backend.sparse_moe(normed, logits, experts, hidden)?;
            let Dense { gate: shared, up, down } = &sparse.shared;
            backend.gate_up_swiglu(normed, shared, up, inner)?;
            // A factor of a whole row may as well stand before the last product.
            backend.sigmoid_gate(gate, inner)?;
            accumulate(backend, inner, down, hidden)
        }
        (Mlp::Dense(Dense { gate, up, down }), ..) => {
            backend.gate_up_swiglu(normed, gate, up, inner)?;
            accumulate(backend, inner, down, hidden)
        }
        _ => Err(OpError::Shape { op: "sparse_moe", detail: "the model has no experts".into() }),
    }
}

/// A product that replaces `out`.
pub(crate) fn onto<'a, B: Ops>(
    matrix: &'a B::Matrix,
    out: &'a mut B::Activations,
) -> Product<'a, B> {
    Product { matrix, bias: None, out, accumulate: false }
}

/// `out += x · matrixᵀ`.
pub(crate) fn accumulate<B: Ops>(
    backend: &mut B,
    x: &B::Activations,
    matrix: &B::Matrix,
    out: &mut B::Activations,
) -> Result<(), OpError> {
    backend.linear(x, &mut [Product { matrix, bias: None, out, accumulate: true }])
}
