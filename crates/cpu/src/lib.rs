//! The CPU backend: packed weights, vector kernels and the thread team behind the op contract.
