//! tiny-hybrid on the CPU: against the reference's values, and against itself with and without
//! drafts, in other chunks and in company.

mod hybrid;

use hybrid::{
    Generated, HIDDEN, LAYERS, Plan, Rounds, VOCABULARY, checkpoint, generate, gguf, goldens, load,
    relative_error, sample,
};
use laneway_cpu::Precision;
use laneway_execution::{
    Drafting, Executor, PageId, SamplingParams, SequenceId, SlotId, StepBatch, StepOutput, TokenId,
};

/// Weights are exact in f16 but for the smallest; activations and cache are f32.
const RELATIVE: f64 = 1e-5;

#[test]
fn layers_logits_and_drafts_equal_the_reference() {
    let file = gguf();
    let mut model = load(&file, Precision::F32);
    let embedding = embedding(&file);
    for (index, golden) in goldens().iter().enumerate() {
        let mut batch = StepBatch::default();
        let pages: Vec<PageId> = (0..40).map(PageId).collect();
        let (mut layers, mut last) = (vec![Vec::new(); LAYERS + 3], Vec::new());
        let mut output = StepOutput::default();
        for (chunk, tokens) in golden.ids.chunks(500).enumerate() {
            let start = chunk * 500;
            batch.clear();
            let rows = batch.push_segment(SequenceId(1), start, tokens, &pages, Some(SlotId(2)));
            let segment = batch.segments.last_mut().unwrap();
            segment.blocks = 0..pages.len();
            batch.block_tables.clone_from(&pages);
            let end = start + tokens.len();
            segment.drafting = match golden.ids.get(end) {
                Some(&next) => Drafting::Follow { next },
                None => Drafting::Propose { count: 3 },
            };
            if end == golden.ids.len() {
                let mut sample = sample(rows.end - 1, SamplingParams::GREEDY, end as u64);
                sample.top_logprobs = VOCABULARY;
                batch.samples.push(sample);
            }
            let mut probe = |layer: usize, rows: &[f32]| {
                layers[layer].extend(rows.chunks(HIDDEN).map(norm));
                if layer >= LAYERS {
                    last = rows.to_vec();
                    let expected = &golden.array("mtp_hidden")[(layer - LAYERS) * HIDDEN..];
                    if end == golden.ids.len() {
                        let found = &last[last.len() - HIDDEN..];
                        let error = difference(found, &expected[..HIDDEN]);
                        assert!(error < RELATIVE, "prompt {index}, draft {layer}: {error}");
                        let logits = logits(&embedding, found);
                        let expected = widen(
                            &golden.array("mtp_logits")[(layer - LAYERS) * VOCABULARY..]
                                [..VOCABULARY],
                        );
                        let error = relative_error(&logits, &expected);
                        assert!(error < RELATIVE, "prompt {index}, draft logits {layer}: {error}");
                    }
                }
            };
            model.step_probed(&batch, &mut output, &mut probe).expect("step");
        }
        let norms = golden.array("hidden_norms");
        let positions = golden.ids.len();
        for (layer, found) in layers.iter().take(LAYERS).enumerate() {
            for (found, expected) in found.iter().zip(&norms[(layer + 1) * positions..]) {
                let error = (found / f64::from(*expected) - 1.0).abs();
                assert!(error < RELATIVE, "prompt {index}, layer {layer}: {found}, {expected}");
            }
        }
        let mut found = vec![0.0; VOCABULARY];
        for &(token, logprob) in &output.top[output.samples[0].top.clone()] {
            found[token as usize] = f64::from(logprob);
        }
        let error = relative_error(&found, &widen(golden.array("logits")));
        eprintln!("prompt {index}: {positions} tokens, relative error of the logits {error:.1e}");
        assert!(error < RELATIVE, "prompt {index}: {error}");
        assert_eq!(output.samples[0].token, golden.greedy[0], "prompt {index}");
        assert_eq!(output.proposals_of(0), golden.drafts, "prompt {index}");
    }
}

