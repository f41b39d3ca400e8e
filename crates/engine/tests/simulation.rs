//! Thousands of random schedules over a simulated executor, each with all invariants checked after
//! every turn.
//!
//! A schedule is a function of its seed. `LANEWAY_SIM_SEED=N` runs the one of that seed only.

mod support;

use laneway_engine::{
    Ending, Event, Failure, FinishReason, Notice, Request, RequestId, Scheduler, SchedulerConfig,
    SubmitError,
};
use laneway_execution::{
    Executor as _, Limits, SamplingKey, SamplingParams, StepBatch, StepOutput, TokenCount, TokenId,
};
use laneway_sim::{Fault, Prefix, SimClock, SimConfig, SimExecutor, StepCost, draw, score};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;
use support::Random;

/// Schedules of one run.
const SCHEDULES: u64 = 2500;

/// Small, so that end tokens are drawn and penalties have repetitions to count.
const VOCAB: usize = 40;

#[test]
fn every_schedule_keeps_the_invariants() {
    if let Ok(seed) = std::env::var("LANEWAY_SIM_SEED") {
        Schedule::new(seed.parse().expect("LANEWAY_SIM_SEED is a number")).run();
        return;
    }
    let mut seen = Seen::default();
    for seed in 0..SCHEDULES {
        match catch_unwind(AssertUnwindSafe(|| Schedule::new(seed).run())) {
            Ok(more) => seen.add(&more),
            Err(panic) => {
                eprintln!("schedule {seed} failed; LANEWAY_SIM_SEED={seed} runs it alone");
                resume_unwind(panic);
            }
        }
    }
    // Random schedules prove nothing about what never comes up in them.
    println!("{seen:?}");
    let Seen { finished, stopped, cancelled, timeouts, full, too_long, pauses, faults } = seen;
    for (what, times) in [
        ("finished", finished),
        ("stopped", stopped),
        ("cancelled", cancelled),
        ("timeouts", timeouts),
        ("full", full),
        ("too long", too_long),
        ("pauses", pauses),
        ("faults", faults),
    ] {
        assert!(times > 100, "{what} came up only {times} times");
    }
}

/// How often things came up.
#[derive(Debug, Default)]
struct Seen {
    finished: usize,
    stopped: usize,
    cancelled: usize,
    timeouts: usize,
    full: usize,
    too_long: usize,
    pauses: usize,
    faults: usize,
}

impl Seen {
    fn add(&mut self, more: &Seen) {
        self.finished += more.finished;
        self.stopped += more.stopped;
        self.cancelled += more.cancelled;
        self.timeouts += more.timeouts;
        self.full += more.full;
        self.too_long += more.too_long;
        self.pauses += more.pauses;
        self.faults += more.faults;
    }
}

/// What has come of one request.
struct Track {
    request: Request,
    /// Output of the request when it runs alone.
    solo: Vec<TokenId>,
    ends: FinishReason,
    tokens: Vec<TokenId>,
    scored: usize,
    done: usize,
    ending: Option<Ending>,
    cancelled: bool,
}

