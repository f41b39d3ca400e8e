//! One request on its way through the engine: tokens go in, parts of text come out.
//!
//! Streams and whole responses take the same path; they differ only in whether parts are sent on
//! or put together. Dropping a [`Generation`] at any moment frees everything the engine holds
//! for it.

use crate::account::{Account, Opening};
use crate::app::App;
use crate::dialect::{Part, ScoredToken, TokenReport};
use crate::ids;
use crate::mailbox::{Mailbox, mailbox};
use crate::wire::error::ApiError;
use crate::wire::options::Options;
use crate::wire::reply::{Timings, Usage};
use laneway_engine::{Event, Failure, FinishReason, Request, RequestGuard, SubmitError};
use laneway_execution::TokenId;
use laneway_frontend::OutputText;
use std::time::Duration;

/// A request, tokenized and ready to run.
#[derive(Debug)]
pub(crate) struct Job {
    /// Name of the response.
    pub id: String,
    /// Path of the endpoint.
    pub endpoint: &'static str,
    /// Field that holds the prompt, for errors.
    pub param: &'static str,
    /// The model's name as the client wrote it.
    pub model: String,
    /// Whether the response is streamed.
    pub stream: bool,
    /// The prompt.
    pub prompt: Vec<TokenId>,
    /// The prompt's text, if the output begins with it.
    pub echo: Option<String>,
    /// How to generate.
    pub options: Options,
    /// Alternatives to report for each token; `None` reports nothing.
    pub logprobs: Option<usize>,
}

/// A running request.
pub(crate) struct Generation {
    mailbox: Mailbox,
    /// Holds the request's place in the engine until the output is complete.
    guard: Option<RequestGuard>,
    output: OutputText,
    part: Part,
    progress: Progress,
    account: Account,
    app: App,
}

/// How far a request has come before its first token.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Progress {
    /// It waits behind `position` others.
    Queued {
        /// Requests before this one.
        position: usize,
        /// Time to the first token as predicted at arrival.
        predicted_ttft: Duration,
    },
    /// Its prompt is being computed.
    Prefill {
        /// Prompt tokens that are computed or cached.
        done: usize,
        /// All prompt tokens.
        total: usize,
    },
    /// Tokens are coming.
    Decode,
}

/// What a finished request adds up to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Totals {
    pub usage: Usage,
    pub timings: Timings,
    pub seed: u64,
}

/// What has happened.
pub(crate) enum Update {
    /// Nothing to send; see [`Generation::progress`].
    Progress,
    /// More output.
    Part(Part),
    /// The end of the output.
    Finished(Part, Box<Totals>),
}

impl Generation {
    /// Hands a request to the engine.
    ///
    /// # Errors
    /// If it asks for a drafter that is not here, or the engine does not take it.
    pub fn start(app: &App, job: Job) -> Result<Self, ApiError> {
        let Job { options, .. } = job;
        let window = app.model.engine.window();
        let max_tokens =
            options.max_tokens.unwrap_or(usize::MAX).min(window.saturating_sub(job.prompt.len()));
        // A full window must be refused and not silently turned into a prompt-only request.
        let max_tokens = if options.max_tokens == Some(0) { 0 } else { max_tokens.max(1) };
        let seed = options.seed.unwrap_or_else(ids::seed);
        let speculation = app.speculation(&options)?;
        let mut account = Account::open(
            app.clone(),
            Opening {
                id: job.id,
                endpoint: job.endpoint,
                model: job.model,
                stream: job.stream,
                prompt_tokens: job.prompt.len(),
                max_tokens,
                seed,
            },
        );
        let (inlet, mailbox) = mailbox();
        let request = Request {
            prompt: job.prompt,
            max_tokens,
            sampling: options.sampling,
            seed,
            biases: options.logit_bias,
            end_tokens: if options.ignore_eos {
                Vec::new()
            } else {
                app.model.tokenizer.eos().to_vec()
            },
            top_logprobs: job.logprobs.unwrap_or(0),
            score_prompt: job.echo.is_some() && job.logprobs.is_some(),
            speculation,
        };
        let guard = app.model.engine.submit(request, Box::new(inlet)).map_err(|error| {
            let error = refusal(&error, job.param);
            account.failed(&error);
            error
        })?;
        let part = Part {
            text: job.echo.unwrap_or_default(),
            tokens: job.logprobs.map(|_| Vec::new()),
            finish: None,
        };
        Ok(Self {
            mailbox,
            guard: Some(guard),
            output: OutputText::new(app.model.tokenizer.clone(), options.stop),
            part,
            progress: Progress::Queued { position: 0, predicted_ttft: Duration::ZERO },
            account,
            app: app.clone(),
        })
    }