/// The folder's weights are bf16, the file's f16, which lacks the smallest of them; and the file has
/// value heads in another order.
#[test]
fn folder_and_file_are_one_model() {
    let (file, folder) = (gguf(), checkpoint());
    let mut models = [load(&file, Precision::F32), load(&folder, Precision::F32)];
    for (index, golden) in goldens().iter().enumerate().take(5) {
        let [file, folder] = models.each_mut().map(|model| {
            let mut batch = StepBatch::default();
            let pages: Vec<PageId> = (0..4).map(PageId).collect();
            let rows = batch.push_segment(SequenceId(1), 0, &golden.ids, &pages, Some(SlotId(0)));
            batch.segments[0].drafting = Drafting::Propose { count: 3 };
            let position = golden.ids.len() as u64;
            let mut sample = sample(rows.end - 1, SamplingParams::GREEDY, position);
            sample.top_logprobs = VOCABULARY;
            batch.samples.push(sample);
            let mut output = StepOutput::default();
            model.step(&batch, &mut output).expect("step");
            let mut logprobs = vec![0.0; VOCABULARY];
            for &(token, logprob) in &output.top {
                logprobs[token as usize] = f64::from(logprob);
            }
            (logprobs, output.proposals_of(0).to_vec())
        });
        let error = relative_error(&folder.0, &file.0);
        eprintln!("prompt {index}: relative difference of the logits {error:.1e}");
        assert!(error < 1e-5, "prompt {index}: {error}");
        assert_eq!(folder.1, file.1, "prompt {index}");
    }
}

#[test]
fn greedy_continuations_equal_the_reference() {
    let file = gguf();
    let mut model = load(&file, Precision::F32);
    let plan = Plan { chunk: 64, drafts: None, params: SamplingParams::GREEDY, tokens: 64 };
    for (index, golden) in goldens().iter().enumerate() {
        let (found, _) = generate(&mut model, &[&golden.ids], &plan);
        let found: Vec<TokenId> = found[0].iter().map(|(token, _)| *token).collect();
        let differing = found.iter().zip(&golden.greedy).position(|(a, b)| a != b);
        eprintln!("prompt {index}: first difference {differing:?}");
        if let Some(at) = differing {
            let margin = golden.margins[at];
            assert!(margin < 0.05, "prompt {index} differs at {at}, with a margin of {margin}");
        }
    }
}

/// Whatever is drafted, however the prompt is cut and whoever else is there: the same tokens and
/// the same log probabilities, bit for bit, greedy and drawn.
#[test]
fn drafts_chunks_and_company_change_nothing() {
    let file = gguf();
    let mut model = load(&file, Precision::Int12);
    let goldens = goldens();
    let prompts: Vec<&[TokenId]> = goldens[..5].iter().map(|golden| &golden.ids[..]).collect();
    for params in [SamplingParams::GREEDY, SamplingParams::PLAIN] {
        let plan = Plan { chunk: 512, drafts: None, params, tokens: 48 };
        let alone: Vec<Vec<Generated>> = (prompts.iter())
            .map(|prompt| generate(&mut model, &[prompt], &plan).0.remove(0))
            .collect();
        let mut accepted = Vec::new();
        for drafts in [None, Some(0), Some(1), Some(3), Some(5)] {
            for (chunk, company) in [(1, 1), (7, 4), (64, 1), (512, 4)] {
                let plan = Plan { chunk, drafts, ..plan };
                let mut rounds = Rounds::default();
                for (prompts, expected) in prompts.chunks(company).zip(alone.chunks(company)) {
                    let (found, some) = generate(&mut model, prompts, &plan);
                    assert_eq!(found, expected, "{plan:?} in company of {company}");
                    rounds.accepted += some.accepted;
                    rounds.drafted += some.drafted;
                    rounds.rounds += some.rounds;
                }
                accepted.push((drafts, rounds));
            }
        }
        for (drafts, rounds) in accepted {
            assert_eq!(rounds.drafted > 0, drafts.unwrap_or(0) > 0, "{drafts:?}: {rounds:?}");
            // A trained draft layer is right more often than not at first.
            let most = rounds.accepted * 10 > rounds.drafted * 3;
            assert!(most || rounds.drafted == 0, "{drafts:?}: {rounds:?}");
        }
    }
}

fn norm(values: &[f32]) -> f64 {
    widen(values).iter().map(|v| v * v).sum::<f64>().sqrt()
}

fn difference(found: &[f32], expected: &[f32]) -> f64 {
    let difference: Vec<f32> = found.iter().zip(expected).map(|(a, b)| a - b).collect();
    norm(&difference) / norm(expected)
}

fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(*v)).collect()
}

fn embedding(file: &dyn laneway_model::ModelFile) -> Vec<f32> {
    let tensors = file.tensors();
    let table = tensors.iter().find(|t| t.name == "token_embd.weight").expect("the embedding");
    let mut values = vec![0.0; VOCABULARY * HIDDEN];
    laneway_numerics::decode_row(table.format, &table.data(), &mut values).expect("f16");
    values
}

fn logits(embedding: &[f32], hidden: &[f32]) -> Vec<f64> {
    let dot = |row: &[f32]| row.iter().zip(hidden).map(|(a, b)| f64::from(a * b)).sum();
    embedding.chunks(HIDDEN).map(dot).collect()
}
