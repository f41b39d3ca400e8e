//! tiny-hybrid and its goldens: a small trained model of the hybrid Qwen3.5 architecture, with
//! reference values from the transformers library.

use laneway_artifact::{Gguf, HfFolder};
use laneway_cpu::{CpuConfig, CpuOps, Precision};
use laneway_execution::{
    Drafting, Draw, Executor, PageId, SampleRow, SamplingKey, SamplingParams, SequenceId, SlotId,
    StepBatch, StepOutput, TokenId, pages_for,
};
use laneway_model::{HfModel, LoadOptions, Model, ModelFile};
use laneway_numerics::KvDtype;
use laneway_ops::Workspace;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;

pub const VOCABULARY: usize = 8192;
pub const HIDDEN: usize = 384;
pub const LAYERS: usize = 8;

/// The folder of the model.
pub fn folder() -> PathBuf {
    let shared = std::env::var_os("LANEWAY_SHARED").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    );
    shared.join("models/tiny-hybrid")
}

/// The model as llama.cpp's converter writes it.
pub fn gguf() -> Gguf {
    let path = folder().join("tiny-hybrid-f16.gguf");
    Gguf::open(&path).unwrap_or_else(|e| panic!("{e}; `cargo xtask test` finds the test data"))
}

/// The model as the transformers library writes it.
pub fn checkpoint() -> HfModel {
    let folder = HfFolder::open(folder()).unwrap_or_else(|e| panic!("{e}"));
    HfModel::new(folder).unwrap_or_else(|e| panic!("{e}"))
}

/// How a test loads the model.
pub fn options() -> LoadOptions {
    LoadOptions {
        kv_dtype: KvDtype::F32,
        pages: 160,
        top_logprobs: VOCABULARY,
        state_slots: 6,
        drafts: 5,
        drafting: true,
    }
}

pub fn load(file: &dyn ModelFile, precision: Precision) -> Model<CpuOps> {
    let workspace = Workspace { rows: 520, samples: 520, context: 9000 };
    let config = CpuConfig { threads: 2, precision, isa: None, workspace };
    let backend = CpuOps::new(config).expect("a CPU backend");
    Model::load(file, backend, &options(), &mut |_| ()).unwrap_or_else(|e| panic!("{e}"))
}

/// One golden prompt.
pub struct Golden {
    pub ids: Vec<TokenId>,
    /// The greedy continuation.
    pub greedy: Vec<TokenId>,
    /// Gap between the two greatest logits before each of its tokens.
    pub margins: Vec<f64>,
    /// Greedy drafts of three passes behind the first token.
    pub drafts: Vec<TokenId>,
    arrays: BTreeMap<String, Vec<f32>>,
}

impl Golden {
    /// An array by its name without the prompt's number.
    pub fn array(&self, name: &str) -> &[f32] {
        &self.arrays[name]
    }
}

/// All golden prompts, in order.
pub fn goldens() -> Vec<Golden> {
    let text = std::fs::read_to_string(folder().join("golden/golden.json")).expect("golden.json");
    let data: Value = serde_json::from_str(&text).expect("JSON");
    let mut arrays = npz();
    let prompts = data["prompts"].as_array().expect("prompts").iter().enumerate();
    let golden = |(index, prompt): (usize, &Value)| {
        let tokens = |key: &str| -> Vec<TokenId> {
            let list = prompt[key].as_array().expect("tokens").iter();
            list.map(|token| token.as_u64().expect("a token") as TokenId).collect()
        };
        let margins = prompt["greedy_margins"].as_array().expect("margins").iter();
        Golden {
            ids: tokens("ids"),
            greedy: tokens("greedy"),
            margins: margins.map(|m| m.as_f64().expect("a margin")).collect(),
            drafts: tokens("mtp_drafts"),
            arrays: arrays.remove(&index).unwrap_or_default(),
        }
    };
    prompts.map(golden).collect()
}

/// The f32 arrays of `golden.npz`, by prompt and name.
fn npz() -> BTreeMap<usize, BTreeMap<String, Vec<f32>>> {
    let file = std::fs::File::open(folder().join("golden/golden.npz")).expect("golden.npz");
    let mut archive = zip::ZipArchive::new(file).expect("a zip archive");
    let mut arrays = BTreeMap::<usize, BTreeMap<String, Vec<f32>>>::new();
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).expect("an entry");
        let name = entry.name().expect("a name").trim_end_matches(".npy").to_owned();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).expect("its content");
        // NumPy's format, version 1: magic, version, length of the header, header, elements.
        let header = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
        let elements = bytes[header..].as_chunks::<4>().0.iter();
        let values = elements.map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let (prompt, name) = name.split_once('_').expect("a prompt's number");
        let prompt = prompt.parse().expect("a number");
        arrays.entry(prompt).or_default().insert(name.to_owned(), values);
    }
    arrays
}

/// How prompts are run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// Rows of a prompt that go into one step.
    pub chunk: usize,
    /// Drafts a round; none: no draft layer at all.
    pub drafts: Option<usize>,
    pub params: SamplingParams,
    /// Tokens to generate.
    pub tokens: usize,
}

