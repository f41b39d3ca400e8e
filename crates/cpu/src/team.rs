//! A spin-then-park thread team.
//!
//! A decode step has hundreds of parallel regions of some ten microseconds each. Waking a parked
//! thread costs as much as such a region, so members spin between regions and park only when no
//! work has come for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle, Thread};

/// Turns of the spin loop before a member parks: a few hundred microseconds.
const SPINS_BEFORE_PARK: u32 = 20_000;

/// A region: called once on every member with the member's index.
type Region = *const (dyn Fn(usize) + Sync);

struct Shared {
    /// Counts regions; a change starts one.
    epoch: AtomicUsize,
    /// The running region; written before `epoch` changes, read after.
    region: std::cell::UnsafeCell<Option<Region>>,
    /// Members that have not finished the region.
    busy: AtomicUsize,
    panicked: AtomicBool,
    closing: AtomicBool,
    parked: Vec<AtomicBool>,
}

// SAFETY: `region` is written only by the leader while no member runs (busy is 0), and read by
// members only after they acquired the epoch that the leader released after writing.
unsafe impl Sync for Shared {}
// SAFETY: the pointer inside is only followed during `Team::run`, which outlives every use.
unsafe impl Send for Shared {}

/// Threads that run regions together with their caller.
pub(crate) struct Team {
    shared: Arc<Shared>,
    members: Vec<JoinHandle<()>>,
    handles: Vec<Thread>,
}

impl Team {
    /// A team of `threads`, the caller included.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let others = threads.saturating_sub(1);
        let shared = Arc::new(Shared {
            epoch: AtomicUsize::new(0),
            region: std::cell::UnsafeCell::new(None),
            busy: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            parked: (0..others).map(|_| AtomicBool::new(false)).collect(),
        });
        let mut members = Vec::with_capacity(others);
        for index in 0..others {
            let shared = Arc::clone(&shared);
            let builder = thread::Builder::new().name(format!("cpu-{}", index + 1));
            members.push(builder.spawn(move || member(&shared, index))?);
        }
        let handles = members.iter().map(|member| member.thread().clone()).collect();
        Ok(Team { shared, members, handles })
    }

    /// Threads, the caller included.
    pub fn threads(&self) -> usize {
        self.members.len() + 1
    }

    /// Runs `region(i)` for every member `i`, the caller being 0, and waits for all.
    ///
    /// # Panics
    /// If a member panicked.
    pub fn run(&mut self, region: &(dyn Fn(usize) + Sync)) {
        if self.members.is_empty() {
            return region(0);
        }
        let shared = &*self.shared;
        shared.busy.store(self.members.len(), Ordering::Relaxed);
        // SAFETY: no member runs now, so none reads the cell. Only the lifetime is erased: this
        // function returns, or unwinds, only after every member is done with the region.
        unsafe {
            *shared.region.get() =
                Some(std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), Region>(region));
        }
        // Sequentially consistent together with the member's store to `parked`: either the member
        // sees the new epoch, or we see that it parked.
        shared.epoch.fetch_add(1, Ordering::SeqCst);
        for (parked, handle) in shared.parked.iter().zip(&self.handles) {
            if parked.load(Ordering::SeqCst) {
                handle.unpark();
            }
        }
        let own = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| region(0)));
        let mut spins = 0u32;
        while shared.busy.load(Ordering::Acquire) != 0 {
            relax(&mut spins);
        }
        if let Err(payload) = own {
            std::panic::resume_unwind(payload);
        }
        assert!(!shared.panicked.swap(false, Ordering::Relaxed), "a member of the team panicked");
    }
}

/// Spins politely; gives the processor away now and then, so that an oversubscribed machine moves.
fn relax(spins: &mut u32) {
    *spins += 1;
    if spins.is_multiple_of(4096) {
        thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

fn member(shared: &Shared, index: usize) {
    let mut seen = 0;
    loop {
        let mut spins = 0;
        while shared.epoch.load(Ordering::SeqCst) == seen {
            if shared.closing.load(Ordering::Relaxed) {
                return;
            }
            if spins < SPINS_BEFORE_PARK {
                relax(&mut spins);
                continue;
            }
            shared.parked[index].store(true, Ordering::SeqCst);
            if shared.epoch.load(Ordering::SeqCst) == seen && !shared.closing.load(Ordering::SeqCst)
            {
                thread::park();
            }
            shared.parked[index].store(false, Ordering::SeqCst);
        }
        seen += 1;
        // SAFETY: the leader wrote the cell before it released this epoch, and keeps the region
        // alive until `busy` falls to 0 below.
        let region = unsafe { (*shared.region.get()).map(|region| &*region) };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            if let Some(region) = region {
                region(index + 1);
            }
        }));
        if outcome.is_err() {
            shared.panicked.store(true, Ordering::Relaxed);
        }
        shared.busy.fetch_sub(1, Ordering::Release);
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        self.handles.iter().for_each(Thread::unpark);
        for member in self.members.drain(..) {
            // A member's panic was already told by the region that it happened in.
            drop(member.join());
        }
    }
}

/// The share of `count` items that member `index` of `members` takes.
pub(crate) fn share(count: usize, index: usize, members: usize) -> std::ops::Range<usize> {
    count * index / members..count * (index + 1) / members
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_member_runs_every_region() {
        let mut team = Team::new(3).unwrap();
        let counts: [AtomicUsize; 3] = Default::default();
        for _ in 0..10_000 {
            team.run(&|i| {
                counts[i].fetch_add(1, Ordering::Relaxed);
            });
        }
        assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 10_000));
    }

    #[test]
    fn parked_members_wake() {
        let mut team = Team::new(2).unwrap();
        let count = AtomicUsize::new(0);
        for _ in 0..3 {
            // Long enough for the member to park.
            while !team.shared.parked[0].load(Ordering::SeqCst) {
                thread::yield_now();
            }
            team.run(&|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
        }
        assert_eq!(count.load(Ordering::Relaxed), 6);
    }

    #[test]
    fn shares_cover_everything_once() {
        for count in [0, 1, 7, 100] {
            let all: Vec<usize> = (0..3).flat_map(|i| share(count, i, 3)).collect();
            assert_eq!(all, (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_survives() {
        let mut team = Team::new(2).unwrap();
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            team.run(&|i| assert!(i == 0, "on purpose"));
        }));
        assert!(failed.is_err());
        team.run(&|_| {});
    }
}
