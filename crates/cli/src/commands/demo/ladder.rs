//! The ladder: equal prompts, submitted together, are prefilled one after the other, so that lane
//! k waits k times as long for its first token as lane 1, and knows it beforehand.

use crate::client::post;
use anyhow::{Context, Result, ensure};
use laneway_ops::synthetic::Stream;
use serde_json::{Value, json};
use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Tokens of each prompt.
const PROMPT_TOKENS: usize = 640;

/// Tokens generated behind each prompt: enough to be streamed, too few to matter.
const ANSWER_TOKENS: usize = 8;

/// Words of the made-up prompts.
const WORDS: &[&str] = &[
    "river", "stone", "garden", "letter", "window", "winter", "bridge", "candle", "forest",
    "harbour", "market", "morning", "mountain", "music", "paper", "road", "silver", "story",
    "summer", "table", "thunder", "village", "water", "yellow",
];

/// What one lane saw.
struct Rung {
    predicted: Duration,
    measured: Duration,
}

/// What all lanes saw, first come first.
pub(super) struct Ladder(Vec<Rung>);

/// Sends `lanes` equal prompts at once and times their first tokens.
pub(super) async fn climb(server: SocketAddr, lanes: usize) -> Result<Ladder> {
    let mut prompts = Vec::new();
    // One more than there are lanes: the first teaches the server how fast this machine is.
    for seed in 0..=lanes {
        prompts.push(prompt(server, seed as u64).await?);
    }
    let warm_up = prompts.remove(0);
    first_token(server, warm_up).await?;
    let together = prompts.into_iter().map(|prompt| tokio::spawn(first_token(server, prompt)));
    // Collected first, so that all are under way before one is waited for.
    let together: Vec<_> = together.collect();
    let mut rungs = Vec::new();
    for lane in together {
        rungs.push(lane.await??);
    }
    rungs.sort_by_key(|rung| rung.measured);
    Ok(Ladder(rungs))
}

/// A prompt of exactly [`PROMPT_TOKENS`] tokens, another one for every seed.
async fn prompt(server: SocketAddr, seed: u64) -> Result<Value> {
    let mut stream = Stream::new(seed);
    let words: Vec<&str> =
        (0..2 * PROMPT_TOKENS).map(|_| WORDS[stream.below(WORDS.len())]).collect();
    let request = json!({ "content": words.join(" ") });
    let response = post(server, "/tokenize", &request.to_string()).await?.text().await?;
    let response: Value = serde_json::from_str(&response).context("no JSON from /tokenize")?;
    let tokens = response["tokens"].as_array().context("no tokens from /tokenize")?;
    ensure!(tokens.len() >= PROMPT_TOKENS, "only {} tokens from /tokenize", tokens.len());
    Ok(tokens[..PROMPT_TOKENS].into())
}

async fn first_token(server: SocketAddr, prompt: Value) -> Result<Rung> {
    let request = json!({
        "prompt": prompt,
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "ignore_eos": true,
        "stream": true,
    })
    .to_string();
    let sent = Instant::now();
    let response = post(server, "/v1/completions", &request).await?;
    let predicted_ms: u64 = response
        .header("x-laneway-predicted-ttft-ms")
        .context("the server predicts nothing")?
        .parse()?;
    let mut events = response.events().await?;
    let mut first = None;
    while let Some(event) = events.next().await? {
        if first.is_none() && !event.data.is_empty() {
            first = Some(event.arrived);
        }
        ensure!(!event.data.starts_with("{\"error\""), "the request failed: {}", event.data);
    }
    let first = first.context("no token arrived")?;
    Ok(Rung { predicted: Duration::from_millis(predicted_ms), measured: first - sent })
}

impl fmt::Display for Ladder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lanes = self.0.len();
        writeln!(f, "{lanes} prompts of {PROMPT_TOKENS} tokens, submitted together:\n")?;
        writeln!(f, "lane  predicted TTFT  measured TTFT  ratio to lane 1")?;
        for (lane, rung) in (1..).zip(&self.0) {
            let (predicted, measured) = (rung.predicted.as_secs_f64(), rung.measured.as_secs_f64());
            let ratio = measured / self.0[0].measured.as_secs_f64();
            writeln!(f, "{lane:>4}  {predicted:>12.3} s  {measured:>11.3} s  {ratio:>15.2}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_line_a_lane() {
        let rung = |predicted, measured| Rung {
            predicted: Duration::from_millis(predicted),
            measured: Duration::from_millis(measured),
        };
        let ladder = Ladder(vec![rung(400, 410), rung(800, 825)]);
        assert_eq!(
            ladder.to_string(),
            "2 prompts of 640 tokens, submitted together:\n\n\
             lane  predicted TTFT  measured TTFT  ratio to lane 1\n   \
             1         0.400 s        0.410 s             1.00\n   \
             2         0.800 s        0.825 s             2.01\n"
        );
    }
}
