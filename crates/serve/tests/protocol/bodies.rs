//! Broken bodies, edges of fields, and what is accepted or refused by name.

use crate::support::{CHAT, COMPLETIONS, Client, Setup, chat, patient, with};
use laneway_serve::ServerConfig;
use serde_json::{Value, json};

const JSON: &[&str] = &["content-type: application/json"];

/// T9
#[tokio::test]
async fn broken_bodies_are_refused_and_the_connection_lives() {
    let server = Setup::default().start().await;
    let mut client = server.client().await;
    let deep = "[".repeat(200);
    let deep_inside = format!(r#"{{"messages":[{{"role":"user","content":{deep}"#);
    let bodies: &[&[u8]] = &[
        b"",
        b"{",
        b"[]",
        b"\"x\"",
        br#"{"messages":[{"role":"user","content":"x"}],"stream":false,"stream":true}"#,
        br#"{"messages":[{"role":"user","role":"user","content":"x"}]}"#,
        br#"{"messages":[]}"#,
        br#"{"model":"tiny"}"#,
        br#"{"messages":"x"}"#,
        b"{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe\"}]}",
        br#"{"messages":[{"role":"user","content":"\ud800"}]}"#,
        br#"{"messages":[{"role":"user","content":"x"}],"temperature":1e999}"#,
        deep.as_bytes(),
        deep_inside.as_bytes(),
    ];
    for body in bodies {
        client.request("POST", CHAT, JSON, body).await;
        let reply = patient(client.reply()).await;
        assert_eq!(reply.head.status, 400, "{}", String::from_utf8_lossy(body));
        reply.error();
    }
    for kind in ["content-type: text/plain", "content-type: application/x-www-form-urlencoded"] {
        client.request("POST", CHAT, &[kind], chat(&json!({})).to_string().as_bytes()).await;
        let reply = patient(client.reply()).await;
        assert_eq!(reply.head.status, 400);
        assert_eq!(reply.error()["code"], "invalid_content_type");
    }
    for kind in ["content-type: application/json; charset=utf-8", "x-nothing: here"] {
        let body = json!({"messages": [{"role": "user", "content": ""}]}).to_string();
        client.request("POST", CHAT, &[kind], body.as_bytes()).await;
        assert_eq!(patient(client.reply()).await.head.status, 200, "empty text is legal");
    }
    server.stop().await;
}

/// T6
#[tokio::test]
async fn a_prompt_beyond_the_window_is_an_error_with_both_counts() {
    let server = Setup { window: 128, ..Setup::default() }.start().await;
    // One token a byte; a completion's prompt is taken as it is.
    for stream in [false, true] {
        let body = chat(&json!({
            "messages": [{"role": "user", "content": "x".repeat(3000)}], "stream": stream,
        }));
        let reply = server.post(CHAT, &body).await;
        assert_eq!(reply.head.status, 400);
        let error = reply.error();
        assert_eq!(error["code"], "context_length_exceeded");
        assert_eq!(error["param"], "messages");
        assert_eq!(error["type"], "invalid_request_error");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(" 128 ") && message.contains("30"), "{message}");
    }
    let status = async |length: usize, max_tokens: Value| {
        let body = json!({"prompt": vec![97; length], "max_tokens": max_tokens});
        let reply = server.post(COMPLETIONS, &body).await;
        (reply.head.status, reply.json()["usage"]["completion_tokens"].clone())
    };
    // The documented edge: prompt and output share the window.
    assert_eq!(status(126, json!(null)).await, (200, json!(2)));
    assert_eq!(status(127, json!(null)).await, (200, json!(1)));
    assert_eq!(status(128, json!(null)).await, (400, json!(null)));
    assert_eq!(status(128, json!(0)).await, (200, json!(0)));
    assert_eq!(status(129, json!(0)).await, (400, json!(null)));
    assert_eq!(server.health().await["lanes"]["busy"], 0);
    server.stop().await;
}

/// T8
#[tokio::test]
async fn max_tokens_has_documented_edges() {
    let server = Setup::default().start().await;
    for wrong in [json!(-1), json!(1.5), json!("5")] {
        let reply = server.chat(&json!({"max_tokens": wrong})).await;
        assert_eq!((reply.head.status, &reply.error()["param"]), (400, &json!("max_tokens")));
    }
    let outcome = async |extra: Value| {
        let reply = server.chat(&extra).await.json();
        let tokens = reply["usage"]["completion_tokens"].as_u64().unwrap();
        (tokens, reply["choices"][0]["finish_reason"].as_str().unwrap().to_owned())
    };
    let length = |tokens| (tokens, "length".to_owned());
    assert_eq!(outcome(json!({"max_tokens": 1})).await, length(1));
    assert_eq!(outcome(json!({"max_tokens": 0})).await, length(0));
    assert_eq!(outcome(json!({"max_tokens": 9, "max_completion_tokens": 3})).await, length(3));
    let natural = outcome(json!({"max_tokens": null})).await;
    assert_eq!(natural.1, "stop");
    assert_eq!(outcome(json!({})).await, natural);
    server.stop().await;
}

