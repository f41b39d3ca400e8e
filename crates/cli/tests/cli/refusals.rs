//! Settings that cannot be honoured are refused at start, with the numbers and what would work.

use crate::support::{assert_says, laneway, model};
use std::io::Write;

/// Expects a refusal: exit code 2, nothing on standard output.
fn refusal(arguments: &[&str]) -> String {
    let outcome = laneway(arguments);
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    assert_eq!(outcome.stdout, "");
    outcome.stderr
}

fn serve(flags: &[&str]) -> String {
    refusal(&[&["serve", model().as_str(), "--port", "0"], flags].concat())
}

#[test]
fn a_window_beyond_the_models_own() {
    assert_says(
        &serve(&["--max-context", "8193"]),
        &[
            "--max-context 8193 is longer than the 8192 tokens",
            "the longest that works is --max-context 8192",
        ],
    );
}

#[test]
fn a_pool_below_the_window() {
    assert_says(
        &serve(&["--max-context", "4096", "--kv-capacity", "2048"]),
        &[
            "--kv-capacity 2048 cannot hold one sequence of --max-context 4096",
            "use --kv-capacity 4096 or more, or --max-context 2048 or less",
        ],
    );
}

#[test]
fn a_pool_beyond_the_memory() {
    // 23,040 bytes a token: more than any machine has.
    assert_says(
        &serve(&["--kv-capacity", "4000000000"]),
        &[
            "--kv-capacity 4000000000 needs",
            "MiB are available; the nearest that fits is --kv-capacity ",
        ],
    );
}

#[test]
fn values_out_of_range() {
    let cases: [&[&str]; 6] = [
        &["--kv-capacity", "0"],
        &["--max-concurrency", "0"],
        &["--prefill-chunk", "0"],
        &["--kv-dtype", "int3"],
        &["--precision", "int4"],
        &["--host", "somewhere"],
    ];
    for flags in cases {
        assert_says(&serve(flags), &["invalid value", flags[0], flags[1]]);
    }
}

#[test]
fn drafters_that_are_not_there() {
    let expected = [
        "--spec mtp: this model has no draft layer",
        "use --spec ngram, --spec draft:MODEL or --spec off",
    ];
    assert_says(&serve(&["--spec", "mtp"]), &expected);
    let expected = ["--draft-tokens 9 is more than the 8", "--draft-tokens 8"];
    assert_says(&serve(&["--spec", "ngram", "--draft-tokens", "9"]), &expected);
    for flags in [["--spec", "draft:"], ["--spec", "eagle"], ["--draft-tokens", "0"]] {
        assert_says(&serve(&flags), &["invalid value", flags[0], flags[1]]);
    }
}

#[test]
fn weights_that_are_not_converted() {
    assert_says(&serve(&["--weights", "q8_0"]), &["'q8_0'", "not available", "use `auto`"]);
}

#[test]
fn sampling_out_of_range() {
    let model = model();
    let run = |flag, value| refusal(&["run", &model, "--prompt", "x", flag, value]);
    assert_says(&run("--temperature", "101"), &["--temperature is 101, allowed is 0 to 100"]);
    assert_says(&run("--top-p", "0"), &["--top-p is 0, allowed is"]);
}

#[test]
fn a_log_level_that_is_none() {
    let outcome = laneway(&["--log-level", "=,=", "fetch"]);
    assert_eq!(outcome.code, Some(1));
    assert_says(&outcome.stderr, &["--log-level \"=,=\" is no level or filter"]);
}

#[test]
fn models_that_are_none() {
    let outcome = laneway(&["serve", "no-such-model"]);
    assert_eq!(outcome.code, Some(1));
    assert_says(
        &outcome.stderr,
        &[
            "error: no model \"no-such-model\": it is neither a file, nor a folder, nor a known name \
             (smollm2-135m)",
        ],
    );
    let folder = tempfile::tempdir().unwrap();
    let outcome = laneway(&["inspect", folder.path().to_str().unwrap()]);
    assert_eq!(outcome.code, Some(1));
    assert_says(
        &outcome.stderr,
        &["is no model: it has no config.json, no tokenizer.json, no model.safetensors"],
    );
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"not a model").unwrap();
    let outcome = laneway(&["inspect", file.path().to_str().unwrap()]);
    assert_eq!(outcome.code, Some(1));
    assert_says(&outcome.stderr, &[file.path().to_str().unwrap()]);
}

#[test]
fn a_taken_port() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let outcome = laneway(&["serve", &model(), "--port", &port]);
    assert_eq!(outcome.code, Some(1));
    assert_says(&outcome.stderr, &[&format!("cannot listen on 127.0.0.1:{port}"), "--port"]);
}
