//! The sizes of a decoder, read from a file's metadata and checked for sense.

use crate::file::Metadata;
use crate::inventory::EMBEDDING;
use crate::{Architecture, Layout, LoadError, ModelFile, RopeScaling};
use laneway_execution::{Geometry, PAGE_TOKENS};
use laneway_numerics::KvDtype;
use laneway_ops::{DeltaSpec, HeadSharing};
use laneway_plan::KvShape;

/// Sizes and constants of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Vocabulary entries: rows of the embedding.
    pub vocabulary: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width inside the MLP; of the shared one where there are experts.
    pub inner: usize,
    /// Experts, if there are any.
    pub experts: Option<ExpertsConfig>,
    /// Layers, the draft layer not counted.
    pub layers: usize,
    /// Gated delta layers, if there are any.
    pub delta: Option<DeltaConfig>,
    /// A draft layer stands behind the layers (multi-token prediction).
    pub draft_layer: bool,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; a divisor of `heads`.
    pub kv_heads: usize,
    /// Elements of one head.
    pub head_dim: usize,
    /// Elements of a head that are rotated, the first ones.
    pub rotary_dims: usize,
    /// Base of the rotation frequencies.
    pub rope_base: f32,
    /// Stretching of positions.
    pub rope_scaling: RopeScaling,
    /// Added to the mean square of every norm.
    pub norm_epsilon: f32,
    /// Longest context the model was trained for, in tokens.
    pub context: usize,
}

/// The sparse mixture of experts in each layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertsConfig {
    /// Experts of a layer.
    pub count: usize,
    /// Experts that each row goes to.
    pub chosen: usize,
    /// Width inside an expert.
    pub inner: usize,
}

impl ExpertsConfig {
    fn read(metadata: &Metadata<'_>) -> Result<Self, LoadError> {
        let used = "expert_used_count";
        let (count, chosen) = (metadata.size("expert_count")?, metadata.size(used)?);
        if chosen > count {
            return Err(metadata.error(used, format!("{chosen} of {count} experts")));
        }
        Ok(ExpertsConfig { count, chosen, inner: metadata.size("expert_feed_forward_length")? })
    }
}

/// Gated delta layers among a decoder's layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaConfig {
    /// Every so many layers the last one has attention instead.
    pub attention_interval: usize,
    /// Rows that the convolution sees, its own included.
    pub kernel: usize,
    /// Heads of queries and of keys.
    pub key_heads: usize,
    /// Heads of values, a multiple of `key_heads`.
    pub value_heads: usize,
    /// Elements of a query or key head.
    pub key_dim: usize,
    /// Elements of a value head.
    pub value_dim: usize,
    /// How value heads share key heads, in the order of the file's rows.
    pub sharing: HeadSharing,
}

impl DeltaConfig {
    fn read(metadata: &Metadata<'_>, layout: Layout) -> Result<Self, LoadError> {
        let (key_heads, value_heads) =
            (metadata.size("ssm.group_count")?, metadata.size("ssm.time_step_rank")?);
        let inner = metadata.size("ssm.inner_size")?;
        let delta = DeltaConfig {
            attention_interval: metadata.size("full_attention_interval")?,
            kernel: metadata.size("ssm.conv_kernel")?,
            key_heads,
            value_heads,
            key_dim: metadata.size("ssm.state_size")?,
            value_dim: inner / value_heads,
            sharing: match layout {
                Layout::Gguf => HeadSharing::Tiled,
                Layout::HuggingFace => HeadSharing::Grouped,
            },
        };
        if !inner.is_multiple_of(value_heads) {
            let detail = format!("{inner} elements in {value_heads} value heads");
            return Err(metadata.error("ssm.inner_size", detail));
        }
        match delta.spec(1, 0, 0).fault() {
            Some(fault) => Err(metadata.error("ssm.group_count", fault)),
            None => Ok(delta),
        }
    }

