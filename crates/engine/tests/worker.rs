//! The engine with its thread: events, places, faults, panics, and its end.

use crossbeam_channel::{Receiver, Sender, bounded};
use laneway_engine::{
    Engine, EngineConfig, EngineHandle, Event, EventSink, Failure, FinishReason, Request,
    RequestGuard, Speculation, SubmitError,
};
use laneway_execution::{
    ExecutionError, Executor, Geometry, Limits, PageId, SamplingParams, StepBatch, StepOutput,
    TokenId,
};
use laneway_sim::{Fault, SimClock, SimConfig, SimDrafter, SimExecutor, StepCost};
use std::time::Duration;

const VOCAB: usize = 500;
const EVENTS_MAX: usize = 4096;

/// Longest time that anything may take; reached only when something is wrong.
const PATIENCE: Duration = Duration::from_secs(20);

const LIMITS: Limits = Limits {
    pages: 32,
    state_slots: 0,
    rows_per_step: 64,
    samples_per_step: 64,
    top_logprobs: 2,
    drafts: 0,
    proposals: 0,
};

fn config(lanes: usize) -> EngineConfig {
    EngineConfig {
        window: 1024,
        lanes,
        pending_max: 2,
        pending_timeout: Duration::from_secs(600),
        chunk: 32,
        speculation: Speculation::OFF,
    }
}

fn simulated(faults: &[(u64, Fault)]) -> SimExecutor {
    let config = SimConfig {
        vocab_size: VOCAB,
        limits: LIMITS,
        cost: StepCost::default(),
        faults: faults.iter().copied().collect(),
        script: Vec::new(),
        drafter: SimDrafter::default(),
    };
    SimExecutor::new(config, SimClock::default())
}

fn request(prompt: usize, max_tokens: usize) -> Request {
    Request {
        prompt: (0..prompt).map(|token| (token % VOCAB) as TokenId).collect(),
        max_tokens,
        sampling: SamplingParams::GREEDY,
        seed: 1,
        biases: Vec::new(),
        end_tokens: Vec::new(),
        top_logprobs: 0,
        score_prompt: false,
        speculation: None,
    }
}

struct Inlet(Sender<Event>);

impl EventSink for Inlet {
    fn send(&mut self, event: Event) {
        let _ = self.0.send(event);
    }
}

struct Running {
    events: Receiver<Event>,
    guard: Option<RequestGuard>,
}

impl Running {
    /// All events up to the end; checks that there is one end and nothing behind it.
    fn rest(&self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Ok(event) = self.events.recv_timeout(PATIENCE) {
            events.push(event);
        }
        assert!(self.events.is_empty());
        let ends = events.iter().filter(|event| event.is_terminal()).count();
        assert_eq!(ends, 1, "{events:?}");
        assert!(events.last().unwrap().is_terminal(), "{events:?}");
        events
    }

    fn failure(&self) -> Option<Failure> {
        match self.rest().pop() {
            Some(Event::Failed { failure, .. }) => Some(failure),
            _ => None,
        }
    }
}

fn submit(engine: &EngineHandle, request: Request) -> Result<Running, SubmitError> {
    let (sender, events) = bounded(EVENTS_MAX);
    let guard = Some(engine.submit(request, Box::new(Inlet(sender)))?);
    Ok(Running { events, guard })
}

/// Every step waits until a test lets it run.
struct Gated {
    executor: SimExecutor,
    arrived: Sender<()>,
    passes: Receiver<()>,
}

impl Executor for Gated {
    fn geometry(&self) -> &Geometry {
        self.executor.geometry()
    }

    fn limits(&self) -> &Limits {
        self.executor.limits()
    }

    fn step(&mut self, batch: &StepBatch, output: &mut StepOutput) -> Result<(), ExecutionError> {
        let _ = self.arrived.send(());
        // Once the test is done with it, everything passes.
        let _ = self.passes.recv();
        self.executor.step(batch, output)
    }

    fn copy_page(&mut self, from: PageId, to: PageId, n: usize) -> Result<(), ExecutionError> {
        self.executor.copy_page(from, to, n)
    }
}

struct Gate {
    arrived: Receiver<()>,
    pass: Sender<()>,
}

