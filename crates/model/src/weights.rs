//! Packed weights of a decoder.

use laneway_ops::{Ops, Product};

/// All of them.
pub(crate) struct Weights<B: Ops> {
    pub embedding: B::Matrix,
    pub layers: Vec<Layer<B>>,
    pub norm: B::Vector,
    /// None if the embedding is the output head too.
    pub head: Option<B::Matrix>,
    pub draft: Option<Draft<B>>,
}

impl<B: Ops> Weights<B> {
    /// The output head.
    pub fn head(&self) -> &B::Matrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}

/// One layer.
pub(crate) struct Layer<B: Ops> {
    pub norm: B::Vector,
    pub mixer: Mixer<B>,
    pub mlp_norm: B::Vector,
    pub mlp: Mlp<B>,
}

/// What lets rows of a sequence see each other.
pub(crate) enum Mixer<B: Ops> {
    Attention(Attention<B>),
    Delta(Delta<B>),
}

/// Grouped-query attention.
pub(crate) struct Attention<B: Ops> {
    pub q: Projection<B>,
    /// Gates what was read.
    pub gate: Option<B::Matrix>,
    pub k: Projection<B>,
    pub v: Projection<B>,
    /// Norms of query and key heads.
    pub head_norms: Option<(B::Vector, B::Vector)>,
    pub output: B::Matrix,
}

/// Gated delta rule behind a short convolution.
pub(crate) struct Delta<B: Ops> {
    pub qkv: B::Matrix,
    /// Gates what was read.
    pub gate: B::Matrix,
    pub alpha: B::Matrix,
    pub beta: B::Matrix,
    pub conv: B::Vector,
    pub rate: B::Vector,
    pub bias: B::Vector,
    pub norm: B::Vector,
    pub output: B::Matrix,
}

/// What every row goes through by itself.
pub(crate) enum Mlp<B: Ops> {
    Dense(Dense<B>),
    Sparse(Sparse<B>),
}

/// SwiGLU.
pub(crate) struct Dense<B: Ops> {
    pub gate: B::Matrix,
    pub up: B::Matrix,
    pub down: B::Matrix,
}

/// A mixture of experts, and a shared expert behind a gate of its own.
pub(crate) struct Sparse<B: Ops> {
    pub router: B::Matrix,
    /// The matrices of all experts, one below the other.
    pub gate: B::Matrix,
    pub up: B::Matrix,
    pub down: B::Matrix,
    pub shared: Dense<B>,
    /// One output.
    pub shared_gate: B::Matrix,
}

/// The draft layer (multi-token prediction, DeepSeek-AI 2024, arXiv 2412.19437): a layer over the
/// sum of two projections, of the next token's embedding and of the hidden row before it.
pub(crate) struct Draft<B: Ops> {
    pub token_norm: B::Vector,
    pub hidden_norm: B::Vector,
    pub from_token: B::Matrix,
    pub from_hidden: B::Matrix,
    pub layer: Layer<B>,
    pub norm: B::Vector,
}

/// A matrix that may have a bias.
pub(crate) struct Projection<B: Ops> {
    pub matrix: B::Matrix,
    pub bias: Option<B::Vector>,
}

impl<B: Ops> Projection<B> {
    pub fn onto<'a>(&'a self, out: &'a mut B::Activations) -> Product<'a, B> {
        Product { matrix: &self.matrix, bias: self.bias.as_ref(), out, accumulate: false }
    }
}
