//! Text, stop strings, probabilities and counts; streams and whole responses say the same.

use crate::support::{
    CHAT, COMPLETIONS, Script, Server, Setup, Sse, chat, patient, script, text, with,
};
use serde_json::{Value, json};

async fn scripted(said: &str) -> Server {
    Setup { script: script(said), ..Setup::default() }.start().await
}

/// The answer both ways, after checking that they agree: text and reason.
async fn both(server: &Server, extra: &Value) -> (String, String) {
    let whole = server.chat(extra).await.json();
    let (_, events) = server.stream(extra).await;
    let events = patient(events.rest()).await;
    let choice = &whole["choices"][0];
    let content = choice["message"]["content"].as_str().unwrap();
    assert_eq!(text(&events), content);
    let reasons: Vec<_> = events
        .iter()
        .map(|event| &event["choices"][0]["finish_reason"])
        .filter(|reason| !reason.is_null())
        .collect();
    assert_eq!(reasons, [&choice["finish_reason"]]);
    (content.to_owned(), choice["finish_reason"].as_str().unwrap().to_owned())
}

/// T10
#[tokio::test]
async fn characters_are_whole_in_every_event() {
    let said = "é👩‍👩‍👧‍👦漢字🎉.";
    let server = scripted(said).await;
    assert_eq!(both(&server, &json!({})).await.0, said);
    // Cut inside of each character in turn: what is there is valid, and at most its last
    // character is a replacement.
    for max_tokens in 1..said.len() {
        let (cut, reason) = both(&server, &json!({ "max_tokens": max_tokens })).await;
        let whole = cut.strip_suffix('\u{fffd}').unwrap_or(&cut);
        assert!(said.starts_with(whole) && !whole.contains('\u{fffd}'), "{cut}");
        assert_eq!(reason, "length");
    }
    server.stop().await;
}

/// T12
#[tokio::test]
async fn stop_strings_never_show() {
    let server = scripted("foobar baz").await;
    for (stop, expected) in [
        (json!(["bar"]), ("foo", "stop")),
        (json!("bar"), ("foo", "stop")),
        (json!(["obarx", "bar b", "baz"]), ("foo", "stop")),
        (json!(["ar", "bar"]), ("foo", "stop")),
        (json!(["foo"]), ("", "stop")),
        (json!(["bax", "nothing"]), ("foobar baz", "stop")),
        (json!(["bazz"]), ("foobar baz", "stop")),
    ] {
        let said = both(&server, &json!({ "stop": stop })).await;
        assert_eq!((said.0.as_str(), said.1.as_str()), expected, "{stop}");
    }
    // Text that is held back for a stop string comes out when the limit ends the output.
    let said = both(&server, &json!({"stop": ["bar!"], "max_tokens": 5})).await;
    assert_eq!((said.0.as_str(), said.1.as_str()), ("fooba", "length"));
    server.stop().await;
}

/// A stop string ends the request in the engine, not only its text.
#[tokio::test]
async fn a_stop_string_frees_the_lane() {
    let server = Setup { script: Script::Endless(97), ..Setup::default() }.start().await;
    let said = both(&server, &json!({"stop": "aaa"})).await;
    assert_eq!((said.0.as_str(), said.1.as_str()), ("", "stop"));
    server.until("/lanes/busy", 0).await;
    server.stop().await;
}

/// T7
#[tokio::test]
async fn the_limit_is_a_ceiling_and_not_a_reservation() {
    let server = Setup { script: Script::Endless(97), lanes: 2, window: 256, ..Setup::default() };
    let server = server.start().await;
    let body = json!({"max_tokens": 65536});
    let (a, b) = tokio::join!(server.chat(&body), server.chat(&body));
    for reply in [a, b] {
        assert_eq!(reply.head.status, 200);
        let reply = reply.json();
        assert_eq!(reply["choices"][0]["finish_reason"], "length");
        assert_eq!(reply["usage"]["total_tokens"], 256);
    }
    server.stop().await;
}

