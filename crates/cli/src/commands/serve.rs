//! `laneway serve`: loads a model and answers over HTTP until told to stop.

use crate::loading::{OpenedModel, Purpose};
use crate::serving::{
    Admission, asked_to_end, listen, runtime, served_model, server_config, start_engine,
};
use crate::settings::capacity::Wanted;
use crate::settings::{
    ContextSettings, ModelSettings, PoolSettings, ServerSettings, SpeculationSettings,
};
use crate::speculating::{open_draft, room, speculation, uses_draft_layer};
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
    speculation: SpeculationSettings,
    #[command(flatten)]
    server: ServerSettings,
}

/// Carries it out.
pub fn run(settings: &Settings) -> Result<()> {
    let Settings { model, context, pool, speculation: spec, server } = settings;
    let opened = OpenedModel::open(&model.model)?;
    let draft = open_draft(spec, &opened)?;
    let listener = listen(server.host, server.port)?;
    let address = listener.local_addr()?;
    let purpose = Purpose {
        threads: model.compute.threads(),
        arithmetic: model.compute.arithmetic,
        step: context.step,
        wanted: Wanted {
            max_context: context.max_context,
            kv_capacity: pool.kv_capacity,
            lanes: pool.max_concurrency,
        },
        drafts: room(spec, opened.config.draft_layer),
        draft_layer: uses_draft_layer(spec),
    };
    let loaded = opened.load(draft.as_ref(), &purpose)?;
    let speculation = speculation(spec, &loaded.limits())?;
    loaded.print_ledger();
    let seconds = loaded.duration.as_secs_f64();
    let admission = Admission::new(pool, server);
    let engine = start_engine(loaded, context.step, admission, speculation)?;
    let served = served_model(&opened, engine)?;
    let config = server_config(server, opened.names());
    // The weights are packed: the files need not stay in memory.
    drop((opened, draft));
    runtime()?.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        eprintln!("ready: http://{address} (loaded in {seconds:.2} s)");
        let end = async { drop(asked_to_end().await) };
        Ok(laneway_serve::serve(listener, config, served, end).await?)
    })
}
