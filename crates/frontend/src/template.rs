//! Chat templates: Jinja2 as Hugging Face models write it, rendered by minijinja.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, context};
use serde::Serialize;
use std::time::{SystemTime, UNIX_EPOCH};

/// Steps that rendering may take: far beyond any real conversation, far below a hang.
const FUEL: u64 = 50_000_000;

/// Name under which the template is held.
const NAME: &str = "chat";

/// Why a conversation could not be rendered.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The file's metadata are unusable.
    #[error("chat template: {0}")]
    Metadata(String),
    /// The template refused the conversation by its own check.
    #[error("the model's chat template refuses the conversation: {0}")]
    Refused(String),
    /// The template is broken, or uses what is not supported.
    #[error("chat template, line {line}: {detail}")]
    Broken {
        /// Line of the template, 0 if unknown.
        line: usize,
        /// What went wrong.
        detail: String,
    },
}

impl From<Error> for TemplateError {
    fn from(error: Error) -> Self {
        if error.kind() == ErrorKind::InvalidOperation
            && let Some(detail) = error.detail()
            && let Some(reason) = detail.strip_prefix(RAISED)
        {
            return TemplateError::Refused(reason.to_owned());
        }
        TemplateError::Broken { line: error.line().unwrap_or(0), detail: error.to_string() }
    }
}

/// Marks errors that a template raised on purpose.
const RAISED: &str = "raised: ";

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Compiles a template; `bos` and `eos` are the texts it may name.
    ///
    /// # Errors
    /// A template that cannot be compiled.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self, TemplateError> {
        let mut environment = Environment::new();
        // As Hugging Face's own renderer sets Jinja2 up.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(TemplateError::from)?);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_fuel(Some(FUEL));
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |reason: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{reason}")))
        });
        environment.add_function("strftime_now", |format: String| strftime(&format, now()));
        environment.add_filter("tojson", tojson);
        environment.add_template_owned(NAME, source.to_owned())?;
        Ok(ChatTemplate { environment, bos: bos.to_owned(), eos: eos.to_owned() })
    }

    /// Renders a conversation up to the place where the assistant begins to answer.
    ///
    /// # Errors
    /// See [`TemplateError`].
    pub fn render(&self, messages: &[serde_json::Value]) -> Result<String, TemplateError> {
        let template = self.environment.get_template(NAME)?;
        Ok(template.render(context! {
            messages => Value::from(Serde(messages)),
            add_generation_prompt => true,
            bos_token => &self.bos,
            eos_token => &self.eos,
        })?)
    }
}

/// JSON as Python's `json.dumps(value, ensure_ascii=False)` writes it.
#[expect(clippy::needless_pass_by_value, reason = "filters take their options by value")]
fn tojson(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Templates name these with the values that hold here anyway.
    let _: Option<bool> = options.get("ensure_ascii")?;
    let _: Option<bool> = options.get("sort_keys")?;
    options.assert_all_used()?;
    let failed = |e: serde_json::Error| Error::new(ErrorKind::BadSerialization, e.to_string());
    let mut out = Vec::new();
    match indent {
        Some(width) => {
            let indent = " ".repeat(width.min(16));
            let formatter = serde_json::ser::PrettyFormatter::with_indent(indent.as_bytes());
            let mut serializer = serde_json::Serializer::with_formatter(&mut out, formatter);
            value.serialize(&mut serializer).map_err(failed)?;
        }
        None => {
            let mut serializer = serde_json::Serializer::with_formatter(&mut out, Spaced);
            value.serialize(&mut serializer).map_err(failed)?;
        }
    }
    Ok(Value::from_safe_string(String::from_utf8_lossy(&out).into_owned()))
}

/// One line, with a space after commas and colons.
struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
    ) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

/// Seconds since 1970, UTC.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The conversions of `strftime` that templates use, in UTC.
fn strftime(format: &str, seconds: u64) -> Result<String, Error> {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const DAYS: [&str; 7] =
        ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (month_name, day_name) = (MONTHS[month - 1], DAYS[(days % 7) as usize]);
    let mut out = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        match characters.next() {
            Some('Y') => out.push_str(&year.to_string()),
            Some('m') => out.push_str(&format!("{month:02}")),
            Some('d') => out.push_str(&format!("{day:02}")),
            Some('B') => out.push_str(month_name),
            Some('b') => out.push_str(&month_name[..3]),
            Some('A') => out.push_str(day_name),
            Some('a') => out.push_str(&day_name[..3]),
            Some('H') => out.push_str(&format!("{:02}", time / 3600)),
            Some('M') => out.push_str(&format!("{:02}", time / 60 % 60)),
            Some('S') => out.push_str(&format!("{:02}", time % 60)),
            Some('%') => out.push('%'),
            other => {
                let other = other.map_or(String::new(), String::from);
                let detail = format!("strftime_now: %{other} is not supported");
                return Err(Error::new(ErrorKind::InvalidOperation, detail));
            }
        }
    }
    Ok(out)
}

/// Year, month and day of a day counted from 1970-01-01 (Hinnant, "chrono-compatible low-level
/// date algorithms", `civil_from_days`, for days not before 1970).
fn date(days: u64) -> (u64, usize, u64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + u64::from(month <= 2), month as usize, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn render(template: &str, messages: &serde_json::Value) -> Result<String, TemplateError> {
        let messages = messages.as_array().cloned().unwrap_or_default();
        ChatTemplate::new(template, "<s>", "</s>")?.render(&messages)
    }

    #[test]
    fn pythonisms_of_real_templates() {
        let template = "\
{%- set ns = namespace(last=-1) -%}
{{ bos_token }}
{%- for m in messages %}
    {%- if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}
    {%- if m['content'] is string and m.content.startswith('skip') %}{% continue %}{% endif %}
    {{- '[' + m.role.upper() + ']' + m.content.strip() }}
{%- endfor %}
{{- messages[::-1][0].role }}|{{ ns.last }}|{{ {'a': [1, 'ü'], 'b': none} | tojson }}";
        let messages = json!([
            {"role": "system", "content": "skip me"},
            {"role": "user", "content": " hi "},
        ]);
        let text = render(template, &messages).unwrap();
        assert_eq!(text, "<s>[USER]hiuser|1|{\"a\": [1, \"ü\"], \"b\": null}");
    }

    #[test]
    fn a_refusal_is_told_from_a_fault() {
        let refused = render("{{ raise_exception('roles must alternate') }}", &json!([]));
        assert!(matches!(refused, Err(TemplateError::Refused(r)) if r == "roles must alternate"));
        let broken = render("\n{{ nothing.at.all.is.here() }}", &json!([]));
        assert!(matches!(broken, Err(TemplateError::Broken { line: 2, .. })));
        assert!(ChatTemplate::new("{% if %}", "", "").is_err());
        let endless =
            "{% for a in range(9999) %}{% for b in range(9999) %}{{ a }}{% endfor %}{% endfor %}";
        assert!(render(endless, &json!([])).is_err());
    }

    #[test]
    fn dates() {
        assert_eq!(
            strftime("%d %b %Y %H:%M:%S %A", 951_827_696).unwrap(),
            "29 Feb 2000 12:34:56 Tuesday"
        );
        assert_eq!(strftime("%Y-%m-%d", 0).unwrap(), "1970-01-01");
        assert!(strftime("%Q", 0).is_err());
    }
}
