//! The executor: pages that remember who wrote them, and faults on demand.

use crate::clock::{SimClock, StepCost};
use crate::token::{Prefix, draw, score};
use laneway_execution::{
    Draw, ExecutionError, Executor, Geometry, Limits, PAGE_TOKENS, PageId, SampleRow, SampledToken,
    Segment, SequenceId, StepBatch, StepOutput, TokenId, pages_for,
};
use std::collections::{HashMap, VecDeque};

/// Something that goes wrong in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The step is refused and changes nothing.
    Refused,
    /// The device fails: pages of the step's sequences are lost.
    Device,
    /// The executor panics.
    Panic,
    /// The step reports no samples.
    NoOutput,
}

/// What is simulated.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// Vocabulary entries.
    pub vocab_size: usize,
    /// What the executor claims to be sized for.
    pub limits: Limits,
    /// What steps take.
    pub cost: StepCost,
    /// Faults, by the number of the step, counted from zero.
    pub faults: HashMap<u64, Fault>,
    /// Tokens that are drawn instead of hashes, from the first draw of a sequence on; the last
    /// one again and again. Empty draws hashes.
    pub script: Vec<TokenId>,
}

/// A token where it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Written {
    sequence: SequenceId,
    position: usize,
    token: TokenId,
}

/// Simulates a model.
#[derive(Debug)]
pub struct SimExecutor {
    config: SimConfig,
    geometry: Geometry,
    clock: SimClock,
    memory: Vec<Option<Written>>,
    steps: u64,
    /// Scripted tokens that are still to be drawn, by sequence.
    scripts: HashMap<SequenceId, VecDeque<TokenId>>,
}

impl SimExecutor {
    /// An executor whose steps move `clock`.
    #[must_use]
    pub fn new(config: SimConfig, clock: SimClock) -> Self {
        let geometry = Geometry {
            vocab_size: config.vocab_size,
            native_context: config.limits.pages * PAGE_TOKENS,
            page_bytes: 1,
            state_bytes: 0,
        };
        let memory = vec![None; config.limits.pages * PAGE_TOKENS];
        Self { config, geometry, clock, memory, steps: 0, scripts: HashMap::new() }
    }

    /// Everything about a batch that can be proved wrong before it runs.
    fn check(&self, batch: &StepBatch) -> Result<(), String> {
        let limits = &self.config.limits;
        if batch.rows() > limits.rows_per_step {
            return Err(format!("{} rows, the limit is {}", batch.rows(), limits.rows_per_step));
        }
        if batch.samples.len() > limits.samples_per_step {
            let (samples, most) = (batch.samples.len(), limits.samples_per_step);
            return Err(format!("{samples} samples, the limit is {most}"));
        }
        let mut owners = HashMap::new();
        for segment in &batch.segments {
            let table = batch.block_table(segment);
            if table.len() < pages_for(segment.start + segment.rows.len()) {
                return Err(format!("{:?} has too short a block table", segment.sequence));
            }
            for &page in table {
                if page.0 as usize >= limits.pages {
                    return Err(format!("{page:?} does not exist"));
                }
                if let Some(other) = owners.insert(page, segment.sequence) {
                    return Err(format!("{page:?} is {other:?}'s and {:?}'s", segment.sequence));
                }
            }
            for position in 0..segment.start {
                self.read(table, segment.sequence, position)?;
            }
            if batch.segment_tokens(segment).iter().any(|&token| !self.knows(token)) {
                return Err(format!("{:?} has a token beyond the vocabulary", segment.sequence));
            }
        }
        for sample in &batch.samples {
            let scored = match sample.draw {
                Draw::Sample => 0,
                Draw::Score(token) => token,
            };
            if sample.top_logprobs > limits.top_logprobs || !self.knows(scored) {
                return Err(format!("{sample:?} asks for too much"));
            }
        }
        Ok(())
    }

    fn knows(&self, token: TokenId) -> bool {
        (token as usize) < self.config.vocab_size
    }

