//! The request log: one JSON object a line for each finished request.
//!
//! A thread of its own writes the file, fed by a bounded channel, so that a slow disk never holds
//! up a response. What does not fit is dropped, counted, and reported in the log itself.

use crate::config::REQUEST_LOG_BACKLOG_MAX;
use serde::Serialize;
use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

/// What is recorded of a request. Times are in seconds at full precision.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Record {
    /// Name of the response.
    pub id: String,
    /// `done`, `cancelled`, `failed` or `refused`.
    pub status: &'static str,
    /// Path of the endpoint.
    pub endpoint: &'static str,
    /// The model's name as the client wrote it.
    pub model: String,
    /// Whether the response was streamed.
    pub stream: bool,
    /// Arrival in Unix time.
    pub arrived_unix_s: f64,
    /// From arrival until everything was known.
    pub total_s: f64,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens taken from the cache.
    pub cached_tokens: usize,
    /// Tokens generated.
    pub completion_tokens: usize,
    /// Most tokens that were to be generated.
    pub max_tokens: usize,
    /// The seed that reproduces the output.
    pub seed: u64,
    /// Place in the queue at arrival.
    pub queue_position: Option<usize>,
    /// Time in the queue.
    pub queue_s: Option<f64>,
    /// Time from the first to the last computed prompt token.
    pub prefill_s: Option<f64>,
    /// Time to the first token as predicted at arrival.
    pub ttft_predicted_s: Option<f64>,
    /// Time to the first token.
    pub ttft_s: Option<f64>,
    /// Time from the first to the last generated token.
    pub decode_s: Option<f64>,
    /// Generated tokens a second, the first one not counted.
    pub decode_tokens_per_s: Option<f64>,
    /// Steps that held drafts.
    pub draft_rounds: usize,
    /// Tokens drafted.
    pub draft_tokens: usize,
    /// Drafts that became output.
    pub draft_tokens_accepted: usize,
    /// The same by place, the first drafts first.
    pub draft_tokens_accepted_by_position: Vec<u32>,
    /// `stop` or `length`.
    pub finish_reason: Option<&'static str>,
    /// Code of the error that ended the request.
    pub error: Option<&'static str>,
}

/// Hands records to the writer.
#[derive(Clone, Debug)]
pub struct RequestLog {
    sender: SyncSender<Record>,
    dropped: Arc<AtomicU64>,
}

/// The writer; dropping it without [`RequestLogWriter::finish`] leaves it to end by itself.
#[derive(Debug)]
pub struct RequestLogWriter {
    thread: JoinHandle<()>,
}

impl RequestLog {
    /// Opens `path` for appending and starts the writer.
    ///
    /// # Errors
    /// If the file cannot be opened or the thread cannot be started.
    pub fn open(path: &Path) -> io::Result<(Self, RequestLogWriter)> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Self::start(BufWriter::new(file))
    }

    fn start(file: impl Write + Send + 'static) -> io::Result<(Self, RequestLogWriter)> {
        let (sender, receiver) = sync_channel(REQUEST_LOG_BACKLOG_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&dropped);
        let thread = std::thread::Builder::new()
            .name("request-log".to_owned())
            .spawn(move || write_all(&receiver, &counter, file))?;
        Ok((Self { sender, dropped }, RequestLogWriter { thread }))
    }

    /// Hands over a record, or counts it as dropped; never waits.
    pub fn write(&self, record: Record) {
        match self.sender.try_send(record) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl RequestLogWriter {
    /// Waits until everything is on file; every [`RequestLog`] must be gone.
    pub fn finish(self) {
        if self.thread.join().is_err() {
            tracing::error!("the request log's writer has panicked");
        }
    }
}

fn write_all(receiver: &Receiver<Record>, dropped: &AtomicU64, mut file: impl Write) {
    let mut failed = false;
    let mut reported = 0;
    while let Ok(first) = receiver.recv() {
        // Everything that is waiting goes to the file in one piece.
        let batch = std::iter::once(first).chain(receiver.try_iter());
        let mut result = Ok(());
        for record in batch.take(REQUEST_LOG_BACKLOG_MAX) {
            result = result.and_then(|()| write_line(&mut file, &record));
        }
        let total = dropped.load(Ordering::Relaxed);
        if total != reported {
            tracing::warn!(dropped = total - reported, "the request log could not keep up");
            let note = serde_json::json!({ "dropped_records": total - reported });
            result = result.and_then(|()| write_line(&mut file, &note));
            reported = total;
        }
        match result.and_then(|()| file.flush()) {
            Ok(()) => failed = false,
            // Once for each series of failures: a full disk must not fill the other log.
            Err(error) if !failed => {
                failed = true;
                tracing::error!(%error, "the request log cannot be written");
            }
            Err(_) => {}
        }
    }
}

fn write_line(file: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    file.write_all(&line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn record(id: usize) -> Record {
        Record {
            id: id.to_string(),
            status: "done",
            endpoint: "/",
            model: String::new(),
            stream: false,
            arrived_unix_s: 0.0,
            total_s: 0.1 + 0.2,
            prompt_tokens: 1,
            cached_tokens: 0,
            completion_tokens: 0,
            max_tokens: 0,
            seed: 0,
            queue_position: None,
            queue_s: None,
            prefill_s: None,
            ttft_predicted_s: None,
            ttft_s: None,
            decode_s: None,
            decode_tokens_per_s: None,
            draft_rounds: 0,
            draft_tokens: 0,
            draft_tokens_accepted: 0,
            draft_tokens_accepted_by_position: Vec::new(),
            finish_reason: None,
            error: None,
        }
    }

    /// A file that is stuck until it is told otherwise.
    struct Stuck {
        begun: mpsc::Sender<()>,
        go_on: mpsc::Receiver<()>,
        written: Arc<std::sync::Mutex<Vec<u8>>>,
    }

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.begun.send(());
            // An error means that the test lets everything pass from now on.
            let _ = self.go_on.recv();
            self.written.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_stuck_disk_costs_records_and_no_time() {
        let (begun, has_begun) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel();
        let written = Arc::default();
        let file = Stuck { begun, go_on: may_go_on, written: Arc::clone(&written) };
        let (log, writer) = RequestLog::start(file).unwrap();
        log.write(record(0));
        has_begun.recv().unwrap();
        let extra = 7;
        for id in 0..REQUEST_LOG_BACKLOG_MAX + extra {
            log.write(record(id));
        }
        drop((go_on, log));
        writer.finish();
        let written = String::from_utf8(written.lock().unwrap().clone()).unwrap();
        let lines: Vec<serde_json::Value> =
            written.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let dropped: u64 = lines.iter().filter_map(|line| line["dropped_records"].as_u64()).sum();
        assert_eq!(dropped, extra as u64);
        let records = lines.iter().filter(|line| line["id"].is_string()).count();
        assert_eq!(records, REQUEST_LOG_BACKLOG_MAX + 1);
        assert_eq!(lines[0]["total_s"].as_f64(), Some(0.1 + 0.2), "full precision");
    }
}
