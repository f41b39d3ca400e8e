//! What the server does on the wire, seen from outside.

#[path = "../support/mod.rs"]
mod support;

mod bodies;
mod generating;
mod hanging_up;
mod overload;
mod serving;
