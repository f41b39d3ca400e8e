//! A simulated executor: virtual time, hashed tokens, injected faults.
#![forbid(unsafe_code)]
