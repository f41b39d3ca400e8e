//! Checks a step before anything is changed: every index, position, page and parameter.

use laneway_execution::{
    Drafting, Draw, ExecutionError, Limits, PAGE_TOKENS, SampleRow, Segment, SlotId, StepBatch,
    TokenId, pages_for,
};
use laneway_ops::Frontier;

/// Checks steps against a model's limits; allocates at start only.
#[derive(Debug)]
pub(crate) struct Validator {
    vocabulary: usize,
    context: usize,
    limits: Limits,
    /// For every page the number of the last step that wrote it.
    written: Vec<u64>,
    /// How far the recurrent state in every slot goes, and the number of the last step that
    /// used it.
    slots: Vec<(Frontier, u64)>,
    step: u64,
}

type Checked = Result<(), ExecutionError>;

fn ensure(holds: bool, detail: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(ExecutionError::Refused(detail())) }
}

impl Validator {
    pub fn new(vocabulary: usize, context: usize, limits: Limits) -> Self {
        Validator {
            vocabulary,
            context,
            limits,
            written: vec![0; limits.pages],
            slots: vec![(Frontier::default(), 0); limits.state_slots],
            step: 0,
        }
    }

    /// Checks a whole step.
    pub fn check(&mut self, batch: &StepBatch) -> Checked {
        self.step += 1;
        let Limits { rows_per_step, samples_per_step, .. } = self.limits;
        let (rows, samples) = (batch.rows(), batch.samples.len());
        ensure(rows > 0, || "no rows".to_owned())?;
        ensure(rows <= rows_per_step, || format!("{rows} rows, at most {rows_per_step}"))?;
        ensure(samples <= samples_per_step, || {
            format!("{samples} sampled rows, at most {samples_per_step}")
        })?;
        for &token in &batch.tokens {
            self.token("row", token)?;
        }
        let mut next_row = 0;
        for segment in &batch.segments {
            self.segment(batch, segment, next_row)?;
            next_row = segment.rows.end;
        }
        ensure(next_row == rows, || format!("segments cover {next_row} of {rows} rows"))?;
        let mut last_row = 0;
        for sample in &batch.samples {
            ensure(sample.row >= last_row && sample.row < rows, || {
                format!("sampled row {} after row {last_row}, of {rows} rows", sample.row)
            })?;
            last_row = sample.row;
            self.sample(batch, sample)?;
        }
        for segment in &batch.segments {
            self.drafting(batch, segment)?;
        }
        Ok(())
    }

    /// Notes how far a step that has run took the state in its slots.
    pub fn advance(&mut self, batch: &StepBatch) {
        for segment in &batch.segments {
            let slot = segment.state_slot.map(|slot| slot.0 as usize);
            if let Some((frontier, _)) = slot.and_then(|slot| self.slots.get_mut(slot)) {
                *frontier = Frontier::behind(segment);
            }
        }
    }

    /// Notes that a slot holds exactly the tokens before `position`.
    pub fn settle(&mut self, slot: SlotId, position: usize) {
        if let Some((frontier, _)) = self.slots.get_mut(slot.0 as usize) {
            *frontier = Frontier { certain: position, pending: 0 };
        }
    }

    /// Checks that there is such a slot.
    pub fn slot(&self, slot: SlotId) -> Checked {
        let (slot, slots) = (slot.0 as usize, self.slots.len());
        ensure(slot < slots, || format!("slot {slot} of {slots}"))
    }

    /// Checks that a slot holds a position.
    pub fn holds(&self, slot: SlotId, position: usize) -> Checked {
        self.slot(slot)?;
        let held = self.slots[slot.0 as usize].0.accepted(position);
        held.map(drop).map_err(ExecutionError::Refused)
    }

    /// Checks that a segment goes on where the state in its slot ends.
    fn state(&mut self, segment: &Segment) -> Checked {
        if self.slots.is_empty() {
            return Ok(());
        }
        let name = segment.sequence.0;
        let slot = segment.state_slot;
        ensure(slot.is_some(), || format!("sequence {name} has no slot for its state"))?;
        let slot = slot.unwrap_or_default();
        self.slot(slot)?;
        let (frontier, used) = &mut self.slots[slot.0 as usize];
        ensure(*used != self.step, || format!("slot {} is used twice in one step", slot.0))?;
        *used = self.step;
        let held = frontier.before(segment).map(drop);
        held.map_err(|detail| ExecutionError::Refused(format!("sequence {name}: {detail}")))
    }

