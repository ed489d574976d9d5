use super::*;
use crate::policy::event::{Event, Facts};
use crate::policy::key::Owner;
use crate::policy::limit::{Algorithm, Charge, Count, Distinct, Limit, What};
use crate::policy::verdict::Template;
use crate::time::parse_rate;
use std::path::Path;

fn policy(rate: &str) -> Policy {
    let rate = parse_rate(rate).unwrap();
    let text = Arc::new(Template::standard(Count::Recipients));
    let (name, per) = ("l".into(), vec![Owner::User]);
    let (algorithm, charge) = (Algorithm::Ewma, Charge::Accepted);
    let rule = algorithm.rule(rate, None);
    let limit = Limit { name, count: Count::Recipients, per, rate, algorithm, rule, charge, distinct: None, text };
    Policy { limits: vec![limit] }
}

fn open(path: &Path) -> Result<Store, OpenError> {
    let options = Options { path: path.to_owned(), durability: Durability::Process, on_failure: OnFailure::Allow };
    Store::open(&options, policy("100 / 1d"), Arc::new(Metrics::new().unwrap()))
}

fn asked(user: &str, recipients: usize) -> Asked {
    let facts = Facts { client: "192.0.2.7".parse().ok(), user: Some(user.into()) };
    Asked { facts, events: (0..recipients).map(|n| Event::Recipient(format!("{n}@example.net").into())).collect() }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros((1_700_000_000 + seconds) * 1_000_000)
}

fn passed(verdicts: &[Verdict]) -> usize {
    verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Pass)).count()
}

#[tokio::test]
async fn charges_outlive_the_store_that_made_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    assert_eq!(passed(&store.admit(at(0), &asked("alice", 60)).await.unwrap()), 60);
    store.close().await;
    let store = open(&path).unwrap();
    // 60 a second ago leave room for 40 more: a little has decayed, so the hundredth still fits.
    assert_eq!(passed(&store.admit(at(1), &asked("alice", 60)).await.unwrap()), 40);
    assert_eq!(passed(&store.admit(at(1), &asked("bob", 60)).await.unwrap()), 60);
}

#[tokio::test]
async fn a_journal_that_was_never_folded_is_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    store.admit(at(0), &asked("alice", 60)).await.unwrap();
    // A copy of the files as they are is what a sudden end of the process leaves.
    let crashed = tempfile::tempdir().unwrap();
    for name in ["state.db", "state.db-wal"] {
        std::fs::copy(folder.path().join(name), crashed.path().join(name)).unwrap();
    }
    let store = open(&crashed.path().join("state.db")).unwrap();
    assert_eq!(passed(&store.admit(at(1), &asked("alice", 60)).await.unwrap()), 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn parallel_admits_never_overshoot() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(open(&folder.path().join("state.db")).unwrap());
    let tasks: Vec<_> = (0..200)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { passed(&store.admit(at(0), &asked("alice", 3)).await.unwrap()) })
        })
        .collect();
    let mut total = 0;
    for task in tasks {
        total += task.await.unwrap();
    }
    // All at one instant, whatever the order: the hundredth would make the rate 100, which is over 100 as in Exim.
    assert_eq!(total, 99);
}

/// 20,000 events in a second, for 10 s, each up to 5 ms late: no more get through than if they came in order.
#[tokio::test]
async fn decisions_that_come_out_of_order_do_not_make_time_pass_twice() {
    let folder = tempfile::tempdir().unwrap();
    let options =
        Options { path: folder.path().join("state.db"), durability: Durability::Process, on_failure: OnFailure::Allow };
    let store = Store::open(&options, policy("1K / 1s"), Arc::new(Metrics::new().unwrap())).unwrap();
    let mut total = 0;
    for n in 0..2_000i64 {
        let lag = (n * 7919) % 5_000;
        let now = Timestamp::from_micros(at(0).micros() + n * 5_000 - lag);
        total += passed(&store.admit(now, &asked("alice", 100)).await.unwrap());
    }
    // E(10 s) of the moving average.
    assert!((10_000..=11_000).contains(&total), "{total}");
}

#[tokio::test]
async fn a_second_store_on_the_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let _first = open(&path).unwrap();
    let error = open(&path).err().unwrap().to_string();
    assert!(error.contains("another Weir is using it"), "{error}");
}

