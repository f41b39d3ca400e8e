//! Chat messages: checked, and brought to the one form that chat templates are written for.
//!
//! Clients spell the same conversation in several ways (a string or an array of text parts,
//! `developer` or `system`, arguments as text or as an object). One canonical form keeps the
//! rendered prompt, and with it the reusable prefix, the same for all spellings.

use super::error::ApiError;
use super::fields::{Fields, wrong_type};
use serde_json::{Map, Value, json};

/// Checks `messages` and returns them in canonical form.
///
/// # Errors
/// The first fault, by the place of the field.
pub fn read(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let Some(items) = fields.array("messages")? else {
        return Err(ApiError::MissingField { param: "messages".to_owned() });
    };
    if items.is_empty() {
        return Err(ApiError::invalid("messages", "must hold at least one message"));
    }
    let path = |index| format!("messages[{index}]");
    items.into_iter().enumerate().map(|(index, item)| message(path(index), item)).collect()
}

fn message(path: String, item: Value) -> Result<Value, ApiError> {
    let mut fields = Fields::at(path, item)?;
    let Some(role) = fields.string("role")? else {
        return Err(ApiError::MissingField { param: fields.name("role") });
    };
    let role = match role.as_str() {
        // The newer name of the same thing; templates know only the older one.
        "developer" => "system",
        "system" | "user" | "assistant" | "tool" => &role,
        _ => {
            let problem =
                format!("is `{role}`, allowed are system, developer, user, assistant and tool");
            return Err(ApiError::invalid(fields.name("role"), problem));
        }
    };
    let mut message = Map::new();
    message.insert("role".to_owned(), json!(role));
    let content = content(&mut fields)?;
    let mut content_optional = false;
    if role == "assistant" {
        let reasoning = fields.string("reasoning_content")?;
        if let Some(reasoning) = reasoning.or(fields.string("reasoning")?) {
            message.insert("reasoning_content".to_owned(), json!(reasoning));
            content_optional = true;
        }
        let calls = tool_calls(&mut fields)?;
        if !calls.is_empty() {
            message.insert("tool_calls".to_owned(), json!(calls));
            content_optional = true;
        }
    }
    let Some(content) = content.or(content_optional.then(String::new)) else {
        return Err(ApiError::MissingField { param: fields.name("content") });
    };
    message.insert("content".to_owned(), json!(content));
    for field in ["name", "tool_call_id"] {
        if let Some(text) = fields.string(field)? {
            message.insert(field.to_owned(), json!(text));
        }
    }
    Ok(Value::Object(message))
}

/// The text of a message; text parts are joined by line breaks.
fn content(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let name = fields.name("content");
    let parts = match fields.take("content") {
        None => return Ok(None),
        Some(Value::String(text)) => return Ok(Some(text)),
        Some(Value::Array(parts)) => parts,
        Some(other) => return Err(wrong_type(name, "a string or an array of parts", &other)),
    };
    let mut texts = Vec::with_capacity(parts.len());
    for (index, part) in parts.into_iter().enumerate() {
        let mut part = Fields::at(format!("{name}[{index}]"), part)?;
        let kind = part.string("type")?;
        let field = match kind.as_deref() {
            Some("text" | "input_text" | "output_text") => "text",
            Some("refusal") => "refusal",
            Some(_) => return Err(ApiError::unsupported(part.name("type"), "only text is read")),
            None => return Err(ApiError::MissingField { param: part.name("type") }),
        };
        match part.string(field)? {
            Some(text) => texts.push(text),
            None => return Err(ApiError::MissingField { param: part.name(field) }),
        }
    }
    Ok(Some(texts.join("\n")))
}

fn tool_calls(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let path = fields.name("tool_calls");
    let calls = fields.array("tool_calls")?.unwrap_or_default();
    let path = |index| format!("{path}[{index}]");
    calls.into_iter().enumerate().map(|(index, call)| tool_call(path(index), call)).collect()
}

fn tool_call(path: String, call: Value) -> Result<Value, ApiError> {
    let mut call = Fields::at(path, call)?;
    let id = call.string("id")?.unwrap_or_default();
    let Some(mut function) = call.object("function")? else {
        return Err(ApiError::MissingField { param: call.name("function") });
    };
    let name = match function.string("name")? {
        Some(name) if !name.is_empty() => name,
        _ => return Err(ApiError::MissingField { param: function.name("name") }),
    };
    let arguments = arguments(function.take("arguments"));
    Ok(json!({
        "id": id, "type": "function", "function": { "name": name, "arguments": arguments },
    }))
}

