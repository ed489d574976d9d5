//! Benchmark of the views for administrators, with 100,000 active senders: `cargo bench --bench views`.
//!
//! * The first paint of the dashboard in Chromium, and the time until its rows are there, if Chromium is installed.
//! * The time of `weir top`, and of `weir top --limit`, as whole processes.
//! * Mail of fifty clients in turns: without a viewer, and beside a live view, which asks every two seconds. Measures
//!   Weir's CPU for each message, and the messages per second.
//! * The cost of counting one message for the list of top senders, as a share of Weir's CPU for a message.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a benchmark fails so")]

#[path = "sessions/client.rs"]
#[allow(dead_code, reason = "another benchmark uses all of it")]
mod client;
#[path = "../harness/mod.rs"]
#[allow(dead_code, unused_imports, reason = "it is there for the tests, which use all of it")]
mod harness;
#[path = "sessions/upstream.rs"]
#[allow(dead_code, reason = "another benchmark uses all of it")]
mod upstream;

use client::{Client, Shape, connect};
use harness::{Chromium, Process, Site, cpu_time, median};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use upstream::Upstream;
use weir::time::Timestamp;
use weir::top::{Amounts, SenderKind, TopSenders};

const SENDERS: u32 = 100_000;
/// Clients that connect at the same time.
const AT_ONCE: usize = 100;
/// Clients of the mail in turns.
const CLIENTS: u32 = 50;
/// Pairs of turns.
const TURNS: usize = 10;
const TURN: Duration = Duration::from_secs(4);
/// Pace of the live view.
const PACE: Duration = Duration::from_secs(2);

fn main() {
    client::raise_file_limit(4_096);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let upstream = Upstream::start().await;
        let site = site(&upstream);
        let weir = site.start();
        let address = weir.address("submission");
        let began = Instant::now();
        send_from_all(address).await;
        println!("{SENDERS} senders have sent a message each, in {:.0} s", began.elapsed().as_secs_f64());
        for arguments in [&["top", "--once"][..], &["top", "--once", "--limit", "recipients"], &["top", "--json"]] {
            let mut times: Vec<f64> = (0..30).map(|_| run(&site, arguments)).collect();
            times.sort_by(f64::total_cmp);
            println!("weir {}: median {:.1} ms, maximum {:.1} ms", arguments.join(" "), times[15], times[29]);
        }
        tokio::task::block_in_place(|| paint(&site, &weir));
        let cpu_of_message = in_turns(&site, &weir, address).await;
        let cost = counting();
        println!(
            "counting a message for the top senders: {cost:.0} ns, {:.2} % of Weir's CPU for a message",
            100.0 * cost / (cpu_of_message * 1e9)
        );
    });
}

fn site(upstream: &Upstream) -> Site {
    let site = Site::builder()
        .listener("submission", "tls = \"none\", auth = \"optional\", trusted = [\"127.0.0.0/8\"]")
        .upstream(upstream.address, "")
        .more(
            "session = { max-connections = 3000, idle-timeout = \"1h\" }\n\
             [[limit]]\nname = \"recipients\"\ncount = \"recipients\"\nper = [\"client\"]\nrate = \"10M / 1d\"\n",
        )
        .build();
    site.edit("127.0.0.1:0\" }\n", "127.0.0.1:0\", tokens = \"tokens\" }\n");
    site
}

async fn greeted(client: u32, address: SocketAddr) -> Client<TcpStream> {
    let mut client = Client::new(connect(client, address).await);
    client.expect("220").await;
    client.say("EHLO client.example", "250").await;
    client
}

/// Sends one message from each sender.
async fn send_from_all(address: SocketAddr) {
    let mut tasks = JoinSet::new();
    for sender in 0..SENDERS {
        if tasks.len() == AT_ONCE {
            tasks.join_next().await.unwrap().unwrap();
        }
        tasks.spawn(async move {
            greeted(sender, address).await.deliver(u64::from(sender), Shape::Pipelined).await;
        });
    }
    tasks.join_all().await;
}

/// Runs `weir ARGUMENTS` to its end; returns the time in milliseconds.
fn run(site: &Site, arguments: &[&str]) -> f64 {
    let began = Instant::now();
    let outcome = site.run(arguments, "");
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    began.elapsed().as_secs_f64() * 1e3
}

