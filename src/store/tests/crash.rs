//! Test that kills the process at random moments. After each kill, every acknowledged charge must be in the file.

use super::*;
use crate::policy::{KnownTo, MemoryRules};
use std::collections::HashMap;
use std::io::Write as _;
use std::time::Duration;

const ROUNDS: u64 = 50;
const TASKS: u64 = 32;
const USERS: u64 = 2_000;

/// Environment variable of the child process: the folder that contains its state file and a file of acknowledged
/// charges. The child appends each acknowledged charge to that file by one write, which outlives the process.
const CHILD: &str = "WEIR_TEST_CRASHING_IN";

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Limits whose levels do not decay while the test runs.
fn limits() -> Policy {
    let mut new = limit("new", Field::User, "500 / 3650d");
    new.distinct = Some(Distinct::new(Field::Recipient));
    // Each recipient is unknown to the memory when it is charged, and is delivered after the charge was acknowledged.
    let mut unknown = limit("unknown", Field::User, "500 / 3650d");
    let known_to = Some(MemoryRules::default().memory(KnownTo::Each(Field::User)));
    unknown.distinct = Some(Distinct { known_to, ..Distinct::new(Field::Recipient) });
    of(vec![limit("l", Field::User, "1G / 3650d"), new, unknown])
}

fn open(folder: &Path) -> Store {
    let path = folder.join("state.db");
    let options = Options {
        path,
        durability: Durability::Process,
        on_failure: OnFailure::Allow,
        shared: None,
        refusals: RefusalOptions::default(),
        budget_octets: BUDGET_OCTETS,
        outcomes: None,
    };
    Store::open(&options, limits(), Arc::new(Metrics::new().unwrap())).unwrap()
}

/// Charges random users until the process is killed.
async fn hammer(folder: &Path, seed: u64) {
    let store = Arc::new(open(folder));
    let acknowledged = std::fs::OpenOptions::new().append(true).create(true).open(folder.join("acknowledged"));
    let acknowledged = Arc::new(acknowledged.unwrap());
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (store, acknowledged) = (store.clone(), acknowledged.clone());
            tokio::spawn(async move {
                let mut random = Random(seed * TASKS + task);
                for n in 0u64.. {
                    let user = random.below(USERS);
                    let mut asked = asked(&format!("user{user}"), 1);
                    // A recipient that no other message has, so that the limit on new recipients counts it.
                    asked.events = vec![Event::Recipient(format!("{seed}.{task}.{n}@example.net").into())];
                    store.admit(at(n as i64 / 1000), &asked, &mut SessionCounters::default()).await.unwrap();
                    (&*acknowledged).write_all(&(user as u32).to_le_bytes()).unwrap();
                    asked.events = asked.events.into_iter().filter_map(delivered).collect();
                    store.admit(at(n as i64 / 1000), &asked, &mut SessionCounters::default()).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

fn delivered(event: Event) -> Option<Event> {
    if let Event::Recipient(recipient) = event { Some(Event::Delivered(recipient)) } else { None }
}

/// Returns how often each user's charge was acknowledged.
fn acknowledged(folder: &Path) -> HashMap<u64, u64> {
    let bytes = std::fs::read(folder.join("acknowledged")).unwrap_or_default();
    let mut counts = HashMap::new();
    for user in bytes.as_chunks().0 {
        *counts.entry(u64::from(u32::from_le_bytes(*user))).or_default() += 1;
    }
    counts
}

/// Checks the level of each user's budgets, in the table or the journal, against the acknowledged charges. Returns the
/// number of these charges.
fn check(folder: &Path, round: u64) -> u64 {
    let (path, counts) = (folder.join("state.db"), acknowledged(folder));
    let mut dump = Vec::new();
    dump::dump(&path, None, &mut dump).unwrap();
    let mut levels = HashMap::new();
    for line in str::from_utf8(&dump).unwrap().lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let key = (line["limit"].as_str().unwrap().to_owned(), line["owner"]["user"].as_str().unwrap().to_owned());
        levels.insert(key, line["level"].as_f64().unwrap());
    }
    let mut taken_for_known = 0.0;
    for (user, count) in &counts {
        let missing = |limit: &str| {
            let level = levels.get(&(limit.to_owned(), format!("user{user}"))).copied().unwrap_or(0.0);
            (*count as f64 - level).round()
        };
        assert!(missing("l") <= 0.0, "kill {round}: of user{user} {} of {count} are missing", missing("l"));
        taken_for_known += missing("new").max(0.0) + missing("unknown").max(0.0);
    }
    // The Bloom filters report a few of a million new values as known.
    assert!(taken_for_known <= 3.0, "kill {round}: {taken_for_known} new recipients are missing");
    let file = rusqlite::Connection::open(&path).unwrap();
    let verdict: String = file.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(verdict, "ok", "kill {round}");
    counts.values().sum()
}

#[test]
fn acknowledged_charges_survive_fifty_kills() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    if let Some(folder) = std::env::var_os(CHILD) {
        let (folder, seed) = (Path::new(&folder), std::fs::read_to_string(Path::new(&folder).join("seed")).unwrap());
        return runtime().block_on(hammer(folder, seed.parse().unwrap()));
    }
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random(20_261_121);
    let mut total = 0;
    for round in 0..ROUNDS {
        std::fs::write(folder.path().join("seed"), round.to_string()).unwrap();
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "store::tests::crash::acknowledged_charges_survive_fifty_kills"]);
        let mut child = command.env(CHILD, folder.path()).stdout(std::process::Stdio::null()).spawn().unwrap();
        // Kill the process at a random moment after another charge was acknowledged.
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while acknowledged(folder.path()).values().sum::<u64>() == total {
            assert!(std::time::Instant::now() < deadline, "nothing is acknowledged");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(random.below(200)));
        child.kill().unwrap();
        child.wait().unwrap();
        total = check(folder.path(), round);
    }
    println!("{ROUNDS} kills of {TASKS} tasks: {total} charges acknowledged, none lost");
}
