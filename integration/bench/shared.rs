//! Benchmark of budgets that nodes share through Redis. `cargo bench --bench shared` starts Debian's redis-server on a
//! Unix socket, and two processes with a node each. All share the machine's cores.
//!
//! * throughput: 64 tasks of each node decide on random budgets of 100,000 users, by Zipf's law. The goals are 40,000
//!   decisions a second of both nodes, and at most 25 µs of Redis' CPU time for each.
//! * contention: the same tasks on 10 users.
//! * a limit for all: the same tasks on one bucket, without and with leases.
//! * latency: one task decides 100 times a second on ever other users. The goal is 0.2 ms for half of the decisions.
//! * memory: octets that Redis takes for each budget.
//!
//! With `-- rspamd FILE` it also measures the scripts of rspamd's rate limits, from its file `plugins/ratelimit.lua`, on the
//! same Redis. `integration/unpack rspamd target/rspamd` unpacks this file from Debian's package. For each message rspamd
//! runs one script that checks the bucket, and one that fills it: together they are a decision.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a benchmark fails so")]

#[path = "../harness/mod.rs"]
#[allow(dead_code, unused_imports, reason = "it is there for the tests, which use all of it")]
mod harness;

use harness::cpu_time;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir::metrics::Metrics;
use weir::policy::Policy;
use weir::policy::address::AddressNormalizer;
use weir::policy::budgets::SessionCounters;
use weir::policy::limit::{Algorithm, Count, Limit, Quota};
use weir::policy::matching::{Field, Zone};
use weir::policy::request::{Event, Facts, PolicyRequest};
use weir::store::{Durability, Health, OnFailure, Options, RefusalOptions, SharedOptions, Store, Topology};
use weir::time::{Units, parse_rate};

/// The allocator of the program.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const TASKS: u64 = 64;
const LASTS: Duration = Duration::from_secs(5);

/// Number of budgets for the measurement of Redis' memory.
const BUDGETS: u64 = 200_000;

/// Number of decisions by rspamd's scripts.
const RSPAMD_DECISIONS: u64 = 100_000;

/// Redis server in a temporary folder. It ends when this value is dropped.
struct Redis {
    folder: PathBuf,
    process: Child,
}

