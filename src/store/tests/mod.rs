mod clock;
mod crash;
mod exceptions;
mod faults;
mod forgetting;
mod journal_files;
mod log;
mod logins;
mod memories;
mod new_budgets;
mod notices;
mod parallel;
mod queue;
mod refusals;
mod session_slots;
mod shared;
mod suspicion;
mod versions;

use super::cache::BudgetCache;
use super::commit_queue::Queue;
use super::file::File;
use super::*;
use crate::engine::distinct::{Filter, Generation};
use crate::policy::address::AddressNormalizer;
use crate::policy::limit::{Algorithm, Distinct, Limit, Quota};
use crate::policy::matching::{Field, Zone};
use crate::policy::request::{Event, Facts};
use crate::policy::verdict::Ruling;
use crate::time::{Units, parse_rate};
use std::path::Path;

fn limit(name: &str, per: Field, rate: &str) -> Limit {
    let rate = parse_rate(rate, Units::Things).unwrap();
    Limit::new(name, Count::Recipients, vec![per], Quota::rate(Algorithm::Ewma, rate, None))
}

/// Returns a policy with these limits.
fn of(limits: Vec<Limit>) -> Policy {
    Policy::new(limits, AddressNormalizer::default(), Zone::default())
}

fn policy(rate: &str) -> Policy {
    of(vec![limit("l", Field::User, rate)])
}

/// Returns a policy with one limit, which counts the new recipients of each user.
fn new_recipients(rate: &str, remember: Option<Duration>) -> Policy {
    let mut limit = limit("l", Field::User, rate);
    limit.distinct = Some(Distinct { remember, ..Distinct::new(Field::Recipient) });
    of(vec![limit])
}

/// Returns a filter for the limit [`new_recipients`] of "400K / 1d". It takes 800 kB, because it is dense, and knows no
/// recipient.
fn large_filter() -> Arc<Filter> {
    const OCTETS: usize = 800_000;
    let bits = [&(OCTETS as u32).to_le_bytes(), &u32::MAX.to_le_bytes(), &[1; OCTETS][..]].concat();
    let newer = Generation::read(&mut &bits[..]).unwrap();
    let filter = Filter::from_parts(at(0), newer, Generation::default()).unwrap();
    assert_eq!(filter.octets(), OCTETS);
    Arc::new(filter)
}

/// Gives a user's budget this filter, and then charges one recipient to the budget. So the whole filter is written to
/// the file.
async fn admit_with(store: &Store, seen: &Arc<Filter>, user: &str) {
    let policy = store.core.policy();
    let asked = asked(user, 1);
    let plan = Plan::new(&policy, &asked, at(0));
    let budget = Budget { seen: Some(seen.clone()), ..Budget::new(crate::engine::State { at: at(0), level: 0.0 }) };
    for key in plan.keys() {
        store.core.cache.replay(
            HashedKey::of(key.owned()),
            budget.clone(),
            crate::store::commit_queue::NEVER_WRITTEN,
            |stored, _| stored,
        );
    }
    store.admit(at(0), &asked, &mut SessionCounters::default()).await.unwrap();
}

/// Returns the usual options of these tests.
fn options(path: &Path) -> Options {
    Options {
        path: path.to_owned(),
        durability: Durability::Process,
        on_failure: OnFailure::Allow,
        shared: None,
        refusals: RefusalOptions::default(),
        budget_octets: BUDGET_OCTETS,
        outcomes: None,
    }
}

fn open(path: &Path) -> Result<Store, OpenError> {
    Store::open(&options(path), policy("100 / 1d"), Arc::new(Metrics::new().unwrap()))
}

fn asked(user: &str, recipients: usize) -> PolicyRequest {
    let facts = Facts { client: "192.0.2.7".parse().ok(), user: Some(user.into()), ..Facts::default() };
    let events = (0..recipients).map(|n| Event::Recipient(format!("{n}@example.net").into())).collect();
    PolicyRequest { facts, events, ..PolicyRequest::default() }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros((1_700_000_000 + seconds) * 1_000_000)
}