struct Schedule {
    random: Random,
    scheduler: Scheduler,
    executor: SimExecutor,
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
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let chunk = random.pick(&[1, 2, 7, 31, 63, 64, 65, 100, 127, 128]);
        let lanes = 1 + random.below(8);
        let pages = random.pick(&[2, 4, 5, 6, 7, 9, 12, 24]);
        let limits = Limits {
            pages,
            state_slots: 0,
            rows_per_step: random.pick(&[lanes + 1, chunk, chunk + lanes]),
            samples_per_step: random.pick(&[lanes, lanes + 3, chunk + lanes]),
            top_logprobs: 3,
            drafts: 0,
            proposals: 0,
        };
        let config = SchedulerConfig {
            window: random.pick(&[128, 500, 2000, 2000]),
            lanes,
            pending_max: random.below(7),
            pending_timeout: Duration::from_micros(random.pick(&[20, 500, 5000, 1 << 40, 1 << 40])),
            chunk,
            reserve_output: random.pick(&[0, 0, 1, 64]),
            limits,
        };
        let scheduler = Scheduler::new(config);
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
        let cost = StepCost { step: 1000.0, row: 100.0, pair: 1.0 };
        let sim = SimConfig { vocab_size: VOCAB, limits, cost, faults, script: Vec::new() };
        Self {
            scheduler,
            executor: SimExecutor::new(sim, clock.clone()),
            clock,
            tracks: BTreeMap::new(),
            firsts: Vec::new(),
            to_come: 1 + random.below(16),
            next: 1,
            hasty: random.below(2) == 0,
            steadiness: random.pick(&[10, 100, 1000, usize::MAX]),
            steps_max: 0,
            steps: 0,
            faulty,
            seen: Seen::default(),
            random,
        }
    }

    fn run(mut self) -> Seen {
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
            let chunks = batch.segments.iter().filter(|segment| segment.rows.len() > 1);
            assert!(chunks.count() <= 1, "one chunk a step");
            self.steps += 1;
            assert!(self.steps <= self.steps_max, "more steps than the oldest ones can need");
            let result = self.executor.step(&batch, &mut output);
            // Some change their minds while the step runs.
            self.cancellations();
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
                    let (solo, ends) = solo(&request);
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
        let prompt = (0..length).map(|_| random.below(VOCAB) as TokenId).collect();
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

impl Track {
    /// Checks an event against the solo run; true if it is the first token.
    fn take(&mut self, event: Event) -> bool {
        let prompt = &self.request.prompt;
        match event {
            Event::Token { token, logprob, top } => {
                assert_eq!(self.solo.get(self.tokens.len()), Some(&token));
                assert_eq!(self.done, prompt.len(), "the prompt comes first");
                let before: Vec<_> = prompt.iter().chain(&self.tokens).copied().collect();
                assert_eq!(logprob, score(Prefix::of(&before), token));
                assert_eq!(top.len(), self.request.top_logprobs);
                self.tokens.push(token);
                return self.tokens.len() == 1;
            }
            Event::PromptToken { token, logprob, top } => {
                assert!(self.request.score_prompt && self.tokens.is_empty());
                assert_eq!(token, prompt[self.scored]);
                let prefix = Prefix::of(&prompt[..self.scored]);
                let expected = (self.scored > 0).then(|| score(prefix, token));
                assert_eq!(logprob, expected);
                assert_eq!(top.len(), if self.scored > 0 { self.request.top_logprobs } else { 0 });
                self.scored += 1;
            }
            Event::PrefillProgress { done, total, cached } => {
                assert!(done > self.done && done <= total);
                assert_eq!((total, cached), (prompt.len(), 0));
                self.done = done;
            }
            other => unreachable!("{other:?} does not come from the scheduler"),
        }
        false
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

/// What a request says when it runs alone, by the simulated model's own definition.
fn solo(request: &Request) -> (Vec<TokenId>, FinishReason) {
    let mut prefix = Prefix::of(&request.prompt);
    let mut counts: BTreeMap<TokenId, u32> = BTreeMap::new();
    if request.sampling.uses_counts() {
        counts.extend(request.prompt.iter().map(|&token| (token, 0)));
    }
    let mut tokens = Vec::new();
    while tokens.len() < request.max_tokens {
        let position = (request.prompt.len() + tokens.len()) as u64;
        let key = SamplingKey { seed: request.seed, position };
        let counted: Vec<_> =
            counts.iter().map(|(&token, &generated)| TokenCount { token, generated }).collect();
        let token = draw(prefix, key, &counted, &request.biases, VOCAB);
        if request.end_tokens.contains(&token) {
            return (tokens, FinishReason::Stop);
        }
        if request.sampling.uses_counts() {
            *counts.entry(token).or_default() += 1;
        }
        tokens.push(token);
        prefix.push(token);
    }
    (tokens, FinishReason::Length)
}