    /// Checks drafts, and what is wanted of the drafter.
    fn drafting(&self, batch: &StepBatch, segment: &Segment) -> Checked {
        let &Segment { ref rows, drafts, drafting, start, ref blocks, .. } = segment;
        let name = segment.sequence.0;
        let Limits { drafts: most, proposals, .. } = self.limits;
        ensure(drafts <= most && drafts < rows.len(), || {
            format!("sequence {name}: {drafts} drafts in {} rows, at most {most}", rows.len())
        })?;
        let drawn = |row: usize| {
            let mut of_row = batch.samples.iter().filter(|sample| sample.row == row);
            of_row.next().is_some_and(|s| s.draw == Draw::Sample) && of_row.next().is_none()
        };
        let proposing = matches!(drafting, Drafting::Propose { .. });
        let first = rows.end - 1 - drafts;
        if drafts > 0 || proposing {
            let missing = (first..rows.end).find(|&row| !drawn(row));
            ensure(missing.is_none(), || {
                format!("sequence {name}: row {} is not drawn once", missing.unwrap_or_default())
            })?;
        }
        match drafting {
            Drafting::Off => Ok(()),
            Drafting::Follow { next } => self.token("next", next),
            Drafting::Propose { count } => {
                ensure(count <= proposals, || {
                    format!("sequence {name}: {count} proposals, at most {proposals}")
                })?;
                // The last proposal needs no place of its own, nor does the one before it.
                let end = start + rows.len() + count.saturating_sub(1);
                ensure(blocks.len() >= pages_for(end) && end <= self.context, || {
                    format!("sequence {name}: {} pages and {count} proposals", blocks.len())
                })
            }
        }
    }

    fn token(&self, what: &str, token: TokenId) -> Checked {
        let vocabulary = self.vocabulary;
        ensure((token as usize) < vocabulary, || {
            format!("{what}: token {token} is beyond the vocabulary of {vocabulary}")
        })
    }

    fn segment(&mut self, batch: &StepBatch, segment: &Segment, next_row: usize) -> Checked {
        let Segment { sequence, rows, start, blocks, .. } = segment;
        let name = sequence.0;
        let within = rows.start == next_row && rows.start < rows.end && rows.end <= batch.rows();
        ensure(within, || format!("sequence {name}: rows {rows:?}, expected from {next_row}"))?;
        self.state(segment)?;
        let end = start.saturating_add(rows.len());
        ensure(end <= self.context, || {
            format!("sequence {name}: {end} tokens, the context is {}", self.context)
        })?;
        let inside = blocks.start <= blocks.end && blocks.end <= batch.block_tables.len();
        ensure(inside && blocks.len() >= pages_for(end), || {
            format!("sequence {name}: {} pages for {end} tokens", blocks.len())
        })?;
        for (i, page) in batch.block_tables[blocks.clone()].iter().enumerate() {
            ensure((page.0 as usize) < self.limits.pages, || {
                format!("sequence {name}: page {} of {}", page.0, self.limits.pages)
            })?;
            if (start / PAGE_TOKENS..pages_for(end)).contains(&i) {
                let written = &mut self.written[page.0 as usize];
                ensure(*written != self.step, || {
                    format!("sequence {name}: page {} is written twice in one step", page.0)
                })?;
                *written = self.step;
            }
        }
        Ok(())
    }

    fn sample(&self, batch: &StepBatch, sample: &SampleRow) -> Checked {
        let row = sample.row;
        sample.params.validate().map_err(|e| ExecutionError::Refused(format!("row {row}: {e}")))?;
        let most = self.limits.top_logprobs;
        ensure(sample.top_logprobs <= most, || {
            format!("row {row}: {} alternatives, at most {most}", sample.top_logprobs)
        })?;
        if let Draw::Score(token) = sample.draw {
            self.token("score", token)?;
        }
        let side =
            |what: &'static str| move || format!("row {row}: {what} outside the step's side table");
        let counts = batch.counts.get(sample.counts.clone());
        ensure(counts.is_some(), side("counts"))?;
        for count in counts.unwrap_or_default() {
            self.token("count", count.token)?;
        }
        let biases = batch.biases.get(sample.biases.clone());
        ensure(biases.is_some(), side("biases"))?;
        for &(token, bias) in biases.unwrap_or_default() {
            self.token("bias", token)?;
            ensure(bias.is_finite(), || format!("row {row}: bias of token {token} is {bias}"))?;
        }
        let mask = batch.masks.get(sample.mask.clone());
        ensure(mask.is_some(), side("mask"))?;
        mask.map_or(Ok(()), |mask| self.mask(row, mask))
    }

