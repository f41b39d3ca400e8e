//! A real model of the Llama family.

use crate::rig::{self, Rig, request, together};
use laneway_artifact::Gguf;
use laneway_cpu::Precision;
use laneway_engine::{
    DraftLength, Drafter, Engine, EngineHandle, Event, Request, Speculation, WithDraft,
};
use laneway_execution::{SamplingParams, TokenId};
use laneway_frontend::Tokenizer;
use serde_json::Value;
use std::path::PathBuf;
use std::sync::mpsc::channel;

const MODEL_FILE: &str = "smollm2-135m-instruct-q4_1.gguf";

fn gguf() -> Gguf {
    let folder = std::env::var_os("LANEWAY_TEST_MODELS")
        .map(PathBuf::from)
        .expect("LANEWAY_TEST_MODELS is not set; run `cargo xtask test`, which fetches the models");
    Gguf::open(folder.join(MODEL_FILE)).unwrap_or_else(|e| panic!("{MODEL_FILE}: {e}"))
}

/// Token ids of the reference prompts, the longest last.
fn prompts() -> Vec<Vec<TokenId>> {
    let data: Value =
        serde_json::from_str(&rig::shared("reference/smollm2_llamacpp_reference.json"))
            .expect("JSON");
    let ids = |prompt: &Value| -> Vec<TokenId> {
        serde_json::from_value(prompt["token_ids"].clone()).expect("token ids")
    };
    let mut prompts: Vec<_> =
        data["prompts"].as_array().expect("prompts").iter().map(ids).collect();
    prompts.sort_by_key(Vec::len);
    prompts
}

fn engine(precision: Precision, lanes: usize, chunk: usize) -> EngineHandle {
    Rig { lanes, chunk, ..Rig::new(precision) }.engine(gguf)
}

#[test]
fn an_answer_depends_neither_on_company_nor_on_how_the_prompt_is_cut() {
    let prompts = prompts();
    let warm = SamplingParams { temperature: 1.0, ..SamplingParams::GREEDY };
    // The longest prompt greedily, a short one drawn twice; others beside them.
    let longest = prompts.last().expect("prompts");
    let subjects = [
        request(longest, SamplingParams::GREEDY, 1, 24),
        request(&prompts[1], warm, 2, 48),
        request(&prompts[1], warm, 3, 48),
    ];
    let company: Vec<Request> =
        prompts.iter().take(3).map(|prompt| request(prompt, warm, 4, 64)).collect();

    let alone = engine(Precision::Int12, 1, 512);
    let expected: Vec<_> =
        subjects.iter().flat_map(|s| together(&alone, std::slice::from_ref(s))).collect();
    assert_ne!(expected[1], expected[2], "the seed matters");
    drop(alone);

    for chunk in [1, 7, 64, 512] {
        let engine = engine(Precision::Int12, 4, chunk);
        for (subject, expected) in subjects.iter().zip(&expected) {
            // In the midst of the others, so that it joins a running batch.
            let mut batch = company.clone();
            batch.insert(1, subject.clone());
            let found = together(&engine, &batch).swap_remove(1);
            assert_eq!(found, *expected, "chunks of {chunk}");
        }
        let found = together(&engine, &subjects[2..]);
        assert_eq!(found, expected[2..], "alone, chunks of {chunk}");
    }
}

#[test]
fn an_answer_does_not_depend_on_drafts() {
    let prompts = prompts();
    let (lanes, chunk, rows) = (3, 64, 64 + 3 * 6);
    let warm =
        SamplingParams { temperature: 1.0, frequency_penalty: 0.3, ..SamplingParams::GREEDY };
    let requests = [
        request(&prompts[0], SamplingParams::GREEDY, 1, 64),
        request(&prompts[1], warm, 2, 64),
        request(&prompts[2], SamplingParams::GREEDY, 3, 64),
    ];
    let expected = together(&engine(Precision::Int12, lanes, chunk), &requests);
    // The model drafts for itself, so that nearly all drafts are right.
    let rig = Rig { lanes, chunk, drafts: 5, ..Rig::new(Precision::Int12) };
    let engine = Engine::spawn(rig.config(), move || {
        let target = rig.model(&gguf(), rows);
        WithDraft::new(target, rig.model(&gguf(), rows + 1)).expect("they fit")
    });
    for drafter in [Drafter::Ngram, Drafter::Model] {
        for length in [DraftLength::Fixed(5), DraftLength::Auto] {
            let speculation = Some(Speculation { drafter, length });
            let before = engine.status().speculation;
            let speculating = requests.clone().map(|request| Request { speculation, ..request });
            assert_eq!(together(&engine, &speculating), expected, "{speculation:?}");
            let after = engine.status().speculation;
            let drafted = after.drafted - before.drafted;
            let accepted = after.accepted - before.accepted;
            eprintln!("{speculation:?}: {accepted} of {drafted} drafts accepted");
            if drafter == Drafter::Model {
                assert!(drafted > 0 && accepted == drafted, "{accepted} of {drafted}");
            }
        }
    }
}

/// Perplexity of a text in windows of 512 tokens, each predicted from the window's start.
fn perplexity(precision: Precision, windows: &[&[TokenId]]) -> f64 {
    let engine = engine(precision, 1, 256);
    let (mut sum, mut count) = (0.0, 0usize);
    for window in windows {
        let mut request = request(window, SamplingParams::GREEDY, 0, 0);
        (request.score_prompt, request.top_logprobs) = (true, 0);
        let (sender, events) = channel();
        let _guard = engine.submit(request, Box::new(rig::Inlet(sender))).expect("a place");
        loop {
            match events.recv().expect("an end") {
                Event::PromptToken { logprob: Some(logprob), .. } => {
                    sum += f64::from(logprob);
                    count += 1;
                }
                Event::Finished { .. } => break,
                Event::Failed { failure, .. } => panic!("{failure:?}"),
                _ => {}
            }
        }
    }
    assert_eq!(count, windows.iter().map(|w| w.len() - 1).sum::<usize>());
    (-sum / count as f64).exp()
}

#[test]
fn perplexity_of_the_fast_path_is_that_of_f32() {
    let tokenizer = Tokenizer::from_gguf(&gguf()).expect("a tokenizer");
    let text = tokenizer.encode(&rig::shared("reference/ppl_text.txt"), false).expect("tokens");
    let windows: Vec<&[TokenId]> = text.chunks_exact(512).step_by(5).take(8).collect();
    assert_eq!(windows.len(), 8, "{} tokens", text.len());
    let exact = perplexity(Precision::F32, &windows);
    let fast = perplexity(Precision::Int12, &windows);
    eprintln!("perplexity: f32 {exact:.4}, int12 {fast:.4}");
    assert!((fast / exact - 1.0).abs() < 0.003, "{fast} instead of {exact}");
}
