//! Benchmark of limits: `cargo bench --bench policy`. The first goal is 10 µs for a recipient with 50 limits that
//! apply. Each of these limits has match, except and overrides of 10,000 networks. The second goal is 50 ns for each
//! limit that does not apply.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a benchmark fails so")]

use criterion::Criterion;
use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use rustix::time::{ClockId, clock_gettime};
use std::fmt::Write as _;
use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::Duration;
use weir::policy::budgets::{Budget, Loaded, SessionCounters};
use weir::policy::request::{Event, Facts, PolicyRequest};
use weir::policy::{Plan, Policy, decide};
use weir::time::Timestamp;

// Use Weir's allocator: allocations are a large part of the cost.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const HEAD: &str = r#"
timezone = "Europe/Vienna"
listener.s = { address = "127.0.0.1:0", tls = "none", auth = "none" }
upstream = [{ address = "127.0.0.1:2525", tls = "none" }]
"#;

/// Parses a configuration with these limits. Its list and its table of overrides have 10,000 networks each; the
/// client's network is in the table only.
fn policy(limits: &str) -> Policy {
    let folder = tempfile::tempdir().unwrap();
    let network = |n: u32| format!("{}/24", Ipv4Addr::from((20 << 24) + (n << 8)));
    let overrides = (0..10_000).map(|n| format!("{},{} / 1d\n", network(n), 1_000_000 + n));
    std::fs::write(folder.path().join("overrides.csv"), "client,rate\n".to_owned() + &overrides.collect::<String>())
        .unwrap();
    let bulk: String = (10_000..20_000).map(|n| network(n) + "\n").collect();
    std::fs::write(folder.path().join("bulk.txt"), bulk).unwrap();
    let text = format!("{HEAD}list.bulk = {{ file = \"bulk.txt\" }}\n{limits}");
    let config = weir::config::parse(&folder.path().join("weir.toml"), text);
    config.unwrap_or_else(|_| panic!("the configuration is bad")).policy
}

fn asked() -> PolicyRequest {
    let facts = Facts {
        listener: Some("s".into()),
        client: Some(Ipv4Addr::new(20, 0, 77, 7).into()),
        tls: Some(true),
        helo: Some("pc.example.org".into()),
        user: Some("alice@example.org".into()),
        authenticated: true,
        sender: Some("alice@example.org".into()),
        ..Facts::default()
    };
    PolicyRequest { facts, events: vec![Event::Recipient("bob@example.net".into())], ..PolicyRequest::default() }
}

/// Criterion measurement of the thread's CPU time, because other work on the machine would change the elapsed time.
struct CpuTime;

impl Measurement for CpuTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap())
    }

    fn end(&self, began: Duration) -> Duration {
        self.start() - began
    }

    fn add(&self, one: &Duration, other: &Duration) -> Duration {
        *one + *other
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        WallTime.to_f64(value)
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

/// Measures decisions on one recipient after the other, with all budgets in memory.
fn recipients(criterion: &mut Criterion<CpuTime>, name: &str, policy: &Policy, expected: usize) {
    measure(criterion, name, policy, &asked(), expected);
}

fn measure(criterion: &mut Criterion<CpuTime>, name: &str, policy: &Policy, asked: &PolicyRequest, expected: usize) {
    let mut now = Timestamp::from_micros(1_700_000_000_000_000);
    let holding = Plan::new(policy, asked, now).keys().len();
    assert_eq!(holding, expected, "{name}: limits that hold");
    // The store's cost of finding the budgets is measured in the benchmark `store`.
    let mut budgets: Vec<Option<Budget>> = vec![None; holding];
    criterion.bench_function(name, |bencher| {
        bencher.iter(|| {
            now = now.after(Duration::from_millis(100));
            let question = Plan::new(policy, black_box(asked), now);
            let mut loaded: Loaded = budgets.drain(..).collect();
            let verdicts = decide(policy, now, asked, &question, &mut loaded, &mut SessionCounters::default());
            budgets.extend(loaded.into_slots().map(|slot| slot.budget));
            verdicts
        });
    });
}

fn main() {
    let mut criterion = Criterion::default().with_measurement(CpuTime).configure_from_args();
    let pers = ["\"user\"", "\"client\"", "\"user\", \"client\"", "\"sender-domain\"", "\"recipient-domain\""];
    let mut holding = String::new();
    for n in 0..50 {
        let per = pers[n % pers.len()];
        write!(
            holding,
            "[[limit]]\nname = \"limit-{n}\"\ncount = \"recipients\"\nper = [{per}]\nrate = \"1M / 1d\"\n\
             match = {{ listener = \"s\", sender = \"*@example.org\", time = \"Mon-Sun\" }}\n\
             except = [{{ recipient = [\"postmaster\", \"abuse\"] }}, {{ client = \"list:bulk\" }}]\n\
             overrides = \"overrides.csv\"\n"
        )
        .unwrap();
    }
    recipients(&mut criterion, "policy/50 limits that hold, per recipient", &policy(&holding), 50);
    // The numbers of each limit, as the decision log and the event stream want them.
    let evaluated = PolicyRequest { wants_evaluations: true, ..asked() };
    measure(&mut criterion, "policy/50 limits that hold, with the numbers of each", &policy(&holding), &evaluated, 50);
    let mut others = String::new();
    for n in 0..200 {
        let matched = match n % 4 {
            0 => "user = \"*@students.example.org\"",
            1 => "client = \"list:bulk\"",
            2 => "recipient-domain = [\"example.com\", \"*.example.com\"]",
            _ => "group = \"staff\"",
        };
        write!(
            others,
            "[[limit]]\nname = \"other-{n}\"\ncount = \"recipients\"\nper = [\"user\"]\nrate = \"1M / 1d\"\nmatch = {{ {matched} }}\n"
        )
        .unwrap();
    }
    recipients(&mut criterion, "policy/200 limits that do not hold, per recipient", &policy(&others), 0);
    criterion.final_summary();
}
