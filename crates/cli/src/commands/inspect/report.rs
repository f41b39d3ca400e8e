//! What there is to say of a model file.

use crate::loading::OpenedModel;
use crate::memory;
use crate::settings::capacity::mib;
use anyhow::Result;
use laneway_execution::{PAGE_TOKENS, pages_for};
use laneway_numerics::{KvDtype, WeightFormat};
use serde::Serialize;
use std::fmt;

/// Numbers of lanes for which windows are worked out.
const LANES: [usize; 4] = [1, 2, 4, 8];

/// All findings.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    file: String,
    architecture: String,
    layers: usize,
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    vocabulary: usize,
    native_context: usize,
    formats: Vec<Format>,
    parameters: u64,
    file_weight_bytes: u64,
    packed_weight_bytes: u64,
    /// None if this machine does not tell.
    plannable_bytes: Option<u64>,
    kv: Vec<Kv>,
}

/// All tensors of one format.
#[derive(Debug, Serialize)]
struct Format {
    format: String,
    tensors: usize,
    parameters: u64,
    bytes: u64,
}

/// What one element type of the KV pool comes to.
#[derive(Debug, Serialize)]
struct Kv {
    dtype: String,
    bytes_per_token: u64,
    windows: Vec<Window>,
}

/// Largest window at which every lane can fill its own.
#[derive(Debug, Serialize)]
struct Window {
    lanes: usize,
    tokens: usize,
}

impl Report {
    pub(super) fn new(opened: &OpenedModel) -> Result<Self> {
        let config = &opened.config;
        let tensors = opened.source.file().tensors();
        let mut formats = Vec::new();
        for format in WeightFormat::ALL {
            let of_format = || tensors.iter().filter(move |tensor| tensor.format == format);
            let elements = of_format().map(|tensor| tensor.shape.iter().product::<usize>() as u64);
            let found = Format {
                format: format.name().into(),
                tensors: of_format().count(),
                parameters: elements.sum(),
                bytes: of_format().map(|tensor| tensor.bytes() as u64).sum(),
            };
            formats.extend((found.tensors > 0).then_some(found));
        }
        let packed_weight_bytes = opened.packed_weight_bytes()?;
        let plannable_bytes = memory::plannable_bytes();
        let pool_bytes =
            plannable_bytes.map_or(u64::MAX, |bytes| bytes.saturating_sub(packed_weight_bytes));
        let kv = KvDtype::ALL.map(|dtype| {
            let page_bytes = config.geometry(dtype, false).page_bytes as u64;
            Kv {
                dtype: dtype.name().into(),
                bytes_per_token: page_bytes / PAGE_TOKENS as u64,
                windows: windows(pool_bytes, page_bytes, config.context),
            }
        });
        Ok(Report {
            file: opened.path.display().to_string(),
            architecture: opened
                .source
                .file()
                .text("general.architecture")
                .ok()
                .flatten()
                .unwrap_or("")
                .into(),
            layers: config.layers,
            hidden: config.hidden,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            vocabulary: config.vocabulary,
            native_context: config.context,
            parameters: formats.iter().map(|format| format.parameters).sum(),
            file_weight_bytes: formats.iter().map(|format| format.bytes).sum(),
            formats,
            packed_weight_bytes,
            plannable_bytes,
            kv: kv.into(),
        })
    }
}

fn windows(pool_bytes: u64, page_bytes: u64, native: usize) -> Vec<Window> {
    let pages = pool_bytes.checked_div(page_bytes).unwrap_or(0);
    let pages = usize::try_from(pages).unwrap_or(usize::MAX);
    let window = |lanes: usize| {
        let each = (pages / lanes).min(pages_for(native));
        Window { lanes, tokens: (each * PAGE_TOKENS).min(native) }
    };
    LANES.map(window).into()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.file)?;
        writeln!(
            f,
            "{}: {} layers, hidden {}, {} heads of {} ({} for keys and values), vocabulary {}, \
             context {}",
            self.architecture,
            self.layers,
            self.hidden,
            self.heads,
            self.head_dim,
            self.kv_heads,
            self.vocabulary,
            self.native_context
        )?;
        writeln!(f, "\n{:<8} {:>8} {:>14} {:>14}", "format", "tensors", "parameters", "bytes")?;
        for Format { format, tensors, parameters, bytes } in &self.formats {
            writeln!(f, "{format:<8} {tensors:>8} {parameters:>14} {bytes:>14}")?;
        }
        let tensors: usize = self.formats.iter().map(|format| format.tensors).sum();
        let (parameters, bytes) = (self.parameters, self.file_weight_bytes);
        writeln!(f, "{:<8} {tensors:>8} {parameters:>14} {bytes:>14}", "total")?;
        writeln!(f, "\npacked for this machine: {}", mib(self.packed_weight_bytes))?;
        match self.plannable_bytes {
            Some(bytes) => writeln!(f, "memory to plan with:     {}", mib(bytes))?,
            None => writeln!(f, "memory to plan with:     unknown")?,
        }
        write!(
            f,
            "\nlargest window, if each of 1 to 8 lanes fills its own\n{:<8} {:>12}",
            "KV", "bytes/token"
        )?;
        LANES.iter().try_for_each(|lanes| write!(f, " {:>9}", format!("x {lanes}")))?;
        writeln!(f)?;
        for Kv { dtype, bytes_per_token, windows } in &self.kv {
            write!(f, "{dtype:<8} {bytes_per_token:>12}")?;
            windows.iter().try_for_each(|window| write!(f, " {:>9}", window.tokens))?;
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_share_the_pool_and_end_at_the_native_context() {
        let found = windows(1000, 10, 3000);
        let tokens: Vec<usize> = found.iter().map(|window| window.tokens).collect();
        assert_eq!(tokens, [3000, 3000, 25 * 64, 12 * 64]);
        assert!(windows(u64::MAX, 10, 3000).iter().all(|window| window.tokens == 3000));
        assert!(windows(9, 10, 3000).iter().all(|window| window.tokens == 0));
    }
}
