//! `laneway bench`: how fast this machine computes a model, without a server in between.

mod measure;
mod report;

use crate::progress::Progress;
use crate::settings::{ComputeSettings, ContextSettings};
use anyhow::Result;
use clap::Args;
use measure::{Bench, Test};
use report::{Outcome, Report};
use std::num::NonZeroUsize;

/// Measure prefill, decode at depth, and decode of several lanes at once
#[derive(Args, Debug)]
pub struct Settings {
    /// The model: path of a GGUF file, or a known name (smollm2-135m), fetched if need be
    #[arg(env = "LANEWAY_MODEL")]
    model: String,
    #[command(flatten)]
    compute: ComputeSettings,
    #[command(flatten)]
    context: ContextSettings,
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
