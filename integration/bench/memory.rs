//! Benchmark of the memory that budgets take, with the recommended policy of a university and a memory of the whole
//! site: `cargo bench --bench memory`. `-- NAME=PATH NAME=PATH` measures these Weir binaries instead of the one that was
//! built, in turns.
//!
//! Weir is the real process. First `weir history learn` fills the memory of the site with five million recipients. Then
//! each of 100,000 users sends a message, and once more. At last the users that are active send many messages in turns.
//! Measures the peak of Weir's memory, the octets of each budget in memory, and Weir's CPU for each message. At the
//! end, `weir history learn` shows how many recipients that the site has never learnt are wrongly known.

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

use client::{Client, connect};
use harness::{Process, Site, cpu_time, median, succeed};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use upstream::Upstream;

/// Recipients of the memory of the site.
const RECIPIENTS: u64 = 5_000_000;
/// Beginning of their names.
const NAME: &str = "recipient";
/// Recipients that the memory has never learnt.
const UNKNOWN: u64 = 100_000;
const USERS: u64 = 100_000;
/// Users that send again and again.
const ACTIVE: u64 = 2_000;
/// Messages of all active users in one turn.
const TURN: u64 = 20_000;
const TURNS: usize = 7;
/// Clients that send at the same time, each as one user after the other.
const CLIENTS: u64 = 20;

/// A Weir that is measured.
struct Target {
    name: String,
    program: PathBuf,
    site: Site,
    weir: Process,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    // `cargo test --benches` only checks that the benchmark starts.
    if arguments.first().is_some_and(|argument| argument == "--test") {
        return;
    }
    let mut programs: Vec<(String, PathBuf)> = arguments
        .iter()
        .map(|argument| argument.split_once('=').expect("NAME=PATH"))
        .map(|(name, path)| (name.to_owned(), path.into()))
        .collect();
    if programs.is_empty() {
        programs.push(("weir".to_owned(), env!("CARGO_BIN_EXE_weir").into()));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let upstream = Upstream::start().await;
        let targets: Vec<Target> = programs.into_iter().map(|program| start(program, &upstream)).collect();
        for target in &targets {
            println!("{}: after the start {}", target.name, memory(&target.weir));
        }
        for (first, round) in [(0, "first"), (USERS, "second")] {
            for target in &targets {
                let cost = send(target, first, USERS, USERS).await;
                println!(
                    "{}: after the {round} message of {USERS} users {}; {:.1} µs of CPU each, {:.0}/s",
                    target.name,
                    memory(&target.weir),
                    cost.cpu,
                    cost.rate
                );
            }
        }
        active(&targets).await;
        targets.into_iter().for_each(end);
    });
}

/// Fills the memory of the site and starts Weir.
fn start((name, program): (String, PathBuf), upstream: &Upstream) -> Target {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/examples");
    let mut policy = std::fs::read_to_string(examples.join("university.toml")).unwrap();
    // The memory of the whole site needs a limit that uses it.
    policy += "\n[[limit]]\nname = \"strangers-to-the-site\"\ncount = \"recipients\"\nper = []\nrate = \"100K / 1d\"\n\
               distinct = \"recipient\"\nknown-to = \"all\"\nmode = \"shadow\"\n";
    let site = Site::builder()
        .listener("s", "tls = \"none\", auth = \"optional\", xclient = [\"127.0.0.0/8\"]")
        .upstream(upstream.address, "")
        .more(&policy)
        .users(&[("alice", "secret", "")])
        .build();
    for file in ["university-groups.csv", "university-hosts.csv"] {
        std::fs::copy(examples.join(file), site.path(file)).unwrap();
    }
    site.edit("hostname =", "help-url = \"https://example.org/mail\"\nhostname =");
    let began = Instant::now();
    learn(&program, &site, NAME, RECIPIENTS);
    println!("{name}: {RECIPIENTS} recipients learnt in {:.0} s", began.elapsed().as_secs_f64());
    let weir = Process::start(&mut command(&program, &site, &["serve"]));
    Target { name, program, site, weir }
}

fn command(program: &Path, site: &Site, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).arg("-c").arg(site.path("weir.toml"));
    command
}

