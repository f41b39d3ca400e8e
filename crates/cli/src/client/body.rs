//! A response body: chunked, of known length, or up to the connection's end.

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::TcpStream;

/// Most bytes handed out at a time.
const PIECE_BYTES_MAX: usize = 64 << 10;

/// Longest line that announces a chunk.
const CHUNK_LINE_BYTES_MAX: u64 = 1 << 10;

#[derive(Debug)]
pub(super) struct Body {
    stream: BufReader<TcpStream>,
    framing: Framing,
}

#[derive(Debug)]
enum Framing {
    /// In chunks; `left` bytes of the current one are still to come.
    Chunked { left: usize },
    /// This many bytes.
    Length(usize),
    /// Until the peer closes.
    ToEnd,
    /// All of it has been read.
    Done,
}

impl Body {
    pub(super) fn new(stream: BufReader<TcpStream>, chunked: bool, length: Option<usize>) -> Self {
        let framing = match (chunked, length) {
            (true, _) => Framing::Chunked { left: 0 },
            (false, Some(length)) => Framing::Length(length),
            (false, None) => Framing::ToEnd,
        };
        Body { stream, framing }
    }

    /// The next piece as soon as there is one; none at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<u8>>> {
        if matches!(self.framing, Framing::Chunked { left: 0 }) {
            self.start_chunk().await?;
        }
        let most = match self.framing {
            Framing::Done | Framing::Length(0) => return Ok(None),
            Framing::Chunked { left } | Framing::Length(left) => left,
            Framing::ToEnd => PIECE_BYTES_MAX,
        };
        let mut piece = vec![0; most.min(PIECE_BYTES_MAX)];
        let count = self.stream.read(&mut piece).await?;
        piece.truncate(count);
        match &mut self.framing {
            Framing::ToEnd if count == 0 => return Ok(None),
            _ if count == 0 => bail!("the response breaks off"),
            Framing::Chunked { left } => {
                *left -= count;
                if *left == 0 {
                    self.line().await?;
                }
            }
            Framing::Length(left) => *left -= count,
            Framing::ToEnd | Framing::Done => {}
        }
        Ok(Some(piece))
    }

    async fn start_chunk(&mut self) -> Result<()> {
        let line = self.line().await?;
        let digits = line.split(';').next().unwrap_or_default().trim();
        let left = usize::from_str_radix(digits, 16)
            .with_context(|| format!("{line:?} announces no chunk"))?;
        self.framing = if left == 0 { Framing::Done } else { Framing::Chunked { left } };
        Ok(())
    }

    async fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        (&mut self.stream).take(CHUNK_LINE_BYTES_MAX).read_line(&mut line).await?;
        if !line.ends_with('\n') {
            bail!("the response breaks off");
        }
        Ok(line.trim_end().to_owned())
    }
}
