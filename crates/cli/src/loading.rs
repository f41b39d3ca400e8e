//! From a model's name to a loaded model: the one place where a backend is chosen.

use crate::fetch::{Existing, cache_folder, known_model, known_names, obtain};
use crate::memory;
use crate::progress::Progress;
use crate::settings::capacity::{Available, Capacity, Wanted};
use crate::settings::{ArithmeticSettings, PrecisionSetting, StepSettings, WeightsSetting};
use crate::source::{Source, cannot_run};
use anyhow::{Context, Result, bail, ensure};
use laneway_cpu::{CpuConfig, CpuOps, Precision};
use laneway_execution::{Executor, Limits};
use laneway_frontend::{ChatTemplate, Tokenizer};
use laneway_model::{LoadOptions, Model, ModelConfig, packed_weight_bytes};
use laneway_ops::{Ops, Workspace};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most alternatives that a request may ask for at a token, as the API has it.
const TOP_LOGPROBS_MAX: usize = 20;

/// Most drafts of a segment: beyond this hardly any draft is right.
const DRAFTS_MAX: usize = 8;

/// A model that is open and of a known architecture.
pub struct OpenedModel {
    /// Where it is.
    pub path: PathBuf,
    /// The known name that it was opened by.
    known_name: Option<&'static str>,
    /// Its content.
    pub source: Source,
    /// The sizes that it states.
    pub config: ModelConfig,
}

/// What models take of the memory.
#[derive(Clone, Copy, Debug)]
struct Footprint {
    /// Bytes of weights and recurrent state.
    fixed: u64,
    /// Bytes of a page.
    page: u64,
}

impl std::ops::AddAssign for Footprint {
    fn add_assign(&mut self, other: Self) {
        self.fixed += other.fixed;
        self.page += other.page;
    }
}

/// A loaded model and the sizes it was loaded with.
pub struct Loaded {
    /// The model.
    pub model: Model<CpuOps>,
    /// A smaller one that drafts for it.
    pub draft: Option<Model<CpuOps>>,
    /// Window and pool.
    pub capacity: Capacity,
    /// How long loading took.
    pub duration: Duration,
}

/// What a model is loaded for.
#[derive(Clone, Copy, Debug)]
pub struct Purpose {
    /// Threads that compute.
    pub threads: NonZeroUsize,
    /// In which numbers.
    pub arithmetic: ArithmeticSettings,
    /// What a step computes and keeps.
    pub step: StepSettings,
    /// Longest sequence and the pool that sequences share.
    pub wanted: Wanted,
    /// Rows of a step for the drafts of each lane.
    pub drafts: usize,
    /// Load the model's draft layer, if it has one.
    pub draft_layer: bool,
}

impl OpenedModel {
    /// Opens what `model` names: a path, or a known model, which is fetched if need be.
    ///
    /// # Errors
    /// When there is nothing of that name, or it is not a model that Laneway can run.
    pub fn open(model: &str) -> Result<Self> {
        let (path, known_name) = locate(model)?;
        let source = Source::open(&path)?;
        let config = ModelConfig::from_file(source.file()).with_context(|| cannot_run(&path))?;
        Ok(OpenedModel { path, known_name, source, config })
    }

