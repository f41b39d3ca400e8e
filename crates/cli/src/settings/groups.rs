//! The settings groups. A field's comment is its documentation on the command line and in
//! `docs/cli.md`.

use super::{DraftTokens, KvCapacity, SpecSetting, WeightsSetting};
use clap::{Args, ValueEnum};
use laneway_engine::DraftLength;
use laneway_numerics::KvDtype;
use std::fmt;
use std::net::IpAddr;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

/// What the program says about itself.
#[derive(Args, Debug)]
pub struct LogSettings {
    /// What is logged to standard error: error, warn, info, debug, trace, or a filter such as
    /// `info,laneway_engine=debug`; default: info for `serve`, warn for the others
    #[arg(long, global = true, env = "LANEWAY_LOG_LEVEL", value_name = "LEVEL")]
    pub log_level: Option<String>,
}

/// Arithmetic of the matrix products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PrecisionSetting {
    /// activations in 8 bits: less to compute, but small models notice
    Int8,
    /// activations in 12 bits: fast, and nearly as close to the reference as f32
    Int12,
    /// activations in f32: slow, the closest to the reference
    F32,
}

impl fmt::Display for PrecisionSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PrecisionSetting::Int8 => "int8",
            PrecisionSetting::Int12 => "int12",
            PrecisionSetting::F32 => "f32",
        })
    }
}

/// The model and what computes it.
#[derive(Args, Debug)]
pub struct ModelSettings {
    /// The model: path of a GGUF file or model folder, or a known name (smollm2-135m), fetched if need be
    #[arg(env = "LANEWAY_MODEL")]
    pub model: String,
    #[command(flatten)]
    pub compute: ComputeSettings,
}

/// How the model is computed.
#[derive(Args, Debug)]
pub struct ComputeSettings {
    /// Threads that compute; default: one for each core
    #[arg(long, env = "LANEWAY_THREADS", value_name = "N")]
    pub threads: Option<NonZeroUsize>,
    #[command(flatten)]
    pub arithmetic: ArithmeticSettings,
}

impl ComputeSettings {
    /// Threads that compute.
    pub fn threads(&self) -> NonZeroUsize {
        self.threads.unwrap_or_else(all_cores)
    }
}

/// One thread for each core that this process may use.
pub fn all_cores() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// In which numbers the model is computed.
#[derive(Args, Clone, Copy, Debug)]
pub struct ArithmeticSettings {
    /// Arithmetic of the matrix products
    #[arg(long, env = "LANEWAY_PRECISION", value_enum, default_value_t = PrecisionSetting::Int12)]
    pub precision: PrecisionSetting,
    /// Format that weights are computed in; `auto` keeps the file's
    #[arg(long, env = "LANEWAY_WEIGHTS", value_name = "FORMAT")]
    #[arg(default_value_t = WeightsSetting::Auto)]
    pub weights: WeightsSetting,
}

/// The window of one sequence.
#[derive(Args, Debug)]
pub struct ContextSettings {
    /// Longest sequence, prompt and answer together, in tokens; default: what the model was
    /// trained for
    #[arg(long, env = "LANEWAY_MAX_CONTEXT", value_name = "TOKENS")]
    pub max_context: Option<NonZeroUsize>,
    #[command(flatten)]
    pub step: StepSettings,
}

/// What a step computes, and what it keeps.
#[derive(Args, Clone, Copy, Debug)]
pub struct StepSettings {
    /// Element type of cached keys and values: f32, f16 or bf16
    #[arg(long, env = "LANEWAY_KV_DTYPE", value_name = "TYPE", default_value_t = KvDtype::F16)]
    pub kv_dtype: KvDtype,
    /// Most prompt tokens computed in one step; running answers wait for no more than these
    #[arg(long, env = "LANEWAY_PREFILL_CHUNK", value_name = "TOKENS")]
    #[arg(default_value_t = DEFAULT_PREFILL_CHUNK)]
    pub prefill_chunk: NonZeroUsize,
}

/// Large enough that a step is bound by arithmetic, small enough that a running answer stalls for
/// a fraction of a second.
const DEFAULT_PREFILL_CHUNK: NonZeroUsize = NonZeroUsize::new(256).unwrap();

/// Speculation: guessed tokens that are verified together.
#[derive(Args, Clone, Debug)]
pub struct SpeculationSettings {
    /// Who drafts tokens, which the model then verifies together; answers stay the same. off;
    /// mtp: the model's own draft layer; ngram: what followed when the text last said the same;
    /// draft:MODEL: a smaller model with the same vocabulary, a path or a known name; auto: mtp
    /// if the model has a draft layer, else off
    #[arg(long, env = "LANEWAY_SPEC", value_name = "DRAFTER", default_value_t = SpecSetting::Auto)]
    pub spec: SpecSetting,
    /// Tokens drafted at a time, or `auto`: as many as pay at the moment, by what is accepted and
    /// what steps take
    #[arg(long, env = "LANEWAY_DRAFT_TOKENS", value_name = "N")]
    #[arg(default_value_t = DraftTokens(DraftLength::Auto))]
    pub draft_tokens: DraftTokens,
}

