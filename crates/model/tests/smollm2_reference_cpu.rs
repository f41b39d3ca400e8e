//! The CPU backend on a real model, all prompts: f32 activations against llama.cpp's recording, and
//! the fast path, which must stay closer to it than llama.cpp's own 8-bit run does.

mod golden;

use golden::{free_running, load, recordings, teacher_forced};
use laneway_cpu::{CpuConfig, CpuOps, Precision};
use laneway_numerics::KvDtype;
use laneway_ops::Workspace;

fn cpu(precision: Precision) -> impl Fn(Workspace) -> CpuOps {
    move |workspace| {
        let config = CpuConfig { threads: 2, precision, isa: None, workspace };
        CpuOps::new(config).expect("a CPU backend")
    }
}

#[test]
fn f32_activations_reproduce_the_recording() {
    let mut model = load(cpu(Precision::F32), KvDtype::F32);
    let recordings = recordings();
    for recording in &recordings {
        let found = teacher_forced(&mut model, recording);
        assert_eq!(found.equal_tokens, found.positions, "{}", recording.name);
        assert!(found.mean_logprob <= 0.01, "{}: {found:?}", recording.name);
        assert!(found.max_logprob <= 0.05, "{}: {found:?}", recording.name);
    }
    for (found, recording) in free_running(&mut model, &recordings).iter().zip(&recordings) {
        assert_eq!(*found, recording.tokens, "{}", recording.name);
    }
}

/// llama.cpp's own run on the Q4_1 file is 0.086 away from the recording of exact arithmetic.
#[test]
fn fast_path_is_closer_than_the_peer() {
    let mut model = load(cpu(Precision::Int12), KvDtype::F16);
    let recordings = recordings();
    let (mut sum, mut count) = (0.0, 0);
    for recording in &recordings {
        let found = teacher_forced(&mut model, recording);
        sum += found.mean_logprob * found.positions as f64;
        count += found.positions;
    }
    let mean = sum / count as f64;
    assert!(mean <= 0.08, "mean |Δ log probability| {mean}");
}
