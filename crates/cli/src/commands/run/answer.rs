//! One answer: tokens in, text out as it comes, and a line of figures at the end.

use super::interrupt::Interrupt;
use crate::output;
use crate::progress::Progress;
use anyhow::{Result, bail};
use laneway_engine::{
    EngineHandle, Event, EventSink, Failure, FinishReason, Request, Stats, SubmitError,
};
use laneway_execution::{SamplingParams, TokenId};
use laneway_frontend::{OutputText, Tokenizer};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// Events that may lie ready; the engine waits when the terminal is slower than that.
const EVENTS_MAX: usize = 256;

/// How often Ctrl-C is looked for while nothing else happens.
const INTERRUPT_POLL: Duration = Duration::from_millis(50);

/// Everything that an answer needs but its prompt.
pub(super) struct Answerer {
    pub engine: EngineHandle,
    pub tokenizer: Arc<Tokenizer>,
    pub params: SamplingParams,
    pub max_tokens: Option<usize>,
    pub interrupt: Interrupt,
}

impl Answerer {
    /// Generates an answer, prints it as it comes, and returns its text.
    pub(super) fn answer(&self, prompt: Vec<TokenId>, seed: u64) -> Result<String> {
        let prompt_tokens = prompt.len();
        let left = self.engine.window().saturating_sub(prompt_tokens).max(1);
        let request = Request {
            prompt,
            max_tokens: self.max_tokens.map_or(left, |most| most.min(left)),
            sampling: self.params,
            seed,
            biases: Vec::new(),
            end_tokens: self.tokenizer.eos().to_vec(),
            top_logprobs: 0,
            score_prompt: false,
            speculation: None,
        };
        let (sender, events) = sync_channel(EVENTS_MAX);
        // Dropping the guard on any way out ends the request.
        let guard = self
            .engine
            .submit(request, Box::new(Inlet(sender)))
            .map_err(|error| refusal(&error))?;
        let output = OutputText::new(self.tokenizer.clone(), Vec::new());
        let mut printer = Printer { output, text: String::new(), printed: 0 };
        let _running = self.interrupt.during_answer();
        let outcome = self.follow(&events, &mut printer, prompt_tokens)?;
        drop(guard);
        output::print("\n")?;
        if let Some((reason, stats)) = outcome {
            eprintln!("{}", figures(prompt_tokens, reason, &stats));
        } else {
            eprintln!("[stopped]");
        }
        Ok(printer.text)
    }

    /// Prints until the answer ends; none if it was interrupted.
    fn follow(
        &self,
        events: &Receiver<Event>,
        printer: &mut Printer,
        prompt_tokens: usize,
    ) -> Result<Option<(FinishReason, Stats)>> {
        let mut progress = Some(Progress::tokens("reading the prompt", prompt_tokens as u64));
        loop {
            if self.interrupt.is_raised() {
                return Ok(None);
            }
            match events.recv_timeout(INTERRUPT_POLL) {
                Ok(Event::PrefillProgress { done, .. }) => {
                    if let Some(progress) = &progress {
                        progress.set(done as u64);
                    }
                }
                Ok(Event::Token { token, .. }) => {
                    progress = None;
                    printer.token(token)?;
                }
                Ok(Event::Finished { reason, stats }) => {
                    printer.finish()?;
                    return Ok(Some((reason, stats)));
                }
                Ok(Event::Failed { failure, .. }) => bail!(match failure {
                    Failure::Execution => "the engine failed while computing the answer",
                    Failure::QueueTimeout { .. } | Failure::Shutdown => "the engine has stopped",
                }),
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("the engine has stopped"),
            }
        }
    }
}

/// Puts the text of tokens on standard output as soon as it is whole.
struct Printer {
    output: OutputText,
    text: String,
    /// Bytes of `text` that are printed.
    printed: usize,
}

impl Printer {
    fn token(&mut self, token: TokenId) -> Result<()> {
        self.output.push(token, &mut self.text);
        self.print()
    }

    fn finish(&mut self) -> Result<()> {
        self.output.finish(&mut self.text);
        self.print()
    }

    fn print(&mut self) -> Result<()> {
        let from = std::mem::replace(&mut self.printed, self.text.len());
        output::print(&self.text[from..])
    }
}

struct Inlet(SyncSender<Event>);

impl EventSink for Inlet {
    fn send(&mut self, event: Event) {
        // Nobody listens any more after an interruption; the guard ends the request.
        let _ = self.0.send(event);
    }
}

fn refusal(error: &SubmitError) -> anyhow::Error {
    match error {
        SubmitError::ContextLength { prompt, window, .. } => anyhow::anyhow!(
            "the prompt has {prompt} tokens, prompt and answer together may have {window}; \
             shorten it, or raise --max-context"
        ),
        SubmitError::QueueFull { .. } | SubmitError::Stopped => {
            anyhow::anyhow!("the engine has stopped")
        }
    }
}

fn figures(prompt_tokens: usize, reason: FinishReason, stats: &Stats) -> String {
    let rate = |tokens: usize, time: Duration| {
        let seconds = time.as_secs_f64();
        let rate = if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 };
        format!("{tokens} tokens in {seconds:.2} s ({rate:.0}/s)")
    };
    let computed = prompt_tokens.saturating_sub(stats.cached);
    let end = match reason {
        FinishReason::Stop => "",
        FinishReason::Length => "; stopped at the token limit",
    };
    let drafts = match stats.speculation.drafted {
        0 => String::new(),
        drafted => format!(", {} of {drafted} drafts accepted", stats.speculation.accepted),
    };
    format!(
        "[prompt {}, answer {}{drafts}{end}]",
        rate(computed, stats.prefill),
        rate(stats.generated, stats.decode)
    )
}
