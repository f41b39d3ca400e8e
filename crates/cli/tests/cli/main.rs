//! The binary from outside: standard output, standard error and exit code. One program for all of
//! these tests, so that it is linked once.
#![forbid(unsafe_code)]

mod fetch;
mod inspect;
mod ladder;
mod memory;
mod refusals;
mod run;
mod support;
