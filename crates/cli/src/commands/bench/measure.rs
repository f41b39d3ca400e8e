//! Measurements over any executor: the steps that a server would run, without a server.

use anyhow::Result;
use laneway_execution::{
    Draw, Executor, PageId, SampleRow, SamplingKey, SamplingParams, SequenceId, StepBatch,
    StepOutput, TokenId, pages_for,
};
use laneway_ops::synthetic::Stream;
use std::time::{Duration, Instant};

/// Tokens of the prompt that each lane continues.
pub(super) const LANE_PROMPT_TOKENS: usize = 256;

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Test {
    /// Computes a prompt of this many tokens.
    Prefill { tokens: usize },
    /// Generates `tokens` tokens, one after the other, behind `depth` others.
    Decode { tokens: usize, depth: usize },
    /// Generates `tokens` tokens in each of `lanes` sequences at once.
    Lanes { tokens: usize, lanes: usize },
}

impl Test {
    /// Short name, as benchmarks of inference engines write it.
    pub(super) fn name(self) -> String {
        match self {
            Test::Prefill { tokens } => format!("pp{tokens}"),
            Test::Decode { tokens, depth: 0 } => format!("tg{tokens}"),
            Test::Decode { tokens, depth } => format!("tg{tokens} @ {depth}"),
            Test::Lanes { tokens, lanes } => format!("tg{tokens} x {lanes} lanes"),
        }
    }

    /// Sequences that run at once.
    pub(super) fn lanes(self) -> usize {
        match self {
            Test::Lanes { lanes, .. } => lanes,
            _ => 1,
        }
    }

    /// Longest sequence.
    pub(super) fn context(self) -> usize {
        match self {
            Test::Prefill { tokens } => tokens,
            Test::Decode { tokens, depth } => tokens + depth.max(1),
            Test::Lanes { tokens, .. } => tokens + LANE_PROMPT_TOKENS,
        }
    }

    /// Pages that all sequences need.
    pub(super) fn pages(self) -> usize {
        pages_for(self.context()) * self.lanes()
    }

    /// Tokens whose computation is timed.
    fn timed_tokens(self) -> usize {
        match self {
            Test::Prefill { tokens } | Test::Decode { tokens, .. } => tokens,
            Test::Lanes { tokens, lanes } => tokens * lanes,
        }
    }
}

/// Runs measurements on one executor.
pub(super) struct Bench<E> {
    executor: E,
    prefill_chunk: usize,
    batch: StepBatch,
    output: StepOutput,
}

impl<E: Executor> Bench<E> {
    /// A bench that prefills `prefill_chunk` tokens a step.
    pub(super) fn new(executor: E, prefill_chunk: usize) -> Self {
        Bench {
            executor,
            prefill_chunk,
            batch: StepBatch::default(),
            output: StepOutput::default(),
        }
    }

    /// Tokens a second, once for each of `repeats` runs after one that warms up.
    pub(super) fn run(&mut self, test: Test, repeats: usize) -> Result<Vec<f64>> {
        let mut rates = Vec::with_capacity(repeats);
        let mut tokens = self.prepare(test)?;
        for repeat in 0..=repeats {
            let seconds = self.once(test, &mut tokens)?.as_secs_f64();
            if repeat > 0 {
                rates.push(test.timed_tokens() as f64 / seconds);
            }
        }
        Ok(rates)
    }

    /// Computes what the timed part stands on; returns each lane's next token.
    fn prepare(&mut self, test: Test) -> Result<Vec<TokenId>> {
        let depth = match test {
            Test::Prefill { .. } => 0,
            Test::Decode { depth, .. } => depth.max(1),
            Test::Lanes { .. } => LANE_PROMPT_TOKENS,
        };
        let mut next = Vec::new();
        for lane in 0..test.lanes() {
            next.push(self.prefill(test, lane, depth)?);
        }
        Ok(next)
    }

    fn once(&mut self, test: Test, tokens: &mut [TokenId]) -> Result<Duration> {
        let start = Instant::now();
        match test {
            Test::Prefill { tokens } => {
                self.prefill(test, 0, tokens)?;
            }
            // Later runs overwrite what earlier ones appended.
            Test::Decode { tokens: steps, depth } => {
                self.decode(test, tokens, depth.max(1), steps)?;
            }
            Test::Lanes { tokens: steps, .. } => {
                self.decode(test, tokens, LANE_PROMPT_TOKENS, steps)?;
            }
        }
        Ok(start.elapsed())
    }

