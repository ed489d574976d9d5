//! Benchmark of growth: the CPU of a message with ten to 15,000 open sessions, with a thousand to ten million
//! budgets, and with two to fifty limits.

use super::client::{Client, Shape};
use super::harness::{Process, Site, cpu_time, median};
use super::upstream::Upstream;
use super::{LOOPBACK, ROUNDS, each, greeted, roomy_site};
use rusqlite::{Connection, params};
use siphasher::sip::SipHasher13;
use std::fmt::Write as _;
use std::hash::Hasher as _;
use std::path::Path;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Numbers of open sessions.
const SESSIONS: [u32; 4] = [10, 100, 1_000, 15_000];
/// Numbers of budgets in the state file.
const BUDGETS: [u32; 3] = [1_000, 100_000, 10_000_000];
/// Numbers of limits.
const LIMITS: [u32; 3] = [2, 10, 50];

/// Sessions that send at the same time.
const SENDING: usize = 10;
/// Messages of one round.
const MESSAGES: u64 = 5_000;

/// Goal of the ratio, for sessions and for budgets.
const GOAL: &str = " (goal 0.9 to 1.1)";

/// A Weir that is measured, with its open sessions.
struct Target {
    what: String,
    site: Site,
    weir: Process,
    clients: Vec<Client<TcpStream>>,
    /// Number of senders. Each sender has a budget.
    senders: u64,
    /// CPU of a message in each round, in microseconds.
    costs: Vec<f64>,
}

impl Target {
    async fn start(what: String, site: Site, sessions: u32, senders: u32) -> Self {
        let weir = site.start();
        let address = weir.address("submission");
        let clients = each(sessions, |n| greeted(n, address)).await;
        Self { what, site, weir, clients, senders: senders.into(), costs: Vec::new() }
    }

    /// Sends the messages of one round, over all sessions in turn.
    async fn take_round(&mut self, round: u64) {
        let before = cpu_time(self.weir.id());
        let senders = self.senders;
        let share = self.clients.len() / SENDING;
        let mut tasks = JoinSet::new();
        for task in 0..SENDING {
            let mut clients = self.clients.split_off(self.clients.len() - share);
            tasks.spawn(async move {
                for n in (task as u64..MESSAGES).step_by(SENDING) {
                    let at = (round * MESSAGES + n) as usize / SENDING % clients.len();
                    let sender = format!("user{}@example.org", sender(round * MESSAGES + n, senders));
                    clients[at].deliver_from(&sender, n, Shape::Stepwise).await;
                }
                clients
            });
        }
        self.clients = tasks.join_all().await.into_iter().flatten().collect();
        self.costs.push((cpu_time(self.weir.id()) - before).as_secs_f64() * 1e6 / MESSAGES as f64);
    }
}

/// Returns the number of the sender of a message, by Zipf's law: the nth most frequent sender occurs about 1/n times as
/// often as the most frequent sender.
fn sender(message: u64, senders: u64) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write_u64(message);
    (senders as f64).powf((hasher.finish() >> 11) as f64 / (1_u64 << 53) as f64) as u64 - 1
}

/// Returns `count` limits of each sender, which refuse nothing.
fn limits(count: u32) -> String {
    (0..count).fold(String::new(), |mut text, n| {
        write!(text, "[[limit]]\nname = \"l{n}\"\ncount = \"recipients\"\nper = [\"sender\"]\nrate = \"10M / 1d\"\n")
            .unwrap();
        text
    })
}

pub async fn growth(upstream: &Upstream) {
    let mut targets = Vec::new();
    for sessions in SESSIONS {
        let site = roomy_site(upstream, LOOPBACK, &limits(1));
        targets.push(Target::start(format!("{sessions} open sessions"), site, sessions, 1).await);
    }
    measure(targets, GOAL).await;
    let mut targets = Vec::new();
    for budgets in BUDGETS {
        let site = roomy_site(upstream, LOOPBACK, &limits(1));
        fill(&site, budgets).await;
        targets.push(Target::start(format!("{budgets} budgets"), site, SENDING as u32, budgets).await);
    }
    for (target, budgets) in measure(targets, GOAL).await.into_iter().zip(BUDGETS) {
        assert_eq!(target.weir.terminate(), Some(0));
        let found = count(&target.site.path("state.db"));
        assert_eq!(found, i64::from(budgets), "budgets of senders at the end");
    }
    let mut targets = Vec::new();
    for count in LIMITS {
        let site = roomy_site(upstream, LOOPBACK, &limits(count - 1));
        targets.push(Target::start(format!("{count} limits"), site, SENDING as u32, 1_000).await);
    }
    let targets = measure(targets, "").await;
    let (few, many) = (&targets[0].costs, &targets[LIMITS.len() - 1].costs);
    let limits = f64::from(LIMITS[LIMITS.len() - 1] - LIMITS[0]);
    // Costs of the same round compare, even if the speed of the machine changes between rounds.
    let further = median(many.iter().zip(few).map(|(many, few)| (many - few) / limits));
    println!("growth, each further limit: {further:.2} µs of CPU a recipient (goal 3)");
}

/// Measures these Weirs in turns, and prints the CPU of a message, and its ratio to that of the first Weir, with its goal.
async fn measure(mut targets: Vec<Target>, goal: &str) -> Vec<Target> {
    for round in 0..=ROUNDS {
        for target in &mut targets {
            target.take_round(round as u64).await;
        }
    }
    // The first round opens connections to the upstream, and reads the budgets of frequent senders into memory.
    for target in &mut targets {
        target.costs.remove(0);
    }
    let base = targets[0].costs.clone();
    for Target { what, costs, .. } in &targets {
        let ratio = median(costs.iter().zip(&base).map(|(cost, base)| cost / base));
        let cost = median(costs.iter().copied());
        println!(
            "growth, {what}: {cost:.0} µs of CPU a message, ratio {ratio:.2}{goal}; medians of {ROUNDS} rounds of {MESSAGES} messages"
        );
    }
    targets
}

/// Writes budgets of so many senders into the state file of a site.
async fn fill(site: &Site, budgets: u32) {
    let weir = site.start();
    let mut client = greeted(0, weir.address("submission")).await;
    client.deliver_from("user0@example.org", 0, Shape::Stepwise).await;
    assert_eq!(weir.terminate(), Some(0));
    let mut file = Connection::open(site.path("state.db")).unwrap();
    let key: String = file.query_row("SELECT key FROM budget WHERE key LIKE '%user0@%'", [], |row| row.get(0)).unwrap();
    let mut keys: Vec<(i64, u32)> = (1..budgets).map(|n| (hash(&named(&key, n)), n)).collect();
    keys.sort_unstable();
    let transaction = file.transaction().unwrap();
    let mut insert = transaction
        .prepare("INSERT INTO budget (hash, key, at, level) SELECT ?1, ?2, at, level FROM budget WHERE hash = ?3")
        .unwrap();
    for (hash_of_key, n) in keys {
        insert.execute(params![hash_of_key, named(&key, n), hash(&key)]).unwrap();
    }
    drop(insert);
    transaction.commit().unwrap();
}

fn named(key: &str, n: u32) -> String {
    key.replace("user0@", &format!("user{n}@"))
}

fn hash(key: &str) -> i64 {
    let mut hasher = SipHasher13::new();
    hasher.write(key.as_bytes());
    hasher.finish().cast_signed()
}

fn count(path: &Path) -> i64 {
    let file = Connection::open(path).unwrap();
    file.query_row("SELECT count(*) FROM budget WHERE key LIKE '%user%@example.org'", [], |row| row.get(0)).unwrap()
}
