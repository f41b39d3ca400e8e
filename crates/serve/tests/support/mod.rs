//! A server under test: the real thing over loopback, with a scripted executor behind it.

pub mod client;
pub mod script;

pub use client::{Client, Events, Reply, Sse, text};
pub use script::{Gate, Script};

use laneway_engine::{Engine, EngineConfig, Speculation};
use laneway_execution::{Geometry, Limits, TokenId};
use laneway_frontend::{ChatTemplate, Tokenizer, TokenizerSource};
use laneway_serve::{Model, ServerConfig};
use script::Scripted;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Longest time that anything in a test may take; reached only when something is wrong.
const PATIENCE: Duration = Duration::from_secs(20);

/// How to start a server.
pub struct Setup {
    pub script: Script,
    pub gate: Gate,
    pub lanes: usize,
    pub queue: usize,
    pub window: usize,
    pub chunk: usize,
    pub wait: Duration,
    pub config: ServerConfig,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            script: script("Hello there"),
            gate: Gate::open(),
            lanes: 1,
            queue: 2,
            window: 2048,
            chunk: 64,
            wait: Duration::from_secs(600),
            config: ServerConfig {
                model_ids: vec!["tiny".to_owned(), "alias/of-tiny".to_owned()],
                ..ServerConfig::default()
            },
        }
    }
}

/// A script that says `text`, one byte a token.
pub fn script(text: &str) -> Script {
    Script::Tokens(text.bytes().map(u32::from).collect())
}

/// A running server.
pub struct Server {
    pub address: SocketAddr,
    pub gate: Gate,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<std::io::Result<()>>,
}

impl Setup {
    pub async fn start(self) -> Server {
        let config = EngineConfig {
            window: self.window,
            lanes: self.lanes,
            pending_max: self.queue,
            pending_timeout: self.wait,
            chunk: self.chunk,
            speculation: Speculation::OFF,
        };
        let (script, gate) = (self.script, self.gate.clone());
        let limits = Limits {
            pages: 1024,
            state_slots: 0,
            rows_per_step: 256,
            samples_per_step: 64,
            top_logprobs: 20,
            drafts: 8,
            proposals: 0,
        };
        let engine = Engine::spawn(config, move || Scripted {
            geometry: Geometry {
                vocab_size: 260,
                native_context: 1 << 20,
                page_bytes: 1,
                state_bytes: 0,
            },
            limits,
            script,
            end: EOS,
            gate,
            drawn: HashMap::new(),
        });
        let model = Model { engine, tokenizer: Arc::new(tokenizer()), template: Some(template()) };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (stop, stopped) = oneshot::channel();
        let shutdown = async { drop(stopped.await) };
        let task = tokio::spawn(laneway_serve::serve(listener, self.config, model, shutdown));
        Server { address, gate: self.gate, stop: Some(stop), task }
    }
}

impl Server {
    pub async fn client(&self) -> Client {
        Client::connect(self.address).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        let mut client = self.client().await;
        client.post(path, body).await;
        patient(client.reply()).await
    }

    pub async fn get(&self, path: &str) -> Reply {
        let mut client = self.client().await;
        client.request("GET", path, &[], b"").await;
        patient(client.reply()).await
    }

    pub async fn chat(&self, extra: &Value) -> Reply {
        self.post(CHAT, &chat(extra)).await
    }

    /// Begins a streamed chat.
    pub async fn stream(&self, extra: &Value) -> (client::Head, Events) {
        self.stream_at(CHAT, &with(chat(extra), &json!({"stream": true}))).await
    }

    pub async fn stream_at(&self, path: &str, body: &Value) -> (client::Head, Events) {
        let mut client = self.client().await;
        client.post(path, body).await;
        patient(client.events()).await
    }

    pub async fn health(&self) -> Value {
        self.get("/health").await.json()
    }

    /// Asks until the server says what is expected of a place in its health report.
    pub async fn until(&self, pointer: &str, expected: u64) {
        patient(async {
            while self.health().await.pointer(pointer) != Some(&json!(expected)) {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    /// Lets one step after the other pass a closed gate until the server says what is expected.
    ///
    /// An engine looks at what has changed between its steps, so it has to be kept going.
    pub async fn step_until(&self, pointer: &str, expected: u64) {
        patient(async {
            while self.health().await.pointer(pointer) != Some(&json!(expected)) {
                self.gate.step().await;
            }
        })
        .await;
    }

    /// Stops the server and waits for it.
    pub async fn stop(mut self) {
        self.gate.release();
        drop(self.stop.take());
        patient(self.task).await.expect("no panic").expect("served");
    }
}

pub const CHAT: &str = "/v1/chat/completions";
pub const COMPLETIONS: &str = "/v1/completions";

/// A small chat body with more fields.
pub fn chat(extra: &Value) -> Value {
    with(json!({"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}), extra)
}

/// A body with more fields.
pub fn with(mut body: Value, extra: &Value) -> Value {
    let fields = body.as_object_mut().expect("an object");
    fields.extend(extra.as_object().expect("an object").clone());
    body
}

/// Fails instead of waiting for ever.
pub async fn patient<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("within the patience of the tests")
}

/// Ends a generation.
pub const EOS: TokenId = 256;

/// One token a byte, then four control tokens, the first of which ends a generation.
pub fn tokenizer() -> Tokenizer {
    // The byte-level alphabet: printable bytes stand for themselves, the others follow U+0100.
    let mut next = 0x100;
    let mut tokens: Vec<String> = (0..256u32)
        .map(|byte| {
            let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
            let code = if printable {
                byte
            } else {
                next += 1;
                next - 1
            };
            char::from_u32(code).expect("a character").to_string()
        })
        .collect();
    tokens.extend((0..4).map(|i| format!("<|control {i}|>")));
    let kinds = (0..260).map(|id| if id < 256 { 1 } else { 3 }).collect();
    let pre = "gpt-2".to_owned();
    let source = TokenizerSource { pre, tokens, kinds, ends: vec![EOS], ..Default::default() };
    Tokenizer::new(source).expect("a tokenizer")
}

/// `role:content` a line.
pub fn template() -> ChatTemplate {
    let source = "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}assistant:";
    ChatTemplate::new(source, "", "").expect("a template")
}
