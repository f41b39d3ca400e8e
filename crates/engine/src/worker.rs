//! The engine's thread: the only owner of scheduler and executor.

use crate::calibrate::calibrate;
use crate::handle::EngineConfig;
use crate::ledger::{Ledger, Report};
use crate::request::{Ending, Failure, Outlet, Request, Stats};
use crate::scheduler::{Notice, RequestId, Scheduler};
use crossbeam_channel::{Receiver, Sender, TryRecvError};
use laneway_execution::{ExecutionError, Executor, StepBatch, StepOutput};
use laneway_plan::PrefillFit;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Device failures in a row after which the executor counts as lost.
const FAULTS_MAX: usize = 3;

/// A request on its way to the worker.
pub(crate) struct Submission {
    pub id: RequestId,
    pub request: Request,
    pub outlet: Outlet,
    pub cancelled: Arc<AtomicBool>,
    pub predicted_ttft: Duration,
    pub own: Duration,
}

/// What is known once the executor exists.
#[derive(Debug)]
pub(crate) struct Started {
    pub ledger: Arc<Ledger>,
    pub vocab_size: usize,
    pub top_logprobs: usize,
}

/// Makes the executor and serves until the last handle is gone or the executor is lost.
pub(crate) fn run<E: Executor>(
    config: EngineConfig,
    make_executor: impl FnOnce() -> E,
    calibrated: bool,
    started: &Sender<Started>,
    submissions: Receiver<Submission>,
) {
    let mut fit = PrefillFit::new();
    let made = catch_unwind(AssertUnwindSafe(|| {
        let mut executor = make_executor();
        let config = config.for_limits(*executor.limits());
        if calibrated {
            calibrate(&mut executor, config.chunk, &mut fit);
        }
        (executor, config)
    }));
    // The handle sees the channel close.
    let Ok((executor, config)) = made else { return };
    let ledger = Arc::new(Ledger::new(config, fit.cost()));
    let vocab_size = executor.geometry().vocab_size;
    let top_logprobs = config.limits.top_logprobs;
    if started.send(Started { ledger: Arc::clone(&ledger), vocab_size, top_logprobs }).is_err() {
        return;
    }
    let mut worker = Worker {
        executor,
        scheduler: Scheduler::new(config),
        ledger: Arc::clone(&ledger),
        submissions,
        live: HashMap::new(),
        report: Report::default(),
        fit,
        faults: 0,
        epoch: Instant::now(),
    };
    // A sink may panic, too. Outlets that are dropped report a failure by themselves.
    let served = catch_unwind(AssertUnwindSafe(|| worker.serve()));
    if !matches!(served, Ok(End::Shutdown)) {
        tracing::error!("the engine has failed and takes no more requests");
    }
    // Before the outlets go, so that whoever sees the failure sees the state, too.
    ledger.fail();
    // A panic in the destructor of what has failed already must not end the process.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(worker)));
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Shutdown,
    Lost,
}

struct Worker<E> {
    executor: E,
    scheduler: Scheduler,
    ledger: Arc<Ledger>,
    submissions: Receiver<Submission>,
    live: HashMap<RequestId, Live>,
    /// Filled until the next publication.
    report: Report,
    fit: PrefillFit,
    /// Device failures since the last good step.
    faults: usize,
    epoch: Instant,
}

struct Live {
    outlet: Outlet,
    cancelled: Arc<AtomicBool>,
}

