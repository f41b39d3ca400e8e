//! `laneway serve`: loads a model and answers over HTTP until told to stop.

use crate::loading::{OpenedModel, Purpose};
use crate::serving::{
    Admission, asked_to_end, listen, runtime, served_model, server_config, start_engine,
};
use crate::settings::capacity::Wanted;
use crate::settings::{ContextSettings, ModelSettings, PoolSettings, ServerSettings};
use anyhow::Result;
use clap::Args;

/// Serve a model over HTTP: OpenAI-compatible API and a chat page
#[derive(Args, Debug)]
pub struct Settings {
    #[command(flatten)]
    model: ModelSettings,
    #[command(flatten)]
    context: ContextSettings,
    #[command(flatten)]
    pool: PoolSettings,
    #[command(flatten)]
    server: ServerSettings,
}

/// Carries it out.
pub fn run(settings: &Settings) -> Result<()> {
    let Settings { model, context, pool, server } = settings;
    let opened = OpenedModel::open(&model.model)?;
    let listener = listen(server.host, server.port)?;
    let address = listener.local_addr()?;
    let loaded = opened.load(&Purpose {
        threads: model.compute.threads(),
        arithmetic: model.compute.arithmetic,
        step: context.step,
        wanted: Wanted {
            max_context: context.max_context,
            kv_capacity: pool.kv_capacity,
            lanes: pool.max_concurrency,
        },
    })?;
    loaded.print_ledger();
    let seconds = loaded.duration.as_secs_f64();
    let engine = start_engine(loaded, context.step, Admission::new(pool, server));
    let served = served_model(&opened, engine)?;
    let config = server_config(server, opened.names());
    // The weights are packed: the file need not stay in memory.
    drop(opened);
    runtime()?.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        eprintln!("ready: http://{address} (loaded in {seconds:.2} s)");
        let end = async { drop(asked_to_end().await) };
        Ok(laneway_serve::serve(listener, config, served, end).await?)
    })
}
