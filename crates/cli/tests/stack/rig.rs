//! What the tests share: an engine over a model on the CPU, and requests that run to their end.

use laneway_artifact::Gguf;
use laneway_cpu::{CpuConfig, CpuOps, Precision};
use laneway_engine::{
    Engine, EngineConfig, EngineHandle, Event, EventSink, FinishReason, Request, Speculation,
};
use laneway_execution::{SamplingParams, TokenId, pages_for};
use laneway_model::{LoadOptions, Model};
use laneway_numerics::KvDtype;
use laneway_ops::Workspace;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

pub const WINDOW: usize = 1024;
/// Alternatives that are compared beside every token.
const ALTERNATIVES: usize = 5;

/// A file of the shared test data.
pub fn shared_path(name: &str) -> PathBuf {
    let shared = std::env::var_os("LANEWAY_SHARED").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    );
    shared.join(name)
}

/// Its text.
pub fn shared(name: &str) -> String {
    let path = shared_path(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| {
        panic!("{}: {e}; run `cargo xtask test`, which finds the reference data", path.display())
    })
}

/// What an engine is made for.
#[derive(Clone, Copy)]
pub struct Rig {
    pub precision: Precision,
    pub lanes: usize,
    pub chunk: usize,
    pub window: usize,
    /// Drafts of a segment, and rows for them in a step.
    pub drafts: usize,
    pub speculation: Speculation,
    pub kv_dtype: KvDtype,
}

impl Rig {
    pub fn new(precision: Precision) -> Self {
        Rig {
            precision,
            lanes: 1,
            chunk: 512,
            window: WINDOW,
            drafts: 0,
            speculation: Speculation::OFF,
            kv_dtype: KvDtype::F16,
        }
    }

    pub fn config(&self) -> EngineConfig {
        EngineConfig {
            window: self.window,
            lanes: self.lanes,
            pending_max: 512,
            pending_timeout: Duration::from_secs(3600),
            chunk: self.chunk,
            speculation: self.speculation,
        }
    }

    /// The model, ready for steps of so many rows.
    pub fn model(&self, gguf: &Gguf, rows: usize) -> Model<CpuOps> {
        let workspace = Workspace { rows, samples: rows, context: self.window };
        let config = CpuConfig { threads: 2, precision: self.precision, isa: None, workspace };
        let options = LoadOptions {
            kv_dtype: self.kv_dtype,
            pages: self.lanes * pages_for(self.window),
            top_logprobs: ALTERNATIVES,
            state_slots: self.lanes,
            drafts: self.drafts,
            drafting: self.drafts > 0,
        };
        let backend = CpuOps::new(config).expect("a CPU backend");
        Model::load(gguf, backend, &options, &mut |_| ()).expect("the model")
    }

    /// An engine over the model.
    pub fn engine(self, gguf: fn() -> Gguf) -> EngineHandle {
        let rows = self.chunk + self.lanes * (1 + self.drafts);
        Engine::spawn(self.config(), move || self.model(&gguf(), rows))
    }
}

/// Hands events to a test.
pub struct Inlet(pub Sender<Event>);

impl EventSink for Inlet {
    fn send(&mut self, event: Event) {
        // A test that failed no longer listens.
        let _ = self.0.send(event);
    }
}

/// A token and the bits of its own and its alternatives' log probabilities.
pub type Exact = (TokenId, u32, Vec<(TokenId, u32)>);

/// All tokens of a request that runs to its end.
pub fn tokens(events: &Receiver<Event>) -> Vec<Exact> {
    let mut tokens = Vec::new();
    loop {
        match events.recv().expect("an end") {
            Event::Token { token, logprob, top } => {
                let top = top.into_iter().map(|(token, p)| (token, p.to_bits())).collect();
                tokens.push((token, logprob.to_bits(), top));
            }
            Event::Finished { reason, .. } => {
                assert_eq!(reason, FinishReason::Length);
                return tokens;
            }
            Event::Failed { failure, .. } => panic!("{failure:?}"),
            _ => {}
        }
    }
}

/// A request for exactly so many tokens.
pub fn request(
    prompt: &[TokenId],
    sampling: SamplingParams,
    seed: u64,
    max_tokens: usize,
) -> Request {
    Request {
        prompt: prompt.to_vec(),
        max_tokens,
        sampling,
        seed,
        biases: Vec::new(),
        end_tokens: Vec::new(),
        top_logprobs: ALTERNATIVES,
        score_prompt: false,
        speculation: None,
    }
}

/// Runs requests side by side and returns the tokens of each.
pub fn together(engine: &EngineHandle, requests: &[Request]) -> Vec<Vec<Exact>> {
    let running: Vec<_> = (requests.iter())
        .map(|request| {
            let (sender, events) = channel();
            let guard = engine.submit(request.clone(), Box::new(Inlet(sender))).expect("a place");
            (guard, events)
        })
        .collect();
    running.iter().map(|(_, events)| tokens(events)).collect()
}