/// The pool that all sequences share.
#[derive(Args, Debug)]
pub struct PoolSettings {
    /// Tokens that the KV pool holds, or `auto`: a whole window for each lane, or as many as the
    /// free memory has room for
    #[arg(long, env = "LANEWAY_KV_CAPACITY", value_name = "TOKENS")]
    #[arg(default_value_t = KvCapacity::Auto)]
    pub kv_capacity: KvCapacity,
    /// Lanes: most requests that are answered at the same time
    #[arg(long, env = "LANEWAY_MAX_CONCURRENCY", value_name = "N", default_value_t = FOUR)]
    pub max_concurrency: NonZeroUsize,
}

const FOUR: NonZeroUsize = NonZeroUsize::new(4).unwrap();

/// The HTTP server.
#[derive(Args, Debug)]
pub struct ServerSettings {
    /// Address to listen on; anything but a loopback address can be reached from outside
    #[arg(long, env = "LANEWAY_HOST", value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, env = "LANEWAY_PORT", default_value_t = 8080)]
    pub port: u16,
    /// Requests that may wait for a lane; more are refused with status 429
    #[arg(long, env = "LANEWAY_MAX_PENDING_REQUESTS", value_name = "N")]
    #[arg(default_value_t = NonZeroUsize::new(64).unwrap())]
    pub max_pending_requests: NonZeroUsize,
    /// Longest wait for a lane in milliseconds, then the request ends with status 503
    #[arg(long, env = "LANEWAY_PENDING_TIMEOUT_MS", value_name = "MS")]
    #[arg(default_value_t = NonZeroU64::new(600_000).unwrap())]
    pub pending_timeout_ms: NonZeroU64,
    /// Key that every request must carry, as a bearer token or in `x-api-key`; default: none
    #[arg(long, env = "LANEWAY_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Name of the model in the API; default: the file's name without its ending
    #[arg(long, env = "LANEWAY_MODEL_ID", value_name = "NAME")]
    pub model_id: Option<String>,
    /// File that gets one JSON line for every finished request
    #[arg(long, env = "LANEWAY_REQUEST_LOG_JSONL", value_name = "FILE")]
    pub request_log_jsonl: Option<PathBuf>,
    /// Largest request body in bytes
    #[arg(long, env = "LANEWAY_BODY_LIMIT", value_name = "BYTES")]
    #[arg(default_value_t = NonZeroUsize::new(32 << 20).unwrap())]
    pub body_limit: NonZeroUsize,
    /// Milliseconds without output after which a stream gets a comment, so that proxies keep it
    /// open
    #[arg(long, env = "LANEWAY_KEEP_ALIVE_MS", value_name = "MS")]
    #[arg(default_value_t = NonZeroU64::new(5_000).unwrap())]
    pub keep_alive_ms: NonZeroU64,
}

/// How tokens are drawn.
#[derive(Args, Clone, Debug)]
pub struct SamplingSettings {
    /// Most tokens of an answer; default: what the window leaves
    #[arg(long, env = "LANEWAY_MAX_TOKENS", value_name = "N")]
    pub max_tokens: Option<NonZeroUsize>,
    /// Softmax temperature; 0 always takes the most likely token
    #[arg(long, env = "LANEWAY_TEMPERATURE", value_name = "T", default_value_t = 0.7)]
    pub temperature: f32,
    /// Draw from the K most likely tokens; 0: from all
    #[arg(long, env = "LANEWAY_TOP_K", value_name = "K", default_value_t = 0)]
    pub top_k: u32,
    /// Draw from the fewest most likely tokens whose probabilities reach P
    #[arg(long, env = "LANEWAY_TOP_P", value_name = "P", default_value_t = 1.0)]
    pub top_p: f32,
    /// Draw from tokens at least P times as likely as the most likely one
    #[arg(long, env = "LANEWAY_MIN_P", value_name = "P", default_value_t = 0.0)]
    pub min_p: f32,
    /// Discourages tokens that occurred before, by dividing their logits; 1: off
    #[arg(long, env = "LANEWAY_REPETITION_PENALTY", value_name = "F", default_value_t = 1.0)]
    pub repetition_penalty: f32,
    /// Seed of the draws; the same seed and prompt give the same answer. Default: random
    #[arg(long, env = "LANEWAY_SEED")]
    pub seed: Option<u64>,
}
