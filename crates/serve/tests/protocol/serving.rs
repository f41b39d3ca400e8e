//! Models, keys, pages of other origins, logs, and the small endpoints.

use crate::support::{CHAT, Setup, chat, patient, text, with};
use laneway_serve::ServerConfig;
use serde_json::{Value, json};

/// X2
#[tokio::test]
async fn models_are_listed_with_their_window() {
    let server = Setup::default().start().await;
    let models = server.get("/v1/models").await.json();
    assert_eq!(models["object"], "list");
    assert_eq!(models["data"][0]["id"], "tiny");
    assert_eq!(models["data"][0]["context_length"], 2048);
    assert_eq!(models["models"][1]["name"], "alias/of-tiny");
    assert_eq!(server.get("/v1/models/tiny").await.json()["id"], "tiny");
    assert_eq!(server.get("/v1/models/alias/of-tiny").await.json()["id"], "alias/of-tiny");
    let unknown = server.get("/v1/models/nobody").await;
    assert_eq!((unknown.head.status, &unknown.error()["code"]), (404, &json!("model_not_found")));
    for stream in [false, true] {
        let reply = server.chat(&json!({"model": "nobody", "stream": stream})).await;
        assert_eq!(reply.head.status, 404);
        let message = reply.error()["message"].clone();
        assert!(message.as_str().unwrap().contains("tiny, alias/of-tiny"), "{message}");
    }
    let reply = server.chat(&json!({"model": "alias/of-tiny"})).await.json();
    assert_eq!(reply["model"], "alias/of-tiny");
    let reply = server.chat(&json!({"model": null})).await.json();
    assert_eq!(reply["model"], "tiny", "without a name there is only one to mean");
    server.stop().await;
}

#[tokio::test]
async fn keys_open_everything_but_health_and_the_page() {
    let api_keys = vec!["one".to_owned(), "two".to_owned()];
    let config = ServerConfig { api_keys, ..Setup::default().config };
    let server = Setup { config, ..Setup::default() }.start().await;
    let status = async |method: &str, path: &str, header: &str| {
        let mut client = server.client().await;
        let body = if method == "POST" { chat(&json!({})).to_string() } else { String::new() };
        client.request(method, path, &[header], body.as_bytes()).await;
        let reply = patient(client.reply()).await;
        if reply.head.status == 401 {
            assert_eq!(reply.error()["code"], "invalid_api_key");
        }
        reply.head.status
    };
    for path in ["/health", "/"] {
        assert_eq!(status("GET", path, "x-none: 0").await, 200);
    }
    for wrong in
        ["x-none: 0", "authorization: Bearer on", "authorization: Basic one", "x-api-key: "]
    {
        assert_eq!(status("GET", "/v1/models", wrong).await, 401);
        assert_eq!(status("POST", CHAT, wrong).await, 401);
    }
    for right in ["authorization: Bearer one", "authorization: bearer two", "x-api-key: two"] {
        assert_eq!(status("GET", "/v1/models", right).await, 200);
        assert_eq!(status("POST", CHAT, right).await, 200);
    }
    server.stop().await;
}

#[tokio::test]
async fn pages_of_other_origins_may_call() {
    let server = Setup::default().start().await;
    let mut client = server.client().await;
    let headers = [
        "origin: http://page.test",
        "access-control-request-method: POST",
        "access-control-request-headers: authorization, x-custom",
    ];
    client.request("OPTIONS", CHAT, &headers, b"").await;
    let reply = patient(client.reply()).await;
    assert_eq!(reply.head.status, 204);
    assert_eq!(reply.head.header("access-control-allow-origin"), Some("*"));
    let allowed = reply.head.header("access-control-allow-headers");
    assert_eq!(allowed, Some("authorization, x-custom"));
    client.request("GET", "/v1/models", &headers[..1], b"").await;
    let reply = patient(client.reply()).await;
    assert_eq!(reply.head.header("access-control-allow-origin"), Some("*"));
    // Errors too, or the page could not read them.
    client.request("GET", "/nowhere", &headers[..1], b"").await;
    let reply = patient(client.reply()).await;
    assert_eq!(reply.head.status, 404);
    assert_eq!(reply.head.header("access-control-allow-origin"), Some("*"));
    assert_eq!(reply.error()["code"], "not_found");
    server.stop().await;

    let allowed_origins = vec!["http://mine.test".to_owned()];
    let config = ServerConfig { allowed_origins, ..Setup::default().config };
    let server = Setup { config, ..Setup::default() }.start().await;
    for (origin, expected) in
        [("http://mine.test", Some("http://mine.test")), ("http://page.test", None)]
    {
        let mut client = server.client().await;
        client.request("GET", "/health", &[&format!("origin: {origin}")], b"").await;
        let reply = patient(client.reply()).await;
        assert_eq!(reply.head.header("access-control-allow-origin"), expected);
    }
    server.stop().await;
}