fn gated(config: EngineConfig) -> (EngineHandle, Gate) {
    let (arrive, arrived) = bounded(EVENTS_MAX);
    let (pass, passes) = bounded(EVENTS_MAX);
    let engine =
        Engine::spawn(config, move || Gated { executor: simulated(&[]), arrived: arrive, passes });
    (engine, Gate { arrived, pass })
}

impl Gate {
    fn step(&self) {
        self.arrived.recv_timeout(PATIENCE).unwrap();
        self.pass.send(()).unwrap();
    }
}

#[test]
fn events_come_in_order_and_the_place_is_free_at_the_end() {
    let engine = Engine::spawn(config(2), || simulated(&[]));
    let mut wanted = request(70, 3);
    (wanted.score_prompt, wanted.top_logprobs) = (true, 9);
    let running = submit(&engine, wanted).unwrap();
    let events = running.rest();
    assert!(matches!(events[0], Event::Queued { position: 0, .. }));
    let count = |of: fn(&Event) -> bool| events.iter().filter(|event| of(event)).count();
    assert_eq!(count(|event| matches!(event, Event::PrefillProgress { .. })), 3);
    assert_eq!(count(|event| matches!(event, Event::PromptToken { .. })), 70);
    // The executor reports two alternatives at most.
    assert_eq!(count(|event| matches!(event, Event::Token { top, .. } if top.len() == 2)), 3);
    let Some(Event::Finished { reason, stats }) = events.last() else { panic!("{events:?}") };
    assert_eq!((*reason, stats.generated, stats.prompt), (FinishReason::Length, 3, 70));
    assert_eq!(stats.ttft, Some(stats.queue + stats.prefill));
    let status = engine.status();
    assert_eq!((status.lanes_busy, status.queue, status.pages_used), (0, 0, 0));
}

#[test]
fn places_are_decided_while_a_step_runs() {
    let (engine, gate) = gated(config(1));
    let mut all: Vec<_> = (0..3).map(|_| submit(&engine, request(5, 1)).unwrap()).collect();
    gate.arrived.recv_timeout(PATIENCE).unwrap();
    for (place, running) in all.iter().enumerate() {
        let first = running.events.try_recv().unwrap();
        let position = place.saturating_sub(1);
        assert!(matches!(first, Event::Queued { position: told, .. } if told == position));
    }
    let refused = submit(&engine, request(5, 1)).err();
    assert!(matches!(refused, Some(SubmitError::QueueFull { pending: 2, .. })), "{refused:?}");
    let refused = submit(&engine, request(1000, 25)).err();
    let numbers = SubmitError::ContextLength { prompt: 1000, needed: 1025, window: 1024 };
    assert_eq!(refused, Some(numbers));
    // Whoever leaves the queue is gone with the step that runs.
    drop(all.remove(1).guard.take());
    gate.pass.send(()).unwrap();
    gate.step();
    assert!(submit(&engine, request(5, 1)).is_ok());
    drop(gate);
    for running in all {
        assert_eq!(running.rest().last().map(Event::is_terminal), Some(true));
    }
}

#[test]
fn dropping_the_guard_frees_everything_within_a_step() {
    let (engine, gate) = gated(config(1));
    let mut running = submit(&engine, request(500, 10)).unwrap();
    gate.step();
    gate.arrived.recv_timeout(PATIENCE).unwrap();
    assert!(engine.status().pages_used > 0);
    drop(running.guard.take());
    gate.pass.send(()).unwrap();
    while let Ok(event) = running.events.recv_timeout(PATIENCE) {
        assert!(!event.is_terminal(), "nobody listens");
    }
    let status = engine.status();
    assert_eq!((status.lanes_busy, status.pages_used), (0, 0));
    assert!(gate.arrived.is_empty(), "no further step ran");
}

#[test]
fn a_refused_step_fails_its_requests_only() {
    let engine = Engine::spawn(config(1), || simulated(&[(1, Fault::Refused)]));
    let first = submit(&engine, request(5, 5)).unwrap();
    let second = submit(&engine, request(5, 5)).unwrap();
    assert_eq!(first.failure(), Some(Failure::Execution));
    assert_eq!(second.failure(), None);
    assert!(!engine.status().failed);
}

