//! `laneway inspect`: what a model file holds, and which windows fit this machine.

mod report;

use crate::loading::OpenedModel;
use crate::output;
use anyhow::Result;
use clap::Args;
use report::Report;

/// Show what a model file holds and which context windows fit this machine
#[derive(Args, Debug)]
pub struct Settings {
    /// The model: path of a GGUF file or model folder, or a known name (smollm2-135m), fetched if need be
    #[arg(env = "LANEWAY_MODEL")]
    model: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Carries it out.
pub fn run(settings: &Settings) -> Result<()> {
    let opened = OpenedModel::open(&settings.model)?;
    let report = Report::new(&opened)?;
    output::print(&if settings.json {
        serde_json::to_string_pretty(&report)? + "\n"
    } else {
        report.to_string()
    })
}