fn passed(admitted: &Decided) -> usize {
    admitted.verdicts.iter().filter(|verdict| matches!(verdict.ruling, Ruling::Pass)).count()
}

#[tokio::test]
async fn charges_outlive_the_store_that_made_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    assert_eq!(passed(&store.admit(at(0), &asked("alice", 60), &mut SessionCounters::default()).await.unwrap()), 60);
    store.close().await;
    let store = open(&path).unwrap();
    // 60 recipients were charged a second ago. A little of this level has decayed, so that the hundredth recipient is
    // still below the limit, and 40 more recipients fit.
    assert_eq!(passed(&store.admit(at(1), &asked("alice", 60), &mut SessionCounters::default()).await.unwrap()), 40);
    assert_eq!(passed(&store.admit(at(1), &asked("bob", 60), &mut SessionCounters::default()).await.unwrap()), 60);
}

/// SQL for the table that contained the journal before version 9.
const JOURNAL_BEFORE_9: &str = "CREATE TABLE journal (seq INTEGER PRIMARY KEY, entry BLOB NOT NULL) STRICT";

/// Copies the state file, its write-ahead log and its journal, as a crash of the process at this moment would leave
/// them.
fn copy(from: &Path, to: &Path) {
    for name in files(from).into_iter().filter(|name| !name.ends_with("-lock") && !name.ends_with("-shm")) {
        std::fs::copy(from.join(&name), to.join(name)).unwrap();
    }
}

/// Returns the names of the files in a folder.
fn files(folder: &Path) -> Vec<String> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[tokio::test]
async fn an_unfolded_journal_is_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    store.admit(at(0), &asked("alice", 60), &mut SessionCounters::default()).await.unwrap();
    // A copy of the files is what a crash of the process would leave.
    let crashed = tempfile::tempdir().unwrap();
    copy(folder.path(), crashed.path());
    let store = open(&crashed.path().join("state.db")).unwrap();
    assert_eq!(passed(&store.admit(at(1), &asked("alice", 60), &mut SessionCounters::default()).await.unwrap()), 40);
}

#[tokio::test]
async fn a_second_store_on_one_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let _first = open(&path).unwrap();
    let error = open(&path).err().unwrap().to_string();
    assert!(error.contains("another Weir is using it"), "{error}");
}

#[tokio::test]
async fn memory_is_bounded_in_octets_and_dropped_budgets_are_not_lost() {
    let folder = tempfile::tempdir().unwrap();
    let policy = new_recipients("400K / 1d", None);
    let options = options(&folder.path().join("state.db"));
    let store = Store::open(&options, policy, Arc::new(Metrics::new().unwrap())).unwrap();
    // These filters of 800 kB take three times as much as the memory for budgets.
    let users: Vec<String> = (0..3 * BUDGET_OCTETS / 800_000).map(|n| format!("user{n}")).collect();
    let seen = large_filter();
    for user in &users {
        admit_with(&store, &seen, user).await;
    }
    // Eviction goes through the cache shard by shard, and drops only budgets that are in the table and were not used
    // recently.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while store.core.cache.len() * 800_000 > BUDGET_OCTETS {
        assert!(std::time::Instant::now() < deadline, "{} budgets", store.core.cache.len());
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let mut request = asked("user0", 2);
    for user in &users {
        request.facts.user = Some(user.as_str().into());
        // The filter knows the first recipient, which was charged before; the second one is new.
        store.admit(at(1), &request, &mut SessionCounters::default()).await.unwrap();
        let level = level(&store, &request).await;
        assert!((level - 2.0).abs() < 0.01, "{user}: {level}");
    }
}

