//! Rules about Rust source: where unsafe code may stand, what may not be written, how files look.

use super::{Violation, lexer};
use crate::workspace::{SourceFile, Workspace};

/// Where unsafe code may stand: device backends, aligned disk buffers, the mapping of model files,
/// and the counting allocator of a test.
const UNSAFE_ALLOWED: &[&str] = &[
    "crates/cpu/",
    "crates/cuda/",
    "crates/spill/",
    "crates/artifact/src/mapping",
    "crates/artifact/tests/fuzz_gguf.rs",
];

/// Crates that hold such code and so cannot forbid it as a whole.
const UNSAFE_CRATES: &[&str] =
    &["crates/artifact/", "crates/cpu/", "crates/cuda/", "crates/spill/"];

/// What may not be written, and what to do instead.
const FORBIDDEN: &[(&str, &str)] = &[
    ("#[allow(", "use #[expect(…)], which tells when it is no longer needed"),
    ("#![allow(", "use #![expect(…)], which tells when it is no longer needed"),
    ("#[ignore", "a test that does not run tests nothing: make it run or delete it"),
    ("should_panic", "a panic anywhere passes it: catch the panic and look at its message"),
    ("todo!", "finish it, or return an error that says what is missing"),
    ("unimplemented!", "finish it, or return an error that says what is missing"),
    ("dbg!", "remove it, or use tracing"),
];

/// Most lines of one file.
const LINES_MAX: usize = 800;

pub(super) fn unsafe_code(workspace: &Workspace) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in rust_files(workspace) {
        if !starts_with_any(&file.path, UNSAFE_ALLOWED) {
            let code = lexer::code_only(&file.text);
            for line in lines_with_word(&code, "unsafe") {
                let message = "unsafe code belongs in the crates cpu, cuda and spill only";
                violations.push(Violation::new(format!("{}:{line}", file.path), message));
            }
        }
        let is_root = file.path.ends_with("src/lib.rs") || file.path.ends_with("src/main.rs");
        if is_root
            && !starts_with_any(&file.path, UNSAFE_CRATES)
            && !file.text.contains("#![forbid(unsafe_code)]")
        {
            let message = "the crate's root lacks #![forbid(unsafe_code)]";
            violations.push(Violation::new(&file.path, message));
        }
    }
    violations
}

pub(super) fn forbidden_code(workspace: &Workspace) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in rust_files(workspace) {
        let code = lexer::code_only(&file.text);
        for (number, line) in (1..).zip(code.lines()) {
            for (pattern, instead) in FORBIDDEN {
                if contains_start_of_word(line, pattern) {
                    let place = format!("{}:{number}", file.path);
                    violations.push(Violation::new(place, format!("{pattern} found: {instead}")));
                }
            }
        }
    }
    violations
}

pub(super) fn shape(workspace: &Workspace) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in rust_files(workspace) {
        if !file.text.starts_with("//! ") {
            let message = "the first line must be a `//!` sentence that says what the file is for";
            violations.push(Violation::new(&file.path, message));
        }
        let lines = file.text.lines().count();
        if lines > LINES_MAX {
            let message = format!("{lines} lines, allowed are {LINES_MAX}: split it along a seam");
            violations.push(Violation::new(&file.path, message));
        }
    }
    violations
}

fn rust_files(workspace: &Workspace) -> impl Iterator<Item = &SourceFile> {
    workspace.files.iter().filter(|file| file.is_rust())
}

fn starts_with_any(path: &str, prefixes: &[&str]) -> bool {
    prefixes.iter().any(|prefix| path.starts_with(prefix))
}

fn lines_with_word<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let is_in = move |line: &str| {
        line.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|found| found == word)
    };
    (1..).zip(code.lines()).filter(move |(_, line)| is_in(line)).map(|(number, _)| number)
}

/// True if `pattern` occurs in `line` other than as the tail of a longer name.
fn contains_start_of_word(line: &str, pattern: &str) -> bool {
    line.match_indices(pattern)
        .any(|(at, _)| !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(rule: fn(&Workspace) -> Vec<Violation>, path: &str, text: &str) -> Vec<String> {
        let files = vec![SourceFile::for_test(path, text)];
        let (root, target) = (".".into(), ".".into());
        let workspace = Workspace { root, target, files, packages: Vec::new() };
        rule(&workspace).iter().map(|violation| violation.place.clone()).collect()
    }

    #[test]
    fn unsafe_is_found_outside_its_crates_only() {
        let text = "//! Text.\nfn f() {\n    unsafe { g() }\n}\n";
        assert_eq!(found(unsafe_code, "crates/plan/src/a.rs", text), ["crates/plan/src/a.rs:3"]);
        assert_eq!(
            found(unsafe_code, "crates/artifact/src/gguf.rs", text),
            ["crates/artifact/src/gguf.rs:3"]
        );
        assert_eq!(found(unsafe_code, "crates/artifact/src/mapping.rs", text), [""; 0]);
        assert_eq!(found(unsafe_code, "crates/cpu/src/a.rs", text), [""; 0]);
        let harmless = "//! Text.\nfn f() {\n    g(\"unsafe\"); // unsafe\n}\nlet not_unsafe = 1;";
        assert_eq!(found(unsafe_code, "crates/plan/src/a.rs", harmless), [""; 0]);
    }

    #[test]
    fn roots_must_forbid_unsafe() {
        assert_eq!(
            found(unsafe_code, "crates/plan/src/lib.rs", "//! Text.\n"),
            ["crates/plan/src/lib.rs"]
        );
        let good = "//! Text.\n#![forbid(unsafe_code)]\n";
        assert_eq!(found(unsafe_code, "crates/plan/src/lib.rs", good), [""; 0]);
        assert_eq!(found(unsafe_code, "crates/cpu/src/lib.rs", "//! Text.\n"), [""; 0]);
    }

    #[test]
    fn forbidden_code_is_found_by_line() {
        let text =
            "//! a\n#[allow(dead_code)]\n#[test]\n#[ignore = \"slow\"]\nfn f() { todo!() }\n";
        assert_eq!(found(forbidden_code, "a.rs", text), ["a.rs:2", "a.rs:4", "a.rs:5"]);
        let harmless = "//! a\n// todo!()\nlet x = \"dbg!\"; my_todo!(); #[expect(dead_code)]";
        assert_eq!(found(forbidden_code, "a.rs", harmless), [""; 0]);
    }

    #[test]
    fn files_need_a_purpose_and_a_limit() {
        assert_eq!(found(shape, "a.rs", "fn f() {}\n"), ["a.rs"]);
        assert_eq!(found(shape, "a.rs", &format!("//! a\n{}", "\n".repeat(799))), [""; 0]);
        assert_eq!(found(shape, "a.rs", &format!("//! a\n{}", "\n".repeat(800))), ["a.rs"]);
        assert_eq!(found(shape, "a.md", "no Rust"), [""; 0]);
    }
}
