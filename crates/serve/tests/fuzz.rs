//! Mutated chat bodies for a few seconds: no panic, no 5xx, and memory that stays in bounds.

#[expect(dead_code, unused_imports, reason = "the protocol tests use the rest of it")]
mod support;

use serde_json::{Value, json};
use std::time::{Duration, Instant};
use support::{CHAT, Client, Setup, patient};

/// How long the mutations run.
const FUZZ_TIME: Duration = Duration::from_secs(5);
/// Body limit of the memory test.
const LIMIT_BYTES: usize = 4 << 20;
/// Most resident memory a body may cost, in multiples of the body limit: the text itself, its
/// values (see `json::values_max`), the conversation and prompt made from it, and its tokens.
const MEMORY_MULTIPLE: usize = 24;

/// xorshift64*, so that a failing run can be repeated from its seed.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % below
    }
}

fn seeds() -> Vec<Value> {
    vec![
        json!({"model": "tiny", "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "é\u{1f600}"}]},
            {"role": "assistant", "content": null, "reasoning_content": "r", "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}},
            ]},
            {"role": "tool", "tool_call_id": "c", "content": "t"},
        ], "stream": true, "stream_options": {"include_usage": true}, "max_tokens": 3}),
        json!({"messages": [{"role": "user", "content": "x"}], "temperature": 0.7, "top_p": 0.9,
            "top_k": 40, "min_p": 0.05, "seed": 42, "stop": ["a", "b"], "logprobs": true,
            "top_logprobs": 3, "logit_bias": {"5": -100, "6": 3.5}, "n": 1, "max_tokens": 2,
            "presence_penalty": 0.1, "frequency_penalty": -0.1, "repetition_penalty": 1.1}),
        json!({"messages": [{"role": "developer", "content": ""}], "tools": [], "tool_choice": "none",
            "response_format": {"type": "text"}, "ignore_eos": false, "max_completion_tokens": 1}),
    ]
}

/// Values that have broken servers before.
fn odd(random: &mut Random) -> Value {
    let all = [
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(1.5),
        json!(1e300),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(""),
        json!("\u{0}"),
        json!([]),
        json!([[]]),
        json!({}),
        json!({"": {}}),
        json!("x".repeat(1000)),
        json!(vec![0; 100]),
    ];
    all[random.next(all.len())].clone()
}

/// Replaces, removes or adds something somewhere inside.
fn mutate(value: &mut Value, random: &mut Random) {
    let inside = match value {
        Value::Array(items) if !items.is_empty() && random.next(4) > 0 => {
            let index = random.next(items.len());
            match random.next(6) {
                0 => drop(items.remove(index)),
                1 => items.push(items[index].clone()),
                _ => return mutate(&mut items[index], random),
            }
            true
        }
        Value::Object(fields) if !fields.is_empty() && random.next(6) > 0 => {
            let index = random.next(fields.len());
            let key = fields.keys().nth(index).expect("in range").clone();
            match random.next(6) {
                0 => drop(fields.remove(&key)),
                1 => drop(fields.insert(format!("{key}x"), odd(random))),
                _ => return mutate(&mut fields[&key], random),
            }
            true
        }
        _ => false,
    };
    if !inside {
        *value = odd(random);
    }
}

async fn status(client: &mut Client, body: &[u8]) -> u16 {
    client.request("POST", CHAT, &["content-type: application/json"], body).await;
    patient(client.reply()).await.head.status
}

#[tokio::test]
async fn mutated_bodies_never_break_the_server() {
    let server = Setup::default().start().await;
    let mut client = server.client().await;
    let seed = 0x1234_5678_9abc_def1;
    let mut random = Random(seed);
    let seeds = seeds();
    let start = Instant::now();
    let (mut count, mut accepted) = (0, 0);
    while start.elapsed() < FUZZ_TIME {
        let mut body = seeds[random.next(seeds.len())].clone();
        for _ in 0..1 + random.next(3) {
            mutate(&mut body, &mut random);
        }
        let mut bytes = body.to_string().into_bytes();
        if random.next(4) == 0 {
            for _ in 0..1 + random.next(4) {
                let index = random.next(bytes.len());
                match random.next(3) {
                    0 => bytes[index] = random.next(256) as u8,
                    1 => bytes.truncate(index + 1),
                    _ => bytes.insert(index, b"\"{}[],:\\\xff\x00"[random.next(10)]),
                }
            }
        }
        let status = status(&mut client, &bytes).await;
        let text = String::from_utf8_lossy(&bytes);
        assert!(matches!(status, 200 | 400 | 404), "{status} after {count} of {seed:#x}: {text}");
        count += 1;
        accepted += usize::from(status == 200);
    }
    assert!(count > 200 && accepted > count / 50, "{accepted} of {count} accepted");
    server.stop().await;
}

/// Highest resident memory of this process so far, where the system tells.
fn peak_bytes() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<usize>().ok()? << 10)
}

#[tokio::test]
async fn hostile_bodies_cost_a_bounded_multiple_of_the_limit() {
    let mut setup = Setup::default();
    setup.config.body_limit_bytes = LIMIT_BYTES;
    let server = setup.start().await;
    let mut client = server.client().await;
    let fill = |unit: &str, wrap: (&str, &str)| {
        let room = LIMIT_BYTES - wrap.0.len() - wrap.1.len();
        let mut body = wrap.0.to_owned();
        body.push_str(unit.repeat(room / unit.len()).trim_end_matches(','));
        body.push_str(wrap.1);
        body
    };
    let mut keys = String::from("{");
    for key in 0.. {
        let entry = format!("\"{key:x}\":0,");
        if keys.len() + entry.len() > LIMIT_BYTES {
            break;
        }
        keys.push_str(&entry);
    }
    keys.pop();
    keys.push('}');
    let user = (r#"{"messages":[{"role":"user","content":""#, r#""}]}"#);
    let bodies = [
        fill("0,", ("[", "]")),
        fill("[],", ("[", "]")),
        fill("{},", (r#"{"messages":["#, "]}")),
        fill("{\"a\":[]},", (r#"{"metadata":["#, "]}")),
        keys,
        fill("\\u00e9", user),
        fill("x", user),
    ];
    let before = peak_bytes();
    for body in &bodies {
        assert_eq!(status(&mut client, body.as_bytes()).await, 400);
    }
    if let (Some(before), Some(after)) = (before, peak_bytes()) {
        let cost = after - before;
        println!("{:.1} times the limit", cost as f64 / LIMIT_BYTES as f64);
        assert!(cost < MEMORY_MULTIPLE * LIMIT_BYTES, "{cost} bytes for {LIMIT_BYTES}");
    }
    server.stop().await;
}
