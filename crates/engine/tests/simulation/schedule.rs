//! One schedule: who comes and goes when, on which executor, and what must hold at every turn.

use crate::Seen;
use crate::executors::{speculation, with_draft};
use crate::random::Random;
use crate::track::{Track, check_speculation, solo};
use laneway_engine::{
    Ending, Failure, FinishReason, Notice, Request, RequestId, Scheduler, SchedulerConfig,
    SubmitError,
};
use laneway_execution::{
    Executor, Limits, SamplingParams, StepBatch, StepOutput, TokenId, pages_for,
};
use laneway_sim::{Fault, SimClock, SimConfig, SimDrafter, SimExecutor, StepCost};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

pub struct Schedule {
    random: Random,
    scheduler: Scheduler,
    executor: Box<dyn Executor>,
    vocab_size: usize,
    clock: SimClock,
    tracks: BTreeMap<RequestId, Track>,
    /// Who got a first token, in that order.
    firsts: Vec<RequestId>,
    to_come: usize,
    next: u64,
    hasty: bool,
    /// One turn in so many cancels a request.
    steadiness: usize,
    steps_max: usize,
    steps: usize,
    faulty: bool,
    seen: Seen,
}

impl Schedule {
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let chunk = random.pick(&[1, 2, 7, 31, 63, 64, 65, 100, 127, 128]);
        let lanes = 1 + random.below(8);
        let pages = random.pick(&[2, 4, 5, 6, 7, 9, 12, 24]);
        let limits = Limits {
            pages,
            state_slots: random.pick(&[0, lanes, lanes + 2]),
            rows_per_step: random.pick(&[lanes + 1, chunk, chunk + lanes, chunk + 4 * lanes]),
            samples_per_step: random.pick(&[lanes, lanes + 3, chunk + lanes, 5 * lanes]),
            top_logprobs: 3,
            drafts: random.pick(&[0, 1, 3, 8, 30]),
            proposals: random.pick(&[0, 1, 3, 5]),
        };
        // Small, so that end tokens are drawn and penalties have repetitions to count; tiny, so
        // that a sequence repeats itself.
        let vocab_size = random.pick(&[40, 40, 3]);
        let sim = SimConfig {
            vocab_size,
            limits,
            cost: StepCost { step: 1000.0, row: 100.0, pair: 1.0, pass: 50.0 },
            faults: HashMap::new(),
            script: Vec::new(),
            drafter: SimDrafter {
                seed,
                accuracy: random.pick(&[vec![1.0], vec![0.9, 0.7, 0.4], vec![0.5], Vec::new()]),
            },
        };
        let faulty = random.below(8) == 0;
        let mut faults = HashMap::new();
        if faulty {
            for step in 0..1000 {
                let fault = random.pick(&[Fault::Refused, Fault::Device, Fault::NoOutput]);
                if random.below(20) == 0 {
                    faults.insert(step, fault);
                }
            }
        }
        let clock = SimClock::default();
        let drafts = limits.drafts > 0 && random.below(3) == 0;
        let executor: Box<dyn Executor> = if drafts {
            Box::new(with_draft(&mut random, sim, faults, &clock))
        } else {
            Box::new(SimExecutor::new(SimConfig { faults, ..sim }, clock.clone()))
        };
        let config = SchedulerConfig {
            window: random.pick(&[128, 500, 2000, 2000]),
            lanes,
            pending_max: random.below(7),
            pending_timeout: Duration::from_micros(random.pick(&[20, 500, 5000, 1 << 40, 1 << 40])),
            chunk,
            reserve_output: random.pick(&[0, 0, 1, 64]),
            speculation: speculation(&mut random),
            limits: *executor.limits(),
        };
        let scheduler = Scheduler::new(config);
        Self {
            scheduler,
            executor,
            vocab_size,
            clock,
            tracks: BTreeMap::new(),
            firsts: Vec::new(),
            to_come: 1 + random.below(16),
            next: 1,
            hasty: random.below(2) == 0,
            steadiness: random.pick(&[5, 30, 100, 1000, usize::MAX]),
            steps_max: 0,
            steps: 0,
            faulty,
            seen: Seen::default(),
            random,
        }
    }

    pub fn run(mut self) -> Seen {
        let mut batch = StepBatch::default();
        let mut output = StepOutput::default();
        while self.to_come > 0 || self.scheduler.outstanding() > 0 {
            self.arrivals();
            self.cancellations();
            let now = self.clock.now();
            self.scheduler.plan(now, &mut batch);
            self.check_pages();
            self.notices();
            if batch.is_empty() {
                assert_eq!(self.scheduler.outstanding(), 0, "somebody is there, nobody runs");
                continue;
            }
            let chunks = batch.segments.iter().filter(|one| one.rows.len() - one.drafts > 1);
            assert!(chunks.count() <= 1, "one chunk a step");
            self.trace(&batch);
            self.steps += 1;
            assert!(self.steps <= self.steps_max, "more steps than the oldest ones can need");
            let result = self.executor.step(&batch, &mut output);
            // Some change their minds while the step runs.
            self.cancellations();
            if result.is_ok() {
                self.look_at_rounds(&batch, &output);
            }
            let now = self.clock.now();
            match result {
                Ok(()) => self.scheduler.commit(&output, now),
                Err(error) => {
                    assert!(self.faulty, "{error}");
                    self.seen.faults += 1;
                    if error.to_string().starts_with("device") {
                        self.scheduler.fail_running(now);
                    } else {
                        assert!(error.to_string().ends_with("injected"), "{error}");
                        self.scheduler.fail_step(now);
                    }
                }
            }
            self.check_pages();
            self.notices();
            self.check_drafts_are_over();
            for (id, track) in &self.tracks {
                assert!(!track.cancelled || track.ending.is_some(), "{id:?} outlived its step");
            }
        }
        self.check_end();
        self.seen
    }

    fn arrivals(&mut self) {
        while self.to_come > 0 && (self.hasty || self.random.below(4) == 0) {
            self.to_come -= 1;
            let request = self.request();
            let id = RequestId(self.next);
            self.next += 1;
            let now = self.clock.now();
            let config = *self.scheduler.config();
            let needed = request.prompt.len() + request.max_tokens;
            let full = self.scheduler.outstanding() == config.lanes + config.pending_max;
            match self.scheduler.submit(id, request.clone(), Duration::ZERO, now) {
                Ok(()) => {
                    assert!(needed <= config.window && !full);
                    self.steps_max += steps_max(&request, &config);
                    let (solo, ends) = solo(&request, self.vocab_size);
                    let track = Track {
                        request,
                        solo,
                        ends,
                        tokens: Vec::new(),
                        scored: 0,
                        done: 0,
                        ending: None,
                        cancelled: false,
                    };
                    self.tracks.insert(id, track);
                }
                Err(SubmitError::ContextLength { needed: told, window, .. }) => {
                    assert_eq!((told, window), (needed, config.window));
                    assert!(needed > window);
                    self.seen.too_long += 1;
                }
                Err(SubmitError::QueueFull { .. }) => {
                    assert!(full);
                    self.seen.full += 1;
                }
                Err(SubmitError::Stopped) => unreachable!("the scheduler never stops"),
            }
            // Idle engines wait for somebody.
            if !self.hasty && self.scheduler.outstanding() > 0 {
                break;
            }
        }
    }

    fn request(&mut self) -> Request {
        let random = &mut self.random;
        let chunk = self.scheduler.config().chunk;
        let edge = random.pick(&[chunk, 2 * chunk, 64, 128, 192, 1]);
        let length = (edge + random.below(3)).saturating_sub(1).max(1);
        let length = if random.below(3) == 0 { 1 + random.below(300) } else { length };
        let vocab_size = self.vocab_size;
        let prompt = (0..length).map(|_| random.below(vocab_size) as TokenId).collect();
        let penalties = SamplingParams { repetition_penalty: 1.5, ..SamplingParams::PLAIN };
        let max_tokens = random.pick(&[0, 1, 2, 10, 64, 65, 130, 200]);
        Request {
            prompt,
            max_tokens,
            sampling: random.pick(&[SamplingParams::GREEDY, SamplingParams::PLAIN, penalties]),
            seed: random.below(1000) as u64,
            biases: (0..random.below(3)).map(|token| (token as TokenId, 1.5)).collect(),
            end_tokens: if random.below(4) == 0 { vec![0, 7] } else { Vec::new() },
            top_logprobs: random.below(3),
            score_prompt: random.below(4) == 0,
            speculation: (random.below(3) == 0).then(|| speculation(random)),
        }
    }

    fn cancellations(&mut self) {
        if self.random.below(self.steadiness) > 0 {
            return;
        }
        // Those that have ended already, too: a cancellation may cross the end.
        let ids: Vec<_> = self.tracks.keys().copied().collect();
        if !ids.is_empty() {
            let id = self.random.pick(&ids);
            self.scheduler.cancel(id, self.clock.now());
            if let Some(track) = self.tracks.get_mut(&id) {
                track.cancelled = true;
            }
        }
    }

    fn trace(&mut self, batch: &StepBatch) {
        let mut hasher = DefaultHasher::new();
        (self.seen.trace, &batch.tokens, &batch.block_tables).hash(&mut hasher);
        for segment in &batch.segments {
            (segment.sequence, &segment.rows, segment.start, segment.drafts).hash(&mut hasher);
        }
        self.seen.trace = hasher.finish();
    }

    /// Counts what came of the drafts of a step.
    fn look_at_rounds(&mut self, batch: &StepBatch, output: &StepOutput) {
        for segment in batch.segments.iter().filter(|segment| segment.drafts > 0) {
            let accepted = batch.accepted(segment, &output.samples);
            let track = &self.tracks[&RequestId(segment.sequence.0)];
            let first = segment.rows.end - segment.drafts;
            let run = &batch.tokens[first..first + accepted];
            let ends = run.iter().any(|token| track.request.end_tokens.contains(token));
            self.seen.rounds += 1;
            self.seen.accepted += accepted;
            self.seen.partly += usize::from(accepted > 0 && accepted < segment.drafts);
            self.seen.ended_inside += usize::from(ends);
            self.seen.cancelled_inside += usize::from(track.cancelled);
        }
    }

    fn check_pages(&self) {
        let mut seen = BTreeSet::new();
        let mut sum = 0;
        for (id, table) in self.scheduler.block_tables() {
            sum += table.len();
            for &page in table {
                assert!(seen.insert(page), "{page:?} is held twice, by {id:?} and before");
            }
        }
        assert_eq!(self.scheduler.pages_used(), sum, "pages in use are those in block tables");
        assert!(sum <= self.scheduler.pages());
        let ids: Vec<_> = self.scheduler.block_tables().map(|(id, _)| id).collect();
        assert!(ids.is_sorted(), "lanes are in order of arrival");
        assert!(ids.len() <= self.scheduler.config().lanes);
    }

    fn notices(&mut self) {
        let timeout = self.scheduler.config().pending_timeout;
        for notice in self.scheduler.take_notices() {
            match notice {
                Notice::Event(id, event) => {
                    let track = self.tracks.get_mut(&id).expect("a known request");
                    assert!(track.ending.is_none(), "{id:?} goes on after its end");
                    if track.take(event) {
                        self.firsts.push(id);
                    }
                }
                Notice::End(id, ending) => {
                    let track = self.tracks.get_mut(&id).expect("a known request");
                    assert!(track.ending.replace(ending).is_none(), "{id:?} ends twice");
                    match ending {
                        Ending::Finished { reason, stats } => {
                            assert_eq!(track.tokens, track.solo, "{id:?} differs from its solo");
                            assert_eq!(reason, track.ends);
                            assert_eq!(stats.generated, track.solo.len());
                            assert_eq!(track.done, track.request.prompt.len());
                            if track.request.score_prompt {
                                assert_eq!(track.scored, track.request.prompt.len());
                            }
                            self.seen.finished += 1;
                            self.seen.stopped += usize::from(reason == FinishReason::Stop);
                            check_speculation(&stats.speculation, stats.generated);
                            self.seen.pauses += stats.pauses;
                        }
                        Ending::Failed { failure: Failure::QueueTimeout { waited }, .. } => {
                            assert!(waited > timeout);
                            assert_eq!((track.done, track.tokens.len()), (0, 0));
                            self.seen.timeouts += 1;
                        }
                        Ending::Failed { failure, .. } => {
                            assert!(self.faulty && failure == Failure::Execution, "{id:?} failed");
                        }
                        Ending::Cancelled => {
                            assert!(track.cancelled);
                            self.seen.cancelled += 1;
                        }
                    }
                }
            }
        }
    }

    /// Between steps nobody holds pages for drafts, so that nobody waits for them.
    fn check_drafts_are_over(&self) {
        let reserve = self.scheduler.config().reserve_output;
        for (id, table) in self.scheduler.block_tables() {
            let track = &self.tracks[&id];
            let tokens = track.request.prompt.len() + track.tokens.len();
            assert!(table.len() <= pages_for(tokens + reserve), "{id:?} holds too much");
        }
    }

    fn check_end(&self) {
        assert_eq!(self.scheduler.pages_used(), 0, "pages are lost");
        for (id, track) in &self.tracks {
            assert!(track.ending.is_some(), "{id:?} never ended");
        }
        let unpaused = self.firsts.iter().filter(|id| {
            matches!(self.tracks[id].ending, Some(Ending::Finished { stats, .. }) if stats.pauses == 0)
        });
        assert!(unpaused.is_sorted(), "first tokens come in order of arrival");
    }
}

/// Steps that a request needs at most once it is the oldest: every one of them carries it on.
fn steps_max(request: &Request, config: &SchedulerConfig) -> usize {
    let others = config.lanes - 1;
    let mut rows = config.chunk.min(config.limits.rows_per_step - others);
    if request.score_prompt {
        rows = rows.min(config.limits.samples_per_step - others);
    }
    let tokens = request.prompt.len() + request.max_tokens;
    tokens.div_ceil(rows.max(1)) + request.max_tokens + 1
}
