//! Who runs when: a pure state machine. Commands, outputs of steps and a clock value go in; steps
//! and events come out. It starts no thread, reads no clock and does no I/O, so that a run is a
//! function of its inputs and replays exactly.
//!
//! - Strict order of arrival. A step holds one row of every decoding lane, its drafts behind it,
//!   and one chunk of the oldest prompt that is not complete.
//! - A request gets a lane when its prompt and a reserve for its output have pages. Beyond the
//!   reserve it grows page by page. When no page is left, the *youngest* lane is paused: it gives
//!   its pages back, keeps its tokens, waits before all that never ran, and computes them again
//!   later. Hence everything that runs is older than everything that waits, the oldest lane always
//!   goes on, and what fits alone is never refused later.
//! - Drafts take what nobody else needs: rows that the prompt leaves, and free pages, which are
//!   given back when the step is over. So nobody waits or is paused for them.

use crate::plan::{Part, Step};
use crate::pool::Pool;
use crate::request::{Ending, Event, Failure, FinishReason, Request, SubmitError};
use crate::sequence::Sequence;
use crate::speculation::{Speculation, SpeculationStats};
use laneway_execution::{
    Limits, PAGE_TOKENS, PageId, SampledToken, StepBatch, StepOutput, TokenId, pages_for,
};
use laneway_plan::{PrefillCost, RoundCost, RoundFit};
use std::collections::VecDeque;
use std::time::Duration;

/// Shortest advice to a client about when to come back.
const RETRY_MIN: Duration = Duration::from_secs(1);

/// Names a request for the life of the engine. Later requests have greater numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Sizes that the scheduler keeps to.
#[derive(Clone, Copy, Debug)]
pub struct SchedulerConfig {
    /// Tokens that a sequence may have.
    pub window: usize,
    /// Sequences that run at once.
    pub lanes: usize,
    /// Requests that may wait.
    pub pending_max: usize,
    /// How long they may wait.
    pub pending_timeout: Duration,
    /// Prompt tokens of one step.
    pub chunk: usize,
    /// Output tokens that have pages before a request runs.
    pub reserve_output: usize,
    /// How requests are speculated on that do not say.
    pub speculation: Speculation,
    /// What the executor was sized for.
    pub limits: Limits,
}

impl SchedulerConfig {
    /// The same, cut down to what the executor can do.
    #[must_use]
    pub fn fitted(mut self) -> Self {
        let Limits { pages, state_slots, rows_per_step, samples_per_step, .. } = self.limits;
        self.window = self.window.min(pages.saturating_mul(PAGE_TOKENS));
        // One row is kept for the prompt that is computed beside all others.
        let rows = rows_per_step.saturating_sub(1).max(1);
        let slots = if state_slots == 0 { usize::MAX } else { state_slots };
        self.lanes = self.lanes.min(rows).min(samples_per_step).min(slots).max(1);
        self.chunk = self.chunk.min(rows_per_step).max(1);
        self
    }

    /// Whether a request fits an empty engine.
    ///
    /// # Errors
    /// [`SubmitError::ContextLength`], with the numbers.
    pub fn check_length(&self, prompt: usize, max_tokens: usize) -> Result<(), SubmitError> {
        let needed = prompt.saturating_add(max_tokens);
        if needed > self.window {
            return Err(SubmitError::ContextLength { prompt, needed, window: self.window });
        }
        Ok(())
    }

    /// Requests, running and waiting, that the engine holds at most.
    #[must_use]
    pub fn outstanding_max(&self) -> usize {
        self.lanes.saturating_add(self.pending_max)
    }
}

/// What the scheduler has to say.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// Something happened to a request that goes on.
    Event(RequestId, Event),
    /// A request has ended; it holds nothing any more, and no notice about it follows.
    End(RequestId, Ending),
}

/// The state machine; see the module's text.
///
/// A turn is [`plan`](Self::plan), then [`commit`](Self::commit) or one of the ways to fail; what
/// has happened is read with [`take_notices`](Self::take_notices).
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) config: SchedulerConfig,
    pub(crate) pool: Pool,
    /// In order of arrival, and older than all that wait.
    pub(crate) running: Vec<Sequence>,
    /// In order of arrival.
    pub(crate) waiting: VecDeque<Sequence>,
    pub(crate) step: Step,
    /// What steps without a prompt take.
    pub(crate) rounds: RoundFit,
    speculation: SpeculationStats,
    /// Cancelled while a step was under way.
    cancelled: Vec<RequestId>,
    pub(crate) notices: Vec<Notice>,
}

