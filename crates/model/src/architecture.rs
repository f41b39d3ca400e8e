//! Architectures as data: what distinguishes one decoder from another of the same family.

use laneway_ops::RopeStyle;

/// A decoder with pre-norm RMSNorm, grouped-query attention, rotary positions and SwiGLU.
///
/// One forward pass serves all of them; it reads these facts and the tensors that they imply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Architecture {
    /// Value of `general.architecture`, and prefix of the metadata keys.
    pub name: &'static str,
    /// Which elements of a head rotate together, in the order of the file's weights.
    pub rope_style: RopeStyle,
    /// Query, key and value projections have biases.
    pub qkv_bias: bool,
    /// Query and key heads are normed before they are rotated.
    pub head_norm: bool,
}

/// Llama, and what is published as such: SmolLM2, Mistral, TinyLlama, …
pub const LLAMA: Architecture = Architecture {
    name: "llama",
    rope_style: RopeStyle::Interleaved,
    qkv_bias: false,
    head_norm: false,
};

/// Every supported architecture.
pub const ARCHITECTURES: &[Architecture] = &[LLAMA];

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
}