    fn mask(&self, row: usize, mask: &[u32]) -> Checked {
        let words = self.vocabulary.div_ceil(32);
        if mask.is_empty() {
            return Ok(());
        }
        ensure(mask.len() == words, || {
            format!("row {row}: mask of {} words, expected {words}", mask.len())
        })?;
        let unused = (words * 32 - self.vocabulary) as u32;
        let last = mask[words - 1] << unused;
        let allowed = last != 0 || mask[..words - 1].iter().any(|&word| word != 0);
        ensure(allowed, || format!("row {row}: the mask allows no token"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use laneway_execution::{PageId, SamplingKey, SamplingParams, SequenceId, TokenCount};

    const LIMITS: Limits = Limits {
        pages: 8,
        state_slots: 0,
        rows_per_step: 100,
        samples_per_step: 2,
        top_logprobs: 5,
        drafts: 0,
        proposals: 0,
    };

    fn sample(row: usize) -> SampleRow {
        SampleRow {
            row,
            draw: Draw::Sample,
            params: SamplingParams::GREEDY,
            key: SamplingKey { seed: 0, position: 0 },
            top_logprobs: 0,
            counts: 0..0,
            biases: 0..0,
            mask: 0..0,
        }
    }

    /// Two sequences: tokens 62..66 of one, token 0 of another.
    fn good() -> StepBatch {
        let mut batch = StepBatch::default();
        batch.push_segment(SequenceId(1), 62, &[1, 2, 3, 4], &[PageId(3), PageId(7)], None);
        batch.push_segment(SequenceId(2), 0, &[39], &[PageId(0)], None);
        batch.samples.extend([sample(3), sample(4)]);
        batch
    }

    #[test]
    fn a_good_step_passes_twice() {
        let mut validator = Validator::new(40, 128, LIMITS);
        for _ in 0..2 {
            validator.check(&good()).unwrap();
        }
    }

    #[test]
    fn refusals_carry_the_numbers() {
        type Spoil = fn(&mut StepBatch);
        let cases: [(&str, Spoil); 19] = [
            ("no rows", StepBatch::clear),
            ("106 rows, at most 100", |b| {
                b.push_segment(SequenceId(3), 0, &[0; 101], &[PageId(1), PageId(2)], None);
            }),
            ("3 sampled rows, at most 2", |b| b.samples.push(sample(4))),
            ("row: token 40 is beyond the vocabulary of 40", |b| b.tokens[4] = 40),
            ("segments cover 4 of 5 rows", |b| b.segments.truncate(1)),
            ("sequence 2: rows 3..5, expected from 4", |b| b.segments[1].rows = 3..5),
            ("sequence 1: 129 tokens, the context is 128", |b| b.segments[0].start = 125),
            ("sequence 1: 1 pages for 66 tokens", |b| b.segments[0].blocks = 0..1),
            ("sequence 2: page 8 of 8", |b| b.block_tables[2] = PageId(8)),
            ("sequence 2: page 7 is written twice in one step", |b| {
                b.block_tables[2] = PageId(7);
            }),
            ("sampled row 5 after row 3, of 5 rows", |b| b.samples[1].row = 5),
            ("sampled row 2 after row 3, of 5 rows", |b| b.samples[1].row = 2),
            ("row 3: 6 alternatives, at most 5", |b| b.samples[0].top_logprobs = 6),
            ("score: token 40 is beyond the vocabulary of 40", |b| {
                b.samples[0].draw = Draw::Score(40);
            }),
            ("row 3: counts outside the step's side table", |b| b.samples[0].counts = 0..1),
            ("count: token 41 is beyond the vocabulary of 40", |b| {
                b.counts.push(TokenCount { token: 41, generated: 0 });
                b.samples[0].counts = 0..1;
            }),
            ("row 3: bias of token 1 is inf", |b| {
                b.biases.push((1, f32::INFINITY));
                b.samples[0].biases = 0..1;
            }),
            ("row 3: mask of 1 words, expected 2", |b| {
                b.masks.push(1);
                b.samples[0].mask = 0..1;
            }),
            ("row 3: the mask allows no token", |b| {
                // Token 40 does not exist.
                b.masks.extend([0, 1 << 8]);
                b.samples[0].mask = 0..2;
            }),
        ];
        for (message, spoil) in cases {
            let mut batch = good();
            spoil(&mut batch);
            let error = Validator::new(40, 128, LIMITS).check(&batch).unwrap_err();
            assert_eq!(error.to_string(), format!("step refused: {message}"));
        }
        let mut hot = good();
        hot.samples[0].params.temperature = -1.0;
        let error = Validator::new(40, 128, LIMITS).check(&hot).unwrap_err().to_string();
        assert!(error.contains("row 3: temperature is -1"), "{error}");
    }
}
