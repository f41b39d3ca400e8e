//! What a schedule runs on: simulated models with and without states, drafters and draft models.

use crate::random::Random;
use laneway_engine::{DraftLength, Drafter, Speculation, WithDraft};
use laneway_execution::{
    ExecutionError, Executor, Geometry, Limits, PageId, SlotId, StepBatch, StepOutput, TokenId,
};
use laneway_sim::{Fault, SimClock, SimConfig, SimExecutor, StepCost};
use std::collections::HashMap;

/// Any way to speculate, available or not.
pub fn speculation(random: &mut Random) -> Speculation {
    Speculation {
        drafter: random.pick(&[Drafter::Off, Drafter::Model, Drafter::Model, Drafter::Ngram]),
        length: random.pick(&[
            DraftLength::Auto,
            DraftLength::Auto,
            DraftLength::Fixed(1),
            DraftLength::Fixed(4),
            DraftLength::Fixed(100),
        ]),
    }
}

/// A model with a draft model that is as sure of itself as may be, and as large as need be.
pub fn with_draft(
    random: &mut Random,
    sim: SimConfig,
    faults: HashMap<u64, Fault>,
    clock: &SimClock,
) -> WithDraft<SimExecutor, Unsure> {
    let target = Limits { proposals: 0, ..sim.limits };
    let draft = Limits {
        pages: target.pages + random.below(2),
        state_slots: random.pick(&[0, 2 * target.state_slots.max(8)]),
        rows_per_step: target.rows_per_step + 1 + random.below(4),
        samples_per_step: 1 + random.below(9),
        drafts: 0,
        ..target
    };
    let probability = random.pick(&[0.0, 0.3, 1.0]);
    // Its steps take no time of their own, and its faults are those of the whole.
    let draft = SimConfig { limits: draft, cost: StepCost::default(), ..sim.clone() };
    let draft = Unsure::new(SimExecutor::new(draft, clock.clone()), probability);
    let target = SimExecutor::new(SimConfig { limits: target, faults, ..sim }, clock.clone());
    WithDraft::new(target, draft).expect("they fit")
}

/// A simulated model that draws another token than it should now and then.
#[derive(Debug)]
pub struct Unsure {
    executor: SimExecutor,
    random: Random,
    /// Of 1,000 draws.
    wrong: usize,
}

impl Unsure {
    pub fn new(executor: SimExecutor, probability: f64) -> Self {
        Self { executor, random: Random::new(1), wrong: (probability * 1000.0) as usize }
    }
}

impl Executor for Unsure {
    fn geometry(&self) -> &Geometry {
        self.executor.geometry()
    }

    fn limits(&self) -> &Limits {
        self.executor.limits()
    }

    fn step(&mut self, batch: &StepBatch, output: &mut StepOutput) -> Result<(), ExecutionError> {
        self.executor.step(batch, output)?;
        let vocab_size = self.geometry().vocab_size as TokenId;
        for sample in &mut output.samples {
            if self.random.below(1000) < self.wrong {
                sample.token = (sample.token + 1) % vocab_size;
            }
        }
        Ok(())
    }

    fn copy_page(&mut self, from: PageId, to: PageId, n: usize) -> Result<(), ExecutionError> {
        self.executor.copy_page(from, to, n)
    }

    fn copy_state(&mut self, from: SlotId, to: SlotId, at: usize) -> Result<(), ExecutionError> {
        self.executor.copy_state(from, to, at)
    }

    fn save_state(
        &mut self,
        slot: SlotId,
        at: usize,
        image: &mut Vec<u8>,
    ) -> Result<(), ExecutionError> {
        self.executor.save_state(slot, at, image)
    }

    fn load_state(&mut self, slot: SlotId, at: usize, image: &[u8]) -> Result<(), ExecutionError> {
        self.executor.load_state(slot, at, image)
    }
}
