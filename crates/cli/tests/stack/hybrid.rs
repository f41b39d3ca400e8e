//! A trained model of the hybrid family, with a draft layer.

use crate::rig::{self, Exact, Rig, request, together};
use laneway_artifact::Gguf;
use laneway_cpu::Precision;
use laneway_engine::{DraftLength, Drafter, Engine, Request, Speculation, WithDraft};
use laneway_execution::{
    Drafting, Draw, Executor, PageId, SampleRow, SamplingKey, SamplingParams, SequenceId, SlotId,
    StepBatch, StepOutput, TokenId,
};
use laneway_frontend::Tokenizer;
use laneway_numerics::KvDtype;
use serde_json::Value;

fn gguf() -> Gguf {
    let path = rig::shared_path("models/tiny-hybrid/tiny-hybrid-f16.gguf");
    Gguf::open(&path).unwrap_or_else(|e| panic!("{e}"))
}

fn evaluation() -> Value {
    serde_json::from_str(&rig::shared("models/tiny-hybrid/eval.json")).expect("JSON")
}

fn texts<'a>(list: &'a Value, key: Option<&str>) -> Vec<&'a str> {
    let items = list.as_array().expect("a list").iter();
    items.map(|item| key.map_or(item, |key| &item[key]).as_str().expect("a text")).collect()
}

/// More than 200 prompts: the ends of tasks of seven kinds, pieces of code, and two long texts.
fn prompts(tokenizer: &Tokenizer) -> Vec<Vec<TokenId>> {
    let data = evaluation();
    let encode = |text: &str| tokenizer.encode(text, true).expect("tokens");
    let mut prompts: Vec<_> =
        texts(&data["tasks"], Some("prompt")).into_iter().map(encode).collect();
    for text in texts(&data["text"], None) {
        prompts.extend(encode(text).chunks(24).take(16).map(<[_]>::to_vec));
    }
    let needles = texts(&data["niah"]["1024"], Some("prompt"));
    prompts.iter_mut().for_each(|prompt| drop(prompt.drain(..prompt.len().saturating_sub(90))));
    prompts.extend(needles.into_iter().take(2).map(encode));
    assert!(prompts.len() >= 200, "{}", prompts.len());
    prompts
}

const NEW_TOKENS: usize = 12;

/// Ways to draft.
fn ways() -> Vec<Speculation> {
    let of = |drafter, length| Speculation { drafter, length };
    let mut ways: Vec<_> =
        [1, 3, 5].map(|n| of(Drafter::Model, DraftLength::Fixed(n))).into_iter().collect();
    ways.push(of(Drafter::Ngram, DraftLength::Fixed(5)));
    ways.push(of(Drafter::Model, DraftLength::Auto));
    ways.push(Speculation::OFF);
    ways
}

/// Every way of drafting meets every chunk size, alone and in company, on a share of more than 400
/// requests, half of them greedy.
#[test]
fn drafts_chunks_and_company_change_nothing() {
    let tokenizer = Tokenizer::from_gguf(&gguf()).expect("a tokenizer");
    let prompts = prompts(&tokenizer);
    let plain = Rig { window: 1088, ..Rig::new(Precision::Int12) };
    let requests: Vec<Request> = [SamplingParams::GREEDY, SamplingParams::PLAIN]
        .into_iter()
        .flat_map(|sampling| prompts.iter().map(move |prompt| (prompt, sampling)))
        .zip(1..)
        .map(|((prompt, sampling), seed)| request(prompt, sampling, seed, NEW_TOKENS))
        .collect();
    let alone = plain.engine(gguf);
    let expected: Vec<Vec<Exact>> =
        requests.iter().flat_map(|one| together(&alone, std::slice::from_ref(one))).collect();
    let cuts = [(1, 4), (7, 1), (64, 4), (512, 1), (1, 1), (7, 4), (64, 1), (512, 4)];
    for (part, (chunk, lanes)) in cuts.into_iter().enumerate() {
        let engine = Rig { chunk, lanes, drafts: 5, ..plain }.engine(gguf);
        for (number, speculation) in ways().into_iter().enumerate() {
            // Of the requests that are cut so, each is drafted for in two ways of six.
            let share: Vec<usize> = (0..requests.len())
                .filter(|i| i % cuts.len() == part && i / cuts.len() % 3 == number % 3)
                .collect();
            let drafted =
                |i: &usize| Request { speculation: Some(speculation), ..requests[*i].clone() };
            for some in share.chunks(lanes) {
                let found = together(&engine, &some.iter().map(drafted).collect::<Vec<_>>());
                for (i, found) in some.iter().zip(found) {
                    let what = format!("request {i}, {speculation:?}, chunks of {chunk}, {lanes}");
                    assert_eq!(found, expected[*i], "{what}");
                }
            }
        }
        let found = engine.status().speculation;
        eprintln!("chunks of {chunk}, {lanes} lanes: {found:?}");
        assert!(found.accepted > 100, "{found:?}");
    }
}

