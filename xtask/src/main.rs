//! Project commands: `cargo xtask test` runs every test there is, `cargo xtask tidy` the source
//! rules alone.
#![forbid(unsafe_code)]

use anyhow::{Result, bail};
use std::process::ExitCode;
use xtask::suite::{self, Options};
use xtask::tidy;
use xtask::workspace::Workspace;

const USAGE: &str = "\
Usage: cargo xtask COMMAND

Commands:
  test   build, fetch the test model, run every test: Rust, doc and Python SDK tests
           --without-reference  leave out the tests that read the reference folder, and say which
  tidy   check the source rules: crate floors, unsafe code, file sizes, dependencies, links";

fn main() -> ExitCode {
    match run(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<()> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["test", flags @ ..] => {
            let mut options = Options::default();
            for flag in flags {
                match *flag {
                    "--without-reference" => options.without_reference = true,
                    other => bail!("unknown option {other:?} of test\n\n{USAGE}"),
                }
            }
            suite::run(&Workspace::open()?, &options)
        }
        ["tidy"] => {
            let violations = tidy::check_all(&Workspace::open()?);
            for violation in &violations {
                eprintln!("{violation}");
            }
            match violations.len() {
                0 => Ok(()),
                count => bail!("{count} violations of the source rules"),
            }
        }
        [] | ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        [other, ..] => bail!("unknown command {other:?}\n\n{USAGE}"),
    }
}
