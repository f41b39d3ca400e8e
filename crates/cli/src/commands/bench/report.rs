//! The results of a benchmark as a table or as JSON.

use serde::Serialize;
use std::fmt::Write;

/// Results of one benchmark run and what they hold for.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Version of this program.
    pub version: &'static str,
    /// Name of the model file.
    pub model: String,
    /// Arithmetic of the matrix products.
    pub precision: String,
    /// Element type of the KV pool.
    pub kv_dtype: String,
    /// Prompt tokens computed in one step.
    pub prefill_chunk: usize,
    /// One entry a test and thread count.
    pub results: Vec<Outcome>,
}

/// Result of one test.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    /// Name of the test.
    pub test: String,
    /// Threads that computed.
    pub threads: usize,
    /// Tokens a second: the middle one of `runs`.
    pub median_tokens_per_s: f64,
    /// Tokens a second of each run, in the order they were made.
    pub runs: Vec<f64>,
}

impl Outcome {
    pub(super) fn new(test: String, threads: usize, runs: Vec<f64>) -> Self {
        Outcome { test, threads, median_tokens_per_s: median(&runs), runs }
    }
}

impl Report {
    /// A table for reading: one line a result.
    pub(super) fn table(&self) -> String {
        let mut table = format!(
            "{}: {}, KV {}, prefill chunk {}\n",
            self.model, self.precision, self.kv_dtype, self.prefill_chunk
        );
        let header = ("test", "threads", "tokens/s", "lowest", "highest");
        let (test, threads, rate, lowest, highest) = header;
        let _ = writeln!(table, "{test:<20} {threads:>7} {rate:>10} {lowest:>10} {highest:>10}");
        for outcome in &self.results {
            let lowest = outcome.runs.iter().copied().fold(f64::INFINITY, f64::min);
            let highest = outcome.runs.iter().copied().fold(0.0, f64::max);
            let Outcome { test, threads, median_tokens_per_s: rate, .. } = outcome;
            let _ = writeln!(
                table,
                "{test:<20} {threads:>7} {rate:>10.1} {lowest:>10.1} {highest:>10.1}"
            );
        }
        table
    }
}

/// The middle of `values`, or the mean of the two in the middle; 0 if there are none.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }
}
