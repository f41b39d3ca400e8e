//! The GGUF container, versions 2 and 3.
//!
//! Layout (GGUF specification of the GGML project): magic, version, tensor count, entry count,
//! metadata entries, tensor descriptions, padding, tensor data. All numbers are little-endian.
//!
//! Parsing allocates at most [`PARSE_BYTES_PER_FILE_BYTE`] times the length of the file's header;
//! tensor data are never copied.

use crate::cursor::Cursor;
use crate::error::GgufError;
use crate::mapping::Bytes;
use crate::write::string;
use laneway_numerics::{WeightFormat, ggml_type_name};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// Alignment of tensor data where the file states none.
pub const ALIGNMENT: usize = 32;

/// Most bytes that parsing allocates for each byte of the file: an empty string takes 8 bytes in
/// the file and 24 in memory, growth of a vector doubles that, and maps have their own overhead.
pub const PARSE_BYTES_PER_FILE_BYTE: usize = 16;

/// Most dimensions of a tensor.
const MAX_DIMENSIONS: u32 = 4;

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Type 0, 2, 4 or 10: an unsigned number of 8, 16, 32 or 64 bits; written as 32 or 64 bits.
    Unsigned(u64),
    /// Type 1, 3, 5 or 11: a signed number of 8, 16, 32 or 64 bits; written as 32 or 64 bits.
    Signed(i64),
    /// Type 6: a number in single precision.
    F32(f32),
    /// Type 12: a number in double precision.
    F64(f64),
    /// Type 7.
    Bool(bool),
    /// Type 8.
    Text(String),
    /// An array of strings.
    Texts(Vec<String>),
    /// An array of unsigned numbers.
    Unsigneds(Vec<u64>),
    /// An array of signed numbers.
    Signeds(Vec<i64>),
    /// An array of floating-point numbers.
    Floats(Vec<f64>),
    /// An array of truth values.
    Bools(Vec<bool>),
}

impl Value {
    /// What the value is, for errors.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Value::Unsigned(_) => "an unsigned number",
            Value::Signed(_) => "a signed number",
            Value::F32(_) | Value::F64(_) => "a floating-point number",
            Value::Bool(_) => "a truth value",
            Value::Text(_) => "a string",
            Value::Texts(_) => "an array of strings",
            Value::Unsigneds(_) => "an array of unsigned numbers",
            Value::Signeds(_) => "an array of signed numbers",
            Value::Floats(_) => "an array of floating-point numbers",
            Value::Bools(_) => "an array of truth values",
        }
    }

    /// Entries, if the value is an array.
    #[must_use]
    pub fn array_len(&self) -> Option<usize> {
        match self {
            Value::Texts(v) => Some(v.len()),
            Value::Unsigneds(v) => Some(v.len()),
            Value::Signeds(v) => Some(v.len()),
            Value::Floats(v) => Some(v.len()),
            Value::Bools(v) => Some(v.len()),
            _ => None,
        }
    }

    pub(crate) fn type_id(&self) -> u32 {
        match self {
            Value::Unsigned(v) if u32::try_from(*v).is_ok() => 4,
            Value::Unsigned(_) => 10,
            Value::Signed(v) if i32::try_from(*v).is_ok() => 5,
            Value::Signed(_) => 11,
            Value::F32(_) => 6,
            Value::F64(_) => 12,
            Value::Bool(_) => 7,
            Value::Text(_) => 8,
            _ => 9,
        }
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        fn head(out: &mut Vec<u8>, kind: u32, length: usize) {
            out.extend(kind.to_le_bytes());
            out.extend((length as u64).to_le_bytes());
        }
        match self {
            Value::Unsigned(v) => match u32::try_from(*v) {
                Ok(v) => out.extend(v.to_le_bytes()),
                Err(_) => out.extend(v.to_le_bytes()),
            },
            Value::Signed(v) => match i32::try_from(*v) {
                Ok(v) => out.extend(v.to_le_bytes()),
                Err(_) => out.extend(v.to_le_bytes()),
            },
            Value::F32(v) => out.extend(v.to_le_bytes()),
            Value::F64(v) => out.extend(v.to_le_bytes()),
            Value::Bool(v) => out.push(u8::from(*v)),
            Value::Text(v) => string(out, v),
            Value::Texts(v) => {
                head(out, 8, v.len());
                v.iter().for_each(|text| string(out, text));
            }
            Value::Unsigneds(v) => {
                head(out, 10, v.len());
                v.iter().for_each(|v| out.extend(v.to_le_bytes()));
            }
            Value::Signeds(v) => {
                head(out, 11, v.len());
                v.iter().for_each(|v| out.extend(v.to_le_bytes()));
            }
            Value::Floats(v) => {
                head(out, 12, v.len());
                v.iter().for_each(|v| out.extend(v.to_le_bytes()));
            }
            Value::Bools(v) => {
                head(out, 7, v.len());
                out.extend(v.iter().map(|v| u8::from(*v)));
            }
        }
    }
}

