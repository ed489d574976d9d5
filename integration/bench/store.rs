//! Benchmark of the store. `cargo bench --bench store` runs all parts. To run only some parts, name them:
//! `-- throughput`, `-- fitting`, `-- large`, `-- crash`, `-- week`.
//!
//! * throughput: 64 tasks make durable decisions on a million budgets: on each budget once, then on random budgets,
//!   first uniformly and then by Zipf's law. 4 and 20 tasks do the last, too. Then one task decides 100 times a second.
//!   For comparison, measures the time to wake a thread that writes one page.
//! * fitting: the loads by Zipf's law, with memory for all budgets. In throughput, the default memory has room for a
//!   fifth of them.
//! * large: ten million budgets in the file; one budget in a hundred is used. Measures the time until the first
//!   decision, and the memory.
//! * crash: a store is aborted under load, when its journal is long. Measures the time and memory of the next start.
//! * week: a hundred thousand senders for seven days. Measures the size of the file.

#![allow(clippy::unwrap_used, reason = "a benchmark fails so")]

use siphasher::sip::SipHasher13;
use std::hash::Hasher as _;
use std::hint::black_box;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir::metrics::Metrics;
use weir::policy::Policy;
use weir::policy::address::AddressNormalizer;
use weir::policy::budgets::SessionCounters;
use weir::policy::limit::{Algorithm, Count, Limit, Quota};
use weir::policy::matching::{Field, Zone};
use weir::policy::request::{Event, Facts, PolicyRequest};
use weir::store::{Durability, Health, OnFailure, Options, RefusalOptions, Store};
use weir::time::{Units, parse_rate};

/// The allocator of the program.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const TASKS: u64 = 64;
const KEYS: u64 = 1_000_000;
const LASTS: Duration = Duration::from_secs(5);

/// Duration of a load of 100 operations a second: 3,000 operations. If the machine is busy with other work for a
/// moment, this delays less than 1 % of them.
const TRICKLES: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug)]
enum Keys {
    /// Each budget once: no budget is in memory before its decision.
    New,
    Uniform,
    /// By Zipf's law: the nth most frequent key occurs about 1/n times as often as the most frequent key.
    Zipf,
}

/// Generator of pseudo-random numbers from 0 to 1.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    fn key(&mut self, keys: Keys, task: u64, n: u64) -> u64 {
        match keys {
            Keys::New => n * TASKS + task,
            Keys::Uniform => (self.next() * KEYS as f64) as u64,
            Keys::Zipf => (KEYS as f64).powf(self.next()) as u64,
        }
    }
}

fn policy() -> Policy {
    let quota = Quota::rate(Algorithm::Ewma, parse_rate("1M / 1d", Units::Things).unwrap(), None);
    let limit = Limit::new("l", Count::Recipients, vec![Field::User], quota);
    Policy::new(vec![limit], AddressNormalizer::default(), Zone::default())
}

fn asked(key: u64) -> PolicyRequest {
    let facts = Facts { user: Some(format!("user{key}@example.org").into()), ..Facts::default() };
    PolicyRequest { facts, events: vec![Event::Recipient("bob@example.net".into())], ..PolicyRequest::default() }
}

/// Returns the CPU time of this process in seconds.
fn cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = [fields[11], fields[12]].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

fn percentile(sorted: &[Duration], share: f64) -> Duration {
    sorted[((sorted.len() as f64 * share) as usize).min(sorted.len() - 1)]
}

/// Returns the number of octets that this process has written to files, sockets and pipes.
fn written() -> f64 {
    let text = std::fs::read_to_string("/proc/self/io").unwrap();
    text.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap().parse().unwrap()
}

/// Resources that this process has used: the time of the measurement, CPU in seconds, octets written.
struct Used(Instant, f64, f64);

impl Used {
    fn now() -> Self {
        Self(Instant::now(), cpu(), written())
    }
}

