//! Edge cases of the specification, its statistics, and the fast sampler against it.

use super::{SampleInput, Sampler, SamplingError, draw};
use crate::synthetic::Stream;
use laneway_execution::{
    Draw, SampleRow, SampledToken, SamplingKey, SamplingParams, StepOutput, TokenCount, TokenId,
};

fn row(params: SamplingParams, seed: u64, position: u64) -> SampleRow {
    SampleRow {
        row: 0,
        draw: Draw::Sample,
        params,
        key: SamplingKey { seed, position },
        top_logprobs: 0,
        counts: 0..0,
        biases: 0..0,
        mask: 0..0,
    }
}

fn drawn(logits: &[f32], input: &SampleInput<'_>) -> TokenId {
    let mut output = StepOutput::default();
    draw(logits, input, &mut output).unwrap();
    output.samples[0].token
}

/// Frequencies of `n` draws at successive positions.
fn frequencies(logits: &[f32], params: SamplingParams, n: u32) -> Vec<f64> {
    let mut counts = vec![0.0; logits.len()];
    for position in 0..n {
        let row = row(params, 11, u64::from(position));
        counts[drawn(logits, &SampleInput::plain(&row)) as usize] += 1.0 / f64::from(n);
    }
    counts
}

fn softmax(logits: &[f32], temperature: f32) -> Vec<f64> {
    let weights: Vec<f64> = logits.iter().map(|&l| f64::from(l / temperature).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|w| w / total).collect()
}

#[test]
fn frequencies_are_those_of_the_softmax() {
    let logits = [1.0, -0.5, 2.0, 0.0, 1.5, -3.0, 0.7];
    for temperature in [0.5, 1.0, 2.0] {
        let n = 20_000;
        let params = SamplingParams { temperature, ..SamplingParams::PLAIN };
        let found = frequencies(&logits, params, n);
        let chi_square: f64 = (softmax(&logits, temperature).iter().zip(&found))
            .map(|(p, f)| f64::from(n) * (f - p).powi(2) / p)
            .sum();
        // Six degrees of freedom: beyond 22.5 once in a thousand.
        assert!(chi_square < 22.5, "chi-square {chi_square} at temperature {temperature}");
    }
}

#[test]
fn truncations_keep_the_right_tokens() {
    // Probabilities 0.5, 0.25, 0.125, 0.125.
    let logits = [0.125f32, 0.5, 0.25, 0.125].map(f32::ln);
    let kept = |params: SamplingParams| -> Vec<usize> {
        let found = frequencies(&logits, params, 400);
        (0..4).filter(|&t| found[t] > 0.0).collect()
    };
    let plain = SamplingParams::PLAIN;
    assert_eq!(kept(plain), [0, 1, 2, 3]);
    assert_eq!(kept(SamplingParams { top_k: 1, ..plain }), [1]);
    // Of the two equal tokens the lower one comes first.
    assert_eq!(kept(SamplingParams { top_k: 3, ..plain }), [0, 1, 2]);
    assert_eq!(kept(SamplingParams { top_k: 9, ..plain }), [0, 1, 2, 3]);
    assert_eq!(kept(SamplingParams { top_p: 1e-6, ..plain }), [1]);
    assert_eq!(kept(SamplingParams { top_p: 0.49, ..plain }), [1]);
    assert_eq!(kept(SamplingParams { top_p: 0.74, ..plain }), [1, 2]);
    assert_eq!(kept(SamplingParams { top_p: 0.76, ..plain }), [0, 1, 2]);
    assert_eq!(kept(SamplingParams { top_p: 0.99, ..plain }), [0, 1, 2, 3]);
    assert_eq!(kept(SamplingParams { min_p: 1.0, ..plain }), [1]);
    assert_eq!(kept(SamplingParams { min_p: 0.4, ..plain }), [1, 2]);
    assert_eq!(kept(SamplingParams { min_p: 0.2, ..plain }), [0, 1, 2, 3]);
    // Top-p sees the probabilities of what top-k left: 2/3 and 1/3.
    assert_eq!(kept(SamplingParams { top_k: 2, top_p: 0.66, ..plain }), [1]);
    assert_eq!(kept(SamplingParams { top_k: 2, top_p: 0.67, ..plain }), [1, 2]);
}

