//! `laneway run` from outside, on the real model.

use crate::support::{Outcome, assert_says, command, laneway, model, outcome};
use std::io::Write;
use std::process::Stdio;

const GREEDY: [&str; 4] = ["--temperature", "0", "--max-context", "512"];

fn run(flags: &[&str]) -> Outcome {
    laneway(&[&["run", model().as_str()], &GREEDY[..], flags].concat())
}

#[test]
fn a_text_is_continued_on_standard_output_alone() {
    let outcome = run(&["--raw", "--prompt", "1, 2, 3, 4, 5, 6, 7,", "--max-tokens", "9"]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), " 8, 9, 10\n"));
    assert_says(&outcome.stderr, &["[prompt 20 tokens in", "answer 9 tokens in", "token limit]"]);
}

#[test]
fn a_question_is_answered() {
    let outcome = run(&["--prompt", "What is the capital of France?", "--max-tokens", "32"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert_says(&outcome.stdout, &["Paris"]);
}

#[test]
fn a_seed_repeats_the_answer_and_another_does_not() {
    let model = model();
    let draw = |seed| {
        let flags = ["--raw", "--prompt", "Once upon a time", "--max-tokens", "24"];
        let outcome = laneway(&[&["run", &model, "--seed", seed], &flags[..]].concat());
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        outcome.stdout
    };
    let first = draw("1");
    assert_eq!(first, draw("1"));
    assert!(first != draw("2") || first != draw("3"));
}

#[test]
fn a_prompt_beyond_the_window_is_told_with_both_counts() {
    let prompt = "word ".repeat(600);
    let outcome = run(&["--raw", "--prompt", &prompt]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(1), ""));
    assert_says(&outcome.stderr, &["tokens, prompt and answer together may have 512"]);
}

#[test]
fn a_chat_remembers_until_it_is_reset() {
    let mut child = command()
        .args(["run", &model(), "--max-tokens", "16"])
        .args(GREEDY)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut typed = child.stdin.take().unwrap();
    typed.write_all(b"Hello!\nHello!\n/reset\nHello!\n/what\n/exit\nnever\n").unwrap();
    drop(typed);
    let outcome = outcome(&child.wait_with_output().unwrap());
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let prompt_sizes: Vec<&str> = outcome
        .stderr
        .split("[prompt ")
        .skip(1)
        .filter_map(|rest| rest.split(' ').next())
        .collect();
    assert_eq!(prompt_sizes.len(), 3, "{}", outcome.stderr);
    assert_eq!(prompt_sizes[0], prompt_sizes[2]);
    assert_ne!(prompt_sizes[0], prompt_sizes[1]);
    assert_says(&outcome.stderr, &["\"/what\" is no command"]);
}
