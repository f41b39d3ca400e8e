//! What the project consists of: its files and its packages, as git and cargo tell.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A text file of the project.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// Path from the root, with forward slashes.
    pub path: String,
    /// Its whole text.
    pub text: String,
}

impl SourceFile {
    /// A file for tests.
    #[must_use]
    pub fn for_test(path: &str, text: &str) -> Self {
        SourceFile { path: path.into(), text: text.into() }
    }

    /// True for Rust source.
    #[must_use]
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}

/// A package of the workspace and what it imports.
#[derive(Clone, Debug)]
pub struct Package {
    /// Name, as in its manifest.
    pub name: String,
    /// Packages of this workspace that it depends on, in any way (build, test or run time).
    pub internal: Vec<String>,
    /// Packages from outside that it depends on.
    pub external: Vec<String>,
    /// Its integration test targets: name and path from the root.
    pub test_targets: Vec<(String, String)>,
}

/// The project: root folder, text files, packages.
#[derive(Clone, Debug)]
pub struct Workspace {
    /// The root folder.
    pub root: PathBuf,
    /// Where cargo builds to.
    pub target: PathBuf,
    /// Every text file that git tracks or would track.
    pub files: Vec<SourceFile>,
    /// Every package.
    pub packages: Vec<Package>,
}

impl Workspace {
    /// Reads the workspace that this program belongs to.
    ///
    /// # Errors
    /// When git or cargo cannot be run or give something unexpected.
    pub fn open() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("xtask has no parent folder")?
            .to_path_buf();
        let files = read_files(&root)?;
        let metadata = read_metadata(&root)?;
        let target = metadata["target_directory"].as_str().context("no target directory")?.into();
        let packages = metadata["packages"].as_array().context("no packages")?;
        let packages = packages.iter().map(|package| read_package(&root, package));
        let packages = packages.collect::<Result<_>>()?;
        Ok(Workspace { root, target, files, packages })
    }

    /// The file at `path`.
    #[must_use]
    pub fn file(&self, path: &str) -> Option<&SourceFile> {
        self.files.iter().find(|file| file.path == path)
    }
}

fn read_files(root: &Path) -> Result<Vec<SourceFile>> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let listing = output_of(git.current_dir(root))?;
    let mut paths: Vec<&str> = listing.split('\0').filter(|path| !path.is_empty()).collect();
    paths.sort_unstable();
    paths.dedup();
    let mut files = Vec::with_capacity(paths.len());
    for path in paths {
        // A file that is deleted but still in the index, or one that is not text, has no rules.
        if let Ok(bytes) = std::fs::read(root.join(path))
            && let Ok(text) = String::from_utf8(bytes)
        {
            files.push(SourceFile { path: path.to_owned(), text });
        }
    }
    Ok(files)
}

fn read_metadata(root: &Path) -> Result<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut metadata = Command::new(cargo);
    metadata.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    let text = output_of(metadata.current_dir(root))?;
    serde_json::from_str(&text).context("cargo metadata is not JSON")
}

fn read_package(root: &Path, package: &Value) -> Result<Package> {
    let name = package["name"].as_str().context("a package without a name")?.to_owned();
    let mut internal = Vec::new();
    let mut external = Vec::new();
    for dependency in package["dependencies"].as_array().into_iter().flatten() {
        let dependency_name = dependency["name"].as_str().unwrap_or_default().to_owned();
        let list = if dependency["path"].is_string() { &mut internal } else { &mut external };
        list.push(dependency_name);
    }
    let mut test_targets = Vec::new();
    for target in package["targets"].as_array().into_iter().flatten() {
        let is_test = target["kind"].as_array().is_some_and(|kinds| kinds.contains(&"test".into()));
        if let (true, Some(target_name), Some(path)) =
            (is_test, target["name"].as_str(), target["src_path"].as_str())
        {
            let path = Path::new(path).strip_prefix(root).unwrap_or(Path::new(path));
            test_targets.push((target_name.to_owned(), path.to_string_lossy().into_owned()));
        }
    }
    Ok(Package { name, internal, external, test_targets })
}

fn output_of(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("{command:?} printed no UTF-8"))
}
