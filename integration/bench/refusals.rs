//! Benchmark of the stored refusals. `cargo bench --bench refusals` floods two real Weirs in turns: one that keeps
//! refusals, and one with `keep-refusals = "0s"`. Clients from ever new networks name recipients that a limit refuses.
//!
//! Prints the octets of refusal history that a minute of the flood writes, and the ratio of the CPU times for a refusal.
//! The exit code is 1 if a bound is exceeded.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a benchmark fails so")]

#[path = "../harness/mod.rs"]
#[allow(dead_code, unused_imports, reason = "it is there for the tests, which use all of it")]
mod harness;

use harness::{Process, Site, Upstream, cpu_time};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Duration of a turn, and number of turns of each Weir.
const TURN: Duration = Duration::from_secs(10);
const TURNS: usize = 6;

/// Concurrent clients, and refused recipients of a session.
const CLIENTS: u64 = 4;
const RECIPIENTS: usize = 100;

/// Refusals per second of all clients: the rate in the requirement.
const REFUSALS_A_SECOND: f64 = 10_000.0;

/// Maximum octets that the history of a minute takes.
const MAX_OCTETS_A_MINUTE: f64 = 1e6;

/// Maximum ratio of the CPU times, with and without stored refusals.
const MAX_RATIO: f64 = 1.05;

/// A flooded Weir.
struct Flooded {
    site: Site,
    weir: Process,
    /// Sessions so far.
    sessions: AtomicU64,
    refusals: AtomicU64,
    /// CPU time of each turn for a refusal, in microseconds.
    costs: Vec<f64>,
    octets: u64,
}

impl Flooded {
    fn start(upstream: &Upstream, state: &str) -> Self {
        let limit = "limit = [{ name = \"client-recipients\", count = \"recipients\", per = [\"client\"], rate = \"2 / 1d\", algorithm = \"token-bucket\" }, \
                     { name = \"all\", count = \"recipients\", per = [], rate = \"100M / 1d\" }]\n";
        let site = Site::builder()
            .listener("s", "tls = \"none\", auth = \"none\", xclient = [\"127.0.0.1/32\"]")
            .upstream(upstream.address(), "")
            .state(&format!("path = \"state.db\"{state}"))
            .more(limit)
            .build();
        let weir = site.start();
        Self { site, weir, sessions: AtomicU64::new(0), refusals: AtomicU64::new(0), costs: Vec::new(), octets: 0 }
    }

    fn turn(&mut self) {
        let (cpu, refusals, octets) = (self.cpu(), self.refusals.load(Ordering::Relaxed), self.written());
        let (ended, began) = (AtomicBool::new(false), Instant::now());
        std::thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| self.client(&ended, began));
            }
            std::thread::sleep(TURN);
            ended.store(true, Ordering::Relaxed);
        });
        let refused = self.refusals.load(Ordering::Relaxed) - refusals;
        self.costs.push((self.cpu() - cpu).as_secs_f64() * 1e6 / refused as f64);
        self.octets += self.written() - octets;
    }

    /// Names recipients in one session after the other, at the rate of one client.
    fn client(&self, ended: &AtomicBool, began: Instant) {
        let mut refused = 0;
        while !ended.load(Ordering::Relaxed) {
            let due = began + Duration::from_secs_f64(f64::from(refused) * CLIENTS as f64 / REFUSALS_A_SECOND);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            refused += self.session();
        }
        self.refusals.fetch_add(u64::from(refused), Ordering::Relaxed);
    }

    /// Runs a session from a new network. Returns the number of refused recipients.
    fn session(&self) -> u32 {
        let number = self.sessions.fetch_add(1, Ordering::Relaxed);
        let stream = TcpStream::connect(self.weir.address("s")).unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let (mut stream, mut line) = (stream, String::new());
        let mut replies = |count: usize, code: &str| {
            (0..count)
                .filter(|_| {
                    line.clear();
                    while reader.read_line(&mut line).unwrap() > 0 && line.as_bytes().get(3) == Some(&b'-') {
                        line.clear();
                    }
                    line.starts_with(code)
                })
                .count()
        };
        replies(1, "220");
        let [network, host] = (number as u16).to_be_bytes();
        stream.write_all(format!("EHLO a\r\nXCLIENT ADDR=10.{network}.{host}.1\r\n").as_bytes()).unwrap();
        replies(2, "2");
        let recipients: String = (0..RECIPIENTS + 2).map(|n| format!("RCPT TO:<{n}@example.net>\r\n")).collect();
        stream.write_all(format!("EHLO a\r\nMAIL FROM:<a@example.org>\r\n{recipients}").as_bytes()).unwrap();
        replies(2, "250");
        let refused = replies(RECIPIENTS + 2, "450");
        stream.write_all(b"QUIT\r\n").unwrap();
        replies(1, "221");
        u32::try_from(refused).unwrap()
    }

    /// Returns the CPU time that Weir has used, user and system.
    fn cpu(&self) -> Duration {
        cpu_time(self.weir.id())
    }

    /// Returns the octets that Weir has written to the disk: all of them, with the pages of the log and its checkpoints.
    fn written(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/io", self.weir.id())).unwrap();
        text.lines().find_map(|line| line.strip_prefix("write_bytes: ")).unwrap().parse().unwrap()
    }

    /// Returns the CPU time for a refusal: the median of the turns, in microseconds.
    fn cost(&self) -> f64 {
        let mut costs = self.costs.clone();
        costs.sort_by(f64::total_cmp);
        costs[costs.len() / 2]
    }

    /// Stops Weir. Returns the octets of the records in the state file, and the number of refusals that they count.
    fn history(self) -> (f64, u64) {
        let Self { site, weir, .. } = self;
        assert_eq!(weir.terminate(), Some(0));
        let lines = site.dump();
        let records = lines.iter().filter(|line| !line["refusal"].is_null());
        let sizes = records.map(|line| {
            let octets = line["decision"].as_str().unwrap().len() as f64 + 100.0;
            (octets, line["times"].as_u64().unwrap())
        });
        sizes.fold((0.0, 0), |(octets, times), (more, count)| (octets + more, times + count))
    }
}

fn main() {
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let upstream = Upstream::start();
    let mut kept = Flooded::start(&upstream, "");
    let mut none = Flooded::start(&upstream, ", keep-refusals = \"0s\"");
    let began = Instant::now();
    for turn in 0..TURNS {
        let in_turn = if turn % 2 == 0 { [&mut kept, &mut none] } else { [&mut none, &mut kept] };
        in_turn.into_iter().for_each(Flooded::turn);
    }
    // The octets that can be written grow with the time of both Weirs' turns.
    let minutes = began.elapsed().as_secs_f64() / 60.0;
    let (refusals, ratio) = (kept.refusals.load(Ordering::Relaxed), kept.cost() / none.cost());
    println!("refusals a second: {:.0}", refusals as f64 / (TURN * TURNS as u32).as_secs_f64());
    println!("CPU for a refusal: {:.1} µs kept, {:.1} µs not kept: ratio {ratio:.3}", kept.cost(), none.cost());
    println!(
        "octets to disk in a minute: {:.0} kept, {:.0} not kept",
        kept.octets as f64 / minutes,
        none.octets as f64 / minutes
    );
    let (octets, times) = kept.history();
    println!("history of a minute: {:.0} octets, which count {times} of {refusals} refusals", octets / minutes);
    let is_exceeded = octets / minutes > MAX_OCTETS_A_MINUTE || ratio > MAX_RATIO || times != refusals;
    std::process::exit(i32::from(is_exceeded));
}
