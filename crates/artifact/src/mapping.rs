//! The one place where a file is mapped into memory.
#![expect(unsafe_code, reason = "mapping a file is unsafe in every API")]

use memmap2::Mmap;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

/// The bytes of a model file, mapped or owned.
#[derive(Debug)]
pub(crate) enum Bytes {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl Bytes {
    /// Maps a file read-only.
    pub fn map(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        // SAFETY: the map is read-only and private to this process. Another process could truncate
        // or rewrite the file while it is mapped; model files are treated as immutable while in
        // use (as by every engine that maps them), and all content is validated as plain bytes, so
        // a rewrite changes numbers, never memory safety; a truncation ends the process by SIGBUS.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Bytes::Mapped(map))
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Owned(bytes) => bytes,
        }
    }
}
