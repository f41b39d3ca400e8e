"""The official OpenAI SDK against the real server: what it sends is accepted, what it gets it understands."""

import json
import threading

import httpx
import openai
import pytest
from conftest import eventually, health, make_client

HELLO = [{"role": "user", "content": "Say hello in one short sentence."}]
LONG = [{"role": "user", "content": "Count upwards from one, one number a line, and never stop."}]


def chat(client, model, messages=HELLO, **more):
    return client.chat.completions.create(model=model, messages=messages, **more)


def greedy(**more):
    return {"temperature": 0, "max_tokens": 24, **more}


# --- models -----------------------------------------------------------------------------------


def test_models_have_a_context_length(client, base_url, model):
    listed = client.models.list().data
    assert listed[0].id == model and listed[0].object == "model"
    assert client.models.retrieve(model).id == model
    raw = httpx.get(base_url + "/v1/models").json()
    assert raw["data"][0]["context_length"] > 0 and raw["models"]


def test_an_unknown_model_is_not_found(client, model):
    with pytest.raises(openai.NotFoundError) as caught:
        chat(client, "no-such-model")
    assert caught.value.code == "model_not_found" and model in caught.value.message
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no-such-model")


# --- chat -------------------------------------------------------------------------------------


def test_a_whole_answer(client, model):
    answer = chat(client, model, **greedy())
    choice = answer.choices[0]
    assert answer.object == "chat.completion" and answer.model == model
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    usage = answer.usage
    assert 0 < usage.completion_tokens <= 24
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens >= 0
    assert answer.model_extra["timings"]["predicted_n"] == usage.completion_tokens


def test_a_stream_says_the_same(client, model):
    whole = chat(client, model, **greedy())
    chunks = list(chat(client, model, stream=True, stream_options={"include_usage": True}, **greedy()))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    finishes = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    assert finishes == [whole.choices[0].finish_reason]
    assert not chunks[-1].choices
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert all(c.usage is None for c in chunks[:-1])


def test_usage_comes_only_when_asked_for(client, model):
    chunks = list(chat(client, model, stream=True, **greedy()))
    assert all(c.choices and c.usage is None for c in chunks)


def test_the_stream_helper_understands_the_events(client, model):
    # Greedy, and long enough to end by itself: the helper takes a cut answer for an error.
    messages = [{"role": "developer", "content": "Be brief."}, *HELLO]
    with client.chat.completions.stream(
        model=model, messages=messages, max_tokens=200, temperature=0
    ) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "content.delta" in events and final.choices[0].message.content


def test_one_token_is_one_token(client, model):
    answer = chat(client, model, max_tokens=1)
    assert answer.usage.completion_tokens == 1 and answer.choices[0].finish_reason == "length"


def test_the_newer_limit_wins(client, model):
    answer = chat(client, model, LONG, max_tokens=9, max_completion_tokens=2)
    assert answer.usage.completion_tokens <= 2


def test_no_tokens_build_the_prefix_only(client, model):
    answer = chat(client, model, max_tokens=0)
    assert answer.usage.completion_tokens == 0 and answer.usage.prompt_tokens > 0


def test_a_seed_repeats_the_answer(client, model):
    def once(seed):
        return chat(client, model, LONG, temperature=1, seed=seed, max_tokens=24)

    first = once(42)
    assert first.choices[0].message.content == once(42).choices[0].message.content
    assert first.model_extra["seed"] == 42
    assert any(once(s).choices[0].message.content != first.choices[0].message.content for s in (1, 2, 3))


def test_a_stop_string_ends_the_answer_before_it(client, model):
    text = chat(client, model, **greedy()).choices[0].message.content
    stop = text[len(text) // 2 :][:3]
    answer = chat(client, model, **greedy(stop=[stop])).choices[0]
    assert answer.finish_reason == "stop"
    assert answer.message.content == text[: text.index(stop)]


def test_probabilities(client, model):
    answer = chat(client, model, **greedy(max_tokens=4, logprobs=True, top_logprobs=5))
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    for token in content:
        assert token.logprob <= 0 and len(token.top_logprobs) == 5
        assert token.top_logprobs[0].logprob >= token.top_logprobs[-1].logprob
        assert token.token == token.top_logprobs[0].token  # temperature 0


def test_neutral_extras_are_accepted(client, model):
    answer = chat(
        client, model, max_tokens=1, user="u", metadata={"a": "b"}, store=False, service_tier="auto",
        logit_bias={}, stop=None, tools=[], reasoning_effort="low", prompt_cache_key="k",
        extra_body={"thinking": {"type": "disabled"}, "unheard_of": [1]},
    )
    assert answer.usage.completion_tokens == 1


def test_tool_turns_of_a_history_are_read(client, model):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    history = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "1"}]},
    ]
    try:
        chat(client, model, history, max_tokens=1)
    except openai.BadRequestError as error:  # the model's template may not know tools
        assert error.param.startswith("messages")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", -1), ("max_tokens", 1.5), ("max_tokens", "5"), ("temperature", -1),
        ("n", 2), ("n", 0), ("response_format", {"type": "json_object"}), ("top_logprobs", 5),
        ("stop", ["a"] * 17), ("tools", [{"type": "function", "function": {"name": "f"}}]),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(client, model, field, value):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, model, extra_body={field: value})
    assert caught.value.param == field


