//! `logits_sample` against the specification of a draw.

use super::Tolerances;
use super::rig::{
    Encoded, ROWS, WORKSPACE, exact_activations, input, plain_step, sample_row, widen,
};
use crate::sampling::{SampleInput, draw};
use crate::synthetic::Stream;
use crate::{Ops, Workspace, oracle};
use laneway_execution::{Draw, SamplingKey, SamplingParams, StepBatch, StepOutput, TokenCount};
use laneway_numerics::WeightFormat;

const WIDTH: usize = 96;
const VOCABULARY: usize = 301;

/// Every kind of draw. Hidden states and head are small multiples of powers of two, so every
/// backend's logits are exact and its tokens must be the specification's.
pub fn logits_sample<B: Ops>(make: impl Fn(Workspace) -> B, tolerances: &Tolerances) {
    let (mut ops, mut noise) = (make(WORKSPACE), Stream::new(9));
    let weights: Vec<f32> =
        (0..VOCABULARY * WIDTH).map(|_| (noise.below(17) as f32 - 8.0) / 128.0).collect();
    let head = Encoded::new(WeightFormat::F32, VOCABULARY, WIDTH, &weights);
    let (loaded, decoded) = (head.load(&mut ops), head.decoded());
    for rows in ROWS {
        let x = exact_activations(&mut noise, rows, WIDTH);
        let mut batch = plain_step(rows);
        for row in 0..rows {
            push_sample(&mut batch, &mut noise, row);
        }
        let logits = oracle::linear(&widen(&x), &decoded, None);
        let logits: Vec<f32> = logits.iter().map(|&l| l as f32).collect();
        // The output is appended to.
        let mut expected = StepOutput { top: vec![(7, -7.0)], ..StepOutput::default() };
        let mut found = expected.clone();
        for (logits, row) in logits.chunks(VOCABULARY).zip(&batch.samples) {
            draw(logits, &SampleInput::of(&batch, row), &mut expected).expect("draw");
        }
        ops.begin_step(&batch).expect("begin_step");
        let x_in = input(&mut ops, WIDTH, &x);
        ops.logits_sample(&x_in, &loaded, &mut found).expect("logits_sample");
        compare(tolerances, &batch, &found, &expected);
    }
}

/// A row with any mix of parameters and side tables.
fn push_sample(batch: &mut StepBatch, noise: &mut Stream, row: usize) {
    let mut pick = |values: &[f32]| values[noise.below(values.len())];
    let params = SamplingParams {
        temperature: pick(&[0.0, 0.7, 1.0, 1.5]),
        top_k: pick(&[0.0, 0.0, 1.0, 20.0, 400.0]) as u32,
        top_p: pick(&[1.0, 0.9, 0.3]),
        min_p: pick(&[0.0, 0.0, 0.1]),
        presence_penalty: pick(&[0.0, 0.5]),
        frequency_penalty: pick(&[0.0, 0.25]),
        repetition_penalty: pick(&[1.0, 1.25]),
    };
    let key = SamplingKey { seed: noise.next_u64(), position: noise.below(100_000) as u64 };
    let mut sample = sample_row(row, params, key);
    sample.top_logprobs = [0, 0, 1, 5, 20][noise.below(5)];
    if noise.below(6) == 0 {
        sample.draw = Draw::Score(noise.below(VOCABULARY) as u32);
    }
    if params.uses_counts() {
        let start = batch.counts.len();
        for token in (0..VOCABULARY as u32).filter(|t| t % 7 == 3) {
            batch.counts.push(TokenCount { token, generated: token % 3 });
        }
        sample.counts = start..batch.counts.len();
    }
    if noise.below(3) == 0 {
        let start = batch.biases.len();
        batch.biases.extend([(5, 2.5), (300, -4.0), (noise.below(VOCABULARY) as u32, 6.0)]);
        sample.biases = start..batch.biases.len();
    }
    if noise.below(3) == 0 {
        let start = batch.masks.len();
        batch.masks.extend((0..VOCABULARY.div_ceil(32)).map(|_| noise.next_u64() as u32));
        sample.mask = start..batch.masks.len();
    }
    batch.samples.push(sample);
}

fn compare(tolerances: &Tolerances, batch: &StepBatch, found: &StepOutput, expected: &StepOutput) {
    assert_eq!(found.samples.len(), expected.samples.len(), "one entry a sample");
    assert_eq!(found.top.len(), expected.top.len(), "number of alternatives");
    let close = |what: &str, found: f32, expected: f32| {
        let (found, expected) = (f64::from(found), f64::from(expected));
        let bound = tolerances.logprob(expected);
        assert!((found - expected).abs() <= bound, "{what}: {found}, expected {expected}");
    };
    for ((row, found), expected) in batch.samples.iter().zip(&found.samples).zip(&expected.samples)
    {
        assert_eq!((found.token, &found.top), (expected.token, &expected.top), "{row:?}");
        close("logprob", found.logprob, expected.logprob);
    }
    for (found, expected) in found.top.iter().zip(&expected.top) {
        assert_eq!(found.0, expected.0, "alternatives in order");
        close("alternative", found.1, expected.1);
    }
}