#[test]
fn a_draw_does_not_depend_on_tokens_that_lost() {
    let mut noise = Stream::new(5);
    let logits: Vec<f32> = (0..200).map(|_| 3.0 * noise.normal()).collect();
    for position in 0..200 {
        let free = drawn(&logits, &SampleInput::plain(&row(SamplingParams::PLAIN, 3, position)));
        let mut mask = vec![u32::MAX; 7];
        let removed = (free as usize + 1 + position as usize) % 200;
        if removed != free as usize {
            mask[removed / 32] &= !(1 << (removed % 32));
        }
        let row = row(SamplingParams::PLAIN, 3, position);
        assert_eq!(drawn(&logits, &SampleInput { mask: &mask, ..SampleInput::plain(&row) }), free);
    }
}

#[test]
fn penalties_biases_and_mask_in_order() {
    let greedy = |params, logits: &[f32], counts: &[TokenCount], biases: &[(u32, f32)], mask| {
        let row = row(params, 0, 0);
        drawn(logits, &SampleInput { row: &row, counts, biases, mask })
    };
    let base = SamplingParams::GREEDY;
    assert_eq!(greedy(base, &[1.0, 3.0, 3.0], &[], &[], &[]), 1, "lowest of equal tokens");
    assert_eq!(greedy(base, &[1.0, 3.0, 2.0], &[], &[(0, 1.5), (0, 1.0)], &[]), 0, "biases add");
    assert_eq!(greedy(base, &[1.0, 3.0, 2.0], &[], &[], &[0b101]), 2, "mask");
    let prompt = [TokenCount { token: 1, generated: 0 }];
    let thrice = [TokenCount { token: 1, generated: 3 }];
    let repetition = SamplingParams { repetition_penalty: 2.0, ..base };
    assert_eq!(greedy(repetition, &[1.0, 3.0, 2.0], &prompt, &[], &[]), 2, "3 / 2 < 2");
    assert_eq!(greedy(repetition, &[-1.5, -1.0, -9.0], &prompt, &[], &[]), 0, "-1 · 2 < -1.5");
    // The bias lifts the logit above zero before the penalty looks at its sign.
    assert_eq!(greedy(repetition, &[0.4, -1.0, -9.0], &prompt, &[(1, 2.0)], &[]), 1);
    let presence = SamplingParams { presence_penalty: 1.5, ..base };
    assert_eq!(greedy(presence, &[1.0, 3.0, 2.0], &prompt, &[], &[]), 1, "prompt does not count");
    assert_eq!(greedy(presence, &[1.0, 3.0, 2.0], &thrice, &[], &[]), 2);
    let frequency = SamplingParams { frequency_penalty: 0.5, ..base };
    assert_eq!(greedy(frequency, &[1.0, 3.0, 2.0], &thrice, &[], &[]), 2);
}

#[test]
fn logprobs_are_raw_and_alternatives_ranked() {
    let logits = [0.0, 1.0, 2.0, 1.0];
    let mut row = row(SamplingParams { temperature: 0.1, ..SamplingParams::PLAIN }, 0, 0);
    row.top_logprobs = 3;
    row.draw = Draw::Score(3);
    let mut output = StepOutput { top: vec![(9, 0.0)], ..StepOutput::default() };
    let input = SampleInput { biases: &[(3, 50.0)], ..SampleInput::plain(&row) };
    draw(&logits, &input, &mut output).unwrap();
    let log_sum = logits.iter().map(|l| f64::from(*l).exp()).sum::<f64>().ln();
    let expected = |l: f64| (l - log_sum) as f32;
    let SampledToken { token, logprob, top } = output.samples[0].clone();
    assert_eq!((token, logprob), (3, expected(1.0)));
    assert_eq!(output.top[top], [(2, expected(2.0)), (1, expected(1.0)), (3, expected(1.0))]);
}

