//! Recurrent state in plain loops over f32.

use super::{Activations, dot, ensure, same_width};
use crate::{DeltaSpec, Frontier, OpError};
use laneway_execution::{SlotId, StepBatch};

/// One layer's state of one slot.
#[derive(Clone, Debug)]
struct Cell {
    /// How far the convolution's rows go.
    seen: Frontier,
    /// The rows before the frontier, oldest first, its drafts included.
    rows: Vec<Vec<f32>>,
    /// How far the matrices go.
    held: Frontier,
    /// `key_dim × value_dim` of each value head.
    matrices: Vec<f32>,
    /// Inputs of the drafts behind the frontier.
    log: Vec<Update>,
}

/// What one row does to the matrices of a layer.
#[derive(Clone, Debug)]
struct Update {
    /// Normed and scaled queries, normed keys, values.
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    /// For each value head.
    decay: Vec<f32>,
    beta: Vec<f32>,
}

/// State of all layers and slots.
#[derive(Clone, Debug)]
pub struct StatePool {
    spec: DeltaSpec,
    cells: Vec<Cell>,
}

impl Cell {
    fn new(spec: &DeltaSpec) -> Self {
        Cell {
            seen: Frontier::default(),
            rows: vec![vec![0.0; spec.channels()]; spec.window()],
            held: Frontier::default(),
            matrices: vec![0.0; spec.matrix_elements()],
            log: Vec::new(),
        }
    }

    /// The same cell at `position`, without drafts.
    fn at(&self, spec: &DeltaSpec, position: usize) -> Result<Self, String> {
        let mut cell = self.clone();
        let kept = self.seen.accepted(position)?;
        cell.rows.truncate(spec.window() + kept);
        cell.rows.drain(..kept);
        let accepted = self.held.accepted(position)?;
        for update in self.log.iter().take(accepted) {
            update.apply(spec, &mut cell.matrices);
        }
        cell.log.clear();
        (cell.seen, cell.held) = (certain(position), certain(position));
        Ok(cell)
    }
}

fn certain(position: usize) -> Frontier {
    Frontier { certain: position, pending: 0 }
}

impl Update {
    fn new(spec: &DeltaSpec, qkv: &[f32], gates: [&[f32]; 2], constants: [&[f32]; 2]) -> Self {
        let ([alpha, beta], [rate, bias]) = (gates, constants);
        let (q, kv) = qkv.split_at(spec.key_width());
        let (k, v) = kv.split_at(spec.key_width());
        let normed = |x: &[f32], factor: f32| {
            let heads = x.chunks(spec.key_dim).flat_map(|head| {
                let scale = (dot(head, head) + 1e-6).sqrt().recip() * factor;
                head.iter().map(move |x| x * scale)
            });
            heads.collect()
        };
        let decay = |h: usize| {
            let x = f64::from(alpha[h] + bias[h]);
            let softplus = if x > 20.0 { x } else { x.exp().ln_1p() };
            (f64::from(rate[h]) * softplus).exp() as f32
        };
        Update {
            q: normed(q, (spec.key_dim as f32).sqrt().recip()),
            k: normed(k, 1.0),
            v: v.to_vec(),
            decay: (0..spec.value_heads).map(decay).collect(),
            beta: beta.iter().map(|b| 1.0 / (1.0 + (-b).exp())).collect(),
        }
    }

    fn apply(&self, spec: &DeltaSpec, matrices: &mut [f32]) {
        let (keys, values) = (spec.key_dim, spec.value_dim);
        for (h, matrix) in matrices.chunks_mut(keys * values).enumerate() {
            let k = &self.k[spec.key_head(h) * keys..][..keys];
            let v = &self.v[h * values..][..values];
            let mut read = vec![0.0; values];
            for (k, row) in k.iter().zip(matrix.chunks(values)) {
                read.iter_mut().zip(row).for_each(|(read, s)| *read += k * s);
            }
            let (decay, beta) = (self.decay[h], self.beta[h]);
            let written: Vec<f32> =
                v.iter().zip(&read).map(|(v, read)| beta * (v - decay * read)).collect();
            for (k, row) in k.iter().zip(matrix.chunks_mut(values)) {
                row.iter_mut().zip(&written).for_each(|(s, w)| *s = decay * *s + k * w);
            }
        }
    }

