//! Architectures as data: what distinguishes one decoder from another of the same family.

use crate::Layout;
use laneway_ops::RopeStyle;

/// A decoder with pre-norm RMSNorm, grouped-query attention, rotary positions and SwiGLU, in which
/// some layers may have the gated delta rule in place of attention.
///
/// One forward pass serves all of them; it reads these facts and the tensors that they imply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Architecture {
    /// Value of `general.architecture`, and prefix of the metadata keys.
    pub name: &'static str,
    /// Which elements of a head rotate together, in the order of a GGUF file's rows.
    pub(crate) gguf_rope_style: RopeStyle,
    /// Query, key and value projections have biases.
    pub qkv_bias: bool,
    /// Query and key heads are normed before they are rotated.
    pub head_norm: bool,
    /// Name of the norm before the MLP.
    pub mlp_norm: &'static str,
    /// Gated delta layers between layers of gated attention, and perhaps a draft layer behind all.
    pub hybrid: bool,
    /// The MLP is a sparse mixture of experts beside a shared one.
    pub sparse: bool,
}

/// Llama, and what is published as such: SmolLM2, Mistral, TinyLlama, …
pub const LLAMA: Architecture = Architecture {
    name: "llama",
    gguf_rope_style: RopeStyle::Interleaved,
    qkv_bias: false,
    head_norm: false,
    mlp_norm: "ffn_norm",
    hybrid: false,
    sparse: false,
};

/// Qwen2 and Qwen2.5.
pub const QWEN2: Architecture =
    Architecture { name: "qwen2", gguf_rope_style: RopeStyle::Halves, qkv_bias: true, ..LLAMA };

/// Qwen3, dense.
pub const QWEN3: Architecture =
    Architecture { name: "qwen3", gguf_rope_style: RopeStyle::Halves, head_norm: true, ..LLAMA };

/// Qwen3.5, dense: the text model.
pub const QWEN35: Architecture =
    Architecture { name: "qwen35", mlp_norm: "post_attention_norm", hybrid: true, ..QWEN3 };

/// Qwen3.5 with a mixture of experts: the text model.
pub const QWEN35MOE: Architecture = Architecture { name: "qwen35moe", sparse: true, ..QWEN35 };

/// Every supported architecture.
pub const ARCHITECTURES: &[Architecture] = &[LLAMA, QWEN2, QWEN3, QWEN35, QWEN35MOE];

impl Architecture {
    /// The architecture of a `general.architecture` value.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        ARCHITECTURES.iter().copied().find(|architecture| architecture.name == name)
    }

    /// The supported names, comma-separated, for messages.
    #[must_use]
    pub fn name_list() -> String {
        ARCHITECTURES.iter().map(|a| a.name).collect::<Vec<_>>().join(", ")
    }

    /// Which elements of a head rotate together, in the order of a file's rows.
    #[must_use]
    pub const fn rope_style(&self, layout: Layout) -> RopeStyle {
        match layout {
            Layout::Gguf => self.gguf_rope_style,
            Layout::HuggingFace => RopeStyle::Halves,
        }
    }
}