fn report(what: &str, mut times: Vec<Duration>, before: &Used) {
    let Used(began, cpu_before, written_before) = before;
    // Measure elapsed time and CPU before the times are sorted: sorting is not part of the measurement.
    let (elapsed, cpu) = (began.elapsed().as_secs_f64(), cpu() - cpu_before);
    times.sort_unstable();
    println!(
        "{what}: {:.0} decisions/s, {:.2} µs of CPU and {:.2} kB written each, p50 {:?}, p99 {:?}",
        times.len() as f64 / elapsed,
        cpu * 1e6 / times.len() as f64,
        (written() - written_before) / 1000.0 / times.len() as f64,
        percentile(&times, 0.5),
        percentile(&times, 0.99)
    );
}

async fn hammer(store: &Arc<Store>, task_count: u64, keys: Keys) {
    let stop = Arc::new(AtomicBool::new(false));
    let before = Used::now();
    let tasks: Vec<_> = (0..task_count)
        .map(|task| {
            let (store, stop) = (store.clone(), stop.clone());
            tokio::spawn(async move {
                let (mut random, mut times) = (Random(task + 1), Vec::new());
                for n in 0.. {
                    let key = random.key(keys, task, n);
                    if key >= KEYS || stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let asked = asked(key);
                    let start = Instant::now();
                    store.admit(weir::clock::now(), &asked, &mut SessionCounters::default()).await.unwrap();
                    times.push(start.elapsed());
                }
                times
            })
        })
        .collect();
    if !matches!(keys, Keys::New) {
        tokio::time::sleep(LASTS).await;
        stop.store(true, Ordering::Relaxed);
    }
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.unwrap());
    }
    report(&format!("{task_count} tasks, {KEYS} keys, {keys:?}"), times, &before);
}

/// Reports the cost of generating requests and measuring times. The reported costs of decisions include this cost.
fn report_load() {
    let (mut random, mut times) = (Random(1), Vec::new());
    let before = cpu();
    for n in 0..KEYS {
        let asked = asked(random.key(Keys::Uniform, 0, n));
        let start = Instant::now();
        black_box(asked);
        times.push(start.elapsed());
    }
    println!("the load itself: {:.2} µs of CPU each", (cpu() - before) * 1e6 / times.len() as f64);
}

/// Runs one operation after the other, 100 times a second.
async fn trickle<F: Future>(what: &str, mut one: impl FnMut() -> F) {
    let (before, mut times) = (Used::now(), Vec::new());
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    while before.0.elapsed() < TRICKLES {
        ticks.tick().await;
        let start = Instant::now();
        one().await;
        times.push(start.elapsed());
    }
    report(what, times, &before);
}

async fn trickle_decisions(store: &Arc<Store>) {
    let mut random = Random(1);
    let one = || {
        let asked = asked(random.key(Keys::Zipf, 0, 0));
        async move { store.admit(weir::clock::now(), &asked, &mut SessionCounters::default()).await.unwrap() }
    };
    trickle("100 a second", one).await;
}

/// Measures the lowest possible time of a durable decision on this machine: a thread is woken, writes one page, and
/// wakes the waiting task.
async fn trickle_pages(folder: &Path) {
    let file = std::fs::File::create(folder.join("page")).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel::<tokio::sync::oneshot::Sender<()>>();
    let writer = std::thread::spawn(move || {
        for answer in receiver {
            file.write_all_at(&[1; 4096], 0).unwrap();
            answer.send(()).unwrap();
        }
    });
    let one = || {
        let (answer, written) = tokio::sync::oneshot::channel();
        sender.send(answer).unwrap();
        async { written.await.unwrap() }
    };
    trickle("100 pages a second, by a thread that does nothing else", one).await;
    drop(sender);
    writer.join().unwrap();
}

fn open(path: &Path, policy: Policy) -> Arc<Store> {
    Arc::new(Store::open(&options(path), policy, Arc::new(Metrics::new().unwrap())).unwrap())
}

fn options(path: &Path) -> Options {
    Options {
        path: path.to_owned(),
        durability: Durability::Process,
        on_failure: OnFailure::Allow,
        shared: None,
        refusals: RefusalOptions::default(),
        budget_octets: weir::store::BUDGET_OCTETS,
        outcomes: None,
    }
}

/// Returns options with memory for all budgets.
fn roomy_options(path: &Path) -> Options {
    Options { budget_octets: 1 << 30, ..options(path) }
}

async fn close(store: Arc<Store>) {
    assert_eq!(store.health(), Health::Good);
    Arc::into_inner(store).unwrap().close().await;
}