/// X6
#[tokio::test]
async fn neutral_extras_are_accepted_and_others_refused_by_name() {
    let server = Setup::default().start().await;
    let reply = server
        .chat(&json!({
            "user": "u", "metadata": {"a": "b"}, "store": false, "service_tier": "auto",
            "logit_bias": {}, "stop": null, "unheard_of": {"deep": [1]}, "tools": [],
            "parallel_tool_calls": true, "reasoning_effort": "high", "prompt_cache_key": "k",
            "thinking": {"type": "enabled"}, "n": 1, "response_format": {"type": "text"},
        }))
        .await;
    assert_eq!(reply.head.status, 200);
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {}}});
    for (field, value) in [
        ("n", json!(2)),
        ("tools", json!([tool])),
        ("response_format", json!({"type": "json_schema", "json_schema": {}})),
        ("audio", json!({"voice": "v"})),
        ("functions", json!([{}])),
        ("logit_bias.9999", json!(null)),
    ] {
        let extra = match field.split_once('.') {
            Some((outer, inner)) => json!({ outer: { inner: 1 } }),
            None => json!({ field: value }),
        };
        for stream in [false, true] {
            let reply = server.chat(&with(extra.clone(), &json!({"stream": stream}))).await;
            assert_eq!((reply.head.status, &reply.error()["param"]), (400, &json!(field)));
        }
    }
    server.stop().await;
}

/// T20
#[tokio::test]
async fn rough_histories_never_break_the_server() {
    let server = Setup::default().start().await;
    let call = |arguments: Value| {
        json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}},
        ]})
    };
    let user = json!({"role": "user", "content": "x"});
    for (messages, status) in [
        (json!([user, call(json!("{")), {"role": "tool", "content": "r"}]), 200),
        (
            json!([user, call(json!({"a": 1})), {"role": "tool", "content": [
                {"type": "text", "text": "r"},
            ]}]),
            200,
        ),
        (json!([{"role": "assistant", "content": "first"}, user]), 200),
        (json!([user, user, {"role": "developer", "content": "d"}]), 200),
        (json!([user, {"role": "assistant", "content": null}]), 400),
        (json!([user, {"role": "user", "content": null}]), 400),
    ] {
        for _ in 0..2 {
            let reply = server.post(CHAT, &json!({ "messages": messages })).await;
            assert_eq!(reply.head.status, status, "{messages}");
            if status == 400 {
                let error = reply.error();
                assert!(error["param"].as_str().unwrap().starts_with("messages[1]"), "{error}");
            }
        }
    }
    server.stop().await;
}

/// T30e
#[tokio::test]
async fn bodies_are_limited_and_the_limit_is_large() {
    let limit = 12 << 20;
    let config = ServerConfig { body_limit_bytes: limit, ..Setup::default().config };
    let server = Setup { config, ..Setup::default() }.start().await;
    let big = chat(&json!({"messages": [{"role": "user", "content": "x".repeat(10 << 20)}]}));
    assert_eq!(server.post(CHAT, &big).await.error()["code"], "context_length_exceeded");

    let beyond = vec![b' '; limit + 1];
    let mut client = server.client().await;
    client.request("POST", CHAT, JSON, &beyond).await;
    let reply = patient(client.reply()).await;
    assert_eq!((reply.head.status, &reply.error()["code"]), (413, &json!("request_too_large")));

    // The same without a declared length.
    let mut client = server.client().await;
    client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n").await;
    client.send(b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n").await;
    client.send(format!("{:x}\r\n", beyond.len()).as_bytes()).await;
    client.send(&beyond).await;
    client.send(b"\r\n0\r\n\r\n").await;
    assert_eq!(patient(client.reply()).await.head.status, 413);
    assert_eq!(server.chat(&json!({})).await.head.status, 200);
    server.stop().await;
}

/// A client that promises a body and goes away does no harm.
#[tokio::test]
async fn a_body_that_breaks_off_is_forgotten() {
    let server = Setup::default().start().await;
    let mut client: Client = server.client().await;
    client
        .send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{")
        .await;
    drop(client);
    assert_eq!(server.chat(&json!({})).await.head.status, 200);
    server.stop().await;
}