/// Makes the memory of the site learn recipients. Returns how many of them it did not know.
fn learn(program: &Path, site: &Site, name: &str, count: u64) -> u64 {
    let path = site.path("history.csv");
    let mut file = std::io::BufWriter::new(std::fs::File::create(&path).unwrap());
    let now = weir::clock::now().rfc3339();
    writeln!(file, "t,recipient").unwrap();
    for n in 0..count {
        writeln!(file, "{now},{}", recipient(name, n)).unwrap();
    }
    file.flush().unwrap();
    let outcome = succeed(command(program, site, &["history", "learn", "csv"]).arg(path), "");
    let line = outcome.out.lines().find(|line| line.contains("\"all\"")).unwrap();
    let digits: String = line.chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

fn recipient(name: &str, n: u64) -> String {
    format!("{name}{n}@example.net")
}

/// Returns a field of /proc/PID/status in kB.
fn status(weir: &Process, field: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", weir.id())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Describes the memory of Weir: its peak, what is resident now, and how much of it is anonymous.
fn memory(weir: &Process) -> String {
    let [peak, resident, anonymous] =
        ["VmHWM:", "VmRSS:", "RssAnon:"].map(|field| status(weir, field) as f64 * 1.024e-3);
    let [budgets, octets] = ["weir_budgets_in_memory", "weir_budget_memory_bytes"].map(|name| weir.metric(name));
    format!(
        "{peak:.1} MB at most, {resident:.1} MB now, {anonymous:.1} MB of it anonymous, {:.1} MB for {budgets} budgets",
        octets / 1e6
    )
}

/// Cost of messages.
struct Cost {
    /// Weir's CPU time for each message, in microseconds.
    cpu: f64,
    /// Messages in a second.
    rate: f64,
}

/// Sends `count` messages, in turns as the first `users` users. Each user writes to one recipient, and `first` is the
/// number of the recipient of the first user.
async fn send(target: &Target, first: u64, count: u64, users: u64) -> Cost {
    let (address, began, before) = (target.weir.address("s"), Instant::now(), cpu_time(target.weir.id()));
    let mut tasks = JoinSet::new();
    for task in 0..CLIENTS {
        tasks.spawn(async move {
            let mut client = Client::new(connect(task as u32, address).await);
            client.expect("220").await;
            for n in (task..count).step_by(CLIENTS as usize) {
                deliver(&mut client, n % users, first + n % users).await;
            }
        });
    }
    tasks.join_all().await;
    let used = cpu_time(target.weir.id()) - before;
    Cost { cpu: used.as_secs_f64() * 1e6 / count as f64, rate: count as f64 / began.elapsed().as_secs_f64() }
}

/// Sends a message of a user to a recipient that the site knows.
async fn deliver(client: &mut Client<TcpStream>, user: u64, to: u64) {
    client.say(&format!("XCLIENT LOGIN=user{user}@example.org"), "220").await;
    client.say("EHLO client.example", "250").await;
    let to = recipient(NAME, to);
    client.send(format!("MAIL FROM:<user{user}@example.org>\r\nRCPT TO:<{to}>\r\nDATA\r\n").as_bytes()).await;
    for code in ["250", "250", "354"] {
        client.expect(code).await;
    }
    client.send(b"Subject: a message\r\n\r\nA line.\r\n.\r\n").await;
    client.expect("250").await;
}

/// Lets the active users of each Weir send, in turns.
async fn active(targets: &[Target]) {
    let mut costs: Vec<Vec<Cost>> = targets.iter().map(|_| Vec::new()).collect();
    // The first turn reads the budgets of these users into memory.
    for turn in 0..=TURNS {
        for (target, costs) in targets.iter().zip(&mut costs) {
            costs.push(send(target, 0, TURN, ACTIVE).await);
            if turn == 0 {
                costs.clear();
            }
        }
    }
    for (target, costs_of) in targets.iter().zip(&costs) {
        let ratios = costs_of.iter().zip(&costs[0]).map(|(cost, base)| cost.cpu / base.cpu);
        println!(
            "{}: messages of {ACTIVE} active users, median of {TURNS} turns: {:.1} µs of CPU and {:.0}/s; {:.3} of the CPU of {}; {}",
            target.name,
            median(costs_of.iter().map(|cost| cost.cpu)),
            median(costs_of.iter().map(|cost| cost.rate)),
            median(ratios),
            targets[0].name,
            memory(&target.weir)
        );
    }
}

/// Ends a Weir, and counts the recipients that its memory wrongly knows.
fn end(target: Target) {
    let Target { name, program, site, weir } = target;
    assert_eq!(weir.terminate(), Some(0));
    let new = learn(&program, &site, "unknown", UNKNOWN);
    let wrong = UNKNOWN - new;
    println!(
        "{name}: {wrong} of {UNKNOWN} unknown recipients are known: {:.2} %",
        wrong as f64 * 100.0 / UNKNOWN as f64
    );
}
