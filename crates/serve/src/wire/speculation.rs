//! The fields that say how a request is speculated on: an extension of the API. They change how
//! long an answer takes, never what it is.

use super::error::ApiError;
use super::fields::{Fields, integer, wrong_type};
use laneway_engine::{DraftLength, Drafter, Speculation};

/// What the client says about speculation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpeculationFields {
    /// `speculation`: who drafts.
    pub drafter: Option<Drafter>,
    /// `draft_tokens`: how far.
    pub length: Option<DraftLength>,
}

const NAMES: [(&str, Drafter); 3] =
    [("off", Drafter::Off), ("model", Drafter::Model), ("ngram", Drafter::Ngram)];

impl SpeculationFields {
    /// Reads both fields.
    ///
    /// # Errors
    /// If one of them has a value that it cannot have on any server.
    pub fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let drafter = match fields.string("speculation")? {
            None => None,
            Some(name) => match NAMES.iter().find(|known| known.0 == name) {
                Some(known) => Some(known.1),
                None => {
                    let problem = format!("is {name:?}, known are `off`, `model` and `ngram`");
                    return Err(ApiError::invalid("speculation", problem));
                }
            },
        };
        Ok(Self { drafter, length: length(fields)? })
    }

    /// What they come to on a server that does `default` unless asked, and where a drafter has
    /// `longest` drafts at most; `None` is what the server does.
    ///
    /// # Errors
    /// If that is not available there, with what is.
    pub fn resolve(
        self,
        default: Speculation,
        longest: impl Fn(Drafter) -> usize,
    ) -> Result<Option<Speculation>, ApiError> {
        if self == Self::default() {
            return Ok(None);
        }
        let drafter = self.drafter.unwrap_or(default.drafter);
        let kept = (drafter == default.drafter).then_some(default.length);
        let length = self.length.or(kept).unwrap_or_default();
        if self.drafter == Some(Drafter::Off) || length == DraftLength::Fixed(0) {
            return Ok(Some(Speculation::OFF));
        }
        if drafter == Drafter::Off {
            let problem = "needs `speculation`: this server does not draft unless asked to";
            return Err(ApiError::invalid("draft_tokens", problem));
        }
        let most = longest(drafter);
        if most == 0 {
            let available =
                NAMES.iter().filter(|known| known.1 == Drafter::Off || longest(known.1) > 0);
            let names: Vec<_> = available.map(|known| format!("`{}`", known.0)).collect();
            let problem = format!("the drafter is not available; available: {}", names.join(", "));
            return Err(ApiError::unsupported("speculation", problem));
        }
        match self.length {
            Some(DraftLength::Fixed(tokens)) if tokens > most => {
                let problem = format!("is {tokens}, allowed is 0 to {most} or `auto`");
                Err(ApiError::invalid("draft_tokens", problem))
            }
            _ => Ok(Some(Speculation { drafter, length })),
        }
    }
}

fn length(fields: &mut Fields) -> Result<Option<DraftLength>, ApiError> {
    let Some(value) = fields.take("draft_tokens") else { return Ok(None) };
    if value == "auto" {
        return Ok(Some(DraftLength::Auto));
    }
    let tokens = integer(&value).and_then(|tokens| usize::try_from(tokens).ok());
    match tokens {
        Some(tokens) => Ok(Some(DraftLength::Fixed(tokens))),
        None => Err(wrong_type("draft_tokens", "a whole number from 0 on or `auto`", &value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// On a server with n-gram drafts of up to 8 tokens and no others.
    fn resolve(body: Value, default: Speculation) -> Result<Option<Speculation>, ApiError> {
        let read = SpeculationFields::read(&mut Fields::of_body(body)?)?;
        read.resolve(default, |drafter| if drafter == Drafter::Ngram { 8 } else { 0 })
    }

    const NGRAM: Speculation =
        Speculation { drafter: Drafter::Ngram, length: DraftLength::Fixed(4) };

    #[test]
    fn what_is_not_said_is_what_the_server_does() {
        let ngram = |length| Ok(Some(Speculation { drafter: Drafter::Ngram, length }));
        assert_eq!(resolve(json!({}), NGRAM), Ok(None));
        assert_eq!(resolve(json!({"speculation": null}), NGRAM), Ok(None));
        let six = json!({"draft_tokens": 6});
        assert_eq!(resolve(six, NGRAM), ngram(DraftLength::Fixed(6)));
        let same = json!({"speculation": "ngram"});
        assert_eq!(resolve(same.clone(), NGRAM), ngram(DraftLength::Fixed(4)));
        assert_eq!(resolve(same, Speculation::OFF), ngram(DraftLength::Auto));
        let auto = json!({"draft_tokens": "auto"});
        assert_eq!(resolve(auto, NGRAM), ngram(DraftLength::Auto));
        for off in [json!({"draft_tokens": 0}), json!({"speculation": "off", "draft_tokens": 3})] {
            assert_eq!(resolve(off, NGRAM), Ok(Some(Speculation::OFF)));
        }
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (body, field) in [
            (json!({"speculation": "eagle"}), "speculation"),
            (json!({"speculation": true}), "speculation"),
            (json!({"speculation": "model"}), "speculation"),
            (json!({"draft_tokens": "many"}), "draft_tokens"),
            (json!({"draft_tokens": -1}), "draft_tokens"),
            (json!({"draft_tokens": 1.5}), "draft_tokens"),
            (json!({"draft_tokens": 9, "speculation": "ngram"}), "draft_tokens"),
            (json!({"draft_tokens": 2}), "draft_tokens"),
        ] {
            let error = resolve(body.clone(), Speculation::OFF).unwrap_err();
            assert_eq!(error.param(), Some(field), "{body}");
        }
        let error = resolve(json!({"speculation": "model"}), Speculation::OFF).unwrap_err();
        assert!(error.to_string().ends_with("available: `off`, `ngram`"), "{error}");
    }
}