/// Mail has to flow whatever is in the file's place.
#[tokio::test]
async fn files_that_are_not_ours_are_left_alone_and_limits_hold_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let foreign = folder.path().join("foreign.db");
    rusqlite::Connection::open(&foreign).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    let newer = folder.path().join("newer.db");
    open(&newer).unwrap().close().await;
    rusqlite::Connection::open(&newer).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let text = folder.path().join("text.db");
    std::fs::write(&text, "x".repeat(5000)).unwrap();
    for (path, words) in [
        (&foreign, "not Weir's"),
        (&newer, "newer Weir"),
        (&text, "not a database"),
        (&folder.path().join("no/such/state.db"), "No such file"),
    ] {
        let before = std::fs::read(path).ok();
        let store = open(path).unwrap();
        let Health::Degraded(why) = store.health() else { panic!("{} is taken", path.display()) };
        assert!(why.contains(words) && why.contains(&*path.to_string_lossy()), "{why}");
        assert_eq!(passed(&store.admit(at(0), &asked("alice", 60)).await.unwrap()), 60);
        assert_eq!(passed(&store.admit(at(0), &asked("alice", 60)).await.unwrap()), 39);
        store.close().await;
        assert_eq!(std::fs::read(path).ok(), before);
    }
}

#[tokio::test]
async fn what_was_counted_before_the_file_could_be_opened_is_written_when_it_can() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    store.admit(at(0), &asked("alice", 20)).await.unwrap();
    store.admit(at(0), &asked("bob", 70)).await.unwrap();
    store.close().await;
    let aside = folder.path().join("aside.db");
    std::fs::rename(&path, &aside).unwrap();
    std::fs::create_dir(&path).unwrap();

    let store = open(&path).unwrap();
    until(&store, false).await;
    assert_eq!(passed(&store.admit(at(1), &asked("alice", 50)).await.unwrap()), 50, "mail flows");
    assert_eq!(passed(&store.admit(at(1), &asked("bob", 10)).await.unwrap()), 10);
    std::fs::remove_dir(&path).unwrap();
    std::fs::rename(&aside, &path).unwrap();
    until(&store, true).await;
    // Of what the file has and what was counted meanwhile the greater counts.
    assert_eq!(passed(&store.admit(at(1), &asked("alice", 60)).await.unwrap()), 49);
    assert_eq!(passed(&store.admit(at(1), &asked("bob", 60)).await.unwrap()), 30);
    store.close().await;
    let store = open(&path).unwrap();
    assert_eq!(passed(&store.admit(at(1), &asked("alice", 60)).await.unwrap()), 0);
}

#[tokio::test]
async fn where_mail_is_to_wait_for_the_state_it_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    std::fs::write(&path, "x".repeat(5000)).unwrap();
    let options = Options { path: path.clone(), durability: Durability::Process, on_failure: OnFailure::Defer };
    let store = Store::open(&options, policy("100 / 1d"), Arc::new(Metrics::new().unwrap())).unwrap();
    assert_eq!(store.admit(at(0), &asked("alice", 1)).await.unwrap_err(), Unavailable);
    let mut nobody = asked("alice", 1);
    nobody.facts.user = None;
    assert_eq!(passed(&store.admit(at(0), &nobody).await.unwrap()), 1, "no limit has anything to say");
    std::fs::remove_file(&path).unwrap();
    until(&store, true).await;
    assert_eq!(passed(&store.admit(at(0), &asked("alice", 1)).await.unwrap()), 1);
}

