//! The laneway binary: serve, run, inspect, demo; the one place where a backend is chosen.
#![forbid(unsafe_code)]
fn main() {}