impl Redis {
    fn start(folder: &Path) -> Self {
        let process = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--loglevel", "warning", "--unixsocket"])
            .arg(folder.join("redis.sock"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while std::os::unix::net::UnixStream::connect(folder.join("redis.sock")).is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
        Self { folder: folder.to_owned(), process }
    }

    fn query(&self, command: &[&str]) -> String {
        let output =
            Command::new("redis-cli").arg("-s").arg(self.folder.join("redis.sock")).args(command).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the number of scripts since the last `config resetstat`.
    fn scripts(&self) -> f64 {
        let info = self.query(&["info", "commandstats"]);
        let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")).unwrap();
        line.split(',').next().unwrap().parse().unwrap()
    }

    fn used_memory(&self) -> f64 {
        let info = self.query(&["info", "memory"]);
        let line = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
        line.trim().parse().unwrap()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns a limit for each user; or, if there are no users, a limit for all with these leases.
fn policy(users: u64, lease: f64) -> Policy {
    let algorithm = if users > 0 { Algorithm::Ewma } else { Algorithm::TokenBucket };
    let quota = Quota::rate(algorithm, parse_rate("1G / 1d", Units::Things).unwrap(), None);
    let per = if users > 0 { vec![Field::User] } else { Vec::new() };
    let mut limit = Limit::new("l", Count::Recipients, per, quota);
    (limit.algorithm, limit.lease) = (algorithm, Some(lease).filter(|lease| *lease > 0.0));
    Policy::new(vec![limit], AddressNormalizer::default(), Zone::default())
}

fn asked(user: u64) -> PolicyRequest {
    let facts = Facts { user: Some(format!("user{user}@example.org").into()), ..Facts::default() };
    PolicyRequest { facts, events: vec![Event::Recipient("bob@example.net".into())], ..PolicyRequest::default() }
}

fn open(folder: &Path, node: &str, policy: Policy) -> Arc<Store> {
    let secret = folder.join(format!("secret-{node}"));
    std::fs::write(&secret, "a secret that all nodes have\n").unwrap();
    let shared = SharedOptions {
        servers: vec![format!("unix://{}", folder.join("redis.sock").display())],
        topology: Topology::Single,
        ca: None,
        user: None,
        password_file: None,
        secret_file: Some(secret),
        prefix: "weir".to_owned(),
        deadline: Duration::from_secs(1),
        max_age: Duration::from_secs(1),
    };
    let options = Options {
        path: folder.join(format!("{node}.db")),
        durability: Durability::Process,
        on_failure: OnFailure::Allow,
        shared: Some(shared),
        budget_octets: weir::store::BUDGET_OCTETS,
        refusals: RefusalOptions::default(),
        outcomes: None,
    };
    Arc::new(Store::open(&options, policy, Arc::new(Metrics::new().unwrap())).unwrap())
}

async fn admit(store: &Store, user: u64) {
    store.admit(weir::clock::now(), &asked(user), &mut SessionCounters::default()).await.unwrap();
}

/// Decides on random users, by Zipf's law, with many tasks. Returns the number of decisions.
async fn hammer(store: &Arc<Store>, users: u64) -> u64 {
    let began = Instant::now();
    let task = |task: u64| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(task + 1 + u64::from(std::process::id()));
            let mut decisions = 0;
            while began.elapsed() < LASTS {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let share = (random >> 11) as f64 / (1u64 << 53) as f64;
                admit(&store, (users.max(1) as f64).powf(share) as u64).await;
                decisions += 1;
            }
            decisions
        })
    };
    let tasks: Vec<_> = (0..TASKS).map(task).collect();
    let mut decisions = 0;
    for task in tasks {
        decisions += task.await.unwrap();
    }
    assert_eq!(store.health(), Health::Good);
    decisions
}

/// Runs two nodes in processes of their own.
fn two_nodes(redis: &Redis, users: u64, lease: f64) {
    let me = std::env::current_exe().unwrap();
    redis.query(&["config", "resetstat"]);
    let before = cpu_time(redis.process.id());
    let began = Instant::now();
    let start = |node: &str| {
        let mut command = Command::new(&me);
        command.args(["node", node]).arg(&redis.folder).args([users.to_string(), lease.to_string()]);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let nodes = ["one", "two"].map(start);
    let (mut decisions, mut cpu_of_nodes) = (0.0, 0.0);
    for node in nodes {
        let output = node.wait_with_output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        let numbers: Vec<f64> = text.split_whitespace().map(|number| number.parse().unwrap()).collect();
        decisions += numbers[0];
        cpu_of_nodes += numbers[1];
    }
    let of_redis = (cpu_time(redis.process.id()) - before).as_secs_f64();
    println!(
        "two nodes, {TASKS} tasks each, {users} users, leases of {lease}: {:.0} decisions/s; {:.4} scripts for each; CPU \
         for each: Redis {:.2} µs, nodes {:.1} µs ({:.1} s in all)",
        decisions / LASTS.as_secs_f64(),
        redis.scripts() / decisions,
        of_redis * 1e6 / decisions,
        cpu_of_nodes * 1e6 / decisions,
        began.elapsed().as_secs_f64()
    );
}

/// Runs both scripts of rspamd for random budgets, from as many connections as a node has tasks.
fn rspamd(redis: &Redis, plugin: &Path) {
    let plugin = std::fs::read_to_string(plugin).unwrap();
    let script = |name: &str| plugin.split_once(&format!("local {name} = [[")).unwrap().1.split_once("]]").unwrap().0;
    // The arguments as rspamd gives them: budget, time in milliseconds, and numbers of the limit.
    let check = ["RL__rand_int__", "1__rand_int__", "0.00001", "1000000", "172800", "1"];
    let update = ["RL__rand_int__", "1__rand_int__", "1.01", "1.02", "5", "10", "172800", "1"];
    redis.query(&["flushall"]);
    let (before, mut seconds) = (cpu_time(redis.process.id()), 0.0);
    for (name, keys) in [("bucket_check_script", &check[..]), ("bucket_update_script", &update)] {
        let hash = redis.query(&["script", "load", script(name)]);
        let numbers = [RSPAMD_DECISIONS, TASKS].map(|number| number.to_string());
        let output = Command::new("redis-benchmark")
            .arg("-s")
            .arg(redis.folder.join("redis.sock"))
            .args(["-q", "-r", "100000", "-n", &numbers[0], "-c", &numbers[1], "evalsha", hash.trim()])
            .arg(keys.len().to_string())
            .args(keys)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let rate = text.rsplit_once(" requests per second").and_then(|(before, _)| before.rsplit([' ', '\r']).next());
        seconds += RSPAMD_DECISIONS as f64 / rate.unwrap().parse::<f64>().unwrap();
    }
    let decisions = RSPAMD_DECISIONS as f64;
    let of_redis = (cpu_time(redis.process.id()) - before).as_secs_f64();
    println!(
        "rspamd's scripts, {TASKS} connections: {:.0} decisions/s; CPU for each: Redis {:.1} µs",
        decisions / seconds,
        of_redis * 1e6 / decisions
    );
}

async fn node(name: &str, folder: &Path, users: u64, lease: f64) {
    let store = open(folder, name, policy(users, lease));
    let before = cpu_time(std::process::id());
    let decisions = hammer(&store, users).await;
    println!("{decisions} {}", (cpu_time(std::process::id()) - before).as_secs_f64());
    Arc::into_inner(store).unwrap().close().await;
}

async fn latency(folder: &Path) {
    let store = open(folder, "three", policy(1, 0.0));
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    let mut times = Vec::new();
    for n in 0..1_000 {
        ticks.tick().await;
        let began = Instant::now();
        admit(&store, 1_000_000 + n / 2).await;
        // The second decision on a user is the usual one: the budget is in memory.
        if n % 2 == 1 {
            times.push(began.elapsed());
        }
    }
    times.sort_unstable();
    println!("100 decisions a second: p50 {:?}, p99 {:?}", times[times.len() / 2], times[times.len() * 99 / 100]);
    Arc::into_inner(store).unwrap().close().await;
}

async fn memory(redis: &Redis) {
    redis.query(&["flushall"]);
    let (before, store) = (redis.used_memory(), open(&redis.folder, "four", policy(1, 0.0)));
    let fill = |task: u64| {
        let store = store.clone();
        tokio::spawn(async move {
            for user in (task..BUDGETS).step_by(TASKS as usize) {
                admit(&store, user).await;
            }
        })
    };
    let tasks: Vec<_> = (0..TASKS).map(fill).collect();
    for task in tasks {
        task.await.unwrap();
    }
    let octets = (redis.used_memory() - before) / BUDGETS as f64;
    println!("{BUDGETS} budgets: {octets:.0} octets of Redis' memory for each");
    Arc::into_inner(store).unwrap().close().await;
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    match arguments[..] {
        // `cargo test --benches` only checks that the benchmark starts.
        ["--test", ..] => return,
        ["node", name, folder, users, lease] => {
            let (users, lease) = (users.parse().unwrap(), lease.parse().unwrap());
            return runtime.block_on(node(name, Path::new(folder), users, lease));
        }
        _ => {}
    }
    let folder = tempfile::tempdir().unwrap();
    let redis = Redis::start(folder.path());
    if let ["rspamd", plugin] = arguments[..] {
        rspamd(&redis, Path::new(plugin));
    }
    two_nodes(&redis, 100_000, 0.0);
    two_nodes(&redis, 10, 0.0);
    for lease in [0.0, 100.0, 10_000.0] {
        two_nodes(&redis, 0, lease);
    }
    runtime.block_on(latency(folder.path()));
    runtime.block_on(memory(&redis));
}