async fn throughput(folder: &Path) {
    report_load();
    let metrics = Arc::new(Metrics::new().unwrap());
    let store = Arc::new(Store::open(&options(&folder.join("state.db")), policy(), metrics.clone()).unwrap());
    for keys in [Keys::New, Keys::Uniform, Keys::Zipf] {
        hammer(&store, TASKS, keys).await;
    }
    for tasks in [4, 20] {
        hammer(&store, tasks, Keys::Zipf).await;
    }
    // Wait until the journal of the earlier load is written ("folded") into the table of budgets. That work is not part
    // of the load of 100 decisions a second.
    let began = Instant::now();
    while metrics.state.journal_octets.get() > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    println!("what was left in the journal is folded after {:?}", began.elapsed());
    // Wait also for the checkpoint of the write-ahead log.
    let mut before = 0.0;
    // Waking a task writes octets too, so a small number is ignored.
    while written() > before + 1000.0 {
        before = written();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    println!("and all is home after {:?}", began.elapsed());
    trickle_decisions(&store).await;
    trickle_pages(folder).await;
    close(store).await;
}

async fn fitting(folder: &Path) {
    let options = roomy_options(&folder.join("state.db"));
    let store = Arc::new(Store::open(&options, policy(), Arc::new(Metrics::new().unwrap())).unwrap());
    println!("with memory for all budgets:");
    hammer(&store, TASKS, Keys::New).await;
    for tasks in [TASKS, 4, 20] {
        hammer(&store, tasks, Keys::Zipf).await;
    }
    close(store).await;
}

const MANY: u64 = 10_000_000;
const HOT: u64 = MANY / 100;

/// Writes [`MANY`] budgets in the store's format into a file that a store has made.
fn fill(path: &Path) {
    let mut order: Vec<(i64, u32)> = (0..MANY)
        .map(|n| {
            let mut hasher = SipHasher13::new();
            hasher.write(key(n).as_bytes());
            (hasher.finish().cast_signed(), n as u32)
        })
        .collect();
    order.sort_unstable();
    let mut file = rusqlite::Connection::open(path).unwrap();
    let transaction = file.transaction().unwrap();
    let mut insert = transaction.prepare("INSERT INTO budget (hash, key, at, level) VALUES (?1, ?2, ?3, ?4)").unwrap();
    let now = weir::clock::now().micros();
    for (hash, n) in order {
        insert.execute(rusqlite::params![hash, key(n.into()), now, 50_000.0]).unwrap();
    }
    drop(insert);
    transaction.commit().unwrap();
}

fn key(n: u64) -> String {
    format!("l\x1frecipients\x1fewma\x1fuser=user{n}@example.org")
}

async fn large(folder: &Path) {
    let path = folder.join("state.db");
    close(open(&path, policy())).await;
    // Fill the file in a new process, so that the memory for this work is not counted here.
    let me = std::env::current_exe().unwrap();
    assert!(std::process::Command::new(me).arg("fill").arg(&path).status().unwrap().success());
    let began = Instant::now();
    let store = open(&path, policy());
    store.admit(weir::clock::now(), &asked(7), &mut SessionCounters::default()).await.unwrap();
    println!("{MANY} budgets in {} MB: open, and the first decision made, after {:?}", size(&path), began.elapsed());
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let store = store.clone();
            tokio::spawn(async move {
                // Decide on each budget twice, so that Weir also changes budgets and writes ("folds") them into the
                // table.
                for n in (task..2 * HOT).step_by(TASKS as usize) {
                    store
                        .admit(weir::clock::now(), &asked(n % HOT * 100), &mut SessionCounters::default())
                        .await
                        .unwrap();
                }
            })
        })
        .collect();
    let began = Instant::now();
    for task in tasks {
        task.await.unwrap();
    }
    let anonymous = status("RssAnon:");
    let rate = 2.0 * HOT as f64 / began.elapsed().as_secs_f64();
    println!("{HOT} of them used twice, {rate:.0}/s: {anonymous} of anonymous memory");
    close(store).await;
}

/// Returns a field of /proc/self/status.
fn status(name: &str) -> String {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    text.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned()
}