/// Waits until the store's health is as asked.
async fn until(store: &Store, good: bool) {
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
    while (store.health() == Health::Good) != good {
        assert!(tokio::time::Instant::now() < deadline, "{:?}", store.health());
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn what_cannot_be_read_is_not_overwritten_and_counts_again_when_it_can() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    store.admit(at(0), &asked("alice", 60)).await.unwrap();
    store.close().await;

    let store = open(&path).unwrap();
    let vandal = rusqlite::Connection::open(&path).unwrap();
    vandal.execute_batch("ALTER TABLE budget RENAME TO gone").unwrap();
    assert_eq!(passed(&store.admit(at(1), &asked("alice", 10)).await.unwrap()), 10, "mail flows");
    until(&store, false).await;
    vandal.execute_batch("ALTER TABLE gone RENAME TO budget").unwrap();
    until(&store, true).await;
    assert_eq!(passed(&store.admit(at(2), &asked("alice", 60)).await.unwrap()), 40, "her 60 are known again");
}

#[tokio::test]
async fn while_another_program_holds_the_file_mail_flows_and_afterwards_it_is_all_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(passed(&store.admit(at(0), &asked("alice", 60)).await.unwrap()), 60);
    assert!(matches!(store.health(), Health::Degraded(why) if why.contains("locked")));
    other.execute_batch("ROLLBACK").unwrap();
    until(&store, true).await;
    store.close().await;
    let store = open(&path).unwrap();
    assert_eq!(passed(&store.admit(at(1), &asked("alice", 60)).await.unwrap()), 40);
}

#[tokio::test]
async fn what_was_counted_while_the_file_could_not_be_read_is_written_afterwards() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    let vandal = rusqlite::Connection::open(&path).unwrap();
    vandal.execute_batch("ALTER TABLE budget RENAME TO gone").unwrap();
    assert_eq!(passed(&store.admit(at(0), &asked("alice", 60)).await.unwrap()), 60);
    until(&store, false).await;
    vandal.execute_batch("ALTER TABLE gone RENAME TO budget").unwrap();
    until(&store, true).await;
    store.close().await;
    assert_eq!(passed(&open(&path).unwrap().admit(at(1), &asked("alice", 60)).await.unwrap()), 40);
}

#[tokio::test]
async fn memory_is_bounded_in_octets_and_what_is_dropped_is_not_lost() {
    let folder = tempfile::tempdir().unwrap();
    let mut policy = policy("400K / 1d");
    let filter = crate::engine::distinct::Rule::new(400e3, std::time::Duration::from_secs(86_400), None).unwrap();
    policy.limits[0].distinct = Some(Distinct { what: What::Recipient, filter });
    let options =
        Options { path: folder.path().join("state.db"), durability: Durability::Process, on_failure: OnFailure::Allow };
    let store = Store::open(&options, policy, Arc::new(Metrics::new().unwrap())).unwrap();
    // Filters of 800 kB each: more than fit.
    let users: Vec<String> = (0..250).map(|n| format!("user{n}")).collect();
    for user in &users {
        store.admit(at(0), &asked(user, 1)).await.unwrap();
    }
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while store.core.hot.len() == users.len() {
        assert!(std::time::Instant::now() < deadline, "nothing is dropped");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert!(store.core.hot.len() * 800_000 < 180_000_000, "{} budgets", store.core.hot.len());
    let mut question = asked("user0", 2);
    for user in &users {
        question.facts.user = Some(user.as_str().into());
        // The first recipient was known, the second was not.
        store.admit(at(1), &question).await.unwrap();
        let level = level(&store, &question).await;
        assert!((level - 2.0).abs() < 0.01, "{user}: {level}");
    }
}

/// How full the one budget of a question is.
async fn level(store: &Store, asked: &Asked) -> f64 {
    let keys = Question::new(&store.core.policy(), asked).into_keys();
    let look = |_, loaded: &mut Loaded| loaded.states().next().flatten().map_or(0.0, |state| state.level);
    store.act(at(0), &keys, look).await.unwrap()
}

#[tokio::test]
async fn nobody_else_can_read_the_state() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("state.db")).unwrap();
    store.admit(at(0), &asked("alice", 1)).await.unwrap();
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{:?}", entry.file_name());
    }
}

