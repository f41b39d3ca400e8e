//! Ctrl-C: stops a running answer, or ends the program if there is none.

use anyhow::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Exit code of programs that Ctrl-C ended.
const INTERRUPTED: i32 = 130;

const IDLE: u8 = 0;
const ANSWERING: u8 = 1;
const RAISED: u8 = 2;

/// Watches for Ctrl-C for the rest of the program.
pub(super) struct Interrupt(Arc<AtomicU8>);

/// While this lives, Ctrl-C stops the answer instead of the program.
pub(super) struct Answering<'a>(&'a AtomicU8);

impl Interrupt {
    /// Starts watching, on a thread of its own.
    pub(super) fn watch() -> Result<Self> {
        let state = Arc::new(AtomicU8::new(IDLE));
        let watched = Arc::clone(&state);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("interrupt".into()).spawn(move || {
            runtime.block_on(async {
                while tokio::signal::ctrl_c().await.is_ok() {
                    let stopped = watched.compare_exchange(
                        ANSWERING,
                        RAISED,
                        Ordering::SeqCst,
                        Ordering::SeqCst,
                    );
                    // A second Ctrl-C, or one at the prompt, means the program.
                    if stopped.is_err() {
                        std::process::exit(INTERRUPTED);
                    }
                }
            });
        })?;
        Ok(Interrupt(state))
    }

    /// An answer begins.
    pub(super) fn during_answer(&self) -> Answering<'_> {
        self.0.store(ANSWERING, Ordering::SeqCst);
        Answering(&self.0)
    }

    /// True if the answer is to be stopped.
    pub(super) fn is_raised(&self) -> bool {
        self.0.load(Ordering::SeqCst) == RAISED
    }
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.0.store(IDLE, Ordering::SeqCst);
    }
}
