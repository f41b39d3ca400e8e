//! The reference folder: measurements of other implementations that some tests compare with.
//!
//! It lies outside the project because only those tests need it. By convention such tests are
//! integration tests whose file name contains `reference`, so that they can be left out whole.

use crate::workspace::Workspace;
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};

/// Names the folder to tests.
pub const VARIABLE: &str = "LANEWAY_SHARED";

/// Where the folder is, from the environment's `named` or beside the project.
///
/// # Errors
/// When there is no such folder; says where it was looked for and how to do without.
pub fn locate(root: &Path, named: Option<PathBuf>) -> Result<PathBuf> {
    let folder = named.unwrap_or_else(|| root.join("../shared"));
    match folder.join("reference").canonicalize() {
        Ok(reference) => Ok(reference.parent().unwrap_or(&reference).to_path_buf()),
        Err(_) => bail!(
            "no reference data: {} does not exist. Set {VARIABLE} to the folder that holds \
             `reference`, or run `cargo xtask test --without-reference`, which lists the tests \
             that it leaves out",
            folder.join("reference").display()
        ),
    }
}

/// A test target that needs the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReferenceTarget {
    /// Package that it belongs to.
    pub package: String,
    /// Name of the target.
    pub name: String,
    /// Its test functions.
    pub tests: Vec<String>,
}

/// All integration test targets, those that need the folder apart from the others.
#[must_use]
pub fn split_targets(workspace: &Workspace) -> (Vec<ReferenceTarget>, Vec<String>) {
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for package in &workspace.packages {
        for (name, path) in &package.test_targets {
            if name.contains("reference") {
                let text = workspace.file(path).map_or("", |file| file.text.as_str());
                with.push(ReferenceTarget {
                    package: package.name.clone(),
                    name: name.clone(),
                    tests: test_functions(text),
                });
            } else {
                without.push(name.clone());
            }
        }
    }
    without.sort_unstable();
    without.dedup();
    (with, without)
}

/// Names of the functions under a `#[test]` attribute.
fn test_functions(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut lines = text.lines().map(str::trim);
    while lines.by_ref().any(|line| line == "#[test]") {
        let name = lines.by_ref().find_map(|line| line.strip_prefix("fn ")?.split_once('('));
        names.extend(name.map(|(name, _)| name.to_owned()));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_folder_is_named_with_the_way_out() {
        let error = locate(Path::new("."), Some("no/such/folder".into())).unwrap_err().to_string();
        assert!(error.contains("no/such/folder/reference does not exist"), "{error}");
        assert!(error.contains("--without-reference"), "{error}");
    }

    #[test]
    fn test_functions_are_read_off_the_source() {
        let text = "#[test]\nfn a() {}\nfn helper() {}\n  #[test]\n  #[expect(x)]\n  fn b() {}\n";
        assert_eq!(test_functions(text), ["a", "b"]);
    }
}