/// Opens pages of the dashboard, and prints the times that the browser measures, in milliseconds.
fn paint(site: &Site, weir: &Process) {
    if Command::new("chromedriver").arg("--version").output().is_err() {
        return println!("the dashboard is not measured: chromedriver is not installed");
    }
    let token = site.run(&["token", "add", "desk"], "").out;
    let browser = Chromium::start();
    let page = |view: &str| format!("http://{}/#/{view}", weir.address("admin"));
    browser.open(&page("now"));
    browser.fill("input[name=token]", token.trim());
    browser.click("//button[.='Log in']");
    browser.wait("rows", "document.querySelector('main tbody tr')");
    for view in ["now", "senders", "limits/recipients"] {
        let mut measured = [Vec::new(), Vec::new()];
        for _ in 0..10 {
            browser.open("about:blank");
            browser.open(&page(view));
            browser.wait("rows", "document.querySelector('main tbody tr')");
            let times = "const paint = performance.getEntriesByName('first-contentful-paint')[0].startTime;
                return [paint, performance.getEntriesByName('weir-drawn')[0].startTime]";
            let times: [f64; 2] = serde_json::from_value(browser.run(times, &[])).unwrap();
            measured.iter_mut().zip(times).for_each(|(all, time)| all.push(time));
        }
        let [paint, drawn] = measured.map(median);
        println!("dashboard, {view}: first contentful paint after {paint:.0} ms, with its rows after {drawn:.0} ms");
    }
}

/// Sends mail in turns without and with a viewer. Returns the seconds of Weir's CPU for a message without a viewer.
async fn in_turns(site: &Site, weir: &Process, address: SocketAddr) -> f64 {
    let (sent, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut tasks = JoinSet::new();
    for n in 0..CLIENTS {
        let (sent, stop) = (sent.clone(), stop.clone());
        tasks.spawn(async move {
            let mut client = greeted(n, address).await;
            while !stop.load(Ordering::Relaxed) {
                let id = u64::from(SENDERS) + sent.fetch_add(1, Ordering::Relaxed);
                client.deliver(id, Shape::Pipelined).await;
            }
        });
    }
    let (mut cpus, mut rates) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for turn in 0..2 * TURNS {
        // Each pair begins with the other kind, so that a drift of the machine does not count for one kind alone.
        let is_viewed = (turn + turn / 2) % 2;
        let (before, used, began) = (sent.load(Ordering::Relaxed), cpu_time(weir.id()), Instant::now());
        while began.elapsed() < TURN {
            let asked = Instant::now();
            if is_viewed == 1 {
                tokio::task::block_in_place(|| run(site, &["top", "--once", "--rows", "50"]));
            }
            tokio::time::sleep(PACE.saturating_sub(asked.elapsed())).await;
        }
        let count = (sent.load(Ordering::Relaxed) - before) as f64;
        cpus[is_viewed].push((cpu_time(weir.id()) - used).as_secs_f64() / count);
        rates[is_viewed].push(count / began.elapsed().as_secs_f64());
    }
    stop.store(true, Ordering::Relaxed);
    tasks.join_all().await;
    let [alone, viewed] = cpus.map(median);
    let [rate, viewed_rate] = rates.map(median);
    println!(
        "mail of {CLIENTS} clients in {TURNS} pairs of turns: {:.1} µs of Weir's CPU for a message, {:.1} µs beside a live view ({:+.2} %); \
         {rate:.0} messages/s, {viewed_rate:.0} beside a live view ({:+.2} %)",
        alone * 1e6,
        viewed * 1e6,
        100.0 * (viewed / alone - 1.0),
        100.0 * (viewed_rate / rate - 1.0)
    );
    alone
}

/// Returns the nanoseconds for counting one message, when the messages come from all senders in turns.
fn counting() -> f64 {
    const ROUNDS: u32 = 10;
    let names: Vec<String> = (0..SENDERS).map(|n| format!("user{n}@example.org")).collect();
    let (top, amounts) = (TopSenders::default(), Amounts { messages: 1, recipients: 1, refusals: 0, octets: 2_000 });
    let began = Instant::now();
    for round in 0..ROUNDS {
        for (n, name) in names.iter().enumerate() {
            let micros = 1_700_000_000_000_000 + i64::from(round) * 10_000_000 + n as i64 * 100;
            top.add((SenderKind::User, name), Timestamp::from_micros(micros), &amounts, None);
        }
    }
    began.elapsed().as_secs_f64() * 1e9 / f64::from(ROUNDS * SENDERS)
}
