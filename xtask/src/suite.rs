//! `cargo xtask test`: every test of the project, from a clean checkout.

use crate::reference;
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Names the folder of test models to tests.
const MODELS_VARIABLE: &str = "LANEWAY_TEST_MODELS";

/// Names the built binary to tests that are not Rust.
const BINARY_VARIABLE: &str = "LANEWAY_BIN";

/// The model that tests of the whole use.
const TEST_MODEL: &str = "smollm2-135m";

/// What to run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Leave out the tests that read the reference folder.
    pub without_reference: bool,
}

/// Runs everything and prints the closing lines of the test runners last.
///
/// # Errors
/// At the first step that fails.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let suite = Suite::prepare(workspace, options)?;
    // The closing line of the largest runner comes last.
    let mut closing = suite.doc_tests()?;
    closing.extend(suite.sdk_tests()?);
    closing.extend(suite.rust_tests()?);
    eprintln!();
    for line in closing {
        println!("{line}");
    }
    Ok(())
}

struct Suite<'a> {
    workspace: &'a Workspace,
    /// Target selection of the Rust tests; empty = all.
    selection: Vec<String>,
    reference: Option<PathBuf>,
    models: PathBuf,
}

impl<'a> Suite<'a> {
    fn prepare(workspace: &'a Workspace, options: &Options) -> Result<Self> {
        let mut selection = Vec::new();
        let reference = if options.without_reference {
            let (left_out, kept) = reference::split_targets(workspace);
            announce("left out, since they need the reference folder:");
            for target in left_out {
                for test in target.tests {
                    eprintln!("    {}::{} {test}", target.package, target.name);
                }
            }
            selection.extend(["--lib".to_owned(), "--bins".to_owned()]);
            selection.extend(kept.into_iter().flat_map(|name| ["--test".to_owned(), name]));
            None
        } else {
            let named = std::env::var_os(reference::VARIABLE).map(PathBuf::from);
            Some(reference::locate(&workspace.root, named)?)
        };
        let models = fetch_models(workspace)?;
        Ok(Suite { workspace, selection, reference, models })
    }

    fn rust_tests(&self) -> Result<Vec<String>> {
        let has_nextest = Command::new("cargo")
            .args(["nextest", "--version"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        let mut command = self.command("cargo");
        if has_nextest {
            announce("Rust tests (nextest)");
            command.args(["nextest", "run", "--workspace", "--no-fail-fast"]);
            command.args(&self.selection);
            watch(&mut command, |line| line.trim_start().starts_with("Summary ["))
        } else {
            announce("Rust tests");
            command.args(["test", "--workspace", "--no-fail-fast"]);
            if self.selection.is_empty() {
                command.args(["--lib", "--bins", "--tests"]);
            }
            command.args(&self.selection);
            watch(&mut command, |line| line.starts_with("test result:"))
        }
    }

    fn doc_tests(&self) -> Result<Vec<String>> {
        announce("doc tests");
        let mut command = self.command("cargo");
        command.args(["test", "--workspace", "--doc", "--quiet"]);
        let lines = watch(&mut command, |line| line.starts_with("test result:"))?;
        // Most crates have no doc tests; their closing lines say nothing.
        Ok(lines.into_iter().filter(|line| !line.contains(" 0 passed; 0 failed")).collect())
    }

    fn sdk_tests(&self) -> Result<Vec<String>> {
        announce("SDK tests");
        let folder = self.workspace.root.join("tests/sdk");
        let python = self.python_environment(&folder.join("requirements.txt"))?;
        let mut command = self.command(&python);
        command.args(["-m", "pytest", "-rs", "--color=no", "-p", "no:cacheprovider"]).arg(&folder);
        let lines = watch(&mut command, is_pytest_closing_line)?;
        match lines.iter().find(|line| line.contains("skipped")) {
            Some(line) => bail!("a skipped SDK test tests nothing: {line}"),
            None => Ok(lines),
        }
    }

    /// A Python of its own with what the SDK tests need, kept beside the build.
    fn python_environment(&self, requirements: &Path) -> Result<PathBuf> {
        let folder = self.workspace.target.join("sdk-python");
        let python = folder.join("bin/python");
        if !python.exists() {
            let mut venv = Command::new("python3");
            expect_success(venv.args(["-m", "venv"]).arg(&folder)).context(
                "the SDK tests need python3 with its venv module (Debian: python3-venv)",
            )?;
        }
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]);
        expect_success(pip.arg(requirements))?;
        Ok(python)
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.workspace.root).env(MODELS_VARIABLE, &self.models);
        command.env(BINARY_VARIABLE, self.workspace.target.join("debug/laneway"));
        if let Some(folder) = &self.reference {
            command.env(reference::VARIABLE, folder);
        }
        command
    }
}

