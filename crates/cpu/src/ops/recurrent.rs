//! Recurrent ops: checks, then regions of kernels, then the bookkeeping of slots.

use super::{Activations, CpuOps, ensure, same_width, shared};
use crate::OpError;
use crate::buffer::{Buffer, Shared};
use crate::isa::dispatch;
use crate::recurrent::{BLOCK_VECTORS, Conv, Delta, Prepare, Replay, Run, prepared_len};
use crate::simd::LANES;
use crate::state::{Lengths, StatePool};
use laneway_execution::SlotId;
use laneway_ops::{DeltaRows, DeltaSpec, Frontier};
use std::sync::atomic::AtomicUsize;

/// Room for the recurrent ops of a step, made with the pool.
pub(super) struct Scratch {
    /// What the delta rule needs of each row.
    prepared: Buffer<f32>,
    /// A column block a thread.
    ahead: Buffer<f32>,
    /// Cell and accepted drafts of each segment.
    places: Vec<(usize, usize)>,
    rings: Vec<*const f32>,
    runs: Vec<Run>,
}

// SAFETY: the pointers are of the step that is under way; between steps nobody follows them.
unsafe impl Send for Scratch {}

impl Scratch {
    pub fn empty() -> Result<Self, OpError> {
        Ok(Scratch {
            prepared: Buffer::zeroed("new", 0)?,
            ahead: Buffer::zeroed("new", 0)?,
            places: Vec::new(),
            rings: Vec::new(),
            runs: Vec::new(),
        })
    }
}

/// Elements of a column block.
const fn ahead_len(spec: &DeltaSpec) -> usize {
    spec.key_dim * BLOCK_VECTORS * LANES
}

/// The runs of a step, as members of a region see them.
#[derive(Clone, Copy)]
struct Runs<'a>(&'a [Run]);

// SAFETY: an item of a run is taken by one member, and items touch disjoint columns.
unsafe impl Sync for Runs<'_> {}

impl<'a> Runs<'a> {
    fn get(self) -> &'a [Run] {
        self.0
    }
}

/// The rings of a step, as members of a region see them.
#[derive(Clone, Copy)]
struct Rings<'a>(&'a [*const f32]);

// SAFETY: rings are only read while a region runs.
unsafe impl Sync for Rings<'_> {}

impl<'a> Rings<'a> {
    fn get(self) -> &'a [*const f32] {
        self.0
    }
}

impl CpuOps {
    pub(super) fn state_pool(&mut self, spec: &DeltaSpec) -> Result<StatePool, OpError> {
        const OP: &str = "new_state_pool";
        let pool = StatePool::new(spec)?;
        let (rows, threads) = (self.workspace.rows, self.team.threads());
        self.recurrent.prepared = Buffer::zeroed(OP, rows * prepared_len(spec))?;
        self.recurrent.ahead = Buffer::zeroed(OP, threads * ahead_len(spec))?;
        Ok(pool)
    }

    pub(super) fn conv(
        &mut self,
        pool: &mut StatePool,
        layer: usize,
        weight: &[f32],
        x: &Activations,
        out: &mut Activations,
    ) -> Result<(), OpError> {
        const OP: &str = "causal_conv";
        let spec = pool.spec;
        let channels = spec.channels();
        self.full_step(OP, x)?;
        for width in [x.width, out.width] {
            same_width(OP, width, channels)?;
        }
        same_width(OP, weight.len(), spec.kernel * channels)?;
        out.rows = x.rows;
        let mut scratch = std::mem::replace(&mut self.recurrent, Scratch::empty()?);
        let result = self.place(OP, pool, layer, &pool.seen, &mut scratch.places);
        if result.is_ok() {
            let ring =
                |&(cell, _): &(usize, usize)| pool.rows[cell * Lengths::of(&spec).rows..].as_ptr();
            scratch.rings.clear();
            scratch.rings.extend(scratch.places.iter().map(ring));
            let segments = std::mem::take(&mut self.batch.segments);
            let (from, to) = (Shared(x.data.as_ptr().cast_mut()), shared(out));
            let rings = Rings(&scratch.rings);
            self.over_rows(x.rows, spec.kernel * channels, |rows| Conv {
                spec: &spec,
                weight: weight.as_ptr(),
                x: from.get(),
                out: to.get(),
                rings: rings.get(),
                segments: &segments,
                rows,
            });
            for (segment, &(cell, _)) in segments.iter().zip(&scratch.places) {
                // The rows that a later segment may see, wherever it starts.
                let kept = segment.rows.len().min(Lengths::of(&spec).ring);
                for row in segment.rows.end - kept..segment.rows.end {
                    let place = pool.row(cell, segment.start + (row - segment.rows.start));
                    pool.rows[place].copy_from_slice(&x.data[row * channels..][..channels]);
                }
                pool.seen[cell] = Frontier::behind(segment);
            }
            self.batch.segments = segments;
        }
        self.recurrent = scratch;
        result
    }

