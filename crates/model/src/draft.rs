//! Drafting with the model's own draft layer (multi-token prediction).
//!
//! The first pass runs behind every step, over the same rows: at the row of position `t` the layer
//! sees the hidden row of `t` and the token of `t + 1`, and predicts the token of `t + 2`. So its
//! keys and values keep up with the sequence. Rows of drafts that were not accepted leave entries
//! that nothing attends to before they are overwritten. Further passes take one row a sequence:
//! the token proposed last, and the layer's own output in place of the hidden row.
//!
//! Proposals are drawn with the noise of the position they are for, like the tokens that they try
//! to foresee, so that the same draw from a similar distribution is likely to be the same token.

use crate::ModelConfig;
use crate::forward::{Arena, Memory, Probe, accumulate, onto, run_layer};
use crate::weights::{Draft, Weights};
use laneway_execution::{
    Drafting, Draw, SampleRow, SamplingKey, Segment, StepBatch, StepOutput, TokenId,
};
use laneway_ops::{OpError, Ops};

/// Most tokens that are proposed behind a segment.
pub(crate) const PROPOSALS_MAX: usize = 5;

/// A sequence that wants proposals.
struct Lane {
    /// Index of its segment in the step.
    segment: usize,
    wanted: usize,
    proposed: usize,
    tokens: [TokenId; PROPOSALS_MAX],
    /// The step's sample that drew the token before the proposals.
    sample: usize,
    /// Position of that token.
    position: usize,
}

impl Lane {
    fn last(&self, output: &StepOutput) -> TokenId {
        match self.proposed {
            0 => output.samples[self.sample].token,
            n => self.tokens[n - 1],
        }
    }
}

/// Room for the draft layer's passes.
pub(crate) struct Drafter<B: Ops> {
    /// The pass that is under way: a step of the draft layer alone.
    batch: StepBatch,
    output: StepOutput,
    lanes: Vec<Lane>,
    /// Rows of the pass before (at first: of the step) whose hidden rows go in.
    rows: Vec<usize>,
    /// Hidden rows that go in, and what the layer makes of them.
    hidden: B::Activations,
    hidden_normed: B::Activations,
    token: B::Activations,
    token_normed: B::Activations,
    state: B::Activations,
    sampled: B::Activations,
}

impl<B: Ops> Drafter<B> {
    pub fn new(backend: &mut B, width: usize) -> Result<Self, OpError> {
        Ok(Drafter {
            batch: StepBatch::default(),
            output: StepOutput::default(),
            lanes: Vec::new(),
            rows: Vec::new(),
            hidden: backend.new_activations(width)?,
            hidden_normed: backend.new_activations(width)?,
            token: backend.new_activations(width)?,
            token_normed: backend.new_activations(width)?,
            state: backend.new_activations(width)?,
            sampled: backend.new_activations(width)?,
        })
    }

    /// Runs the passes that follow a step and adds the proposals to its output.
    pub fn propose(
        &mut self,
        backend: &mut B,
        config: &ModelConfig,
        weights: &Weights<B>,
        draft: &Draft<B>,
        memory: &mut Memory<B>,
        arena: &mut Arena<B>,
        batch: &StepBatch,
        output: &mut StepOutput,
        mut probe: Option<&mut Probe<'_>>,
    ) -> Result<(), OpError> {
        self.follow(batch, output);
        let mut passes = 0;
        let mut more = !self.rows.is_empty();
        while more {
            backend.begin_step(&self.batch)?;
            let from = if passes == 0 { arena.last.as_ref() } else { None };
            backend.gather_rows(from.unwrap_or(&self.state), &self.rows, &mut self.hidden)?;
            self.pass(backend, config, weights, draft, memory, arena)?;
            if let Some(probe) = &mut probe {
                let rows = backend.read(&self.state, self.batch.rows())?;
                probe(config.layers + passes, &rows);
            }
            passes += 1;
            more = self.extend(batch, output);
        }
        for segment in 0..batch.segments.len() {
            let first = output.proposals.len();
            if let Some(lane) = self.lanes.iter().find(|lane| lane.segment == segment) {
                output.proposals.extend_from_slice(&lane.tokens[..lane.proposed]);
            }
            output.proposed.push(first..output.proposals.len());
        }
        Ok(())
    }