#[tokio::test]
async fn values_seen_outlive_the_store_that_saw_them() {
    let folder = tempfile::tempdir().unwrap();
    let open = |folder: &Path| {
        let path = folder.join("state.db");
        let mut policy = policy("10.5 / 1d");
        let filter = crate::engine::distinct::Rule::new(10.5, std::time::Duration::from_secs(86_400), None).unwrap();
        policy.limits[0].distinct = Some(Distinct { what: What::Recipient, filter });
        let options = Options { path, durability: Durability::Process, on_failure: OnFailure::Allow };
        Store::open(&options, policy, Arc::new(Metrics::new().unwrap())).unwrap()
    };
    let store = open(folder.path());
    assert_eq!(passed(&store.admit(at(0), &asked("alice", 8)).await.unwrap()), 8);
    store.close().await;
    let store = open(folder.path());
    // Eight are known, and two more fit.
    assert_eq!(passed(&store.admit(at(0), &asked("alice", 20)).await.unwrap()), 10);
    assert_eq!(passed(&store.admit(at(0), &asked("carol", 8)).await.unwrap()), 8);
    // Carol's filter is in the journal: a copy of the files as they are has to replay it.
    let crashed = tempfile::tempdir().unwrap();
    for name in ["state.db", "state.db-wal"] {
        std::fs::copy(folder.path().join(name), crashed.path().join(name)).unwrap();
    }
    drop(store);
    let store = open(crashed.path());
    assert_eq!(passed(&store.admit(at(0), &asked("carol", 20)).await.unwrap()), 10);
}

/// A filter that has learnt the first recipients of `asked`, as files have kept it since version 2.
fn filter(policy: &Policy, values: usize) -> crate::engine::distinct::Filter {
    let rule = policy.limits[0].distinct.unwrap().filter;
    let learn =
        |filter, n| Some(rule.learn(filter, at(0), crate::engine::distinct::Value::of(&format!("{n}@example.net"))));
    (0..values).fold(None, learn).unwrap()
}

#[tokio::test]
async fn a_file_of_version_2_is_brought_up_to_date() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let mut policy = policy("100 / 1d");
    let rule = crate::engine::distinct::Rule::new(100.0, std::time::Duration::from_secs(86_400), None).unwrap();
    policy.limits[0].distinct = Some(Distinct { what: What::Recipient, filter: rule });
    let old = rusqlite::Connection::open(&path).unwrap();
    old.execute_batch(
        "CREATE TABLE budget (key TEXT PRIMARY KEY, at INTEGER NOT NULL, level REAL NOT NULL, seen BLOB) STRICT, WITHOUT ROWID;
         CREATE TABLE journal (seq INTEGER PRIMARY KEY, entry BLOB NOT NULL) STRICT;
         PRAGMA application_id = 1466263922; PRAGMA user_version = 2;",
    )
    .unwrap();
    let key = |user| format!("l\x1frecipients\x1fewma distinct recipient\x1fuser={user}");
    // What was kept as a blob had no checksum.
    let bare = |sealed: &[u8]| sealed[4..].to_vec();
    let row = rusqlite::params![key("alice"), at(0).micros(), bare(&entry::seal_seen(&filter(&policy, 40)))];
    old.execute("INSERT INTO budget VALUES (?1, ?2, 40.0, ?3)", row).unwrap();
    let mut journal = entry::Entry::default();
    let state = crate::engine::State { at: at(0), level: 70.0 };
    let bob = policy::Budget { state, seen: Some(Arc::new(filter(&policy, 70))) };
    journal.push(&Key::from_stored(&key("bob")), &bob, entry::Seen::Whole);
    old.execute("INSERT INTO journal VALUES (7, ?1)", [bare(journal.seal())]).unwrap();
    drop(old);
    let options = Options { path: path.clone(), durability: Durability::Process, on_failure: OnFailure::Allow };
    let store = Store::open(&options, policy, Arc::new(Metrics::new().unwrap())).unwrap();
    // Whom they have written to is known, and the hundredth is over.
    assert_eq!(passed(&store.admit(at(0), &asked("alice", 120)).await.unwrap()), 99);
    assert_eq!(passed(&store.admit(at(0), &asked("bob", 120)).await.unwrap()), 99);
    assert_eq!(level(&store, &asked("alice", 1)).await, 99.0);
    assert_eq!(level(&store, &asked("bob", 1)).await, 99.0);
    assert_eq!(store.health(), Health::Good);
}

