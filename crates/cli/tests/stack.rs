//! The whole stack below HTTP on the real model: engine, model and CPU backend.

use laneway_artifact::Gguf;
use laneway_cpu::{CpuConfig, CpuOps, Precision};
use laneway_engine::{
    DraftLength, Drafter, Engine, EngineConfig, EngineHandle, Event, EventSink, FinishReason,
    Request, Speculation, WithDraft,
};
use laneway_execution::{SamplingParams, TokenId, pages_for};
use laneway_frontend::Tokenizer;
use laneway_model::{LoadOptions, Model};
use laneway_numerics::KvDtype;
use laneway_ops::Workspace;
use serde_json::Value;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

const MODEL_FILE: &str = "smollm2-135m-instruct-q4_1.gguf";
const WINDOW: usize = 1024;
/// Alternatives that are compared beside every token.
const ALTERNATIVES: usize = 5;

fn gguf() -> Gguf {
    let folder = std::env::var_os("LANEWAY_TEST_MODELS")
        .map(PathBuf::from)
        .expect("LANEWAY_TEST_MODELS is not set; run `cargo xtask test`, which fetches the models");
    Gguf::open(folder.join(MODEL_FILE)).unwrap_or_else(|e| panic!("{MODEL_FILE}: {e}"))
}

/// A file of the shared data.
fn shared(file: &str) -> PathBuf {
    let shared = std::env::var_os("LANEWAY_SHARED").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    );
    shared.join(file)
}

fn reference(file: &str) -> String {
    let path = shared("reference").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|e| {
        panic!("{}: {e}; run `cargo xtask test`, which finds the reference data", path.display())
    })
}

/// Token ids of the reference prompts, the longest last.
fn prompts() -> Vec<Vec<TokenId>> {
    let data: Value =
        serde_json::from_str(&reference("smollm2_llamacpp_reference.json")).expect("JSON");
    let ids = |prompt: &Value| -> Vec<TokenId> {
        serde_json::from_value(prompt["token_ids"].clone()).expect("token ids")
    };
    let mut prompts: Vec<_> =
        data["prompts"].as_array().expect("prompts").iter().map(ids).collect();
    prompts.sort_by_key(Vec::len);
    prompts
}

fn engine(precision: Precision, lanes: usize, chunk: usize) -> EngineHandle {
    Engine::spawn(config(lanes, chunk), move || model(precision, lanes, chunk + lanes))
}

fn config(lanes: usize, chunk: usize) -> EngineConfig {
    EngineConfig {
        window: WINDOW,
        lanes,
        pending_max: 64,
        pending_timeout: Duration::from_secs(3600),
        chunk,
        speculation: Speculation::OFF,
    }
}

fn model(precision: Precision, lanes: usize, rows: usize) -> Model<CpuOps> {
    let workspace = Workspace { rows, samples: rows, context: WINDOW };
    let backend = CpuConfig { threads: 2, precision, isa: None, workspace };
    let options = LoadOptions {
        kv_dtype: KvDtype::F16,
        pages: lanes * pages_for(WINDOW),
        top_logprobs: ALTERNATIVES,
        state_slots: 0,
        drafts: 8,
        drafting: false,
    };
    let backend = CpuOps::new(backend).expect("a CPU backend");
    Model::load(&gguf(), backend, &options, &mut |_| ()).expect("the model")
}

struct Inlet(Sender<Event>);

impl EventSink for Inlet {
    fn send(&mut self, event: Event) {
        // A test that failed no longer listens.
        let _ = self.0.send(event);
    }
}

/// A token and the bits of its own and its alternatives' log probabilities.
type Exact = (TokenId, u32, Vec<(TokenId, u32)>);

/// All tokens of a request that runs to its end.
fn tokens(events: &Receiver<Event>) -> Vec<Exact> {
    let mut tokens = Vec::new();
    loop {
        match events.recv().expect("an end") {
            Event::Token { token, logprob, top } => {
                let top = top.into_iter().map(|(token, p)| (token, p.to_bits())).collect();
                tokens.push((token, logprob.to_bits(), top));
            }
            Event::Finished { reason, .. } => {
                assert_eq!(reason, FinishReason::Length);
                return tokens;
            }
            Event::Failed { failure, .. } => panic!("{failure:?}"),
            _ => {}
        }
    }
}

fn request(prompt: &[TokenId], sampling: SamplingParams, seed: u64, max_tokens: usize) -> Request {
    Request {
        prompt: prompt.to_vec(),
        max_tokens,
        sampling,
        seed,
        biases: Vec::new(),
        end_tokens: Vec::new(),
        top_logprobs: ALTERNATIVES,
        score_prompt: false,
        speculation: None,
    }
}