/// Builds the binary, lets it fetch the test model, and returns the model's folder.
fn fetch_models(workspace: &Workspace) -> Result<PathBuf> {
    announce("build");
    let mut build = Command::new("cargo");
    build.args(["build", "--package", "laneway-cli"]).current_dir(&workspace.root);
    expect_success(&mut build)?;
    announce("test model");
    let mut fetch = Command::new(workspace.target.join("debug/laneway"));
    let output = fetch
        .args(["fetch", TEST_MODEL])
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {fetch:?}"))?;
    if !output.status.success() {
        bail!("the test model could not be fetched");
    }
    let path = PathBuf::from(String::from_utf8(output.stdout)?.trim_end());
    path.parent().map(Path::to_path_buf).context("the model's path has no folder")
}

fn is_pytest_closing_line(line: &str) -> bool {
    let line = line.trim_matches(['=', ' ']);
    line.contains(" in ")
        && line.split(", ").next().is_some_and(|first| {
            let mut words = first.split(' ');
            words.next().is_some_and(|count| count.parse::<u32>().is_ok())
                && matches!(
                    words.next(),
                    Some("passed" | "failed" | "skipped" | "error" | "errors")
                )
        })
}

fn announce(what: &str) {
    eprintln!("==> {what}");
}

fn expect_success(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {command:?}"))?;
    if !status.success() {
        bail!("{command:?} failed: {status}");
    }
    Ok(())
}

/// Runs `command`, passes its output on, and returns the lines that `is_closing`.
fn watch(command: &mut Command, is_closing: fn(&str) -> bool) -> Result<Vec<String>> {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {command:?}"))?;
    let stdout = child.stdout.take().context("no standard output")?;
    let stderr = child.stderr.take().context("no standard error")?;
    let closing = std::thread::scope(|scope| {
        let errors = scope.spawn(move || pass_on(stderr, is_closing));
        let mut closing = pass_on(stdout, is_closing);
        closing.extend(errors.join().unwrap_or_default());
        closing
    });
    let status = child.wait()?;
    if !status.success() {
        closing.iter().for_each(|line| println!("{line}"));
        bail!("{command:?} failed: {status}");
    }
    if closing.is_empty() {
        bail!("{command:?} printed no closing line, so nothing shows that a test ran");
    }
    Ok(closing)
}

fn pass_on(output: impl Read, is_closing: fn(&str) -> bool) -> Vec<String> {
    let mut closing = Vec::new();
    for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        eprintln!("{line}");
        if is_closing(&line) {
            closing.push(line.into_owned());
        }
    }
    closing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_of_pytest_are_known() {
        assert!(is_pytest_closing_line("============ 12 passed in 3.21s ============"));
        assert!(is_pytest_closing_line("1 failed, 11 passed, 2 skipped in 3.21s"));
        assert!(!is_pytest_closing_line("collected 12 items in a list"));
        assert!(!is_pytest_closing_line("12 requests passed in time"));
    }

    #[test]
    fn output_is_watched_and_failure_told() {
        let mut good = Command::new("sh");
        good.args(["-c", "echo one; echo 'end 1' >&2"]);
        assert_eq!(watch(&mut good, |line| line.starts_with("end")).unwrap(), ["end 1"]);
        let mut silent = Command::new("sh");
        silent.args(["-c", "echo one"]);
        assert!(watch(&mut silent, |line| line.starts_with("end")).is_err());
        let mut bad = Command::new("sh");
        bad.args(["-c", "echo 'end 1'; exit 3"]);
        assert!(watch(&mut bad, |line| line.starts_with("end")).is_err());
    }
}