/// A generated token and the bits of its log probability.
pub type Generated = (TokenId, u32);

/// A sequence on its way.
struct Sequence {
    tokens: Vec<TokenId>,
    prompt: usize,
    computed: usize,
    drafts: Vec<TokenId>,
    pages: Vec<PageId>,
    slot: SlotId,
    found: Vec<Generated>,
}

/// Rounds, drafts, and drafts accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rounds {
    pub rounds: usize,
    pub drafted: usize,
    pub accepted: usize,
}

/// Runs prompts side by side, as an engine would; what they generate, and how drafting went.
pub fn generate(
    model: &mut Model<CpuOps>,
    prompts: &[&[TokenId]],
    plan: &Plan,
) -> (Vec<Vec<Generated>>, Rounds) {
    let mut first_page = 0;
    let mut sequences: Vec<Sequence> = Vec::new();
    for (slot, prompt) in (0..).zip(prompts) {
        // Other slots than sequences before had, so that nothing may depend on them.
        let pages = pages_for(prompt.len() + plan.tokens + 10) as u32;
        sequences.push(Sequence {
            tokens: prompt.to_vec(),
            prompt: prompt.len(),
            computed: 0,
            drafts: Vec::new(),
            pages: (first_page..first_page + pages).rev().map(PageId).collect(),
            slot: SlotId(5 - slot),
            found: Vec::new(),
        });
        first_page += pages;
    }
    let mut rounds = Rounds::default();
    while sequences.iter().any(|s| s.found.len() < plan.tokens) {
        step(model, &mut sequences, plan, &mut rounds);
    }
    (sequences.into_iter().map(|s| s.found).collect(), rounds)
}

fn step(model: &mut Model<CpuOps>, all: &mut [Sequence], plan: &Plan, rounds: &mut Rounds) {
    let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
    let mut active = Vec::new();
    for (index, sequence) in all.iter().enumerate() {
        if sequence.found.len() == plan.tokens {
            continue;
        }
        let end = (sequence.computed + plan.chunk).min(sequence.tokens.len());
        let mut tokens = sequence.tokens[sequence.computed..end].to_vec();
        let complete = end == sequence.tokens.len();
        let drafts = if complete { &sequence.drafts[..] } else { &[] };
        tokens.extend(drafts);
        let (id, start, slot) = (SequenceId(index as u64), sequence.computed, sequence.slot);
        let rows = batch.push_segment(id, start, &tokens, &sequence.pages, Some(slot));
        let segment = batch.segments.last_mut().expect("just pushed");
        // Proposals may need a page more than the rows do.
        batch.block_tables.truncate(segment.blocks.start);
        batch.block_tables.extend_from_slice(&sequence.pages);
        segment.blocks.end = batch.block_tables.len();
        segment.drafts = drafts.len();
        segment.drafting = match (plan.drafts, sequence.tokens.get(end)) {
            (None, _) => Drafting::Off,
            (Some(_), Some(&next)) => Drafting::Follow { next },
            (Some(count), None) => Drafting::Propose { count },
        };
        if complete {
            for row in rows.end - 1 - drafts.len()..rows.end {
                let position = (start + (row - rows.start) + 1) as u64;
                batch.samples.push(sample(row, plan.params, position));
            }
        }
        active.push((index, complete));
    }
    model.step(&batch, &mut output).expect("step");
    for (at, (segment, (index, complete))) in batch.segments.iter().zip(active).enumerate() {
        let sequence = &mut all[index];
        let accepted = batch.accepted(segment, &output.samples);
        sequence.computed += segment.rows.len() - (segment.drafts - accepted);
        if !complete {
            continue;
        }
        rounds.rounds += usize::from(sequence.tokens.len() > sequence.prompt);
        rounds.drafted += segment.drafts;
        rounds.accepted += accepted;
        let first = segment.rows.end - 1 - segment.drafts;
        let drawn = batch.samples.iter().zip(&output.samples).filter(|(row, _)| row.row >= first);
        for (_, sample) in drawn.take(accepted + 1) {
            sequence.tokens.push(sample.token);
            if sequence.found.len() < plan.tokens {
                sequence.found.push((sample.token, sample.logprob.to_bits()));
            }
        }
        sequence.drafts = output.proposals_of(at).to_vec();
    }
}

/// A row that draws the token at `position`.
pub fn sample(row: usize, params: SamplingParams, position: u64) -> SampleRow {
    SampleRow {
        row,
        draw: Draw::Sample,
        params,
        key: SamplingKey { seed: 7, position },
        top_logprobs: 0,
        counts: 0..0,
        biases: 0..0,
        mask: 0..0,
    }
}

/// Relative error of vectors that are known up to a constant: their means are taken out.
pub fn relative_error(found: &[f64], expected: &[f64]) -> f64 {
    let centred = |values: &[f64]| {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        values.iter().map(|v| v - mean).collect::<Vec<f64>>()
    };
    let (found, expected) = (centred(found), centred(expected));
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let difference = norm(&mut found.iter().zip(&expected).map(|(a, b)| a - b));
    difference / norm(&mut expected.iter().copied())
}
