//! Events of one request, on their way from the engine's thread to the connection.
//!
//! The engine must never wait for a slow reader, and a fast reader must not poll. The mailbox is
//! bounded by the request itself: progress reports replace each other, and there are no more
//! tokens than the request may generate.

use laneway_engine::{Event, EventSink};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// The engine's end.
pub(crate) struct Inlet(Arc<Shared>);

/// The connection's end.
pub(crate) struct Mailbox(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<Contents>,
    arrived: Notify,
}

#[derive(Default)]
struct Contents {
    events: VecDeque<Event>,
    /// The engine has let go of its end.
    closed: bool,
}

/// The two ends of a new mailbox.
pub(crate) fn mailbox() -> (Inlet, Mailbox) {
    let shared = Arc::new(Shared::default());
    (Inlet(Arc::clone(&shared)), Mailbox(shared))
}

impl Shared {
    /// Contents are valid after every single change, so a panic elsewhere does not matter here.
    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventSink for Inlet {
    fn send(&mut self, event: Event) {
        let mut contents = self.0.lock();
        if let (Event::PrefillProgress { .. }, Some(last @ Event::PrefillProgress { .. })) =
            (&event, contents.events.back_mut())
        {
            *last = event;
        } else {
            contents.events.push_back(event);
        }
        drop(contents);
        self.0.arrived.notify_one();
    }
}

impl Drop for Inlet {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.arrived.notify_one();
    }
}

impl Mailbox {
    /// The next event if it is there already.
    pub fn try_receive(&mut self) -> Option<Event> {
        self.0.lock().events.pop_front()
    }

    /// The next event; `None` once the engine has let go and everything is read.
    ///
    /// Nothing is lost if the future is dropped before it resolves.
    pub async fn receive(&mut self) -> Option<Event> {
        loop {
            {
                let mut contents = self.0.lock();
                if let Some(event) = contents.events.pop_front() {
                    return Some(event);
                }
                if contents.closed {
                    return None;
                }
            }
            // One reader, and a notification that comes in between is kept: no wake-up is lost.
            self.0.arrived.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(done: usize) -> Event {
        Event::PrefillProgress { done, total: 9, cached: 0 }
    }

    fn token(token: u32) -> Event {
        Event::Token { token, logprob: 0.0, top: Vec::new() }
    }

    #[tokio::test]
    async fn events_come_in_order_and_progress_only_once() {
        let (mut inlet, mut mailbox) = mailbox();
        for event in [progress(1), progress(2), token(7), progress(3), progress(4)] {
            inlet.send(event);
        }
        assert!(matches!(mailbox.receive().await, Some(Event::PrefillProgress { done: 2, .. })));
        assert!(matches!(mailbox.try_receive(), Some(Event::Token { token: 7, .. })));
        assert!(matches!(mailbox.receive().await, Some(Event::PrefillProgress { done: 4, .. })));
        assert!(mailbox.try_receive().is_none());
        let reader =
            tokio::spawn(async move { (mailbox.receive().await, mailbox.receive().await) });
        tokio::task::yield_now().await;
        inlet.send(token(8));
        drop(inlet);
        let (first, second) = reader.await.unwrap();
        assert!(matches!(first, Some(Event::Token { token: 8, .. })));
        assert!(second.is_none());
    }
}
