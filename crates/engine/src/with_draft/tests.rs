//! Two simulated models together.

use super::*;
use crate::{
    DraftLength, Drafter, Ending, Event, Notice, Request, RequestId, Scheduler, SchedulerConfig,
    Speculation, SpeculationStats,
};
use laneway_execution::SamplingParams;
use laneway_sim::{SimClock, SimConfig, SimDrafter, SimExecutor, StepCost};
use std::collections::HashMap;
use std::time::Duration;

const LIMITS: Limits = Limits {
    pages: 16,
    state_slots: 0,
    rows_per_step: 33,
    samples_per_step: 16,
    top_logprobs: 0,
    drafts: 4,
    proposals: 0,
};

fn simulated(vocab_size: usize, limits: Limits) -> SimExecutor {
    let config = SimConfig {
        vocab_size,
        limits,
        cost: StepCost::default(),
        faults: HashMap::new(),
        script: Vec::new(),
        drafter: SimDrafter::default(),
    };
    SimExecutor::new(config, SimClock::default())
}

fn pair(target_slots: usize, draft_slots: usize) -> WithDraft<SimExecutor, SimExecutor> {
    let target = simulated(100, Limits { state_slots: target_slots, ..LIMITS });
    // Few rows and draws, so that one step of the model takes several of the draft model.
    let draft = Limits {
        state_slots: draft_slots,
        rows_per_step: 34,
        samples_per_step: 1,
        drafts: 0,
        ..LIMITS
    };
    WithDraft::new(target, simulated(100, draft)).unwrap()
}

/// Runs three requests side by side.
fn run(executor: &mut impl Executor, drafter: Drafter) -> (Vec<Vec<TokenId>>, SpeculationStats) {
    let config = SchedulerConfig {
        window: 256,
        lanes: 3,
        pending_max: 0,
        pending_timeout: Duration::MAX,
        chunk: 30,
        reserve_output: 0,
        speculation: Speculation { drafter, length: DraftLength::Fixed(3) },
        limits: *executor.limits(),
    };
    let mut scheduler = Scheduler::new(config);
    for id in 0..3 {
        let penalties = SamplingParams { frequency_penalty: 0.5, ..SamplingParams::PLAIN };
        let request = Request {
            prompt: (0..40 + id).collect(),
            max_tokens: 60,
            sampling: if id == 1 { penalties } else { SamplingParams::PLAIN },
            seed: u64::from(id),
            biases: vec![(3, 0.5)],
            end_tokens: Vec::new(),
            top_logprobs: 0,
            score_prompt: false,
            speculation: None,
        };
        let id = RequestId(u64::from(id));
        scheduler.submit(id, request, Duration::ZERO, Duration::ZERO).unwrap();
    }
    let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
    let mut tokens = vec![Vec::new(); 3];
    while scheduler.outstanding() > 0 {
        scheduler.plan(Duration::ZERO, &mut batch);
        executor.step(&batch, &mut output).unwrap();
        scheduler.commit(&output, Duration::ZERO);
        for notice in scheduler.take_notices() {
            match notice {
                Notice::Event(id, Event::Token { token, .. }) => tokens[id.0 as usize].push(token),
                Notice::End(_, ending) => assert!(matches!(ending, Ending::Finished { .. })),
                Notice::Event(..) => {}
            }
        }
    }
    (tokens, *scheduler.speculation())
}

#[test]
fn every_draft_of_the_same_model_is_accepted() {
    let (plain, none) = run(&mut simulated(100, LIMITS), Drafter::Off);
    assert_eq!(none, SpeculationStats::default());
    for (target_slots, draft_slots) in [(0, 0), (3, 0), (0, 6), (3, 6)] {
        let (tokens, stats) = run(&mut pair(target_slots, draft_slots), Drafter::Model);
        assert_eq!(tokens, plain);
        assert_eq!(stats.accepted, stats.drafted, "{stats:?}");
        // Three of four tokens are drafts, but for the last few.
        assert!(stats.drafted >= 3 * 40, "{stats:?}");
    }
}

#[test]
fn what_does_not_fit_is_refused_with_numbers() {
    let refuse = |vocab_size: usize, target: Limits, draft: Limits| {
        let draft = simulated(vocab_size, draft);
        WithDraft::new(simulated(100, target), draft).map(drop).unwrap_err()
    };
    let vocabulary = refuse(99, LIMITS, LIMITS);
    let message = "the draft model has 99 tokens in its vocabulary, the model has 100";
    assert_eq!(vocabulary.to_string(), message);
    let pages = refuse(100, LIMITS, Limits { pages: 15, ..LIMITS });
    assert_eq!(pages, DraftMismatch::Pages { draft: 15, target: 16 });
    let none = refuse(100, Limits { drafts: 0, ..LIMITS }, LIMITS);
    assert_eq!(none, DraftMismatch::NoDrafts);
    let small = refuse(100, LIMITS, Limits { state_slots: 1, ..LIMITS });
    let message = "the draft model needs state slots, at least 2, and has 1";
    assert_eq!(small.to_string(), message);
}

#[test]
fn states_of_both_are_kept_together() {
    let mut both = pair(3, 6);
    assert_eq!((both.limits().state_slots, both.geometry().state_bytes), (3, 32));
    let step = |slot: u32, start: usize, tokens: &[TokenId]| {
        let mut batch = StepBatch::default();
        let slot = Some(SlotId(slot));
        batch.push_segment(laneway_execution::SequenceId(1), start, tokens, &[PageId(0)], slot);
        batch.segments[0].drafting = Drafting::Off;
        batch
    };
    let mut followed = step(0, 0, &[1, 2]);
    followed.segments[0].drafting = Drafting::Follow { next: 3 };
    let mut output = StepOutput::default();
    // The model has no drafter of its own, and the simulation is strict about that.
    assert!(both.target.step(&followed, &mut output).is_err());
    both.target.step(&step(0, 0, &[1, 2]), &mut output).unwrap();
    both.draft.step(&step(0, 0, &[1, 2]), &mut output).unwrap();
    both.copy_state(SlotId(0), SlotId(1), 2).unwrap();
    let mut image = Vec::new();
    both.save_state(SlotId(1), 2, &mut image).unwrap();
    both.load_state(SlotId(2), 2, &image).unwrap();
    both.target.step(&step(2, 2, &[3]), &mut output).unwrap();
    both.draft.step(&step(2, 2, &[3]), &mut output).unwrap();
    assert!(both.load_state(SlotId(2), 2, &image[1..]).is_err());
    assert!(both.copy_state(SlotId(0), SlotId(3), 2).is_err(), "that one is the draft model's");
}
