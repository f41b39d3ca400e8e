//! What the simulated executor finds out.

use super::*;
use laneway_execution::{SamplingKey, SamplingParams};

const LIMITS: Limits = Limits {
    pages: 4,
    state_slots: 0,
    rows_per_step: 128,
    samples_per_step: 8,
    top_logprobs: 2,
    drafts: 0,
    proposals: 0,
};

fn executor(faults: &[(u64, Fault)]) -> SimExecutor {
    sized(LIMITS, faults)
}

/// One that keeps states, verifies drafts and is right with every second proposal.
fn recurrent() -> SimExecutor {
    sized(Limits { state_slots: 2, drafts: 3, proposals: 3, ..LIMITS }, &[])
}

fn sized(limits: Limits, faults: &[(u64, Fault)]) -> SimExecutor {
    let config = SimConfig {
        vocab_size: 1000,
        limits,
        cost: StepCost { step: 10.0, row: 2.0, pair: 1.0, pass: 5.0 },
        faults: faults.iter().copied().collect(),
        script: Vec::new(),
        drafter: SimDrafter { seed: 1, accuracy: vec![0.5] },
    };
    SimExecutor::new(config, SimClock::default())
}

fn batch(sequence: u64, start: usize, tokens: &[TokenId], pages: &[u32]) -> StepBatch {
    let mut batch = StepBatch::default();
    let pages: Vec<_> = pages.iter().copied().map(PageId).collect();
    let rows = batch.push_segment(SequenceId(sequence), start, tokens, &pages, None);
    batch.samples.push(sample(rows.end - 1, start + tokens.len()));
    batch
}

fn sample(row: usize, position: usize) -> SampleRow {
    SampleRow {
        row,
        draw: Draw::Sample,
        params: SamplingParams::PLAIN,
        key: SamplingKey { seed: 0, position: position as u64 },
        top_logprobs: 0,
        counts: 0..0,
        biases: 0..0,
        mask: 0..0,
    }
}

/// The same in slot 0, with the last `drafts` tokens being drafts, and `count` proposals wanted.
fn round(start: usize, tokens: &[TokenId], drafts: usize, count: usize) -> StepBatch {
    let mut batch = batch(1, start, tokens, &[0, 1]);
    let segment = &mut batch.segments[0];
    segment.state_slot = Some(SlotId(0));
    segment.drafts = drafts;
    segment.drafting = Drafting::Propose { count };
    batch.samples.clear();
    let first = tokens.len() - 1 - drafts;
    batch.samples.extend((first..tokens.len()).map(|row| sample(row, start + row + 1)));
    batch
}

