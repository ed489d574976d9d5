//! Benchmark of Weir beside HAProxy and nginx, which relay to the same sink. `integration/bench/proxy` runs it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a benchmark fails so")]

#[path = "../harness/mod.rs"]
#[allow(dead_code, unused_imports, reason = "it is there for the tests, which use all of it")]
mod harness;
#[path = "peers/mod.rs"]
mod peers;

use clap::Parser as _;

fn main() {
    peers::stop_on_signals();
    std::process::exit(i32::from(!peers::run(&peers::Options::parse())));
}
