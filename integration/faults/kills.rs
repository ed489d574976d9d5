//! Kill test: `kill -9` under load, repeatedly. After each kill, the state file must contain each charge for which a
//! client has read a reply.

use super::random::Random;
use crate::harness::{Client, Process, Site, Upstream, wait_for};
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Number of concurrent clients, and number of their addresses.
const TASKS: u64 = 16;
const ADDRESSES: u64 = 60;

/// Number of kills with one state file. After them, the whole file is checked, and a new file begins. With more kills,
/// a filter of distinct recipients would become so full that it would mistake a new recipient for a known recipient.
const KILLS_OF_A_FILE: u64 = 50;

/// Maximum time of load before a kill.
const MAX_LOAD_TIME: Duration = Duration::from_millis(250);

/// Options of a run.
#[derive(Clone, Copy)]
pub struct Kills {
    pub seed: u64,
    pub count: u64,
}

/// Number of acknowledged charges of each client: recipients, distinct recipients, and recipients of accepted messages.
type Acknowledged = HashMap<Ipv4Addr, [u64; 3]>;

/// Limits that count the three numbers of [`Acknowledged`], in this order. During a test, their levels do not decay
/// measurably.
const LIMITS: [&str; 3] = ["all", "new", "sent"];

const CONFIG: &str = "\
    limit = [{ name = \"all\", count = \"recipients\", per = [\"client\"], rate = \"1G / 3650d\", charge = \"accepted\" },\n\
    { name = \"new\", count = \"recipients\", per = [\"client\"], rate = \"5K / 3650d\", distinct = \"recipient\" },\n\
    { name = \"sent\", count = \"recipients\", per = [\"client\"], charge = \"sent\", \
    algorithm = \"token-bucket\", rate = \"1 / 3650d\", burst = 1000000 }]\n";

/// Levels of the budgets, by limit and client.
type Levels = HashMap<(String, Ipv4Addr), f64>;

/// Kills Weir this many times and prints the counts. Returns true if no acknowledged charge was lost, and there were
/// more acknowledged charges than kills.
pub fn kill(plan: Kills) -> bool {
    let upstream = Upstream::start();
    let began = Instant::now();
    let (mut kills, mut acknowledged, mut lost) = (0, 0, 0);
    while kills < plan.count && lost == 0 {
        let until = plan.count.min(kills + KILLS_OF_A_FILE);
        let site = Site::builder().open_listener().upstream(upstream.address(), "").more(CONFIG).build();
        let (mut weir, mut before) = (site.start(), Levels::new());
        while kills < until && lost == 0 {
            let told = load(plan.seed, kills, weir);
            upstream.forget();
            weir = site.start();
            assert_eq!(weir.get("/readyz").0, 200, "after kill {kills}");
            let after = site.levels();
            kills += 1;
            lost += compare(&before, &told, &after, kills);
            acknowledged += told.values().flatten().sum::<u64>();
            before = after;
        }
        check_file(&site);
        eprintln!("{kills} kills, {acknowledged} charges acknowledged");
    }
    println!("seed {}, {:.0} s", plan.seed, began.elapsed().as_secs_f64());
    println!("kills {kills}, acknowledged {acknowledged}, lost {lost}");
    lost == 0 && acknowledged > kills
}

/// Runs clients until Weir is killed at a random moment; returns the acknowledged charges.
fn load(seed: u64, round: u64, weir: Process) -> Acknowledged {
    let address = weir.address("s");
    let acknowledged = Mutex::new(Acknowledged::new());
    std::thread::scope(|scope| {
        for task in 0..TASKS {
            let acknowledged = &acknowledged;
            scope.spawn(move || {
                let mut random = Random::new(seed, &[round, task]);
                let mut mark = (round * TASKS + task) << 24;
                while session(address, &mut random, &mut mark, acknowledged).is_ok() {}
            });
        }
        wait_for("acknowledgement", || (!acknowledged.lock().unwrap().is_empty()).then_some(()));
        let longest = MAX_LOAD_TIME.as_millis() as u64;
        // The kill must happen at a random moment.
        std::thread::sleep(Duration::from_millis(Random::new(seed, &[round]).below(longest)));
        weir.kill();
    });
    acknowledged.into_inner().unwrap()
}

/// Runs one session with recipients that are new to its client. In half of the cases, the session also sends a message.
/// Returns an error when Weir is killed.
fn session(
    address: SocketAddr,
    random: &mut Random,
    mark: &mut u64,
    acknowledged: &Mutex<Acknowledged>,
) -> std::io::Result<()> {
    let number = random.below(ADDRESSES);
    let from = Ipv4Addr::new(127, 1, 0, 1 + number as u8);
    let mut client = Client::try_connect_from(from, address)?;
    client.try_reply()?;
    client.try_send(b"EHLO client.example\r\nMAIL FROM:<a@example.org>\r\n")?;
    client.try_reply()?;
    client.try_reply()?;
    let count = 1 + random.below(8);
    *mark += 1;
    let lines: Vec<String> = (0..count).map(|n| format!("RCPT TO:<{mark}.{n}@example.net>\r\n")).collect();
    client.try_send(lines.concat().as_bytes())?;
    let mut accepted = 0;
    for _ in 0..count {
        if client.try_reply()?.starts_with("250") {
            accepted += 1;
            add(acknowledged, from, [1, 1, 0]);
        }
    }
    if accepted > 0 && random.per_mille(500) {
        client.try_send(b"DATA\r\n")?;
        client.try_reply()?;
        client.try_send(b"Subject: x\r\n\r\nx\r\n.\r\n")?;
        if client.try_reply()?.starts_with("250") {
            add(acknowledged, from, [0, 0, accepted]);
        }
    }
    Ok(())
}

fn add(acknowledged: &Mutex<Acknowledged>, client: Ipv4Addr, more: [u64; 3]) {
    let mut acknowledged = acknowledged.lock().unwrap();
    let counts = acknowledged.entry(client).or_default();
    for (count, more) in counts.iter_mut().zip(more) {
        *count += more;
    }
}

/// Counts the charges that were acknowledged since `before` and are missing in `after`.
fn compare(before: &Levels, acknowledged: &Acknowledged, after: &Levels, kills: u64) -> u64 {
    let mut lost = 0;
    for (client, counts) in acknowledged {
        for (limit, count) in LIMITS.into_iter().zip(counts) {
            let key = (limit.to_owned(), *client);
            let [before, after] = [before, after].map(|levels| levels.get(&key).copied().unwrap_or(0.0));
            let missing = before + *count as f64 - after;
            // In the few minutes of a test, a level decays by much less than 0.1.
            if missing > 0.1 {
                println!("--- kill {kills}: {limit} of {client} held {before}, then {after}; {count} acknowledged");
                lost += missing.ceil() as u64;
            }
        }
    }
    lost
}

/// Runs SQLite's integrity check on the file.
fn check_file(site: &Site) {
    let file = rusqlite::Connection::open(site.path("state.db")).unwrap();
    let verdict: String = file.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(verdict, "ok");
}