/// A recurrent model drafts for another one: its states run ahead in copies.
#[test]
fn a_recurrent_draft_model_changes_nothing() {
    let tokenizer = Tokenizer::from_gguf(&gguf()).expect("a tokenizer");
    let warm = SamplingParams { frequency_penalty: 0.3, ..SamplingParams::PLAIN };
    let requests: Vec<Request> = (prompts(&tokenizer).iter().step_by(40).zip(1..))
        .map(|(prompt, seed)| {
            let sampling = if seed % 2 == 0 { warm } else { SamplingParams::GREEDY };
            request(prompt, sampling, seed, 3 * NEW_TOKENS)
        })
        .collect();
    let plain = Rig { lanes: 3, chunk: 64, ..Rig::new(Precision::Int12) };
    let alone = plain.engine(gguf);
    let expected: Vec<_> = requests.chunks(3).flat_map(|some| together(&alone, some)).collect();
    drop(alone);
    let speculation = Speculation { drafter: Drafter::Model, length: DraftLength::Fixed(5) };
    let rig = Rig { drafts: 5, speculation, ..plain };
    let engine = Engine::spawn(rig.config(), move || {
        let rows = 64 + 3 * 6;
        // Every state of the model has two of the draft model.
        let draft = Rig { lanes: 6, drafts: 0, ..rig }.model(&gguf(), rows + 1);
        WithDraft::new(rig.model(&gguf(), rows), draft).expect("they fit")
    });
    let found: Vec<_> = requests.chunks(3).flat_map(|some| together(&engine, some)).collect();
    assert_eq!(found, expected);
    let stats = engine.status().speculation;
    // It is the same model, so that all drafts are right.
    assert!(stats.drafted > 0 && stats.accepted == stats.drafted, "{stats:?}");
}

/// Greedy continuations, and how many positions there were at which the first 1, 2 and 3 drafts
/// turned out all right.
fn acceptance(prompts: &[Vec<TokenId>], end: Option<TokenId>) -> ([f64; 3], usize) {
    const LENGTH: usize = 96;
    let rig = Rig { drafts: 3, ..Rig::new(Precision::Int12) };
    let mut model = rig.model(&gguf(), 600);
    let pages: Vec<PageId> = (0..16).map(PageId).collect();
    let (mut right, mut positions) = ([0usize; 3], 0usize);
    for prompt in prompts {
        let (mut tokens, mut computed, mut proposals) = (prompt.clone(), 0, Vec::new());
        while tokens.len() < prompt.len() + LENGTH && tokens.last().copied() != end {
            let mut batch = StepBatch::default();
            let run = &tokens[computed..];
            let rows = batch.push_segment(SequenceId(1), computed, run, &pages, Some(SlotId(0)));
            let segment = &mut batch.segments[0];
            segment.drafting = Drafting::Propose { count: 3 };
            segment.blocks = 0..pages.len();
            batch.block_tables.clone_from(&pages);
            batch.samples.push(SampleRow {
                row: rows.end - 1,
                draw: Draw::Sample,
                params: SamplingParams::GREEDY,
                key: SamplingKey { seed: 0, position: tokens.len() as u64 },
                top_logprobs: 0,
                counts: 0..0,
                biases: 0..0,
                mask: 0..0,
            });
            let mut output = StepOutput::default();
            model.step(&batch, &mut output).expect("step");
            computed = tokens.len();
            tokens.push(output.samples[0].token);
            proposals.push(output.proposals_of(0).to_vec());
        }
        let after = tokens.get(prompt.len() + 1..).unwrap_or_default().windows(3);
        for (drafts, after) in proposals.iter().zip(after) {
            let accepted = drafts.iter().zip(after).take_while(|(a, b)| a == b).count();
            right[..accepted].iter_mut().for_each(|right| *right += 1);
            positions += 1;
        }
    }
    (right.map(|right| right as f64 / positions as f64), positions)
}

