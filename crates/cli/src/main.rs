//! The laneway binary: serve, run, inspect, fetch, demo, bench; the one place where a backend is
//! chosen.
#![forbid(unsafe_code)]

mod cli;
mod client;
mod commands;
mod fetch;
mod loading;
mod log;
mod memory;
mod output;
mod progress;
mod serving;
mod settings;
mod source;
mod speculating;

use anyhow::Result;
use clap::Parser;
use cli::{Cli, Command};
use settings::capacity::Refusal;
use std::process::ExitCode;

/// Exit code for settings that cannot be honoured; the command line's own errors have it too.
const REFUSED: u8 = 2;

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if output::is_closed(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            if error.is::<Refusal>() { ExitCode::from(REFUSED) } else { ExitCode::FAILURE }
        }
    }
}

fn run(cli: &Cli) -> Result<()> {
    // Only a server has something to tell while all is well.
    let level = if matches!(cli.command, Command::Serve(_)) { "info" } else { "warn" };
    log::start(&cli.log, level)?;
    match &cli.command {
        Command::Serve(settings) => commands::serve::run(settings),
        Command::Run(settings) => commands::run::run(settings),
        Command::Inspect(settings) => commands::inspect::run(settings),
        Command::Fetch(settings) => commands::fetch::run(settings),
        Command::Demo(settings) => commands::demo::run(settings),
        Command::Bench(settings) => commands::bench::run(settings),
    }
}
