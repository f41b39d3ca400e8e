//! The source rules: what a compiler does not check but every change keeps.
//!
//! Each rule is a pure function of the workspace; its tests show that it can fail.

mod documents;
mod floors;
mod lexer;
mod sources;

use crate::workspace::Workspace;
use std::fmt;

/// One breach of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The file, with the line where one is known, or the package.
    pub place: String,
    /// What is wrong and what is wanted.
    pub message: String,
}

impl Violation {
    fn new(place: impl Into<String>, message: impl Into<String>) -> Self {
        Violation { place: place.into(), message: message.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

/// A rule: its name and the function that finds the breaches.
pub type Rule = (&'static str, fn(&Workspace) -> Vec<Violation>);

/// Every rule.
pub const RULES: &[Rule] = &[
    ("crates import only lower floors", floors::check),
    ("unsafe code stays in its crates", sources::unsafe_code),
    ("no unfinished or silenced code", sources::forbidden_code),
    ("files open with their purpose and stay small", sources::shape),
    ("every dependency is explained", documents::dependencies),
    ("links lead somewhere", documents::links),
    ("no paths of one machine", documents::machine_paths),
];

/// Checks every rule.
#[must_use]
pub fn check_all(workspace: &Workspace) -> Vec<Violation> {
    RULES.iter().flat_map(|(_, rule)| rule(workspace)).collect()
}