#[tokio::test]
async fn a_file_of_version_1_is_brought_up_to_date() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let old = rusqlite::Connection::open(&path).unwrap();
    old.execute_batch(
        "CREATE TABLE budget (key TEXT PRIMARY KEY, at INTEGER NOT NULL, level REAL NOT NULL) STRICT, WITHOUT ROWID;
         CREATE TABLE journal (seq INTEGER PRIMARY KEY, entry BLOB NOT NULL) STRICT;
         PRAGMA application_id = 1466263922; PRAGMA user_version = 1;",
    )
    .unwrap();
    let key = "l\x1frecipients\x1fewma\x1fuser=alice";
    old.execute("INSERT INTO budget VALUES (?1, ?2, 90.0)", rusqlite::params![key, at(0).micros()]).unwrap();
    drop(old);
    let store = open(&path).unwrap();
    assert_eq!(passed(&store.admit(at(0), &asked("alice", 20)).await.unwrap()), 9);
    store.close().await;
    assert_eq!(passed(&open(&path).unwrap().admit(at(0), &asked("alice", 20)).await.unwrap()), 0);
}

/// What was done in parallel, in the order in which it was done.
type Log = std::sync::Mutex<Vec<(Timestamp, Asked, String)>>;

/// A limit for each user, one for each client, and one that counts the new recipients of each user.
fn three_limits() -> Policy {
    let limit = |name: &str, owner, rate| {
        let mut limit = policy(rate).limits.remove(0);
        (limit.name, limit.per) = (name.into(), vec![owner]);
        limit
    };
    let mut buckets = limit("clients", Owner::Client, "300 / 1h");
    buckets.algorithm = Algorithm::TokenBucket;
    buckets.rule = buckets.algorithm.rule(buckets.rate, None);
    let mut strangers = limit("strangers", Owner::User, "40 / 1d");
    let filter = crate::engine::distinct::Rule::new(40.0, std::time::Duration::from_secs(86_400), None).unwrap();
    strangers.distinct = Some(Distinct { what: What::Recipient, filter });
    Policy { limits: vec![limit("users", Owner::User, "100 / 1d"), buckets, strangers] }
}

