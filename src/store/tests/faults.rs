//! Tests of state files that cannot be used, and of charges that are made during that time.

use super::*;

/// Mail must be accepted even if the file at the path belongs to another program.
#[tokio::test]
async fn foreign_files_are_not_touched_and_limits_hold_in_memory() {
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
        assert_eq!(
            passed(&store.admit(at(0), &asked("alice", 60), &mut SessionCounters::default()).await.unwrap()),
            60
        );
        assert_eq!(
            passed(&store.admit(at(0), &asked("alice", 60), &mut SessionCounters::default()).await.unwrap()),
            39
        );
        store.close().await;
        assert_eq!(std::fs::read(path).ok(), before);
    }
}

#[tokio::test]
async fn a_task_that_fails_is_counted_and_refusals_are_written_when_it_succeeds_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let options = super::options(&path);
    let metrics = Arc::new(Metrics::new().unwrap());
    let store = Store::open(&options, policy("100 / 1d"), metrics.clone()).unwrap();
    store.admit(at(0), &asked("alice", 1), &mut SessionCounters::default()).await.unwrap();
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("ALTER TABLE refusal RENAME TO aside").unwrap();
    let reference = refusals::record(&store, "alice", 0, 1);
    let failures = || metrics.state.task_failures.with_label_values(&["write-refusals"]).get();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while failures() == 0 {
        assert!(tokio::time::Instant::now() < deadline, "no failure is counted");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The health stays good, as mail is not affected, and no record is lost.
    assert_eq!(store.health(), Health::Good);
    other.execute_batch("ALTER TABLE aside RENAME TO refusal").unwrap();
    forgetting::until_count(&path, "refusal", 1).await;
    assert!(store.refusal(reference).await.is_ok());
}

#[tokio::test]
async fn charges_made_before_the_file_is_open_are_added_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    store.admit(at(0), &asked("alice", 20), &mut SessionCounters::default()).await.unwrap();
    store.admit(at(0), &asked("bob", 70), &mut SessionCounters::default()).await.unwrap();
    store.close().await;
    let aside = folder.path().join("aside.db");
    std::fs::rename(&path, &aside).unwrap();
    std::fs::create_dir(&path).unwrap();

    let store = open(&path).unwrap();
    until(&store, false).await;
    assert_eq!(
        passed(&store.admit(at(1), &asked("alice", 50), &mut SessionCounters::default()).await.unwrap()),
        50,
        "mail flows"
    );
    assert_eq!(passed(&store.admit(at(1), &asked("bob", 10), &mut SessionCounters::default()).await.unwrap()), 10);
    std::fs::remove_dir(&path).unwrap();
    std::fs::rename(&aside, &path).unwrap();
    until(&store, true).await;
    // The levels in the file, and the charges made while the file could not be opened, are added.
    assert_eq!(passed(&store.admit(at(1), &asked("alice", 60), &mut SessionCounters::default()).await.unwrap()), 30);
    assert_eq!(passed(&store.admit(at(1), &asked("bob", 60), &mut SessionCounters::default()).await.unwrap()), 20);
    store.close().await;
    let store = open(&path).unwrap();
    assert_eq!(passed(&store.admit(at(1), &asked("alice", 60), &mut SessionCounters::default()).await.unwrap()), 0);
}

#[tokio::test]
async fn with_on_failure_defer_an_unusable_file_defers_mail() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    std::fs::write(&path, "x".repeat(5000)).unwrap();
    let options = Options {
        path: path.clone(),
        durability: Durability::Process,
        on_failure: OnFailure::Defer,
        shared: None,
        refusals: RefusalOptions::default(),
        budget_octets: BUDGET_OCTETS,
        outcomes: None,
    };
    let store = Store::open(&options, policy("100 / 1d"), Arc::new(Metrics::new().unwrap())).unwrap();
    assert_eq!(store.admit(at(0), &asked("alice", 1), &mut SessionCounters::default()).await.unwrap_err(), Unavailable);
    let mut anonymous = asked("alice", 1);
    anonymous.facts.user = None;
    assert_eq!(
        passed(&store.admit(at(0), &anonymous, &mut SessionCounters::default()).await.unwrap()),
        1,
        "no limit has anything to say"
    );
    std::fs::remove_file(&path).unwrap();
    until(&store, true).await;
    assert_eq!(passed(&store.admit(at(0), &asked("alice", 1), &mut SessionCounters::default()).await.unwrap()), 1);
}

