//! The trait a backend implements, and the plain types it speaks in.

use crate::DeltaSpec;
use laneway_execution::{PageId, SlotId, StepBatch, StepOutput};
use laneway_numerics::{KvDtype, WeightFormat};

/// A weight matrix as it stands in a model file: `rows` outputs by `cols` inputs, row-major.
#[derive(Clone, Copy, Debug)]
pub struct MatrixSource<'a> {
    /// Name of the tensor, for errors.
    pub name: &'a str,
    /// Format of the encoded rows.
    pub format: WeightFormat,
    /// Number of outputs.
    pub rows: usize,
    /// Number of inputs.
    pub cols: usize,
    /// `rows` encoded rows, each `format.row_bytes(cols)` long.
    pub data: &'a [u8],
}

/// Largest step a backend must be ready for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workspace {
    /// Rows of one step.
    pub rows: usize,
    /// Sampled rows of one step.
    pub samples: usize,
    /// Longest sequence, in tokens.
    pub context: usize,
}

/// Shape of a KV pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvSpec {
    /// Attention layers.
    pub layers: usize,
    /// Key/value heads a layer.
    pub kv_heads: usize,
    /// Elements of one head.
    pub head_dim: usize,
    /// Element format.
    pub dtype: KvDtype,
    /// Pages of [`laneway_execution::PAGE_TOKENS`] tokens.
    pub pages: usize,
}

/// Which elements of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Elements `2i` and `2i + 1` (Llama files in GGUF order).
    Interleaved,
    /// Elements `i` and `i + rotary_dims / 2` (the NeoX order; Qwen).
    Halves,
}

/// Rotary position embedding (Su et al. 2021, arXiv 2104.09864).
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Pairing of elements.
    pub style: RopeStyle,
    /// Elements of one head.
    pub head_dim: usize,
    /// Angle a position of each pair, in radians; the pairs rotate the first `2 * len` elements of
    /// a head. Scaling schemes are already applied.
    pub inverse_frequencies: Vec<f32>,
}

/// One product of a [`Ops::linear`] call: `out = x · matrixᵀ (+ bias) (+ out)`.
pub struct Product<'a, B: Ops + ?Sized> {
    /// The weights, `out.width × x.width`.
    pub matrix: &'a B::Matrix,
    /// Added to every row.
    pub bias: Option<&'a B::Vector>,
    /// Destination, as wide as the matrix has rows.
    pub out: &'a mut B::Activations,
    /// Add to what `out` holds (a residual stream) instead of replacing it.
    pub accumulate: bool,
}

/// The experts of a sparse layer: the matrices of all of them, one below the other.
pub struct Experts<'a, B: Ops + ?Sized> {
    /// `experts · inner × hidden`.
    pub gate: &'a B::Matrix,
    /// `experts · inner × hidden`.
    pub up: &'a B::Matrix,
    /// `experts · hidden × inner`.
    pub down: &'a B::Matrix,
    /// Experts that each row goes to.
    pub chosen: usize,
}

/// The rows of a [`Ops::gated_delta`] call and the constants of its layer.
pub struct DeltaRows<'a, B: Ops + ?Sized> {
    /// Queries, keys and values behind the convolution: [`DeltaSpec::channels`] wide.
    pub qkv: &'a B::Activations,
    /// What decides how much is forgotten: one element a value head.
    pub alpha: &'a B::Activations,
    /// What decides how much is written: one element a value head.
    pub beta: &'a B::Activations,
    /// Decay rate of each value head, negative (`-exp(A_log)` of checkpoints).
    pub rate: &'a B::Vector,
    /// Added to `alpha` (`dt_bias` of checkpoints).
    pub bias: &'a B::Vector,
}