impl Scheduler {
    /// An empty engine. The configuration is [fitted](SchedulerConfig::fitted).
    #[must_use]
    pub fn new(config: SchedulerConfig) -> Self {
        let config = config.fitted();
        Self {
            pool: Pool::new(config.limits.pages, config.limits.state_slots),
            running: Vec::with_capacity(config.lanes),
            waiting: VecDeque::new(),
            step: Step::default(),
            rounds: RoundFit::new(),
            speculation: SpeculationStats::default(),
            cancelled: Vec::new(),
            notices: Vec::new(),
            config,
        }
    }

    /// The sizes it keeps to.
    #[must_use]
    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    /// Takes a request; `id` must be greater than all before. `predicted_ttft` is only handed on.
    ///
    /// # Errors
    /// If it can never fit, or as many requests wait as may.
    ///
    /// # Panics
    /// If ids do not grow.
    pub fn submit(
        &mut self,
        id: RequestId,
        request: Request,
        predicted_ttft: Duration,
        now: Duration,
    ) -> Result<(), SubmitError> {
        self.config.check_length(request.prompt.len(), request.max_tokens)?;
        if self.outstanding() >= self.config.outstanding_max() {
            let pending = self.waiting.len();
            return Err(SubmitError::QueueFull { pending, retry_after: RETRY_MIN });
        }
        let last = self.waiting.back().or(self.running.last());
        assert!(last.is_none_or(|last| last.id < id), "requests are numbered in order of arrival");
        let sequence = Sequence::new(id, request, &self.config, predicted_ttft, now);
        if sequence.prompt == 0 {
            // Nothing predicts the first token of an empty sequence.
            self.end(sequence, |stats| Ending::Failed { failure: Failure::Execution, stats }, now);
        } else {
            self.waiting.push_back(sequence);
        }
        Ok(())
    }

    /// Ends a request that nobody wants any more: now, or with the step that is under way.
    /// Unknown requests have ended already.
    pub fn cancel(&mut self, id: RequestId, now: Duration) {
        if self.step.in_flight {
            self.cancelled.push(id);
        } else if let Some(sequence) = self.remove(id) {
            self.end(sequence, |_| Ending::Cancelled, now);
        }
    }

    /// Fills `batch` with the next step; it stays empty if there is nothing to do.
    ///
    /// # Panics
    /// If a step is still under way.
    pub fn plan(&mut self, now: Duration, batch: &mut StepBatch) {
        assert!(!self.step.in_flight, "one step at a time");
        batch.clear();
        self.expire(now);
        self.grow();
        self.admit();
        self.fill(now, batch);
        self.step.in_flight = !batch.is_empty();
    }

    /// Takes in what the planned step computed. An output that does not fit the step fails it.
    pub fn commit(&mut self, output: &StepOutput, now: Duration) {
        if output.samples.len() != self.step.samples() {
            self.fail_step(now);
            return;
        }
        let parts = std::mem::take(&mut self.step.parts);
        if !parts.iter().any(|part| part.prefill) {
            let rows = parts.iter().map(|part| part.rows).sum();
            self.rounds.observe(rows, self.step.passes, now.saturating_sub(self.step.planned));
        }
        for (segment, part) in parts.iter().enumerate() {
            self.commit_part(part, output, output.proposals_of(segment), now);
        }
        self.step.parts = parts;
        self.settle(now);
    }

    /// The planned step was refused: its requests fail, all others go on.
    pub fn fail_step(&mut self, now: Duration) {
        let parts = std::mem::take(&mut self.step.parts);
        for part in &parts {
            if let Some(sequence) = self.remove(part.id) {
                let failed = |stats| Ending::Failed { failure: Failure::Execution, stats };
                self.end(sequence, failed, now);
            }
        }
        self.step.parts = parts;
        self.settle(now);
    }

    /// The device failed: whatever has pages is lost, what waits has lost nothing.
    pub fn fail_running(&mut self, now: Duration) {
        for sequence in std::mem::take(&mut self.running) {
            let failed = |stats| Ending::Failed { failure: Failure::Execution, stats };
            self.end(sequence, failed, now);
        }
        self.settle(now);
    }

