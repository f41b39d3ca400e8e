//! The laneway binary: serve, run, inspect, fetch, demo, bench; the one place where a backend is
//! chosen.
#![forbid(unsafe_code)]

mod cli;
mod client;
mod commands;
mod fetch;
mod log;
mod memory;
mod progress;
mod settings;

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
        Err(error) => {
            eprintln!("error: {error:#}");
            if error.is::<Refusal>() { ExitCode::from(REFUSED) } else { ExitCode::FAILURE }
        }
    }
}

fn run(cli: &Cli) -> Result<()> {
    log::start(&cli.log)?;
    match &cli.command {
        Command::Fetch(settings) => commands::fetch::run(settings),
        _ => Ok(()),
    }
}