#[tokio::test]
async fn other_methods_and_paths_are_refused_in_shape() {
    let server = Setup::default().start().await;
    for (method, path, status, code) in [
        ("GET", CHAT, 405, "method_not_allowed"),
        ("PUT", "/health", 405, "method_not_allowed"),
        ("POST", "/v1/nothing", 404, "not_found"),
    ] {
        let mut client = server.client().await;
        client.request(method, path, &[], b"").await;
        let reply = patient(client.reply()).await;
        assert_eq!((reply.head.status, &reply.error()["code"]), (status, &json!(code)));
    }
    let mut client = server.client().await;
    client.request("HEAD", "/health", &[], b"").await;
    assert_eq!(patient(client.head()).await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn tokens_and_text_turn_into_each_other() {
    let server = Setup::default().start().await;
    let tokens = async |body: Value| server.post("/tokenize", &body).await.json();
    let plain = tokens(json!({"content": "ab"})).await;
    assert_eq!((&plain["tokens"], &plain["count"]), (&json!([97, 98]), &json!(2)));
    assert_eq!(tokens(json!({"prompt": "ab"})).await, plain);
    let pieces = tokens(json!({"content": "a", "with_pieces": true})).await;
    assert_eq!(pieces["tokens"], json!([{"id": 97, "piece": "a"}]));
    let chat = tokens(json!({"messages": [{"role": "user", "content": "hi"}]})).await;
    let usage = server.chat(&json!({})).await.json()["usage"].clone();
    assert_eq!(chat["count"], usage["prompt_tokens"]);
    let text = server.post("/detokenize", &json!({"tokens": [0xc3, 0xa9]})).await.json();
    assert_eq!((&text["content"], &text["prompt"]), (&json!("é"), &json!("é")));
    for (path, body, param) in [
        ("/tokenize", json!({}), "content"),
        ("/tokenize", json!({"content": 5}), "content"),
        ("/detokenize", json!({}), "tokens"),
        ("/detokenize", json!({"tokens": [-1]}), "tokens[0]"),
        ("/detokenize", json!({"tokens": [9999]}), "tokens[0]"),
    ] {
        let reply = server.post(path, &body).await;
        assert_eq!((reply.head.status, &reply.error()["param"]), (400, &json!(param)));
    }
    server.stop().await;
}

#[tokio::test]
async fn the_page_needs_nothing_from_elsewhere() {
    let server = Setup::default().start().await;
    let page = server.get("/").await;
    assert_eq!(page.head.status, 200);
    assert!(page.head.header("content-type").unwrap().starts_with("text/html"));
    assert!(page.head.header("content-security-policy").unwrap().contains("connect-src 'self'"));
    let html = String::from_utf8(page.body).unwrap();
    for outside in ["src=\"http", "href=\"http", "@import", "url(http"] {
        assert!(!html.contains(outside), "{outside}");
    }
    let health = server.health().await;
    assert_eq!(health["status"], "ok");
    assert_eq!(health["model"], "tiny");
    server.stop().await;
}

#[tokio::test]
async fn every_finished_request_has_its_record() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("requests.jsonl");
    let config = ServerConfig { request_log: Some(path.clone()), ..Setup::default().config };
    let server = Setup { config, window: 128, ..Setup::default() }.start().await;
    let id = server.chat(&json!({"seed": 7})).await.json()["id"].clone();
    let (_, events) = server.stream(&json!({})).await;
    assert_eq!(text(&patient(events.rest()).await), "Hello there");
    let long = json!({"messages": [{"role": "user", "content": "x".repeat(500)}]});
    assert_eq!(server.chat(&with(long, &json!({}))).await.head.status, 400);
    server.stop().await;

    let lines = std::fs::read_to_string(&path).unwrap();
    let records: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let statuses: Vec<_> =
        records.iter().map(|record| record["status"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["done", "done", "refused"]);
    let done = &records[0];
    assert_eq!((&done["id"], &done["seed"]), (&id, &json!(7)));
    assert_eq!(done["completion_tokens"], "Hello there".len());
    assert_eq!(done["finish_reason"], "stop");
    for time in ["arrived_unix_s", "total_s", "queue_s", "ttft_s", "ttft_predicted_s"] {
        assert!(done[time].is_f64(), "{time} in {done}");
    }
    assert_eq!(records[1]["stream"], true);
    assert_eq!(records[2]["error"], "context_length_exceeded");
}
