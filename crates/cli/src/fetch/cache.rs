//! Where fetched models live, and whether there is room for one more.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// The cache folder: `LANEWAY_CACHE`, or `laneway` in the user's cache folder.
///
/// # Errors
/// When no variable names a place.
pub fn cache_folder() -> Result<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let folder = if let Some(folder) = variable("LANEWAY_CACHE") {
        PathBuf::from(folder)
    } else if let Some(folder) = variable("XDG_CACHE_HOME") {
        PathBuf::from(folder).join("laneway")
    } else if let Some(home) = variable("HOME") {
        PathBuf::from(home).join(".cache/laneway")
    } else {
        bail!(
            "no place for models: none of LANEWAY_CACHE, XDG_CACHE_HOME and HOME is set. Set \
             LANEWAY_CACHE, or fetch with --dir"
        );
    };
    std::path::absolute(&folder).with_context(|| format!("bad cache folder {}", folder.display()))
}

/// Creates `folder` if it is not there.
pub(super) fn ensure_writable(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| {
        format!(
            "cannot create the folder {}. Set LANEWAY_CACHE to a writable place, or fetch with --dir",
            folder.display()
        )
    })
}

/// Checks that `folder` has room for `needed` bytes.
pub(super) fn ensure_space(folder: &Path, needed: u64) -> Result<()> {
    // Some file systems do not tell; then the write itself finds out.
    let Ok(stat) = rustix::fs::statvfs(folder) else { return Ok(()) };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    if stat.f_blocks > 0 && free < needed {
        bail!(
            "no space: {} has {} MB free, {} MB are needed. Free some, set LANEWAY_CACHE to \
             another place, or fetch with --dir",
            folder.display(),
            free / 1_000_000,
            needed.div_ceil(1_000_000)
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_space_is_told_with_numbers() {
        let folder = tempfile::tempdir().unwrap();
        ensure_space(folder.path(), 1).unwrap();
        let error = ensure_space(folder.path(), u64::MAX).unwrap_err().to_string();
        assert!(error.contains("MB free, 18446744073710 MB are needed"), "{error}");
    }

    #[test]
    fn a_folder_below_a_file_is_refused_with_the_way_out() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = ensure_writable(&file.path().join("models")).unwrap_err().to_string();
        assert!(error.contains("Set LANEWAY_CACHE"), "{error}");
    }
}
