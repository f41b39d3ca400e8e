//! Sparse mixture of experts: rows are sorted by expert, so that the weights of an expert are read
//! once a step, and come together again in the order of each row's own choice.

use super::{Activations, CpuOps, ensure, same_width, shared};
use crate::OpError;
use crate::buffer::Buffer;
use crate::kernels::{Linear, Outputs, Swiglu, Target};
use crate::packed::Matrix;
use crate::quantize::{BLOCK, Quantized};
use crate::simd::LANES;
use laneway_ops::Experts;
use std::ops::Range;
use std::sync::atomic::AtomicUsize;

/// A row at an expert.
#[derive(Clone, Copy)]
struct Visit {
    expert: usize,
    row: usize,
    weight: f32,
}

/// Room for one sparse layer of a step.
pub(super) struct Scratch {
    /// What each row chose, row after row.
    choices: Vec<Visit>,
    /// All choices, by expert and row.
    order: Vec<usize>,
    /// For each choice its place in that order.
    places: Vec<usize>,
    /// Experts that are visited, and their visits.
    runs: Vec<(usize, Range<usize>)>,
    /// The next turn of each run that nobody has taken.
    next: Vec<AtomicUsize>,
    rows: Activations,
    inner: Activations,
    out: Activations,
}

impl CpuOps {
    pub(super) fn moe(
        &mut self,
        x: &Activations,
        logits: &Activations,
        experts: &Experts<'_, Self>,
        out: &mut Activations,
    ) -> Result<(), OpError> {
        const OP: &str = "sparse_moe";
        let &Experts { gate, up, down, chosen } = experts;
        let (all, hidden, inner) = (logits.width, out.width, down.cols);
        ensure(OP, chosen > 0 && chosen <= all, || format!("{chosen} of {all} experts"))?;
        for matrix in [gate, up] {
            same_width(OP, x.width, matrix.cols)?;
            same_width(OP, matrix.rows, all * inner)?;
        }
        same_width(OP, down.rows, all * hidden)?;
        let panels = inner.is_multiple_of(LANES) && hidden.is_multiple_of(LANES);
        ensure(OP, panels, || format!("{hidden} and {inner} are no multiples of {LANES}"))?;
        for rows in [logits.rows, out.rows] {
            ensure(OP, rows == x.rows, || format!("{} rows beside {rows}", x.rows))?;
        }
        let mut scratch = self.moe_scratch(x.width, inner, hidden, chosen)?;
        scratch.route(logits, chosen);
        scratch.gather(x);
        let Scratch { runs, next, rows, inner, out: visited, .. } = &mut scratch;
        self.expert_swiglu(rows, [gate, up], all, runs, next, inner);
        self.expert_linear(inner, down, all, runs, next, visited);
        scratch.combine(out);
        self.moe = Some(scratch);
        Ok(())
    }

    /// Takes the scratch, made or made larger if need be.
    fn moe_scratch(
        &mut self,
        width: usize,
        inner: usize,
        hidden: usize,
        chosen: usize,
    ) -> Result<Scratch, OpError> {
        const OP: &str = "sparse_moe";
        let visits = self.workspace.rows * chosen;
        if self.quantized.capacity < visits && self.precision != super::Precision::F32 {
            let widest = width.max(inner).max(self.quantized.width()).next_multiple_of(BLOCK);
            self.quantized = Quantized::new(visits + 8, widest, self.precision.planes())?;
        }
        let activations = |width: usize| {
            Ok::<_, OpError>(Activations {
                width,
                rows: 0,
                data: Buffer::zeroed(OP, visits * width)?,
            })
        };
        match self.moe.take() {
            Some(found)
                if found.rows.data.len() >= visits * width
                    && [found.rows.width, found.inner.width, found.out.width]
                        == [width, inner, hidden] =>
            {
                Ok(found)
            }
            _ => Ok(Scratch {
                choices: Vec::with_capacity(visits),
                order: Vec::with_capacity(visits),
                places: Vec::with_capacity(visits),
                runs: Vec::new(),
                next: Vec::new(),
                rows: activations(width)?,
                inner: activations(inner)?,
                out: activations(hidden)?,
            }),
        }
    }