    pub(super) fn delta(
        &mut self,
        pool: &mut StatePool,
        layer: usize,
        rows: &DeltaRows<'_, Self>,
        out: &mut Activations,
    ) -> Result<(), OpError> {
        const OP: &str = "gated_delta";
        let spec = pool.spec;
        let &DeltaRows { qkv, alpha, beta, rate, bias } = rows;
        same_width(OP, qkv.width, spec.channels())?;
        same_width(OP, out.width, spec.value_width())?;
        for width in [alpha.width, beta.width, rate.len(), bias.len()] {
            same_width(OP, width, spec.value_heads)?;
        }
        for x in [qkv, alpha, beta] {
            self.full_step(OP, x)?;
        }
        out.rows = qkv.rows;
        let mut scratch = std::mem::replace(&mut self.recurrent, Scratch::empty()?);
        let result = self.place(OP, pool, layer, &pool.held, &mut scratch.places);
        if result.is_ok() {
            self.run_delta(pool, rows, &mut scratch, out);
            log_drafts(pool, &self.batch.segments, qkv, &scratch);
        }
        self.recurrent = scratch;
        result
    }

    /// Two regions: what each row brings, then what it does to the state.
    fn run_delta(
        &mut self,
        pool: &mut StatePool,
        rows: &DeltaRows<'_, Self>,
        scratch: &mut Scratch,
        out: &mut Activations,
    ) {
        let spec = pool.spec;
        let &DeltaRows { qkv, alpha, beta, rate, bias } = rows;
        let shared_in = |x: &Activations| Shared(x.data.as_ptr().cast_mut());
        let (qkv_in, alpha, beta) = (shared_in(qkv), shared_in(alpha), shared_in(beta));
        let prepared = Shared(scratch.prepared.as_mut_ptr());
        self.over_rows(qkv.rows, 4 * spec.key_width(), |rows| Prepare {
            spec: &spec,
            qkv: qkv_in.get(),
            alpha: alpha.get(),
            beta: beta.get(),
            rate,
            bias,
            out: prepared.get(),
            rows,
        });
        scratch.runs.clear();
        for (segment, &(cell, accepted)) in self.batch.segments.iter().zip(&scratch.places) {
            let Lengths { matrices, log, .. } = Lengths::of(&spec);
            scratch.runs.push(Run {
                row: segment.rows.start,
                certain: segment.rows.len() - segment.drafts,
                drafts: segment.drafts,
                fresh: segment.start == 0,
                accepted,
                matrices: pool.matrices[cell * matrices..].as_mut_ptr(),
                log: pool.log[cell * log..].as_ptr(),
            });
        }
        let runs = Runs(&scratch.runs);
        let (out, ahead) = (shared(out), Shared(scratch.ahead.as_mut_ptr()));
        let (isa, next) = (self.isa, &AtomicUsize::new(0));
        let members = self.members_for(qkv.rows * spec.matrix_elements());
        self.members(members, &|member| {
            let kernel = Delta {
                spec: &spec,
                runs: runs.get(),
                qkv: qkv_in.get(),
                prepared: prepared.get(),
                out: out.get(),
                // SAFETY: every member has a block of its own.
                ahead: unsafe { ahead.get().add(member * ahead_len(&spec)) },
                next,
            };
            // SAFETY: shapes and places are checked by the caller; an item is one member's.
            unsafe { dispatch(isa, kernel) };
        });
    }

    /// Finds the state of every segment.
    fn place(
        &self,
        op: &'static str,
        pool: &StatePool,
        layer: usize,
        frontiers: &[Frontier],
        places: &mut Vec<(usize, usize)>,
    ) -> Result<(), OpError> {
        places.clear();
        for segment in &self.batch.segments {
            places.push(pool.place(op, layer, segment, frontiers)?);
        }
        Ok(())
    }