    fn read(&self, spec: &DeltaSpec, matrices: &[f32], out: &mut Vec<f32>) {
        let (keys, values) = (spec.key_dim, spec.value_dim);
        for (h, matrix) in matrices.chunks(keys * values).enumerate() {
            let q = &self.q[spec.key_head(h) * keys..][..keys];
            let first = out.len();
            out.resize(first + values, 0.0);
            for (q, row) in q.iter().zip(matrix.chunks(values)) {
                out[first..].iter_mut().zip(row).for_each(|(out, s)| *out += q * s);
            }
        }
    }
}

impl StatePool {
    pub(super) fn new(spec: &DeltaSpec) -> Result<Self, OpError> {
        let fault = spec.fault();
        ensure("new_state_pool", fault.is_none(), || fault.unwrap_or_default())?;
        Ok(StatePool { spec: *spec, cells: vec![Cell::new(spec); spec.layers * spec.slots] })
    }

    fn index(&self, op: &'static str, layer: usize, slot: SlotId) -> Result<usize, OpError> {
        let DeltaSpec { layers, slots, .. } = self.spec;
        ensure(op, layer < layers, || format!("layer {layer} of {layers}"))?;
        let slot = slot.0 as usize;
        ensure(op, slot < slots, || format!("slot {slot} of {slots}"))?;
        Ok(layer * slots + slot)
    }

    /// The cells of a step's segments, each fit for its segment.
    fn cells(
        &self,
        op: &'static str,
        layer: usize,
        batch: &StepBatch,
        frontier: impl Fn(&Cell) -> Frontier,
    ) -> Result<Vec<usize>, OpError> {
        let mut found = Vec::new();
        for segment in &batch.segments {
            ensure(op, segment.state_slot.is_some(), || "a segment without a slot".to_owned())?;
            let cell = self.index(op, layer, segment.state_slot.unwrap_or_default())?;
            let drafts = self.spec.drafts;
            ensure(op, segment.drafts <= drafts, || {
                format!("{} drafts, at most {drafts}", segment.drafts)
            })?;
            let fit = frontier(&self.cells[cell]).before(segment);
            ensure(op, fit.is_ok(), || fit.err().unwrap_or_default())?;
            found.push(cell);
        }
        Ok(found)
    }

    pub(super) fn conv(
        &mut self,
        layer: usize,
        batch: &StepBatch,
        weight: &[f32],
        x: &Activations,
        out: &mut Activations,
    ) -> Result<(), OpError> {
        const OP: &str = "causal_conv";
        let spec = self.spec;
        let channels = spec.channels();
        same_width(OP, x.width, channels)?;
        same_width(OP, out.width, channels)?;
        same_width(OP, weight.len(), spec.kernel * channels)?;
        let cells = self.cells(OP, layer, batch, |cell| cell.seen)?;
        out.data.clear();
        for (segment, cell) in batch.segments.iter().zip(cells) {
            let cell = &mut self.cells[cell];
            if segment.start == 0 {
                *cell = Cell { held: cell.held, ..Cell::new(&spec) };
            }
            let accepted = cell.seen.before(segment).unwrap_or_default();
            cell.rows.truncate(spec.window() + accepted);
            cell.rows.drain(..accepted);
            for row in segment.rows.clone() {
                cell.rows.push(x.data[row * channels..][..channels].to_vec());
            }
            for seen in cell.rows.windows(spec.kernel) {
                out.data.extend((0..channels).map(|c| {
                    let taps = seen.iter().enumerate();
                    let sum: f32 = taps.map(|(j, row)| weight[j * channels + c] * row[c]).sum();
                    crate::oracle::silu(f64::from(sum)) as f32
                }));
            }
            let surplus = cell.rows.len() - spec.window() - segment.drafts;
            cell.rows.drain(..surplus);
            cell.seen = Frontier::behind(segment);
        }
        Ok(())
    }

