//! What a server takes of the machine's memory.

use crate::support::{command, model};
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

/// A server that is killed when the test is over.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself; that shows elsewhere.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_ready_server_holds_the_weights_once_and_what_it_uses_of_the_pool() {
    const MIB: u64 = 1 << 20;
    let file = std::fs::metadata(model()).expect("the model").len();
    let mut command = command();
    command.args(["serve", &model(), "--port", "0", "--kv-capacity", "8192"]);
    let server = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut server = Server(server.expect("the binary can be run"));
    let said = BufReader::new(server.0.stderr.take().expect("piped"));
    let said: Vec<String> =
        said.lines().map_while(Result::ok).take_while(|line| !line.contains("ready: ")).collect();
    let pool = said.iter().find(|line| line.starts_with("KV pool")).expect("the ledger");
    let pool: u64 = pool.split_whitespace().nth(2).and_then(|n| n.parse().ok()).expect("bytes");

    let status = std::fs::read_to_string(format!("/proc/{}/status", server.0.id())).expect("alive");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    let resident = resident.trim().trim_end_matches(" kB").parse::<u64>().expect("kB") * 1024;
    let most = file * 12 / 10 + pool + 64 * MIB;
    assert!(resident <= most, "{} MiB of {} MiB", resident / MIB, most / MIB);
}