    fn read(
        &self,
        table: &[PageId],
        sequence: SequenceId,
        position: usize,
    ) -> Result<TokenId, String> {
        let place = place(table, position);
        match self.memory[place] {
            Some(written) if written.sequence == sequence && written.position == position => {
                Ok(written.token)
            }
            other => Err(format!("{sequence:?} finds {other:?} at its position {position}")),
        }
    }

    fn sample(
        &mut self,
        batch: &StepBatch,
        segment: &Segment,
        sample: &SampleRow,
        output: &mut StepOutput,
    ) -> Result<(), String> {
        let table = batch.block_table(segment);
        let last = segment.start + (sample.row - segment.rows.start);
        if sample.key.position != last as u64 + 1 {
            return Err(format!("{:?} draws after position {last}", sample.key));
        }
        let mut prefix = Prefix::default();
        for position in 0..=last {
            prefix.push(self.read(table, segment.sequence, position)?);
        }
        let token = match sample.draw {
            Draw::Score(token) => token,
            Draw::Sample => self.scripted(segment.sequence).unwrap_or_else(|| {
                let counts = &batch.counts[sample.counts.clone()];
                let biases = &batch.biases[sample.biases.clone()];
                draw(prefix, sample.key, counts, biases, self.config.vocab_size)
            }),
        };
        let first = output.top.len();
        for rank in 0..sample.top_logprobs as TokenId {
            let other = (token + rank) % self.config.vocab_size as TokenId;
            output.top.push((other, score(prefix, other)));
        }
        let top = first..output.top.len();
        output.samples.push(SampledToken { token, logprob: score(prefix, token), top });
        Ok(())
    }

    fn scripted(&mut self, sequence: SequenceId) -> Option<TokenId> {
        let script = &self.config.script;
        let left = self.scripts.entry(sequence).or_insert_with(|| script.iter().copied().collect());
        left.pop_front().or(script.last().copied())
    }
}

impl Executor for SimExecutor {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn limits(&self) -> &Limits {
        &self.config.limits
    }

    fn step(&mut self, batch: &StepBatch, output: &mut StepOutput) -> Result<(), ExecutionError> {
        let fault = self.config.faults.get(&self.steps).copied();
        self.steps += 1;
        output.clear();
        match fault {
            Some(Fault::Refused) => return Err(ExecutionError::Refused("injected".to_owned())),
            Some(Fault::Panic) => panic!("injected"),
            Some(Fault::Device) => {
                for page in &batch.block_tables {
                    let start = page.0 as usize * PAGE_TOKENS;
                    self.memory[start..start + PAGE_TOKENS].fill(None);
                }
                return Err(ExecutionError::Device("injected".to_owned()));
            }
            Some(Fault::NoOutput) | None => {}
        }
        self.check(batch).map_err(ExecutionError::Refused)?;
        let mut pairs = 0.0;
        for segment in &batch.segments {
            let table = batch.block_table(segment);
            for (position, &token) in (segment.start..).zip(batch.segment_tokens(segment)) {
                let written = Written { sequence: segment.sequence, position, token };
                self.memory[place(table, position)] = Some(written);
                pairs += (position + 1) as f64;
            }
        }
        for sample in &batch.samples {
            let owner = batch.segments.iter().find(|segment| segment.rows.contains(&sample.row));
            let segment =
                owner.ok_or_else(|| ExecutionError::Refused("a row of nobody".to_owned()))?;
            self.sample(batch, segment, sample, output).map_err(ExecutionError::Refused)?;
        }
        if fault == Some(Fault::NoOutput) {
            output.clear();
        }
        self.clock.advance(self.config.cost.time(batch.rows(), pairs));
        Ok(())
    }

