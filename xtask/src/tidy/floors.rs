//! Which crate may import which: every crate stands on a floor and imports only lower ones.

use super::Violation;
use crate::workspace::{Package, Workspace};

/// The floors. `execution` stands on the lowest: the op contract and the engine speak of its step.
const FLOORS: &[(&str, u8)] = &[
    ("laneway-numerics", 0),
    ("laneway-artifact", 0),
    ("laneway-execution", 0),
    ("laneway-ops", 1),
    ("laneway-plan", 1),
    ("laneway-cpu", 2),
    ("laneway-cuda", 2),
    ("laneway-spill", 2),
    ("laneway-model", 3),
    ("laneway-sim", 3),
    ("laneway-context", 3),
    ("laneway-engine", 4),
    ("laneway-frontend", 4),
    ("laneway-serve", 5),
    ("laneway-bench", 5),
    ("laneway-agent", 5),
    ("laneway-cli", 6),
];

/// Imports between crates of one floor that are meant.
const SAME_FLOOR: &[(&str, &str)] = &[
    // A model file's reader names and measures the formats of its tensors.
    ("laneway-artifact", "laneway-numerics"),
];

/// Names that say nothing about what a crate is for.
const EMPTY_NAMES: &[&str] = &["common", "util", "utils", "helpers", "misc", "shared"];

pub(super) fn check(workspace: &Workspace) -> Vec<Violation> {
    check_packages(&workspace.packages)
}

fn check_packages(packages: &[Package]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for package in packages.iter().filter(|package| package.name != "xtask") {
        let room = package.name.strip_prefix("laneway-").unwrap_or(&package.name);
        if EMPTY_NAMES.contains(&room) {
            violations.push(Violation::new(&package.name, "the name says nothing; name its job"));
        }
        let Some(floor) = floor_of(&package.name) else {
            let message = "the crate stands on no floor; add it to the table in xtask";
            violations.push(Violation::new(&package.name, message));
            continue;
        };
        for import in &package.internal {
            let allowed = floor_of(import).is_some_and(|lower| lower < floor)
                || SAME_FLOOR.contains(&(package.name.as_str(), import.as_str()));
            if !allowed {
                let of_import = floor_of(import).map_or("no floor".into(), |f| f.to_string());
                violations.push(Violation::new(
                    &package.name,
                    format!("floor {floor} imports {import} (floor {of_import}); only lower ones"),
                ));
            }
        }
    }
    violations
}

fn floor_of(name: &str) -> Option<u8> {
    FLOORS.iter().find(|(crate_name, _)| *crate_name == name).map(|(_, floor)| *floor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, internal: &[&str]) -> Package {
        Package {
            name: name.into(),
            internal: internal.iter().map(|&name| name.into()).collect(),
            external: Vec::new(),
            test_targets: Vec::new(),
        }
    }

    fn messages(packages: &[Package]) -> Vec<String> {
        check_packages(packages).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn lower_floors_and_the_stated_exception_pass() {
        let packages = [
            package("laneway-engine", &["laneway-execution", "laneway-sim"]),
            package("laneway-artifact", &["laneway-numerics"]),
            package("xtask", &["laneway-cli"]),
        ];
        assert_eq!(messages(&packages), [""; 0]);
    }

    #[test]
    fn same_and_higher_floors_are_named() {
        let packages = [
            package("laneway-numerics", &["laneway-artifact"]),
            package("laneway-engine", &["laneway-serve"]),
        ];
        assert_eq!(
            messages(&packages),
            [
                "laneway-numerics: floor 0 imports laneway-artifact (floor 0); only lower ones",
                "laneway-engine: floor 4 imports laneway-serve (floor 5); only lower ones",
            ]
        );
    }

    #[test]
    fn a_crate_without_floor_or_purpose_is_named() {
        assert_eq!(
            messages(&[package("laneway-utils", &[])]),
            [
                "laneway-utils: the name says nothing; name its job",
                "laneway-utils: the crate stands on no floor; add it to the table in xtask",
            ]
        );
    }
}
