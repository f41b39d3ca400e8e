//! Random numbers that a seed repeats, and a model that is not always sure.

use laneway_execution::{
    ExecutionError, Executor, Geometry, Limits, PageId, SlotId, StepBatch, StepOutput, TokenId,
};
use laneway_sim::SimExecutor;

/// splitmix64.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((value ^ (value >> 31)) % bound as u64) as usize
    }

    pub fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }
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
