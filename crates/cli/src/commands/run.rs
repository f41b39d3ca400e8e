//! `laneway run`: one answer, or a chat, in the terminal.

use crate::settings::{ContextSettings, ModelSettings, SamplingSettings};
use clap::Args;

/// Answer one prompt, or chat in the terminal
///
/// With --prompt, the answer goes to standard output and the program ends. Without, lines typed are
/// turns of a chat: /reset forgets the chat so far, /exit or end of input ends it, Ctrl-C stops an
/// answer.
#[derive(Args, Debug)]
pub struct Settings {
    #[command(flatten)]
    model: ModelSettings,
    /// The prompt; without it, a chat begins
    #[arg(long, short, value_name = "TEXT")]
    prompt: Option<String>,
    /// Continue the prompt as it is, without the model's chat template
    #[arg(long, requires = "prompt")]
    raw: bool,
    /// What the model is told before the chat
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,
    #[command(flatten)]
    context: ContextSettings,
    #[command(flatten)]
    sampling: SamplingSettings,
}
