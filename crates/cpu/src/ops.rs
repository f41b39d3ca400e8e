//! The op contract on the CPU.

mod forward;
mod moe;
mod recurrent;

use crate::buffer::{Buffer, Shared};
use crate::isa::{Isa, Kernel, dispatch};
use crate::kernels::Quantize;
use crate::kv::KvPool;
use crate::matmul::Input;
use crate::packed::Matrix;
use crate::quantize::{BLOCK, Quantized, View};
use crate::team::{Team, share};
use laneway_execution::{PAGE_TOKENS, PageId, StepBatch, StepOutput};
use laneway_ops::sampling::Sampler;
use laneway_ops::{OpError, RopeSpec, Workspace};

/// Sampled rows whose logits are held at once.
const LOGIT_ROWS: usize = 8;

/// Elements that one thread is done with before the team would have started.
const ELEMENTS_OF_A_REGION: usize = 1 << 14;

/// Precision of activations in products with block formats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Eight bits with one scale for 32 elements: the fastest.
    Int8,
    /// Twelve bits with one scale for 32 elements: nearly as exact as f32.
    #[default]
    Int12,
    /// f32 throughout.
    F32,
}

impl Precision {
    /// Planes of eight bits.
    const fn planes(self) -> usize {
        match self {
            Precision::Int12 => 2,
            Precision::Int8 | Precision::F32 => 1,
        }
    }
}

/// How to set up the backend.
#[derive(Clone, Copy, Debug)]
pub struct CpuConfig {
    /// Threads, the caller's included; at least 1.
    pub threads: usize,
    /// Precision of activations.
    pub precision: Precision,
    /// Instruction set; `None` takes the strongest that the machine has.
    pub isa: Option<Isa>,
    /// Largest step.
    pub workspace: Workspace,
}

/// The backend.
pub struct CpuOps {
    team: Team,
    isa: Isa,
    precision: Precision,
    workspace: Workspace,
    batch: StepBatch,
    /// Position of every row.
    positions: Vec<usize>,
    /// Page and slot of every row.
    places: Vec<(PageId, usize)>,
    /// Counts steps, so that tables of a step can tell that they are stale.
    step: u64,
    quantized: Quantized,
    angles: Angles,
    blocks: Vec<crate::attention::Block>,
    attention_scratch: Buffer<f32>,
    partials: Buffer<f32>,
    logits: Buffer<f32>,
    samplers: Vec<(Sampler, StepOutput)>,
    recurrent: recurrent::Scratch,
    moe: Option<moe::Scratch>,
}

/// Rotation angles of the current step.
struct Angles {
    step: u64,
    rope: u64,
    /// For each row the cosines of all pairs, then the sines.
    table: Vec<f32>,
}

/// Rows of activations.
pub struct Activations {
    width: usize,
    rows: usize,
    data: Buffer<f32>,
}

/// A prepared rotary embedding.
pub struct Rope {
    id: u64,
    spec: RopeSpec,
}

fn shape(op: &'static str, detail: String) -> OpError {
    OpError::Shape { op, detail }
}

fn ensure(op: &'static str, holds: bool, detail: impl FnOnce() -> String) -> Result<(), OpError> {
    if holds { Ok(()) } else { Err(shape(op, detail())) }
}

fn same_width(op: &'static str, found: usize, wanted: usize) -> Result<(), OpError> {
    ensure(op, found == wanted, || format!("width {found}, expected {wanted}"))
}

fn same_shape(op: &'static str, x: &Activations, other: &Activations) -> Result<(), OpError> {
    same_width(op, x.width, other.width)?;
    ensure(op, x.rows == other.rows, || format!("{} rows beside {}", x.rows, other.rows))
}

impl CpuOps {
    /// Sets up the backend.
    ///
    /// # Errors
    /// No threads, an instruction set that this machine lacks, or no memory.
    pub fn new(config: CpuConfig) -> Result<Self, OpError> {
        const OP: &str = "new";
        ensure(OP, config.threads > 0, || "0 threads, expected at least 1".to_owned())?;
        let isa = config.isa.unwrap_or_else(Isa::detect);
        if !isa.is_available() {
            return Err(OpError::Unsupported {
                op: OP,
                format: isa.to_string(),
                supported: Isa::ALL
                    .into_iter()
                    .filter(|isa| isa.is_available())
                    .map(|isa| isa.to_string())
                    .collect::<Vec<_>>()
                    .join(", "),
            });
        }
        let team = Team::new(config.threads)
            .map_err(|e| OpError::Device { op: OP, detail: format!("threads: {e}") })?;
        Ok(CpuOps {
            team,
            isa,
            precision: config.precision,
            workspace: config.workspace,
            batch: StepBatch::default(),
            positions: Vec::new(),
            places: Vec::new(),
            step: 0,
            quantized: Quantized::new(1, BLOCK, 1)?,
            angles: Angles { step: 0, rope: 0, table: Vec::new() },
            blocks: Vec::new(),
            attention_scratch: Buffer::zeroed(OP, 0)?,
            partials: Buffer::zeroed(OP, 0)?,
            logits: Buffer::zeroed(OP, 0)?,
            samplers: Vec::new(),
            recurrent: recurrent::Scratch::empty()?,
            moe: None,
        })
    }

