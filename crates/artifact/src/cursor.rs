//! A bounds-checked reader over the bytes of a file.

use crate::GgufError;

/// Reads little-endian fields from front to back, knowing the file's name for errors.
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    offset: usize,
    file: &'a str,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8], file: &'a str) -> Self {
        Cursor { bytes, offset: 0, file }
    }

    pub fn file(&self) -> &str {
        self.file
    }

    pub fn offset(&self) -> usize {
        self.offset
    }

    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.offset
    }

    /// An error about the field that starts at `offset`.
    pub fn error_at(&self, offset: usize, field: &str, detail: impl Into<String>) -> GgufError {
        GgufError::Malformed {
            file: self.file.to_owned(),
            field: field.to_owned(),
            offset,
            detail: detail.into(),
        }
    }

    pub fn take(&mut self, length: usize, field: &str) -> Result<&'a [u8], GgufError> {
        let rest = self.remaining();
        if length > rest {
            let detail = format!("{length} bytes expected, {rest} left in the file");
            return Err(self.error_at(self.offset, field, detail));
        }
        let taken = &self.bytes[self.offset..self.offset + length];
        self.offset += length;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self, field: &str) -> Result<[u8; N], GgufError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N, field)?);
        Ok(out)
    }

    pub fn u32(&mut self, field: &str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    pub fn u64(&mut self, field: &str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    /// A 64-bit count of things that each take at least `least_bytes` of the rest of the file.
    pub fn count(&mut self, least_bytes: usize, field: &str) -> Result<usize, GgufError> {
        let at = self.offset;
        let count = self.u64(field)?;
        let most = self.remaining() / least_bytes;
        match usize::try_from(count) {
            Ok(count) if count <= most => Ok(count),
            _ => Err(self.error_at(at, field, format!("{count}, the file has room for {most}"))),
        }
    }

    pub fn string(&mut self, field: &str) -> Result<&'a str, GgufError> {
        let length = self.count(1, field)?;
        let at = self.offset;
        let bytes = self.take(length, field)?;
        std::str::from_utf8(bytes).map_err(|e| self.error_at(at, field, e.to_string()))
    }
}
