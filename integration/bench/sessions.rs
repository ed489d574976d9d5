//! Benchmark of sessions. `cargo bench --bench sessions` runs all parts. To run only some parts, name them: `-- idle`,
//! `-- senders`, `-- dripping`, `-- delayed`, `-- octets`, `-- tls`, `-- growth`.
//!
//! Weir is the real process. Weir's clients and its upstream run in the benchmark's process. Both processes share the
//! machine's cores.
//!
//! * idle: ten thousand sessions after EHLO, plain and within TLS. Measures the memory of each session.
//! * senders: a thousand clients that send at the same time. Checks that each 250 is exactly one message at the
//!   upstream; measures messages per second and the time of each message.
//! * dripping: fifty clients that send all the time: in turns alone, and beside two thousand clients that only hold
//!   connections. Measures the delay that the two thousand cause for the fifty.
//! * delayed: ten thousand sessions that a limit delays at the same time, plain and within TLS. Measures the memory of
//!   each session. Also compares the delays of fifty other clients: beside these sessions, and beside nine thousand
//!   idle sessions.
//! * octets: a thousand clients at the same stage, each of which sends an octet a second. Measures the CPU cost of an
//!   octet.
//! * tls: full and resumed handshakes, and messages within TLS and in plain text. Compares their CPU costs, and those of
//!   `openssl s_server`.
//! * growth: messages with ten to 15,000 open sessions, with a thousand to ten million budgets, with two to fifty
//!   limits. Compares their CPU costs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a benchmark fails so")]

#[path = "sessions/client.rs"]
mod client;
#[path = "sessions/delayed.rs"]
mod delayed;
#[path = "sessions/growth.rs"]
mod growth;
#[path = "../harness/mod.rs"]
#[allow(dead_code, unused_imports, reason = "it is there for the tests, which use all of it")]
mod harness;
#[path = "sessions/tls.rs"]
mod tls;
#[path = "sessions/upstream.rs"]
mod upstream;

use client::{Client, Shape, connect};
use delayed::delayed;
use growth::growth;
use harness::{Process, Site, cpu_time};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tls::tls;
use tokio::net::TcpStream;
use tokio::sync::Barrier;
use tokio::task::{JoinHandle, JoinSet};
use upstream::Upstream;

/// Returns a site with two listeners and the further configuration `more`. Its timeouts and connection limits are so
/// high that no client reaches them.
fn roomy_site(upstream: &Upstream, trusted: &str, more: &str) -> Site {
    Site::builder()
        .listener("submission", &format!("trusted = [{trusted}]"))
        .listener("submissions", "tls = \"implicit\"")
        // A limit of connections to the upstream leaves more files to the clients.
        .upstream(upstream.address, "max-connections = 2000")
        .more(
            "session = { max-connections = 15000, max-connections-per-client = 15000, login-timeout = \"1h\", \
             idle-timeout = \"1h\" }\n",
        )
        .more(&format!(
            "{more}\n[[limit]]\nname = \"recipients\"\ncount = \"recipients\"\nper = [\"client\"]\nrate = \"10M / 1d\"\n"
        ))
        .build()
}

/// Trusted network of the senders, which do not log in: the cost of a login is not measured here.
const LOOPBACK: &str = "\"127.0.0.0/8\"";

/// Runs `one` for each number below `count`, in at most a hundred tasks at a time.
async fn each<T: Send + 'static, F>(count: u32, one: impl Fn(u32) -> F) -> Vec<T>
where
    F: Future<Output = T> + Send + 'static,
{
    let (mut tasks, mut done) = (JoinSet::new(), Vec::new());
    for n in 0..count {
        if tasks.len() == 100 {
            done.push(tasks.join_next().await.unwrap().unwrap());
        }
        tasks.spawn(one(n));
    }
    done.extend(tasks.join_all().await);
    done
}

async fn greeted(client: u32, address: SocketAddr) -> Client<TcpStream> {
    let mut client = Client::new(connect(client, address).await);
    client.expect("220").await;
    client.say("EHLO client.example", "250").await;
    client
}