#[test]
fn an_output_that_does_not_fit_the_step_is_a_failure() {
    let engine = Engine::spawn(config(1), || simulated(&[(0, Fault::NoOutput)]));
    assert_eq!(submit(&engine, request(5, 5)).unwrap().failure(), Some(Failure::Execution));
    assert_eq!(submit(&engine, request(5, 5)).unwrap().failure(), None);
}

#[test]
fn a_device_may_fail_but_not_for_ever() {
    let faults = [(1, Fault::Device), (2, Fault::Device)];
    let engine = Engine::spawn(config(1), move || simulated(&faults));
    for expected in [Some(Failure::Execution), Some(Failure::Execution), None] {
        assert_eq!(submit(&engine, request(5, 5)).unwrap().failure(), expected);
        assert_eq!(engine.status().pages_used, 0);
    }
    let faults: Vec<_> = (0..9).map(|step| (step, Fault::Device)).collect();
    let engine = Engine::spawn(config(1), move || simulated(&faults));
    for _ in 0..3 {
        let running = submit(&engine, request(5, 5)).unwrap();
        assert_eq!(running.failure(), Some(Failure::Execution));
    }
    assert!(engine.status().failed);
    assert_eq!(submit(&engine, request(5, 5)).err(), Some(SubmitError::Stopped));
}

#[test]
fn a_panic_fails_everybody_once_and_the_engine_for_good() {
    let (engine, gate) = {
        let (arrive, arrived) = bounded(EVENTS_MAX);
        let (pass, passes) = bounded(EVENTS_MAX);
        let make =
            move || Gated { executor: simulated(&[(1, Fault::Panic)]), arrived: arrive, passes };
        (Engine::spawn(config(1), make), Gate { arrived, pass })
    };
    let all: Vec<_> = (0..3).map(|_| submit(&engine, request(5, 5)).unwrap()).collect();
    drop(gate);
    for running in &all {
        assert_eq!(running.failure(), Some(Failure::Execution));
    }
    let status = engine.status();
    assert!(status.failed);
    assert_eq!((status.lanes_busy, status.queue, status.pages_used), (0, 0, 0));
    assert_eq!(submit(&engine, request(5, 5)).err(), Some(SubmitError::Stopped));
}

#[test]
fn an_executor_that_cannot_be_made_is_a_failed_engine() {
    fn none() -> SimExecutor {
        panic!("no device")
    }
    let engine = Engine::spawn(config(1), none);
    assert!(engine.status().failed);
    assert_eq!(submit(&engine, request(5, 5)).err(), Some(SubmitError::Stopped));
}

#[test]
fn the_last_handle_ends_what_runs() {
    let (engine, gate) = gated(config(1));
    let all: Vec<_> = (0..2).map(|_| submit(&engine, request(5, 50)).unwrap()).collect();
    gate.step();
    gate.arrived.recv_timeout(PATIENCE).unwrap();
    drop(engine);
    drop(gate);
    for running in all {
        assert_eq!(running.failure(), Some(Failure::Shutdown));
    }
}

#[test]
fn what_no_executor_can_take_fails_alone() {
    let engine = Engine::spawn(config(1), || simulated(&[]));
    let unknown = vec![VOCAB as TokenId];
    let hot = SamplingParams { temperature: f32::NAN, ..SamplingParams::PLAIN };
    for wrong in [
        Request { prompt: Vec::new(), ..request(1, 1) },
        Request { prompt: unknown, ..request(1, 1) },
        Request { biases: vec![(VOCAB as TokenId, 1.0)], ..request(1, 1) },
        Request { sampling: hot, ..request(1, 1) },
    ] {
        let running = submit(&engine, wrong).unwrap();
        assert_eq!(running.failure(), Some(Failure::Execution));
    }
    assert_eq!(submit(&engine, request(5, 5)).unwrap().failure(), None);
    let status = engine.status();
    assert_eq!((status.failed, status.lanes_busy, status.queue), (false, 0, 0));
}

#[test]
fn calibration_leaves_nothing_behind() {
    let engine = Engine::spawn_calibrated(config(1), || simulated(&[]));
    let running = submit(&engine, request(200, 2)).unwrap();
    let events = running.rest();
    let Event::Queued { predicted_ttft, .. } = events[0] else { panic!("{events:?}") };
    assert!(predicted_ttft > Duration::ZERO);
    assert!(matches!(events.last(), Some(Event::Finished { .. })));
    assert_eq!(engine.status().pages_used, 0);
}
