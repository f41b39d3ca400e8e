//! A simulated executor: virtual time, hashed tokens, injected faults.
//!
//! Every page slot remembers which token of which sequence was written to it. A drawn token is a
//! hash of the prefix *as read back through the block table*, so that a page or a token that is
//! lost, doubled, misplaced or somebody else's changes the output. What can be proved wrong at
//! once, such as two sequences with the same page, is refused with a message.
//!
//! The same holds for recurrent state, whose slots hash the exact prefix that they have seen, and
//! for the simulated drafter, which remembers how every sequence was said to go on.
#![forbid(unsafe_code)]

mod clock;
mod drafter;
mod executor;
mod state;
mod token;

pub use clock::{SimClock, StepCost};
pub use drafter::SimDrafter;
pub use executor::{Fault, SimConfig, SimExecutor};
pub use token::{Prefix, draw, score};
