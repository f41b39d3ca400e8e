//! A loaded model: weights on a backend, a KV pool, and the executor over them.

use crate::bind::{self, LoadProgress};
use crate::draft::{Drafter, PROPOSALS_MAX};
use crate::forward::{Arena, Memory, Probe, forward};
use crate::validate::Validator;
use crate::weights::Weights;
use crate::{Architecture, LoadError, ModelConfig, ModelFile};
use laneway_execution::{
    ExecutionError, Executor, Geometry, Limits, PAGE_TOKENS, PageId, SlotId, StepBatch, StepOutput,
};
use laneway_numerics::KvDtype;
use laneway_ops::{KvSpec, OpError, Ops, RopeSpec};
use laneway_plan::MemoryLedger;

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
    /// Sequences whose recurrent state is kept, for models that have one.
    pub state_slots: usize,
    /// Most drafts that a segment may hold.
    pub drafts: usize,
    /// Load and run the model's draft layer, if it has one.
    pub drafting: bool,
}

/// A decoder on a backend.
pub struct Model<B: Ops> {
    backend: B,
    config: ModelConfig,
    weights: Weights<B>,
    memory: Memory<B>,
    arena: Arena<B>,
    drafter: Option<Drafter<B>>,
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
        let config = ModelConfig::read(architecture, file)?;
        if options.pages == 0 || options.pages > u32::MAX as usize {
            return Err(LoadError::Options(format!("a KV pool of {} pages", options.pages)));
        }
        let backend_error = |name: &'static str| {
            move |source: OpError| LoadError::Backend { name: name.to_owned(), source }
        };
        let &LoadOptions { kv_dtype, pages, state_slots, drafts, drafting, .. } = options;
        let bound = bind::bind(architecture, &config, file, drafting, &mut backend, progress)?;
        let rope = RopeSpec {
            style: architecture.rope_style(file.layout()),
            head_dim: config.head_dim,
            inverse_frequencies: bound.inverse_frequencies,
        };
        let spec = KvSpec {
            layers: config.kv_layers(drafting),
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            dtype: kv_dtype,
            pages,
        };
        let states = config.delta_spec(state_slots, drafts);
        let memory = Memory {
            rope: backend.new_rope(&rope).map_err(backend_error("rotary embedding"))?,
            kv: backend.new_kv_pool(&spec).map_err(backend_error("KV pool"))?,
            states: states
                .map(|spec| backend.new_state_pool(&spec))
                .transpose()
                .map_err(backend_error("recurrent state"))?,
        };
        let activations = backend_error("activations");
        let arena = Arena::new(&mut backend, &config, &bound.weights).map_err(activations)?;
        let drafter = bound.weights.draft.as_ref();
        let drafter = drafter.map(|_| Drafter::new(&mut backend, config.hidden)).transpose();
        let drafter = drafter.map_err(backend_error("activations"))?;

        let workspace = backend.workspace();
        let limits = Limits {
            pages,
            state_slots: if states.is_some() { state_slots } else { 0 },
            rows_per_step: workspace.rows,
            samples_per_step: workspace.samples,
            top_logprobs: options.top_logprobs,
            drafts,
            proposals: if drafter.is_some() { PROPOSALS_MAX } else { 0 },
        };
        let geometry = config.geometry(kv_dtype, drafting);
        let context = workspace.context.min(config.context);
        let mut ledger = MemoryLedger::default();
        ledger.add("weights", bound.packed_bytes);
        ledger.add("KV pool", geometry.page_bytes as u64 * pages as u64);
        if let Some(spec) = &states {
            ledger.add("recurrent state", backend.state_pool_bytes(spec) as u64);
        }
        Ok(Model {
            validator: Validator::new(config.vocabulary, context, limits),
            backend,
            config,
            weights: bound.weights,
            memory,
            arena,
            drafter,
            geometry,
            limits,
            ledger,
        })
    }

    /// The sizes that the file states.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// What weights and KV pool occupy.
    pub fn ledger(&self) -> &MemoryLedger {
        &self.ledger
    }

    /// [`Executor::step`] with a look at the residual stream: `probe(layer, rows)` is called after
    /// every layer with all rows, `hidden` elements each; behind the last layer come the draft
    /// layer's passes. For tests and tools; slow.
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
        mut probe: Option<&mut Probe<'_>>,
    ) -> Result<(), ExecutionError> {
        self.validator.check(batch)?;
        output.clear();
        let Model { backend, config, weights, memory, arena, drafter, .. } = self;
        forward(backend, config, weights, memory, arena, batch, output, probe.as_deref_mut())
            .map_err(|e| device_error(&e))?;
        self.validator.advance(batch);
        if let (Some(drafter), Some(draft)) = (drafter, &weights.draft) {
            drafter
                .propose(backend, config, weights, draft, memory, arena, batch, output, probe)
                .map_err(|e| device_error(&e))?;
        }
        Ok(())
    }

    /// The pool of recurrent state, for models that have one.
    fn states(&mut self) -> Result<(&mut B, &mut B::StatePool), ExecutionError> {
        let refused = || ExecutionError::Refused("the model has no recurrent state".to_owned());
        Ok((&mut self.backend, self.memory.states.as_mut().ok_or_else(refused)?))
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
        let kv = &mut self.memory.kv;
        self.backend.copy_page(kv, from, to, tokens).map_err(|e| device_error(&e))
    }

    fn copy_state(
        &mut self,
        from: SlotId,
        to: SlotId,
        position: usize,
    ) -> Result<(), ExecutionError> {
        self.validator.holds(from, position)?;
        self.validator.slot(to)?;
        let (backend, states) = self.states()?;
        backend.copy_state(states, from, to, position).map_err(|e| device_error(&e))?;
        self.validator.settle(to, position);
        Ok(())
    }

    fn save_state(
        &mut self,
        slot: SlotId,
        position: usize,
        image: &mut Vec<u8>,
    ) -> Result<(), ExecutionError> {
        self.validator.holds(slot, position)?;
        let (backend, states) = self.states()?;
        backend.save_state(states, slot, position, image).map_err(|e| device_error(&e))
    }

    fn load_state(
        &mut self,
        slot: SlotId,
        position: usize,
        image: &[u8],
    ) -> Result<(), ExecutionError> {
        self.validator.slot(slot)?;
        let wanted = self.geometry.state_bytes;
        if image.len() != wanted {
            let detail = format!("an image of {} bytes, expected {wanted}", image.len());
            return Err(ExecutionError::Refused(detail));
        }
        let (backend, states) = self.states()?;
        backend.load_state(states, slot, position, image).map_err(|e| device_error(&e))?;
        self.validator.settle(slot, position);
        Ok(())
    }
}
