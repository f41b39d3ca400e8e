//! The binary from outside: what goes in, and what comes out where.

use std::path::PathBuf;
use std::process::{Command, Output};

/// What a call left behind.
pub struct Outcome {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// A command without any of the settings that this machine may have in its environment.
pub fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_laneway"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("LANEWAY_") {
            command.env_remove(name);
        }
    }
    command
}

/// Calls the binary and waits for its end.
pub fn laneway(arguments: &[&str]) -> Outcome {
    outcome(&command().args(arguments).output().expect("the binary can be run"))
}

pub fn outcome(output: &Output) -> Outcome {
    Outcome {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout.clone()).expect("UTF-8 on standard output"),
        stderr: String::from_utf8(output.stderr.clone()).expect("UTF-8 on standard error"),
    }
}

/// The test model.
pub fn model() -> String {
    let folder = std::env::var_os("LANEWAY_TEST_MODELS")
        .expect("LANEWAY_TEST_MODELS is not set; run `cargo xtask test`, which fetches the models");
    let path = PathBuf::from(folder).join("smollm2-135m-instruct-q4_1.gguf");
    path.to_str().expect("a path in UTF-8").to_owned()
}

/// Fails unless `text` holds all of `wanted`.
pub fn assert_says(text: &str, wanted: &[&str]) {
    for wanted in wanted {
        assert!(text.contains(wanted), "{wanted:?} is not in:\n{text}");
    }
}
