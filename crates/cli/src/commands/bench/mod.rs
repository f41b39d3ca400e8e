//! `laneway bench`: how fast this machine computes a model, without a server in between.

mod measure;
mod report;

use crate::loading::{OpenedModel, Purpose};
use crate::output;
use crate::progress::Progress;
use crate::settings::capacity::Wanted;
use crate::settings::{ArithmeticSettings, KvCapacity, StepSettings, all_cores};
use anyhow::{Context, Result};
use clap::Args;
use laneway_execution::PAGE_TOKENS;
use measure::{Bench, Test};
use report::{Outcome, Report};
use std::num::NonZeroUsize;

/// Measure prefill, decode at depth, and decode of several lanes at once
#[derive(Args, Debug)]
pub struct Settings {
    /// The model: path of a GGUF file or model folder, or a known name (smollm2-135m), fetched if need be
    #[arg(env = "LANEWAY_MODEL")]
    model: String,
    /// Threads that compute; the tests are run with each number; default: one for each core
    #[arg(long, env = "LANEWAY_THREADS", value_delimiter = ',', value_name = "N,…")]
    threads: Vec<NonZeroUsize>,
    #[command(flatten)]
    arithmetic: ArithmeticSettings,
    #[command(flatten)]
    step: StepSettings,
    /// Prompt lengths to prefill
    #[arg(short, long, value_delimiter = ',', value_name = "N,…", default_value = "512")]
    prompt_tokens: Vec<NonZeroUsize>,
    /// Tokens to generate
    #[arg(short = 'n', long, value_name = "N", default_value = "128")]
    new_tokens: NonZeroUsize,
    /// Depths behind which tokens are generated
    #[arg(short, long, value_delimiter = ',', value_name = "N,…", default_value = "0")]
    depths: Vec<usize>,
    /// Numbers of lanes that generate at once, each behind a prompt of 256 tokens
    #[arg(long, value_delimiter = ',', value_name = "N,…")]
    lanes: Vec<NonZeroUsize>,
    /// Timed runs of each test; their median is reported
    #[arg(long, value_name = "N", default_value = "3")]
    repeat: NonZeroUsize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Carries it out.
pub fn run(settings: &Settings) -> Result<()> {
    let file = OpenedModel::open(&settings.model)?;
    let tests = settings.tests();
    let wanted = settings.wanted(&tests)?;
    let threads = match settings.threads.as_slice() {
        [] => &[all_cores()],
        given => given,
    };
    let chunk = settings.step.prefill_chunk.get();
    let mut report = Report {
        version: env!("CARGO_PKG_VERSION"),
        model: file.name(),
        precision: settings.arithmetic.precision.to_string(),
        kv_dtype: settings.step.kv_dtype.to_string(),
        prefill_chunk: chunk,
        results: Vec::new(),
    };
    for &threads in threads {
        let Settings { arithmetic, step, .. } = *settings;
        let purpose = Purpose { threads, arithmetic, step, wanted, drafts: 0, draft_layer: false };
        let loaded = file.load(None, &purpose)?;
        let mut bench = Bench::new(loaded.model, chunk);
        for &test in &tests {
            let progress = Progress::spinner(format!("{}, {threads} threads", test.name()));
            let runs = bench.run(test, settings.repeat.get())?;
            progress.finish();
            report.results.push(Outcome::new(test.name(), threads.get(), runs));
        }
    }
    output::print(&if settings.json {
        serde_json::to_string_pretty(&report)? + "\n"
    } else {
        report.table()
    })
}

impl Settings {
    fn tests(&self) -> Vec<Test> {
        let tokens = self.new_tokens.get();
        let prefill = self.prompt_tokens.iter().map(|n| Test::Prefill { tokens: n.get() });
        let decode = self.depths.iter().map(|&depth| Test::Decode { tokens, depth });
        let lanes = self.lanes.iter().map(|n| Test::Lanes { tokens, lanes: n.get() });
        prefill.chain(decode).chain(lanes).collect()
    }

    /// Window, lanes and pool that the largest tests need.
    fn wanted(&self, tests: &[Test]) -> Result<Wanted> {
        let most = |size: fn(Test) -> usize| {
            let most = tests.iter().map(|&test| size(test)).max();
            most.and_then(NonZeroUsize::new).context("there is no test")
        };
        let pool = most(|test| test.pages() * PAGE_TOKENS)?;
        Ok(Wanted {
            max_context: Some(most(Test::context)?),
            kv_capacity: KvCapacity::Tokens(pool),
            lanes: most(Test::lanes)?,
        })
    }
}
