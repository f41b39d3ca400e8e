//! What goes into the engine and what comes out: requests, events, refusals, measurements.

use crate::speculation::{Speculation, SpeculationStats};
use laneway_execution::{SamplingParams, TokenId};
use std::time::Duration;

/// A prompt and how to continue it.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The prompt; at least one token.
    pub prompt: Vec<TokenId>,
    /// Tokens to generate at most; 0 computes the prompt only.
    pub max_tokens: usize,
    /// Shape of the distribution that tokens are drawn from.
    pub sampling: SamplingParams,
    /// Seed of all draws.
    pub seed: u64,
    /// Added to the logits of these tokens.
    pub biases: Vec<(TokenId, f32)>,
    /// Tokens that end the output; they are not part of it.
    pub end_tokens: Vec<TokenId>,
    /// Most likely tokens to report beside each token.
    pub top_logprobs: usize,
    /// Report the probabilities of the prompt's tokens, too.
    pub score_prompt: bool,
    /// How it is speculated on; none leaves that to the engine. It never changes the output, and
    /// a drafter that the executor does not have drafts nothing.
    pub speculation: Option<Speculation>,
}

/// What happens to a request. The last event is [`Event::Finished`] or [`Event::Failed`], and
/// comes once; only a request whose guard was dropped ends without it.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The engine took the request. Always the first event.
    Queued {
        /// Requests that wait before this one.
        position: usize,
        /// Time to the first token as predicted now.
        predicted_ttft: Duration,
    },
    /// A part of the prompt has been computed.
    PrefillProgress {
        /// Prompt tokens that are computed or cached.
        done: usize,
        /// All prompt tokens.
        total: usize,
        /// Prompt tokens that were cached.
        cached: usize,
    },
    /// A token of the prompt with its probability, if these were asked for.
    PromptToken {
        /// The token.
        token: TokenId,
        /// Natural-log probability; none for the first token, which nothing predicts.
        logprob: Option<f32>,
        /// Most likely tokens in its place.
        top: Vec<(TokenId, f32)>,
    },
    /// A generated token.
    Token {
        /// The token.
        token: TokenId,
        /// Natural-log probability.
        logprob: f32,
        /// Most likely tokens in its place.
        top: Vec<(TokenId, f32)>,
    },
    /// The output is complete.
    Finished {
        /// Why it ends here.
        reason: FinishReason,
        /// Where the time went.
        stats: Stats,
    },
    /// The request failed.
    Failed {
        /// Why.
        failure: Failure,
        /// Where the time went.
        stats: Stats,
    },
}

impl Event {
    /// True for the event that ends a request.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        matches!(self, Event::Finished { .. } | Event::Failed { .. })
    }
}

/// Why an output is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end token was drawn.
    Stop,
    /// The wanted number of tokens is reached.
    Length,
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It waited longer than requests may.
    QueueTimeout {
        /// How long it waited.
        waited: Duration,
    },
    /// The step that it took part in failed, or could never run.
    Execution,
    /// The engine was shut down.
    Shutdown,
}

/// Where a request's time went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Prompt tokens that did not have to be computed.
    pub cached: usize,
    /// Tokens generated, the end token not counted.
    pub generated: usize,
    /// Times the request was paused because the pool was full.
    pub pauses: usize,
    /// From arrival to the start of the first step that computes the prompt.
    pub queue: Duration,
    /// From there to the first token, or to the end of the prompt if no token is wanted.
    pub prefill: Duration,
    /// Time to the first token as predicted at arrival.
    pub predicted_ttft: Duration,
    /// Time to the first token as it came out; none if there was no token.
    pub ttft: Option<Duration>,
    /// From the first token to the end.
    pub decode: Duration,
    /// What came of speculation.
    pub speculation: SpeculationStats,
}

/// Why the engine does not take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// As many requests wait as may.
    #[error("{pending} requests wait already; retry in {retry_after:?}")]
    QueueFull {
        /// Requests that wait.
        pending: usize,
        /// When to try again.
        retry_after: Duration,
    },
    /// Prompt and output together can never fit.
    #[error("a prompt of {prompt} tokens needs {needed} tokens, the window has {window}")]
    ContextLength {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of prompt and output together.
        needed: usize,
        /// Tokens that a sequence may have.
        window: usize,
    },
    /// The engine has failed or was shut down.
    #[error("the engine has stopped")]
    Stopped,
}

/// Where the events of one request go.
///
/// Called from the engine's thread, and once, with [`Event::Queued`], from the submitting one.
/// The engine waits while a call lasts.
pub trait EventSink: Send {
    /// Takes the next event.
    fn send(&mut self, event: Event);
}

/// A sink that has not yet seen the last event. Ending it takes it away, so there is no second
/// end; and one that is lost on any other way reports a failure.
pub(crate) struct Outlet(Option<Box<dyn EventSink>>);

impl Outlet {
    pub fn new(sink: Box<dyn EventSink>) -> Self {
        Self(Some(sink))
    }

    /// Passes on an event that is not the last.
    pub fn send(&mut self, event: Event) {
        debug_assert!(!event.is_terminal(), "the last event goes through `end`");
        if let Some(sink) = &mut self.0 {
            sink.send(event);
        }
    }

    /// Passes on how the request ended.
    pub fn end(mut self, ending: Ending) {
        let Some(mut sink) = self.0.take() else { return };
        match ending {
            Ending::Finished { reason, stats } => sink.send(Event::Finished { reason, stats }),
            Ending::Failed { failure, stats } => sink.send(Event::Failed { failure, stats }),
            // Whoever dropped the guard no longer listens.
            Ending::Cancelled => {}
        }
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        if let Some(mut sink) = self.0.take() {
            sink.send(Event::Failed { failure: Failure::Execution, stats: Stats::default() });
        }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With its whole output.
    Finished {
        /// Why it ends here.
        reason: FinishReason,
        /// Where the time went.
        stats: Stats,
    },
    /// Without.
    Failed {
        /// Why.
        failure: Failure,
        /// Where the time went.
        stats: Stats,
    },
    /// Nobody wants it any more.
    Cancelled,
}
