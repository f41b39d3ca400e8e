//! From the settings of speculation to what the engine does, or a refusal that says what works.

use crate::loading::OpenedModel;
use crate::settings::capacity::Refusal;
use crate::settings::{DraftTokens, SpecSetting, SpeculationSettings};
use anyhow::{Context, Result};
use laneway_engine::{DraftLength, Drafter, Speculation};
use laneway_execution::Limits;

/// Rows that a step has for the drafts of each lane, beside a prompt, if nobody says how many.
const ROOM_USUAL: usize = 5;

/// Opens the draft model, if one is wanted, and checks that it can draft for `target`.
///
/// # Errors
/// A model that cannot be opened, or that speaks another vocabulary.
pub fn open_draft(
    settings: &SpeculationSettings,
    target: &OpenedModel,
) -> Result<Option<OpenedModel>> {
    let SpecSetting::Draft(model) = &settings.spec else { return Ok(None) };
    let draft = OpenedModel::open(model).with_context(|| format!("--spec draft:{model}"))?;
    let (theirs, own) = (draft.config.vocabulary, target.config.vocabulary);
    if theirs != own {
        let name = target.name();
        return Err(Refusal(format!(
            "--spec draft:{model} has a vocabulary of {theirs} tokens, {name} has {own}; a draft \
             model needs the same, so take a smaller one of the same family, or --spec ngram"
        ))
        .into());
    }
    Ok(Some(draft))
}

/// Rows of a step for the drafts of each lane, beside a whole chunk of a prompt, if the model has a
/// draft layer or not.
#[must_use]
pub fn room(settings: &SpeculationSettings, has_draft_layer: bool) -> usize {
    match (&settings.spec, settings.draft_tokens) {
        (SpecSetting::Off, _) => 0,
        (SpecSetting::Auto | SpecSetting::Mtp, _) if !has_draft_layer => 0,
        (_, DraftTokens(DraftLength::Auto)) => ROOM_USUAL,
        (_, DraftTokens(DraftLength::Fixed(tokens))) => tokens,
    }
}

/// Whether a draft layer of the model is to be loaded, if it has one.
#[must_use]
pub fn uses_draft_layer(settings: &SpeculationSettings) -> bool {
    matches!(settings.spec, SpecSetting::Mtp | SpecSetting::Auto)
}

/// What the engine does, given what the loaded model takes.
///
/// # Errors
/// [`Refusal`] if the model cannot be speculated on in this way.
pub fn speculation(settings: &SpeculationSettings, limits: &Limits) -> Result<Speculation> {
    let SpeculationSettings { spec, draft_tokens: DraftTokens(length) } = settings;
    let drafter = match spec {
        SpecSetting::Off => Drafter::Off,
        SpecSetting::Ngram => Drafter::Ngram,
        SpecSetting::Mtp | SpecSetting::Draft(_) => Drafter::Model,
        SpecSetting::Auto if limits.proposals > 0 => Drafter::Model,
        SpecSetting::Auto => Drafter::Off,
    };
    if drafter == Drafter::Off {
        return Ok(Speculation::OFF);
    }
    let longest = drafter.longest(limits);
    if longest == 0 {
        let detail = match spec {
            SpecSetting::Mtp => {
                "this model has no draft layer; use --spec ngram, --spec draft:MODEL or --spec off"
            }
            _ => "this model cannot verify drafts; use --spec off",
        };
        return Err(Refusal(format!("--spec {spec}: {detail}")).into());
    }
    match *length {
        DraftLength::Fixed(tokens) if tokens > longest => Err(Refusal(format!(
            "--draft-tokens {tokens} is more than the {longest} that --spec {spec} drafts for this \
             model; the most that works is --draft-tokens {longest}"
        ))
        .into()),
        length => Ok(Speculation { drafter, length }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        pages: 1,
        state_slots: 0,
        rows_per_step: 1,
        samples_per_step: 1,
        top_logprobs: 0,
        drafts: 8,
        proposals: 0,
    };

    fn settings(spec: &str, draft_tokens: &str) -> SpeculationSettings {
        SpeculationSettings {
            spec: spec.parse().unwrap(),
            draft_tokens: draft_tokens.parse().unwrap(),
        }
    }

    #[test]
    fn auto_takes_a_draft_layer_if_there_is_one() {
        let auto = settings("auto", "auto");
        assert_eq!(speculation(&auto, &LIMITS).unwrap(), Speculation::OFF);
        let with_layer = Limits { proposals: 5, ..LIMITS };
        let found = speculation(&auto, &with_layer).unwrap();
        assert_eq!(found, Speculation { drafter: Drafter::Model, length: DraftLength::Auto });
    }

    #[test]
    fn what_does_not_work_is_refused_with_what_does() {
        let refusal = |spec, draft_tokens, limits: Limits| {
            speculation(&settings(spec, draft_tokens), &limits).unwrap_err().to_string()
        };
        assert_eq!(
            refusal("mtp", "auto", LIMITS),
            "--spec mtp: this model has no draft layer; use --spec ngram, --spec draft:MODEL or \
             --spec off"
        );
        assert_eq!(
            refusal("ngram", "auto", Limits { drafts: 0, ..LIMITS }),
            "--spec ngram: this model cannot verify drafts; use --spec off"
        );
        assert_eq!(
            refusal("ngram", "9", LIMITS),
            "--draft-tokens 9 is more than the 8 that --spec ngram drafts for this model; the most \
             that works is --draft-tokens 8"
        );
    }

    #[test]
    fn rows_are_kept_for_drafts() {
        let room = |spec, tokens, layer| room(&settings(spec, tokens), layer);
        assert_eq!((room("off", "7", true), room("ngram", "7", false)), (0, 7));
        assert_eq!((room("auto", "auto", true), room("auto", "auto", false)), (ROOM_USUAL, 0));
    }
}