    /// The instruction set in use.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Makes room for the integer form of rows of `width`; called at load.
    fn reserve_quantized(&mut self, width: usize) -> Result<(), OpError> {
        let rows = self.workspace.rows.max(self.workspace.samples);
        if self.precision != Precision::F32
            && (self.quantized.width() < width || self.quantized.capacity < rows)
        {
            // Some rows more, so that blocks of a row do not all fall into the same cache sets.
            let width = width.max(self.quantized.width()).next_multiple_of(BLOCK);
            self.quantized = Quantized::new(rows + 8, width, self.precision.planes())?;
        }
        Ok(())
    }

    /// The input of a product, rounded to integers where the backend works so and some matrix can
    /// use them.
    fn input(&mut self, x: &Activations, matrices: &[&Matrix]) -> Input {
        let mut input = Input { rows: x.data.as_ptr(), width: x.width, quantized: None };
        let useful = matrices.iter().any(|m| m.is_blocks());
        if self.precision == Precision::F32 || !useful {
            return input;
        }
        let view = View::of(&mut self.quantized);
        input.quantized = Some(view);
        let (isa, width, rows) = (self.isa, x.width, x.rows);
        let from = Shared(x.data.as_ptr().cast_mut());
        // Some four times the work of other kernels.
        let members = self.members_for(4 * rows * width);
        self.members(members, &|member| {
            let rows = share(rows, member, members);
            // SAFETY: rows are disjoint; the view has room for all rows of a step (checked at
            // load, where the matrix was seen).
            unsafe { dispatch(isa, Quantize { x: from.get(), width, rows, out: view.get() }) };
        });
        input
    }

    /// Runs a region on the whole team, or on the caller alone.
    fn members(&mut self, members: usize, region: &(dyn Fn(usize) + Sync)) {
        if members == 1 {
            region(0);
        } else {
            self.team.run(region);
        }
    }

    /// Members that an op on so many elements is worth.
    fn members_for(&self, elements: usize) -> usize {
        if elements < ELEMENTS_OF_A_REGION { 1 } else { self.team.threads() }
    }

    /// Runs `kernel(rows)` over the rows of a step, spread over the team when there are many.
    fn over_rows<K: Kernel>(
        &mut self,
        rows: usize,
        width: usize,
        kernel: impl Fn(std::ops::Range<usize>) -> K + Sync,
    ) {
        let members = self.members_for(rows * width);
        let isa = self.isa;
        self.members(members, &|member| {
            // SAFETY: the instruction set is available; each kernel's own conditions are met by
            // its caller, and rows are disjoint.
            unsafe { dispatch(isa, kernel(share(rows, member, members))) };
        });
    }

    fn full_step(&self, op: &'static str, x: &Activations) -> Result<(), OpError> {
        let wanted = self.batch.rows();
        ensure(op, x.rows == wanted, || format!("{} rows, the step has {wanted}", x.rows))
    }

    fn check_pool(&self, op: &'static str, pool: &KvPool, layer: usize) -> Result<(), OpError> {
        let spec = &pool.spec;
        ensure(op, layer < spec.layers, || format!("layer {layer} of {}", spec.layers))?;
        let beyond = self.batch.block_tables.iter().find(|p| p.0 as usize >= spec.pages);
        ensure(op, beyond.is_none(), || format!("{beyond:?} of {} pages", spec.pages))
    }

    /// Fills the angles of every row for `rope`, once a step.
    fn angles(&mut self, rope: &Rope) {
        if (self.angles.step, self.angles.rope) == (self.step, rope.id) {
            return;
        }
        self.angles.table.clear();
        for &position in &self.positions {
            let angle = |f: &f32| position as f64 * f64::from(*f);
            let frequencies = &rope.spec.inverse_frequencies;
            self.angles.table.extend(frequencies.iter().map(|f| angle(f).cos() as f32));
            self.angles.table.extend(frequencies.iter().map(|f| angle(f).sin() as f32));
        }
        (self.angles.step, self.angles.rope) = (self.step, rope.id);
    }

    /// Takes over the rows of a batch.
    fn take(&mut self, batch: &StepBatch) -> Result<(), OpError> {
        const OP: &str = "begin_step";
        let (rows, samples) = (batch.rows(), batch.samples.len());
        let Workspace { rows: most_rows, samples: most_samples, context } = self.workspace;
        ensure(OP, rows <= most_rows && samples <= most_samples, || {
            format!("{rows} rows and {samples} samples of {most_rows} and {most_samples}")
        })?;
        let longest = batch.segments.iter().map(|s| s.start + s.rows.len()).max().unwrap_or(0);
        ensure(OP, longest <= context, || format!("{longest} tokens of {context}"))?;
        self.step += 1;
        self.positions.clear();
        self.places.clear();
        for segment in &batch.segments {
            for position in segment.start..segment.start + segment.rows.len() {
                self.positions.push(position);
                let page = batch.block_tables[segment.blocks.start + position / PAGE_TOKENS];
                self.places.push((page, position % PAGE_TOKENS));
            }
        }
        self.batch.clone_from(batch);
        Ok(())
    }
}

impl Matrix {
    fn is_blocks(&self) -> bool {
        matches!(self.storage, crate::packed::Storage::Blocks { .. })
    }
}

/// A pointer to the elements of `activations`, for a region that writes disjoint parts.
fn shared(activations: &mut Activations) -> Shared<f32> {
    Shared(activations.data.as_mut_ptr())
}
