//! A loaded model: weights on a backend, a KV pool, and the executor over them.

use crate::bind::{self, LoadProgress};
use crate::forward::{Arena, Probe, Weights, forward};
use crate::validate::Validator;
use crate::{Architecture, LlamaConfig, LoadError, ModelFile};
use laneway_execution::{
    ExecutionError, Executor, Geometry, Limits, PAGE_TOKENS, PageId, StepBatch, StepOutput,
};
use laneway_numerics::KvDtype;
use laneway_ops::{KvSpec, OpError, Ops, RopeSpec};
use laneway_plan::MemoryLedger;

/// Most drafts of a segment. Attention keeps nothing of a draft that was not accepted but its
/// pages' content, which the next segment of the sequence overwrites, so any number would do;
/// beyond this one hardly any draft is right.
const DRAFTS_MAX: usize = 8;

/// What a model is loaded for; the rows, samples and context of a step are the backend's
/// workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// Element format of the KV pool.
    pub kv_dtype: KvDtype,
    /// Pages of the KV pool.
    pub pages: usize,
    /// Most alternatives that a sampled row may ask for.
    pub top_logprobs: usize,
}

/// A model of the Llama family on a backend.
pub struct Model<B: Ops> {
    backend: B,
    config: LlamaConfig,
    weights: Weights<B>,
    rope: B::Rope,
    pool: B::KvPool,
    arena: Arena<B>,
    geometry: Geometry,
    limits: Limits,
    validator: Validator,
    ledger: MemoryLedger,
}

impl<B: Ops> Model<B> {
    /// Binds the tensors of `file` to `backend`, one after the other, and allocates the KV pool.
    ///
    /// `progress` is called before each tensor and once after the last.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load(
        file: &dyn ModelFile,
        backend: B,
        options: &LoadOptions,
        progress: &mut dyn FnMut(LoadProgress<'_>),
    ) -> Result<Self, LoadError> {
        let architecture = crate::file::architecture(file)?;
        Self::load_as(&architecture, file, backend, options, progress)
    }

    pub(crate) fn load_as(
        architecture: &Architecture,
        file: &dyn ModelFile,
        mut backend: B,
        options: &LoadOptions,
        progress: &mut dyn FnMut(LoadProgress<'_>),
    ) -> Result<Self, LoadError> {
        let config = LlamaConfig::read(architecture, file)?;
        if options.pages == 0 || options.pages > u32::MAX as usize {
            return Err(LoadError::Options(format!("a KV pool of {} pages", options.pages)));
        }
        let backend_error = |name: &'static str| {
            move |source: OpError| LoadError::Backend { name: name.to_owned(), source }
        };
        let bound = bind::bind(architecture, &config, file, &mut backend, progress)?;
        let rope = RopeSpec {
            style: architecture.rope_style,
            head_dim: config.head_dim,
            inverse_frequencies: bound.inverse_frequencies,
        };
        let rope = backend.new_rope(&rope).map_err(backend_error("rotary embedding"))?;
        let spec = KvSpec {
            layers: config.layers,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            dtype: options.kv_dtype,
            pages: options.pages,
        };
        let pool = backend.new_kv_pool(&spec).map_err(backend_error("KV pool"))?;
        let arena = Arena::new(&mut backend, &config, architecture)
            .map_err(backend_error("activations"))?;

        let workspace = backend.workspace();
        let limits = Limits {
            pages: options.pages,
            state_slots: 0,
            rows_per_step: workspace.rows,
            samples_per_step: workspace.samples,
            top_logprobs: options.top_logprobs,
            drafts: DRAFTS_MAX,
            proposals: 0,
        };
        let geometry = config.geometry(options.kv_dtype);
        let context = workspace.context.min(config.context);
        let mut ledger = MemoryLedger::default();
        ledger.add("weights", bound.packed_bytes);
        ledger.add("KV pool", geometry.page_bytes as u64 * options.pages as u64);
        Ok(Model {
            validator: Validator::new(config.vocabulary, context, limits),
            backend,
            config,
            weights: bound.weights,
            rope,
            pool,
            arena,
            geometry,
            limits,
            ledger,
        })
    }

    /// The sizes that the file states.
    pub fn config(&self) -> &LlamaConfig {
        &self.config
    }

    /// What weights and KV pool occupy.
    pub fn ledger(&self) -> &MemoryLedger {
        &self.ledger
    }

    /// [`Executor::step`] with a look at the residual stream: `probe(layer, rows)` is called after
    /// every layer with all rows, `hidden` elements each. For tests and tools; slow.
    ///
    /// # Errors
    /// As [`Executor::step`].
    pub fn step_probed(
        &mut self,
        batch: &StepBatch,
        output: &mut StepOutput,
        probe: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), ExecutionError> {
        self.run(batch, output, Some(probe))
    }

    fn run(
        &mut self,
        batch: &StepBatch,
        output: &mut StepOutput,
        probe: Option<&mut Probe<'_>>,
    ) -> Result<(), ExecutionError> {
        self.validator.check(batch)?;
        output.clear();
        let Model { backend, config, weights, rope, pool, arena, .. } = self;
        forward(backend, config, weights, rope, pool, arena, batch, output, probe)
            .map_err(|e| device_error(&e))
    }
}

/// A validated step fits every op, so whatever an op reports is not the caller's fault.
fn device_error(error: &OpError) -> ExecutionError {
    ExecutionError::Device(error.to_string())
}

impl<B: Ops> Executor for Model<B> {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn step(&mut self, batch: &StepBatch, output: &mut StepOutput) -> Result<(), ExecutionError> {
        self.run(batch, output, None)
    }

    fn copy_page(&mut self, from: PageId, to: PageId, tokens: usize) -> Result<(), ExecutionError> {
        let pages = self.limits.pages;
        if let Some(page) = [from, to].iter().find(|page| page.0 as usize >= pages) {
            return Err(ExecutionError::Refused(format!("page {} of {pages}", page.0)));
        }
        if tokens > PAGE_TOKENS {
            let detail = format!("copy of {tokens} tokens, a page holds {PAGE_TOKENS}");
            return Err(ExecutionError::Refused(detail));
        }
        self.backend.copy_page(&mut self.pool, from, to, tokens).map_err(|e| device_error(&e))
    }
}
