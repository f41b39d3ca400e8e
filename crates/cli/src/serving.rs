//! A model on the network: engine, server, and the signals that end them.

use crate::loading::{Loaded, OpenedModel};
use crate::settings::{PoolSettings, ServerSettings, StepSettings};
use anyhow::{Context, Result};
use laneway_engine::{Engine, EngineConfig, EngineHandle, Speculation, WithDraft};
use laneway_serve::ServerConfig;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Threads of the HTTP side; they move text while the engine's threads compute.
const HTTP_THREADS: usize = 2;

/// How many requests the engine takes at a time.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    /// Requests answered at the same time.
    pub lanes: usize,
    /// Requests that may wait.
    pub pending_max: usize,
    /// How long they may wait.
    pub pending_timeout: Duration,
}

impl Admission {
    /// As the settings say.
    #[must_use]
    pub fn new(pool: &PoolSettings, server: &ServerSettings) -> Self {
        Admission {
            lanes: pool.max_concurrency.get(),
            pending_max: server.max_pending_requests.get(),
            pending_timeout: Duration::from_millis(server.pending_timeout_ms.get()),
        }
    }
}

/// Starts the engine over a loaded model, and its draft model if it has one.
///
/// # Errors
/// If the two do not go together.
pub fn start_engine(
    loaded: Loaded,
    step: StepSettings,
    admission: Admission,
    speculation: Speculation,
) -> Result<EngineHandle> {
    let config = EngineConfig {
        window: loaded.capacity.max_context,
        lanes: admission.lanes,
        pending_max: admission.pending_max,
        pending_timeout: admission.pending_timeout,
        chunk: step.prefill_chunk.get(),
        speculation,
    };
    Ok(match loaded.draft {
        None => Engine::spawn_calibrated(config, move || loaded.model),
        Some(draft) => {
            let both = WithDraft::new(loaded.model, draft)?;
            Engine::spawn_calibrated(config, move || both)
        }
    })
}

/// Takes the address before anything slow happens, so that a taken port is told at once.
///
/// # Errors
/// If the address cannot be had.
pub fn listen(host: IpAddr, port: u16) -> Result<TcpListener> {
    let address = SocketAddr::new(host, port);
    let listener = TcpListener::bind(address).with_context(|| {
        format!("cannot listen on {address}; choose another with --host and --port (0: any free)")
    })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The run time of everything that waits for the network.
///
/// # Errors
/// If threads cannot be had.
pub fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread()
        .worker_threads(HTTP_THREADS)
        .enable_all()
        .build()?)
}

/// The parts that the server needs of a model.
///
/// # Errors
/// A tokenizer or chat template that cannot be read.
pub fn served_model(opened: &OpenedModel, engine: EngineHandle) -> Result<laneway_serve::Model> {
    let (tokenizer, template) = opened.text()?;
    Ok(laneway_serve::Model { engine, tokenizer, template })
}

/// The server's settings; `default_name` is what the model is called if nobody says.
#[must_use]
pub fn server_config(settings: &ServerSettings, names: Vec<String>) -> ServerConfig {
    ServerConfig {
        model_ids: settings.model_id.clone().map_or(names, |name| vec![name]),
        api_keys: settings.api_key.clone().into_iter().collect(),
        body_limit_bytes: settings.body_limit.get(),
        keep_alive: Duration::from_millis(settings.keep_alive_ms.get()),
        request_log: settings.request_log_jsonl.clone(),
        ..ServerConfig::default()
    }
}

/// Resolves when the user or the system asks the program to end.
///
/// # Errors
/// If signals cannot be watched.
pub async fn asked_to_end() -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
