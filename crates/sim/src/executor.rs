//! The executor: pages and states that remember who wrote them, and faults on demand.

use crate::clock::{SimClock, StepCost};
use crate::drafter::{Drafters, SimDrafter};
use crate::state::States;
use crate::token::{Prefix, draw, score};
use laneway_execution::{
    Drafting, Draw, ExecutionError, Executor, Geometry, Limits, PAGE_TOKENS, PageId, SampleRow,
    SampledToken, Segment, SequenceId, SlotId, StepBatch, StepOutput, TokenId, pages_for,
};
use std::collections::HashMap;

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
    /// What proposes, if the limits say that something does.
    pub drafter: SimDrafter,
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
    states: States,
    drafters: Drafters,
    steps: u64,
    /// Position of the first token that was drawn, by sequence: there its script begins.
    scripts: HashMap<SequenceId, u64>,
}

impl SimExecutor {
    /// An executor whose steps move `clock`.
    #[must_use]
    pub fn new(config: SimConfig, clock: SimClock) -> Self {
        let Limits { pages, state_slots, proposals, .. } = config.limits;
        let geometry = Geometry {
            vocab_size: config.vocab_size,
            native_context: pages * PAGE_TOKENS,
            page_bytes: 1,
            state_bytes: if state_slots > 0 { Prefix::BYTES } else { 0 },
        };
        Self {
            geometry,
            clock,
            memory: vec![None; pages * PAGE_TOKENS],
            states: States::new(state_slots),
            drafters: Drafters::new(config.drafter.clone(), proposals, config.vocab_size),
            steps: 0,
            scripts: HashMap::new(),
            config,
        }
    }

    /// Everything about a batch that can be proved wrong before it runs. Returns what stands before
    /// each segment.
    fn check(&self, batch: &StepBatch) -> Result<Vec<Prefix>, String> {
        let limits = &self.config.limits;
        if batch.rows() > limits.rows_per_step {
            return Err(format!("{} rows, the limit is {}", batch.rows(), limits.rows_per_step));
        }
        if batch.samples.len() > limits.samples_per_step {
            let (samples, most) = (batch.samples.len(), limits.samples_per_step);
            return Err(format!("{samples} samples, the limit is {most}"));
        }
        let mut owners = HashMap::new();
        let mut slots = HashMap::new();
        let mut prefixes = Vec::new();
        for segment in &batch.segments {
            let sequence = segment.sequence;
            for &page in batch.block_table(segment) {
                if let Some(other) = owners.insert(page, sequence) {
                    return Err(format!("{page:?} is {other:?}'s and {sequence:?}'s"));
                }
            }
            if let Some(slot) = segment.state_slot
                && let Some(other) = slots.insert(slot, sequence)
            {
                return Err(format!("{slot:?} is {other:?}'s and {sequence:?}'s"));
            }
            prefixes.push(self.check_segment(batch, segment)?);
        }
        if !batch.samples.is_sorted_by_key(|sample| sample.row) {
            return Err("samples are not in row order".to_owned());
        }
        for sample in &batch.samples {
            let scored = match sample.draw {
                Draw::Sample => 0,
                Draw::Score(token) => token,
            };
            if sample.top_logprobs > limits.top_logprobs || !self.knows(scored) {
                return Err(format!("{sample:?} asks for too much"));
            }
            if sample.row >= batch.rows() {
                return Err(format!("{sample:?} is of nobody's row"));
            }
        }
        Ok(prefixes)
    }