/// T26
#[tokio::test]
async fn counts_are_the_same_in_all_modes() {
    let server = scripted("counted").await;
    let usage = server.chat(&json!({})).await.json()["usage"].clone();
    assert_eq!(usage["completion_tokens"], "counted".len());
    let prompt = usage["prompt_tokens"].as_u64().unwrap();
    assert_eq!(usage["total_tokens"], prompt + 7);
    assert!(usage["prompt_tokens_details"]["cached_tokens"].is_u64());

    let (_, events) = server.stream(&json!({"stream_options": {"include_usage": true}})).await;
    let events = patient(events.rest()).await;
    let (last, before) = events.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    for count in ["prompt_tokens", "completion_tokens", "total_tokens"] {
        assert_eq!(last["usage"][count], usage[count]);
    }
    assert!(before.iter().all(|event| event.get("usage").is_none()));
    assert!(before.last().unwrap()["timings"]["ttft_ms"].is_f64());

    let (_, events) = server.stream(&json!({})).await;
    for event in patient(events.rest()).await {
        assert!(event.get("usage").is_none() && !event["choices"][0].is_null());
    }
    server.stop().await;
}

#[tokio::test]
async fn a_stream_has_one_shape() {
    let server = scripted("ab").await;
    let (head, mut events) = server.stream(&json!({"seed": 5})).await;
    assert!(head.header("x-laneway-predicted-ttft-ms").unwrap().parse::<u64>().is_ok());
    let first = patient(events.next()).await;
    assert!(matches!(&first, Sse::Comment(text) if text.starts_with("queued ")), "{first:?}");
    let events = patient(events.rest()).await;
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    for event in &events {
        assert_eq!(event["object"], "chat.completion.chunk");
        assert_eq!((&event["id"], &event["created"]), (&events[0]["id"], &events[0]["created"]));
        assert_eq!(event["model"], "tiny");
        assert_eq!(event["choices"][0]["index"], 0);
    }
    assert_eq!(head.header("x-request-id"), events[0]["id"].as_str());
    assert_eq!(events.last().unwrap()["seed"], 5);
    let whole = server.chat(&json!({})).await.json();
    assert_eq!(whole["object"], "chat.completion");
    assert!(whole["seed"].as_u64().unwrap() < 1 << 53);
    server.stop().await;
}

/// T24
#[tokio::test]
async fn probabilities_come_with_their_tokens() {
    let server = scripted("é!").await;
    for (extra, top) in
        [(json!({"logprobs": true}), 0), (json!({"logprobs": true, "top_logprobs": 5}), 5)]
    {
        let whole = server.chat(&extra).await.json();
        let content = whole["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
        let bytes: Vec<_> = content.iter().map(|token| token["bytes"].clone()).collect();
        assert_eq!(bytes, [json!([0xc3]), json!([0xa9]), json!([0x21])]);
        for token in &content {
            assert_eq!(token["logprob"], -0.5);
            assert_eq!(token["top_logprobs"].as_array().unwrap().len(), top);
        }
        let (_, events) = server.stream(&extra).await;
        let events = patient(events.rest()).await;
        let streamed: Vec<_> = events
            .iter()
            .filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array())
            .flatten()
            .cloned()
            .collect();
        assert_eq!(streamed, content);
    }
    assert!(server.chat(&json!({})).await.json()["choices"][0]["logprobs"].is_null());
    for (extra, param) in [
        (json!({"top_logprobs": 5}), "top_logprobs"),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
        (json!({"n": 2, "stream": true}), "n"),
        (json!({"n": 0}), "n"),
    ] {
        let reply = server.chat(&extra).await;
        assert_eq!((reply.head.status, &reply.error()["param"]), (400, &json!(param)));
    }
    server.stop().await;
}

#[tokio::test]
async fn plain_completions_continue_text_and_tokens() {
    let server = scripted("xyz").await;
    for prompt in [json!("ab"), json!(["ab"]), json!([97, 98]), json!([[97, 98]])] {
        let body = json!({"model": "tiny", "prompt": prompt});
        let whole = server.post(COMPLETIONS, &body).await.json();
        assert_eq!(whole["object"], "text_completion");
        assert_eq!(whole["choices"][0]["text"], "xyz");
        assert_eq!(whole["usage"]["prompt_tokens"], 2);
        let (_, events) =
            server.stream_at(COMPLETIONS, &with(body, &json!({"stream": true}))).await;
        assert_eq!(text(&patient(events.rest()).await), "xyz");
    }
    for (prompt, param) in
        [(json!(["a", "b"]), "prompt"), (json!(""), "prompt"), (json!([97, 9999]), "prompt[1]")]
    {
        let reply = server.post(COMPLETIONS, &json!({ "prompt": prompt })).await;
        assert_eq!((reply.head.status, &reply.error()["param"]), (400, &json!(param)));
    }
    server.stop().await;
}

