//! How far to draft: as far as pays, by what was accepted and what steps took.
//!
//! For every place a lane keeps the share of drafts that were accepted there, given that all before
//! it were; it begins with a guess, and old rounds count less and less. With the cost of a step by
//! rows and passes of the drafter, that gives the tokens a second that the whole engine makes for
//! every length that the lane might take; it takes the best. Now and then a lane tries another
//! length, so that neither the shares nor the cost are believed for ever.

use super::DRAFTS_MAX;
use laneway_plan::{RoundCost, RoundFit};

/// Share of drafts that are accepted, as long as nothing is known.
const GUESS: f64 = 0.6;

/// Rounds that the guess counts for.
const GUESS_ROUNDS: f64 = 2.0;

/// Weight that a round keeps when the next one comes.
const FORGETTING: f64 = 0.97;

/// Weight that everything keeps at a trial while drafting does not pay: what is known is old then,
/// and few trials have to suffice to show that the times are better.
const FORGETTING_OLD: f64 = 0.25;

/// Least gain over no drafts at all: less is noise.
const GAIN_MIN: f64 = 1.02;

/// Steps that are measured, at all lengths in turn, before their cost is believed.
const LEARNING_ROUNDS: usize = 24;

/// Turns between two trials while drafting pays.
const TRIAL_EVERY: usize = 64;

/// Turns between two trials when it has just stopped to pay, and at most.
const PROBE_EVERY: usize = 16;
const PROBE_EVERY_MAX: usize = 512;

/// What lanes have in a step, be it one or all others.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Company {
    /// Rows.
    pub rows: usize,
    /// Passes of the drafter.
    pub passes: usize,
    /// Tokens that are expected to come of it.
    pub tokens: f64,
}

/// The shares of all lanes together, from which any of them can be taken out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shares {
    all: Company,
    /// Most passes, but for one lane that has the most.
    second: usize,
}

impl Shares {
    pub fn add(&mut self, share: &Company) {
        self.all.rows += share.rows;
        self.all.tokens += share.tokens;
        self.second = self.second.max(share.passes.min(self.all.passes));
        self.all.passes = self.all.passes.max(share.passes);
    }

    /// What the others have.
    pub fn without(&self, share: &Company) -> Company {
        let Company { rows, passes, tokens } = self.all;
        Company {
            rows: rows.saturating_sub(share.rows),
            passes: if share.passes == passes { self.second } else { passes },
            tokens: (tokens - share.tokens).max(0.0),
        }
    }
}

/// One lane's choice.
#[derive(Clone, Debug)]
pub(crate) struct Auto {
    /// Decayed numbers of drafts seen and accepted, by place.
    seen: [f64; DRAFTS_MAX],
    accepted: [f64; DRAFTS_MAX],
    /// Turns until the next trial, and until the one after that if drafting does not pay.
    next_trial: usize,
    interval: usize,
    /// Trials so far.
    trials: usize,
}

impl Auto {
    /// Knows nothing.
    pub fn new() -> Self {
        Self {
            seen: [GUESS_ROUNDS; DRAFTS_MAX],
            accepted: [GUESS * GUESS_ROUNDS; DRAFTS_MAX],
            next_trial: PROBE_EVERY,
            interval: PROBE_EVERY,
            trials: 0,
        }
    }

    /// The length to draft, at most `longest`. `passes` says whether each draft takes a pass of
    /// the drafter.
    pub fn choose(
        &mut self,
        longest: usize,
        passes: bool,
        rounds: &RoundFit,
        company: &Company,
    ) -> usize {
        if longest == 0 {
            return 0;
        }
        if rounds.rounds() < LEARNING_ROUNDS {
            return rounds.rounds() % (longest + 1);
        }
        let best = self.best(longest, passes, &rounds.cost(), company);
        self.next_trial -= 1;
        if self.next_trial > 0 {
            return best;
        }
        if best == 0 {
            self.next_trial = self.interval;
            self.interval = (self.interval * 2).min(PROBE_EVERY_MAX);
            for (seen, accepted) in self.seen.iter_mut().zip(&mut self.accepted) {
                // One round is kept of what nothing else is known about.
                let kept = FORGETTING_OLD.max(1.0 / *seen).min(1.0);
                (*seen, *accepted) = (*seen * kept, *accepted * kept);
            }
        } else {
            self.next_trial = TRIAL_EVERY;
            self.interval = PROBE_EVERY;
        }
        self.trials += 1;
        // The longest shows what is accepted at all places; one less, what a draft costs.
        if best < longest && (best == 0 || self.trials.is_multiple_of(2)) {
            longest
        } else {
            best - 1
        }
    }

    /// The length that makes most tokens a second.
    fn best(&self, longest: usize, passes: bool, cost: &RoundCost, company: &Company) -> usize {
        let rate = |length: usize, tokens: f64| {
            let own = if passes { length } else { 0 };
            let seconds = cost.seconds(company.rows + 1 + length, company.passes.max(own));
            (company.tokens + tokens) / seconds.max(f64::MIN_POSITIVE)
        };
        let mut best = (0, rate(0, 1.0) * GAIN_MIN);
        for length in 1..=longest {
            let rate = rate(length, self.expected(length));
            if rate > best.1 {
                best = (length, rate);
            }
        }
        best.0
    }

    /// Tokens that a step makes with so many drafts.
    pub fn expected(&self, length: usize) -> f64 {
        let shares = self.accepted.iter().zip(&self.seen).map(|(accepted, seen)| accepted / seen);
        let reached = shares.take(length).scan(1.0, |reached, share| {
            *reached *= share;
            Some(*reached)
        });
        1.0 + reached.sum::<f64>()
    }

