//! `laneway demo` from outside: the server, the ladder over HTTP, and a streamed answer.

use crate::support::{assert_says, laneway, model};

#[test]
fn the_demo_shows_three_lanes_and_an_answer() {
    let outcome = laneway(&["demo", "--model", &model(), "--port", "0", "--exit"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert_says(&outcome.stderr, &["weights", "KV pool", "total", "ready: http://127.0.0.1:"]);
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!(lines[0], "3 prompts of 640 tokens, submitted together:");
    let rungs: Vec<Vec<f64>> = lines[3..6].iter().map(|line| numbers(line)).collect();
    // Strict order holds on any machine: a lane's prefill starts when the one before ends.
    for (index, rung) in rungs.iter().enumerate() {
        assert_eq!(rung.len(), 4, "{}", outcome.stdout);
        assert_eq!(rung[0], index as f64 + 1.0);
        assert!(rung[1] > 0.0, "{}", outcome.stdout);
    }
    assert!(rungs.windows(2).all(|pair| pair[0][2] < pair[1][2]), "{}", outcome.stdout);
    assert_eq!(rungs[0][3], 1.0);
    let question = lines.iter().position(|line| line.starts_with("> ")).unwrap();
    assert!(lines[question + 1].len() > 20, "{}", outcome.stdout);
}

fn numbers(line: &str) -> Vec<f64> {
    line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}
