//! One request: what it should say, and what has come of it.

use laneway_engine::{Ending, Event, FinishReason, Request, SpeculationStats};
use laneway_execution::{SamplingKey, TokenCount, TokenId};
use laneway_sim::{Prefix, draw, score};
use std::collections::BTreeMap;

/// What has come of one request.
pub struct Track {
    pub request: Request,
    /// Output of the request when it runs alone.
    pub solo: Vec<TokenId>,
    pub ends: FinishReason,
    pub tokens: Vec<TokenId>,
    pub scored: usize,
    pub done: usize,
    pub ending: Option<Ending>,
    pub cancelled: bool,
}

impl Track {
    /// Checks an event against the solo run; true if it is the first token.
    pub fn take(&mut self, event: Event) -> bool {
        let prompt = &self.request.prompt;
        match event {
            Event::Token { token, logprob, top } => {
                assert_eq!(self.solo.get(self.tokens.len()), Some(&token));
                assert_eq!(self.done, prompt.len(), "the prompt comes first");
                let before: Vec<_> = prompt.iter().chain(&self.tokens).copied().collect();
                assert_eq!(logprob, score(Prefix::of(&before), token));
                assert_eq!(top.len(), self.request.top_logprobs);
                self.tokens.push(token);
                return self.tokens.len() == 1;
            }
            Event::PromptToken { token, logprob, top } => {
                assert!(self.request.score_prompt && self.tokens.is_empty());
                assert_eq!(token, prompt[self.scored]);
                let prefix = Prefix::of(&prompt[..self.scored]);
                let expected = (self.scored > 0).then(|| score(prefix, token));
                assert_eq!(logprob, expected);
                assert_eq!(top.len(), if self.scored > 0 { self.request.top_logprobs } else { 0 });
                self.scored += 1;
            }
            Event::PrefillProgress { done, total, cached } => {
                assert!(done > self.done && done <= total);
                assert_eq!((total, cached), (prompt.len(), 0));
                self.done = done;
            }
            other => unreachable!("{other:?} does not come from the scheduler"),
        }
        false
    }
}

pub fn check_speculation(stats: &SpeculationStats, generated: usize) {
    let SpeculationStats { rounds, drafted, accepted, accepted_at } = stats;
    assert!(rounds <= drafted && accepted <= drafted && *accepted <= generated);
    assert_eq!(accepted_at.iter().map(|&times| times as usize).sum::<usize>(), *accepted);
    assert!(accepted_at.is_sorted_by(|earlier, later| earlier >= later));
}

/// What a request says when it runs alone and without speculation, by the simulated model's own
/// definition.
pub fn solo(request: &Request, vocab_size: usize) -> (Vec<TokenId>, FinishReason) {
    let mut prefix = Prefix::of(&request.prompt);
    let mut counts: BTreeMap<TokenId, u32> = BTreeMap::new();
    if request.sampling.uses_counts() {
        counts.extend(request.prompt.iter().map(|&token| (token, 0)));
    }
    let mut tokens = Vec::new();
    while tokens.len() < request.max_tokens {
        let position = (request.prompt.len() + tokens.len()) as u64;
        let key = SamplingKey { seed: request.seed, position };
        let counted: Vec<_> =
            counts.iter().map(|(&token, &generated)| TokenCount { token, generated }).collect();
        let token = draw(prefix, key, &counted, &request.biases, vocab_size);
        if request.end_tokens.contains(&token) {
            return (tokens, FinishReason::Stop);
        }
        if request.sampling.uses_counts() {
            *counts.entry(token).or_default() += 1;
        }
        tokens.push(token);
        prefix.push(token);
    }
    (tokens, FinishReason::Length)
}