    /// Takes in a step in which the first `accepted` of `drafted` drafts were accepted.
    pub fn observe(&mut self, drafted: usize, accepted: usize) {
        // Behind the first one that was not accepted, nothing was learned.
        for place in 0..drafted.min(accepted + 1).min(DRAFTS_MAX) {
            self.seen[place] = self.seen[place] * FORGETTING + 1.0;
            let hit = if place < accepted { 1.0 } else { 0.0 };
            self.accepted[place] = self.accepted[place] * FORGETTING + hit;
        }
        if accepted > 0 && self.interval > PROBE_EVERY {
            // Something has changed: look again soon.
            self.interval = PROBE_EVERY;
            self.next_trial = self.next_trial.min(PROBE_EVERY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    const ALONE: Company = Company { rows: 0, passes: 0, tokens: 0.0 };

    /// Lets one lane run on its own; returns how often it took each length in the last half.
    fn run(
        cost: RoundCost,
        longest: usize,
        passes: bool,
        rounds: usize,
        accepted: impl Fn(usize, usize) -> usize,
    ) -> Vec<usize> {
        let (mut auto, mut fit) = (Auto::new(), RoundFit::new());
        let mut taken = vec![0; longest + 1];
        for round in 0..rounds {
            let length = auto.choose(longest, passes, &fit, &ALONE);
            let own = if passes { length } else { 0 };
            let seconds = cost.seconds(1 + length, own);
            fit.observe(1 + length, own, Duration::from_secs_f64(seconds));
            auto.observe(length, accepted(round, length).min(length));
            if round >= rounds / 2 {
                taken[length] += 1;
            }
        }
        taken
    }

    #[test]
    fn any_share_can_be_taken_out() {
        let mut shares = Shares::default();
        let all = [(1, 0, 1.0), (4, 3, 2.5), (3, 2, 1.5), (4, 3, 3.0)]
            .map(|(rows, passes, tokens)| Company { rows, passes, tokens });
        all.iter().for_each(|share| shares.add(share));
        assert_eq!(shares.without(&all[1]), Company { rows: 8, passes: 3, tokens: 5.5 });
        assert_eq!(shares.without(&all[0]), Company { rows: 11, passes: 3, tokens: 7.0 });
        let mut two = Shares::default();
        all[1..3].iter().for_each(|share| two.add(share));
        assert_eq!(two.without(&all[1]), all[2]);
    }

    fn most(taken: &[usize]) -> usize {
        (0..taken.len()).max_by_key(|&length| taken[length]).unwrap_or(0)
    }

    #[test]
    fn a_better_time_comes_and_is_found() {
        let cost = RoundCost { base: 1e-2, row: 5e-4, pass: 0.0 };
        let good = |round: usize, length: usize| if round < 1000 { 0 } else { length };
        let taken = run(cost, 5, false, 6000, good);
        assert_eq!(most(&taken), 5, "{taken:?}");
    }

    #[test]
    fn company_counts() {
        // A row costs as much as a third of a step: it pays for one lane that gains much, but not
        // when it holds up many others.
        let cost = RoundCost { base: 3e-3, row: 1e-3, pass: 0.0 };
        let auto = Auto::new();
        let alone = auto.best(4, false, &cost, &ALONE);
        let crowd = Company { rows: 60, passes: 0, tokens: 200.0 };
        let crowded = auto.best(4, false, &cost, &crowd);
        assert!(alone > 0 && crowded == 0, "alone {alone}, crowded {crowded}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn nothing_accepted_ends_in_nothing_drafted(
            base in 1e-4..1e-1f64, row in 0.0..1e-2f64, pass in 0.0..1e-2f64, longest in 1usize..9,
        ) {
            let taken = run(RoundCost { base, row, pass }, longest, true, 2000, |_, _| 0);
            // The cost of probing is bounded, too.
            prop_assert!(taken[0] >= 970, "{:?}", taken);
        }

        #[test]
        fn everything_accepted_in_cheap_rounds_ends_in_the_longest(
            base in 1e-3..1e-1f64, share in 0.0..0.05f64, longest in 1usize..9,
        ) {
            let cost = RoundCost { base, row: base * share, pass: base * share };
            let taken = run(cost, longest, true, 2000, |_, length| length);
            prop_assert!(taken[longest] >= 950, "{:?}", taken);
        }

        #[test]
        fn the_choice_is_close_to_the_best(
            share in 0.05..0.95f64, row in 0.01..0.5f64, longest in 1usize..9, seed in any::<u64>(),
        ) {
            let cost = RoundCost { base: 1e-2, row: row * 1e-2, pass: 0.0 };
            let mut state = seed;
            let mut coins = Vec::new();
            for _ in 0..4000 * longest {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                coins.push(((state >> 33) as f64) < share * f64::from(1u32 << 31));
            }
            let accepted = |round: usize, length: usize| {
                coins[round * longest..].iter().take(length).take_while(|&&coin| coin).count()
            };
            let taken = run(cost, longest, false, 4000, accepted);
            let rate = |length: usize| {
                let tokens: f64 = (0..=length).map(|place| share.powi(place as i32)).sum();
                tokens / cost.seconds(1 + length, 0)
            };
            let best = (0..=longest).map(rate).fold(0.0, f64::max);
            let rounds: usize = taken.iter().sum();
            let got = taken.iter().enumerate().map(|(length, &n)| rate(length) * n as f64).sum::<f64>();
            prop_assert!(got / rounds as f64 > best * 0.85, "{:?}", taken);
        }
    }
}
