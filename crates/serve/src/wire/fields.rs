//! Reads the fields of a JSON object one by one, with errors that name them.

use super::error::ApiError;
use serde_json::{Map, Value};

/// The fields of one object of a request; `null` counts as absent.
#[derive(Debug)]
pub struct Fields {
    /// Where the object stands: empty for the body, else like `messages[2]`.
    path: String,
    fields: Map<String, Value>,
}

impl Fields {
    /// The fields of the body itself.
    ///
    /// # Errors
    /// If the body is not an object.
    pub fn of_body(body: Value) -> Result<Self, ApiError> {
        match body {
            Value::Object(fields) => Ok(Self { path: String::new(), fields }),
            other => Err(ApiError::InvalidJson(format!(
                "expected an object at the top, found {}",
                kind(&other)
            ))),
        }
    }

    /// The fields of an object further inside.
    ///
    /// # Errors
    /// If `value` is not an object.
    pub fn at(path: String, value: Value) -> Result<Self, ApiError> {
        match value {
            Value::Object(fields) => Ok(Self { path, fields }),
            other => Err(wrong_type(path, "an object", &other)),
        }
    }

    /// Full name of a field, for errors.
    #[must_use]
    pub fn name(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }

    /// Takes a field as it is.
    pub fn take(&mut self, field: &str) -> Option<Value> {
        // Order is of no interest once fields are taken one by one.
        self.fields.swap_remove(field).filter(|value| !value.is_null())
    }

    /// Takes a string.
    ///
    /// # Errors
    /// If the field is something else.
    pub fn string(&mut self, field: &str) -> Result<Option<String>, ApiError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong_type(self.name(field), "a string", &other)),
        }
    }

    /// Takes a boolean.
    ///
    /// # Errors
    /// If the field is something else.
    pub fn boolean(&mut self, field: &str) -> Result<Option<bool>, ApiError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(wrong_type(self.name(field), "a boolean", &other)),
        }
    }

    /// Takes an array.
    ///
    /// # Errors
    /// If the field is something else.
    pub fn array(&mut self, field: &str) -> Result<Option<Vec<Value>>, ApiError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(wrong_type(self.name(field), "an array", &other)),
        }
    }

    /// Takes an object.
    ///
    /// # Errors
    /// If the field is something else.
    pub fn object(&mut self, field: &str) -> Result<Option<Fields>, ApiError> {
        let name = self.name(field);
        self.take(field).map(|value| Self::at(name, value)).transpose()
    }

    /// Takes a whole number; `5.0` counts as one.
    ///
    /// # Errors
    /// If the field is something else or below `low`.
    pub fn integer(&mut self, field: &str, low: i64) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.take(field) else { return Ok(None) };
        let name = self.name(field);
        let integer = integer(&value).ok_or_else(|| wrong_type(&*name, "an integer", &value))?;
        if integer < low {
            return Err(ApiError::invalid(
                name,
                format!("is {integer}, but must be at least {low}"),
            ));
        }
        Ok(Some(integer))
    }

    /// Takes a count: a whole number from 0 on.
    ///
    /// # Errors
    /// If the field is something else.
    pub fn count(&mut self, field: &str) -> Result<Option<usize>, ApiError> {
        let count = self.integer(field, 0)?;
        Ok(count.map(|count| usize::try_from(count).unwrap_or(usize::MAX)))
    }

    /// Takes a number.
    ///
    /// # Errors
    /// If the field is something else.
    pub fn number(&mut self, field: &str) -> Result<Option<f64>, ApiError> {
        match self.take(field) {
            None => Ok(None),
            Some(value) => match value.as_f64() {
                Some(number) => Ok(Some(number)),
                None => Err(wrong_type(self.name(field), "a number", &value)),
            },
        }
    }

    /// The fields that are left, in no particular order.
    pub fn into_rest(self) -> impl Iterator<Item = (String, Value)> {
        self.fields.into_iter()
    }
}

/// A whole number, however it is spelled; beyond 64 bits it saturates.
pub fn integer(value: &Value) -> Option<i64> {
    if let Some(integer) = value.as_i64() {
        return Some(integer);
    }
    if value.is_u64() {
        return Some(i64::MAX);
    }
    // `as` saturates, which is what a huge count should do.
    value.as_f64().filter(|number| number.fract() == 0.0).map(|number| number as i64)
}

/// The error for a field of the wrong JSON type.
pub fn wrong_type(param: impl Into<String>, expected: &str, found: &Value) -> ApiError {
    let found = match found {
        Value::Number(number) => number.to_string(),
        other => kind(other).to_owned(),
    };
    ApiError::invalid(param, format!("must be {expected}, found {found}"))
}

/// Name of a value's JSON type, with its article.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
