//! From the settings of speculation to what the engine does, or a refusal that says what works.

use crate::loading::OpenedModel;
use crate::settings::capacity::Refusal;
use crate::settings::{DraftTokens, SpecSetting, SpeculationSettings};
use anyhow::{Context, Result};
use laneway_engine::{DraftLength, Drafter, Speculation};
use laneway_execution::Limits;

/// Drafts of each lane that there is room for if nobody says how many.
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

/// What a model keeps ready for speculation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Drafts of each lane for which a step has rows, beside a whole chunk of a prompt, and states,
    /// if the model is recurrent.
    pub drafts: usize,
    /// Whether the model's draft layer is loaded, if there is one.
    pub draft_layer: bool,
}

/// What has to be kept ready of a model that has a draft layer or not.
#[must_use]
pub fn room(settings: &SpeculationSettings, has_draft_layer: bool) -> Room {
    let draft_layer =
        has_draft_layer && matches!(settings.spec, SpecSetting::Mtp | SpecSetting::Auto);
    let none = match settings.spec {
        SpecSetting::Off => true,
        SpecSetting::Auto | SpecSetting::Mtp => !draft_layer,
        SpecSetting::Ngram | SpecSetting::Draft(_) => false,
    };
    let drafts = match settings.draft_tokens.0 {
        _ if none => 0,
        DraftLength::Auto => ROOM_USUAL,
        DraftLength::Fixed(tokens) => tokens,
    };
    Room { drafts, draft_layer }
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
    fn room_is_kept_for_what_is_drafted() {
        let drafts = |spec, tokens, layer| room(&settings(spec, tokens), layer).drafts;
        assert_eq!(drafts("off", "7", true), 0);
        assert_eq!(drafts("ngram", "7", false), 7);
        assert_eq!(drafts("auto", "auto", true), ROOM_USUAL);
        assert_eq!(drafts("auto", "auto", false), 0);
        let layer = |spec, layer| room(&settings(spec, "auto"), layer).draft_layer;
        assert!(layer("mtp", true) && layer("auto", true));
        assert!(!layer("ngram", true) && !layer("mtp", false));
    }
}
