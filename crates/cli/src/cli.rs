//! The command line: subcommands, each a list of settings groups.

use crate::commands::{bench, demo, fetch, inspect, run, serve};
use crate::settings::LogSettings;
use clap::{Parser, Subcommand};

/// Serves large language models on one machine, with a context window that is computed, not
/// guessed.
#[derive(Debug, Parser)]
#[command(name = "laneway", version, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    pub log: LogSettings,
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    Serve(serve::Settings),
    Run(run::Settings),
    Inspect(inspect::Settings),
    Fetch(fetch::Settings),
    Demo(demo::Settings),
    Bench(bench::Settings),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use std::path::Path;

    /// The reference of all commands, as `docs/cli.md` holds it.
    fn reference() -> String {
        let mut text = String::from(
            "# Command line\n\nWritten by the tests of `laneway-cli` from the same definitions \
             that the program parses; `LANEWAY_UPDATE_DOCS=1 cargo test -p laneway-cli` brings it \
             up to date.\n",
        );
        let mut root = Cli::command().term_width(100);
        root.build();
        let names: Vec<String> = root.get_subcommands().map(|c| c.get_name().to_owned()).collect();
        text.push_str(&section("laneway", &mut root));
        for name in names.iter().filter(|name| *name != "help") {
            if let Some(command) = root.find_subcommand_mut(name) {
                text.push_str(&section(&format!("laneway {name}"), command));
            }
        }
        text
    }

    fn section(title: &str, command: &mut clap::Command) -> String {
        // A variable's value on this machine is nothing to write down.
        let mut command = command.clone().mut_args(|arg| arg.hide_env_values(true));
        let help = command.render_long_help().to_string();
        let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
        format!("\n## `{title}`\n\n```text\n{}\n```\n", lines.join("\n").trim_end())
    }

    #[test]
    fn definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_written_reference_is_current() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
        let wanted = reference();
        if std::env::var_os("LANEWAY_UPDATE_DOCS").is_some() {
            std::fs::write(&path, &wanted).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == wanted,
            "docs/cli.md is stale: run `LANEWAY_UPDATE_DOCS=1 cargo test -p laneway-cli`"
        );
    }

    #[test]
    fn every_option_can_be_set_by_a_variable() {
        let root = Cli::command();
        for command in root.get_subcommands() {
            let options = command.get_opts();
            for arg in options.filter(|arg| !IN_NO_VARIABLE.contains(&arg.get_id().as_str())) {
                let variable = arg.get_env().and_then(std::ffi::OsStr::to_str);
                let wanted = format!("LANEWAY_{}", arg.get_id().as_str().to_uppercase());
                assert_eq!(variable, Some(wanted.as_str()), "of laneway {}", command.get_name());
            }
        }
    }

    /// Options that belong to one call, not to a machine's setup.
    const IN_NO_VARIABLE: &[&str] = &[
        "depths",
        "dir",
        "exit",
        "help",
        "json",
        "lanes",
        "new_tokens",
        "prompt",
        "prompt_tokens",
        "raw",
        "repeat",
        "system",
        "version",
    ];
}
