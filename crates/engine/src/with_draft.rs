//! A model and a smaller one that drafts for it, together as one executor.
//!
//! It stands in the engine, not beside the models, because it is made of nothing but two executors
//! and a rule about steps; for the scheduler it is the same as a model with a draft layer.
//!
//! The draft model has a pool of its own with as many pages, so the block tables of the model's
//! sequences are its own, too. After each step of the model it reads the tokens that have become
//! certain and goes on from the last one, a token a pass for all sequences, drawing with the same
//! noise and parameters as the model would: then a draft is right as often as both models agree.

use crate::speculation::DRAFTS_MAX;
use laneway_execution::{
    Drafting, Draw, ExecutionError, Executor, Geometry, Limits, PageId, SampleRow, SamplingKey,
    SlotId, StepBatch, StepOutput, TokenCount, TokenId,
};

/// Why a model cannot draft for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DraftMismatch {
    /// Their tokens are not the same.
    #[error("the draft model has {draft} tokens in its vocabulary, the model has {target}")]
    Vocabulary {
        /// Vocabulary of the draft model.
        draft: usize,
        /// Vocabulary of the model.
        target: usize,
    },
    /// The draft model's pool cannot hold the model's sequences.
    #[error("the draft model's pool has {draft} pages, the model's has {target}")]
    Pages {
        /// Pages of the draft model.
        draft: usize,
        /// Pages of the model.
        target: usize,
    },
    /// The model cannot verify drafts.
    #[error("the model verifies no drafts")]
    NoDrafts,
    /// The draft model is sized for too little.
    #[error("the draft model needs {what}, at least {needed}, and has {found}")]
    Size {
        /// Of what.
        what: &'static str,
        /// How many are needed.
        needed: usize,
        /// How many there are.
        found: usize,
    },
}

/// The model `T` with the model `D` as its drafter.
#[derive(Debug)]
pub struct WithDraft<T, D> {
    target: T,
    draft: D,
    geometry: Geometry,
    limits: Limits,
    /// The model's step without anything for a drafter.
    plain: StepBatch,
    /// A step of the draft model.
    batch: StepBatch,
    output: StepOutput,
    lanes: Vec<Lane>,
    /// Tokens of one segment of it.
    tokens: Vec<TokenId>,
    /// The draft model's part of a state image.
    image: Vec<u8>,
}

/// A sequence that wants drafts.
#[derive(Debug)]
struct Lane {
    /// Its segment in the model's step, and the row behind which drafts are wanted.
    segment: usize,
    sample: usize,
    count: usize,
    /// The token drawn there, and its position.
    drawn: TokenId,
    position: usize,
    /// Where the draft model's state runs ahead.
    slot: Option<SlotId>,
    counts: Vec<TokenCount>,
    proposals: Vec<TokenId>,
    /// Its draw in the draft model's step under way.
    pending: Option<usize>,
}

impl<T: Executor, D: Executor> WithDraft<T, D> {
    /// Puts the two together.
    ///
    /// # Errors
    /// [`DraftMismatch`] if `draft` cannot draft for `target`.
    pub fn new(target: T, draft: D) -> Result<Self, DraftMismatch> {
        let limits = joint_limits(&target, &draft)?;
        let mut geometry = target.geometry().clone();
        geometry.page_bytes += draft.geometry().page_bytes;
        geometry.state_bytes += draft.geometry().state_bytes;
        Ok(Self {
            target,
            draft,
            geometry,
            limits,
            plain: StepBatch::default(),
            batch: StepBatch::default(),
            output: StepOutput::default(),
            lanes: Vec::new(),
            tokens: Vec::new(),
            image: Vec::new(),
        })
    }

