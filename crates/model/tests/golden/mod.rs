//! SmolLM2-135M against the recorded tokens and log probabilities of llama.cpp, for any backend.

use laneway_artifact::Gguf;
use laneway_execution::{
    Draw, Executor, PageId, SampleRow, SamplingKey, SamplingParams, SequenceId, StepBatch,
    StepOutput, TokenId, pages_for,
};
use laneway_model::{LoadOptions, Model};
use laneway_numerics::KvDtype;
use laneway_ops::{Ops, Workspace};
use serde_json::Value;
use std::path::PathBuf;

/// The recorded run: f16 copies of the Q4_1 weights, f32 cache, no flash attention. It rounds less
/// than the run on the Q4_1 file, whose activations are 8-bit.
const RUN: &str = "f16_kvf32_nofa";
const MODEL_FILE: &str = "smollm2-135m-instruct-q4_1.gguf";
const WORKSPACE: Workspace = Workspace { rows: 256, samples: 64, context: 1024 };
/// Alternatives asked for; the recorded ones must be among them.
const ALTERNATIVES: usize = 40;

/// A prompt and what llama.cpp made of it.
pub struct Recording {
    pub name: String,
    pub prompt: Vec<TokenId>,
    /// The greedy continuation.
    pub tokens: Vec<TokenId>,
    /// Most likely tokens and their log probabilities at every position of the continuation.
    pub top: Vec<Vec<(TokenId, f64)>>,
}

/// The recorded prompts, in the order of the file.
pub fn recordings() -> Vec<Recording> {
    let shared = std::env::var_os("LANEWAY_SHARED").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    );
    let path = shared.join("reference/smollm2_llamacpp_reference.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| {
        panic!("{}: {e}; run `cargo xtask test`, which finds the reference data", path.display())
    });
    let data: Value = serde_json::from_str(&text).expect("reference JSON");
    let find = |list: &Value, key: &str, value: &str| {
        let items = list.as_array().expect("array");
        items.iter().find(|item| item[key] == value).expect("entry").clone()
    };
    let run = find(&data["runs"], "run", RUN);
    let prompts = data["prompts"].as_array().expect("prompts");
    let recording = |prompt: &Value| {
        let name = prompt["name"].as_str().expect("name");
        let output = find(&run["outputs"], "prompt", name);
        let top = output["lib_top5_all64"].as_array().expect("top 5");
        let pair = |pair: &Value| (token(&pair[0]), pair[1].as_f64().expect("log probability"));
        Recording {
            name: name.to_owned(),
            prompt: tokens(&prompt["token_ids"]),
            tokens: tokens(&output["lib_token_ids"]),
            top: top
                .iter()
                .map(|t| t.as_array().expect("five").iter().map(pair).collect())
                .collect(),
        }
    };
    prompts.iter().map(recording).collect()
}

fn token(value: &Value) -> TokenId {
    u32::try_from(value.as_u64().expect("token")).expect("32 bits")
}

fn tokens(value: &Value) -> Vec<TokenId> {
    value.as_array().expect("tokens").iter().map(token).collect()
}

/// The model on the backend that `make` makes.
pub fn load<B: Ops>(make: impl Fn(Workspace) -> B, kv_dtype: KvDtype) -> Model<B> {
    let folder = std::env::var_os("LANEWAY_TEST_MODELS")
        .map(PathBuf::from)
        .expect("LANEWAY_TEST_MODELS is not set; run `cargo xtask test`, which fetches the models");
    let gguf = Gguf::open(folder.join(MODEL_FILE)).unwrap_or_else(|e| panic!("{MODEL_FILE}: {e}"));
    let options = LoadOptions {
        kv_dtype,
        pages: 64,
        top_logprobs: ALTERNATIVES,
        state_slots: 0,
        drafts: 0,
        drafting: false,
    };
    Model::load(&gguf, make(WORKSPACE), &options, &mut |_| ())
        .unwrap_or_else(|e| panic!("{MODEL_FILE}: {e}"))
}

fn greedy_row(row: usize) -> SampleRow {
    SampleRow {
        row,
        draw: Draw::Sample,
        params: SamplingParams::GREEDY,
        key: SamplingKey { seed: 0, position: 0 },
        top_logprobs: ALTERNATIVES,
        counts: 0..0,
        biases: 0..0,
        mask: 0..0,
    }
}