#[test]
fn changed_budgets_are_dropped_only_while_the_file_cannot_be_written() {
    // Only if budgets take more than twice the memory for them are budgets lost.
    const BUDGETS: usize = 3 * BUDGET_OCTETS / 800_000;
    let seen = large_filter();
    let cache = BudgetCache::new(BUDGET_OCTETS);
    for n in 0..BUDGETS {
        let hashed_key = HashedKey::of(Key::from_stored(&format!("l\u{1f}recipients\u{1f}ewma\u{1f}user={n}")));
        let state = crate::engine::State { at: at(0), level: 1.0 };
        cache.replay(
            hashed_key,
            policy::budgets::Budget { seen: Some(seen.clone()), ..policy::budgets::Budget::new(state) },
            0,
            |stored, _| stored,
        );
    }
    assert_eq!(cache.make_room(false), 0);
    assert_eq!(cache.len(), BUDGETS);
    let lost = cache.make_room(true);
    assert!(lost > 0 && cache.len() == BUDGETS - lost, "{lost}");
}

/// Returns the level of the only budget of a request.
async fn level(store: &Store, asked: &PolicyRequest) -> f64 {
    let policy = store.core.policy();
    let plan = Plan::new(&policy, asked, at(0));
    let look = |_, loaded: &mut Loaded| loaded.states().next().flatten().map_or(0.0, |state| state.level);
    store.transact(at(0), plan.keys(), look).await.unwrap()
}

#[tokio::test]
async fn other_users_cannot_read_the_state() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("state.db")).unwrap();
    store.admit(at(0), &asked("alice", 1), &mut SessionCounters::default()).await.unwrap();
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{:?}", entry.file_name());
    }
}

#[tokio::test]
async fn seen_values_outlive_the_store_that_saw_them() {
    let folder = tempfile::tempdir().unwrap();
    let open = |folder: &Path| {
        let path = folder.join("state.db");
        let policy = new_recipients("10.5 / 1d", None);
        let options = Options {
            path,
            durability: Durability::Process,
            on_failure: OnFailure::Allow,
            shared: None,
            refusals: RefusalOptions::default(),
            budget_octets: BUDGET_OCTETS,
            outcomes: None,
        };
        Store::open(&options, policy, Arc::new(Metrics::new().unwrap())).unwrap()
    };
    let store = open(folder.path());
    assert_eq!(passed(&store.admit(at(0), &asked("alice", 8), &mut SessionCounters::default()).await.unwrap()), 8);
    store.close().await;
    let store = open(folder.path());
    // Eight recipients are known, and two new recipients fit.
    assert_eq!(passed(&store.admit(at(0), &asked("alice", 20), &mut SessionCounters::default()).await.unwrap()), 10);
    assert_eq!(passed(&store.admit(at(0), &asked("carol", 8), &mut SessionCounters::default()).await.unwrap()), 8);
    // Carol's filter is in the journal: opening a copy of the files has to replay it.
    let crashed = tempfile::tempdir().unwrap();
    copy(folder.path(), crashed.path());
    drop(store);
    let store = open(crashed.path());
    assert_eq!(passed(&store.admit(at(0), &asked("carol", 20), &mut SessionCounters::default()).await.unwrap()), 10);
}

#[tokio::test]
async fn look_finds_budgets_in_memory_and_file_and_changes_neither() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let limits = policy("100 / 1d");
    let keys =
        |user| -> Vec<Key> { Plan::new(&limits, &asked(user, 1), at(0)).keys().map(|key| key.owned()).collect() };
    let level = |found: &[Option<Budget>]| found[0].as_ref().map(|budget| budget.state.level);
    let store = open(&path).unwrap();
    store.admit(at(0), &asked("alice", 3), &mut SessionCounters::default()).await.unwrap();
    assert_eq!(level(&store.look(&keys("alice")).await.unwrap()), Some(3.0));
    store.close().await;
    let store = open(&path).unwrap();
    // The new store has no budgets in memory; alice's budget is in the table.
    assert_eq!(store.core.cache.len(), 0);
    let found = store.look(&[keys("bob"), keys("alice")].concat()).await.unwrap();
    assert_eq!((level(&found), level(&found[1..])), (None, Some(3.0)));
    assert_eq!((store.core.cache.len(), store.core.cache.has_changed()), (0, false));
    assert_eq!(store.core.cache.latest(), None, "time has not passed by that");
    store.close().await;
}
