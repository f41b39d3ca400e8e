//! The safetensors container.
//!
//! Layout (format description of the safetensors project): the header's length as 8 bytes,
//! little-endian; the header, a JSON object from names to `{dtype, shape, data_offsets}` and perhaps
//! `__metadata__`; tensor data, which the offsets cover without gap or overlap.
//!
//! The project's own reader is not used: its errors do not name the tensor or the numbers, and it
//! takes the last of two entries of one name. Parsing allocates at most
//! [`PARSE_BYTES_PER_HEADER_BYTE`] times the length of the header; tensor data are never copied.

use super::{Dtype, HfError};
use crate::mapping::Bytes;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// Most bytes of a header, as the format has it.
pub const HEADER_BYTES_MAX: usize = 100_000_000;

/// Most bytes that parsing allocates for each byte of the header: a dimension takes 2 bytes in the
/// file and 8 in memory, and growth of a vector holds the old and the doubled one.
pub const PARSE_BYTES_PER_HEADER_BYTE: usize = 32;

/// Most dimensions of a tensor.
const DIMENSIONS_MAX: usize = 8;

/// Bytes of the header's length.
const LENGTH_BYTES: usize = 8;

/// A tensor of a file.
#[derive(Clone, Copy, Debug)]
pub struct SafetensorView<'a> {
    /// Its name.
    pub name: &'a str,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its shape, outermost dimension first.
    pub shape: &'a [usize],
    /// Its elements, row-major and little-endian.
    pub data: &'a [u8],
}

#[derive(Debug)]
struct Tensor {
    dtype: Dtype,
    shape: Vec<usize>,
    start: usize,
    end: usize,
}

/// A validated safetensors file.
#[derive(Debug)]
pub struct Safetensors {
    name: String,
    bytes: Bytes,
    tensors: BTreeMap<String, Tensor>,
}

impl Safetensors {
    /// Maps and validates a file.
    ///
    /// # Errors
    /// See [`HfError`].
    pub fn open(path: &Path) -> Result<Self, HfError> {
        let file = path.display().to_string();
        let bytes =
            Bytes::map(path).map_err(|source| HfError::Io { file: file.clone(), source })?;
        Self::read(bytes, file)
    }

    /// Validates bytes in memory; `name` stands for the file in errors.
    ///
    /// # Errors
    /// See [`HfError`].
    pub fn parse(bytes: Vec<u8>, name: &str) -> Result<Self, HfError> {
        Self::read(Bytes::Owned(bytes), name.to_owned())
    }

    fn read(bytes: Bytes, name: String) -> Result<Self, HfError> {
        let (header, data_start) = header(&bytes, &name)?;
        let data_bytes = bytes.len() - data_start;
        let mut tensors = BTreeMap::new();
        for (key, entry) in header.0 {
            let tensor = tensor(&name, &key, entry, data_start, data_bytes)?;
            if tensors.contains_key(&key) {
                return Err(HfError::malformed(&name, &key, "a second tensor of this name"));
            }
            tensors.insert(key, tensor);
        }
        cover(&name, &tensors, data_start, bytes.len())?;
        Ok(Safetensors { name, bytes, tensors })
    }

    /// The file's name, as errors give it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of the whole file.
    #[must_use]
    pub fn file_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// All tensors, by name.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = SafetensorView<'_>> {
        self.tensors.iter().map(|(name, tensor)| self.view(name, tensor))
    }

    /// The tensor of this name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<SafetensorView<'_>> {
        self.tensors.get_key_value(name).map(|(name, tensor)| self.view(name, tensor))
    }

    fn view<'a>(&'a self, name: &'a str, tensor: &'a Tensor) -> SafetensorView<'a> {
        let &Tensor { dtype, ref shape, start, end } = tensor;
        SafetensorView { name, dtype, shape, data: &self.bytes[start..end] }
    }
}

/// The entries of a header in file order, repeated names included.
struct Header(Vec<(String, Entry)>);

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (usize, usize),
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object from names to tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        entries.push((name, map.next_value()?));
                    }
                }
                Ok(Header(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// The header, and where the data begin.
fn header(bytes: &[u8], file: &str) -> Result<(Header, usize), HfError> {
    let error = |detail: String| HfError::malformed(file, "header", detail);
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
        return Err(error(format!("{} bytes, expected at least {LENGTH_BYTES}", bytes.len())));
    };
    let length = u64::from_le_bytes(*length);
    let most = rest.len().min(HEADER_BYTES_MAX);
    let header = match usize::try_from(length) {
        Ok(length) if length <= most => &rest[..length],
        _ => return Err(error(format!("{length} bytes long, expected at most {most}"))),
    };
    let data_start = LENGTH_BYTES + header.len();
    serde_json::from_slice(header).map(|h| (h, data_start)).map_err(|e| error(e.to_string()))
}

/// Checks one entry by itself.
fn tensor(
    file: &str,
    name: &str,
    entry: Entry,
    data_start: usize,
    data_bytes: usize,
) -> Result<Tensor, HfError> {
    let error = |detail: String| HfError::malformed(file, name, detail);
    let Entry { dtype, shape, data_offsets: (start, end) } = entry;
    let Some(dtype) = Dtype::named(&dtype) else {
        let known = Dtype::ALL.map(Dtype::name).join(", ");
        return Err(error(format!("dtype {dtype:?}, expected one of {known}")));
    };
    if shape.len() > DIMENSIONS_MAX {
        let found = shape.len();
        return Err(error(format!("{found} dimensions, expected at most {DIMENSIONS_MAX}")));
    }
    if start > end || end > data_bytes {
        return Err(error(format!("data at {start}..{end} of {data_bytes} bytes")));
    }
    let bytes = shape.iter().try_fold(dtype.bytes(), |bytes, &n| bytes.checked_mul(n));
    if bytes != Some(end - start) {
        let (found, dtype) = (end - start, dtype.name());
        return Err(error(format!("{found} bytes for {dtype} of shape {shape:?}")));
    }
    Ok(Tensor { dtype, shape, start: data_start + start, end: data_start + end })
}

/// Checks that tensors lie beside each other and fill the file.
fn cover(
    file: &str,
    tensors: &BTreeMap<String, Tensor>,
    data_start: usize,
    file_bytes: usize,
) -> Result<(), HfError> {
    let mut order: Vec<_> = tensors.iter().collect();
    order.sort_by_key(|(_, tensor)| (tensor.start, tensor.end));
    let mut covered = data_start;
    for (name, tensor) in order {
        if tensor.start != covered {
            let detail = format!(
                "data begin at byte {}, expected {covered}, where those before it end",
                tensor.start
            );
            return Err(HfError::malformed(file, name, detail));
        }
        covered = tensor.end;
    }
    if covered != file_bytes {
        let detail = format!("tensors end at byte {covered}, the file at byte {file_bytes}");
        return Err(HfError::malformed(file, "data", detail));
    }
    Ok(())
}