    /// Takes the tokens of a step that are certain by now into the draft model, and notes who wants
    /// drafts behind them.
    fn keep_up(&mut self, step: &StepBatch, drawn: &StepOutput) -> Result<(), ExecutionError> {
        let context = self.draft.geometry().native_context;
        for (index, segment) in step.segments.iter().enumerate() {
            let certain =
                segment.rows.len() - segment.drafts + step.accepted(segment, &drawn.samples);
            let position = segment.start + certain;
            if segment.drafting == Drafting::Off || position > context {
                continue;
            }
            let last = segment.rows.start + certain - 1;
            let lane = self.lane(step, drawn, index, last, position);
            self.tokens.clear();
            self.tokens.extend_from_slice(&step.tokens[segment.rows.start..=last]);
            // A recurrent state must not run ahead of what is certain: a copy of it does.
            if !self.is_recurrent() {
                self.tokens.extend(lane.iter().map(|lane| lane.drawn));
            }
            if self.batch.rows() + self.tokens.len() > self.draft.limits().rows_per_step {
                self.run()?;
            }
            let slot = segment.state_slot.filter(|_| self.is_recurrent());
            let (sequence, table) = (segment.sequence, step.block_table(segment));
            self.batch.push_segment(sequence, segment.start, &self.tokens, table, slot);
            if let Some(lane) = lane {
                self.lanes.push(lane);
                if !self.is_recurrent() {
                    self.push_draw(step, self.lanes.len() - 1)?;
                }
            }
        }
        self.run()
    }

    /// What a segment wants behind row `last`, which is at the position before `position`; none if
    /// it wants no drafts or there is no room for one.
    fn lane(
        &self,
        step: &StepBatch,
        drawn: &StepOutput,
        segment: usize,
        last: usize,
        position: usize,
    ) -> Option<Lane> {
        let Drafting::Propose { count } = step.segments[segment].drafting else { return None };
        let room = self.draft.geometry().native_context - position;
        let count = count.min(room).min(self.limits.proposals);
        let is_draw = |row: &SampleRow| row.row == last && row.draw == Draw::Sample;
        let sample = step.samples.iter().position(is_draw).filter(|_| count > 0)?;
        let row = &step.samples[sample];
        let drawn = drawn.samples.get(sample)?.token;
        let mut counts = Vec::new();
        if row.params.uses_counts() {
            counts.extend_from_slice(&step.counts[row.counts.clone()]);
            count_one_more(&mut counts, drawn);
        }
        let slots = self.limits.state_slots as u32;
        let slot = step.segments[segment].state_slot.filter(|_| self.is_recurrent());
        Some(Lane {
            segment,
            sample,
            count,
            drawn,
            position,
            slot: slot.map(|SlotId(slot)| SlotId(slot + slots)),
            counts,
            proposals: Vec::with_capacity(count),
            pending: None,
        })
    }

    /// Gives every sequence that wants drafts a copy of its recurrent state.
    fn copy_states(&mut self, step: &StepBatch) -> Result<(), ExecutionError> {
        for lane in &self.lanes {
            let from = step.segments[lane.segment].state_slot;
            if let (Some(from), Some(to)) = (from, lane.slot) {
                self.draft
                    .copy_state(from, to, lane.position)
                    .map_err(|error| draft_error(&error))?;
            }
        }
        Ok(())
    }

    /// Draws one draft after the other until everybody has as many as they want.
    fn go_on(&mut self, step: &StepBatch) -> Result<(), ExecutionError> {
        loop {
            let mut over = true;
            for index in 0..self.lanes.len() {
                let lane = &self.lanes[index];
                if lane.proposals.len() >= lane.count {
                    continue;
                }
                over = false;
                if self.batch.rows() >= self.draft.limits().rows_per_step {
                    self.run()?;
                }
                let lane = &self.lanes[index];
                let segment = &step.segments[lane.segment];
                let token = lane.proposals.last().copied().unwrap_or(lane.drawn);
                let start = lane.position + lane.proposals.len();
                let (sequence, table) = (segment.sequence, step.block_table(segment));
                self.batch.push_segment(sequence, start, &[token], table, lane.slot);
                self.push_draw(step, index)?;
            }
            if over {
                return Ok(());
            }
            self.run()?;
        }
    }