/// Why an op failed.
#[derive(Debug, thiserror::Error)]
pub enum OpError {
    /// Operands do not fit together; a fault of the model code or of a model file.
    #[error("{op}: {detail}")]
    Shape {
        /// The op.
        op: &'static str,
        /// What was wanted and what was found.
        detail: String,
    },
    /// This backend does not have the format.
    #[error("{op}: {format} is not supported by this backend (supported: {supported})")]
    Unsupported {
        /// The op.
        op: &'static str,
        /// What was asked for.
        format: String,
        /// What there is.
        supported: String,
    },
    /// The device has no room.
    #[error("{op}: out of memory for {bytes} bytes")]
    OutOfMemory {
        /// The op.
        op: &'static str,
        /// Bytes asked for.
        bytes: usize,
    },
    /// The device failed.
    #[error("{op}: device failed: {detail}")]
    Device {
        /// The op.
        op: &'static str,
        /// The device's own words.
        detail: String,
    },
}

/// A backend: storage for weights, activations and KV pages, and one implementation of each op.
///
/// Load-time calls (`load_*`, `new_*`) allocate; ops of a step do not. A step starts with
/// [`Ops::begin_step`], which hands over the rows. Activations know how many rows they hold: an op
/// runs over the rows of its input and leaves as many in its output, so a norm after
/// [`Ops::gather_rows`] touches the gathered rows only.
pub trait Ops {
    /// A weight matrix in the backend's packed layout.
    type Matrix;
    /// A small f32 vector: norm weights, biases.
    type Vector;
    /// `rows × width` activations, for up to [`Workspace::rows`] rows.
    type Activations;
    /// A paged KV pool.
    type KvPool;
    /// A prepared rotary embedding.
    type Rope;
    /// State of recurrent layers, one slot a sequence.
    type StatePool;

    /// The workspace this backend was made for.
    fn workspace(&self) -> Workspace;