    pub(super) fn copy_slot(
        &self,
        pool: &mut StatePool,
        from: SlotId,
        to: SlotId,
        position: usize,
    ) -> Result<(), OpError> {
        const OP: &str = "copy_state";
        let accepted = pool.accepted(OP, from, position)?;
        let Lengths { rows, matrices, log, .. } = Lengths::of(&pool.spec);
        for layer in 0..pool.spec.layers {
            let (from, to) = (pool.cell(OP, layer, from)?, pool.cell(OP, layer, to)?);
            pool.rows.copy_within(from * rows..(from + 1) * rows, to * rows);
            pool.matrices.copy_within(from * matrices..(from + 1) * matrices, to * matrices);
            let (log, spec) = (pool.log[from * log..].as_ptr(), pool.spec);
            let matrices = pool.matrices[to * matrices..].as_mut_ptr();
            // SAFETY: both belong to cells of the pool.
            unsafe { dispatch(self.isa, Replay { spec: &spec, matrices, log, accepted }) };
            pool.settle(to, position);
        }
        Ok(())
    }

    pub(super) fn save_slot(
        &self,
        pool: &StatePool,
        slot: SlotId,
        position: usize,
        image: &mut Vec<u8>,
    ) -> Result<(), OpError> {
        const OP: &str = "save_state";
        let accepted = pool.accepted(OP, slot, position)?;
        let spec = pool.spec;
        let lengths = Lengths::of(&spec);
        image.clear();
        let mut settled = Vec::with_capacity(lengths.matrices);
        for layer in 0..spec.layers {
            let cell = pool.cell(OP, layer, slot)?;
            for back in (1..=spec.window()).rev() {
                match position.checked_sub(back) {
                    Some(row) => put(image, &pool.rows[pool.row(cell, row)]),
                    None => image.resize(image.len() + size_of::<f32>() * spec.channels(), 0),
                }
            }
            settled.clear();
            settled
                .extend_from_slice(&pool.matrices[cell * lengths.matrices..][..lengths.matrices]);
            let log = pool.log[cell * lengths.log..].as_ptr();
            let replay = Replay { spec: &spec, matrices: settled.as_mut_ptr(), log, accepted };
            // SAFETY: the copy has all matrices of a cell, the log belongs to it.
            unsafe { dispatch(self.isa, replay) };
            put(image, &settled);
        }
        Ok(())
    }

    pub(super) fn load_slot(
        &self,
        pool: &mut StatePool,
        slot: SlotId,
        position: usize,
        image: &[u8],
    ) -> Result<(), OpError> {
        const OP: &str = "load_state";
        let spec = pool.spec;
        let (found, wanted) = (image.len(), spec.image_bytes());
        ensure(OP, found == wanted, || format!("{found} bytes, an image has {wanted}"))?;
        let mut values = image.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        let matrices = Lengths::of(&spec).matrices;
        for layer in 0..spec.layers {
            let cell = pool.cell(OP, layer, slot)?;
            for back in (1..=spec.window()).rev() {
                let row = values.by_ref().take(spec.channels());
                if let Some(position) = position.checked_sub(back) {
                    let place = pool.row(cell, position);
                    pool.rows[place].iter_mut().zip(row).for_each(|(to, from)| *to = from);
                } else {
                    row.for_each(drop);
                }
            }
            let to = &mut pool.matrices[cell * matrices..(cell + 1) * matrices];
            to.iter_mut().zip(values.by_ref()).for_each(|(to, from)| *to = from);
            pool.settle(cell, position);
        }
        Ok(())
    }
}

fn put(image: &mut Vec<u8>, values: &[f32]) {
    image.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}

/// Keeps what the drafts of a step would do, and says how far the state goes now.
fn log_drafts(
    pool: &mut StatePool,
    segments: &[laneway_execution::Segment],
    qkv: &Activations,
    scratch: &Scratch,
) {
    let spec = pool.spec;
    let lengths = Lengths::of(&spec);
    let (keys, values) = (spec.key_width(), spec.value_width());
    for (segment, &(cell, _)) in segments.iter().zip(&scratch.places) {
        for (draft, row) in (segment.rows.end - segment.drafts..segment.rows.end).enumerate() {
            let prepared = &scratch.prepared[row * prepared_len(&spec)..][..prepared_len(&spec)];
            let first = cell * lengths.log + draft * lengths.update;
            let (k, rest) = pool.log[first..first + lengths.update].split_at_mut(keys);
            let (v, gates) = rest.split_at_mut(values);
            k.copy_from_slice(&prepared[keys..2 * keys]);
            v.copy_from_slice(&qkv.data[row * qkv.width + 2 * keys..][..values]);
            gates.copy_from_slice(&prepared[2 * keys..]);
        }
        pool.held[cell] = Frontier::behind(segment);
    }
}