/// The benchmark aborts the store when the journal has at least this many octets. With a million keys, and memory for all
/// of them, the store begins to fold the journal only when the journal is slightly longer. So the journal is almost as
/// long as it can be.
const LONG: i64 = 96 << 20;

async fn crash(folder: &Path) {
    let path = folder.join("state.db");
    let me = std::env::current_exe().unwrap();
    assert!(!std::process::Command::new(me).arg("abort").arg(&path).status().unwrap().success());
    let journal = weir::store::dump::info(&path, None).unwrap().journal;
    let began = Instant::now();
    let store = open(&path, policy());
    println!(
        "a journal of {} MB: open after {:?}, with at most {} of memory",
        journal / 1_000_000,
        began.elapsed(),
        status("VmHWM:")
    );
    close(store).await;
}

/// Aborts this process under load, when the journal is long.
async fn abort(path: &Path) {
    let metrics = Arc::new(Metrics::new().unwrap());
    let store = Arc::new(Store::open(&roomy_options(path), policy(), metrics.clone()).unwrap());
    tokio::spawn(async move {
        while metrics.state.journal_octets.get() < LONG {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        std::process::abort();
    });
    for keys in [Keys::New, Keys::Uniform, Keys::Uniform, Keys::Uniform] {
        hammer(&store, TASKS, keys).await;
    }
}

/// Returns the size of a file in millions of octets.
fn size(path: &Path) -> u64 {
    path.metadata().map_or(0, |metadata| metadata.len() / 1_000_000)
}

const SENDERS: u64 = 100_000;
const DAYS: i64 = 7;

/// Simulates senders for a week: most send a few messages, and a few send a thousand times as many.
async fn week(folder: &Path) {
    let path = folder.join("state.db");
    let mut policy = policy();
    let limit = &mut std::sync::Arc::make_mut(&mut policy.limits)[0];
    limit.quota = Quota::rate(Algorithm::Ewma, parse_rate("100 / 1h", Units::Things).unwrap(), None);
    let store = open(&path, policy);
    let (mut journal, mut log) = (0, 0);
    let (mut decisions, mut random) = (0u64, Random(1));
    let start = weir::clock::now().micros();
    for hour in 0..24 * DAYS {
        let now = weir::time::Timestamp::from_micros(start + hour * 3_600_000_000);
        let senders: Vec<u64> = (0..20_000).map(|_| (SENDERS as f64).powf(random.next()) as u64).collect();
        decisions += senders.len() as u64;
        let tasks: Vec<_> = senders
            .chunks(senders.len() / TASKS as usize)
            .map(|senders| {
                let (store, senders) = (store.clone(), senders.to_vec());
                tokio::spawn(async move {
                    for sender in senders {
                        store.admit(now, &asked(sender), &mut SessionCounters::default()).await.unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let info = weir::store::dump::info(&path, None).unwrap();
        (journal, log) = (info.journal.max(journal), info.log.max(log));
    }
    close(store).await;
    let info = weir::store::dump::info(&path, None).unwrap();
    let budgets: u64 = info.kinds.values().map(|kind| kind.budgets).sum();
    let used = info.octets - info.unused;
    println!(
        "{DAYS} days, {SENDERS} senders, {decisions} decisions: {budgets} live budgets in {} kB used ({} octets each) and {} kB unused; \
         at most {} kB of journal and {} kB of write-ahead log",
        used / 1000,
        used as u64 / budgets.max(1),
        info.unused / 1000,
        journal / 1000,
        log / 1000
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let parts: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    match parts[..] {
        // `cargo test --benches` only checks that the benchmark starts.
        ["--test", ..] => return,
        ["fill", path] => return fill(Path::new(path)),
        ["abort", path] => return runtime.block_on(abort(Path::new(path))),
        _ => {}
    }
    let wanted = |part| parts.is_empty() || parts.contains(&part);
    let folder = || tempfile::tempdir().unwrap();
    if wanted("large") {
        runtime.block_on(large(folder().path()));
    }
    if wanted("throughput") {
        runtime.block_on(throughput(folder().path()));
    }
    if wanted("fitting") {
        runtime.block_on(fitting(folder().path()));
    }
    if wanted("crash") {
        runtime.block_on(crash(folder().path()));
    }
    if wanted("week") {
        runtime.block_on(week(folder().path()));
    }
}
