//! Clients that leave: in the queue, in the prompt, in the answer; streaming or not.

use crate::support::{CHAT, Gate, Script, Setup, chat, patient, script, text};
use serde_json::json;

fn gated() -> (Gate, Setup) {
    let gate = Gate::closed();
    let setup = Setup { gate: gate.clone(), script: Script::Endless(97), ..Setup::default() };
    (gate, setup)
}

/// T3: a prompt of many chunks is given up after the chunk that runs.
#[tokio::test]
async fn hanging_up_in_the_prompt_frees_the_lane() {
    for (stream, half) in [(true, false), (false, false), (true, true), (false, true)] {
        let (gate, setup) = gated();
        let server = setup.start().await;
        let mut client = server.client().await;
        let prompt = "x".repeat(1900);
        let messages = json!([{"role": "user", "content": prompt}]);
        client.post(CHAT, &chat(&json!({"messages": messages, "stream": stream}))).await;
        gate.arrived(1).await;
        server.until("/lanes/busy", 1).await;
        // A half-closed connection counts as closed: documented in `server.rs`.
        if half {
            client.half_close().await;
        } else {
            drop(client);
        }
        server.step_until("/lanes/busy", 0).await;
        // Far fewer steps than the prompt has chunks.
        assert!(gate.steps() < 10, "the prompt ran on without its client: {stream} {half}");
        gate.release();
        let reply = server.chat(&json!({"max_tokens": 1})).await;
        assert_eq!(reply.head.status, 200);
        assert_eq!(server.health().await["pages"]["used"], 0);
        server.stop().await;
    }
}

#[tokio::test]
async fn hanging_up_in_the_answer_frees_the_lane() {
    for stream in [true, false] {
        let (gate, setup) = gated();
        let server = setup.start().await;
        let mut client = server.client().await;
        client.post(CHAT, &chat(&json!({"stream": stream}))).await;
        gate.pass(3);
        gate.arrived(3).await;
        drop(client);
        server.step_until("/lanes/busy", 0).await;
        assert!(gate.steps() < 10, "the answer ran on without its client: {stream}");
        server.stop().await;
    }
}

/// T4
#[tokio::test]
async fn hanging_up_in_the_queue_lets_the_next_one_through() {
    let said = "All of this is said, whoever else comes and goes. ".repeat(20);
    let gate = Gate::closed();
    let setup = Setup { gate: gate.clone(), script: script(&said), ..Setup::default() };
    let server = setup.start().await;
    let (_, a) = server.stream(&json!({})).await;
    gate.arrived(1).await;
    for stream in [true, false] {
        let mut b = server.client().await;
        b.post(CHAT, &chat(&json!({"stream": stream}))).await;
        server.step_until("/queue/waiting", 1).await;
        let (_, c) = server.stream(&json!({})).await;
        server.step_until("/queue/waiting", 2).await;
        drop(b);
        server.step_until("/queue/waiting", 1).await;
        c.close();
        server.step_until("/queue/waiting", 0).await;
    }
    let (_, c) = server.stream(&json!({})).await;
    gate.release();
    assert_eq!(text(&patient(a.rest()).await), said);
    assert_eq!(text(&patient(c.rest()).await), said);
    assert_eq!(gate.sequences(), 2, "who left the queue was never computed");
    server.stop().await;
}

/// A client that does not read holds up nobody, and gets everything once it does.
#[tokio::test]
async fn a_client_that_does_not_read_holds_up_nobody() {
    let window = 1 << 16;
    let setup = Setup { script: Script::Endless(97), window, ..Setup::default() };
    let server = setup.start().await;
    let (_, events) = server.stream(&json!({})).await;
    server.until("/lanes/busy", 0).await;
    let events = patient(events.rest()).await;
    assert!(text(&events).len() > window - 100);
    server.stop().await;
}

#[tokio::test]
async fn a_server_that_stops_lets_answers_end() {
    let gate = Gate::closed();
    let server = Setup { gate: gate.clone(), ..Setup::default() }.start().await;
    let address = server.address;
    let (_, events) = server.stream(&json!({})).await;
    let idle = server.client().await;
    gate.arrived(1).await;
    // Releases the gate, too.
    let (events, ()) = tokio::join!(patient(events.rest()), server.stop());
    assert_eq!(text(&events), "Hello there");
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
    drop(idle);
}
