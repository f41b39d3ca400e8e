//! `laneway run`: one answer, or a chat, in the terminal.

mod answer;
mod chat;
mod interrupt;

use crate::loading::{OpenedModel, Purpose};
use crate::serving::{Admission, start_engine};
use crate::settings::capacity::{Refusal, Wanted};
use crate::settings::{
    ContextSettings, KvCapacity, ModelSettings, SamplingSettings, SpeculationSettings,
};
use crate::speculating::{open_draft, room, speculation, uses_draft_layer};
use answer::Answerer;
use anyhow::{Context, Result};
use chat::Chat;
use clap::Args;
use interrupt::Interrupt;
use laneway_execution::SamplingParams;
use std::hash::{BuildHasher, Hasher};
use std::num::NonZeroUsize;
use std::time::Duration;

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
    speculation: SpeculationSettings,
    #[command(flatten)]
    sampling: SamplingSettings,
}

/// Long beyond any wait.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Carries it out.
pub fn run(settings: &Settings) -> Result<()> {
    let Settings { model, context, speculation: spec, sampling, .. } = settings;
    let params = sampling_params(sampling)?;
    let opened = OpenedModel::open(&model.model)?;
    let (tokenizer, template) = opened.text()?;
    let draft = open_draft(spec, &opened)?;
    let purpose = Purpose {
        threads: model.compute.threads(),
        arithmetic: model.compute.arithmetic,
        step: context.step,
        wanted: Wanted {
            max_context: context.max_context,
            kv_capacity: KvCapacity::Auto,
            lanes: NonZeroUsize::MIN,
        },
        drafts: room(spec, opened.config.draft_layer),
        draft_layer: uses_draft_layer(spec),
    };
    let loaded = opened.load(draft.as_ref(), &purpose)?;
    let speculation = speculation(spec, &loaded.limits())?;
    // One request at a time: nobody waits.
    let admission = Admission { lanes: 1, pending_max: 1, pending_timeout: NEVER };
    let engine = start_engine(loaded, context.step, admission, speculation)?;
    let answerer = Answerer {
        engine,
        tokenizer,
        params,
        max_tokens: sampling.max_tokens.map(NonZeroUsize::get),
        interrupt: Interrupt::watch()?,
    };
    let seed = sampling.seed.unwrap_or_else(random_seed);
    match &settings.prompt {
        Some(prompt) if settings.raw => {
            let tokens = answerer.tokenizer.encode(prompt, true)?;
            answerer.answer(tokens, seed).map(drop)
        }
        prompt => {
            let template = template.with_context(|| {
                format!(
                    "{} has no chat template; use --raw with --prompt, which continues a text",
                    opened.path.display()
                )
            })?;
            let mut chat = Chat::new(answerer, template, settings.system.as_deref(), seed);
            match prompt {
                Some(prompt) => chat.turn(prompt),
                None => chat.converse(),
            }
        }
    }
}

fn sampling_params(settings: &SamplingSettings) -> Result<SamplingParams> {
    let params = SamplingParams {
        temperature: settings.temperature,
        top_k: settings.top_k,
        top_p: settings.top_p,
        min_p: settings.min_p,
        repetition_penalty: settings.repetition_penalty,
        ..SamplingParams::PLAIN
    };
    params.validate().map_err(|error| Refusal(format!("--{error}").replace('_', "-")))?;
    Ok(params)
}

/// A number that nobody can foresee, from the randomness of std's hash maps.
fn random_seed() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}
