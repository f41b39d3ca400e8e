//! Capacity and time arithmetic: bytes a token, windows, pools, time to first token.
#![forbid(unsafe_code)]