    /// Every request ends here.
    pub fn fail_all(&mut self, failure: Failure, now: Duration) {
        let running = std::mem::take(&mut self.running).into_iter();
        for sequence in running.chain(std::mem::take(&mut self.waiting)) {
            self.end(sequence, |stats| Ending::Failed { failure, stats }, now);
        }
        self.settle(now);
    }

    /// What has happened since the last call, in order.
    pub fn take_notices(&mut self) -> std::vec::Drain<'_, Notice> {
        self.notices.drain(..)
    }

    /// Predicted time until all prompts that are here are computed.
    #[must_use]
    pub fn backlog(&self, cost: &PrefillCost) -> Duration {
        let unread = self.running.iter().chain(&self.waiting).filter(|one| !one.is_decoding());
        unread.map(|one| cost.time(one.computed, one.remaining(), self.config.chunk)).sum()
    }

    /// Requests that have a lane.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Requests that wait for a lane.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// All requests that have not ended.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.running.len() + self.waiting.len()
    }

    /// Pages that are in use.
    #[must_use]
    pub fn pages_used(&self) -> usize {
        self.pool.used()
    }

    /// Pages of the pool.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.pool.capacity()
    }

    /// Who runs, oldest first, with its pages.
    pub fn block_tables(&self) -> impl Iterator<Item = (RequestId, &[PageId])> {
        self.running.iter().map(|sequence| (sequence.id, &sequence.pages[..]))
    }

    /// What came of speculation so far, over all requests.
    #[must_use]
    pub fn speculation(&self) -> &SpeculationStats {
        &self.speculation
    }

    /// What a step without a prompt takes, as far as that is known.
    #[must_use]
    pub fn round_cost(&self) -> RoundCost {
        self.rounds.cost()
    }

    /// True if a lane is free and a request waits for pages.
    #[must_use]
    pub fn lacks_pages(&self) -> bool {
        !self.waiting.is_empty() && self.running.len() < self.config.lanes
    }

    fn expire(&mut self, now: Duration) {
        let timeout = self.config.pending_timeout;
        let waited = |one: &Sequence| now.saturating_sub(one.times.arrival);
        let late = |one: &Sequence| !one.admitted && waited(one) > timeout;
        while let Some(index) = self.waiting.iter().position(late) {
            if let Some(sequence) = self.waiting.remove(index) {
                let failure = Failure::QueueTimeout { waited: waited(&sequence) };
                self.end(sequence, |stats| Ending::Failed { failure, stats }, now);
            }
        }
    }

    /// Gives every decoding lane a page for its next row, the oldest first; pauses the youngest
    /// lanes if there are too few.
    fn grow(&mut self) {
        let mut lane = 0;
        while lane < self.running.len() {
            let sequence = &mut self.running[lane];
            let needed = pages_for(sequence.tokens.len());
            if self.pool.grow(&mut sequence.pages, needed) {
                lane += 1;
            } else {
                self.pause_youngest();
            }
        }
    }

    fn pause_youngest(&mut self) {
        let Some(mut sequence) = self.running.pop() else { return };
        self.release(&mut sequence);
        sequence.computed = 0;
        sequence.speculator.pause();
        sequence.pauses += 1;
        self.waiting.push_front(sequence);
    }

    fn admit(&mut self) {
        while self.running.len() < self.config.lanes
            && let Some(mut sequence) = self.waiting.pop_front()
        {
            let reserve = self.config.reserve_output.min(sequence.left());
            let needed = pages_for(sequence.tokens.len() + reserve);
            if !self.pool.grow(&mut sequence.pages, needed) {
                self.waiting.push_front(sequence);
                break;
            }
            sequence.reserved = needed;
            sequence.slot = self.pool.take_slot();
            sequence.admitted = true;
            self.running.push(sequence);
        }
    }

    fn commit_part(
        &mut self,
        part: &Part,
        output: &StepOutput,
        proposals: &[TokenId],
        now: Duration,
    ) {
        let Some(lane) = self.running.iter().position(|one| one.id == part.id) else { return };
        let (scores, draws) = output.samples[part.samples.clone()].split_at(part.scores);
        let sequence = &mut self.running[lane];
        // Whether drafts are among the sequence's tokens, only the draws tell.
        sequence.computed += part.rows - sequence.speculator.drafts.len();
        let notices = &mut self.notices;
        let mut send = |event| notices.push(Notice::Event(part.id, event));
        commit_prompt(sequence, part, scores, output, &mut send);
        if sequence.remaining() == 0 {
            sequence.times.prefill_end.get_or_insert(now);
        }
        let mut ending = None;
        if !draws.is_empty() {
            sequence.times.first_token.get_or_insert(now);
            let round;
            (ending, round) = commit_draws(sequence, draws, output, &mut send);
            self.speculation.add(&round);
            sequence.speculator.propose(proposals);
        }
        if ending.is_none() && sequence.left() == 0 && sequence.computed >= sequence.prompt {
            ending = Some(FinishReason::Length);
        }
        if let Some(reason) = ending {
            let sequence = self.running.remove(lane);
            self.end(sequence, |stats| Ending::Finished { reason, stats }, now);
        }
    }

    /// The step is over: pages that were for drafts are free, and what was cancelled meanwhile
    /// ends.
    fn settle(&mut self, now: Duration) {
        self.step.clear();
        for sequence in &mut self.running {
            let own = sequence.own_pages();
            self.pool.shrink(&mut sequence.pages, own);
        }
        for id in std::mem::take(&mut self.cancelled) {
            self.cancel(id, now);
        }
    }

    fn remove(&mut self, id: RequestId) -> Option<Sequence> {
        if let Some(lane) = self.running.iter().position(|one| one.id == id) {
            return Some(self.running.remove(lane));
        }
        let place = self.waiting.iter().position(|one| one.id == id)?;
        self.waiting.remove(place)
    }

    fn release(&mut self, sequence: &mut Sequence) {
        self.pool.release(&mut sequence.pages);
        self.pool.release_slot(sequence.slot.take());
    }

    fn end(
        &mut self,
        mut sequence: Sequence,
        ending: impl FnOnce(crate::Stats) -> Ending,
        now: Duration,
    ) {
        self.release(&mut sequence);
        self.notices.push(Notice::End(sequence.id, ending(sequence.stats(now))));
    }
}

