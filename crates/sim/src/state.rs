//! Slots of recurrent state: each holds a hash of the exact prefix that it has seen.

use crate::token::Prefix;
use laneway_execution::{Segment, SlotId, TokenId};

/// What one slot holds.
#[derive(Clone, Debug, Default)]
struct State {
    /// The tokens that are certain.
    certain: Prefix,
    /// Drafts behind them that were accepted.
    accepted: Vec<TokenId>,
}

/// All slots.
#[derive(Debug)]
pub(crate) struct States(Vec<State>);

impl States {
    pub fn new(slots: usize) -> Self {
        Self(vec![State::default(); slots])
    }

    /// Checks that the slot of `segment` holds its sequence, which has the tokens `before` so far.
    pub fn check(&self, segment: &Segment, before: Prefix) -> Result<(), String> {
        if self.0.is_empty() {
            return Ok(());
        }
        let Segment { sequence, start, .. } = segment;
        let slot = segment.state_slot.ok_or_else(|| format!("{sequence:?} has no state slot"))?;
        let state = self.get(slot)?;
        if *start == 0 {
            return Ok(());
        }
        let known = state.certain.len() + state.accepted.len();
        if known != *start {
            return Err(format!("{slot:?} holds {known} tokens, {sequence:?} starts at {start}"));
        }
        if state.at(*start) != Some(before) {
            return Err(format!("{slot:?} holds other tokens than {sequence:?}"));
        }
        Ok(())
    }

    /// Makes the slot of a segment hold it: its certain tokens behind `before`, and the drafts that
    /// were accepted.
    pub fn extend(
        &mut self,
        segment: &Segment,
        before: Prefix,
        certain: &[TokenId],
        accepted: &[TokenId],
    ) {
        let slot = segment.state_slot.and_then(|SlotId(slot)| self.0.get_mut(slot as usize));
        let Some(state) = slot else { return };
        state.certain = before;
        certain.iter().for_each(|&token| state.certain.push(token));
        state.accepted.clear();
        state.accepted.extend_from_slice(accepted);
    }

    /// The slot's content is lost.
    pub fn lose(&mut self, slot: Option<SlotId>) {
        let slot = slot.and_then(|SlotId(slot)| self.0.get_mut(slot as usize));
        if let Some(state) = slot {
            *state = State::default();
        }
    }

    /// The prefix that `slot` holds up to `position`.
    pub fn at(&self, slot: SlotId, position: usize) -> Result<Prefix, String> {
        let missing = || format!("{slot:?} holds nothing at position {position}");
        self.get(slot)?.at(position).ok_or_else(missing)
    }

    /// Makes `slot` hold exactly this.
    pub fn set(&mut self, slot: SlotId, certain: Prefix) -> Result<(), String> {
        self.get(slot)?;
        self.0[slot.0 as usize] = State { certain, accepted: Vec::new() };
        Ok(())
    }

    fn get(&self, slot: SlotId) -> Result<&State, String> {
        self.0.get(slot.0 as usize).ok_or_else(|| format!("{slot:?} does not exist"))
    }
}

impl State {
    /// The prefix up to `position`, if the state can tell.
    fn at(&self, position: usize) -> Option<Prefix> {
        let ahead = position.checked_sub(self.certain.len())?;
        let mut prefix = self.certain;
        self.accepted.get(..ahead)?.iter().for_each(|&token| prefix.push(token));
        Some(prefix)
    }
}