/// The draft layer drafts as well as it did when it was trained: the figures recorded beside the
/// model, for the same 32 tasks, and for 32 texts of which six are at hand (so that these may only
/// not be worse).
#[test]
fn acceptance_is_as_recorded() {
    let tokenizer = Tokenizer::from_gguf(&gguf()).expect("a tokenizer");
    let encode = |text: &str| tokenizer.encode(text, true).expect("tokens");
    let data = evaluation();
    let report: Value =
        serde_json::from_str(&rig::shared("models/tiny-hybrid/train_report.json")).expect("JSON");
    let recorded = |of: &Value| {
        ["accepted_1", "accepted_2", "accepted_3"].map(|key| of[key].as_f64().expect("a share"))
    };
    let tasks = data["tasks"].as_array().expect("tasks");
    let of_kind = |kind: &'static str| tasks.iter().filter(move |t| t["kind"] == kind).take(8);
    let tasks = ["tool", "copy", "rename", "json"].into_iter().flat_map(of_kind);
    let prompts: Vec<_> = tasks.map(|t| encode(t["prompt"].as_str().expect("a prompt"))).collect();
    let end = encode("<|im_end|>")[0];
    let (found, positions) = acceptance(&prompts, Some(end));
    let expected = recorded(&report["eval"]["mtp_chat"]);
    eprintln!("tasks: {positions} positions, {found:.3?}, recorded {expected:.3?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 0.02, "{found} instead of {expected}");
    }
    let mut prompts = Vec::new();
    for text in texts(&data["text"], None) {
        let text = encode(text);
        prompts.extend((0..150).step_by(30).map(|i| text[i..text.len().min(i + 256)].to_vec()));
    }
    let (found, positions) = acceptance(&prompts, None);
    let expected = recorded(&report["eval"]["mtp_text"]["own_greedy"]);
    eprintln!("texts: {positions} positions, {found:.3?}, recorded {expected:.3?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(*found > expected - 0.02, "{found} instead of {expected}");
    }
}

/// The needle is found at every length, as it was when the model was trained.
#[test]
fn needles_are_found() {
    let data = evaluation();
    let tokenizer = Tokenizer::from_gguf(&gguf()).expect("a tokenizer");
    for (length, window) in [("1024", 2048), ("4096", 5120), ("8192", 9216)] {
        let kv_dtype = KvDtype::Bf16;
        let rig = Rig { window, kv_dtype, ..Rig::new(Precision::Int12) };
        let engine = rig.engine(gguf);
        let cases = data["niah"][length].as_array().expect("cases");
        let mut found = 0;
        for case in cases.iter().step_by(4) {
            let prompt = case["prompt"].as_str().expect("a prompt");
            let answer = case["answer"].as_str().expect("an answer");
            let prompt = tokenizer.encode(prompt, true).expect("tokens");
            let wanted = tokenizer.encode(answer, true).expect("tokens");
            let request = request(&prompt, SamplingParams::GREEDY, 0, wanted.len());
            let tokens = together(&engine, &[request]).swap_remove(0);
            found += usize::from(tokens.iter().map(|token| token.0).eq(wanted));
        }
        assert_eq!(found, cases.len().div_ceil(4), "needles in {length} tokens");
    }
}
