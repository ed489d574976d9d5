//! Benchmark of the page of metrics: `cargo bench --bench metrics`. Weir is the real process with the limits of
//! `conf/weir.toml`. Measures the time of `GET /metrics` over a new connection, and the size of the page: with one
//! sender, and after 100,000 senders. The goals are 20 ms and 200 kB.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a benchmark fails so")]

#[path = "../harness/mod.rs"]
#[allow(dead_code, unused_imports, reason = "it is there for the tests, which use all of it")]
mod harness;
#[path = "../metrics/senders.rs"]
mod senders;

use harness::{Process, Upstream};
use senders::{name_senders, site_with_shipped_limits};
use std::time::{Duration, Instant};

const SENDERS: usize = 100_000;

/// Concurrent sessions that name senders.
const SESSIONS: usize = 4;

/// Requests of one measurement.
const REQUESTS: usize = 500;

fn main() {
    // `cargo test --benches` only checks that the benchmark starts.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let upstream = Upstream::start();
    let site = site_with_shipped_limits(&upstream);
    let weir = site.start();
    let address = weir.address("s");
    name_senders(address, 0..1);
    measure("1 sender", &weir);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for part in 0..SESSIONS {
            scope.spawn(move || name_senders(address, part * SENDERS / SESSIONS..(part + 1) * SENDERS / SESSIONS));
        }
    });
    println!("{SENDERS} senders were named in {:.1} s", began.elapsed().as_secs_f64());
    measure(&format!("{SENDERS} senders"), &weir);
}

/// Prints the time and size of the page.
fn measure(what: &str, weir: &Process) {
    let mut size = 0;
    let mut times: Vec<Duration> = (0..REQUESTS)
        .map(|_| {
            let began = Instant::now();
            size = weir.get("/metrics").1.len();
            began.elapsed()
        })
        .collect();
    times.sort_unstable();
    let milliseconds = |at: usize| times[at].as_secs_f64() * 1000.0;
    println!(
        "{what}: {:.1} kB (goal 200), {:.2} ms in the middle, {:.2} ms at the 99th of 100, {:.2} ms at most (goal 20)",
        size as f64 / 1000.0,
        milliseconds(REQUESTS / 2),
        milliseconds(REQUESTS * 99 / 100),
        milliseconds(REQUESTS - 1)
    );
}
