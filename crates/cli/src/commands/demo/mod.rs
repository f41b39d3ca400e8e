//! `laneway demo`: the promise shown on this machine: three prompts at once, and the time to the
//! first token of each, as predicted and as measured.

mod ladder;

use crate::client::post;
use crate::loading::{OpenedModel, Purpose};
use crate::output;
use crate::serving::{Admission, asked_to_end, listen, runtime, served_model, start_engine};
use crate::settings::capacity::Wanted;
use crate::settings::{ComputeSettings, KvCapacity, StepSettings};
use anyhow::{Context, Result, ensure};
use clap::Args;
use laneway_engine::Speculation;
use laneway_serve::ServerConfig;
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::num::NonZeroUsize;
use std::time::Duration;

/// Lanes of the demo's server, and so rungs of its ladder.
const LANES: NonZeroUsize = NonZeroUsize::new(3).unwrap();

/// Window of the demo's server: its prompts and answers are short.
const MAX_CONTEXT: NonZeroUsize = NonZeroUsize::new(2048).unwrap();

/// Where the chat page is looked for first.
const USUAL_PORT: u16 = 8080;

/// What is asked at the end.
const QUESTION: &str = "In two sentences: why is the sky blue?";

/// Show on this machine what Laneway promises, with a small model
///
/// Obtains the model, starts the server, sends three equal prompts at once, compares the time to
/// the first token of each with its prediction, streams one answer, and leaves the chat page up.
#[derive(Args, Debug)]
pub struct Settings {
    /// The model: path of a GGUF file or model folder, or a known name, fetched if need be
    #[arg(long, env = "LANEWAY_MODEL", default_value = "smollm2-135m")]
    model: String,
    #[command(flatten)]
    compute: ComputeSettings,
    #[command(flatten)]
    step: StepSettings,
    /// Port to listen on; 0 takes a free one; default: 8080, or a free one if that is taken
    #[arg(long, env = "LANEWAY_PORT")]
    port: Option<u16>,
    /// End when everything has been shown, instead of leaving the chat page up
    #[arg(long)]
    exit: bool,
}

/// Carries it out.
pub fn run(settings: &Settings) -> Result<()> {
    let opened = OpenedModel::open(&settings.model)?;
    let listener = listen_somewhere(settings.port)?;
    let address = listener.local_addr()?;
    let native = NonZeroUsize::new(opened.config.context).context("a model without a window")?;
    let purpose = Purpose {
        threads: settings.compute.threads(),
        arithmetic: settings.compute.arithmetic,
        step: settings.step,
        wanted: Wanted {
            max_context: Some(MAX_CONTEXT.min(native)),
            kv_capacity: KvCapacity::Auto,
            lanes: LANES,
        },
        drafts: 0,
        draft_layer: false,
    };
    let loaded = opened.load(None, &purpose)?;
    loaded.print_ledger();
    eprintln!("ready: http://{address} (loaded in {:.2} s)", loaded.duration.as_secs_f64());
    let admission = Admission {
        lanes: LANES.get(),
        pending_max: 64,
        pending_timeout: Duration::from_secs(600),
    };
    let engine = start_engine(loaded, settings.step, admission, Speculation::OFF)?;
    let served = served_model(&opened, engine)?;
    let config = ServerConfig { model_ids: opened.names(), ..ServerConfig::default() };
    // The weights are packed: the file need not stay in memory.
    drop(opened);
    runtime()?.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let end = async { drop(stopped.await) };
        let server = tokio::spawn(laneway_serve::serve(listener, config, served, end));
        show(address, settings.exit).await?;
        drop(stop);
        Ok(server.await??)
    })
}

/// What the audience sees, from the side of a client.
async fn show(server: SocketAddr, exit: bool) -> Result<()> {
    output::print(&ladder::climb(server, LANES.get()).await?.to_string())?;
    output::print(&format!("\n> {QUESTION}\n"))?;
    stream_answer(server, QUESTION).await?;
    if exit {
        return Ok(());
    }
    output::print(&format!("\nchat with it: http://{server}/ (Ctrl-C ends the demo)\n"))?;
    asked_to_end().await
}

/// Prints an answer as it arrives.
async fn stream_answer(server: SocketAddr, question: &str) -> Result<()> {
    let request = json!({
        "messages": [{ "role": "user", "content": question }],
        "temperature": 0,
        "max_tokens": 200,
        "stream": true,
    });
    let response = post(server, "/v1/chat/completions", &request.to_string()).await?;
    let mut events = response.events().await?;
    while let Some(event) = events.next().await? {
        if event.data.is_empty() || event.data == "[DONE]" {
            continue;
        }
        let data: Value = serde_json::from_str(&event.data).context("an event is no JSON")?;
        ensure!(data.get("error").is_none(), "the answer failed: {}", data["error"]);
        if let Some(text) = data["choices"][0]["delta"]["content"].as_str() {
            output::print(text)?;
        }
    }
    output::print("\n")
}

fn listen_somewhere(port: Option<u16>) -> Result<TcpListener> {
    let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
    match port {
        Some(port) => listen(host, port),
        None => listen(host, USUAL_PORT).or_else(|_| listen(host, 0)),
    }
}
