//! The account of one request: gathered while it runs, written down exactly once when it ends.

use crate::app::{App, unix_time};
use crate::request_log::Record;
use crate::wire::error::ApiError;
use crate::wire::reply::{Drafts, Timings, Usage};
use laneway_engine::{SpeculationStats, Stats};
use std::time::{Duration, Instant};

/// What is known of a request; dropping it writes the log line and the log record.
pub(crate) struct Account {
    app: App,
    arrived: Instant,
    record: Record,
    speculation: SpeculationStats,
}

/// What is known before a request is handed to the engine.
pub(crate) struct Opening {
    pub id: String,
    pub endpoint: &'static str,
    pub model: String,
    pub stream: bool,
    pub prompt_tokens: usize,
    pub max_tokens: usize,
    pub seed: u64,
}

impl Account {
    pub fn open(app: App, opening: Opening) -> Self {
        let record = Record {
            id: opening.id,
            // Stands until something else is known: only a client that leaves ends a request so.
            status: "cancelled",
            endpoint: opening.endpoint,
            model: opening.model,
            stream: opening.stream,
            arrived_unix_s: unix_time().as_secs_f64(),
            total_s: 0.0,
            prompt_tokens: opening.prompt_tokens,
            cached_tokens: 0,
            completion_tokens: 0,
            max_tokens: opening.max_tokens,
            seed: opening.seed,
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
        };
        let speculation = SpeculationStats::default();
        Self { app, arrived: Instant::now(), record, speculation }
    }

    pub fn queued(&mut self, position: usize, predicted_ttft: Duration) {
        self.record.queue_position = Some(position);
        self.record.ttft_predicted_s = Some(predicted_ttft.as_secs_f64());
    }

    /// A token has arrived.
    pub fn token(&mut self) {
        let since_arrival_s = self.arrived.elapsed().as_secs_f64();
        let ttft_s = *self.record.ttft_s.get_or_insert(since_arrival_s);
        self.record.completion_tokens += 1;
        self.record.decode_s = Some(since_arrival_s - ttft_s);
    }

    /// The engine's own, more exact measurements.
    pub fn measured(&mut self, stats: &Stats) {
        self.record.cached_tokens = stats.cached;
        self.record.queue_s = Some(stats.queue.as_secs_f64());
        self.record.prefill_s = Some(stats.prefill.as_secs_f64());
        if let Some(ttft) = stats.ttft {
            self.record.ttft_s = Some(ttft.as_secs_f64());
            self.record.decode_s = Some(stats.decode.as_secs_f64());
        }
        self.speculation = stats.speculation;
        self.record.draft_rounds = stats.speculation.rounds;
        self.record.draft_tokens = stats.speculation.drafted;
        self.record.draft_tokens_accepted = stats.speculation.accepted;
        self.record.draft_tokens_accepted_by_position =
            stats.speculation.accepted_by_place().to_vec();
    }

    pub fn done(&mut self, finish_reason: &'static str) {
        self.record.status = "done";
        self.record.finish_reason = Some(finish_reason);
    }

    pub fn failed(&mut self, error: &ApiError) {
        let refused = error.status().is_client_error();
        self.record.status = if refused { "refused" } else { "failed" };
        self.record.error = Some(error.code());
    }

    pub fn seed(&self) -> u64 {
        self.record.seed
    }

    pub fn usage(&self) -> Usage {
        Usage {
            prompt: self.record.prompt_tokens,
            cached: self.record.cached_tokens,
            completion: self.record.completion_tokens,
        }
    }

    pub fn timings(&self) -> Timings {
        let record = &self.record;
        let ms = |seconds: Option<f64>| seconds.unwrap_or(0.0) * 1e3;
        let computed = record.prompt_tokens - record.cached_tokens.min(record.prompt_tokens);
        Timings {
            cache_n: record.cached_tokens,
            prompt_n: computed,
            prompt_ms: ms(record.prefill_s),
            prompt_per_second: rate(computed, record.prefill_s).unwrap_or(0.0),
            predicted_n: record.completion_tokens,
            predicted_ms: ms(record.decode_s),
            predicted_per_second: self.decode_rate().unwrap_or(0.0),
            queue_ms: ms(record.queue_s),
            ttft_predicted_ms: ms(record.ttft_predicted_s),
            ttft_ms: ms(record.ttft_s),
            drafts: (self.speculation.drafted > 0).then_some(Drafts(self.speculation)),
        }
    }

    /// Tokens a second; the first token belongs to the prompt's time.
    fn decode_rate(&self) -> Option<f64> {
        rate(self.record.completion_tokens.checked_sub(1)?, self.record.decode_s)
    }
}

fn rate(count: usize, seconds: Option<f64>) -> Option<f64> {
    let seconds = seconds.filter(|&seconds| seconds > 0.0)?;
    Some(count as f64 / seconds)
}

impl Drop for Account {
    fn drop(&mut self) {
        self.record.total_s = self.arrived.elapsed().as_secs_f64();
        self.record.decode_tokens_per_s = self.decode_rate();
        let record = &self.record;
        let ms = |seconds: Option<f64>| (seconds.unwrap_or(0.0) * 1e4).round() / 10.0;
        // Refusals are logged with all others where responses leave the server.
        if record.status != "refused" {
            tracing::info!(
                target: "laneway::request",
                status = %record.status,
                id = %record.id,
                prompt = record.prompt_tokens,
                cached = record.cached_tokens,
                completion = record.completion_tokens,
                queue_ms = ms(record.queue_s),
                prefill_ms = ms(record.prefill_s),
                ttft_predicted_ms = ms(record.ttft_predicted_s),
                ttft_ms = ms(record.ttft_s),
                decode_tok_s = (record.decode_tokens_per_s.unwrap_or(0.0) * 10.0).round() / 10.0,
                drafted = record.draft_tokens,
                accepted = record.draft_tokens_accepted,
                finish = %record.finish_reason.or(record.error).unwrap_or("none"),
            );
        }
        if let Some(log) = &self.app.log {
            log.write(record.clone());
        }
    }
}
