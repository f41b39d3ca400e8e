//! Delivers a running request: as one response, or as a stream of events.

use crate::app::App;
use crate::dialect::{Dialect, Part};
use crate::generation::{Generation, Job, Progress, Totals, Update};
use crate::sse::Frames;
use crate::wire::error::ApiError;
use crate::wire::options::Delivery;
use crate::wire::reply::{Envelope, Head};
use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use std::io;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Header with the predicted time to the first token.
const PREDICTED_TTFT: &str = "x-laneway-predicted-ttft-ms";
/// Bytes of events after which they are handed to the connection even if more are ready.
const WRITE_BYTES_MAX: usize = 16 << 10;
/// Times a broken stream lets the connection send what it has before it breaks off.
const FLUSHES_BEFORE_BREAK: u32 = 3;

/// Runs a request and answers it.
///
/// # Errors
/// If it is refused, or fails before a response has begun.
pub(crate) async fn respond<D: Dialect>(
    app: &App,
    job: Job,
    delivery: Delivery,
    mut dialect: D,
) -> Result<Response, ApiError> {
    let head = Head {
        id: job.id.clone(),
        object: if delivery.stream { D::EVENT } else { D::WHOLE },
        created: crate::app::unix_time().as_secs(),
        model: job.model.clone(),
    };
    let mut generation = Generation::start(app, job)?;
    // The engine says at once where the request stands. Only then do headers go out.
    let first = generation.next().await?;
    let mut headers = headers(&head, generation.progress());
    if delivery.stream {
        let stream = EventStream {
            generation,
            dialect,
            head,
            include_usage: delivery.include_usage,
            keep_alive: app.config.keep_alive,
            frames: Frames::default(),
            opened: false,
            phase: Phase::Running,
        };
        let body = Body::from_stream(stream::unfold(stream.begin(first), EventStream::step));
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        // Asks proxies not to collect events before they pass them on.
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        return Ok((headers, body).into_response());
    }
    let (part, totals) = collect(generation, first).await?;
    let choice = dialect.choice(part);
    Ok((headers, Json(envelope(&head, &[choice], Some(&totals), true))).into_response())
}

fn headers(head: &Head, progress: Progress) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Ok(id) = HeaderValue::from_str(&head.id) {
        headers.insert("x-request-id", id);
    }
    if let Progress::Queued { predicted_ttft, .. } = progress {
        let predicted_ms = u64::try_from(predicted_ttft.as_millis()).unwrap_or(u64::MAX);
        headers.insert(PREDICTED_TTFT, HeaderValue::from(predicted_ms));
    }
    headers
}

fn envelope<'a, C>(
    head: &'a Head,
    choices: &'a [C],
    totals: Option<&Totals>,
    with_usage: bool,
) -> Envelope<'a, C> {
    Envelope {
        head,
        choices,
        usage: totals.filter(|_| with_usage).map(|totals| totals.usage),
        timings: totals.map(|totals| totals.timings),
        seed: totals.map(|totals| totals.seed),
    }
}

/// Puts all parts together.
async fn collect(
    mut generation: Generation,
    mut update: Update,
) -> Result<(Part, Box<Totals>), ApiError> {
    let mut whole = Part::default();
    let mut add = |part: Part| {
        whole.text.push_str(&part.text);
        match (&mut whole.tokens, part.tokens) {
            (Some(all), Some(more)) => all.extend(more),
            (tokens, more) => *tokens = more,
        }
        whole.finish = part.finish;
    };
    let totals = loop {
        match update {
            Update::Progress => {}
            Update::Part(part) => add(part),
            Update::Finished(part, totals) => {
                add(part);
                break totals;
            }
        }
        update = generation.next().await?;
    };
    Ok((whole, totals))
}

/// A response that is sent while it is generated. The connection pulls: what a slow client has
/// not read yet waits in the request's mailbox.
struct EventStream<D> {
    generation: Generation,
    dialect: D,
    head: Head,
    include_usage: bool,
    keep_alive: Duration,
    frames: Frames,
    /// The dialect's opening event is written.
    opened: bool,
    phase: Phase,
}

enum Phase {
    Running,
    /// The end mark is written.
    Ended,
    /// The error event is written.
    Broken,
}

impl<D: Dialect> EventStream<D> {
    /// Writes what is known when the response begins.
    fn begin(mut self, first: Update) -> Self {
        self.frames.comment(&describe(self.generation.progress()));
        self.write(first);
        self
    }

    /// The next bytes for the connection.
    async fn step(mut self) -> Option<(io::Result<Bytes>, Self)> {
        if self.frames.is_empty() {
            match self.phase {
                Phase::Running => self.run().await,
                Phase::Ended => return None,
                Phase::Broken => {
                    // The connection sends what it has whenever the body is not ready.
                    for _ in 0..FLUSHES_BEFORE_BREAK {
                        tokio::task::yield_now().await;
                    }
                    // Without the final chunk even clients that read no error events see that
                    // this was not the proper end.
                    return Some((Err(io::Error::other("the request failed")), self));
                }
            }
        }
        Some((Ok(self.frames.take()), self))
    }

    /// Waits until there is something to send, be it a sign of life.
    async fn run(&mut self) {
        let deadline = Instant::now() + self.keep_alive;
        while self.frames.is_empty() {
            match timeout_at(deadline, self.generation.next()).await {
                Ok(Ok(update)) => self.write(update),
                Ok(Err(error)) => self.write_error(&error),
                Err(_) => self.frames.comment(&describe(self.generation.progress())),
            }
        }
        while matches!(self.phase, Phase::Running) && self.frames.len() < WRITE_BYTES_MAX {
            match self.generation.try_next() {
                Ok(Some(update)) => self.write(update),
                Ok(None) => break,
                Err(error) => self.write_error(&error),
            }
        }
    }

    fn write(&mut self, update: Update) {
        match update {
            Update::Progress => {}
            Update::Part(part) => self.write_part(part, None),
            Update::Finished(part, totals) => {
                self.write_part(part, Some(&totals));
                if self.include_usage {
                    let mut usage = envelope::<()>(&self.head, &[], Some(&totals), true);
                    (usage.timings, usage.seed) = (None, None);
                    self.frames.data(&usage);
                }
                self.frames.done();
                self.phase = Phase::Ended;
            }
        }
    }

    fn write_part(&mut self, part: Part, totals: Option<&Totals>) {
        if !std::mem::replace(&mut self.opened, true)
            && let Some(opening) = self.dialect.opening()
        {
            self.frames.data(&envelope(&self.head, &[opening], None, false));
        }
        let delta = self.dialect.delta(part);
        self.frames.data(&envelope(&self.head, &[delta], totals, false));
    }

    fn write_error(&mut self, error: &ApiError) {
        self.frames.data(&error.body());
        self.phase = Phase::Broken;
    }
}

/// Progress in one line.
fn describe(progress: Progress) -> String {
    match progress {
        Progress::Queued { position, predicted_ttft } => {
            let predicted_ms = predicted_ttft.as_millis();
            format!("queued position={position} predicted_ttft_ms={predicted_ms}")
        }
        Progress::Prefill { done, total } => format!("prefill {done}/{total}"),
        Progress::Decode => "keep-alive".to_owned(),
    }
}
