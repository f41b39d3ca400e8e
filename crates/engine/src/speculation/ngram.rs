//! Prompt lookup: what followed the last time that a sequence said the same.
//!
//! The longest suffix of the sequence that occurred before, up to [`SUFFIX_MAX`] tokens, is looked
//! for, the most recent occurrence first; the tokens behind it are the drafts (Saxena 2023,
//! "Prompt Lookup Decoding"). Occurrences are found as in LZ77 compressors: the last place of every
//! hash of [`SUFFIX_MIN`] tokens, and for every place the one before it with the same hash. A new
//! token costs one entry; a look-up visits at most [`PLACES_MAX`] places.

use laneway_execution::TokenId;

/// Shortest suffix that is looked for: one token says too little about the next.
const SUFFIX_MIN: usize = 2;

/// Longest: beyond it a longer match is hardly a better one.
const SUFFIX_MAX: usize = 8;

/// Most places of a look-up.
const PLACES_MAX: usize = 32;

/// Most tokens whose places are remembered; the oldest are forgotten first.
const MEMORY_MAX: usize = 1 << 18;

/// No place.
const NONE: u32 = u32::MAX;

/// Where tokens stand in one sequence that only grows.
#[derive(Debug)]
pub(crate) struct NgramIndex {
    /// For every hash the last place: the index of the token behind the hashed ones.
    heads: Vec<u32>,
    /// For every place, modulo the memory's length, the place before it with the same hash.
    before: Vec<u32>,
    /// Places up to this one are entered.
    entered: usize,
}

impl NgramIndex {
    /// An index of a sequence that has at most `tokens` tokens.
    pub fn new(tokens: usize) -> Self {
        let memory = tokens.clamp(1, MEMORY_MAX).next_power_of_two();
        Self { heads: vec![NONE; memory], before: vec![NONE; memory], entered: SUFFIX_MIN - 1 }
    }

    /// Enters every place that has a token behind it by now, so that the sequence's own end is no
    /// occurrence of itself. `tokens` is the whole sequence.
    pub fn extend(&mut self, tokens: &[TokenId]) {
        while self.entered + 1 < tokens.len() {
            self.entered += 1;
            let place = self.entered;
            let Ok(number) = u32::try_from(place) else { return };
            let bucket = self.bucket(&tokens[place - SUFFIX_MIN..place]);
            let slot = self.slot(place);
            self.before[slot] = std::mem::replace(&mut self.heads[bucket], number);
        }
    }

    /// Appends up to `count` drafts of what follows `tokens`, all of which but the last few may
    /// have been entered, to `drafts`; nothing if no suffix of them occurred before.
    pub fn draft(&self, tokens: &[TokenId], count: usize, drafts: &mut Vec<TokenId>) {
        let Some(from) = self.find(tokens) else { return };
        let first = drafts.len();
        for index in from..from + count {
            // An occurrence that reaches the end goes on with the drafts themselves.
            let ahead = index.checked_sub(tokens.len()).map(|ahead| drafts[first + ahead]);
            drafts.push(ahead.unwrap_or_else(|| tokens[index]));
        }
    }

    /// The place behind the best occurrence of the end of `tokens`.
    fn find(&self, tokens: &[TokenId]) -> Option<usize> {
        let suffix = tokens.last_chunk::<SUFFIX_MIN>()?;
        let mut best = None;
        let mut longest = SUFFIX_MIN - 1;
        let mut place = self.heads[self.bucket(suffix)];
        for _ in 0..PLACES_MAX {
            let here = place as usize;
            if place == NONE || self.entered - here >= self.before.len() {
                break;
            }
            let length = common_suffix(&tokens[..here], tokens);
            if length > longest {
                (best, longest) = (Some(here), length);
            }
            if longest == SUFFIX_MAX {
                break;
            }
            place = self.before[self.slot(here)];
        }
        best
    }

