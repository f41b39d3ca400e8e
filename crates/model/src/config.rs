//! The sizes of a decoder, read from a file's metadata and checked for sense.

use crate::bind::EMBEDDING;
use crate::file::Metadata;
use crate::{Architecture, LoadError, ModelFile, RopeScaling};
use laneway_execution::{Geometry, PAGE_TOKENS};
use laneway_numerics::KvDtype;
use laneway_plan::KvShape;

/// Sizes and constants of a decoder of the Llama family.
#[derive(Clone, Debug, PartialEq)]
pub struct LlamaConfig {
    /// Vocabulary entries: rows of the embedding.
    pub vocabulary: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width inside the MLP.
    pub inner: usize,
    /// Layers.
    pub layers: usize,
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

impl LlamaConfig {
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
        let config = LlamaConfig {
            vocabulary: vocabulary(file)?,
            hidden,
            inner: metadata.size("feed_forward_length")?,
            layers: metadata.size("block_count")?,
            heads,
            kv_heads: metadata.size_or("attention.head_count_kv", heads)?,
            head_dim,
            rotary_dims: metadata.size_or("rope.dimension_count", head_dim)?,
            rope_base: metadata.positive_or("rope.freq_base", 10_000.0)?,
            rope_scaling: rope_scaling(&metadata)?,
            norm_epsilon: metadata.positive("attention.layer_norm_rms_epsilon")?,
            context: metadata.size("context_length")?,
        };
        config.check(&metadata, file)?;
        Ok(config)
    }

    fn check(&self, metadata: &Metadata<'_>, file: &dyn ModelFile) -> Result<(), LoadError> {
        let &LlamaConfig { hidden, layers, heads, kv_heads, head_dim, rotary_dims, .. } = self;
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
            if metadata.count(key)? > 0 {
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

    /// What one token adds to the KV pool, for planning.
    #[must_use]
    pub const fn kv_shape(&self) -> KvShape {
        KvShape {
            layers: self.layers as u64,
            kv_heads: self.kv_heads as u64,
            head_dim: self.head_dim as u64,
        }
    }

    /// The facts that scheduling and planning need.
    #[must_use]
    pub fn geometry(&self, kv_dtype: KvDtype) -> Geometry {
        let page_bytes = self.kv_shape().bytes(PAGE_TOKENS as u64, kv_dtype.into());
        Geometry {
            vocab_size: self.vocabulary,
            native_context: self.context,
            page_bytes: usize::try_from(page_bytes).unwrap_or(usize::MAX),
            state_bytes: 0,
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