    fn copy_page(&mut self, from: PageId, to: PageId, tokens: usize) -> Result<(), ExecutionError> {
        let pages = self.config.limits.pages;
        if from.0 as usize >= pages || to.0 as usize >= pages || tokens > PAGE_TOKENS {
            return Err(ExecutionError::Refused(format!("{tokens} tokens of {from:?} to {to:?}")));
        }
        let start = from.0 as usize * PAGE_TOKENS;
        self.memory.copy_within(start..start + tokens, to.0 as usize * PAGE_TOKENS);
        Ok(())
    }
}

fn place(table: &[PageId], position: usize) -> usize {
    table[position / PAGE_TOKENS].0 as usize * PAGE_TOKENS + position % PAGE_TOKENS
}

#[cfg(test)]
mod tests {
    use super::*;
    use laneway_execution::{SamplingKey, SamplingParams};

    fn executor(faults: &[(u64, Fault)]) -> SimExecutor {
        let limits = Limits {
            pages: 4,
            state_slots: 0,
            rows_per_step: 128,
            samples_per_step: 8,
            top_logprobs: 2,
            drafts: 0,
            proposals: 0,
        };
        let config = SimConfig {
            vocab_size: 1000,
            limits,
            cost: StepCost { step: 10.0, row: 2.0, pair: 1.0 },
            faults: faults.iter().copied().collect(),
            script: Vec::new(),
        };
        SimExecutor::new(config, SimClock::default())
    }

    fn batch(sequence: u64, start: usize, tokens: &[TokenId], pages: &[u32]) -> StepBatch {
        let mut batch = StepBatch::default();
        let pages: Vec<_> = pages.iter().copied().map(PageId).collect();
        let rows = batch.push_segment(SequenceId(sequence), start, tokens, &pages, None);
        batch.samples.push(SampleRow {
            row: rows.end - 1,
            draw: Draw::Sample,
            params: SamplingParams::PLAIN,
            key: SamplingKey { seed: 0, position: (start + tokens.len()) as u64 },
            top_logprobs: 0,
            counts: 0..0,
            biases: 0..0,
            mask: 0..0,
        });
        batch
    }

    #[test]
    fn chunks_and_pages_do_not_matter() {
        let tokens: Vec<TokenId> = (0..100).collect();
        let (mut whole, mut parts) = (StepOutput::default(), StepOutput::default());
        executor(&[]).step(&batch(1, 0, &tokens, &[0, 1]), &mut whole).unwrap();
        let mut other = executor(&[]);
        other.step(&batch(1, 0, &tokens[..70], &[3, 2]), &mut parts).unwrap();
        other.step(&batch(1, 70, &tokens[70..], &[3, 2]), &mut parts).unwrap();
        assert_eq!(whole, parts);
        // Two steps, 100 rows, 5050 pairs.
        assert_eq!(other.clock.now().as_nanos(), 20 + 200 + 5050);
    }

    #[test]
    fn foreign_and_missing_pages_are_found() {
        let mut executor = executor(&[]);
        let mut output = StepOutput::default();
        executor.step(&batch(1, 0, &[1, 2, 3], &[0]), &mut output).unwrap();
        for wrong in [batch(2, 3, &[4], &[0]), batch(1, 3, &[4], &[1]), batch(1, 4, &[4], &[0])] {
            let error = executor.step(&wrong, &mut output).unwrap_err();
            assert!(matches!(error, ExecutionError::Refused(_)), "{error}");
        }
        executor.step(&batch(1, 3, &[4], &[0]), &mut output).unwrap();
    }

    #[test]
    fn faults_come_in_their_step() {
        let mut executor = executor(&[(1, Fault::Device)]);
        let mut output = StepOutput::default();
        executor.step(&batch(1, 0, &[1], &[0]), &mut output).unwrap();
        let lost = executor.step(&batch(1, 1, &[2], &[0]), &mut output);
        assert!(matches!(lost, Err(ExecutionError::Device(_))));
        assert!(executor.step(&batch(1, 1, &[2], &[0]), &mut output).is_err(), "pages are lost");
    }
}
