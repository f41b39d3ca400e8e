//! One request while the scheduler has it: tokens, pages, penalty counts, times.

use crate::request::{Request, Stats};
use crate::scheduler::{RequestId, SchedulerConfig};
use crate::speculation::Speculator;
use laneway_execution::{PAGE_TOKENS, PageId, SlotId, TokenCount, TokenId, pages_for};
use std::collections::HashMap;
use std::time::Duration;

/// A request, its output so far, and what it holds.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub id: RequestId,
    pub request: Request,
    /// Prompt and output; the request's own prompt has moved in here.
    pub tokens: Vec<TokenId>,
    pub prompt: usize,
    /// Positions that are in the pages.
    pub computed: usize,
    pub pages: Vec<PageId>,
    /// Pages that it got when it was admitted; it keeps them while it runs.
    pub reserved: usize,
    pub slot: Option<SlotId>,
    pub counts: Counts,
    pub speculator: Speculator,
    /// Prompt tokens whose probability has been reported, the first one not counted.
    pub scored: usize,
    /// Prompt tokens that were reported as computed.
    pub reported: usize,
    pub times: Times,
    pub pauses: usize,
    /// It had a lane before, so it no longer times out.
    pub admitted: bool,
}

/// When things happened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub arrival: Duration,
    pub predicted_ttft: Duration,
    pub prefill_start: Option<Duration>,
    pub prefill_end: Option<Duration>,
    pub first_token: Option<Duration>,
}

impl Sequence {
    pub fn new(
        id: RequestId,
        mut request: Request,
        config: &SchedulerConfig,
        predicted: Duration,
        now: Duration,
    ) -> Self {
        let tokens_max = request.prompt.len() + request.max_tokens;
        let speculation = request.speculation.unwrap_or(config.speculation);
        let tokens = std::mem::take(&mut request.prompt);
        let mut counts = Counts::default();
        if request.sampling.uses_counts() {
            for &token in &tokens {
                counts.add(token, 0);
            }
        }
        Self {
            id,
            prompt: tokens.len(),
            tokens,
            computed: 0,
            pages: Vec::new(),
            reserved: 0,
            slot: None,
            counts,
            speculator: Speculator::new(
                speculation,
                &config.limits,
                request.max_tokens,
                tokens_max,
            ),
            scored: 0,
            reported: 0,
            times: Times {
                arrival: now,
                predicted_ttft: predicted,
                prefill_start: None,
                prefill_end: None,
                first_token: None,
            },
            pauses: 0,
            admitted: false,
            request,
        }
    }

    pub fn generated(&self) -> usize {
        self.tokens.len() - self.prompt
    }

    /// Tokens that are not in the pages yet.
    pub fn remaining(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// True if all but the token drawn last is computed.
    pub fn is_decoding(&self) -> bool {
        self.generated() > 0 && self.remaining() == 1
    }

    /// Tokens that it may still generate.
    pub fn left(&self) -> usize {
        self.request.max_tokens - self.generated()
    }

    /// Pages that it needs for what it has and was promised; what it holds beyond them is for
    /// drafts.
    pub fn own_pages(&self) -> usize {
        self.reserved.max(pages_for(self.tokens.len()))
    }

    /// Tokens that its pages have room for beyond those it has.
    pub fn room(&self) -> usize {
        (self.pages.len() * PAGE_TOKENS).saturating_sub(self.tokens.len())
    }

    /// Adds a drawn token.
    pub fn push(&mut self, token: TokenId) {
        self.tokens.push(token);
        if self.request.sampling.uses_counts() {
            self.counts.add(token, 1);
        }
    }

    pub fn stats(&self, now: Duration) -> Stats {
        let Times { arrival, predicted_ttft, prefill_start, prefill_end, first_token } = self.times;
        let start = prefill_start.unwrap_or(now);
        Stats {
            prompt: self.prompt,
            cached: 0,
            generated: self.generated(),
            pauses: self.pauses,
            queue: start.saturating_sub(arrival),
            prefill: prefill_end.unwrap_or(now).saturating_sub(start),
            predicted_ttft,
            ttft: first_token.map(|first| first.saturating_sub(arrival)),
            decode: first_token.map_or(Duration::ZERO, |first| now.saturating_sub(first)),
            speculation: self.speculator.stats,
        }
    }
}

/// How often each token has occurred, kept up to date token by token.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    entries: Vec<TokenCount>,
    places: HashMap<TokenId, usize>,
}

impl Counts {
    pub fn add(&mut self, token: TokenId, generated: u32) {
        let place = *self.places.entry(token).or_insert_with(|| {
            self.entries.push(TokenCount { token, generated: 0 });
            self.entries.len() - 1
        });
        self.entries[place].generated += generated;
    }

    /// Appends the counts as they are once the tokens `more` have been generated, too.
    pub fn append_with(&self, more: &[TokenId], counts: &mut Vec<TokenCount>) {
        let first = counts.len();
        counts.extend_from_slice(&self.entries);
        let known = counts.len();
        for &token in more {
            let place = self.places.get(&token).map(|place| first + place);
            let new = || counts[known..].iter().position(|count| count.token == token);
            match place.or_else(|| new().map(|place| known + place)) {
                Some(place) => counts[place].generated += 1,
                None => counts.push(TokenCount { token, generated: 1 }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_ahead_are_those_that_come() {
        let mut counts = Counts::default();
        for (token, generated) in [(5, 0), (6, 0), (5, 1)] {
            counts.add(token, generated);
        }
        let more = [6, 9, 9, 5, 8];
        let mut ahead = vec![TokenCount { token: 1, generated: 1 }];
        counts.append_with(&more, &mut ahead);
        more.iter().for_each(|&token| counts.add(token, 1));
        assert_eq!(ahead[1..], counts.entries);
    }
}
