//! Project commands: `cargo xtask test`, `cargo xtask tidy`.
fn main() {}