    /// Has a token drawn at the last row of the draft model's step, for lane `index`.
    fn push_draw(&mut self, step: &StepBatch, index: usize) -> Result<(), ExecutionError> {
        let lane = &mut self.lanes[index];
        let row = &step.samples[lane.sample];
        let counts = self.batch.counts.len();
        let biases = self.batch.biases.len();
        self.batch.counts.extend_from_slice(&lane.counts);
        self.batch.biases.extend_from_slice(&step.biases[row.biases.clone()]);
        lane.pending = Some(self.batch.samples.len());
        let position = lane.position + lane.proposals.len() + 1;
        self.batch.samples.push(SampleRow {
            row: self.batch.tokens.len() - 1,
            draw: Draw::Sample,
            params: row.params,
            key: SamplingKey { seed: row.key.seed, position: position as u64 },
            top_logprobs: 0,
            counts: counts..self.batch.counts.len(),
            biases: biases..self.batch.biases.len(),
            mask: 0..0,
        });
        if self.batch.samples.len() >= self.draft.limits().samples_per_step {
            self.run()?;
        }
        Ok(())
    }

    /// Runs the draft model's step, if there is anything in it, and hands out what was drawn.
    fn run(&mut self) -> Result<(), ExecutionError> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let result = self.draft.step(&self.batch, &mut self.output);
        self.batch.clear();
        result.map_err(|error| draft_error(&error))?;
        for lane in &mut self.lanes {
            let Some(sample) = lane.pending.take() else { continue };
            let Some(drawn) = self.output.samples.get(sample) else {
                let missing = "draft model: a draw is missing".to_owned();
                return Err(ExecutionError::Device(missing));
            };
            lane.proposals.push(drawn.token);
            if !lane.counts.is_empty() {
                count_one_more(&mut lane.counts, drawn.token);
            }
        }
        Ok(())
    }

    fn is_recurrent(&self) -> bool {
        self.draft.limits().state_slots > 0
    }
}

impl<T: Executor, D: Executor> Executor for WithDraft<T, D> {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The model's step, then the draft model's. An error of the latter is one of the device: the
    /// model's step has run by then.
    fn step(&mut self, batch: &StepBatch, output: &mut StepOutput) -> Result<(), ExecutionError> {
        let (rows, most) = (batch.rows(), self.limits.rows_per_step);
        if rows > most {
            return Err(ExecutionError::Refused(format!("{rows} rows, at most {most}")));
        }
        self.plain.clear();
        append(&mut self.plain, batch);
        self.plain.segments.iter_mut().for_each(|segment| segment.drafting = Drafting::Off);
        self.target.step(&self.plain, output)?;
        output.proposals.clear();
        output.proposed.clear();
        output.proposed.resize(batch.segments.len(), 0..0);
        self.lanes.clear();
        self.batch.clear();
        self.keep_up(batch, output)?;
        self.copy_states(batch)?;
        self.go_on(batch)?;
        for lane in &self.lanes {
            let first = output.proposals.len();
            output.proposals.extend_from_slice(&lane.proposals);
            output.proposed[lane.segment] = first..output.proposals.len();
        }
        Ok(())
    }

    fn copy_page(&mut self, from: PageId, to: PageId, tokens: usize) -> Result<(), ExecutionError> {
        self.target.copy_page(from, to, tokens)?;
        self.draft.copy_page(from, to, tokens).map_err(|error| draft_error(&error))
    }

    fn copy_state(
        &mut self,
        from: SlotId,
        to: SlotId,
        position: usize,
    ) -> Result<(), ExecutionError> {
        self.check_slot(from)?;
        self.check_slot(to)?;
        if self.target.limits().state_slots > 0 {
            self.target.copy_state(from, to, position)?;
        }
        if self.is_recurrent() {
            self.draft.copy_state(from, to, position).map_err(|error| draft_error(&error))?;
        }
        Ok(())
    }