/// Waits until the store's health is good, or degraded if `good` is false.
pub async fn until(store: &Store, good: bool) {
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
    while (store.health() == Health::Good) != good {
        assert!(tokio::time::Instant::now() < deadline, "{:?}", store.health());
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn an_unreadable_budget_is_not_overwritten_and_counts_again_later() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    store.admit(at(0), &asked("alice", 60), &mut SessionCounters::default()).await.unwrap();
    store.close().await;

    let store = open(&path).unwrap();
    let vandal = rusqlite::Connection::open(&path).unwrap();
    vandal.execute_batch("ALTER TABLE budget RENAME TO gone").unwrap();
    assert_eq!(
        passed(&store.admit(at(1), &asked("alice", 10), &mut SessionCounters::default()).await.unwrap()),
        10,
        "mail flows"
    );
    until(&store, false).await;
    vandal.execute_batch("ALTER TABLE gone RENAME TO budget").unwrap();
    until(&store, true).await;
    assert_eq!(
        passed(&store.admit(at(2), &asked("alice", 60), &mut SessionCounters::default()).await.unwrap()),
        30,
        "her 60 are known again, and the 10"
    );
}

#[tokio::test]
async fn charges_made_while_another_program_holds_the_file_are_written_later() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(passed(&store.admit(at(0), &asked("alice", 60), &mut SessionCounters::default()).await.unwrap()), 60);
    // The charge is in the journal, which no program locks.
    let crashed = tempfile::tempdir().unwrap();
    copy(folder.path(), crashed.path());
    assert_eq!(level(&open(&crashed.path().join("state.db")).unwrap(), &asked("alice", 1)).await, 60.0);
    until(&store, false).await;
    assert!(matches!(store.health(), Health::Degraded(why) if why.contains("locked")));
    other.execute_batch("ROLLBACK").unwrap();
    until(&store, true).await;
    store.close().await;
    let store = open(&path).unwrap();
    assert_eq!(passed(&store.admit(at(1), &asked("alice", 60), &mut SessionCounters::default()).await.unwrap()), 40);
}

#[tokio::test]
async fn charges_made_while_the_file_is_unreadable_are_written_later() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    let vandal = rusqlite::Connection::open(&path).unwrap();
    vandal.execute_batch("ALTER TABLE budget RENAME TO gone").unwrap();
    assert_eq!(passed(&store.admit(at(0), &asked("alice", 60), &mut SessionCounters::default()).await.unwrap()), 60);
    until(&store, false).await;
    vandal.execute_batch("ALTER TABLE gone RENAME TO budget").unwrap();
    until(&store, true).await;
    store.close().await;
    assert_eq!(
        passed(&open(&path).unwrap().admit(at(1), &asked("alice", 60), &mut SessionCounters::default()).await.unwrap()),
        40
    );
}

/// Returns a policy with two limits: `l` counts all recipients, `new` counts new recipients.
fn two_limits(count: f64) -> Policy {
    let mut new = limit("new", Field::User, &format!("{count} / 1d"));
    new.distinct = Some(Distinct::new(Field::Recipient));
    of(vec![limit("l", Field::User, "1M / 1d"), new])
}

fn open_with(path: &Path, policy: Policy, on_failure: OnFailure) -> Store {
    let options = Options {
        path: path.to_owned(),
        durability: Durability::Process,
        on_failure,
        shared: None,
        refusals: RefusalOptions::default(),
        budget_octets: BUDGET_OCTETS,
        outcomes: None,
    };
    Store::open(&options, policy, Arc::new(Metrics::new().unwrap())).unwrap()
}

/// Returns the levels of the budgets of a request.
async fn levels(store: &Store, asked: &PolicyRequest) -> Vec<f64> {
    let policy = store.core.policy();
    let plan = Plan::new(&policy, asked, at(0));
    let look =
        |_, loaded: &mut Loaded| loaded.states().map(|state| state.map_or(0.0, |state| state.level.round())).collect();
    store.transact(at(0), plan.keys(), look).await.unwrap()
}

#[tokio::test]
async fn a_journal_replayed_late_is_added_to_charges_made_meanwhile() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (here, there) = (here.path(), there.path());
    let store = open(&here.join("state.db")).unwrap();
    store.admit(at(0), &asked("alice", 20), &mut SessionCounters::default()).await.unwrap();
    store.close().await;
    let store = open(&here.join("state.db")).unwrap();
    store.admit(at(0), &asked("alice", 70), &mut SessionCounters::default()).await.unwrap();
    copy(here, there);
    for name in ["state.db", "state.db-wal"] {
        std::fs::rename(there.join(name), there.join(format!("{name}-aside"))).unwrap();
    }
    let path = there.join("state.db");
    std::fs::create_dir(&path).unwrap();
    let late = open(&path).unwrap();
    assert_eq!(passed(&late.admit(at(0), &asked("alice", 3), &mut SessionCounters::default()).await.unwrap()), 3);
    std::fs::remove_dir(&path).unwrap();
    for name in ["state.db-wal", "state.db"] {
        std::fs::rename(there.join(format!("{name}-aside")), there.join(name)).unwrap();
    }
    until(&late, true).await;
    assert_eq!(level(&late, &asked("alice", 1)).await, 93.0);
    late.close().await;
    assert_eq!(level(&open(&path).unwrap(), &asked("alice", 1)).await, 93.0);
}

