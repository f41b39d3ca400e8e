//! Speculation: who drafts, how far ahead, and what came of it.
//!
//! Drafts cost time and never change an output: a draft counts only while it equals what the model
//! itself draws in its place, with the same noise (see `StepBatch::accepted`).

mod auto;
mod lane;
mod ngram;

pub(crate) use auto::Shares;
pub(crate) use lane::Speculator;

use laneway_execution::Limits;

/// Most drafts of a step for one sequence, whatever the executor takes.
pub const DRAFTS_MAX: usize = 16;

/// Who drafts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Drafter {
    /// Nobody.
    #[default]
    Off,
    /// The executor: a draft layer of its model, or a draft model beside it.
    Model,
    /// The sequence itself: what followed the last time that it said the same.
    Ngram,
}

impl Drafter {
    /// Most drafts of a step for one sequence; 0 if this drafter is not available.
    #[must_use]
    pub fn longest(self, limits: &Limits) -> usize {
        match self {
            Drafter::Off => 0,
            Drafter::Model => limits.drafts.min(limits.proposals).min(DRAFTS_MAX),
            Drafter::Ngram => limits.drafts.min(DRAFTS_MAX),
        }
    }
}

/// How many tokens are drafted at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DraftLength {
    /// As many as pay, by what was accepted and what steps took.
    #[default]
    Auto,
    /// This many.
    Fixed(usize),
}

/// How a request is speculated on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Speculation {
    /// Who drafts.
    pub drafter: Drafter,
    /// How far.
    pub length: DraftLength,
}

impl Speculation {
    /// None.
    pub const OFF: Self = Self { drafter: Drafter::Off, length: DraftLength::Auto };

    /// Drafts of a step at most, given what the executor takes.
    #[must_use]
    pub fn longest(&self, limits: &Limits) -> usize {
        let longest = self.drafter.longest(limits);
        match self.length {
            DraftLength::Auto => longest,
            DraftLength::Fixed(length) => longest.min(length),
        }
    }
}

/// What came of speculation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpeculationStats {
    /// Steps that held drafts.
    pub rounds: usize,
    /// Tokens drafted.
    pub drafted: usize,
    /// Drafts that became output.
    pub accepted: usize,
    /// The same by place: the first entry counts first drafts, up to the greatest number.
    pub accepted_at: [u32; DRAFTS_MAX],
}

impl SpeculationStats {
    /// A step that held `drafted` drafts, the first `accepted` of which became output.
    pub(crate) fn of_round(drafted: usize, accepted: usize) -> Self {
        let mut accepted_at = [0; DRAFTS_MAX];
        accepted_at[..accepted.min(DRAFTS_MAX)].fill(1);
        Self { rounds: usize::from(drafted > 0), drafted, accepted, accepted_at }
    }

    pub(crate) fn add(&mut self, more: &Self) {
        self.rounds += more.rounds;
        self.drafted += more.drafted;
        self.accepted += more.accepted;
        for (sum, more) in self.accepted_at.iter_mut().zip(more.accepted_at) {
            *sum = sum.saturating_add(more);
        }
    }

    /// [`SpeculationStats::accepted_at`] up to the last place at which a draft was accepted.
    #[must_use]
    pub fn accepted_by_place(&self) -> &[u32] {
        let places =
            self.accepted_at.iter().rposition(|&times| times > 0).map_or(0, |last| last + 1);
        &self.accepted_at[..places]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_keep_to_what_the_executor_takes() {
        let limits = Limits {
            pages: 1,
            state_slots: 0,
            rows_per_step: 1,
            samples_per_step: 1,
            top_logprobs: 0,
            drafts: 8,
            proposals: 5,
        };
        let longest = |drafter, length| Speculation { drafter, length }.longest(&limits);
        assert_eq!(longest(Drafter::Model, DraftLength::Auto), 5);
        assert_eq!(longest(Drafter::Ngram, DraftLength::Auto), 8);
        assert_eq!(longest(Drafter::Ngram, DraftLength::Fixed(3)), 3);
        assert_eq!(longest(Drafter::Model, DraftLength::Fixed(9)), 5);
        assert_eq!(longest(Drafter::Off, DraftLength::Fixed(9)), 0);
    }

    #[test]
    fn rounds_add_up() {
        let mut stats = SpeculationStats::default();
        for (drafted, accepted) in [(3, 2), (0, 0), (4, 0), (2, 1)] {
            stats.add(&SpeculationStats::of_round(drafted, accepted));
        }
        assert_eq!((stats.rounds, stats.drafted, stats.accepted), (3, 9, 3));
        assert_eq!(stats.accepted_by_place(), [2, 1]);
    }
}