    /// Packs a weight matrix.
    ///
    /// # Errors
    /// A format this backend lacks, `data` of the wrong length, or no memory.
    fn load_matrix(&mut self, source: &MatrixSource<'_>) -> Result<Self::Matrix, OpError>;

    /// Stores a small vector.
    ///
    /// # Errors
    /// No memory.
    fn load_vector(&mut self, values: &[f32]) -> Result<Self::Vector, OpError>;

    /// Allocates activations for a full step, `width` elements a row.
    ///
    /// # Errors
    /// No memory.
    fn new_activations(&mut self, width: usize) -> Result<Self::Activations, OpError>;

    /// Allocates a KV pool; its content is zero.
    ///
    /// # Errors
    /// A dtype or head size this backend lacks, or no memory.
    fn new_kv_pool(&mut self, spec: &KvSpec) -> Result<Self::KvPool, OpError>;

    /// Allocates a pool of recurrent state.
    ///
    /// # Errors
    /// Sizes this backend lacks, or no memory.
    fn new_state_pool(&mut self, spec: &DeltaSpec) -> Result<Self::StatePool, OpError>;

    /// Bytes that a pool of recurrent state occupies.
    fn state_pool_bytes(&self, spec: &DeltaSpec) -> usize;

    /// Prepares a rotary embedding.
    ///
    /// # Errors
    /// More pairs than a head has.
    fn new_rope(&mut self, spec: &RopeSpec) -> Result<Self::Rope, OpError>;

    /// Bytes that weights of this format and shape occupy once packed.
    fn packed_bytes(&self, format: WeightFormat, rows: usize, cols: usize) -> usize;

    /// Overwrites the first rows of `activations`; for tests and tools.
    ///
    /// # Errors
    /// More rows than the workspace has, or a ragged length.
    fn write(&mut self, activations: &mut Self::Activations, values: &[f32])
    -> Result<(), OpError>;

    /// Reads the first `rows` rows; for tests and tools.
    ///
    /// # Errors
    /// More rows than the workspace has.
    fn read(&mut self, activations: &Self::Activations, rows: usize) -> Result<Vec<f32>, OpError>;

    /// Starts a step: takes over tokens, positions, block tables and sampling rows of `batch`.
    ///
    /// # Errors
    /// A batch beyond the workspace.
    fn begin_step(&mut self, batch: &StepBatch) -> Result<(), OpError>;

    /// `out[r] = table[token of row r]`, exact decode of the table's row.
    ///
    /// # Errors
    /// Widths that differ, or a token beyond the table.
    fn embed(&mut self, table: &Self::Matrix, out: &mut Self::Activations) -> Result<(), OpError>;

    /// Root-mean-square norm (Zhang and Sennrich 2019, arXiv 1910.07467):
    /// `out = x / sqrt(mean(x²) + epsilon) · weight`, over groups of `weight.len()` elements, so
    /// that a norm per head is the same op.
    ///
    /// # Errors
    /// Widths that are not a multiple of the weight's.
    fn rms_norm(
        &mut self,
        x: &Self::Activations,
        weight: &Self::Vector,
        epsilon: f32,
        out: &mut Self::Activations,
    ) -> Result<(), OpError>;

    /// Products of one input with several matrices.
    ///
    /// # Errors
    /// Widths that do not fit.
    fn linear(
        &mut self,
        x: &Self::Activations,
        products: &mut [Product<'_, Self>],
    ) -> Result<(), OpError>;

    /// `out = silu(x · gateᵀ) ⊙ (x · upᵀ)` (SwiGLU, Shazeer 2020, arXiv 2002.05202).
    ///
    /// # Errors
    /// Widths that do not fit.
    fn gate_up_swiglu(
        &mut self,
        x: &Self::Activations,
        gate: &Self::Matrix,
        up: &Self::Matrix,
        out: &mut Self::Activations,
    ) -> Result<(), OpError>;

    /// Rotates the heads of `x` in place, by the position of each row.
    ///
    /// # Errors
    /// A width that is no multiple of the head size.
    fn rope(&mut self, rope: &Self::Rope, x: &mut Self::Activations) -> Result<(), OpError>;

    /// Writes every row's keys and values (`kv_heads × head_dim` wide) to its page.
    ///
    /// # Errors
    /// Widths, layer or pages beyond the pool.
    fn kv_append(
        &mut self,
        pool: &mut Self::KvPool,
        layer: usize,
        k: &Self::Activations,
        v: &Self::Activations,
    ) -> Result<(), OpError>;

    /// Causal grouped-query attention of every row over its sequence's pages, its own position
    /// included: `softmax(q · kᵀ · scale) · v`. Query head `h` reads key/value head
    /// `h / (heads / kv_heads)`.
    ///
    /// # Errors
    /// Widths, layer or pages beyond the pool.
    fn attention(
        &mut self,
        pool: &Self::KvPool,
        layer: usize,
        q: &Self::Activations,
        scale: f32,
        out: &mut Self::Activations,
    ) -> Result<(), OpError>;

    /// [`Ops::rms_norm`] times `silu(gate)`, element by element.
    ///
    /// # Errors
    /// Widths that differ or are not a multiple of the weight's.
    fn gated_rms_norm(
        &mut self,
        x: &Self::Activations,
        weight: &Self::Vector,
        epsilon: f32,
        gate: &Self::Activations,
        out: &mut Self::Activations,
    ) -> Result<(), OpError>;

    /// Sparse mixture of experts (Shazeer et al. 2017, arXiv 1701.06538): of each row's experts
    /// those with the `chosen` greatest logits, of equal ones the first,
    /// `out += Σ_e p_e · (silu(x · gate_eᵀ) ⊙ (x · up_eᵀ)) · down_eᵀ`, where `p` is the softmax of
    /// the chosen logits.
    ///
    /// # Errors
    /// Widths that do not fit, or more chosen experts than there are.
    fn sparse_moe(
        &mut self,
        x: &Self::Activations,
        logits: &Self::Activations,
        experts: Experts<'_, Self>,
        out: &mut Self::Activations,
    ) -> Result<(), OpError>;

    /// `x = x ⊙ sigmoid(gate)` (gated attention, Qiu et al. 2025, arXiv 2505.06708); a gate of
    /// width 1 holds for its whole row.
    ///
    /// # Errors
    /// Widths or rows that differ.
    fn sigmoid_gate(
        &mut self,
        gate: &Self::Activations,
        x: &mut Self::Activations,
    ) -> Result<(), OpError>;

    /// Causal depthwise convolution over the rows of each sequence, then SiLU:
    /// `out[t][c] = silu(Σ_j weight[j][c] · x[t - kernel + 1 + j][c])`, where rows before the
    /// segment come from its slot and rows before the sequence are zero. `weight` has
    /// [`DeltaSpec::kernel`] taps of [`DeltaSpec::channels`] elements.
    ///
    /// # Errors
    /// Widths, layer or slots beyond the pool, or a slot that does not hold the sequence.
    fn causal_conv(
        &mut self,
        pool: &mut Self::StatePool,
        layer: usize,
        weight: &Self::Vector,
        x: &Self::Activations,
        out: &mut Self::Activations,
    ) -> Result<(), OpError>;

    /// Gated delta rule (Yang et al. 2024, arXiv 2412.06464), for each value head with its state
    /// `S` (`key_dim × value_dim`), row after row:
    ///
    /// ```text
    /// q, k = l2norm(q) / sqrt(key_dim), l2norm(k)      l2norm(x) = x / sqrt(Σ x² + 1e-6)
    /// g, b = exp(rate · softplus(alpha + bias)), sigmoid(beta)
    /// S    = g S;  S = S + k (b (v - Sᵀ k))ᵀ;  out = Sᵀ q
    /// ```
    ///
    /// # Errors
    /// As [`Ops::causal_conv`].
    fn gated_delta(
        &mut self,
        pool: &mut Self::StatePool,
        layer: usize,
        rows: DeltaRows<'_, Self>,
        out: &mut Self::Activations,
    ) -> Result<(), OpError>;

    /// Makes `to` hold what `from` holds at `position`, over all layers.
    ///
    /// # Errors
    /// Slots beyond the pool, or a position that `from` does not hold.
    fn copy_state(
        &mut self,
        pool: &mut Self::StatePool,
        from: SlotId,
        to: SlotId,
        position: usize,
    ) -> Result<(), OpError>;

    /// Replaces `image` by what `slot` holds at `position`: [`DeltaSpec::image_bytes`] bytes.
    ///
    /// # Errors
    /// As [`Ops::copy_state`].
    fn save_state(
        &mut self,
        pool: &Self::StatePool,
        slot: SlotId,
        position: usize,
        image: &mut Vec<u8>,
    ) -> Result<(), OpError>;

    /// Makes `slot` hold an image taken at `position`.
    ///
    /// # Errors
    /// A slot beyond the pool, or an image of another length.
    fn load_state(
        &mut self,
        pool: &mut Self::StatePool,
        slot: SlotId,
        position: usize,
        image: &[u8],
    ) -> Result<(), OpError>;

    /// Gathers rows of `x` into `out`, in the order of `rows`, which may repeat.
    ///
    /// # Errors
    /// Widths that differ, or rows that `x` or `out` does not have.
    fn gather_rows(
        &mut self,
        x: &Self::Activations,
        rows: &[usize],
        out: &mut Self::Activations,
    ) -> Result<(), OpError>;

    /// Projects and samples: logits of the gathered rows `x` against `head`, then the draw or
    /// score that each sample row asks for. Appends one entry a sample to `output`.
    ///
    /// # Errors
    /// Widths that do not fit, or logits that are not finite.
    fn logits_sample(
        &mut self,
        x: &Self::Activations,
        head: &Self::Matrix,
        output: &mut StepOutput,
    ) -> Result<(), OpError>;

    /// Copies the first `tokens` tokens of a page, over all layers.
    ///
    /// # Errors
    /// Pages beyond the pool.
    fn copy_page(
        &mut self,
        pool: &mut Self::KvPool,
        from: PageId,
        to: PageId,
        tokens: usize,
    ) -> Result<(), OpError>;
}