    /// Prefills `length` made-up tokens of a lane and draws the next one.
    fn prefill(&mut self, test: Test, lane: usize, length: usize) -> Result<TokenId> {
        let vocabulary = self.executor.geometry().vocab_size;
        let mut stream = Stream::new(lane as u64);
        let prompt: Vec<TokenId> =
            (0..length).map(|_| stream.below(vocabulary) as TokenId).collect();
        let mut next = 0;
        for (index, chunk) in prompt.chunks(self.prefill_chunk).enumerate() {
            let start = index * self.prefill_chunk;
            self.batch.clear();
            let rows = self.push(test, lane, start, chunk);
            if start + chunk.len() == length {
                self.batch.samples.push(greedy(rows.end - 1, length));
            }
            self.executor.step(&self.batch, &mut self.output)?;
            next = self.output.samples.first().map_or(next, |sample| sample.token);
        }
        Ok(next)
    }

    /// Generates `steps` tokens behind `depth` in every lane at once.
    fn decode(
        &mut self,
        test: Test,
        tokens: &mut [TokenId],
        depth: usize,
        steps: usize,
    ) -> Result<()> {
        for position in depth..depth + steps {
            self.batch.clear();
            for (lane, &token) in tokens.iter().enumerate() {
                let rows = self.push(test, lane, position, &[token]);
                self.batch.samples.push(greedy(rows.start, position + 1));
            }
            self.executor.step(&self.batch, &mut self.output)?;
            for (token, sample) in tokens.iter_mut().zip(&self.output.samples) {
                *token = sample.token;
            }
        }
        Ok(())
    }

    fn push(
        &mut self,
        test: Test,
        lane: usize,
        start: usize,
        tokens: &[TokenId],
    ) -> std::ops::Range<usize> {
        let each = pages_for(test.context());
        let pages: Vec<PageId> =
            (lane * each..(lane + 1) * each).map(|page| PageId(page as u32)).collect();
        self.batch.push_segment(SequenceId(lane as u64), start, tokens, &pages, None)
    }
}

fn greedy(row: usize, position: usize) -> SampleRow {
    SampleRow {
        row,
        draw: Draw::Sample,
        params: SamplingParams::GREEDY,
        key: SamplingKey { seed: 0, position: position as u64 },
        top_logprobs: 0,
        counts: 0..0,
        biases: 0..0,
        mask: 0..0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use laneway_execution::{ExecutionError, Geometry, Limits, SampledToken};

    /// Records the shape of every step.
    struct Recorder {
        geometry: Geometry,
        limits: Limits,
        steps: Vec<(usize, usize, usize)>,
    }

    impl Executor for Recorder {
        fn geometry(&self) -> &Geometry {
            &self.geometry
        }

        fn limits(&self) -> &Limits {
            &self.limits
        }

        fn step(
            &mut self,
            batch: &StepBatch,
            output: &mut StepOutput,
        ) -> Result<(), ExecutionError> {
            let start = batch.segments[0].start;
            self.steps.push((batch.segments.len(), start, batch.rows()));
            output.clear();
            let sampled = batch.samples.iter();
            output.samples.extend(sampled.map(|_| SampledToken {
                token: 7,
                logprob: 0.0,
                top: 0..0,
            }));
            Ok(())
        }

        fn copy_page(&mut self, _: PageId, _: PageId, _: usize) -> Result<(), ExecutionError> {
            Ok(())
        }
    }

    fn steps(test: Test) -> Vec<(usize, usize, usize)> {
        let geometry =
            Geometry { vocab_size: 50, native_context: 4096, page_bytes: 1, state_bytes: 0 };
        let limits = Limits {
            pages: 99,
            state_slots: 0,
            rows_per_step: 64,
            samples_per_step: 8,
            top_logprobs: 0,
            drafts: 0,
            proposals: 0,
        };
        let mut bench = Bench::new(Recorder { geometry, limits, steps: Vec::new() }, 64);
        assert_eq!(bench.run(test, 1).unwrap().len(), 1);
        bench.executor.steps
    }

    #[test]
    fn prefill_goes_in_chunks_and_starts_over() {
        let run = [(1, 0, 64), (1, 64, 36)];
        assert_eq!(steps(Test::Prefill { tokens: 100 }), [run, run].concat());
    }

    #[test]
    fn decode_stands_on_its_depth() {
        let run = [(1, 65, 1), (1, 66, 1)];
        let before = [(1, 0, 64), (1, 64, 1)];
        assert_eq!(steps(Test::Decode { tokens: 2, depth: 65 }), [before, run, run].concat());
    }

    #[test]
    fn lanes_share_a_step() {
        let found = steps(Test::Lanes { tokens: 1, lanes: 3 });
        assert_eq!(found.len(), 3 * 4 + 2);
        assert_eq!(found[12..], [(3, 256, 3), (3, 256, 3)]);
    }
}
