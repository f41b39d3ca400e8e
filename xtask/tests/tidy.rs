//! The source rules, as tests of the workspace as it stands.

use xtask::tidy::RULES;
use xtask::workspace::Workspace;

#[test]
fn the_workspace_keeps_every_rule() {
    let workspace = Workspace::open().expect("git and cargo describe the workspace");
    assert!(workspace.files.len() > 50, "only {} files found", workspace.files.len());
    let mut report = String::new();
    for (name, rule) in RULES {
        for violation in rule(&workspace) {
            report.push_str(&format!("{name}: {violation}\n"));
        }
    }
    assert!(report.is_empty(), "source rules broken:\n{report}");
}