fn percentile(sorted: &[Duration], share: f64) -> Duration {
    sorted[((sorted.len() as f64 * share) as usize).min(sorted.len() - 1)]
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

// ---- idle

const IDLE: u32 = 10_000;

/// Returns the memory of a process in kB: resident (RSS), proportional (PSS), anonymous.
fn memory(weir: &Process) -> [f64; 3] {
    let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", weir.id())).unwrap();
    ["Rss:", "Pss:", "Anonymous:"].map(|name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    })
}

async fn idle(upstream: &Upstream) {
    for (what, goal, tls) in [("plain", 6.0, false), ("within TLS 1.3, by STARTTLS", 24.0, true)] {
        let site = roomy_site(upstream, "", "");
        let weir = site.start();
        let (address, trust) = (weir.address("submission"), client::trust(&site));
        let before = memory(&weir);
        let streams = each(IDLE, |n| {
            let trust = trust.clone();
            async move {
                let mut client = greeted(n, address).await;
                if !tls {
                    return client.into_stream();
                }
                client.say("STARTTLS", "220").await;
                let connector = tokio_rustls::TlsConnector::from(trust);
                let stream = connector.connect(client::name(), client.into_stream()).await.unwrap();
                let mut client = Client::new(stream);
                client.say("EHLO client.example", "250").await;
                // Keep the connection open, and free the client's own state.
                client.into_stream().into_inner().0
            }
        })
        .await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        let sessions = weir.metric("weir_sessions{listener=\"submission\"}");
        assert_eq!(sessions, f64::from(IDLE), "sessions under way");
        let after = memory(&weir);
        let [rss, pss, anonymous] = [0, 1, 2].map(|n| (after[n] - before[n]) * 1.024 / sessions);
        println!(
            "idle, {sessions} sessions after EHLO, {what}: {rss:.1} kB Rss, {pss:.1} kB Pss, {anonymous:.1} kB anonymous each \
             (goal {goal}; {:.0} MB Rss before)",
            before[0] * 1.024 / 1000.0
        );
        drop(streams);
    }
}

// ---- senders

const SENDERS: u32 = 1_000;
const MESSAGES: u64 = 20;

async fn senders() {
    let upstream = Upstream::start().await;
    let site = roomy_site(&upstream, LOOPBACK, "");
    let weir = site.start();
    let address = weir.address("submission");
    let together = Arc::new(Barrier::new(SENDERS as usize + 1));
    let mut tasks = JoinSet::new();
    for sender in 0..SENDERS {
        let together = together.clone();
        tasks.spawn(async move {
            let mut client = greeted(sender, address).await;
            together.wait().await;
            let mut times = Vec::new();
            for n in 0..MESSAGES {
                let id = u64::from(sender) * MESSAGES + n + 1;
                times.push(client.deliver(id, Shape::nth(id)).await);
            }
            times
        });
    }
    together.wait().await;
    let (began, before) = (Instant::now(), cpu_time(weir.id()));
    let mut times = tasks.join_all().await.concat();
    let (took, used) = (began.elapsed(), cpu_time(weir.id()) - before);
    times.sort_unstable();
    let (lost, doubled, others) = compare(&upstream, times.len() as u64);
    println!(
        "senders, {SENDERS} at once with {MESSAGES} messages of 2 kB each, a third stepwise, pipelined, by BDAT: {} times 250, \
         {lost} lost, {doubled} doubled, {others} others at the upstream; {:.0}/s, p50 {:.0} ms, p99 {:.0} ms, {:.0} µs of Weir's CPU each",
        times.len(),
        times.len() as f64 / took.as_secs_f64(),
        milliseconds(percentile(&times, 0.5)),
        milliseconds(percentile(&times, 0.99)),
        used.as_secs_f64() * 1e6 / times.len() as f64
    );
    assert_eq!((lost, doubled, others), (0, 0, 0));
}

/// Compares the messages that Weir acknowledged (ids from 1 to `acknowledged`) with the messages at the upstream.
/// Returns the number of messages that the upstream lacks, the number that it has more than once, and the number that
/// it has without a 250 to the client.
fn compare(upstream: &Upstream, acknowledged: u64) -> (usize, usize, usize) {
    let counts = upstream.counts.lock().unwrap();
    let lost = (1..=acknowledged).filter(|id| !counts.contains_key(id)).count();
    let doubled = counts.values().filter(|count| **count > 1).count();
    let others = counts.keys().filter(|id| !(1..=acknowledged).contains(*id)).count();
    (lost, doubled, others)
}

