//! Causal grouped-query attention over pages.
//!
//! A row's context is cut at fixed places into chunks of [`CHUNK_PAGES`] pages. Within a chunk the
//! softmax runs online, page by page (Milakov and Gimelshein 2018, arXiv 1805.02867); the chunks'
//! partial results are merged in order. The cuts depend on positions only, so a result depends
//! neither on the rows that share a step nor on which thread computed which chunk. A long context
//! of few rows is spread over the threads by chunks (as in Flash-Decoding), many rows by blocks.

use crate::isa::Kernel;
use crate::kv::{Element, base};
use crate::simd::Simd;
use laneway_execution::{PAGE_TOKENS, PageId};
use laneway_ops::KvSpec;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Pages of one chunk.
pub(crate) const CHUNK_PAGES: usize = 8;

/// Most queries (rows × heads of a group) of one block.
pub(crate) const BLOCK_QUERIES: usize = 48;

/// Vectors of one page's scores.
const PAGE_VECTORS: usize = PAGE_TOKENS / 16;

/// Consecutive rows of one segment that are worked on together.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// First row of the step.
    pub row: usize,
    /// Rows.
    pub rows: usize,
    /// Position of the first row.
    pub position: usize,
    /// The segment's pages, a range of the step's block tables.
    pub pages: std::ops::Range<usize>,
}

impl Block {
    /// Chunks that the last row sees.
    pub fn chunks(&self) -> usize {
        (self.position + self.rows).div_ceil(CHUNK_PAGES * PAGE_TOKENS)
    }
}

/// Softmax state of one query: running maximum, sum of exponentials, weighted sum of values.
#[derive(Clone, Copy)]
struct State {
    head: *mut f32,
}

impl State {
    /// f32 that a state occupies: the output, and a line for maximum and sum.
    const fn stride(head_dim: usize) -> usize {
        head_dim + 16
    }
    /// # Safety
    /// The state lies in its buffer.
    unsafe fn maximum(self, head_dim: usize) -> *mut f32 {
        // SAFETY: within the stride.
        unsafe { self.head.add(head_dim) }
    }
    /// # Safety
    /// The state lies in its buffer.
    unsafe fn total(self, head_dim: usize) -> *mut f32 {
        // SAFETY: within the stride.
        unsafe { self.head.add(head_dim + 1) }
    }
}

/// f32 of scratch that each thread needs.
pub(crate) fn scratch_len(head_dim: usize) -> usize {
    2 * BLOCK_QUERIES * State::stride(head_dim) + 2 * PAGE_TOKENS * head_dim
}

/// f32 of the partial results of one block, head and chunk.
pub(crate) fn partial_len(queries: usize, head_dim: usize) -> usize {
    queries * State::stride(head_dim)
}

/// What a thread does in a region.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Whole blocks, chunk after chunk.
    Blocks,
    /// Single chunks, into `partials`.
    Chunks,
    /// Merging the chunks of `partials`.
    Merge,
}

/// One thread's share of an attention op.
pub(crate) struct Attention<'a, E> {
    pub phase: Phase,
    pub spec: KvSpec,
    pub layer: usize,
    pub keys: *const E,
    pub values: *const E,
    pub blocks: &'a [Block],
    pub block_tables: &'a [PageId],
    /// Query heads of one key/value head.
    pub group: usize,
    pub scale: f32,
    /// Rows of queries and of outputs, `width` apart.
    pub queries: *const f32,
    pub out: *mut f32,
    pub width: usize,
    /// Next item that nobody has taken.
    pub next: &'a AtomicUsize,
    pub scratch: *mut f32,
    pub partials: *mut f32,
    /// Most chunks of any block: items per block and head in phase `Chunks`.
    pub chunks: usize,
}

impl<E: Element> Kernel for Attention<'_, E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let heads = self.spec.kv_heads;
        let per_block = if self.phase == Phase::Chunks { heads * self.chunks } else { heads };
        loop {
            let item = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(block) = self.blocks.get(item / per_block) else { return };
            let (head, chunk) = match self.phase {
                Phase::Chunks => (item % per_block / self.chunks, item % self.chunks),
                _ => (item % heads, 0),
            };
            // SAFETY: the item names a block, a head and a chunk of the op, whose pointers are
            // valid by the promise of whoever dispatches the kernel.
            unsafe { self.item::<S>(item / per_block, block, head, chunk) };
        }
    }
}

