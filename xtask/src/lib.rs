//! Project commands, as a library so that the tidy rules also run as ordinary tests.
#![forbid(unsafe_code)]

pub mod reference;
pub mod suite;
pub mod tidy;
pub mod workspace;
