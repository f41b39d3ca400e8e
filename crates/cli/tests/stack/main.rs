//! The whole stack below HTTP on real models: engine, model and CPU backend.

mod hybrid;
mod llama;
mod rig;
