//! The fixed stock of pages, and of slots for recurrent state.

use laneway_execution::{PageId, SlotId};

/// Pages and slots that nobody holds.
#[derive(Debug)]
pub(crate) struct Pool {
    free: Vec<PageId>,
    pages: usize,
    slots: Vec<SlotId>,
}

impl Pool {
    pub fn new(pages: usize, slots: usize) -> Self {
        let id = |index| u32::try_from(index).expect("pages and slots are counted in 32 bits");
        Self {
            // Taken from the end, so that low numbers go first.
            free: (0..pages).rev().map(|page| PageId(id(page))).collect(),
            pages,
            slots: (0..slots).rev().map(|slot| SlotId(id(slot))).collect(),
        }
    }

    pub fn used(&self) -> usize {
        self.pages - self.free.len()
    }

    pub fn capacity(&self) -> usize {
        self.pages
    }

    /// Grows a block table to `pages` pages; false, without any change, if there are too few.
    #[must_use]
    pub fn grow(&mut self, table: &mut Vec<PageId>, pages: usize) -> bool {
        let more = pages.saturating_sub(table.len());
        if more > self.free.len() {
            return false;
        }
        table.extend(self.free.drain(self.free.len() - more..).rev());
        true
    }

    /// Grows a block table towards `pages` pages, as far as there are any.
    pub fn grow_some(&mut self, table: &mut Vec<PageId>, pages: usize) {
        let most = table.len() + self.free.len();
        let grown = self.grow(table, pages.min(most));
        debug_assert!(grown, "no more is asked for than there is");
    }

    /// Takes the pages of a block table behind the first `pages` back.
    pub fn shrink(&mut self, table: &mut Vec<PageId>, pages: usize) {
        let kept = pages.min(table.len());
        self.free.extend(table.drain(kept..).rev());
        debug_assert!(self.free.len() <= self.pages, "a page came back twice");
    }

    /// Takes all pages of a block table back.
    pub fn release(&mut self, table: &mut Vec<PageId>) {
        self.shrink(table, 0);
    }

    pub fn take_slot(&mut self) -> Option<SlotId> {
        self.slots.pop()
    }

    pub fn release_slot(&mut self, slot: Option<SlotId>) {
        self.slots.extend(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_all_or_nothing() {
        let mut pool = Pool::new(3, 0);
        let (mut first, mut second) = (Vec::new(), Vec::new());
        assert!(pool.grow(&mut first, 2));
        assert!(!pool.grow(&mut second, 2));
        assert_eq!((first.len(), second.len(), pool.used()), (2, 0, 2));
        assert!(pool.grow(&mut first, 1), "never shrinks");
        pool.release(&mut first);
        assert!(pool.grow(&mut second, 3));
        assert_eq!((pool.used(), pool.capacity()), (3, 3));
    }

    #[test]
    fn some_growth_takes_what_there_is_and_gives_it_back() {
        let mut pool = Pool::new(3, 0);
        let (mut first, mut second) = (Vec::new(), Vec::new());
        assert!(pool.grow(&mut first, 1));
        pool.grow_some(&mut second, 5);
        assert_eq!((second.len(), pool.used()), (2, 3));
        pool.grow_some(&mut first, 2);
        assert_eq!(first.len(), 1, "there is none");
        pool.shrink(&mut second, 1);
        pool.grow_some(&mut first, 2);
        assert_eq!((first.len(), second.len(), pool.used()), (2, 1, 3));
    }
}