impl<E: Executor> Worker<E> {
    fn serve(&mut self) -> End {
        let mut batch = StepBatch::default();
        let mut output = StepOutput::default();
        loop {
            if self.receive().is_err() {
                self.scheduler.fail_all(Failure::Shutdown, self.now());
                self.publish(None);
                return End::Shutdown;
            }
            self.cancel();
            self.scheduler.plan(self.now(), &mut batch);
            let load = self.scheduler.step_load();
            let expected = load.map(|load| {
                let cost = self.fit.cost();
                let seconds = cost.a * load.rows as f64 + cost.b * load.pairs + cost.c;
                let step = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO);
                if load.prefill { step } else { Duration::ZERO }
            });
            self.publish(expected);
            let Some(load) = load else { continue };
            let began = Instant::now();
            let result = catch_unwind(AssertUnwindSafe(|| self.executor.step(&batch, &mut output)));
            let took = began.elapsed();
            let now = self.now();
            match result {
                Ok(Ok(())) => {
                    self.faults = 0;
                    if load.prefill {
                        self.fit.observe(load.rows, load.pairs, took);
                    }
                    self.scheduler.commit(&output, now);
                }
                Ok(Err(ExecutionError::Refused(why))) => {
                    tracing::error!(why, "a step was refused");
                    self.scheduler.fail_step(now);
                }
                Ok(Err(ExecutionError::Device(why))) => {
                    tracing::error!(why, "the device failed");
                    self.faults += 1;
                    if self.faults >= FAULTS_MAX {
                        return self.lose(now);
                    }
                    self.scheduler.fail_running(now);
                }
                Err(_) => {
                    tracing::error!("the executor panicked");
                    return self.lose(now);
                }
            }
            self.publish(None);
        }
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn lose(&mut self, now: Duration) -> End {
        self.ledger.fail();
        self.scheduler.fail_all(Failure::Execution, now);
        self.publish(None);
        End::Lost
    }

    /// Takes what has arrived; waits for something if there is nothing to do.
    ///
    /// An error says that all handles are gone.
    fn receive(&mut self) -> Result<(), TryRecvError> {
        if self.live.is_empty() {
            let submission = self.submissions.recv().map_err(|_| TryRecvError::Disconnected)?;
            self.accept(submission);
        }
        loop {
            match self.submissions.try_recv() {
                Ok(submission) => self.accept(submission),
                Err(TryRecvError::Empty) => return Ok(()),
                Err(gone) => return Err(gone),
            }
        }
    }

    fn accept(&mut self, submission: Submission) {
        let Submission { id, request, outlet, cancelled, predicted_ttft, own } = submission;
        self.report.received += own;
        let prompt = request.prompt.len();
        match self.scheduler.submit(id, request, predicted_ttft, self.now()) {
            Ok(()) => {
                self.live.insert(id, Live { outlet, cancelled });
            }
            Err(error) => {
                // The ledger keeps to the same limits.
                tracing::error!(%error, "the engine's ledger took what the scheduler refuses");
                self.report.ended += 1;
                let stats = Stats { prompt, predicted_ttft, ..Stats::default() };
                outlet.end(Ending::Failed { failure: Failure::Execution, stats });
            }
        }
    }

    fn cancel(&mut self) {
        let now = self.now();
        for (&id, live) in &self.live {
            if live.cancelled.load(Ordering::Acquire) {
                self.scheduler.cancel(id, now);
            }
        }
    }

    /// Tells the ledger how things stand, then the clients, so that whoever learns that a request
    /// has ended finds its place free.
    fn publish(&mut self, step: Option<Duration>) {
        let cost = self.fit.cost();
        let notices: Vec<Notice> = self.scheduler.take_notices().collect();
        let ends = notices.iter().filter(|notice| matches!(notice, Notice::End(..))).count();
        let report = std::mem::take(&mut self.report);
        self.ledger.publish(Report {
            ended: report.ended + ends,
            received: report.received,
            running: self.scheduler.running(),
            lacks_pages: self.scheduler.lacks_pages(),
            pages_used: self.scheduler.pages_used(),
            speculation: *self.scheduler.speculation(),
            backlog: self.scheduler.backlog(&cost),
            cost,
            step,
        });
        for notice in notices {
            match notice {
                Notice::Event(id, event) => {
                    if let Some(live) = self.live.get_mut(&id) {
                        live.outlet.send(event);
                    }
                }
                Notice::End(id, ending) => {
                    if let Some(live) = self.live.remove(&id) {
                        live.outlet.end(ending);
                    }
                }
            }
        }
    }
}
