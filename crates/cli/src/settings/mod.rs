//! Every setting, defined once: its flag, its variable, its default and its documentation.
//!
//! A group is what several commands share. A group holds what was typed; [`capacity`] turns what
//! was typed into what it means for a model on this machine, or refuses it with the numbers.

pub mod capacity;
mod groups;
mod values;

pub use groups::{
    ArithmeticSettings, ComputeSettings, ContextSettings, LogSettings, ModelSettings, PoolSettings,
    PrecisionSetting, SamplingSettings, ServerSettings, SpeculationSettings, StepSettings,
    all_cores,
};
pub use values::{DraftTokens, KvCapacity, SpecSetting, WeightsSetting};