    fn check_segment(&self, batch: &StepBatch, segment: &Segment) -> Result<Prefix, String> {
        let limits = &self.config.limits;
        let sequence = segment.sequence;
        let table = batch.block_table(segment);
        if table.len() < pages_for(segment.start + segment.rows.len()) {
            return Err(format!("{sequence:?} has too short a block table"));
        }
        if let Some(page) = table.iter().find(|page| page.0 as usize >= limits.pages) {
            return Err(format!("{page:?} does not exist"));
        }
        let mut prefix = Prefix::default();
        for position in 0..segment.start {
            prefix.push(self.read(table, sequence, position)?);
        }
        if batch.segment_tokens(segment).iter().any(|&token| !self.knows(token)) {
            return Err(format!("{sequence:?} has a token beyond the vocabulary"));
        }
        let (drafts, rows) = (segment.drafts, segment.rows.len());
        if drafts > limits.drafts || drafts >= rows {
            return Err(format!("{drafts} drafts in {rows} rows, the limit is {}", limits.drafts));
        }
        if drafts > 0 {
            let drawn = segment.rows.end - drafts - 1..segment.rows.end;
            let samples = batch.samples.iter().filter(|sample| drawn.contains(&sample.row));
            let rows: Vec<_> = samples
                .filter(|sample| sample.draw == Draw::Sample)
                .map(|sample| sample.row)
                .collect();
            if !rows.iter().copied().eq(drawn) {
                return Err(format!("{sequence:?} draws at {rows:?} with {drafts} drafts"));
            }
        }
        self.states.check(segment, prefix)?;
        self.drafters.check(batch, segment)?;
        Ok(prefix)
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

    fn write(&mut self, batch: &StepBatch, segment: &Segment) {
        let table = batch.block_table(segment);
        for (position, &token) in (segment.start..).zip(batch.segment_tokens(segment)) {
            let written = Written { sequence: segment.sequence, position, token };
            self.memory[place(table, position)] = Some(written);
        }
    }

    /// Draws and scores the rows of a segment behind `before`, and lets state and drafter follow.
    fn run(
        &mut self,
        batch: &StepBatch,
        segment: &Segment,
        before: Prefix,
        output: &mut StepOutput,
    ) -> Result<(), String> {
        let table = batch.block_table(segment);
        let rows = segment.rows.clone();
        let mut prefix = before;
        let mut prefixes = Vec::with_capacity(rows.len());
        for position in segment.start..segment.start + rows.len() {
            prefix.push(self.read(table, segment.sequence, position)?);
            prefixes.push(prefix);
        }
        for sample in batch.samples.iter().filter(|sample| rows.contains(&sample.row)) {
            self.sample(batch, segment, sample, prefixes[sample.row - rows.start], output)?;
        }
        let tokens = batch.segment_tokens(segment);
        let (certain, drafts) = tokens.split_at(tokens.len() - segment.drafts);
        let accepted = batch.accepted(segment, &output.samples);
        self.states.extend(segment, before, certain, &drafts[..accepted]);
        let last = certain.len() + accepted - 1;
        let is_last = |sample: &SampleRow| sample.row == rows.start + last;
        let drawn = batch.samples.iter().position(is_last);
        let next = drawn.map(|index| output.samples[index].token);
        self.drafters.follow(segment, segment.start + last + 1, next);
        let from = output.proposals.len();
        if let (Drafting::Propose { count }, Some(index), Some(next)) =
            (segment.drafting, drawn, next)
        {
            let mut prefix = prefixes[last];
            prefix.push(next);
            let scripted = |position| self.scripted(segment.sequence, position);
            let sample = &batch.samples[index];
            let proposals = &mut output.proposals;
            self.drafters.propose(batch, sample, prefix, next, count, scripted, proposals);
        }
        output.proposed.push(from..output.proposals.len());
        Ok(())
    }

    fn sample(
        &mut self,
        batch: &StepBatch,
        segment: &Segment,
        sample: &SampleRow,
        prefix: Prefix,
        output: &mut StepOutput,
    ) -> Result<(), String> {
        let last = segment.start + (sample.row - segment.rows.start);
        if sample.key.position != last as u64 + 1 {
            return Err(format!("{:?} draws after position {last}", sample.key));
        }
        let token = match sample.draw {
            Draw::Score(token) => token,
            Draw::Sample => {
                self.scripts.entry(segment.sequence).or_insert(sample.key.position);
                self.scripted(segment.sequence, sample.key.position).unwrap_or_else(|| {
                    let counts = &batch.counts[sample.counts.clone()];
                    let biases = &batch.biases[sample.biases.clone()];
                    draw(prefix, sample.key, counts, biases, self.config.vocab_size)
                })
            }
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

    /// The token of a script at `position`.
    fn scripted(&self, sequence: SequenceId, position: u64) -> Option<TokenId> {
        let script = &self.config.script;
        let place = position.checked_sub(*self.scripts.get(&sequence)?)?;
        script.get(place as usize).or(script.last()).copied()
    }

    /// The device fails: whatever the step's sequences have is lost.
    fn lose(&mut self, batch: &StepBatch) {
        for page in &batch.block_tables {
            let start = page.0 as usize * PAGE_TOKENS;
            self.memory[start..start + PAGE_TOKENS].fill(None);
        }
        for segment in &batch.segments {
            self.states.lose(segment.state_slot);
            self.drafters.forget(segment.sequence);
        }
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
                self.lose(batch);
                return Err(ExecutionError::Device("injected".to_owned()));
            }
            Some(Fault::NoOutput) | None => {}
        }
        let prefixes = self.check(batch).map_err(ExecutionError::Refused)?;
        let (mut pairs, mut passes) = (0.0, 0);
        for segment in &batch.segments {
            self.write(batch, segment);
            let positions = segment.start..segment.start + segment.rows.len();
            pairs += positions.map(|position| (position + 1) as f64).sum::<f64>();
            if let Drafting::Propose { count } = segment.drafting {
                passes = passes.max(count);
            }
        }
        for (segment, before) in batch.segments.iter().zip(prefixes) {
            self.run(batch, segment, before, output).map_err(ExecutionError::Refused)?;
        }
        if fault == Some(Fault::NoOutput) {
            output.clear();
        }
        self.clock.advance(self.config.cost.time(batch.rows(), pairs, passes));
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

    fn copy_state(
        &mut self,
        from: SlotId,
        to: SlotId,
        position: usize,
    ) -> Result<(), ExecutionError> {
        let prefix = self.states.at(from, position).map_err(ExecutionError::Refused)?;
        self.states.set(to, prefix).map_err(ExecutionError::Refused)
    }

    fn save_state(
        &mut self,
        slot: SlotId,
        position: usize,
        image: &mut Vec<u8>,
    ) -> Result<(), ExecutionError> {
        let prefix = self.states.at(slot, position).map_err(ExecutionError::Refused)?;
        image.clear();
        image.extend_from_slice(&prefix.to_bytes());
        Ok(())
    }

    fn load_state(
        &mut self,
        slot: SlotId,
        position: usize,
        image: &[u8],
    ) -> Result<(), ExecutionError> {
        let prefix = Prefix::from_bytes(image).filter(|prefix| prefix.len() == position);
        let prefix = prefix.ok_or_else(|| {
            let found = image.len();
            ExecutionError::Refused(format!("{found} bytes are no state at position {position}"))
        })?;
        self.states.set(slot, prefix).map_err(ExecutionError::Refused)
    }
}

fn place(table: &[PageId], position: usize) -> usize {
    table[position / PAGE_TOKENS].0 as usize * PAGE_TOKENS + position % PAGE_TOKENS
}

#[cfg(test)]
mod tests;
