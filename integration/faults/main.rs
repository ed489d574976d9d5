//! Fault counter: see `mod.rs`. `integration/faults/run --help` lists the options.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "in a test they are how to fail")]

#[path = "mod.rs"]
mod faults;
#[path = "../harness/mod.rs"]
#[allow(dead_code, unused_imports, reason = "it is there for the tests, which use all of it")]
mod harness;

use clap::Parser as _;
use faults::{Kills, Plan, SharedPlan};
use std::process::ExitCode;
use std::time::Duration;

/// Runs Weir with clients that misbehave and upstreams that fail, and counts what is lost, doubled or leaked
#[derive(clap::Parser)]
#[command(name = "integration/faults/run")]
struct Arguments {
    /// Seed of the random numbers
    #[arg(long, default_value_t = 22)]
    seed: u64,
    /// Duration in seconds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Stop earlier, after this many faults
    #[arg(long)]
    faults: Option<u64>,
    /// Instead: kill Weir this many times under load, and count the acknowledged charges that are lost
    #[arg(long, value_name = "COUNT")]
    kills: Option<u64>,
    /// Instead: nodes that share budgets, while Redis servers, networks and nodes fail
    #[arg(long)]
    shared: bool,
    /// Passed by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    let Arguments { seed, seconds, faults: most, kills, shared, bench: _ } = Arguments::parse();
    let time = Duration::from_secs(seconds);
    let is_good = match kills {
        _ if shared => faults::shared(SharedPlan { seed, time }),
        Some(count) => faults::kill(Kills { seed, count }),
        None => faults::faults(Plan { seed, time, faults: most }),
    };
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