/// Refuses `wrong`, and says why.
fn refusal(executor: &mut SimExecutor, wrong: &StepBatch) -> String {
    match executor.step(wrong, &mut StepOutput::default()) {
        Err(ExecutionError::Refused(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn chunks_and_pages_do_not_matter() {
    let tokens: Vec<TokenId> = (0..100).collect();
    let (mut whole, mut parts) = (StepOutput::default(), StepOutput::default());
    executor(&[]).step(&batch(1, 0, &tokens, &[0, 1]), &mut whole).unwrap();
    let mut other = executor(&[]);
    other.step(&batch(1, 0, &tokens[..70], &[3, 2]), &mut parts).unwrap();
    other.step(&batch(1, 70, &tokens[70..], &[3, 2]), &mut parts).unwrap();
    assert_eq!(whole, parts);
    // Two steps, 100 rows, 5050 pairs.
    assert_eq!(other.clock.now().as_nanos(), 20 + 200 + 5050);
}

#[test]
fn foreign_and_missing_pages_are_found() {
    let mut executor = executor(&[]);
    let mut output = StepOutput::default();
    executor.step(&batch(1, 0, &[1, 2, 3], &[0]), &mut output).unwrap();
    for wrong in [batch(2, 3, &[4], &[0]), batch(1, 3, &[4], &[1]), batch(1, 4, &[4], &[0])] {
        let error = executor.step(&wrong, &mut output).unwrap_err();
        assert!(matches!(error, ExecutionError::Refused(_)), "{error}");
    }
    executor.step(&batch(1, 3, &[4], &[0]), &mut output).unwrap();
}

#[test]
fn faults_come_in_their_step() {
    let mut executor = executor(&[(1, Fault::Device)]);
    let mut output = StepOutput::default();
    executor.step(&batch(1, 0, &[1], &[0]), &mut output).unwrap();
    let lost = executor.step(&batch(1, 1, &[2], &[0]), &mut output);
    assert!(matches!(lost, Err(ExecutionError::Device(_))));
    assert!(executor.step(&batch(1, 1, &[2], &[0]), &mut output).is_err(), "pages are lost");
}

#[test]
fn drafts_are_verified_and_the_state_is_that_of_the_accepted_ones() {
    let mut plain = recurrent();
    let mut output = StepOutput::default();
    plain.step(&round(0, &[5, 6, 7], 0, 0), &mut output).unwrap();
    let mut tokens = Vec::new();
    for position in 3..8 {
        tokens.push(output.samples[0].token);
        plain.step(&round(position, &tokens[position - 3..], 0, 0), &mut output).unwrap();
    }
    let mut fast = recurrent();
    fast.step(&round(0, &[5, 6, 7], 0, 0), &mut output).unwrap();
    assert_eq!(output.samples[0].token, tokens[0]);
    // Two of three drafts are right.
    let wrong = (tokens[3] + 1) % 1000;
    let drafts = [tokens[0], tokens[1], tokens[2], wrong];
    fast.step(&round(3, &drafts, 3, 0), &mut output).unwrap();
    let drawn: Vec<_> = output.samples[..3].iter().map(|sample| sample.token).collect();
    assert_eq!(drawn, tokens[1..4]);
    let why = refusal(&mut fast, &round(5, &[tokens[2]], 0, 0));
    assert!(why.contains("holds 6 tokens"), "{why}");
    let (mut from_plain, mut from_fast) = (Vec::new(), Vec::new());
    plain.save_state(SlotId(0), 8, &mut from_plain).unwrap();
    assert!(fast.save_state(SlotId(0), 8, &mut from_fast).is_err());
    fast.step(&round(6, &tokens[3..5], 1, 0), &mut output).unwrap();
    fast.save_state(SlotId(0), 8, &mut from_fast).unwrap();
    assert_eq!(from_plain, from_fast);
}

#[test]
fn states_are_copied_saved_and_restored() {
    let mut executor = recurrent();
    let mut output = StepOutput::default();
    executor.step(&round(0, &[5, 6, 7], 0, 0), &mut output).unwrap();
    let drawn = output.samples[0].token;
    let mut image = Vec::new();
    executor.save_state(SlotId(0), 3, &mut image).unwrap();
    assert_eq!(image.len(), executor.geometry().state_bytes);
    executor.copy_state(SlotId(0), SlotId(1), 3).unwrap();
    assert!(executor.copy_state(SlotId(0), SlotId(2), 3).is_err(), "no such slot");
    assert!(executor.copy_state(SlotId(0), SlotId(1), 4).is_err(), "no such position");
    executor.step(&round(3, &[drawn], 0, 0), &mut output).unwrap();
    // The other slot stands where it was copied, and the restored one, too.
    let mut other = round(3, &[drawn], 0, 0);
    other.segments[0].state_slot = Some(SlotId(1));
    other.segments[0].drafting = Drafting::Off;
    executor.step(&other, &mut output).unwrap();
    assert!(executor.load_state(SlotId(1), 4, &image).is_err());
    executor.load_state(SlotId(1), 3, &image).unwrap();
    executor.step(&other, &mut output).unwrap();
}

#[test]
fn a_broken_promise_is_found() {
    let mut executor = recurrent();
    let mut output = StepOutput::default();
    let mut prompt = round(0, &[5, 6], 0, 0);
    prompt.samples.clear();
    prompt.segments[0].drafting = Drafting::Follow { next: 7 };
    executor.step(&prompt, &mut output).unwrap();
    let why = refusal(&mut executor, &round(2, &[8], 0, 0));
    assert!(why.contains("expects"), "{why}");
    executor.step(&round(2, &[7], 0, 3), &mut output).unwrap();
    let proposals = output.proposals_of(0).to_vec();
    assert_eq!(proposals.len(), 3);
    let drawn = output.samples[0].token;
    let why = refusal(&mut executor, &round(3, &[drawn + 1], 0, 0));
    assert!(why.contains("expects"), "{why}");
    let why = refusal(&mut executor, &round(3, &[drawn], 0, 4));
    assert!(why.contains("4 proposals"), "{why}");
    let mut sparse = round(3, &[drawn, 1, 2], 2, 0);
    sparse.samples.remove(1);
    let why = refusal(&mut executor, &sparse);
    assert!(why.contains("draws at [0, 2] with 2 drafts"), "{why}");
    let tokens = [&[drawn], &proposals[..]].concat();
    executor.step(&round(3, &tokens, 3, 1), &mut output).unwrap();
}

#[test]
fn a_script_is_read_by_position() {
    let mut scripted = recurrent();
    scripted.config.script = vec![10, 11, 12];
    scripted.drafters = Drafters::new(SimDrafter { seed: 1, accuracy: vec![1.0] }, 3, 1000);
    let mut output = StepOutput::default();
    scripted.step(&round(0, &[5, 6], 0, 3), &mut output).unwrap();
    assert_eq!(output.samples[0].token, 10);
    assert_eq!(output.proposals_of(0), [11, 12, 12]);
    scripted.step(&round(2, &[10, 11, 0], 2, 0), &mut output).unwrap();
    let drawn: Vec<_> = output.samples.iter().map(|sample| sample.token).collect();
    assert_eq!(drawn, [11, 12, 12]);
}
