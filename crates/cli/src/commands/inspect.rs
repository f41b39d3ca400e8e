//! `laneway inspect`: what a model file holds, and which windows fit this machine.

use clap::Args;

/// Show what a model file holds and which context windows fit this machine
#[derive(Args, Debug)]
pub struct Settings {
    /// The model: path of a GGUF file, or a known name (smollm2-135m), fetched if need be
    #[arg(env = "LANEWAY_MODEL")]
    model: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}