#[tokio::test]
async fn echo_returns_the_prompt_with_its_probabilities() {
    let server = scripted("xyz").await;
    let body = json!({"prompt": "ab", "echo": true, "logprobs": 1, "max_tokens": 2});
    let whole = server.post(COMPLETIONS, &body).await.json();
    let choice = &whole["choices"][0];
    assert_eq!(choice["text"], "abxy");
    let logprobs = &choice["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["a", "b", "x", "y"]));
    assert_eq!(logprobs["text_offset"], json!([0, 1, 2, 3]));
    assert_eq!(logprobs["token_logprobs"][0], json!(null));
    assert!(logprobs["token_logprobs"][1].as_f64().unwrap() < 0.0);
    assert_eq!(logprobs["top_logprobs"][0], json!(null));
    assert_eq!(logprobs["top_logprobs"][3], json!({"y": -0.5}));
    let (_, events) =
        server.stream_at(COMPLETIONS, &with(body.clone(), &json!({"stream": true}))).await;
    assert_eq!(text(&patient(events.rest()).await), "abxy");
    // Scoring a text without continuing it.
    let scored = with(body, &json!({"max_tokens": 0}));
    let choice = server.post(COMPLETIONS, &scored).await.json()["choices"][0].clone();
    assert_eq!(choice["text"], "ab");
    assert_eq!(choice["logprobs"]["tokens"], json!(["a", "b"]));
    server.stop().await;
}

/// One connection serves request after request, whatever they are.
#[tokio::test]
async fn connections_are_kept() {
    let server = scripted("again").await;
    let mut client = server.client().await;
    for _ in 0..3 {
        client.post(CHAT, &chat(&json!({}))).await;
        assert_eq!(patient(client.reply()).await.head.status, 200);
        client.post(CHAT, &chat(&json!({"stream": true}))).await;
        let reply = patient(client.reply()).await;
        assert!(reply.body.ends_with(b"data: [DONE]\n\n"));
    }
    server.stop().await;
}

#[tokio::test]
async fn speculation_changes_the_work_and_not_the_answer() {
    let said = "to be or not to be or not to be or not to be";
    let server = scripted(said).await;
    let plain = server.chat(&json!({})).await.json();
    assert_eq!(plain["choices"][0]["message"]["content"], said);
    assert!(plain["timings"].get("draft_n").is_none());
    for extra in [
        json!({"speculation": "ngram", "draft_tokens": 5}),
        json!({"speculation": "ngram", "draft_tokens": 8, "stop": "zzz"}),
        json!({"speculation": "ngram"}),
    ] {
        assert_eq!(both(&server, &extra).await, (said.to_owned(), "stop".to_owned()));
    }
    let fast = server.chat(&json!({"speculation": "ngram", "draft_tokens": 5})).await.json();
    let timings = &fast["timings"];
    let (drafted, accepted) = (&timings["draft_n"], &timings["draft_n_accepted"]);
    assert!(accepted.as_u64() > Some(15) && drafted.as_u64() >= accepted.as_u64(), "{timings}");
    let by_place = timings["draft_n_accepted_by_position"].as_array().unwrap();
    let sum: u64 = by_place.iter().filter_map(Value::as_u64).sum();
    assert_eq!(Some(sum), accepted.as_u64());
    assert_eq!(fast["usage"]["completion_tokens"], plain["usage"]["completion_tokens"]);
    let health = server.get("/health").await.json();
    assert!(health["speculation"]["accepted"].as_u64() >= accepted.as_u64());
    server.stop().await;
}

#[tokio::test]
async fn speculation_that_is_not_here_is_refused() {
    let server = scripted("x").await;
    for (extra, field, code) in [
        (json!({"speculation": "model"}), "speculation", "unsupported_parameter"),
        (json!({"speculation": "best"}), "speculation", "invalid_value"),
        (json!({"speculation": "ngram", "draft_tokens": 9}), "draft_tokens", "invalid_value"),
        (json!({"draft_tokens": 2}), "draft_tokens", "invalid_value"),
    ] {
        let reply = server.chat(&extra).await;
        let error = reply.error();
        assert_eq!((reply.head.status, &error["param"]), (400, &json!(field)), "{extra}");
        assert_eq!(error["code"], code);
    }
    server.stop().await;
}
