//! The wire: request bodies in, response bodies out, nothing of how they are produced.

pub mod chat;
pub mod completions;
pub mod error;
pub mod fields;
pub mod messages;
pub mod options;
pub mod refusals;
pub mod reply;
pub mod speculation;
