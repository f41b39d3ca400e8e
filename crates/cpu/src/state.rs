//! The pool of recurrent state.
//!
//! Per layer and slot: the rows that the convolution may still see, as a ring by position; the
//! delta matrices, `[value head][key element][value element]`, so that a column block streams with
//! the stride of a row; and a log of what the drafts behind the frontier would do to them.

use crate::OpError;
use crate::buffer::Buffer;
use crate::simd::LANES;
use laneway_execution::{Segment, SlotId};
use laneway_ops::{DeltaSpec, Frontier};

/// Most taps of a convolution.
pub(crate) const TAPS_MAX: usize = 8;

/// A pool of recurrent state.
pub struct StatePool {
    pub(crate) spec: DeltaSpec,
    pub(crate) rows: Buffer<f32>,
    pub(crate) matrices: Buffer<f32>,
    pub(crate) log: Buffer<f32>,
    /// For each layer and slot how far the convolution's rows go.
    pub(crate) seen: Vec<Frontier>,
    /// For each layer and slot how far the matrices go.
    pub(crate) held: Vec<Frontier>,
}

/// Lengths within a pool, in elements.
#[derive(Clone, Copy)]
pub(crate) struct Lengths {
    /// Rows of a ring.
    pub ring: usize,
    /// A slot's rows.
    pub rows: usize,
    /// A slot's matrices.
    pub matrices: usize,
    /// One logged row: keys, values, and decay and beta of each value head.
    pub update: usize,
    /// A slot's log.
    pub log: usize,
}

impl Lengths {
    pub const fn of(spec: &DeltaSpec) -> Self {
        let ring = spec.window() + spec.drafts;
        let update = spec.key_width() + spec.value_width() + 2 * spec.value_heads;
        Lengths {
            ring,
            rows: ring * spec.channels(),
            matrices: spec.matrix_elements(),
            update,
            log: spec.drafts * update,
        }
    }
}

/// Bytes of a pool.
pub(crate) const fn pool_bytes(spec: &DeltaSpec) -> usize {
    let Lengths { rows, matrices, log, .. } = Lengths::of(spec);
    spec.layers * spec.slots * (rows + matrices + log) * size_of::<f32>()
}

impl StatePool {
    pub(crate) fn new(spec: &DeltaSpec) -> Result<Self, OpError> {
        const OP: &str = "new_state_pool";
        let shape = |detail| OpError::Shape { op: OP, detail };
        if let Some(fault) = spec.fault() {
            return Err(shape(fault));
        }
        let DeltaSpec { value_dim, kernel, .. } = *spec;
        let channels = spec.channels();
        if !value_dim.is_multiple_of(LANES) || !channels.is_multiple_of(LANES) || kernel > TAPS_MAX
        {
            return Err(shape(format!(
                "value heads of {value_dim}, {channels} channels, {kernel} taps: expected \
                 multiples of {LANES}, and at most {TAPS_MAX} taps"
            )));
        }
        let cells = spec.layers * spec.slots;
        let Lengths { rows, matrices, log, .. } = Lengths::of(spec);
        Ok(StatePool {
            spec: *spec,
            rows: Buffer::zeroed(OP, cells.saturating_mul(rows))?,
            matrices: Buffer::zeroed(OP, cells.saturating_mul(matrices))?,
            log: Buffer::zeroed(OP, cells.saturating_mul(log))?,
            seen: vec![Frontier::default(); cells],
            held: vec![Frontier::default(); cells],
        })
    }

    /// Index of a layer's state in a slot.
    pub(crate) fn cell(
        &self,
        op: &'static str,
        layer: usize,
        slot: SlotId,
    ) -> Result<usize, OpError> {
        let DeltaSpec { layers, slots, .. } = self.spec;
        let at = slot.0 as usize;
        if layer < layers && at < slots {
            return Ok(layer * slots + at);
        }
        let detail = format!("layer {layer} of {layers}, slot {at} of {slots}");
        Err(OpError::Shape { op, detail })
    }

    /// The cell of a segment, and how many of its drafts are accepted, by one of the frontiers.
    pub(crate) fn place(
        &self,
        op: &'static str,
        layer: usize,
        segment: &Segment,
        frontiers: &[Frontier],
    ) -> Result<(usize, usize), OpError> {
        let shape = |detail| OpError::Shape { op, detail };
        let slot = segment.state_slot;
        let slot = slot.ok_or_else(|| shape("a segment without a slot".to_owned()))?;
        let cell = self.cell(op, layer, slot)?;
        let most = self.spec.drafts;
        if segment.drafts > most {
            return Err(shape(format!("{} drafts, at most {most}", segment.drafts)));
        }
        Ok((cell, frontiers[cell].before(segment).map_err(shape)?))
    }

    /// Where the row of a position lies in its ring.
    pub(crate) fn row(&self, cell: usize, position: usize) -> std::ops::Range<usize> {
        let Lengths { ring, rows, .. } = Lengths::of(&self.spec);
        let channels = self.spec.channels();
        let first = cell * rows + position % ring * channels;
        first..first + channels
    }

    /// Accepted drafts of a slot at `position`; all layers go equally far.
    pub(crate) fn accepted(
        &self,
        op: &'static str,
        slot: SlotId,
        position: usize,
    ) -> Result<usize, OpError> {
        let mut accepted = 0;
        for layer in 0..self.spec.layers {
            let cell = self.cell(op, layer, slot)?;
            for frontier in [self.seen[cell], self.held[cell]] {
                let found = frontier.accepted(position);
                accepted = found.map_err(|detail| OpError::Shape { op, detail })?;
            }
        }
        Ok(accepted)
    }

    /// Says that a slot holds exactly the tokens before `position`.
    pub(crate) fn settle(&mut self, cell: usize, position: usize) {
        let frontier = Frontier { certain: position, pending: 0 };
        (self.seen[cell], self.held[cell]) = (frontier, frontier);
    }
}