/// Takes in what a step says about a prompt: how far it is, and the probabilities of its tokens.
fn commit_prompt(
    sequence: &mut Sequence,
    part: &Part,
    scores: &[SampledToken],
    output: &StepOutput,
    send: &mut impl FnMut(Event),
) {
    let (done, total) = (sequence.computed.min(sequence.prompt), sequence.prompt);
    if part.prefill && done > sequence.reported {
        sequence.reported = done;
        send(Event::PrefillProgress { done, total, cached: 0 });
    }
    if sequence.request.score_prompt && part.first {
        let token = sequence.tokens[0];
        send(Event::PromptToken { token, logprob: None, top: Vec::new() });
    }
    for sample in scores {
        sequence.scored += 1;
        let (token, logprob) = (sequence.tokens[sequence.scored], Some(sample.logprob));
        send(Event::PromptToken { token, logprob, top: top(output, sample) });
    }
}

/// Takes in the tokens that were drawn: the run of drafts that they confirm, and the one behind
/// it. Tells whether they end the output, and what came of the drafts.
fn commit_draws(
    sequence: &mut Sequence,
    draws: &[SampledToken],
    output: &StepOutput,
    send: &mut impl FnMut(Event),
) -> (Option<FinishReason>, SpeculationStats) {
    let pairs = sequence.speculator.drafts.iter().zip(draws);
    let accepted = pairs.take_while(|(draft, drawn)| **draft == drawn.token).count();
    let mut ending = None;
    let mut emitted = 0;
    for (place, sample) in draws.iter().take(accepted + 1).enumerate() {
        let (token, logprob) = (sample.token, sample.logprob);
        if sequence.request.end_tokens.contains(&token) {
            ending = Some(FinishReason::Stop);
            break;
        }
        sequence.push(token);
        if place < accepted {
            // Its row was part of the step.
            sequence.computed += 1;
            emitted += 1;
        }
        send(Event::Token { token, logprob, top: top(output, sample) });
    }
    (ending, sequence.speculator.verified(accepted, emitted))
}

fn top(output: &StepOutput, sample: &SampledToken) -> Vec<(TokenId, f32)> {
    output.top.get(sample.top.clone()).map(<[_]>::to_vec).unwrap_or_default()
}