#[tokio::test]
async fn a_filter_begun_in_memory_is_written_whole_before_recovery() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = here.path().join("state.db");
    let store = open_with(&path, two_limits(200.0), OnFailure::Allow);
    let vandal = rusqlite::Connection::open(&path).unwrap();
    vandal.execute_batch("ALTER TABLE budget RENAME TO gone").unwrap();
    store.admit(at(0), &asked("alice", 50), &mut SessionCounters::default()).await.unwrap();
    until(&store, false).await;
    vandal.execute_batch("ALTER TABLE gone RENAME TO budget").unwrap();
    until(&store, true).await;
    // The state after a crash at this moment.
    copy(here.path(), there.path());
    let again = open_with(&there.path().join("state.db"), two_limits(200.0), OnFailure::Allow);
    assert_eq!(levels(&again, &asked("alice", 1)).await, [50.0, 50.0]);
    store.admit(at(0), &asked("alice", 60), &mut SessionCounters::default()).await.unwrap();
    // The state after a crash at this later moment.
    let there = tempfile::tempdir().unwrap();
    copy(here.path(), there.path());
    let again = open_with(&there.path().join("state.db"), two_limits(200.0), OnFailure::Allow);
    again.admit(at(0), &asked("alice", 70), &mut SessionCounters::default()).await.unwrap();
    assert_eq!(levels(&again, &asked("alice", 1)).await, [180.0, 70.0]);
}

#[tokio::test]
async fn closing_another_connection_does_not_remove_the_write_ahead_log() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = here.path().join("state.db");
    let store = open(&path).unwrap();
    store.admit(at(0), &asked("alice", 20), &mut SessionCounters::default()).await.unwrap();
    until_every_thread_reads(&store).await;
    // The last process that closes an SQLite file checkpoints its write-ahead log and removes the log. The other
    // process must not do that, because the store still has the file open. Locks belong to a process, so the test needs
    // a second process.
    let script = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM budget').fetchall(); c.close()";
    let other = std::process::Command::new("python3").args(["-c", script]).arg(&path).status();
    assert!(other.unwrap().success());
    store.admit(at(0), &asked("alice", 50), &mut SessionCounters::default()).await.unwrap();
    copy(here.path(), there.path());
    assert_eq!(level(&open(&there.path().join("state.db")).unwrap(), &asked("alice", 1)).await, 70.0);
}

/// Waits until each thread of the store has opened its connection to the file. The maintenance thread opens its
/// connection last.
async fn until_every_thread_reads(store: &Store) {
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
    let options = &store.core.options;
    // When the maintenance thread looks for expired budgets, it first records the limits in force.
    while File::open_to_read(&options.path).unwrap().kinds().unwrap().is_empty() {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_that_exceed_the_queue_wait_for_room() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // Each budget has a filter of a megabyte.
    let policy = || two_limits(500e3);
    let store = Arc::new(open_with(&here.path().join("state.db"), policy(), OnFailure::Defer));
    let tasks: Vec<_> = (0..100)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move {
                store.admit(at(0), &asked(&format!("user{n}"), 1), &mut SessionCounters::default()).await.is_ok()
            })
        })
        .collect();
    let mut acknowledged = Vec::new();
    for task in tasks {
        acknowledged.push(task.await.unwrap());
    }
    copy(here.path(), there.path());
    let again = open_with(&there.path().join("state.db"), policy(), OnFailure::Allow);
    for (n, _) in acknowledged.iter().enumerate().filter(|(_, ok)| **ok) {
        assert_eq!(levels(&again, &asked(&format!("user{n}"), 1)).await, [1.0, 1.0], "user{n}");
    }
    assert!(acknowledged.iter().any(|ok| *ok));
}

#[tokio::test]
async fn with_on_failure_defer_unreadable_budgets_are_not_charged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open_with(&path, policy("100 / 1d"), OnFailure::Defer);
    let vandal = rusqlite::Connection::open(&path).unwrap();
    vandal.execute_batch("ALTER TABLE budget RENAME TO gone").unwrap();
    for _ in 0..3 {
        assert_eq!(
            store.admit(at(0), &asked("alice", 60), &mut SessionCounters::default()).await.unwrap_err(),
            Unavailable
        );
    }
    vandal.execute_batch("ALTER TABLE gone RENAME TO budget").unwrap();
    until(&store, true).await;
    assert_eq!(passed(&store.admit(at(0), &asked("alice", 60), &mut SessionCounters::default()).await.unwrap()), 60);
}

#[tokio::test]
async fn levels_of_different_times_decay_before_they_are_added() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    store.admit(at(0), &asked("alice", 90), &mut SessionCounters::default()).await.unwrap();
    store.close().await;
    let store = open(&path).unwrap();
    let vandal = rusqlite::Connection::open(&path).unwrap();
    vandal.execute_batch("ALTER TABLE budget RENAME TO gone").unwrap();
    let later = at(4 * 86_400);
    assert_eq!(passed(&store.admit(later, &asked("alice", 80), &mut SessionCounters::default()).await.unwrap()), 80);
    vandal.execute_batch("ALTER TABLE gone RENAME TO budget").unwrap();
    until(&store, true).await;
    // The level was 90 four days ago, and 1.6 of it is left.
    assert_eq!(passed(&store.admit(later, &asked("alice", 80), &mut SessionCounters::default()).await.unwrap()), 18);
}