    fn bucket(&self, tokens: &[TokenId]) -> usize {
        let mixed = tokens.iter().fold(0u64, |hash, &token| {
            (hash ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        });
        mixed as usize & (self.heads.len() - 1)
    }

    fn slot(&self, place: usize) -> usize {
        place & (self.before.len() - 1)
    }
}

/// Tokens, up to [`SUFFIX_MAX`], in which both ends agree.
fn common_suffix(left: &[TokenId], right: &[TokenId]) -> usize {
    let pairs = left.iter().rev().zip(right.iter().rev());
    pairs.take(SUFFIX_MAX).take_while(|(left, right)| left == right).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn drafts(tokens: &[TokenId], count: usize) -> Vec<TokenId> {
        let mut index = NgramIndex::new(tokens.len());
        index.extend(tokens);
        let mut drafts = Vec::new();
        index.draft(tokens, count, &mut drafts);
        drafts
    }

    /// The same by trying every place.
    fn naive(tokens: &[TokenId]) -> Option<usize> {
        let places = (SUFFIX_MIN..tokens.len()).rev();
        let lengths = places.map(|place| (place, common_suffix(&tokens[..place], tokens)));
        let long_enough = lengths.filter(|&(_, length)| length >= SUFFIX_MIN);
        // Of equal ones the first, which is the most recent.
        long_enough
            .reduce(|best, next| if next.1 > best.1 { next } else { best })
            .map(|best| best.0)
    }

    #[test]
    fn what_followed_is_drafted() {
        assert_eq!(drafts(&[1, 2, 3, 4, 5, 1, 2], 3), [3, 4, 5]);
        assert_eq!(drafts(&[1, 2, 3, 9, 2, 3, 4, 9, 1, 2, 3], 2), [9, 2], "the longer match");
        assert_eq!(drafts(&[1, 2, 3, 9, 1, 2, 4, 9, 1, 2], 1), [4], "the more recent match");
        assert_eq!(drafts(&[1, 2, 3, 4], 3), []);
        assert_eq!(drafts(&[1], 3), []);
    }

    #[test]
    fn a_repetition_goes_on() {
        assert_eq!(drafts(&[5, 5, 5], 4), [5, 5, 5, 5]);
        assert_eq!(drafts(&[1, 2, 1, 2, 1], 5), [2, 1, 2, 1, 2]);
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_goes_first() {
        let tokens: Vec<TokenId> = (0..3 * MEMORY_MAX as TokenId).collect();
        let mut index = NgramIndex::new(tokens.len());
        index.extend(&tokens);
        assert_eq!((index.heads.len(), index.before.len()), (MEMORY_MAX, MEMORY_MAX));
        let end = |from: TokenId| [tokens.as_slice(), &[from, from + 1]].concat();
        let mut found = Vec::new();
        index.draft(&end(tokens.len() as TokenId - 100), 2, &mut found);
        assert_eq!(found, tokens[tokens.len() - 98..tokens.len() - 96]);
        found.clear();
        index.draft(&end(10), 2, &mut found);
        assert_eq!(found, []);
    }

    proptest! {
        #[test]
        fn the_index_finds_what_a_search_finds(
            tokens in prop::collection::vec(0u32..4, 0..PLACES_MAX),
        ) {
            let mut index = NgramIndex::new(tokens.len());
            index.extend(&tokens);
            prop_assert_eq!(index.find(&tokens), naive(&tokens));
        }

        #[test]
        fn growth_in_pieces_is_growth_at_once(
            tokens in prop::collection::vec(0u32..6, 2..400),
            pieces in prop::collection::vec(1usize..40, 1..40),
        ) {
            let mut grown = NgramIndex::new(tokens.len());
            let mut end = 0;
            for piece in pieces {
                end = (end + piece).min(tokens.len());
                grown.extend(&tokens[..end]);
            }
            grown.extend(&tokens);
            let mut whole = NgramIndex::new(tokens.len());
            whole.extend(&tokens);
            prop_assert_eq!(&grown.heads, &whole.heads);
            prop_assert_eq!(&grown.before, &whole.before);
        }

        #[test]
        fn drafts_follow_an_occurrence_of_the_end(
            tokens in prop::collection::vec(0u32..3, 2..2000),
            count in 1usize..16,
        ) {
            let mut index = NgramIndex::new(tokens.len());
            index.extend(&tokens);
            let mut drafts = Vec::new();
            index.draft(&tokens, count, &mut drafts);
            if let Some(place) = index.find(&tokens) {
                prop_assert!(common_suffix(&tokens[..place], &tokens) >= SUFFIX_MIN);
                let whole = [tokens.as_slice(), &drafts].concat();
                prop_assert_eq!(&drafts[..], &whole[place..place + count]);
            } else {
                prop_assert!(drafts.is_empty());
            }
        }
    }
}