/// How a model's distributions differ from the recorded ones along the recorded continuation.
#[derive(Debug)]
pub struct Deviation {
    /// Positions whose most likely token is the recorded one.
    pub equal_tokens: usize,
    /// Positions.
    pub positions: usize,
    /// Mean of `|Δ log probability|` over the recorded alternatives.
    pub mean_logprob: f64,
    /// Largest of them.
    pub max_logprob: f64,
}

/// Runs prompt and recorded continuation in chunks (teacher forcing) and compares.
pub fn teacher_forced<B: Ops>(model: &mut Model<B>, recording: &Recording) -> Deviation {
    let first = recording.prompt.len() - 1;
    let steps = recording.tokens.len();
    let mut sequence = recording.prompt.clone();
    sequence.extend(&recording.tokens[..steps - 1]);
    let pages: Vec<PageId> = (0..pages_for(sequence.len()) as u32).rev().map(PageId).collect();
    let (mut errors, mut equal_tokens) = (Vec::new(), 0);
    let chunk = WORKSPACE.samples;
    for (index, tokens) in sequence.chunks(chunk).enumerate() {
        let start = index * chunk;
        let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
        for row in batch.push_segment(SequenceId(1), start, tokens, &pages, None) {
            if start + row >= first {
                batch.samples.push(greedy_row(row));
            }
        }
        model.step(&batch, &mut output).expect("step");
        for (row, sample) in batch.samples.iter().zip(&output.samples) {
            let at = start + row.row - first;
            equal_tokens += usize::from(sample.token == recording.tokens[at]);
            let found = &output.top[sample.top.clone()];
            for &(token, logprob) in &recording.top[at] {
                let found = found.iter().find(|(candidate, _)| *candidate == token);
                let found = found.unwrap_or_else(|| {
                    panic!("{}: token {token} is not among the likely ones", recording.name)
                });
                errors.push((f64::from(found.1) - logprob).abs());
            }
        }
    }
    let mean_logprob = errors.iter().sum::<f64>() / errors.len() as f64;
    let max_logprob = errors.iter().copied().fold(0.0, f64::max);
    let deviation = Deviation { equal_tokens, positions: steps, mean_logprob, max_logprob };
    eprintln!("{}: {deviation:?}", recording.name);
    deviation
}

/// Decodes all recordings side by side, prompts in ragged chunks, and returns their tokens.
pub fn free_running<B: Ops>(model: &mut Model<B>, recordings: &[Recording]) -> Vec<Vec<TokenId>> {
    let mut next_page = 0;
    let pages: Vec<Vec<PageId>> = (recordings.iter())
        .map(|r| {
            let count = pages_for(r.prompt.len() + r.tokens.len()) as u32;
            next_page += count;
            (next_page - count..next_page).map(PageId).collect()
        })
        .collect();
    let mut sequences: Vec<Vec<TokenId>> = recordings.iter().map(|r| r.prompt.clone()).collect();
    let mut done = vec![0; recordings.len()];
    let finished = |s: usize, sequence: &[TokenId]| {
        sequence.len() == recordings[s].prompt.len() + recordings[s].tokens.len()
    };
    loop {
        let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
        let mut sampled = Vec::new();
        for (s, sequence) in sequences.iter().enumerate().filter(|(s, q)| !finished(*s, q)) {
            let share = WORKSPACE.rows / recordings.len();
            let rest = &sequence[done[s]..];
            let tokens = &rest[..rest.len().min(share)];
            let id = SequenceId(s as u64);
            let rows = batch.push_segment(id, done[s], tokens, &pages[s], None);
            done[s] += tokens.len();
            if done[s] == sequence.len() {
                batch.samples.push(SampleRow { top_logprobs: 0, ..greedy_row(rows.end - 1) });
                sampled.push(s);
            }
        }
        if batch.is_empty() {
            let prompts = recordings.iter().map(|r| r.prompt.len());
            return sequences.iter().zip(prompts).map(|(s, n)| s[n..].to_vec()).collect();
        }
        model.step(&batch, &mut output).expect("step");
        for (s, sample) in sampled.into_iter().zip(&output.samples) {
            sequences[s].push(sample.token);
        }
    }
}
