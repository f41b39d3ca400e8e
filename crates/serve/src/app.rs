//! What every request handler sees: settings, engine, tokenizer, template, log.

use crate::config::ServerConfig;
use crate::request_log::RequestLog;
use crate::wire::error::ApiError;
use crate::wire::options::Options;
use laneway_engine::{EngineHandle, Speculation};
use laneway_execution::TokenId;
use laneway_frontend::{ChatTemplate, Tokenizer};
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The model as the server needs it: where it computes, and how text goes in and out.
#[derive(Debug)]
pub struct Model {
    /// The running engine.
    pub engine: EngineHandle,
    /// Text to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Conversations to text; without one there is no chat.
    pub template: Option<ChatTemplate>,
}

/// Shared state of all handlers.
#[derive(Clone, Debug)]
pub(crate) struct App(Arc<State>);

/// The fields of [`App`].
#[derive(Debug)]
pub(crate) struct State {
    pub config: ServerConfig,
    pub model: Model,
    pub log: Option<RequestLog>,
    /// Start of the server in Unix seconds; `created` of the models.
    pub started: u64,
}

impl Deref for App {
    type Target = State;

    fn deref(&self) -> &State {
        &self.0
    }
}

impl App {
    /// # Panics
    /// If no model name is configured.
    pub fn new(config: ServerConfig, model: Model, log: Option<RequestLog>) -> Self {
        assert!(!config.model_ids.is_empty(), "a model is served under at least one name");
        let started = unix_time().as_secs();
        Self(Arc::new(State { config, model, log, started }))
    }

    /// Tokens that prompt and output of a request may have together.
    pub fn window(&self) -> usize {
        self.model.engine.window()
    }

    /// The model's proper name.
    pub fn model_id(&self) -> &str {
        &self.config.model_ids[0]
    }

    /// The name a response carries: the one asked for, or the proper one if none was.
    pub fn resolve_model(&self, asked: Option<String>) -> Result<String, ApiError> {
        let Some(model) = asked else { return Ok(self.model_id().to_owned()) };
        if self.config.model_ids.contains(&model) {
            return Ok(model);
        }
        let served = self.config.model_ids.join(", ");
        Err(ApiError::ModelNotFound { model, served })
    }

    /// Tokens of the text in the field `param`.
    pub fn encode(
        &self,
        param: &str,
        text: &str,
        add_special: bool,
    ) -> Result<Vec<TokenId>, ApiError> {
        self.model.tokenizer.encode(text, add_special).map_err(|error| ApiError::InvalidField {
            param: param.to_owned(),
            problem: format!("is a {error}"),
        })
    }

    /// Checks that the vocabulary has all `tokens`, which stand in field `param`.
    pub fn check_tokens(&self, param: &str, tokens: &[TokenId]) -> Result<(), ApiError> {
        let vocabulary = self.model.tokenizer.vocab_size();
        match tokens.iter().position(|&token| token as usize >= vocabulary) {
            None => Ok(()),
            Some(index) => {
                let problem = format!("is {}, the vocabulary has {vocabulary}", tokens[index]);
                Err(ApiError::invalid(format!("{param}[{index}]"), problem))
            }
        }
    }

    /// How a request is speculated on; none if it leaves that to the server.
    pub fn speculation(&self, options: &Options) -> Result<Option<Speculation>, ApiError> {
        let engine = &self.model.engine;
        options.speculation.resolve(engine.speculation(), |drafter| engine.longest_draft(drafter))
    }

    /// Checks that the vocabulary has all tokens of `logit_bias`.
    pub fn check_biases(&self, options: &Options) -> Result<(), ApiError> {
        let vocabulary = self.model.tokenizer.vocab_size();
        match options.logit_bias.iter().find(|(token, _)| *token as usize >= vocabulary) {
            None => Ok(()),
            Some((token, _)) => {
                let problem = format!("is no token, the vocabulary has {vocabulary}");
                Err(ApiError::invalid(format!("logit_bias.{token}"), problem))
            }
        }
    }
}

/// Time since the Unix epoch; zero on a clock that stands before it.
pub(crate) fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
