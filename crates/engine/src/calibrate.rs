//! Learning how fast an executor is before the first request.

use laneway_execution::{Executor, PageId, SequenceId, SlotId, StepBatch, StepOutput, pages_for};
use laneway_plan::{PrefillFit, attended_pairs};
use std::time::{Duration, Instant};

/// How long a start may take longer for it.
const BUDGET: Duration = Duration::from_millis(150);

/// Rows of the first step.
const FIRST_ROWS: usize = 8;

/// Sequence of all these steps; requests are numbered from below.
const SCRATCH: SequenceId = SequenceId(u64::MAX);

/// Runs steps of growing size on pages that nobody uses yet, as long as the next one is likely to
/// end within the budget.
pub(crate) fn calibrate<E: Executor>(executor: &mut E, chunk: usize, fit: &mut PrefillFit) {
    let start = Instant::now();
    let limits = *executor.limits();
    let chunk = chunk.min(limits.rows_per_step);
    let tokens = vec![0; chunk];
    let mut batch = StepBatch::default();
    let mut output = StepOutput::default();
    let slot = (limits.state_slots > 0).then_some(SlotId(0));
    let mut rows = FIRST_ROWS.min(chunk);
    let mut present = 0;
    // The first step touches memory for the first time, which no later one does.
    let mut warm = false;
    while rows > 0 && pages_for(present + rows) <= limits.pages {
        let pages: Vec<PageId> = (0..).take(pages_for(present + rows)).map(PageId).collect();
        batch.clear();
        batch.push_segment(SCRATCH, present, &tokens[..rows], &pages, slot);
        let began = Instant::now();
        if let Err(error) = executor.step(&batch, &mut output) {
            tracing::debug!(%error, "calibration ended early");
            return;
        }
        let took = began.elapsed();
        let mut next = rows;
        let first = !std::mem::replace(&mut warm, true);
        if !first {
            fit.observe(rows, attended_pairs(present, rows), took);
            present += rows;
            next = (rows * 2).min(chunk);
        }
        let likely = took.mul_f64(next as f64 / rows as f64 * 1.25);
        if start.elapsed() + likely > BUDGET {
            if first {
                // On a machine this slow a rough figure is better than none, which predicts 0.
                fit.observe(rows, attended_pairs(0, rows), took);
            }
            return;
        }
        rows = next;
    }
}
