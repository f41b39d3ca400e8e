//! The smallest HTTP/1.1 client that the demo needs: one request a connection, bodies as they
//! arrive, so that the time of every piece is known.

mod body;
mod events;

pub use events::Events;

use anyhow::{Context, Result, bail};
use body::Body;
use std::net::SocketAddr;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// Longest line of a response's head.
const HEAD_LINE_BYTES_MAX: u64 = 16 << 10;

/// Most lines of a response's head.
const HEAD_LINES_MAX: usize = 100;

/// A response whose head has arrived.
#[derive(Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    headers: Vec<(String, String)>,
    body: Body,
}

/// Sends `json` to `path` of `server`; the connection serves this request only.
///
/// # Errors
/// When the connection fails or what comes back is not HTTP.
pub async fn post(server: SocketAddr, path: &str, json: &str) -> Result<Response> {
    let mut stream =
        TcpStream::connect(server).await.with_context(|| format!("cannot connect to {server}"))?;
    stream.set_nodelay(true)?;
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {server}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n",
        json.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(json.as_bytes()).await?;
    Response::read(BufReader::new(stream)).await
}

impl Response {
    async fn read(mut stream: BufReader<TcpStream>) -> Result<Self> {
        let status_line = head_line(&mut stream).await?;
        let status = status_line
            .strip_prefix("HTTP/1.1 ")
            .and_then(|rest| rest.split(' ').next())
            .and_then(|code| code.parse().ok())
            .with_context(|| format!("{status_line:?} is no HTTP/1.1 status line"))?;
        let mut headers = Vec::new();
        loop {
            let line = head_line(&mut stream).await?;
            if line.is_empty() {
                break;
            }
            if headers.len() == HEAD_LINES_MAX {
                bail!("a response head of more than {HEAD_LINES_MAX} lines");
            }
            let (name, value) =
                line.split_once(':').with_context(|| format!("{line:?} is no header"))?;
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let find = |wanted: &str| {
            headers.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str())
        };
        let chunked = find("transfer-encoding").is_some_and(|value| value == "chunked");
        let length = find("content-length").map(str::parse).transpose()?;
        let body = Body::new(stream, chunked, length);
        Ok(Response { status, headers, body })
    }

    /// The value of the header `name`, which is lower-case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// The whole body as text.
    ///
    /// # Errors
    /// When the body breaks off.
    pub async fn text(mut self) -> Result<String> {
        let mut bytes = Vec::new();
        while let Some(piece) = self.body.next().await? {
            bytes.extend(piece);
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The body as server-sent events.
    ///
    /// # Errors
    /// If the status is not 200, with what the server said.
    pub async fn events(self) -> Result<Events> {
        if self.status != 200 {
            let status = self.status;
            bail!("the server answered with status {status}: {}", self.text().await?);
        }
        Ok(Events::new(self.body))
    }
}

async fn head_line(stream: &mut BufReader<TcpStream>) -> Result<String> {
    let mut line = String::new();
    stream.take(HEAD_LINE_BYTES_MAX).read_line(&mut line).await?;
    match line.strip_suffix('\n') {
        Some(line) => Ok(line.trim_end_matches('\r').to_owned()),
        None => bail!("the response's head breaks off"),
    }
}
