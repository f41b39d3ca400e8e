//! Names and seeds that nobody chose.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

/// 64 bits that differ every time and cannot be guessed from earlier ones.
///
/// The standard library keys its hash maps from the operating system's random source and changes
/// the key with every map; a keyed hash of nothing is that key's fingerprint.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A name such as `chatcmpl-9b0c…`.
pub(crate) fn name(prefix: &str) -> String {
    format!("{prefix}-{:016x}{:016x}", random(), random())
}

/// A seed that survives the journey through JSON readers which know only doubles.
pub(crate) fn seed() -> u64 {
    random() >> 11
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_seeds_differ() {
        let names: std::collections::HashSet<_> = (0..1000).map(|_| name("x")).collect();
        assert_eq!(names.len(), 1000);
        let seeds: std::collections::HashSet<_> = (0..1000).map(|_| seed()).collect();
        assert_eq!(seeds.len(), 1000);
        assert!(seeds.iter().all(|&seed| seed < 1 << 53));
    }
}