// ---- dripping

/// State of a client that only holds its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Connected, nothing sent.
    Connected,
    /// Silent since EHLO.
    Greeted,
    /// Sends a command octet by octet.
    Command,
    /// Sends the first octets of a TLS handshake.
    Handshake,
    /// Sends a message octet by octet, and so holds an upstream connection.
    Message,
}

const STAGES: [Stage; 5] = [Stage::Connected, Stage::Greeted, Stage::Command, Stage::Handshake, Stage::Message];

struct Holder {
    stage: Stage,
    stream: TcpStream,
}

impl Holder {
    async fn open(stage: Stage, client: u32, [submission, submissions]: [SocketAddr; 2]) -> Self {
        let stream = match stage {
            Stage::Connected => connect(client, submission).await,
            Stage::Handshake => connect(client, submissions).await,
            Stage::Greeted | Stage::Command => greeted(client, submission).await.into_stream(),
            Stage::Message => {
                let mut client = greeted(client, submission).await;
                client.say("MAIL FROM:<mallory@example.org>", "250").await;
                client.say("RCPT TO:<bob@example.net>", "250").await;
                client.say("DATA", "354").await;
                client.into_stream()
            }
        };
        Self { stage, stream }
    }

    /// Sends the octet of this second. Does nothing at a stage that sends no octets.
    fn drip(&self, second: usize, hello: &[u8]) {
        let octet = match self.stage {
            Stage::Connected | Stage::Greeted => return,
            Stage::Command | Stage::Message => b'x',
            Stage::Handshake => hello[second],
        };
        match self.stream.try_write(&[octet]) {
            Ok(1) => {}
            other => panic!("{:?}: {other:?}", self.stage),
        }
    }
}

/// Holds `count` connections, distributed over `stages`, until the returned task ends.
async fn hold(count: u32, stages: &'static [Stage], site: &Site, weir: &Process) -> JoinHandle<()> {
    let hello = client::client_hello(&client::trust(site));
    let addresses = ["submission", "submissions"].map(|name| weir.address(name));
    let one = |n: u32| Holder::open(stages[n as usize % stages.len()], SENDERS + n, addresses);
    let holders = each(count, one).await;
    tokio::spawn(async move {
        // In each tick a hundredth of the clients send, so that the octets are spread evenly over the second.
        let mut ticks = tokio::time::interval(Duration::from_millis(10));
        for tick in 0.. {
            ticks.tick().await;
            holders.iter().skip(tick % 100).step_by(100).for_each(|holder| holder.drip(tick / 100, &hello));
        }
    })
}

const ORDINARY: u32 = 50;
const HOLDERS: u32 = 2_000;
const ROUNDS: usize = 5;
const LASTS: Duration = Duration::from_secs(6);

/// Pauses between two messages of a client. Without a pause the machine is busy; with the second pause it is not.
const PAUSES: [Duration; 2] = [Duration::ZERO, Duration::from_millis(60)];

/// Measures the transactions of ordinary clients; returns their durations, sorted.
async fn ordinary(address: SocketAddr, pause: Duration, ids: &Arc<AtomicU64>) -> Vec<Duration> {
    let mut tasks = JoinSet::new();
    let until = Instant::now() + LASTS;
    for sender in 0..ORDINARY {
        let ids = ids.clone();
        tasks.spawn(async move {
            let (mut client, mut times) = (greeted(sender, address).await, Vec::new());
            tokio::time::sleep(pause * sender / ORDINARY).await;
            while Instant::now() < until {
                let id = ids.fetch_add(1, Ordering::Relaxed) + 1;
                times.push(client.deliver(id, Shape::nth(id)).await);
                tokio::time::sleep(pause).await;
            }
            times
        });
    }
    let mut times = tasks.join_all().await.concat();
    times.sort_unstable();
    times
}

