//! Equal prompts that arrive together: lane k waits k times as long as lane 1, and knows it.

use laneway_engine::{
    Ending, Event, Notice, Request, RequestId, Scheduler, SchedulerConfig, Speculation, Stats,
};
use laneway_execution::{Executor as _, Limits, SamplingParams, StepBatch, StepOutput, TokenId};
use laneway_plan::PrefillFit;
use laneway_sim::{SimClock, SimConfig, SimDrafter, SimExecutor, StepCost};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

const LANES: usize = 3;
const CHUNK: usize = 256;
const PROMPT: usize = 4000;

/// A scheduler, a simulated executor, and what has been learned about its speed.
struct Engine {
    scheduler: Scheduler,
    executor: SimExecutor,
    clock: SimClock,
    fit: PrefillFit,
    next: u64,
}

impl Engine {
    fn new() -> Self {
        let limits = Limits {
            pages: 400,
            state_slots: 0,
            rows_per_step: CHUNK + LANES,
            samples_per_step: LANES,
            top_logprobs: 0,
            drafts: 0,
            proposals: 0,
        };
        let config = SchedulerConfig {
            window: 8192,
            lanes: LANES,
            pending_max: 8,
            pending_timeout: Duration::MAX,
            chunk: CHUNK,
            reserve_output: 64,
            speculation: Speculation::OFF,
            limits,
        };
        let clock = SimClock::default();
        let cost = StepCost { step: 2e6, row: 1e5, pair: 20.0, pass: 0.0 };
        let faults = HashMap::new();
        let (script, drafter) = (Vec::new(), SimDrafter::default());
        let sim = SimConfig { vocab_size: 1000, limits, cost, faults, script, drafter };
        Self {
            scheduler: Scheduler::new(config),
            executor: SimExecutor::new(sim, clock.clone()),
            clock,
            fit: PrefillFit::new(),
            next: 1,
        }
    }

    fn submit(&mut self, prompt: usize) -> RequestId {
        let id = RequestId(self.next);
        self.next += 1;
        let cost = self.fit.cost();
        let predicted = self.scheduler.backlog(&cost) + cost.time(0, prompt, CHUNK);
        let request = Request {
            prompt: (0..prompt).map(|token| (token % 1000) as TokenId).collect(),
            max_tokens: 4,
            sampling: SamplingParams::GREEDY,
            seed: id.0,
            biases: Vec::new(),
            end_tokens: Vec::new(),
            top_logprobs: 0,
            score_prompt: false,
            speculation: None,
        };
        self.scheduler.submit(id, request, predicted, self.clock.now()).unwrap();
        id
    }

    /// Runs until nobody is there.
    fn run(&mut self) -> BTreeMap<RequestId, Stats> {
        let mut ends = BTreeMap::new();
        let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
        while self.scheduler.outstanding() > 0 {
            let began = self.clock.now();
            self.scheduler.plan(began, &mut batch);
            let load = self.scheduler.step_load().unwrap();
            self.executor.step(&batch, &mut output).unwrap();
            let now = self.clock.now();
            if load.prefill {
                self.fit.observe(load.rows, load.pairs, now - began);
            }
            self.scheduler.commit(&output, now);
            for notice in self.scheduler.take_notices() {
                match notice {
                    Notice::End(id, Ending::Finished { stats, .. }) => {
                        ends.insert(id, stats);
                    }
                    Notice::End(id, ending) => panic!("{id:?}: {ending:?}"),
                    Notice::Event(_, Event::Token { .. } | Event::PrefillProgress { .. }) => {}
                    Notice::Event(id, event) => panic!("{id:?}: {event:?}"),
                }
            }
        }
        ends
    }
}

#[test]
fn lane_k_waits_k_times_as_long_and_knows_it() {
    let mut engine = Engine::new();
    // Teaches the speed.
    engine.submit(PROMPT);
    engine.run();
    let ids: Vec<_> = (0..LANES).map(|_| engine.submit(PROMPT)).collect();
    let ends = engine.run();
    let first = ends[&ids[0]].ttft.unwrap().as_secs_f64();
    for (lane, id) in (1..).zip(&ids) {
        let Stats { predicted_ttft, ttft, queue, prefill, .. } = ends[id];
        let ttft = ttft.unwrap();
        let measured = ttft.as_secs_f64();
        let ratio = measured / first;
        assert!((ratio / f64::from(lane) - 1.0).abs() < 0.01, "lane {lane} waits {ratio} times");
        let off = predicted_ttft.as_secs_f64() / measured - 1.0;
        assert!(off.abs() < 0.01, "lane {lane}: {predicted_ttft:?} predicted, {ttft:?} measured");
        assert_eq!(queue + prefill, ttft);
    }
}

#[test]
fn prompts_of_other_lengths_are_predicted_too() {
    let mut engine = Engine::new();
    for prompt in [700, 1800] {
        engine.submit(prompt);
    }
    engine.run();
    let ids: Vec<_> = [5000, 300, 2500].map(|prompt| engine.submit(prompt)).into();
    let ends = engine.run();
    for id in ids {
        let Stats { predicted_ttft, ttft, .. } = ends[&id];
        let off = predicted_ttft.as_secs_f64() / ttft.unwrap().as_secs_f64() - 1.0;
        assert!(off.abs() < 0.02, "{predicted_ttft:?} predicted, {ttft:?} measured");
    }
}