/// A thousand tasks decide about so many users and clients. What each was told, and what is in the file afterwards, is what one
/// after the other would have given, in the order in which the store took them.
async fn is_serial(users: u64, clients: u64) {
    let folder = tempfile::tempdir().unwrap();
    let options =
        Options { path: folder.path().join("state.db"), durability: Durability::Process, on_failure: OnFailure::Allow };
    let store = Store::open(&options, three_limits(), Arc::new(Metrics::new().unwrap())).unwrap();
    let (store, log, policy) = (Arc::new(store), Arc::new(Log::default()), Arc::new(three_limits()));
    let tasks: Vec<_> = (0..1000u64)
        .map(|task| {
            let (store, log, policy) = (store.clone(), log.clone(), policy.clone());
            tokio::spawn(async move {
                for n in 0..3u64 {
                    let random = (task * 3 + n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
                    let mut asked = asked(&format!("user{}", random % users), 1 + (random >> 8) as usize % 4);
                    asked.facts.client = Some(std::net::Ipv4Addr::from((random >> 16) as u32 % clients as u32).into());
                    let question = Question::new(&policy, &asked);
                    let decide = |now, loaded: &mut Loaded| {
                        let verdicts = policy::decide(&policy, now, &asked, &question, loaded);
                        // While the budgets are held: whoever shares one with this comes before or after it here, too.
                        log.lock().unwrap().push((now, asked.clone(), format!("{verdicts:?}")));
                    };
                    let now = Timestamp::from_micros(at(0).micros() + (task / 7) as i64 * 1_000_000);
                    store.act(now, question.keys(), decide).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    Arc::into_inner(store).unwrap().close().await;

    let mut budgets = std::collections::BTreeMap::new();
    let log = Arc::into_inner(log).unwrap().into_inner().unwrap();
    assert_eq!(log.len(), 3000);
    for (now, asked, told) in log {
        let question = Question::new(&policy, &asked);
        let mut loaded: Loaded = question.keys().iter().map(|key| budgets.get(key).cloned()).collect();
        let verdicts = policy::decide(&policy, now, &asked, &question, &mut loaded);
        assert_eq!(format!("{verdicts:?}"), told);
        budgets.extend(loaded.into_changed().map(|(place, budget)| (question.keys()[place].clone(), budget)));
    }
    let file = File::read(&options.path).unwrap();
    let mut kept = std::collections::BTreeMap::new();
    file.stretch(i64::MIN, i64::MAX, |place, budget| drop(kept.insert(place.key, budget))).unwrap();
    assert_eq!(kept, budgets);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_thousand_tasks_on_one_budget_get_what_some_order_gives() {
    is_serial(1, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_thousand_tasks_on_many_budgets_get_what_some_order_gives() {
    is_serial(20, 7).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn charges_that_are_given_back_are_gone_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = Arc::new(open(&path).unwrap());
    let keys = Question::new(&policy("100 / 1d"), &asked("alice", 1)).into_keys();
    // Each charges 3 and gives 2 back, all at one instant.
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let (store, keys) = (store.clone(), keys.clone());
            tokio::spawn(async move {
                let charge = |now, loaded: &mut Loaded| {
                    let before = loaded.states().next().flatten();
                    let (policy, asked) = (policy("100 / 1d"), asked("alice", 2));
                    policy::decide(&policy, now, &asked, &Question::new(&policy, &asked), loaded);
                    crate::engine::Receipt { before, after: loaded.states().next().flatten().unwrap() }
                };
                store.admit(at(0), &asked("alice", 1)).await.unwrap();
                let receipt = store.act(at(0), &keys, charge).await.unwrap();
                let charged = Charged { key: keys[0].clone(), receipt };
                store.give_back(at(0), &[charged]).await.unwrap();
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(level(&store, &asked("alice", 1)).await, 20.0);
    Arc::into_inner(store).unwrap().close().await;
    assert_eq!(level(&open(&path).unwrap(), &asked("alice", 1)).await, 20.0);
}

/// Rows of a table of the file.
fn count(path: &Path, table: &str) -> i64 {
    let file = rusqlite::Connection::open(path).unwrap();
    file.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
}

async fn until_count(path: &Path, table: &str, expected: i64) {
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
    while count(path, table) != expected {
        assert!(tokio::time::Instant::now() < deadline, "{} in {table}, not {expected}", count(path, table));
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn budgets_that_make_no_difference_any_more_are_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    for n in 0..100 {
        store.admit(at(0), &asked(&format!("user{n}"), 30)).await.unwrap();
    }
    until_count(&path, "budget", 100).await;
    // 30 a day are less than one after little more than four days.
    store.admit(at(3 * 86_400), &asked("user0", 20)).await.unwrap();
    store.admit(at(3 * 86_400), &asked("user1", 90)).await.unwrap();
    store.admit(at(5 * 86_400), &asked("user2", 1)).await.unwrap();
    until_count(&path, "budget", 3).await;
    assert_eq!(passed(&store.admit(at(5 * 86_400), &asked("user1", 100)).await.unwrap()), 88, "hers is not");
    assert_eq!(passed(&store.admit(at(5 * 86_400), &asked("user9", 100)).await.unwrap()), 99);
}

#[tokio::test]
async fn budgets_of_limits_that_are_gone_are_kept_for_a_while() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let renamed = || {
        let mut policy = policy("100 / 1000d");
        policy.limits[0].name = "renamed".into();
        policy
    };
    let day = |n: i64| at(n * 86_400);
    let store = open(&path).unwrap();
    store.set_policy(policy("100 / 1000d"));
    store.admit(day(0), &asked("alice", 60)).await.unwrap();
    until_count(&path, "kind", 1).await;
    until_count(&path, "budget", 1).await;
    store.set_policy(renamed());
    assert_eq!(passed(&store.admit(day(1), &asked("alice", 60)).await.unwrap()), 60, "another limit begins anew");
    until_count(&path, "kind", 2).await;
    // It comes back in time.
    store.set_policy(policy("100 / 1000d"));
    assert_eq!(passed(&store.admit(day(20), &asked("alice", 60)).await.unwrap()), 41);
    store.set_policy(renamed());
    store.admit(day(49), &asked("bob", 60)).await.unwrap();
    until_count(&path, "budget", 3).await;
    store.admit(day(51), &asked("bob", 1)).await.unwrap();
    until_count(&path, "kind", 1).await;
    store.admit(day(52), &asked("carol", 1)).await.unwrap();
    until_count(&path, "budget", 3).await;
    store.close().await;
    let store = open(&path).unwrap();
    store.set_policy(policy("100 / 1000d"));
    assert_eq!(passed(&store.admit(day(53), &asked("alice", 120)).await.unwrap()), 99);
}