async fn dripping(pause: Duration) {
    let upstream = Upstream::start().await;
    let site = roomy_site(&upstream, LOOPBACK, "");
    let weir = site.start();
    let (address, ids) = (weir.address("submission"), Arc::new(AtomicU64::new(0)));
    // Warm up budgets, buffers and code before the measurement.
    ordinary(address, pause, &ids).await;
    let mut all = [Vec::new(), Vec::new()];
    println!("dripping, {ORDINARY} clients with {pause:?} between two messages of each, {LASTS:?} a round; ms:");
    println!("  round     alone p50    p99      /s   beside p50    p99      /s   ratio p50   p99");
    let line = |round: &str, seconds: f64, [alone, beside]: [&[Duration]; 2]| {
        let [a50, b50] = [alone, beside].map(|times| milliseconds(percentile(times, 0.5)));
        let [a99, b99] = [alone, beside].map(|times| milliseconds(percentile(times, 0.99)));
        let [a, b] = [alone, beside].map(|times| times.len() as f64 / seconds);
        let (r50, r99) = (b50 / a50, b99 / a99);
        println!("  {round:<9} {a50:9.1} {a99:6.1} {a:7.0}   {b50:10.1} {b99:6.1} {b:7.0}   {r50:9.2} {r99:5.2}");
    };
    for round in 1..=ROUNDS {
        let alone = ordinary(address, pause, &ids).await;
        let holding = hold(HOLDERS, &STAGES, &site, &weir).await;
        // Exclude the cost of connecting.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let beside = ordinary(address, pause, &ids).await;
        assert!(!holding.is_finished(), "a connection was not held");
        let [one, other] =
            ["submission", "submissions"].map(|n| weir.metric(&format!("weir_sessions{{listener=\"{n}\"}}")));
        assert!(one + other >= f64::from(HOLDERS), "only {one} and {other} sessions");
        holding.abort();
        line(&round.to_string(), LASTS.as_secs_f64(), [&alone, &beside]);
        all[0].extend(alone);
        all[1].extend(beside);
        // Wait until Weir has ended the sessions of the clients that left.
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    all.iter_mut().for_each(|times| times.sort_unstable());
    line("all", LASTS.as_secs_f64() * ROUNDS as f64, [&all[0], &all[1]]);
    println!(
        "  beside {HOLDERS} connections, a fifth each: silent, silent after EHLO, and with an octet a second of a command, of"
    );
    println!("  a TLS handshake, of a message (goal: ratio of p99 at most 1.5)");
    let (lost, doubled, others) = compare(&upstream, ids.load(Ordering::Relaxed));
    assert_eq!((lost, doubled, others), (0, 0, 0));
}

// ---- octets

const DRIPPERS: u32 = 1_000;

async fn octets(upstream: &Upstream) {
    for stage in &STAGES {
        let site = roomy_site(upstream, LOOPBACK, "");
        let weir = site.start();
        let holding = hold(DRIPPERS, std::slice::from_ref(stage), &site, &weir).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let (began, before) = (Instant::now(), cpu_time(weir.id()));
        tokio::time::sleep(Duration::from_secs(8)).await;
        let (seconds, used) = (began.elapsed().as_secs_f64(), (cpu_time(weir.id()) - before).as_secs_f64());
        assert!(!holding.is_finished(), "a connection was not held");
        holding.abort();
        println!(
            "octets, {DRIPPERS} clients, {stage:?}: {:.2} µs of CPU a second and client, {:.2} % of a core in all",
            used * 1e6 / seconds / f64::from(DRIPPERS),
            used * 100.0 / seconds
        );
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let parts: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // `cargo test --benches` only checks that the benchmark starts.
    if parts.first() == Some(&"--test") {
        return;
    }
    // This process has the clients' ends of thousands of connections, and the upstream's ends of Weir's connections.
    client::raise_file_limit(20_000);
    let wanted = |part| parts.is_empty() || parts.contains(&part);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let upstream = Upstream::start().await;
        if wanted("idle") {
            idle(&upstream).await;
        }
        if wanted("senders") {
            senders().await;
        }
        if wanted("dripping") {
            for pause in PAUSES {
                dripping(pause).await;
            }
        }
        if wanted("delayed") {
            for tls in [false, true] {
                delayed(tls).await;
            }
        }
        if wanted("octets") {
            octets(&upstream).await;
        }
        if wanted("tls") {
            tls(&upstream).await;
        }
        if wanted("growth") {
            growth(&upstream).await;
        }
    });
}