    /// Prepares the first pass: the rows of all segments that are kept up with, each with the
    /// token behind it.
    fn follow(&mut self, batch: &StepBatch, output: &StepOutput) {
        self.batch.clear();
        self.lanes.clear();
        self.rows.clear();
        for (index, segment) in batch.segments.iter().enumerate() {
            let accepted = batch.accepted(segment, &output.samples);
            let last = segment.rows.end - 1 - (segment.drafts - accepted);
            let (next, wanted) = match segment.drafting {
                Drafting::Off => continue,
                Drafting::Follow { next } => (next, 0),
                Drafting::Propose { count } => {
                    let drawn = |s: &SampleRow| s.row == last && s.draw == Draw::Sample;
                    let Some(sample) = batch.samples.iter().position(drawn) else { continue };
                    self.lanes.push(Lane {
                        segment: index,
                        wanted: count.min(PROPOSALS_MAX),
                        proposed: 0,
                        tokens: [0; PROPOSALS_MAX],
                        sample,
                        position: segment.start + (last - segment.rows.start) + 1,
                    });
                    (output.samples[sample].token, count)
                }
            };
            let first = self.batch.rows();
            self.batch.tokens.extend_from_slice(&batch.segment_tokens(segment)[1..]);
            self.batch.tokens.push(next);
            self.batch.tokens[first + (last - segment.rows.start)] = next;
            self.push_segment(batch, segment, first, segment.start);
            self.rows.extend(segment.rows.clone());
            if wanted > 0 {
                let row = first + (last - segment.rows.start);
                self.push_sample(batch, self.lanes.len() - 1, row);
            }
        }
    }

    /// Takes in what the pass drew and prepares the next one; false if nobody wants more.
    fn extend(&mut self, batch: &StepBatch, output: &StepOutput) -> bool {
        let Drafter { batch: pass, output: found, lanes, rows, .. } = self;
        let mut drawn = pass.samples.iter().zip(&found.samples);
        rows.clear();
        for lane in lanes.iter_mut().filter(|lane| lane.proposed < lane.wanted) {
            let Some((row, sample)) = drawn.next() else { break };
            lane.tokens[lane.proposed] = sample.token;
            lane.proposed += 1;
            if lane.proposed < lane.wanted {
                rows.push(row.row);
            }
        }
        pass.clear();
        for index in 0..self.lanes.len() {
            let lane = &self.lanes[index];
            if lane.proposed < lane.wanted {
                let (segment, row) = (&batch.segments[lane.segment], self.batch.rows());
                let start = lane.position + lane.proposed - 1;
                self.batch.tokens.push(lane.last(output));
                self.push_segment(batch, segment, row, start);
                self.push_sample(batch, index, row);
            }
        }
        !self.batch.is_empty()
    }

    /// Adds a segment whose tokens are there already, from row `first`.
    fn push_segment(&mut self, batch: &StepBatch, segment: &Segment, first: usize, start: usize) {
        let blocks = self.batch.block_tables.len();
        self.batch.block_tables.extend_from_slice(batch.block_table(segment));
        self.batch.segments.push(Segment {
            sequence: segment.sequence,
            rows: first..self.batch.tokens.len(),
            start,
            blocks: blocks..self.batch.block_tables.len(),
            state_slot: None,
            drafts: 0,
            drafting: Drafting::Off,
        });
    }

    /// Adds a row that draws the lane's next proposal, as its sequence would.
    fn push_sample(&mut self, batch: &StepBatch, lane: usize, row: usize) {
        let lane = &self.lanes[lane];
        let drawn = &batch.samples[lane.sample];
        let (counts, biases) = (self.batch.counts.len(), self.batch.biases.len());
        self.batch.counts.extend_from_slice(&batch.counts[drawn.counts.clone()]);
        self.batch.biases.extend_from_slice(&batch.biases[drawn.biases.clone()]);
        self.batch.samples.push(SampleRow {
            row,
            draw: Draw::Sample,
            params: drawn.params,
            key: SamplingKey {
                seed: drawn.key.seed,
                position: drawn.key.position + 1 + lane.proposed as u64,
            },
            top_logprobs: 0,
            counts: counts..self.batch.counts.len(),
            biases: biases..self.batch.biases.len(),
            mask: 0..0,
        });
    }

    /// One pass over `self.batch` with the hidden rows at hand.
    fn pass(
        &mut self,
        backend: &mut B,
        config: &ModelConfig,
        weights: &Weights<B>,
        draft: &Draft<B>,
        memory: &mut Memory<B>,
        arena: &mut Arena<B>,
    ) -> Result<(), OpError> {
        let epsilon = config.norm_epsilon;
        let Drafter { hidden, hidden_normed, token, token_normed, state, sampled, .. } = self;
        backend.embed(&weights.embedding, token)?;
        backend.rms_norm(token, &draft.token_norm, epsilon, token_normed)?;
        backend.rms_norm(hidden, &draft.hidden_norm, epsilon, hidden_normed)?;
        backend.linear(token_normed, &mut [onto(&draft.from_token, &mut arena.hidden)])?;
        accumulate(backend, hidden_normed, &draft.from_hidden, &mut arena.hidden)?;
        run_layer(backend, config, config.attention_layers(), &draft.layer, memory, arena)?;
        backend.rms_norm(&arena.hidden, &draft.norm, epsilon, state)?;
        self.output.clear();
        if self.batch.samples.is_empty() {
            return Ok(());
        }
        arena.rows.clear();
        arena.rows.extend(self.batch.samples.iter().map(|sample| sample.row));
        backend.gather_rows(state, &arena.rows, sampled)?;
        backend.logits_sample(sampled, weights.head(), &mut self.output)
    }
}