    /// The shape of so many layers' state in a pool.
    #[must_use]
    pub const fn spec(&self, layers: usize, slots: usize, drafts: usize) -> DeltaSpec {
        let &DeltaConfig { kernel, key_heads, value_heads, key_dim, value_dim, sharing, .. } = self;
        DeltaSpec {
            layers,
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            kernel,
            sharing,
            slots,
            drafts,
        }
    }
}

impl ModelConfig {
    /// Reads the sizes that `file` states for its architecture.
    ///
    /// # Errors
    /// An unsupported architecture, or metadata that is missing or makes no sense.
    pub fn from_file(file: &dyn ModelFile) -> Result<Self, LoadError> {
        Self::read(&crate::file::architecture(file)?, file)
    }

    pub(crate) fn read(
        architecture: &Architecture,
        file: &dyn ModelFile,
    ) -> Result<Self, LoadError> {
        let metadata = Metadata::new(architecture, file);
        let heads = metadata.size("attention.head_count")?;
        let hidden = metadata.size("embedding_length")?;
        let head_dim = metadata.size_or("attention.key_length", hidden / heads)?;
        let blocks = metadata.size("block_count")?;
        let draft_layers = metadata.count("nextn_predict_layers")?;
        let delta = match architecture.hybrid {
            true => Some(DeltaConfig::read(&metadata, file.layout())?),
            false => None,
        };
        let config = ModelConfig {
            vocabulary: vocabulary(file)?,
            hidden,
            inner: metadata.size(match architecture.sparse {
                true => "expert_shared_feed_forward_length",
                false => "feed_forward_length",
            })?,
            experts: match architecture.sparse {
                true => Some(ExpertsConfig::read(&metadata)?),
                false => None,
            },
            layers: blocks.saturating_sub(draft_layers),
            delta,
            draft_layer: draft_layers > 0,
            heads,
            kv_heads: metadata.size_or("attention.head_count_kv", heads)?,
            head_dim,
            rotary_dims: metadata.size_or("rope.dimension_count", head_dim)?,
            rope_base: metadata.positive_or("rope.freq_base", 10_000.0)?,
            rope_scaling: rope_scaling(&metadata)?,
            norm_epsilon: metadata.positive("attention.layer_norm_rms_epsilon")?,
            context: metadata.size("context_length")?,
        };
        let drafts = "nextn_predict_layers";
        if draft_layers > usize::from(architecture.hybrid) || draft_layers >= blocks {
            let detail = format!("{draft_layers} draft layers of {blocks} are not supported");
            return Err(metadata.error(drafts, detail));
        }
        config.check(&metadata, file)?;
        Ok(config)
    }

    fn check(&self, metadata: &Metadata<'_>, file: &dyn ModelFile) -> Result<(), LoadError> {
        let &ModelConfig { hidden, layers, heads, kv_heads, head_dim, rotary_dims, .. } = self;
        let tensors = file.tensors().len();
        let checks = [
            ("block_count", layers <= tensors, format!("{layers} layers in {tensors} tensors")),
            (
                "attention.head_count_kv",
                heads.is_multiple_of(kv_heads),
                format!("{heads} query heads do not share {kv_heads} key/value heads evenly"),
            ),
            (
                "attention.key_length",
                head_dim > 0 && head_dim.is_multiple_of(2),
                format!("heads of {head_dim} elements (hidden {hidden}, {heads} heads)"),
            ),
            (
                "rope.dimension_count",
                rotary_dims.is_multiple_of(2) && rotary_dims <= head_dim,
                format!("{rotary_dims} rotated elements in heads of {head_dim}"),
            ),
        ];
        for (key, holds, detail) in checks {
            if !holds {
                return Err(metadata.error(key, detail));
            }
        }
        for (key, feature) in [
            ("expert_count", "mixture of experts"),
            ("attention.sliding_window_pattern", "layers of several kinds of attention"),
        ] {
            let known = key == "expert_count" && self.experts.is_some();
            if !known && metadata.count(key)? > 0 {
                return Err(metadata.error(key, format!("{feature} is not supported")));
            }
        }
        let value_dim = metadata.size_or("attention.value_length", head_dim)?;
        if value_dim != head_dim {
            let detail = format!("values of {value_dim} elements beside keys of {head_dim}");
            return Err(metadata.error("attention.value_length", detail));
        }
        Ok(())
    }

