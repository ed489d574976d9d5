//! How many durable decisions a second: `cargo bench --bench store`. 64 tasks, a million keys; then one task, 100 a second.

#![allow(clippy::unwrap_used, reason = "a benchmark fails so")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir::metrics::Metrics;
use weir::policy::Policy;
use weir::policy::event::{Asked, Event, Facts};
use weir::policy::key::Owner;
use weir::policy::limit::{Algorithm, Charge, Count, Limit};
use weir::policy::verdict::Template;
use weir::store::{Durability, OnFailure, Options, Store};
use weir::time::parse_rate;

/// As in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const TASKS: u64 = 64;
const KEYS: u64 = 1_000_000;
const LASTS: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug)]
enum Keys {
    /// Each once, by one of the tasks: none is in memory.
    New,
    Uniform,
    /// The nth most frequent key comes about 1/n as often.
    Zipf,
}

/// Numbers from 0 to 1 that look random.
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
    let rate = parse_rate("1M / 1d").unwrap();
    let text = Arc::new(Template::standard(Count::Recipients));
    let (algorithm, charge) = (Algorithm::Ewma, Charge::Accepted);
    let rule = algorithm.rule(rate, None);
    let (name, per) = ("l".into(), vec![Owner::User]);
    let limit = Limit { name, count: Count::Recipients, per, rate, algorithm, rule, charge, distinct: None, text };
    Policy { limits: vec![limit] }
}

fn asked(key: u64) -> Asked {
    let facts = Facts { client: None, user: Some(format!("user{key}@example.org").into()) };
    Asked { facts, events: vec![Event::Recipient("bob@example.net".into())] }
}

/// Seconds of CPU that this process has used.
fn cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = [fields[11], fields[12]].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

fn percentile(sorted: &[Duration], share: f64) -> Duration {
    sorted[((sorted.len() as f64 * share) as usize).min(sorted.len() - 1)]
}

fn report(what: &str, mut times: Vec<Duration>, took: Duration, cpu: f64) {
    times.sort_unstable();
    println!(
        "{what}: {:.0} decisions/s, {:.1} µs of CPU each, p50 {:?}, p99 {:?}",
        times.len() as f64 / took.as_secs_f64(),
        cpu * 1e6 / times.len() as f64,
        percentile(&times, 0.5),
        percentile(&times, 0.99)
    );
}

async fn hammer(store: &Arc<Store>, keys: Keys) {
    let stop = Arc::new(AtomicBool::new(false));
    let (began, before) = (Instant::now(), cpu());
    let tasks: Vec<_> = (0..TASKS)
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
                    store.admit(weir::clock::now(), &asked).await.unwrap();
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
    report(&format!("{TASKS} tasks, {KEYS} keys, {keys:?}"), times, began.elapsed(), cpu() - before);
}

async fn trickle(store: &Arc<Store>) {
    let (mut random, mut times) = (Random(1), Vec::new());
    let (began, before) = (Instant::now(), cpu());
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    while began.elapsed() < LASTS {
        ticks.tick().await;
        let asked = asked(random.key(Keys::Zipf, 0, 0));
        let start = Instant::now();
        store.admit(weir::clock::now(), &asked).await.unwrap();
        times.push(start.elapsed());
    }
    report("100 a second", times, began.elapsed(), cpu() - before);
}

fn main() {
    // `cargo test --benches` only asks whether it starts.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let options = Options { path, durability: Durability::Process, on_failure: OnFailure::Allow };
    let store = Arc::new(Store::open(&options, policy(), Arc::new(Metrics::new().unwrap())).unwrap());
    runtime.block_on(async {
        for keys in [Keys::New, Keys::Uniform, Keys::Zipf] {
            hammer(&store, keys).await;
        }
        trickle(&store).await;
        Arc::into_inner(store).unwrap().close().await;
    });
}