impl<E: Element> Attention<'_, E> {
    fn stride(&self) -> usize {
        State::stride(self.spec.head_dim)
    }

    /// # Safety
    /// `partials` has room for `blocks × heads × chunks` partial results.
    unsafe fn partial(&self, block: usize, head: usize, chunk: usize) -> *mut f32 {
        let index = (block * self.spec.kv_heads + head) * self.chunks + chunk;
        let queries = self.blocks[0].rows * self.group;
        // SAFETY: the caller's promise; in this phase all blocks have equally many rows.
        unsafe { self.partials.add(index * partial_len(queries, self.spec.head_dim)) }
    }

    /// Does one item: all chunks of a block and head, or one, or the merging of all.
    ///
    /// # Safety
    /// The item belongs to the op; in phase `Merge`, all of phase `Chunks` is done.
    #[inline(always)]
    unsafe fn item<S: Simd>(&self, index: usize, block: &Block, head: usize, chunk: usize) {
        let chunks = block.chunks();
        let chunks = match self.phase {
            Phase::Chunks => chunk..chunks.min(chunk + 1),
            Phase::Blocks | Phase::Merge => 0..chunks,
        };
        // SAFETY: scratch has two sets of states, `partials` a set for every chunk.
        unsafe {
            let running = match self.phase {
                Phase::Blocks => self.scratch,
                Phase::Chunks | Phase::Merge => self.partial(index, head, 0),
            };
            for chunk in chunks {
                let part = match self.phase {
                    Phase::Blocks if chunk == 0 => running,
                    Phase::Blocks => running.add(BLOCK_QUERIES * self.stride()),
                    Phase::Chunks | Phase::Merge => self.partial(index, head, chunk),
                };
                if self.phase != Phase::Merge {
                    self.chunk::<S>(block, head, chunk, part);
                }
                if self.phase != Phase::Chunks && chunk > 0 {
                    self.merge::<S>(block, running, part);
                }
            }
            if self.phase != Phase::Chunks {
                self.finish::<S>(block, head, running);
            }
        }
    }

    /// Adds the states `part` to `running`.
    #[inline(always)]
    unsafe fn merge<S: Simd>(&self, block: &Block, running: *mut f32, part: *mut f32) {
        let dim = self.spec.head_dim;
        // SAFETY: both hold a state for every query of the block.
        unsafe {
            for query in 0..block.rows * self.group {
                let a = State { head: running.add(query * self.stride()) };
                let b = State { head: part.add(query * self.stride()) };
                if *b.total(dim) == 0.0 {
                    continue; // The chunk lies after this row.
                }
                let maximum = (*a.maximum(dim)).max(*b.maximum(dim));
                let wa = S::exp(S::splat(*a.maximum(dim) - maximum));
                let wb = S::exp(S::splat(*b.maximum(dim) - maximum));
                for i in (0..dim).step_by(16) {
                    let scaled = S::mul(S::load(a.head.add(i)), wa);
                    S::store(a.head.add(i), S::fma(S::load(b.head.add(i)), wb, scaled));
                }
                let total = S::mul(S::splat(*a.total(dim)), wa);
                let mut lanes = [0.0f32; 16];
                S::store(lanes.as_mut_ptr(), S::fma(S::splat(*b.total(dim)), wb, total));
                *a.maximum(dim) = maximum;
                *a.total(dim) = lanes[0];
            }
        }
    }

    /// Writes `weighted sum / sum` of every query.
    #[inline(always)]
    unsafe fn finish<S: Simd>(&self, block: &Block, head: usize, states: *mut f32) {
        let dim = self.spec.head_dim;
        // SAFETY: every query of the block has a state, and its row an output.
        unsafe {
            for query in 0..block.rows * self.group {
                let state = State { head: states.add(query * self.stride()) };
                let out = self.out.add(self.offset(block, head, query));
                let total = S::splat(*state.total(dim));
                for i in (0..dim).step_by(16) {
                    S::store(out.add(i), S::div(S::load(state.head.add(i)), total));
                }
            }
        }
    }

    /// Where a query's head stands in the rows.
    fn offset(&self, block: &Block, head: usize, query: usize) -> usize {
        let row = block.row + query / self.group;
        row * self.width + (head * self.group + query % self.group) * self.spec.head_dim
    }

    /// Fills the states of all queries of a block for one chunk.
    #[inline(always)]
    unsafe fn chunk<S: Simd>(&self, block: &Block, head: usize, chunk: usize, states: *mut f32) {
        let dim = self.spec.head_dim;
        let queries = block.rows * self.group;
        let last = (block.position + block.rows).div_ceil(PAGE_TOKENS);
        let pages = chunk * CHUNK_PAGES..((chunk + 1) * CHUNK_PAGES).min(last);
        // SAFETY: states and scratch are large enough; pages come from the checked block table.
        unsafe {
            for query in 0..queries {
                let state = State { head: states.add(query * self.stride()) };
                for i in (0..dim).step_by(16) {
                    S::store(state.head.add(i), S::splat(0.0));
                }
                *state.maximum(dim) = f32::NEG_INFINITY;
                *state.total(dim) = 0.0;
            }
            for page in pages {
                let place = |page: usize| {
                    let id = self.block_tables[block.pages.start + page];
                    base(&self.spec, self.layer, id, head)
                };
                let at = place(page);
                let (keys, values) = (self.keys.add(at), self.values.add(at));
                if queries > 4 {
                    // Many queries: widen the page once.
                    let wide_keys = self.scratch.add(2 * BLOCK_QUERIES * self.stride());
                    let wide_values = wide_keys.add(PAGE_TOKENS * dim);
                    for i in (0..PAGE_TOKENS * dim).step_by(16) {
                        S::store(wide_keys.add(i), E::load::<S>(keys.add(i)));
                        S::store(wide_values.add(i), E::load::<S>(values.add(i)));
                    }
                    self.page::<S, f32, false>(
                        block,
                        head,
                        page,
                        [wide_keys, wide_values, wide_keys],
                        states,
                    );
                } else {
                    // Few queries: the time goes into reading, and the hardware's own prefetching
                    // stops at the end of a memory page.
                    let next = self.keys.add(if page + 1 < last { place(page + 1) } else { at });
                    self.page::<S, E, true>(block, head, page, [keys, values, next], states);
                }
            }
        }
    }

    /// Adds one page to the states of all queries of a block. Its keys, its values, and the keys
    /// that will be read next, which `AHEAD` asks for in time.
    #[inline(always)]
    unsafe fn page<S: Simd, T: Element, const AHEAD: bool>(
        &self,
        block: &Block,
        head: usize,
        page: usize,
        data: [*const T; 3],
        states: *mut f32,
    ) {
        let queries = block.rows * self.group;
        let mut query = 0;
        // SAFETY: the caller's promise, for some of the queries at a time.
        unsafe {
            while query < queries {
                query += match queries - query {
                    4.. if S::WIDE => {
                        self.some::<S, T, 4, AHEAD>(block, head, page, data, states, query)
                    }
                    3 if S::WIDE => {
                        self.some::<S, T, 3, AHEAD>(block, head, page, data, states, query)
                    }
                    2 if S::WIDE => {
                        self.some::<S, T, 2, AHEAD>(block, head, page, data, states, query)
                    }
                    _ => self.some::<S, T, 1, AHEAD>(block, head, page, data, states, query),
                };
            }
        }
    }

    /// Adds one page to the states of `Q` queries; returns `Q`.
    #[inline(always)]
    unsafe fn some<S: Simd, T: Element, const Q: usize, const AHEAD: bool>(
        &self,
        block: &Block,
        head: usize,
        page: usize,
        [keys, values, next]: [*const T; 3],
        states: *mut f32,
        first: usize,
    ) -> usize {
        let dim = self.spec.head_dim;
        let start = page * PAGE_TOKENS;
        // Tokens of this page that each query sees.
        let seen: [usize; Q] = std::array::from_fn(|q| {
            let position = block.position + (first + q) / self.group;
            (position + 1).saturating_sub(start).min(PAGE_TOKENS)
        });
        let most = seen.iter().copied().fold(0, usize::max);
        if most == 0 {
            return Q;
        }
        // SAFETY: pointers are valid for whole pages, rows and states.
        unsafe {
            let x: [*const f32; Q] =
                std::array::from_fn(|q| self.queries.add(self.offset(block, head, first + q)));
            let mut scores = [[S::splat(0.0); PAGE_VECTORS]; Q];
            for d in 0..dim {
                if AHEAD {
                    ask::<S, T, PAGE_TOKENS>(values.wrapping_add(d * PAGE_TOKENS));
                }
                let mut k = [S::splat(0.0); PAGE_VECTORS];
                for (i, k) in k.iter_mut().enumerate() {
                    *k = T::load::<S>(keys.add(d * PAGE_TOKENS + 16 * i));
                }
                for q in 0..Q {
                    let x = S::splat(*x[q].add(d));
                    for i in 0..PAGE_VECTORS {
                        scores[q][i] = S::fma(k[i], x, scores[q][i]);
                    }
                }
            }
            let mut weights = [[0.0f32; PAGE_TOKENS]; Q];
            let mut keep = [S::splat(1.0); Q];
            for q in 0..Q {
                if seen[q] == 0 {
                    continue;
                }
                let state = State { head: states.add((first + q) * self.stride()) };
                keep[q] = self.weigh::<S>(&scores[q], seen[q], state, &mut weights[q]);
            }
            // Four vectors at a time keep the multipliers busy; what is left goes one by one.
            let whole = dim / 64 * 64;
            for d in (0..whole).step_by(64) {
                let data = [values, next];
                self.gather::<S, T, Q, 4, AHEAD>(data, &weights, &keep, most, states, first, d);
            }
            for d in (whole..dim).step_by(16) {
                let data = [values, next];
                self.gather::<S, T, Q, 1, AHEAD>(data, &weights, &keep, most, states, first, d);
            }
        }
        Q
    }

    /// Turns scores into weights relative to the new maximum; returns the factor that brings the
    /// state's earlier sum to it.
    #[inline(always)]
    unsafe fn weigh<S: Simd>(
        &self,
        scores: &[S::F; PAGE_VECTORS],
        seen: usize,
        state: State,
        weights: &mut [f32; PAGE_TOKENS],
    ) -> S::F {
        let dim = self.spec.head_dim;
        // SAFETY: the state is valid; the array has a page of elements.
        unsafe {
            let w = weights.as_mut_ptr();
            for (i, &score) in scores.iter().enumerate() {
                S::store(w.add(16 * i), S::mul(score, S::splat(self.scale)));
            }
            weights[seen..].fill(f32::NEG_INFINITY);
            let w = weights.as_mut_ptr();
            let v = [S::load(w), S::load(w.add(16)), S::load(w.add(32)), S::load(w.add(48))];
            let largest = S::largest(S::max(S::max(v[0], v[1]), S::max(v[2], v[3])));
            let maximum = (*state.maximum(dim)).max(largest);
            for (i, &v) in v.iter().enumerate() {
                S::store(w.add(16 * i), S::exp(S::sub(v, S::splat(maximum))));
            }
            weights[seen..].fill(0.0);
            let w = weights.as_mut_ptr();
            let v = [S::load(w), S::load(w.add(16)), S::load(w.add(32)), S::load(w.add(48))];
            let sum = S::sum(S::add(S::add(v[0], v[1]), S::add(v[2], v[3])));
            let keep = S::exp(S::splat(*state.maximum(dim) - maximum));
            let mut lanes = [0.0f32; 16];
            S::store(lanes.as_mut_ptr(), S::fma(S::splat(*state.total(dim)), keep, S::splat(sum)));
            *state.maximum(dim) = maximum;
            *state.total(dim) = lanes[0];
            keep
        }
    }

    /// Adds the weighted values of a page to `V` vectors of the states, from element `d`.
    #[inline(always)]
    unsafe fn gather<S: Simd, T: Element, const Q: usize, const V: usize, const AHEAD: bool>(
        &self,
        [values, next]: [*const T; 2],
        weights: &[[f32; PAGE_TOKENS]; Q],
        keep: &[S::F; Q],
        most: usize,
        states: *mut f32,
        first: usize,
        d: usize,
    ) {
        let dim = self.spec.head_dim;
        // SAFETY: as `some`.
        unsafe {
            let at = |q: usize, i: usize| states.add((first + q) * self.stride() + d + 16 * i);
            let mut sums = [[S::splat(0.0); V]; Q];
            for q in 0..Q {
                for i in 0..V {
                    sums[q][i] = S::mul(S::load(at(q, i)), keep[q]);
                }
            }
            for t in 0..most {
                if AHEAD && V == 4 {
                    ask::<S, T, 64>(next.wrapping_add(t * dim + d));
                }
                let mut v = [S::splat(0.0); V];
                for (i, v) in v.iter_mut().enumerate() {
                    *v = T::load::<S>(values.add(t * dim + d + 16 * i));
                }
                for q in 0..Q {
                    let w = S::splat(weights[q][t]);
                    for i in 0..V {
                        sums[q][i] = S::fma(v[i], w, sums[q][i]);
                    }
                }
            }
            for q in 0..Q {
                for i in 0..V {
                    S::store(at(q, i), sums[q][i]);
                }
            }
        }
    }
}

/// Asks for the cache lines of `N` elements, which need not exist.
///
/// # Safety
/// `S` is available.
#[inline(always)]
unsafe fn ask<S: Simd, T, const N: usize>(elements: *const T) {
    for byte in (0..N * size_of::<T>()).step_by(64) {
        // SAFETY: the caller's promise.
        unsafe { S::prefetch(elements.cast::<u8>().wrapping_add(byte)) };
    }
}
