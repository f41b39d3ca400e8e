//! Rules about text: dependencies are explained, links lead somewhere, nothing names one machine.

use super::Violation;
use crate::workspace::{SourceFile, Workspace};
use std::collections::BTreeSet;
use std::path::Path;

const DEPENDENCIES_DOC: &str = "docs/dependencies.md";

/// Top-level folders whose absolute paths exist on somebody's machine only.
const MACHINE_FOLDERS: &[&str] = &["home", "root", "tmp", "work", "Users"];

pub(super) fn dependencies(workspace: &Workspace) -> Vec<Violation> {
    let manifest = workspace.file("Cargo.toml").map_or("", |file| file.text.as_str());
    let document = workspace.file(DEPENDENCIES_DOC).map_or("", |file| file.text.as_str());
    let declared = declared_dependencies(manifest);
    let explained = explained_dependencies(document);
    let used: BTreeSet<&str> = workspace
        .packages
        .iter()
        .flat_map(|package| &package.external)
        .map(String::as_str)
        .collect();

    let mut violations = Vec::new();
    for name in declared.difference(&explained) {
        let message = format!("{name} has no line in {DEPENDENCIES_DOC}");
        violations.push(Violation::new("Cargo.toml", message));
    }
    for name in declared.difference(&used) {
        violations.push(Violation::new("Cargo.toml", format!("no crate uses {name}; remove it")));
    }
    for name in used.difference(&declared) {
        let message = format!("{name} is not in [workspace.dependencies]; its version goes there");
        violations.push(Violation::new("Cargo.toml", message));
    }
    for name in explained.difference(&declared) {
        let message = format!("{name} is explained but not in Cargo.toml; remove its line");
        violations.push(Violation::new(DEPENDENCIES_DOC, message));
    }
    violations
}

/// Names in the manifest's `[workspace.dependencies]` that come from outside.
fn declared_dependencies(manifest: &str) -> BTreeSet<&str> {
    manifest
        .lines()
        .skip_while(|line| line.trim() != "[workspace.dependencies]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter(|line| !line.trim_start().starts_with('#'))
        .filter_map(|line| line.split_once('=').map(|(name, _)| name.trim()))
        .filter(|name| !name.starts_with("laneway-"))
        .collect()
}

/// Names in the first column of the document's tables, written as code.
fn explained_dependencies(document: &str) -> BTreeSet<&str> {
    document
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(name, _)| name)
        .collect()
}

pub(super) fn links(workspace: &Workspace) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in workspace.files.iter().filter(|file| file.path.ends_with(".md")) {
        let folder = Path::new(&file.path).parent().unwrap_or(Path::new(""));
        for (line, target) in link_targets(file) {
            let path = target.split('#').next().unwrap_or_default();
            let is_elsewhere =
                path.is_empty() || path.contains("://") || path.starts_with("mailto:");
            if !is_elsewhere && !workspace.root.join(folder).join(path).exists() {
                let place = format!("{}:{line}", file.path);
                violations.push(Violation::new(place, format!("the link to {path} leads nowhere")));
            }
        }
    }
    violations
}

/// Targets of `[text](target)` links outside code blocks, each with its line.
fn link_targets(file: &SourceFile) -> Vec<(usize, &str)> {
    let mut targets = Vec::new();
    let mut in_code = false;
    for (number, line) in (1..).zip(file.text.lines()) {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code {
            let ends = line.match_indices("](").map(|(at, mark)| &line[at + mark.len()..]);
            targets.extend(ends.filter_map(|rest| Some((number, rest.split_once(')')?.0))));
        }
    }
    targets
}

pub(super) fn machine_paths(workspace: &Workspace) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in &workspace.files {
        for (number, line) in (1..).zip(file.text.lines()) {
            if let Some(folder) = MACHINE_FOLDERS.iter().find(|folder| names_path(line, folder)) {
                let message = format!("an absolute path under {folder}, which other machines lack");
                violations.push(Violation::new(format!("{}:{number}", file.path), message));
            }
        }
    }
    violations
}

/// True if `line` holds an absolute path that starts with `folder`.
fn names_path(line: &str, folder: &str) -> bool {
    line.match_indices(&format!("/{folder}/")).any(|(at, _)| {
        !line[..at].ends_with(|c: char| c.is_alphanumeric() || "._-/}$)*".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Package;

    fn workspace(files: &[(&str, &str)], external: &[&str]) -> Workspace {
        Workspace {
            root: env!("CARGO_MANIFEST_DIR").into(),
            target: ".".into(),
            files: files.iter().map(|(path, text)| SourceFile::for_test(path, text)).collect(),
            packages: vec![Package {
                name: "laneway-plan".into(),
                internal: Vec::new(),
                external: external.iter().map(|&name| name.into()).collect(),
                test_targets: Vec::new(),
            }],
        }
    }

    fn found(rule: fn(&Workspace) -> Vec<Violation>, workspace: &Workspace) -> Vec<String> {
        rule(workspace).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn dependencies_must_be_declared_explained_and_used() {
        let manifest =
            "[workspace.dependencies]\nlaneway-ops = 1\n# why\na = \"1\"\nb = \"1\"\n[x]\nz = 1\n";
        let document = "| `a` | what for |\n| `old` | what for |\n";
        let files = [("Cargo.toml", manifest), (DEPENDENCIES_DOC, document)];
        assert_eq!(
            found(dependencies, &workspace(&files, &["a", "c"])),
            [
                "Cargo.toml: b has no line in docs/dependencies.md",
                "Cargo.toml: no crate uses b; remove it",
                "Cargo.toml: c is not in [workspace.dependencies]; its version goes there",
                "docs/dependencies.md: old is explained but not in Cargo.toml; remove its line",
            ]
        );
    }

    #[test]
    fn dead_links_are_found() {
        let text = "[ok](src/lib.rs) [part](#part) [far](https://example.org/x)\n\
                    [bad](src/none.rs#top) [too](gone.md)\n```\n[code](none)\n```\n";
        assert_eq!(
            found(links, &workspace(&[("README.md", text)], &[])),
            [
                "README.md:2: the link to src/none.rs leads nowhere",
                "README.md:2: the link to gone.md leads nowhere",
            ]
        );
    }

    #[test]
    fn absolute_paths_are_found() {
        let bad = format!("see {0}home{0}ann{0}x", '/');
        let good = "see ../work/x, crates/work/x, $HOME/tmp/x and https://a.example/home/x";
        assert_eq!(
            found(machine_paths, &workspace(&[("a.md", &bad), ("b.md", good)], &[])),
            ["a.md:1: an absolute path under home, which other machines lack"]
        );
    }
}