/// A tensor of a file.
#[derive(Clone, Debug)]
pub struct TensorView<'a> {
    /// Its name.
    pub name: &'a str,
    /// Format of its rows.
    pub format: WeightFormat,
    /// Its shape, outermost dimension first.
    pub shape: &'a [usize],
    /// Its encoded rows.
    pub data: &'a [u8],
}

#[derive(Debug)]
struct Tensor {
    name: String,
    format: WeightFormat,
    shape: Vec<usize>,
    start: usize,
    length: usize,
}

/// A validated GGUF file.
#[derive(Debug)]
pub struct Gguf {
    name: String,
    bytes: Bytes,
    metadata: BTreeMap<String, Value>,
    tensors: Vec<Tensor>,
    by_name: HashMap<String, usize>,
}

impl Gguf {
    /// Maps and validates a file.
    ///
    /// # Errors
    /// See [`GgufError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        let path = path.as_ref();
        let file = path.display().to_string();
        let bytes =
            Bytes::map(path).map_err(|source| GgufError::Io { file: file.clone(), source })?;
        Self::read(bytes, file)
    }

    /// Validates bytes in memory; `name` stands for the file in errors.
    ///
    /// # Errors
    /// See [`GgufError`].
    pub fn parse(bytes: Vec<u8>, name: &str) -> Result<Self, GgufError> {
        Self::read(Bytes::Owned(bytes), name.to_owned())
    }

    fn read(bytes: Bytes, name: String) -> Result<Self, GgufError> {
        let mut cursor = Cursor::new(&bytes, &name);
        let (tensor_count, entry_count) = header(&mut cursor)?;
        let metadata = metadata(&mut cursor, entry_count)?;
        let alignment = alignment(&cursor, &metadata)?;
        let tensors = tensors(&mut cursor, tensor_count, alignment, bytes.len())?;
        let mut by_name = HashMap::with_capacity(tensors.len());
        for (index, tensor) in tensors.iter().enumerate() {
            if by_name.insert(tensor.name.clone(), index).is_some() {
                let detail = "a second tensor of this name";
                return Err(cursor.error_at(cursor.offset(), &tensor.name, detail));
            }
        }
        Ok(Gguf { name, bytes, metadata, tensors, by_name })
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

    /// A metadata value.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// All metadata, by key.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.metadata.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// All tensors, in file order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorView<'_>> {
        self.tensors.iter().map(|tensor| TensorView {
            name: &tensor.name,
            format: tensor.format,
            shape: &tensor.shape,
            data: &self.bytes[tensor.start..tensor.start + tensor.length],
        })
    }

    /// The tensor of this name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let index = *self.by_name.get(name)?;
        self.tensors().nth(index)
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        wanted: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, String> {
        let Some(value) = self.value(key) else { return Ok(None) };
        match read(value) {
            Some(value) => Ok(Some(value)),
            None => Err(format!("{key} is {}, expected {wanted}", value.kind())),
        }
    }

    /// A string; `None` if the key is absent.
    ///
    /// # Errors
    /// What the key holds instead.
    pub fn text(&self, key: &str) -> Result<Option<&str>, String> {
        self.typed(key, "a string", |value| match value {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// A whole number that is not negative; `None` if the key is absent.
    ///
    /// # Errors
    /// What the key holds instead.
    pub fn unsigned(&self, key: &str) -> Result<Option<u64>, String> {
        self.typed(key, "a number not below 0", |value| match value {
            Value::Unsigned(number) => Some(*number),
            Value::Signed(number) => u64::try_from(*number).ok(),
            _ => None,
        })
    }

    /// A floating-point number; `None` if the key is absent.
    ///
    /// # Errors
    /// What the key holds instead.
    pub fn float(&self, key: &str) -> Result<Option<f32>, String> {
        self.typed(key, "a floating-point number", |value| match value {
            Value::F32(number) => Some(*number),
            Value::F64(number) => Some(*number as f32),
            _ => None,
        })
    }

    /// A truth value; `None` if the key is absent.
    ///
    /// # Errors
    /// What the key holds instead.
    pub fn truth(&self, key: &str) -> Result<Option<bool>, String> {
        self.typed(key, "a truth value", |value| match value {
            Value::Bool(truth) => Some(*truth),
            _ => None,
        })
    }

    /// An array of strings; `None` if the key is absent.
    ///
    /// # Errors
    /// What the key holds instead.
    pub fn texts(&self, key: &str) -> Result<Option<&[String]>, String> {
        self.typed(key, "an array of strings", |value| match value {
            Value::Texts(texts) => Some(texts.as_slice()),
            _ => None,
        })
    }

    /// An array of whole numbers; `None` if the key is absent.
    ///
    /// # Errors
    /// What the key holds instead.
    pub fn integers(&self, key: &str) -> Result<Option<Vec<i64>>, String> {
        self.typed(key, "an array of whole numbers", |value| match value {
            Value::Signeds(numbers) => Some(numbers.clone()),
            Value::Unsigneds(numbers) => {
                numbers.iter().map(|&number| i64::try_from(number).ok()).collect()
            }
            _ => None,
        })
    }

    /// Length of an array; `None` if the key is absent.
    ///
    /// # Errors
    /// What the key holds instead.
    pub fn array_len(&self, key: &str) -> Result<Option<usize>, String> {
        self.typed(key, "an array", Value::array_len)
    }
}

fn header(cursor: &mut Cursor<'_>) -> Result<(usize, usize), GgufError> {
    let magic = cursor.array::<4>("magic")?;
    if magic != *b"GGUF" {
        return Err(cursor.error_at(0, "magic", format!("{magic:02x?}, expected \"GGUF\"")));
    }
    let version = cursor.u32("version")?;
    match version {
        2 | 3 => {}
        swapped if matches!(swapped.swap_bytes(), 1..=3) => {
            return Err(cursor.error_at(4, "version", "a big-endian file; convert it first"));
        }
        other => {
            let detail = format!("{other}, versions 2 and 3 can be read");
            return Err(cursor.error_at(4, "version", detail));
        }
    }
    // A tensor takes at least name length, dimension count, one dimension, type and offset.
    let tensors = cursor.count(8 + 4 + 8 + 4 + 8, "tensor count")?;
    let entries = cursor.count(8 + 4 + 1, "metadata count")?;
    Ok((tensors, entries))
}

fn metadata(cursor: &mut Cursor<'_>, count: usize) -> Result<BTreeMap<String, Value>, GgufError> {
    let mut entries = BTreeMap::new();
    for _ in 0..count {
        let at = cursor.offset();
        let key = cursor.string("metadata key")?.to_owned();
        let kind = cursor.u32(&key)?;
        let value = value(cursor, kind, &key)?;
        if entries.insert(key.clone(), value).is_some() {
            return Err(cursor.error_at(at, &key, "a second entry of this key"));
        }
    }
    Ok(entries)
}

fn value(cursor: &mut Cursor<'_>, kind: u32, key: &str) -> Result<Value, GgufError> {
    Ok(match kind {
        0 | 2 | 4 | 10 => Value::Unsigned(unsigned(cursor, kind, key)?),
        1 | 3 | 5 | 11 => Value::Signed(signed(cursor, kind, key)?),
        6 => Value::F32(f32::from_le_bytes(cursor.array(key)?)),
        12 => Value::F64(f64::from_le_bytes(cursor.array(key)?)),
        7 => Value::Bool(truth(cursor, key)?),
        8 => Value::Text(cursor.string(key)?.to_owned()),
        9 => array(cursor, key)?,
        other => {
            let detail = format!("unknown value type {other}");
            return Err(cursor.error_at(cursor.offset(), key, detail));
        }
    })
}

fn unsigned(cursor: &mut Cursor<'_>, kind: u32, key: &str) -> Result<u64, GgufError> {
    Ok(match kind {
        0 => u64::from(cursor.array::<1>(key)?[0]),
        2 => u64::from(u16::from_le_bytes(cursor.array(key)?)),
        4 => u64::from(cursor.u32(key)?),
        _ => cursor.u64(key)?,
    })
}

fn signed(cursor: &mut Cursor<'_>, kind: u32, key: &str) -> Result<i64, GgufError> {
    Ok(match kind {
        1 => i64::from(i8::from_le_bytes(cursor.array(key)?)),
        3 => i64::from(i16::from_le_bytes(cursor.array(key)?)),
        5 => i64::from(i32::from_le_bytes(cursor.array(key)?)),
        _ => i64::from_le_bytes(cursor.array(key)?),
    })
}

fn truth(cursor: &mut Cursor<'_>, key: &str) -> Result<bool, GgufError> {
    let at = cursor.offset();
    match cursor.array::<1>(key)?[0] {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(cursor.error_at(at, key, format!("truth value {other}, expected 0 or 1"))),
    }
}

fn array(cursor: &mut Cursor<'_>, key: &str) -> Result<Value, GgufError> {
    let at = cursor.offset();
    let kind = cursor.u32(key)?;
    let least_bytes = match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        8 | 10..=12 => 8,
        9 => return Err(cursor.error_at(at, key, "an array of arrays")),
        other => return Err(cursor.error_at(at, key, format!("unknown element type {other}"))),
    };
    let count = cursor.count(least_bytes, key)?;
    Ok(match kind {
        0 | 2 | 4 | 10 => Value::Unsigneds(
            (0..count).map(|_| unsigned(cursor, kind, key)).collect::<Result<_, _>>()?,
        ),
        1 | 3 | 5 | 11 => {
            Value::Signeds((0..count).map(|_| signed(cursor, kind, key)).collect::<Result<_, _>>()?)
        }
        6 => Value::Floats(
            (0..count)
                .map(|_| Ok(f64::from(f32::from_le_bytes(cursor.array(key)?))))
                .collect::<Result<_, GgufError>>()?,
        ),
        12 => Value::Floats(
            (0..count)
                .map(|_| Ok(f64::from_le_bytes(cursor.array(key)?)))
                .collect::<Result<_, GgufError>>()?,
        ),
        7 => Value::Bools((0..count).map(|_| truth(cursor, key)).collect::<Result<_, _>>()?),
        _ => Value::Texts(
            (0..count)
                .map(|_| Ok(cursor.string(key)?.to_owned()))
                .collect::<Result<_, GgufError>>()?,
        ),
    })
}

fn alignment(cursor: &Cursor<'_>, metadata: &BTreeMap<String, Value>) -> Result<usize, GgufError> {
    const KEY: &str = "general.alignment";
    match metadata.get(KEY) {
        None => Ok(ALIGNMENT),
        Some(Value::Unsigned(n)) if n.is_power_of_two() && (8..=1 << 20).contains(n) => {
            Ok(*n as usize)
        }
        Some(other) => {
            let detail = format!("{other:?}, expected a power of two from 8 to 1048576");
            Err(cursor.error_at(cursor.offset(), KEY, detail))
        }
    }
}

fn tensors(
    cursor: &mut Cursor<'_>,
    count: usize,
    alignment: usize,
    file_bytes: usize,
) -> Result<Vec<Tensor>, GgufError> {
    let mut tensors = Vec::with_capacity(count);
    let mut unsupported: BTreeMap<u32, String> = BTreeMap::new();
    for _ in 0..count {
        let name = cursor.string("tensor name")?.to_owned();
        let at = cursor.offset();
        let dimensions = cursor.u32(&name)?;
        if !(1..=MAX_DIMENSIONS).contains(&dimensions) {
            let detail = format!("{dimensions} dimensions, expected 1 to {MAX_DIMENSIONS}");
            return Err(cursor.error_at(at, &name, detail));
        }
        let mut shape = Vec::with_capacity(dimensions as usize);
        for _ in 0..dimensions {
            let at = cursor.offset();
            let size = cursor.u64(&name)?;
            match usize::try_from(size) {
                Ok(size) if size > 0 => shape.push(size),
                _ => return Err(cursor.error_at(at, &name, format!("a dimension of {size}"))),
            }
        }
        shape.reverse();
        let kind = cursor.u32(&name)?;
        let offset_at = cursor.offset();
        let offset = cursor.u64(&name)?;
        let Ok(format) = WeightFormat::from_ggml_type(kind) else {
            unsupported.entry(kind).or_insert(name);
            continue;
        };
        let (cols, outer) = match shape.split_last() {
            Some((&cols, outer)) => (cols, outer),
            None => (0, &[][..]),
        };
        let rows = outer.iter().try_fold(1usize, |rows, &n| rows.checked_mul(n));
        let rows = rows.ok_or_else(|| cursor.error_at(at, &name, "more rows than can be"))?;
        let length =
            format.bytes(rows, cols).map_err(|e| cursor.error_at(at, &name, e.to_string()))?;
        let start = match usize::try_from(offset) {
            Ok(start) if start.is_multiple_of(alignment) => start,
            _ => {
                let detail = format!("offset {offset} is no multiple of {alignment}");
                return Err(cursor.error_at(offset_at, &name, detail));
            }
        };
        tensors.push(Tensor { name, format, shape, start, length });
    }
    if !unsupported.is_empty() {
        let found: Vec<String> = unsupported
            .iter()
            .map(|(&kind, name)| match ggml_type_name(kind) {
                Some(format) => format!("{format} (type {kind}, {name})"),
                None => format!("type {kind} ({name})"),
            })
            .collect();
        let file = cursor.file().to_owned();
        let supported = WeightFormat::name_list();
        return Err(GgufError::Formats { file, found: found.join(", "), supported });
    }
    place(cursor, &mut tensors, alignment, file_bytes)?;
    Ok(tensors)
}

/// Turns offsets within the data section into offsets within the file, and checks that tensors lie
/// in the file and beside each other.
fn place(
    cursor: &Cursor<'_>,
    tensors: &mut [Tensor],
    alignment: usize,
    file_bytes: usize,
) -> Result<(), GgufError> {
    let data = cursor.offset().next_multiple_of(alignment);
    for tensor in tensors.iter_mut() {
        let end = data.checked_add(tensor.start).and_then(|s| s.checked_add(tensor.length));
        if end.is_none_or(|end| end > file_bytes) {
            let detail = format!(
                "{} bytes at {} of the data section, which starts at byte {data} of {file_bytes}",
                tensor.length, tensor.start
            );
            return Err(cursor.error_at(cursor.offset(), &tensor.name, detail));
        }
        tensor.start += data;
    }
    let mut order: Vec<&Tensor> = tensors.iter().collect();
    order.sort_by_key(|tensor| tensor.start);
    for pair in order.windows(2) {
        if pair[0].start + pair[0].length > pair[1].start {
            let detail = format!("overlaps {}", pair[1].name);
            return Err(cursor.error_at(pair[0].start, &pair[0].name, detail));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
