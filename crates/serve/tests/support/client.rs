//! A small HTTP client that can be rude: it shows every byte, and hangs up when told to.

use serde_json::Value;
use std::net::SocketAddr;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// A connection to the server under test.
pub struct Client {
    stream: BufReader<TcpStream>,
}

/// Status and headers of a response.
#[derive(Debug)]
pub struct Head {
    pub status: u16,
    headers: Vec<(String, String)>,
}

impl Head {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// A whole response.
#[derive(Debug)]
pub struct Reply {
    pub head: Head,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {:?}", String::from_utf8_lossy(&self.body)))
    }

    /// The error object, after checking that it is one.
    pub fn error(&self) -> Value {
        assert_eq!(self.head.header("content-type"), Some("application/json"), "{self:?}");
        let error = self.json()["error"].clone();
        for field in ["message", "type", "code"] {
            assert!(error[field].is_string(), "{error}");
        }
        error
    }
}

/// One piece of an event stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Sse {
    Comment(String),
    Event(Value),
    Done,
    /// The stream came to its proper end.
    End,
    /// The connection broke off inside of the stream.
    Broken,
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Self {
        Self { stream: BufReader::new(TcpStream::connect(address).await.expect("connects")) }
    }

    /// Sends raw bytes.
    pub async fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).await.expect("the server reads");
    }

    /// Sends a request with a body, `headers` being lines without their ends.
    pub async fn request(&mut self, method: &str, path: &str, headers: &[&str], body: &[u8]) {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\n");
        for header in headers {
            head.push_str(header);
            head.push_str("\r\n");
        }
        head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
        self.send(&[head.as_bytes(), body].concat()).await;
    }

    pub async fn post(&mut self, path: &str, body: &Value) {
        self.request(
            "POST",
            path,
            &["content-type: application/json"],
            body.to_string().as_bytes(),
        )
        .await;
    }

    /// Closes the write side only.
    pub async fn half_close(&mut self) {
        self.stream.get_mut().shutdown().await.expect("open until now");
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).await.expect("valid UTF-8 on an open connection");
        line.trim_end_matches(['\r', '\n']).to_owned()
    }

    pub async fn head(&mut self) -> Head {
        let status_line = self.line().await;
        let status = status_line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status in {status_line:?}"));
        let mut headers = Vec::new();
        loop {
            let line = self.line().await;
            let Some((key, value)) = line.split_once(':') else { break };
            headers.push((key.to_ascii_lowercase(), value.trim().to_owned()));
        }
        Head { status, headers }
    }

    /// Reads a whole response.
    pub async fn reply(&mut self) -> Reply {
        let head = self.head().await;
        let mut body = Vec::new();
        if let Some(length) = head.header("content-length") {
            body.resize(length.parse().expect("a number"), 0);
            self.stream.read_exact(&mut body).await.expect("a whole body");
        } else if head.header("transfer-encoding").is_some() {
            while let Some(Some(chunk)) = self.chunk().await {
                body.extend(chunk);
            }
        }
        Reply { head, body }
    }

    /// The next chunk; `Some(None)` at the proper end, `None` if the connection broke off.
    async fn chunk(&mut self) -> Option<Option<Vec<u8>>> {
        let mut size = String::new();
        if self.stream.read_line(&mut size).await.ok()? == 0 {
            return None;
        }
        let size = usize::from_str_radix(size.trim(), 16).ok()?;
        let mut chunk = vec![0; size + 2];
        self.stream.read_exact(&mut chunk).await.ok()?;
        chunk.truncate(size);
        Some((size > 0).then_some(chunk))
    }

    /// Begins to read an event stream, checking that it is one.
    pub async fn events(mut self) -> (Head, Events) {
        let head = self.head().await;
        if head.status != 200 {
            let reply = Reply { head, body: Vec::new() };
            panic!("no stream: {reply:?}");
        }
        assert_eq!(head.header("content-type"), Some("text/event-stream"));
        (head, Events { client: self, rest: String::new(), ended: None })
    }
}

/// An event stream as it arrives.
pub struct Events {
    client: Client,
    rest: String,
    ended: Option<Sse>,
}

impl Events {
    /// The next comment, event, or end; every line must be valid UTF-8 by itself.
    pub async fn next(&mut self) -> Sse {
        loop {
            if let Some((frame, rest)) = self.rest.split_once("\n\n") {
                let frame = frame.to_owned();
                self.rest = rest.to_owned();
                return Self::parse(&frame);
            }
            if let Some(end) = &self.ended {
                assert_eq!(self.rest, "", "a frame without its end");
                return end.clone();
            }
            match self.client.chunk().await {
                Some(Some(chunk)) => self.rest += std::str::from_utf8(&chunk).expect("UTF-8"),
                Some(None) => self.ended = Some(Sse::End),
                None => self.ended = Some(Sse::Broken),
            }
        }
    }

    fn parse(frame: &str) -> Sse {
        if let Some(comment) = frame.strip_prefix(": ") {
            return Sse::Comment(comment.to_owned());
        }
        match frame.strip_prefix("data: ") {
            Some("[DONE]") => Sse::Done,
            Some(data) => Sse::Event(serde_json::from_str(data).expect("one JSON value a line")),
            None => panic!("neither comment nor event: {frame:?}"),
        }
    }

    /// The next event, skipping comments.
    pub async fn event(&mut self) -> Value {
        loop {
            match self.next().await {
                Sse::Comment(_) => {}
                Sse::Event(event) => return event,
                other => panic!("expected an event, found {other:?}"),
            }
        }
    }

    /// All events up to the end mark and the end of the response, comments left out.
    pub async fn rest(mut self) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            match self.next().await {
                Sse::Comment(_) => {}
                Sse::Event(event) => events.push(event),
                Sse::Done => {
                    assert_eq!(self.next().await, Sse::End, "nothing follows the end mark");
                    return events;
                }
                other => panic!("expected the end mark, found {other:?} after {events:?}"),
            }
        }
    }

    /// Hangs up.
    pub fn close(self) {}
}

/// The text that the events add up to.
pub fn text(events: &[Value]) -> String {
    let piece = |event: &Value| {
        let choice = &event["choices"][0];
        let content = &choice["delta"]["content"];
        content.as_str().or(choice["text"].as_str()).unwrap_or_default().to_owned()
    };
    events.iter().map(piece).collect()
}
