//! Comparison of Weir with HAProxy and nginx: throughput, CPU time and latency in front of one `smtp-sink`.
//!
//! The rounds of the targets take turns (A B C, then C B A), so that a change of the machine's speed affects all
//! targets. Each ratio to HAProxy is the median of the ratios in each round.

mod client;
mod load;
mod report;
mod servers;

pub use servers::stop_on_signals;

use client::{Latency, session};
use load::{Round, Workload};
use servers::Servers;
use std::path::PathBuf;

/// Compares Weir with HAProxy and nginx as proxies in front of smtp-sink.
#[derive(clap::Parser)]
#[command(name = "integration/bench/proxy")]
pub struct Options {
    /// Rounds of each workload
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Seconds of each round and target
    #[arg(long, default_value_t = 1.5)]
    pub seconds: f64,
    /// Workloads to run, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Workload::ALL)]
    pub workloads: Vec<Workload>,
    /// One round of few messages: checks that the command works, but measures nothing reliably
    #[arg(long)]
    pub short: bool,
    /// Weir binary to measure instead of the one that was built; twice as NAME=PATH to compare two builds.
    /// Relative paths begin at the root of the repository
    #[arg(long, value_name = "[NAME=]PATH")]
    pub weir: Vec<String>,
    /// Folder in which the packages nginx and libnginx-mod-mail are unpacked
    #[arg(long, default_value = "/")]
    pub nginx_root: PathBuf,
    /// `cargo bench` passes this flag.
    #[arg(long, hide = true)]
    pub bench: bool,
}

impl Options {
    /// Returns the names and paths of the Weir binaries.
    fn binaries(&self) -> Vec<(String, PathBuf)> {
        if self.weir.is_empty() {
            return vec![("weir".to_owned(), env!("CARGO_BIN_EXE_weir").into())];
        }
        let named = |text: &String| match text.split_once('=') {
            Some((name, path)) => (name.to_owned(), path.into()),
            None => ("weir".to_owned(), text.into()),
        };
        self.weir.iter().map(named).collect()
    }
}

/// Runs the workloads and the latency measurement, and prints their tables. Returns whether no message was lost.
pub fn run(options: &Options) -> bool {
    let servers = Servers::start(&options.binaries(), &options.nginx_root);
    let mut nothing_lost = true;
    for &workload in &options.workloads {
        let rounds = measure(&servers, workload, options);
        nothing_lost &= rounds.iter().flatten().flatten().all(|round| round.lost == 0);
        report::workload(&servers, workload, &rounds, !options.short);
    }
    let latencies = latencies(&servers, if options.short { 5 } else { 300 });
    report::latency(&servers, &latencies, !options.short);
    nothing_lost
}

/// Runs all rounds of a workload. Returns the rounds of each target, `None` if the target cannot run the workload.
fn measure(servers: &Servers, workload: Workload, options: &Options) -> Vec<Option<Vec<Round>>> {
    let targets = &servers.targets;
    let pipelines = |address| workload != Workload::W5 || client::announces_pipelining(address);
    let able: Vec<bool> = targets.iter().map(|target| pipelines(target.address)).collect();
    let mut counts = Vec::new();
    for (target, _) in targets.iter().zip(&able).filter(|(_, able)| **able) {
        // Runs of rising length find the number of messages of a round, and warm the target up.
        let mut messages = workload.sessions();
        if !options.short {
            for part in [0.1, 0.3, 1.0] {
                let rate = load::run(servers, target, workload, messages).rate;
                messages = ((rate * options.seconds * part) as usize).max(2 * workload.sessions());
            }
        }
        counts.push((target, messages));
    }
    let mut rounds: Vec<_> = able.iter().map(|able| able.then(Vec::new)).collect();
    for number in 0..if options.short { 1 } else { options.rounds } {
        let mut turn: Vec<_> = rounds.iter_mut().flatten().zip(&counts).collect();
        if number % 2 == 1 {
            turn.reverse();
        }
        for (rounds, (target, messages)) in turn {
            rounds.push(load::run(servers, target, workload, *messages));
        }
    }
    rounds
}

/// Measures sequential sessions, which take turns among the targets. Returns the latencies of each target.
fn latencies(servers: &Servers, sessions: usize) -> Vec<Vec<Latency>> {
    let warm_up = sessions / 10;
    let mut latencies = vec![Vec::new(); servers.targets.len()];
    for number in 0..sessions + warm_up {
        for (target, latencies) in servers.targets.iter().zip(&mut latencies) {
            let latency = session(target.address);
            if number >= warm_up {
                latencies.push(latency);
            }
        }
    }
    latencies
}