    fn save_state(
        &mut self,
        slot: SlotId,
        position: usize,
        image: &mut Vec<u8>,
    ) -> Result<(), ExecutionError> {
        self.check_slot(slot)?;
        image.clear();
        if self.target.limits().state_slots > 0 {
            self.target.save_state(slot, position, image)?;
        }
        if self.is_recurrent() {
            self.draft
                .save_state(slot, position, &mut self.image)
                .map_err(|error| draft_error(&error))?;
            image.extend_from_slice(&self.image);
        }
        Ok(())
    }

    fn load_state(
        &mut self,
        slot: SlotId,
        position: usize,
        image: &[u8],
    ) -> Result<(), ExecutionError> {
        self.check_slot(slot)?;
        let (found, needed) = (image.len(), self.geometry.state_bytes);
        if found != needed {
            let detail = format!("a state image of {found} bytes, expected {needed}");
            return Err(ExecutionError::Refused(detail));
        }
        let (target, draft) = image.split_at(self.target.geometry().state_bytes);
        if self.target.limits().state_slots > 0 {
            self.target.load_state(slot, position, target)?;
        }
        if self.is_recurrent() {
            self.draft.load_state(slot, position, draft).map_err(|error| draft_error(&error))?;
        }
        Ok(())
    }
}

impl<T, D> WithDraft<T, D> {
    fn check_slot(&self, SlotId(slot): SlotId) -> Result<(), ExecutionError> {
        let slots = self.limits.state_slots;
        if slot as usize >= slots {
            return Err(ExecutionError::Refused(format!("state slot {slot} of {slots}")));
        }
        Ok(())
    }
}

/// What both together take, or why they do not go together.
fn joint_limits(target: &impl Executor, draft: &impl Executor) -> Result<Limits, DraftMismatch> {
    let (theirs, own) = (target.limits(), draft.limits());
    let vocabularies = (draft.geometry().vocab_size, target.geometry().vocab_size);
    if vocabularies.0 != vocabularies.1 {
        return Err(DraftMismatch::Vocabulary { draft: vocabularies.0, target: vocabularies.1 });
    }
    if own.pages < theirs.pages {
        return Err(DraftMismatch::Pages { draft: own.pages, target: theirs.pages });
    }
    if theirs.drafts == 0 {
        return Err(DraftMismatch::NoDrafts);
    }
    // A row for the token that was drawn stands behind a segment's own.
    for (what, needed, found) in
        [("rows a step", 2, own.rows_per_step), ("draws a step", 1, own.samples_per_step)]
    {
        if found < needed {
            return Err(DraftMismatch::Size { what, needed, found });
        }
    }
    // Every state needs a second one, which runs ahead with the drafts.
    let pairs = own.state_slots / 2;
    let state_slots = match (theirs.state_slots, own.state_slots) {
        (slots, 0) => slots,
        (_, 1) => {
            return Err(DraftMismatch::Size { what: "state slots", needed: 2, found: 1 });
        }
        (0, _) => pairs,
        (slots, _) => slots.min(pairs),
    };
    Ok(Limits {
        state_slots,
        rows_per_step: theirs.rows_per_step.min(own.rows_per_step - 1),
        proposals: theirs.drafts.min(DRAFTS_MAX),
        ..*theirs
    })
}

/// Appends all of `more` to an empty step, whose storage is kept.
fn append(step: &mut StepBatch, more: &StepBatch) {
    let StepBatch { tokens, segments, block_tables, samples, counts, biases, masks } = more;
    step.tokens.extend_from_slice(tokens);
    step.segments.extend_from_slice(segments);
    step.block_tables.extend_from_slice(block_tables);
    step.samples.extend_from_slice(samples);
    step.counts.extend_from_slice(counts);
    step.biases.extend_from_slice(biases);
    step.masks.extend_from_slice(masks);
}

/// Counts a generated token.
fn count_one_more(counts: &mut Vec<TokenCount>, token: TokenId) {
    match counts.iter_mut().find(|count| count.token == token) {
        Some(count) => count.generated += 1,
        None => counts.push(TokenCount { token, generated: 1 }),
    }
}

fn draft_error(error: &ExecutionError) -> ExecutionError {
    ExecutionError::Device(format!("draft model: {error}"))
}

#[cfg(test)]
mod tests;