@pytest.mark.parametrize("stream", [False, True])
def test_overflow_is_an_error_with_both_counts(client, base_url, model, stream):
    window = httpx.get(base_url + "/v1/models").json()["data"][0]["context_length"]
    messages = [{"role": "user", "content": "word " * (2 * window)}]
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, model, messages, stream=stream)
    assert caught.value.code == "context_length_exceeded" and str(window) in caught.value.message


# --- plain completions ------------------------------------------------------------------------


def test_a_plain_completion_both_ways(client, model):
    arguments = {"model": model, "prompt": "Once upon a time", "temperature": 0, "max_tokens": 8}
    whole = client.completions.create(**arguments)
    streamed = client.completions.create(stream=True, **arguments)
    assert "".join(chunk.choices[0].text for chunk in streamed) == whole.choices[0].text
    assert whole.usage.completion_tokens <= 8


def test_tokens_are_a_prompt_too(client, base_url, model):
    tokens = httpx.post(base_url + "/tokenize", json={"content": "Once upon a time"}).json()["tokens"]
    answer = client.completions.create(model=model, prompt=tokens, temperature=0, max_tokens=4)
    assert answer.usage.prompt_tokens == len(tokens)
    text = httpx.post(base_url + "/detokenize", json={"tokens": tokens}).json()["content"]
    assert "Once upon a time" in text


def test_echo_and_probabilities(client, model):
    answer = client.completions.create(
        model=model, prompt="Once upon", temperature=0, max_tokens=3, echo=True, logprobs=2
    )
    choice = answer.choices[0]
    count = answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert choice.text.startswith("Once upon")
    assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs) == count


# --- hanging up, overload, keys ---------------------------------------------------------------


def test_closing_a_stream_frees_the_lane(client, base_url, model):
    stream = chat(client, model, LONG, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    assert health(base_url)["lanes"]["busy"] == 1
    stream.close()
    eventually(lambda: health(base_url)["lanes"]["busy"] == 0)


def test_dropping_a_whole_request_frees_the_lane(client, base_url, model):
    with pytest.raises(openai.APITimeoutError):
        chat(client.with_options(timeout=0.5), model, LONG, extra_body={"ignore_eos": True})
    eventually(lambda: health(base_url)["lanes"]["busy"] == 0)


def test_overload_is_refused_at_once(start):
    server = start(
        "--max-context", "2048", "--max-concurrency", "1", "--max-pending-requests", "1",
        "--pending-timeout-ms", "60000",
    )
    client = make_client(server.url)
    model = client.models.list().data[0].id
    endless = {"stream": True, "extra_body": {"ignore_eos": True}}
    running = chat(client, model, LONG, **endless)
    eventually(lambda: health(server.url)["lanes"]["busy"] == 1)
    waiting = chat(client, model, LONG, **endless)  # has its headers, waits for the lane
    for stream in (False, True):
        with pytest.raises(openai.RateLimitError) as caught:
            chat(client, model, stream=stream)
        assert int(caught.value.response.headers["retry-after"]) >= 1
        assert caught.value.code == "rate_limit_exceeded"
    waiting.close()
    running.close()
    eventually(lambda: health(server.url)["lanes"]["busy"] == 0)
    assert chat(client, model, max_tokens=1).usage.completion_tokens == 1


def test_the_longest_wait_is_kept(start):
    server = start(
        "--max-context", "2048", "--max-concurrency", "1", "--max-pending-requests", "4",
        "--pending-timeout-ms", "300",
    )
    client = make_client(server.url)
    model = client.models.list().data[0].id
    running = chat(client, model, LONG, stream=True, extra_body={"ignore_eos": True})
    next(iter(running))
    with pytest.raises(openai.InternalServerError) as caught:
        chat(client, model)
    assert caught.value.status_code == 503 and caught.value.code == "queue_timeout"
    with pytest.raises(openai.APIError) as caught:
        list(chat(client, model, stream=True))
    assert caught.value.code == "queue_timeout"
    running.close()


def test_keys_and_the_request_log(start, log_path):
    server = start(
        "--max-context", "2048", "--api-key", "right", "--model-id", "alias",
        "--request-log-jsonl", str(log_path),
    )
    assert httpx.get(server.url + "/health").status_code == 200
    with pytest.raises(openai.AuthenticationError):
        make_client(server.url, "wrong").models.list()
    client = make_client(server.url, "right")
    answer = chat(client, "alias", max_tokens=2)
    server.stop()
    records = [json.loads(line) for line in log_path.read_text().splitlines()]
    record = next(r for r in records if r["id"] == answer.id)
    assert record["status"] == "done" and record["completion_tokens"] == answer.usage.completion_tokens
    assert record["ttft_s"] > 0 and record["prompt_tokens"] == answer.usage.prompt_tokens
    assert any("status=done" in line and answer.id in line for line in server.lines)


def test_two_streams_run_side_by_side(client, base_url, model):
    texts = {}

    def run(name):
        stream = chat(client, model, LONG, stream=True, **greedy(max_tokens=32))
        texts[name] = "".join(c.choices[0].delta.content or "" for c in stream if c.choices)

    threads = [threading.Thread(target=run, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts["a"] == texts["b"] != ""
