//! Strict JSON: unique keys, bounded depth, a bounded number of values.
//!
//! `serde_json` keeps the last of two equal keys and spends two orders of magnitude more memory
//! than the text on `[0,0,0,…]`. Both matter at a public edge: which of two `max_tokens` was
//! meant cannot be known, and memory must stay a small multiple of the body limit.

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::cell::Cell;
use std::fmt;

/// Body bytes per permitted JSON value; see [`values_max`].
const BYTES_PER_VALUE: usize = 32;
/// Values that a body may always hold, however small the body limit is.
const VALUES_FLOOR: usize = 4096;

/// Most JSON values that a body may consist of under a body limit.
///
/// A value costs at most about 400 bytes (an object entry, its key and the slack of a growing
/// table), so a parsed body stays within about 13 times the limit plus its strings. The default
/// limit of 32 MiB permits a million values: enough for a prompt of a million token ids.
#[must_use]
pub fn values_max(body_limit_bytes: usize) -> usize {
    (body_limit_bytes / BYTES_PER_VALUE).max(VALUES_FLOOR)
}

/// Parses exactly one JSON value.
///
/// # Errors
/// On a syntax error, invalid UTF-8, a key given twice, more than 127 levels of nesting, or more
/// than `values_max` values.
pub fn parse(text: &[u8], values_max: usize) -> Result<Value, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let left = Cell::new(values_max);
    let value = Strict { left: &left }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

#[derive(Clone, Copy)]
struct Strict<'a> {
    left: &'a Cell<usize>,
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self.left.get().checked_sub(1) {
            Some(left) => self.left.set(left),
            None => return Err(D::Error::custom("too many values")),
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            array.push(item);
        }
        Ok(Value::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if object.contains_key(&key) {
                return Err(A::Error::custom(format_args!("the key `{key}` is given twice")));
            }
            let value = entries.next_value_seed(self)?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &[u8]) -> String {
        parse(text, 1000).expect_err("must be refused").to_string()
    }

    #[test]
    fn values_round_trip_in_their_order() {
        let text = r#"{"z":[1,-2,0.5,true,null,"é\n"],"a":{"b":{}}}"#;
        assert_eq!(parse(text.as_bytes(), 100).unwrap().to_string(), text);
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        assert!(error(br#"{"a":1,"b":{"c":1,"c":2}}"#).contains("`c` is given twice"));
        assert!(error(br#"{"a":1} {"#).contains("trailing"));
        assert!(error(b"").contains("EOF"));
        assert!(error(b"\"\xff\xfe\"").contains("unicode"));
        assert!(error(br#"{"a":1e999}"#).contains("out of range"));
        assert!(error("[".repeat(200).as_bytes()).contains("recursion limit"));
        assert!(error(format!("[{}0]", "0,".repeat(1000)).as_bytes()).contains("too many values"));
    }
}
