//! More requests than lanes: refused, made to wait, and told so.

use crate::support::{CHAT, Gate, Script, Setup, Sse, chat, patient, text};
use serde_json::json;
use std::time::Duration;

/// T1
#[tokio::test]
async fn a_full_queue_refuses_at_once() {
    let gate = Gate::closed();
    let server = Setup { gate: gate.clone(), ..Setup::default() }.start().await;
    let mut waiting = Vec::new();
    for stream in [true, false, true] {
        let mut client = server.client().await;
        client.post(CHAT, &chat(&json!({"stream": stream}))).await;
        if stream {
            // Headers come at admission, though nothing runs yet.
            let (head, mut events) = patient(client.events()).await;
            assert!(head.header("x-laneway-predicted-ttft-ms").is_some());
            assert!(matches!(patient(events.next()).await, Sse::Comment(_)));
            waiting.push((None, Some(events)));
        } else {
            waiting.push((Some(client), None));
        }
        let taken = waiting.len() as u64;
        server.until("/lanes/busy", 1).await;
        server.until("/queue/waiting", taken - 1).await;
    }
    for stream in [true, false, true] {
        let reply = server.chat(&json!({"stream": stream})).await;
        assert_eq!(reply.head.status, 429);
        assert!(reply.head.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
        let error = reply.error();
        assert_eq!(error["code"], "rate_limit_exceeded");
        assert_eq!(error["type"], "rate_limit_error");
    }
    gate.release();
    for (client, events) in waiting {
        if let Some(mut client) = client {
            assert_eq!(patient(client.reply()).await.head.status, 200);
        }
        if let Some(events) = events {
            assert!(!patient(events.rest()).await.is_empty());
        }
    }
    assert_eq!(server.chat(&json!({})).await.head.status, 200);
    server.stop().await;
}

/// T2
#[tokio::test]
async fn the_longest_wait_ends_with_one_error() {
    let gate = Gate::closed();
    let server = Setup {
        gate: gate.clone(),
        script: Script::Endless(97),
        window: 1 << 16,
        wait: Duration::from_millis(20),
        ..Setup::default()
    };
    let server = server.start().await;
    let (_, mut running) = server.stream(&json!({})).await;
    gate.arrived(1).await;
    let (_, mut events) = server.stream(&json!({})).await;
    let whole = async {
        let reply = server.chat(&json!({})).await;
        assert_eq!(reply.head.status, 503);
        assert_eq!(reply.error()["code"], "queue_timeout");
        assert!(reply.head.header("retry-after").is_some());
    };
    let streamed = async {
        let error = patient(events.event()).await["error"].clone();
        assert_eq!(error["code"], "queue_timeout");
        // Broken off, so that nobody takes this for an answer.
        assert_eq!(patient(events.next()).await, Sse::Broken);
    };
    let both = async { tokio::join!(whole, streamed) };
    // The lane stays taken all the while.
    let steps = async {
        loop {
            gate.step().await;
        }
    };
    tokio::select! {
        _ = both => {}
        () = steps => unreachable!("goes on for ever"),
    }
    let before = patient(running.event()).await;
    assert_eq!(before["choices"][0]["delta"]["role"], "assistant");
    gate.step().await;
    assert_eq!(patient(running.event()).await["choices"][0]["delta"]["content"], "a");
    running.close();
    server.stop().await;
}

/// T29b
#[tokio::test]
async fn a_waiting_stream_shows_signs_of_life() {
    let gate = Gate::closed();
    let mut setup = Setup { gate: gate.clone(), ..Setup::default() };
    setup.config.keep_alive = Duration::from_millis(5);
    let server = setup.start().await;
    let (_, mut running) = server.stream(&json!({})).await;
    let (_, mut waiting) = server.stream(&json!({})).await;
    for events in [&mut running, &mut waiting] {
        for _ in 0..3 {
            assert!(matches!(patient(events.next()).await, Sse::Comment(_)));
        }
    }
    gate.release();
    for events in [running, waiting] {
        assert_eq!(text(&patient(events.rest()).await), "Hello there");
    }
    server.stop().await;
}

/// T30a
#[tokio::test]
async fn a_fault_ends_a_stream_with_one_error_and_no_end_mark() {
    let gate = Gate::closed();
    let server = Setup { gate: gate.clone(), ..Setup::default() }.start().await;
    let (_, mut events) = server.stream(&json!({})).await;
    gate.pass(3);
    let first = patient(events.event()).await;
    assert_eq!(first["choices"][0]["delta"]["role"], "assistant");
    gate.fail();
    gate.release();
    let error = loop {
        let event = patient(events.event()).await;
        if event["error"].is_object() {
            break event["error"].clone();
        }
    };
    assert_eq!(
        (&error["code"], &error["type"]),
        (&json!("generation_failed"), &json!("server_error"))
    );
    assert_eq!(patient(events.next()).await, Sse::Broken);
    gate.fail();
    let reply = server.chat(&json!({})).await;
    assert_eq!((reply.head.status, &reply.error()["code"]), (500, &json!("generation_failed")));
    assert_eq!(server.chat(&json!({})).await.head.status, 200);
    assert_eq!(server.health().await["status"], "ok");
    server.stop().await;
}