/// Runs requests side by side and returns the tokens of each.
fn together(engine: &EngineHandle, requests: &[Request]) -> Vec<Vec<Exact>> {
    let running: Vec<_> = (requests.iter())
        .map(|request| {
            let (sender, events) = channel();
            let guard = engine.submit(request.clone(), Box::new(Inlet(sender))).expect("a place");
            (guard, events)
        })
        .collect();
    running.iter().map(|(_, events)| tokens(events)).collect()
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

/// Runs requests with every way to draft that `engine` has, and compares them with `expected`.
/// Returns drafts and accepted drafts of each drafter at a fixed length.
fn assert_drafts_change_nothing(
    engine: &EngineHandle,
    requests: &[Request],
    expected: &[Vec<Exact>],
) -> [(usize, usize); 2] {
    [Drafter::Ngram, Drafter::Model].map(|drafter| {
        let mut fixed = (0, 0);
        for length in [DraftLength::Auto, DraftLength::Fixed(5)] {
            let speculation = Some(Speculation { drafter, length });
            let before = engine.status().speculation;
            let speculating: Vec<_> =
                requests.iter().map(|one| Request { speculation, ..one.clone() }).collect();
            assert_eq!(together(engine, &speculating), expected, "{speculation:?}");
            let after = engine.status().speculation;
            fixed = (after.drafted - before.drafted, after.accepted - before.accepted);
            eprintln!("{drafter:?}, {length:?}: {} of {} accepted", fixed.1, fixed.0);
        }
        fixed
    })
}

#[test]
fn an_answer_does_not_depend_on_drafts() {
    let prompts = prompts();
    let (lanes, chunk, rows) = (3, 64, 64 + 3 * 6);
    let requests = requests(&prompts);
    let expected = together(&engine(Precision::Int12, lanes, chunk), &requests);
    // The model drafts for itself, so that all drafts are right.
    let engine = Engine::spawn(config(lanes, chunk), move || {
        let target = model(Precision::Int12, lanes, rows);
        WithDraft::new(target, model(Precision::Int12, lanes, rows + 1)).expect("they fit")
    });
    let [_, own] = assert_drafts_change_nothing(&engine, &requests, &expected);
    assert!(own.0 > 0 && own.0 == own.1, "{own:?}");
}

#[test]
fn an_answer_of_a_recurrent_model_does_not_depend_on_drafts() {
    let prompts = hybrid_prompts();
    let (lanes, chunk, rows) = (3, 64, 64 + 3 * 6);
    let requests = requests(&prompts);
    let plain = Engine::spawn(config(lanes, chunk), move || hybrid(lanes, rows, lanes, false));
    let expected = together(&plain, &requests);
    drop(plain);
    let layer = Engine::spawn(config(lanes, chunk), move || hybrid(lanes, rows, lanes, true));
    let [_, own] = assert_drafts_change_nothing(&layer, &requests, &expected);
    assert!(own.1 * 10 > own.0 * 3, "{own:?}");
    drop(layer);
    let beside = Engine::spawn(config(lanes, chunk), move || {
        let draft = hybrid(lanes, rows + 1, 2 * lanes, false);
        WithDraft::new(hybrid(lanes, rows, lanes, false), draft).expect("they fit")
    });
    let [_, own] = assert_drafts_change_nothing(&beside, &requests, &expected);
    assert!(own.0 > 0 && own.0 == own.1, "{own:?}");
}

/// Greedy and drawn, with penalties.
fn requests(prompts: &[Vec<TokenId>]) -> [Request; 3] {
    let warm =
        SamplingParams { temperature: 1.0, frequency_penalty: 0.3, ..SamplingParams::GREEDY };
    [
        request(&prompts[0], SamplingParams::GREEDY, 1, 64),
        request(&prompts[1], warm, 2, 64),
        request(&prompts[2], SamplingParams::GREEDY, 3, 64),
    ]
}

/// A small model with recurrent layers and a draft layer.
fn hybrid(lanes: usize, rows: usize, state_slots: usize, drafting: bool) -> Model<CpuOps> {
    let workspace = Workspace { rows, samples: rows, context: WINDOW };
    let backend = CpuConfig { threads: 2, precision: Precision::Int12, isa: None, workspace };
    let options = LoadOptions {
        kv_dtype: KvDtype::F16,
        pages: lanes * pages_for(WINDOW),
        top_logprobs: ALTERNATIVES,
        state_slots,
        drafts: 5,
        drafting,
    };
    let file = Gguf::open(shared("models/tiny-hybrid/tiny-hybrid-f16.gguf")).expect("tiny-hybrid");
    let backend = CpuOps::new(backend).expect("a CPU backend");
    Model::load(&file, backend, &options, &mut |_| ()).expect("the model")
}

fn hybrid_prompts() -> Vec<Vec<TokenId>> {
    let path = shared("models/tiny-hybrid/golden/golden.json");
    let data: Value =
        serde_json::from_str(&std::fs::read_to_string(path).expect("golden.json")).expect("JSON");
    let ids = |prompt: &Value| serde_json::from_value(prompt["ids"].clone()).expect("token ids");
    let mut prompts: Vec<Vec<TokenId>> =
        data["prompts"].as_array().expect("prompts").iter().map(ids).collect();
    prompts.sort_by_key(Vec::len);
    prompts
}

/// Perplexity of a text in windows of 512 tokens, each predicted from the window's start.
fn perplexity(precision: Precision, windows: &[&[TokenId]]) -> f64 {
    let engine = engine(precision, 1, 256);
    let (mut sum, mut count) = (0.0, 0usize);
    for window in windows {
        let mut request = request(window, SamplingParams::GREEDY, 0, 0);
        (request.score_prompt, request.top_logprobs) = (true, 0);
        let (sender, events) = channel();
        let _guard = engine.submit(request, Box::new(Inlet(sender))).expect("a place");
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
    let text = tokenizer.encode(&reference("ppl_text.txt"), false).expect("tokens");
    let windows: Vec<&[TokenId]> = text.chunks_exact(512).step_by(5).take(8).collect();
    assert_eq!(windows.len(), 8, "{} tokens", text.len());
    let exact = perplexity(Precision::F32, &windows);
    let fast = perplexity(Precision::Int12, &windows);
    eprintln!("perplexity: f32 {exact:.4}, int12 {fast:.4}");
    assert!((fast / exact - 1.0).abs() < 0.003, "{fast} instead of {exact}");
}
