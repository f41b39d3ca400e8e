//! Architectures as data plus one forward pass a family, written once over the op contract.
#![forbid(unsafe_code)]