    /// How far the request has come.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// Waits for the next thing that happens. Nothing is lost if the future is dropped.
    ///
    /// # Errors
    /// If the request fails; nothing more happens then.
    pub async fn next(&mut self) -> Result<Update, ApiError> {
        loop {
            let event = self.mailbox.receive().await;
            if let Some(update) = self.apply(event)? {
                return Ok(update);
            }
        }
    }

    /// The next thing that has happened already, if any.
    ///
    /// # Errors
    /// As for [`Generation::next`].
    pub fn try_next(&mut self) -> Result<Option<Update>, ApiError> {
        while let Some(event) = self.mailbox.try_receive() {
            if let Some(update) = self.apply(Some(event))? {
                return Ok(Some(update));
            }
        }
        Ok(None)
    }

    fn apply(&mut self, event: Option<Event>) -> Result<Option<Update>, ApiError> {
        match event {
            Some(Event::Queued { position, predicted_ttft }) => {
                self.account.queued(position, predicted_ttft);
                self.progress = Progress::Queued { position, predicted_ttft };
                Ok(Some(Update::Progress))
            }
            Some(Event::PrefillProgress { done, total, .. }) => {
                self.progress = Progress::Prefill { done, total };
                Ok(Some(Update::Progress))
            }
            Some(Event::PromptToken { token, logprob, top }) => {
                self.report(token, logprob, top);
                Ok(None)
            }
            Some(Event::Token { token, logprob, top }) => {
                self.progress = Progress::Decode;
                self.account.token();
                self.report(token, Some(logprob), top);
                let stopped = self.output.push(token, &mut self.part.text);
                if stopped {
                    return Ok(Some(self.finish("stop")));
                }
                Ok(self.take_part().map(Update::Part))
            }
            Some(Event::Finished { reason, stats }) => {
                self.account.measured(&stats);
                self.output.finish(&mut self.part.text);
                let reason = match reason {
                    FinishReason::Stop => "stop",
                    FinishReason::Length => "length",
                };
                Ok(Some(self.finish(reason)))
            }
            Some(Event::Failed { failure, stats }) => {
                self.account.measured(&stats);
                Err(self.fail(match failure {
                    Failure::QueueTimeout { waited } => {
                        ApiError::QueueTimeout { waited_ms: waited.as_millis() as u64 }
                    }
                    Failure::Execution => ApiError::GenerationFailed,
                    Failure::Shutdown => ApiError::ShuttingDown,
                }))
            }
            None => Err(self.fail(ApiError::EngineDown)),
        }
    }

    fn report(&mut self, token: TokenId, logprob: Option<f32>, top: Vec<(TokenId, f32)>) {
        let Some(reports) = &mut self.part.tokens else { return };
        let tokenizer = &self.app.model.tokenizer;
        let scored =
            |token, logprob| ScoredToken { bytes: tokenizer.token_bytes(token).to_vec(), logprob };
        reports.push(TokenReport {
            token: scored(token, logprob),
            top: top.into_iter().map(|(token, logprob)| scored(token, Some(logprob))).collect(),
        });
    }

    /// What is ready to be sent. Reports wait for text, so that no event is without any.
    fn take_part(&mut self) -> Option<Part> {
        (!self.part.text.is_empty()).then(|| self.take())
    }

    fn take(&mut self) -> Part {
        let empty = Part { tokens: self.part.tokens.is_some().then(Vec::new), ..Part::default() };
        std::mem::replace(&mut self.part, empty)
    }

    /// Ends the request in the engine, if it still runs there, and closes the account.
    fn finish(&mut self, reason: &'static str) -> Update {
        self.guard = None;
        self.account.done(reason);
        self.part.finish = Some(reason);
        let totals = Totals {
            usage: self.account.usage(),
            timings: self.account.timings(),
            seed: self.account.seed(),
        };
        Update::Finished(self.take(), Box::new(totals))
    }

    fn fail(&mut self, error: ApiError) -> ApiError {
        self.guard = None;
        self.account.failed(&error);
        error
    }
}

fn refusal(error: &SubmitError, param: &'static str) -> ApiError {
    match *error {
        SubmitError::QueueFull { pending, retry_after } => {
            ApiError::QueueFull { pending, retry_after_s: retry_after.as_secs_f64().ceil() as u64 }
        }
        SubmitError::ContextLength { prompt, needed, window } => {
            ApiError::ContextLengthExceeded { param, prompt, needed, window }
        }
        SubmitError::Stopped => ApiError::EngineDown,
    }
}