/// Arguments as the object that templates iterate over.
///
/// A model may have produced something else once, and its client sends that back on every turn;
/// refusing it would end the session for good, so what is no object is kept as one raw value.
fn arguments(value: Option<Value>) -> Value {
    let parsed = match value {
        Some(Value::String(text)) if text.trim().is_empty() => Value::Null,
        Some(Value::String(text)) => serde_json::from_str(&text).unwrap_or(Value::String(text)),
        Some(other) => other,
        None => Value::Null,
    };
    match parsed {
        Value::Object(_) => parsed,
        Value::Null => json!({}),
        other => json!({ "raw": other }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(messages: &Value, expected: &Value) {
        let body = json!({ "messages": messages });
        let read = read(&mut Fields::of_body(body).unwrap());
        match read {
            Ok(messages) => assert_eq!(&json!(messages), expected),
            Err(error) => assert_eq!(&json!(error.param()), expected, "{error}"),
        }
    }

    #[test]
    fn spellings_of_one_conversation_are_one() {
        let canonical = json!([
            {"role": "system", "content": "s"}, {"role": "user", "content": "a\nb"},
        ]);
        check(&canonical, &canonical);
        check(
            &json!([
                {"content": [{"type": "text", "text": "s"}], "role": "developer", "extra": 1},
                {"role": "user", "content": [
                    {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
                    {"type": "input_text", "text": "b"},
                ]},
            ]),
            &canonical,
        );
    }

    #[test]
    fn rough_histories_are_read() {
        let call = |arguments: Value| {
            json!([{"role": "assistant", "content": null, "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}},
            ]}])
        };
        let expect = |arguments: Value| {
            json!([{"role": "assistant", "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}},
            ], "content": ""}])
        };
        for (given, wanted) in [
            (json!(r#"{"x":1}"#), json!({"x": 1})),
            (json!({"x": 1}), json!({"x": 1})),
            (json!(""), json!({})),
            (json!("null"), json!({})),
            (json!(null), json!({})),
            (json!("{"), json!({"raw": "{"})),
            (json!("[1]"), json!({"raw": [1]})),
        ] {
            check(&call(given), &expect(wanted));
        }
        let loose = json!([
            {"role": "tool", "content": "x", "tool_call_id": "nobody asked"},
            {"role": "user", "content": ""},
            {"role": "user", "content": "again"},
        ]);
        check(&loose, &loose);
    }

    #[test]
    fn faults_name_their_place() {
        let ok = json!({"role": "user", "content": "x"});
        for (message, place) in [
            (json!("x"), "messages[1]"),
            (json!({"content": "x"}), "messages[1].role"),
            (json!({"role": 5, "content": "x"}), "messages[1].role"),
            (json!({"role": "robot", "content": "x"}), "messages[1].role"),
            (json!({"role": "user"}), "messages[1].content"),
            (json!({"role": "user", "content": null}), "messages[1].content"),
            (json!({"role": "assistant", "tool_calls": []}), "messages[1].content"),
            (json!({"role": "user", "content": 5}), "messages[1].content"),
            (json!({"role": "user", "content": ["x"]}), "messages[1].content[0]"),
            (json!({"role": "user", "content": [{"text": "x"}]}), "messages[1].content[0].type"),
            (json!({"role": "user", "content": [{"type": "text"}]}), "messages[1].content[0].text"),
            (
                json!({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}),
                "messages[1].content[0].type",
            ),
            (
                json!({"role": "assistant", "tool_calls": [{"function": {}}]}),
                "messages[1].tool_calls[0].function.name",
            ),
            (json!({"role": "assistant", "tool_calls": {}}), "messages[1].tool_calls"),
            (
                json!({"role": "assistant", "tool_calls": [{}]}),
                "messages[1].tool_calls[0].function",
            ),
        ] {
            check(&json!([ok, message]), &json!(place));
        }
        check(&json!([]), &json!("messages"));
        check(&json!({}), &json!("messages"));
        check(&json!(null), &json!("messages"));
    }
}