    /// Elements of all query heads.
    #[must_use]
    pub const fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Elements of all key heads, and of all value heads.
    #[must_use]
    pub const fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Factor of attention scores.
    pub(crate) fn attention_scale(&self) -> f32 {
        (self.head_dim as f32).sqrt().recip()
    }

    /// True if a layer has attention; the others have the gated delta rule.
    #[must_use]
    pub const fn has_attention(&self, layer: usize) -> bool {
        match self.delta {
            Some(delta) => (layer + 1).is_multiple_of(delta.attention_interval),
            None => true,
        }
    }

    /// Layers with attention.
    #[must_use]
    pub const fn attention_layers(&self) -> usize {
        match self.delta {
            Some(delta) => self.layers / delta.attention_interval,
            None => self.layers,
        }
    }

    /// Layers of the KV pool: those with attention and, when it is used, the draft layer.
    #[must_use]
    pub const fn kv_layers(&self, drafting: bool) -> usize {
        self.attention_layers() + (drafting && self.draft_layer) as usize
    }

    /// The shape of the recurrent state, for models that have one.
    #[must_use]
    pub fn delta_spec(&self, slots: usize, drafts: usize) -> Option<DeltaSpec> {
        self.delta.map(|delta| delta.spec(self.layers - self.attention_layers(), slots, drafts))
    }

    /// What one token adds to the KV pool, for planning.
    #[must_use]
    pub const fn kv_shape(&self, drafting: bool) -> KvShape {
        KvShape {
            layers: self.kv_layers(drafting) as u64,
            kv_heads: self.kv_heads as u64,
            head_dim: self.head_dim as u64,
        }
    }

    /// The facts that scheduling and planning need; `drafting` says whether the draft layer is
    /// used.
    #[must_use]
    pub fn geometry(&self, kv_dtype: KvDtype, drafting: bool) -> Geometry {
        let page_bytes = self.kv_shape(drafting).bytes(PAGE_TOKENS as u64, kv_dtype.into());
        Geometry {
            vocab_size: self.vocabulary,
            native_context: self.context,
            page_bytes: usize::try_from(page_bytes).unwrap_or(usize::MAX),
            state_bytes: self.delta_spec(1, 0).map_or(0, |spec| spec.image_bytes()),
        }
    }
}

/// Rows of the embedding: files pad it beyond the tokenizer's tokens, never the other way.
fn vocabulary(file: &dyn ModelFile) -> Result<usize, LoadError> {
    const TOKENS: &str = "tokenizer.ggml.tokens";
    let embedding = file.tensors().into_iter().find(|tensor| tensor.name == EMBEDDING);
    // If it is missing or no matrix, the inventory says so with the shape expected here.
    let rows = embedding.and_then(|tensor| tensor.shape.first().copied());
    let error = |detail| LoadError::Metadata { key: TOKENS.to_owned(), detail };
    let tokens = file.array_len(TOKENS).map_err(error)?;
    match (rows, tokens) {
        (Some(rows), Some(tokens)) if tokens > rows => {
            Err(error(format!("{tokens} tokens, {EMBEDDING} has {rows} rows")))
        }
        _ => Ok(rows.or(tokens).unwrap_or(0)),
    }
}

fn rope_scaling(metadata: &Metadata<'_>) -> Result<RopeScaling, LoadError> {
    const TYPE: &str = "rope.scaling.type";
    match metadata.text_or(TYPE, "none")? {
        "none" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: metadata.positive("rope.scaling.factor")? }),
        other => {
            let detail = format!("{other:?} is not supported (supported: none, linear)");
            Err(metadata.error(TYPE, detail))
        }
    }
}