    pub(super) fn delta(
        &mut self,
        layer: usize,
        batch: &StepBatch,
        qkv: &Activations,
        gates: [&Activations; 2],
        constants: [&[f32]; 2],
        out: &mut Activations,
    ) -> Result<(), OpError> {
        const OP: &str = "gated_delta";
        let spec = self.spec;
        same_width(OP, qkv.width, spec.channels())?;
        same_width(OP, out.width, spec.value_width())?;
        for width in gates.map(|g| g.width).into_iter().chain(constants.map(<[f32]>::len)) {
            same_width(OP, width, spec.value_heads)?;
        }
        let cells = self.cells(OP, layer, batch, |cell| cell.held)?;
        out.data.clear();
        for (segment, cell) in batch.segments.iter().zip(cells) {
            let cell = &mut self.cells[cell];
            if segment.start == 0 {
                cell.matrices.fill(0.0);
            }
            let accepted = cell.held.before(segment).unwrap_or_default();
            for update in cell.log.drain(..).take(accepted) {
                update.apply(&spec, &mut cell.matrices);
            }
            let mut ahead = cell.matrices.clone();
            for row in segment.rows.clone() {
                let of = |x: &'_ Activations| x.data[row * x.width..][..x.width].to_vec();
                let (alpha, beta) = (of(gates[0]), of(gates[1]));
                let update = Update::new(&spec, &of(qkv), [&alpha, &beta], constants);
                update.apply(&spec, &mut ahead);
                update.read(&spec, &ahead, &mut out.data);
                if row < segment.rows.end - segment.drafts {
                    cell.matrices.copy_from_slice(&ahead);
                } else {
                    cell.log.push(update);
                }
            }
            cell.held = Frontier::behind(segment);
        }
        Ok(())
    }

    fn at(&self, op: &'static str, slot: SlotId, position: usize) -> Result<Vec<Cell>, OpError> {
        let settled = |layer| {
            let cell = &self.cells[self.index(op, layer, slot)?];
            cell.at(&self.spec, position).map_err(|detail| OpError::Shape { op, detail })
        };
        (0..self.spec.layers).map(settled).collect()
    }

    pub(super) fn copy(
        &mut self,
        from: SlotId,
        to: SlotId,
        position: usize,
    ) -> Result<(), OpError> {
        for (layer, cell) in self.at("copy_state", from, position)?.into_iter().enumerate() {
            let to = self.index("copy_state", layer, to)?;
            self.cells[to] = cell;
        }
        Ok(())
    }

    pub(super) fn save(
        &self,
        slot: SlotId,
        position: usize,
        image: &mut Vec<u8>,
    ) -> Result<(), OpError> {
        image.clear();
        for cell in self.at("save_state", slot, position)? {
            let elements = cell.rows.iter().flatten().chain(&cell.matrices);
            image.extend(elements.flat_map(|v| v.to_le_bytes()));
        }
        Ok(())
    }

    pub(super) fn load(
        &mut self,
        slot: SlotId,
        position: usize,
        image: &[u8],
    ) -> Result<(), OpError> {
        const OP: &str = "load_state";
        let spec = self.spec;
        same_width(OP, image.len(), spec.image_bytes())?;
        let mut values = image.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        for layer in 0..spec.layers {
            let index = self.index(OP, layer, slot)?;
            let cell = &mut self.cells[index];
            *cell = Cell { seen: certain(position), held: certain(position), ..Cell::new(&spec) };
            let elements = cell.rows.iter_mut().flatten().chain(&mut cell.matrices);
            elements.zip(&mut values).for_each(|(element, value)| *element = value);
        }
        Ok(())
    }
}