    /// `silu(gate) · up` of every visit.
    fn expert_swiglu(
        &mut self,
        x: &Activations,
        [gate, up]: [&Matrix; 2],
        all: usize,
        runs: &[(usize, Range<usize>)],
        next: &[AtomicUsize],
        out: &mut Activations,
    ) {
        out.rows = x.rows;
        let width = out.width;
        let input = self.input(x, &[gate, up]);
        let (isa, members, out) = (self.isa, self.team.threads(), shared(out));
        reset(next);
        self.members(members, &|_| {
            for ((expert, visits), next) in runs.iter().zip(next) {
                let kernel = Swiglu {
                    isa,
                    gate: Outputs::part(gate, *expert, all),
                    up: Outputs::part(up, *expert, all),
                    // SAFETY: there is a row for every visit.
                    out: unsafe { out.get().add(visits.start * width) },
                    input: input.get().after_rows(visits.start),
                    rows: visits.len(),
                    members,
                    next,
                };
                // SAFETY: shapes are checked by the caller; members write disjoint panels.
                unsafe { kernel.run() };
            }
        });
    }

    /// The way back of every visit.
    fn expert_linear(
        &mut self,
        x: &Activations,
        matrix: &Matrix,
        all: usize,
        runs: &[(usize, Range<usize>)],
        next: &[AtomicUsize],
        out: &mut Activations,
    ) {
        out.rows = x.rows;
        let width = out.width;
        let input = self.input(x, &[matrix]);
        let (isa, members, out) = (self.isa, self.team.threads(), shared(out));
        reset(next);
        self.members(members, &|_| {
            for ((expert, visits), next) in runs.iter().zip(next) {
                let target = Target {
                    outputs: Outputs::part(matrix, *expert, all),
                    bias: None,
                    // SAFETY: there is a row for every visit.
                    out: unsafe { out.get().add(visits.start * width) },
                    accumulate: false,
                };
                let (targets, input) = (&[target], input.get().after_rows(visits.start));
                let kernel = Linear { isa, targets, input, rows: visits.len(), members, next };
                // SAFETY: shapes are checked by the caller; members write disjoint panels.
                unsafe { kernel.run() };
            }
        });
    }
}

fn reset(next: &[AtomicUsize]) {
    next.iter().for_each(|next| next.store(0, std::sync::atomic::Ordering::Relaxed));
}

impl Scratch {
    /// Chooses experts and sorts the visits.
    fn route(&mut self, logits: &Activations, chosen: usize) {
        self.choices.clear();
        let all = logits.width;
        for (row, logits) in logits.data.chunks(all).take(logits.rows).enumerate() {
            self.choose(row, logits, chosen);
        }
        let Scratch { choices, order, places, runs, next, .. } = self;
        order.clear();
        order.extend(0..choices.len());
        order.sort_unstable_by_key(|&choice| (choices[choice].expert, choice));
        places.clear();
        places.resize(choices.len(), 0);
        runs.clear();
        for (place, &choice) in order.iter().enumerate() {
            places[choice] = place;
            let visited = choices[choice].expert;
            match runs.last_mut() {
                Some((expert, visits)) if *expert == visited => visits.end = place + 1,
                _ => runs.push((visited, place..place + 1)),
            }
        }
        if next.len() < runs.len() {
            next.resize_with(runs.len(), || AtomicUsize::new(0));
        }
    }

    fn choose(&mut self, row: usize, logits: &[f32], chosen: usize) {
        let first = self.choices.len();
        for _ in 0..chosen {
            let taken = &self.choices[first..];
            let free = |expert: &usize| taken.iter().all(|visit| visit.expert != *expert);
            let best = (0..logits.len())
                .filter(free)
                .reduce(|best, expert| if logits[expert] > logits[best] { expert } else { best });
            self.choices.push(Visit { expert: best.unwrap_or(0), row, weight: 0.0 });
        }
        let row = &mut self.choices[first..];
        let most = logits[row[0].expert];
        row.iter_mut().for_each(|visit| visit.weight = (logits[visit.expert] - most).exp());
        let total: f32 = row.iter().map(|visit| visit.weight).sum();
        row.iter_mut().for_each(|visit| visit.weight /= total);
    }

    fn gather(&mut self, x: &Activations) {
        let width = x.width;
        self.rows.rows = self.order.len();
        for (&choice, to) in self.order.iter().zip(self.rows.data.chunks_exact_mut(width)) {
            let row = self.choices[choice].row;
            to.copy_from_slice(&x.data[row * width..(row + 1) * width]);
        }
    }

    /// Adds what the experts made of each row, in the order of its choice.
    fn combine(&self, out: &mut Activations) {
        let width = out.width;
        let visits = self.choices.iter().zip(&self.places);
        for (visit, place) in visits {
            let out = &mut out.data[visit.row * width..(visit.row + 1) * width];
            let made = &self.out.data[place * width..(place + 1) * width];
            out.iter_mut()
                .zip(made)
                .for_each(|(out, made)| *out = made.mul_add(visit.weight, *out));
        }
    }
}
