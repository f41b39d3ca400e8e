//! An executor that plays a script, one step at a time when a test says so.

use laneway_execution::{
    Draw, ExecutionError, Executor, Geometry, Limits, PageId, SampledToken, StepBatch, StepOutput,
    TokenId,
};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tokio::sync::watch;

/// How long an engine without a next step is given before it counts as idle.
const IDLE: Duration = Duration::from_millis(50);

/// What the executor generates.
#[derive(Clone, Debug)]
pub enum Script {
    /// These tokens, then the end mark.
    Tokens(Vec<TokenId>),
    /// This token for ever.
    Endless(TokenId),
}

/// Lets steps pass.
#[derive(Clone)]
pub struct Gate {
    passes: Arc<(Mutex<Passes>, Condvar)>,
    arrived: Arc<watch::Sender<u64>>,
}

struct Passes {
    /// Steps that may run; `None` lets all pass.
    left: Option<u64>,
    /// Makes the next step fail.
    fail: bool,
    /// Sequences that took part in any step.
    sequences: HashSet<u64>,
}

impl Gate {
    pub fn open() -> Self {
        let passes = Passes { left: None, fail: false, sequences: HashSet::new() };
        Self {
            passes: Arc::new((Mutex::new(passes), Condvar::new())),
            arrived: Arc::new(watch::Sender::new(0)),
        }
    }

    pub fn closed() -> Self {
        let gate = Self::open();
        gate.set(|passes| passes.left = Some(0));
        gate
    }

    /// Lets `steps` more steps pass.
    pub fn pass(&self, steps: u64) {
        self.set(|passes| passes.left = Some(passes.left.unwrap_or(0) + steps));
    }

    /// Lets the step that stands at the gate pass, if one stands there, and waits for the next.
    pub async fn step(&self) {
        let before = self.steps();
        self.pass(1);
        let mut arrived = self.arrived.subscribe();
        // The engine may have nothing more to do; then no step comes.
        let next = arrived.wait_for(|&steps| steps > before);
        let _ = tokio::time::timeout(IDLE, next).await;
    }

    /// Sequences that took part in any step so far.
    pub fn sequences(&self) -> usize {
        self.passes.0.lock().expect("no test panics here").sequences.len()
    }

    /// Lets everything pass from now on.
    pub fn release(&self) {
        self.set(|passes| passes.left = None);
    }

    /// Makes the next step that passes fail.
    pub fn fail(&self) {
        self.set(|passes| passes.fail = true);
    }

    /// Waits until a step stands at the gate for the `count`th time.
    pub async fn arrived(&self, count: u64) {
        let mut arrived = self.arrived.subscribe();
        arrived.wait_for(|&steps| steps >= count).await.expect("the gate lives");
    }

    /// Steps that came to the gate so far.
    pub fn steps(&self) -> u64 {
        *self.arrived.borrow()
    }

    fn set(&self, change: impl FnOnce(&mut Passes)) {
        change(&mut self.passes.0.lock().expect("no test panics here"));
        self.passes.1.notify_all();
    }

    /// Blocks until the step may run; true if it is to fail.
    fn enter(&self, batch: &StepBatch) -> bool {
        self.set(|passes| {
            passes.sequences.extend(batch.segments.iter().map(|segment| segment.sequence.0));
        });
        self.arrived.send_modify(|steps| *steps += 1);
        let guard = self.passes.0.lock().expect("no test panics here");
        let mut guard =
            self.passes.1.wait_while(guard, |passes| passes.left == Some(0)).expect("as above");
        if let Some(left) = &mut guard.left {
            *left -= 1;
        }
        std::mem::take(&mut guard.fail)
    }
}

/// Plays a script for every sequence.
pub struct Scripted {
    pub geometry: Geometry,
    pub limits: Limits,
    pub script: Script,
    pub end: TokenId,
    pub gate: Gate,
    /// Position of the first token drawn, by sequence.
    pub drawn: HashMap<u64, u64>,
}

impl Executor for Scripted {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn step(&mut self, batch: &StepBatch, output: &mut StepOutput) -> Result<(), ExecutionError> {
        if self.gate.enter(batch) {
            return Err(ExecutionError::Device("scripted".to_owned()));
        }
        output.clear();
        for sample in &batch.samples {
            let segment = batch.segments.iter().find(|segment| segment.rows.contains(&sample.row));
            let sequence = segment.expect("every row belongs to a segment").sequence.0;
            let token = match sample.draw {
                Draw::Score(token) => token,
                Draw::Sample => {
                    let position = sample.key.position;
                    let first = *self.drawn.entry(sequence).or_insert(position);
                    let place = (position - first) as usize;
                    match &self.script {
                        Script::Tokens(tokens) => tokens.get(place).copied().unwrap_or(self.end),
                        Script::Endless(token) => *token,
                    }
                }
            };
            let start = output.top.len();
            for rank in 0..sample.top_logprobs as TokenId {
                let other = (token + rank) % self.geometry.vocab_size as TokenId;
                output.top.push((other, -0.5 - rank as f32));
            }
            let top = start..output.top.len();
            output.samples.push(SampledToken { token, logprob: -0.5, top });
        }
        Ok(())
    }

    fn copy_page(&mut self, _: PageId, _: PageId, _: usize) -> Result<(), ExecutionError> {
        Ok(())
    }
}
