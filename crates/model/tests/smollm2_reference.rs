//! The forward pass on a real model: SmolLM2-135M on the reference backend against llama.cpp.
//!
//! The reference backend is slow, so the longest prompt is left to faster ones.

mod golden;

use golden::{free_running, load, recordings, teacher_forced};
use laneway_numerics::KvDtype;
use laneway_ops::reference::ReferenceOps;

#[test]
fn greedy_tokens_and_log_probabilities() {
    let mut model = load(ReferenceOps::new, KvDtype::F32);
    for recording in recordings().iter().filter(|r| r.prompt.len() < 100) {
        let found = teacher_forced(&mut model, recording);
        assert_eq!(found.equal_tokens, found.positions, "{}", recording.name);
        assert!(found.mean_logprob <= 0.01, "{}: {found:?}", recording.name);
        assert!(found.max_logprob <= 0.05, "{}: {found:?}", recording.name);
    }
}

#[test]
fn free_running_continuations() {
    let mut model = load(ReferenceOps::new, KvDtype::F32);
    let mut recordings = recordings();
    recordings.retain(|r| r.prompt.len() < 100);
    recordings.iter_mut().for_each(|r| r.tokens.truncate(16));
    for (found, recording) in free_running(&mut model, &recordings).iter().zip(&recordings) {
        assert_eq!(*found, recording.tokens, "{}", recording.name);
    }
}