    /// What the API calls the model: its known name, if it was opened by that, and its file's.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.known_name.map(str::to_owned).into_iter().chain([self.name()]).collect()
    }

    /// The folder's name, or the file's without its ending.
    #[must_use]
    pub fn name(&self) -> String {
        self.source.name(&self.path)
    }

    /// The file's tokenizer and, if it has one, its chat template.
    ///
    /// # Errors
    /// A tokenizer or template that Laneway cannot read.
    pub fn text(&self) -> Result<(Arc<Tokenizer>, Option<ChatTemplate>)> {
        let (tokenizer, template) = self
            .source
            .text()
            .with_context(|| format!("cannot read the text side of {}", self.path.display()))?;
        Ok((Arc::new(tokenizer), template))
    }

    /// Bytes of the weights once they are packed for this machine.
    ///
    /// # Errors
    /// Tensors that are missing, unknown or of another shape.
    pub fn packed_weight_bytes(&self) -> Result<u64> {
        let arithmetic = ArithmeticSettings {
            precision: PrecisionSetting::Int12,
            weights: WeightsSetting::Auto,
        };
        let workspace = Workspace { rows: 1, samples: 1, context: 1 };
        let backend = cpu_backend(NonZeroUsize::MIN, arithmetic, workspace)?;
        Ok(packed_weight_bytes(self.source.file(), &backend, false)?)
    }

    /// Works out the sizes, then packs the weights and allocates the pool; the same for `draft`,
    /// which drafts for this model and shares the memory with it.
    ///
    /// # Errors
    /// Settings that cannot be honoured (a [`Refusal`](crate::settings::capacity::Refusal)), or a
    /// file that does not hold what it says.
    pub fn load(&self, draft: Option<&OpenedModel>, purpose: &Purpose) -> Result<Loaded> {
        let start = Instant::now();
        let Purpose { threads, arithmetic, step, wanted, drafts, draft_layer } = *purpose;
        // Decode rows of all lanes ride along with a prefill chunk, and a prompt's own tokens may
        // be scored, so that every row of a step can be a sampled one.
        let rows = step.prefill_chunk.get() + wanted.lanes.get() * (1 + drafts);
        let native = self.config.context;
        let context = wanted.max_context.map_or(native, |window| window.get().min(native));
        let workspace = Workspace { rows, samples: rows, context };
        let backend = cpu_backend(threads, arithmetic, workspace)?;
        let mut options = LoadOptions {
            kv_dtype: step.kv_dtype,
            pages: 0,
            top_logprobs: TOP_LOGPROBS_MAX,
            state_slots: wanted.lanes.get(),
            // Without recurrent state nothing is kept for a draft, so that requests may have some
            // that ask for them.
            drafts: if drafts > 0 || self.config.delta.is_none() { DRAFTS_MAX } else { 0 },
            drafting: draft_layer,
        };
        let beside = |options: &LoadOptions| LoadOptions {
            // A draft model runs ahead of its certain state in a second one.
            state_slots: 2 * options.state_slots,
            drafts: 0,
            drafting: false,
            ..*options
        };
        let mut footprint = self.footprint(&backend, &options)?;
        if let Some(draft) = draft {
            footprint += draft.footprint(&backend, &beside(&options))?;
        }
        let available = Available {
            native_context: native,
            page_bytes: footprint.page,
            pool_bytes: memory::plannable_bytes()
                .map(|bytes| bytes.saturating_sub(footprint.fixed)),
        };
        let capacity = Capacity::resolve(&wanted, &available)?;
        options.pages = capacity.pages;
        let model = self.bind(backend, &options)?;
        let draft = draft
            .map(|draft| {
                // One row more, for the token that is drawn behind a segment.
                let context = context.min(draft.config.context);
                let workspace = Workspace { rows: rows + 1, samples: wanted.lanes.get(), context };
                draft.bind(cpu_backend(threads, arithmetic, workspace)?, &beside(&options))
            })
            .transpose()?;
        // The plan is a promise: what was refused or granted must be what is allocated.
        let planned = footprint.fixed + footprint.page * capacity.pages as u64;
        let beside = draft.as_ref().map_or(0, |draft| draft.ledger().total_bytes());
        let allocated = model.ledger().total_bytes() + beside;
        ensure!(planned == allocated, "planned {planned} bytes, but allocated {allocated}");
        Ok(Loaded { model, draft, capacity, duration: start.elapsed() })
    }

    /// What the model takes of the memory; `options.pages` does not matter.
    fn footprint(&self, backend: &CpuOps, options: &LoadOptions) -> Result<Footprint> {
        let &LoadOptions { kv_dtype, state_slots, drafts, drafting, .. } = options;
        let states = self.config.delta_spec(state_slots, drafts);
        let states = states.map_or(0, |spec| backend.state_pool_bytes(&spec)) as u64;
        Ok(Footprint {
            fixed: packed_weight_bytes(self.source.file(), backend, drafting)? + states,
            page: self.config.geometry(kv_dtype, drafting).page_bytes as u64,
        })
    }

    fn bind(&self, backend: CpuOps, options: &LoadOptions) -> Result<Model<CpuOps>> {
        let progress = Progress::bytes(format!("loading {}", self.name()), 0);
        let model = Model::load(self.source.file(), backend, options, &mut |at| {
            progress.set_of(at.bytes_done, at.bytes);
        })?;
        progress.finish();
        Ok(model)
    }
}

impl Loaded {
    /// What the model takes, together with its draft model.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let limits = *self.model.limits();
        let proposals = if self.draft.is_some() { limits.drafts } else { limits.proposals };
        Limits { proposals, ..limits }
    }

    /// Prints what was allocated.
    pub fn print_ledger(&self) {
        eprint!("{}", self.model.ledger());
        if let Some(draft) = &self.draft {
            eprint!("draft model\n{}", draft.ledger());
        }
        let Capacity { max_context, .. } = self.capacity;
        eprintln!(
            "context {max_context} tokens, KV pool {} tokens in {} pages",
            self.capacity.pool_tokens(),
            self.model.limits().pages
        );
    }
}

fn cpu_backend(
    threads: NonZeroUsize,
    arithmetic: ArithmeticSettings,
    workspace: Workspace,
) -> Result<CpuOps> {
    let precision = match arithmetic.precision {
        PrecisionSetting::Int8 => Precision::Int8,
        PrecisionSetting::Int12 => Precision::Int12,
        PrecisionSetting::F32 => Precision::F32,
    };
    let WeightsSetting::Auto = arithmetic.weights;
    Ok(CpuOps::new(CpuConfig { threads: threads.get(), precision, isa: None, workspace })?)
}

fn locate(model: &str) -> Result<(PathBuf, Option<&'static str>)> {
    let path = Path::new(model);
    // A known name stands for its model even where a folder is called so.
    if path.is_file() || (path.is_dir() && known_model(model).is_none()) {
        return Ok((path.to_path_buf(), None));
    }
    if let Some(known) = known_model(model) {
        let path = obtain(known, &cache_folder()?, Existing::TrustSize)?;
        return Ok((path, Some(known.name)));
    }
    bail!(
        "no model {model:?}: it is neither a file, nor a folder, nor a known name ({})",
        known_names()
    )
}