#[test]
fn errors_name_what_is_wrong_and_leave_the_output_alone() {
    let mut sampler = Sampler::new(3);
    let plain = row(SamplingParams::PLAIN, 0, 0);
    let scored = SampleRow { draw: Draw::Score(3), ..plain.clone() };
    let input = SampleInput::plain(&plain);
    let fine = [0.0, 1.0, 2.0];
    let cases: [(&[f32], SampleInput<'_>, &str); 6] = [
        (&[0.0, f32::NAN, 1.0], input, "logit of token 1 is NaN"),
        (&[0.0, 1.0, f32::INFINITY], input, "logit of token 2 is inf"),
        (&fine, SampleInput { mask: &[0], ..input }, "the mask allows none of 3 tokens"),
        (&fine, SampleInput { mask: &[7, 0], ..input }, "mask of 2 words, the vocabulary needs 1"),
        (&fine, SampleInput::plain(&scored), "token 3 is beyond the vocabulary of 3"),
        (&fine, SampleInput { biases: &[(1, f32::NAN)], ..input }, "bias of token 1 is NaN"),
    ];
    for (logits, input, message) in cases {
        let mut output = StepOutput::default();
        let slow = draw(logits, &input, &mut output).unwrap_err();
        let fast = sampler.sample(logits, &input, &mut output).unwrap_err();
        assert_eq!((slow.to_string(), fast.to_string()), (message.into(), message.into()));
        assert_eq!(output, StepOutput::default());
    }
    let error: crate::OpError = SamplingError::NothingAllowed { vocabulary: 3 }.into();
    assert_eq!(error.to_string(), "logits_sample: the mask allows none of 3 tokens");
}

struct Case {
    logits: Vec<f32>,
    row: SampleRow,
    counts: Vec<TokenCount>,
    biases: Vec<(TokenId, f32)>,
    mask: Vec<u32>,
}

/// One random row: few or many tokens, with or without ties, any mix of parameters.
fn random_case(noise: &mut Stream) -> Case {
    let n = [1, 2, 3, 31, 64, 65, 700, 3000][noise.below(8)];
    let spread = [0.0, 0.5, 3.0, 12.0][noise.below(4)];
    let ties = noise.below(2) == 0;
    let logit = |noise: &mut Stream| {
        let l = spread * noise.normal();
        if ties { l.round() } else { l }
    };
    let logits = (0..n).map(|_| logit(noise)).collect();
    let pick = |noise: &mut Stream, values: &[f32]| values[noise.below(values.len())];
    let params = SamplingParams {
        temperature: pick(noise, &[0.0, 0.01, 0.6, 1.0, 1.0, 5.0, 100.0]),
        top_k: [0, 0, 1, 2, 20, 64, 500, 5000][noise.below(8)],
        top_p: pick(noise, &[1.0, 1.0, 1e-9, 0.3, 0.8, 0.95, 0.999_999_9]),
        min_p: pick(noise, &[0.0, 0.0, 0.05, 0.5, 1.0]),
        presence_penalty: pick(noise, &[0.0, 1.0, -0.5]),
        frequency_penalty: pick(noise, &[0.0, 0.3]),
        repetition_penalty: pick(noise, &[1.0, 1.3, 0.9]),
    };
    let mut row = row(params, noise.next_u64(), noise.next_u64() >> noise.below(64));
    row.top_logprobs = [0, 0, 1, 5, 20][noise.below(5)];
    if noise.below(8) == 0 {
        row.draw = Draw::Score(noise.below(n) as u32);
    }
    let sparse = |noise: &mut Stream| -> Vec<u32> {
        (0..n as u32).filter(|_| noise.below(10) == 0).collect()
    };
    let (mut counts, mut biases, mut mask) = (vec![], vec![], vec![]);
    if params.uses_counts() {
        let tokens = sparse(noise);
        counts.extend(
            tokens.iter().map(|&token| TokenCount { token, generated: noise.below(4) as u32 }),
        );
    }
    if noise.below(3) == 0 {
        let tokens = sparse(noise);
        biases.extend(tokens.iter().map(|&token| (token, noise.normal().round())));
    }
    if noise.below(3) == 0 {
        let words = n.div_ceil(32);
        mask.extend((0..words).map(|_| [0, u32::MAX, noise.next_u64() as u32][noise.below(3)]));
    }
    Case { logits, row, counts, biases, mask }
}

#[test]
fn the_sampler_equals_the_specification() {
    let (mut noise, mut sampler) = (Stream::new(0x5eed), Sampler::default());
    let mut drawn = 0;
    for case in 0..6000 {
        let Case { logits, row, counts, biases, mask } = &random_case(&mut noise);
        let input = SampleInput { row, counts, biases, mask };
        let (mut slow, mut fast) = (StepOutput::default(), StepOutput::default());
        let expected = draw(logits, &input, &mut slow);
        let found = sampler.sample(logits, &input, &mut fast);
        assert_eq!((found, fast), (expected, slow), "case {case}: {row:?}");
        drawn += usize::from(expected.is_ok());
    }
    assert!(drawn > 5000, "only {drawn} cases drew a token");
}
