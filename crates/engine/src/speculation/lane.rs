//! One sequence's side of speculation: its drafts, where they come from, and how many.

use super::auto::{Auto, Company};
use super::ngram::NgramIndex;
use super::{DRAFTS_MAX, DraftLength, Drafter, Speculation, SpeculationStats};
use laneway_execution::{Limits, TokenId};
use laneway_plan::RoundFit;

/// Drafts of one sequence, and what decides about them.
#[derive(Debug)]
pub(crate) struct Speculator {
    drafter: Drafter,
    /// Most drafts of a step; 0 is no speculation.
    longest: usize,
    /// What is accepted; it chooses the length, too, unless that is fixed.
    auto: Auto,
    fixed: bool,
    /// Where the sequence's own tokens stand; made when it first drafts from them.
    index: Option<NgramIndex>,
    /// Tokens that the sequence has at most.
    tokens_max: usize,
    /// Guesses of the sequence's next tokens, for the step that is planned next or under way.
    pub drafts: Vec<TokenId>,
    /// Drafts that the executor is asked for in the step under way.
    pub asked: usize,
    /// What it has in the step under way, or had in the last one.
    pub share: Company,
    pub stats: SpeculationStats,
}

impl Speculator {
    /// For a request that generates at most `max_tokens` of `tokens_max` tokens.
    pub fn new(
        speculation: Speculation,
        limits: &Limits,
        max_tokens: usize,
        tokens_max: usize,
    ) -> Self {
        // The first token is drawn behind the prompt, and behind the last one nothing is.
        let longest = speculation.longest(limits).min(max_tokens.saturating_sub(2));
        Self {
            drafter: if longest > 0 { speculation.drafter } else { Drafter::Off },
            longest,
            auto: Auto::new(),
            fixed: speculation.length != DraftLength::Auto,
            index: None,
            tokens_max,
            drafts: Vec::with_capacity(longest.min(DRAFTS_MAX)),
            asked: 0,
            share: Company { rows: 1, passes: 0, tokens: 1.0 },
            stats: SpeculationStats::default(),
        }
    }

    /// Whether the executor's drafter has to keep up with the sequence.
    pub fn is_followed(&self) -> bool {
        self.drafter == Drafter::Model
    }

    /// Brings the drafts up to date: new ones from the sequence's own tokens, and never more than
    /// can become output when `left` tokens may still be generated.
    pub fn draft(&mut self, tokens: &[TokenId], left: usize, rounds: &RoundFit, company: &Company) {
        if self.drafter == Drafter::Ngram {
            self.drafts.clear();
            let index = self.index.get_or_insert_with(|| NgramIndex::new(self.tokens_max));
            index.extend(tokens);
            index.draft(tokens, self.longest, &mut self.drafts);
            // Without an occurrence there is nothing to choose.
            if !self.drafts.is_empty() {
                let length = self.length(false, rounds, company);
                self.drafts.truncate(length);
            }
        }
        self.drafts.truncate(left.saturating_sub(1));
    }

    /// Drafts to ask the executor for, behind a step that verifies those at hand, when `left`
    /// tokens may be generated before that step.
    pub fn ask(&mut self, left: usize, rounds: &RoundFit, company: &Company) {
        self.asked = match self.drafter {
            // A step makes one token at least. That all drafts are accepted counts, too, since
            // the pages must cover what is proposed then.
            Drafter::Model => {
                let length = self.length(true, rounds, company);
                length.min(left.saturating_sub(2 + self.drafts.len()))
            }
            Drafter::Off | Drafter::Ngram => 0,
        };
    }

    fn length(&mut self, passes: bool, rounds: &RoundFit, company: &Company) -> usize {
        if self.fixed {
            return self.longest;
        }
        self.auto.choose(self.longest, passes, rounds, company)
    }

    /// The drafts of the next step are settled.
    pub fn settle(&mut self) {
        let drafts = self.drafts.len();
        let tokens = self.auto.expected(drafts);
        self.share = Company { rows: 1 + drafts, passes: self.asked, tokens };
    }

    /// Takes in that the first `accepted` drafts were the sequence's own next tokens, the first
    /// `emitted` of which became output; the drafts are used up.
    pub fn verified(&mut self, accepted: usize, emitted: usize) -> SpeculationStats {
        let drafted = self.drafts.len();
        self.auto.observe(drafted, accepted);
        self.drafts.clear();
        let round = SpeculationStats::of_round(drafted, emitted);
        self.stats.add(&round);
        round
    }

    /// Takes the executor's proposals as the next drafts.
    pub fn propose(&mut self, proposals: &[TokenId]) {
        let asked = std::mem::take(&mut self.asked);
        self.drafts.extend(proposals.iter().take(asked));
    }

    /// The sequence gives up what it holds in the executor.
    pub fn pause(&mut self) {
        self.drafts.clear();
        self.asked = 0;
    }
}
