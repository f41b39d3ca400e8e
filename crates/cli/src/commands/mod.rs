//! The subcommands: each has its settings and a function that carries them out.

pub mod bench;
pub mod demo;
pub mod fetch;
pub mod inspect;
pub mod run;
pub mod serve;
