//! A random mixture of experts against the values of the reference library.

use laneway_artifact::HfFolder;
use laneway_cpu::{CpuConfig, CpuOps, Precision};
use laneway_execution::{
    Draw, PageId, SampleRow, SamplingKey, SamplingParams, SequenceId, SlotId, StepBatch, StepOutput,
};
use laneway_model::{HfModel, LoadOptions, Model};
use laneway_numerics::KvDtype;
use laneway_ops::Workspace;
use serde_json::Value;
use std::path::PathBuf;

const VOCABULARY: usize = 256;
const HIDDEN: usize = 64;
const RELATIVE: f64 = 1e-5;

#[test]
fn layers_and_logits_equal_the_reference() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny-moe");
    let golden = std::fs::read_to_string(folder.join("golden.json")).expect("golden.json");
    let golden: Value = serde_json::from_str(&golden).expect("JSON");
    let file = HfModel::new(HfFolder::open(&folder).expect("a folder")).expect("a model");
    let workspace = Workspace { rows: 70, samples: 70, context: 128 };
    let config = CpuConfig { threads: 2, precision: Precision::F32, isa: None, workspace };
    let options = LoadOptions {
        kv_dtype: KvDtype::F32,
        pages: 2,
        top_logprobs: VOCABULARY,
        state_slots: 1,
        drafts: 0,
        drafting: false,
    };
    let backend = CpuOps::new(config).expect("a CPU backend");
    let mut model = Model::load(&file, backend, &options, &mut |_| ()).expect("a model");
    for prompt in golden["prompts"].as_array().expect("prompts") {
        let ids: Vec<u32> = serde_json::from_value(prompt["ids"].clone()).expect("ids");
        let logits: Vec<Vec<f64>> =
            serde_json::from_value(prompt["logits"].clone()).expect("logits");
        // The embedding, each layer before the last norm, and the last layer behind it.
        let norms: Vec<Vec<f64>> =
            serde_json::from_value(prompt["hidden_norms"].clone()).expect("norms");
        let mut batch = StepBatch::default();
        let pages = [PageId(1), PageId(0)];
        let rows = batch.push_segment(SequenceId(1), 0, &ids, &pages, Some(SlotId(0)));
        for row in rows.end - logits.len()..rows.end {
            batch.samples.push(SampleRow {
                row,
                draw: Draw::Sample,
                params: SamplingParams::GREEDY,
                key: SamplingKey { seed: 0, position: row as u64 + 1 },
                top_logprobs: VOCABULARY,
                counts: 0..0,
                biases: 0..0,
                mask: 0..0,
            });
        }
        let (mut output, mut worst) = (StepOutput::default(), 0.0f64);
        let mut probe = |layer: usize, rows: &[f32]| {
            let Some(expected) = norms.get(layer + 1).filter(|_| layer < 3) else { return };
            for (row, expected) in rows.chunks(HIDDEN).zip(expected) {
                let norm = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
                worst = worst.max((norm / expected - 1.0).abs());
            }
        };
        model.step_probed(&batch, &mut output, &mut probe).expect("step");
        assert!(worst < RELATIVE, "{} tokens: norms are off by {worst}", ids.len());
        for (sample, expected) in output.samples.iter().zip(&logits) {
            let mut found = vec![0.0; VOCABULARY];
            for &(token, logprob) in &output.top[sample.top.clone()] {
                found[token as usize] = f64::from(logprob);
            }
            let error = relative_error(&found, expected);
            eprintln!("{} tokens: relative error of the logits {error:.1e}", ids.len());
            assert!(error < RELATIVE, "{} tokens: {error}", ids.len());
        }
    }
}

/// Relative error of vectors that are known up to a constant: their means are taken out.
fn relative_error(found: &[f64], expected: &[f64]) -> f64 {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (shift, centre) = (mean(found) - mean(expected), mean(expected));
    let difference: f64 = found.iter().zip(expected).map(|(a, b)| (a - b - shift).powi(2)).sum();
    let size: f64 = expected.iter().map(|v| (v - centre).powi(2)).sum();
    (difference / size).sqrt()
}
