//! `laneway demo`: the promise shown on this machine: three prompts at once, and the time to the
//! first token of each, as predicted and as measured.

use crate::settings::ComputeSettings;
use clap::Args;

/// Show on this machine what Laneway promises, with a small model
///
/// Obtains the model, starts the server, sends three equal prompts at once, compares the time to
/// the first token of each with its prediction, streams one answer, and leaves the chat page up.
#[derive(Args, Debug)]
pub struct Settings {
    /// The model: path of a GGUF file, or a known name, fetched if need be
    #[arg(long, env = "LANEWAY_MODEL", default_value = "smollm2-135m")]
    model: String,
    #[command(flatten)]
    compute: ComputeSettings,
    /// Port to listen on; 0 takes a free one
    #[arg(long, env = "LANEWAY_PORT", default_value_t = 8080)]
    port: u16,
    /// End when everything has been shown, instead of leaving the chat page up
    #[arg(long)]
    exit: bool,
}
