//! Tests of grants and suspensions in the file, and of their deletion.

use super::forgetting::until_count;
use super::*;
use crate::policy::KnownTo;
use crate::policy::budgets::Owner;
use crate::policy::exception::Length;
use crate::policy::exception::{By, Grant, Suspension, Term};
use crate::policy::limit::{Action, Ladder, Rung};
use audit::Act;
use pending_exceptions::ExceptionKey;
use std::sync::atomic::AtomicUsize;

fn term(since: i64, until: i64) -> Term {
    Term { since: at(since), until: at(until), by: By::Administrator("root".into()), reason: "why".into() }
}

fn owner(user: &str) -> Owner {
    Owner::from_stored(&format!("user={user}"))
}

/// Returns a grant for the limit `l` that is in force from the second `since` to the second `until`.
pub fn grant(user: &str, rate: &str, since: i64, until: i64) -> Grant {
    Grant { limit: "l".into(), owner: owner(user), rate: rate.into(), term: term(since, until) }
}

fn suspension(user: &str, since: i64, until: i64) -> Suspension {
    Suspension::strict(owner(user), term(since, until))
}

fn because() -> (By, Arc<str>) {
    (By::Administrator("carol".into()), "enough".into())
}

/// Returns how many of a user's recipients are accepted at this second.
async fn passed_at(store: &Store, seconds: i64, user: &str, recipients: usize) -> usize {
    passed(&store.admit(at(seconds), &asked(user, recipients), &mut SessionCounters::default()).await.unwrap())
}

async fn acts(store: &Store) -> Vec<Act> {
    store.trail(None, 100).await.unwrap().iter().map(|(_, record)| record.act).collect()
}

#[tokio::test]
async fn the_budget_of_a_grant_is_kept_exactly_as_long_as_the_grant() {
    const DAY: i64 = 86_400;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open_with(&path, policy("10 / 1m"));
    let policy = || policy("10 / 1m");
    assert_eq!(passed_at(&store, 0, "alice", 5).await, 5);
    store.grant(grant("alice", "100 / 30d", 1, 5 * DAY)).await;
    assert_eq!(passed_at(&store, 2, "alice", 60).await, 60);
    until_count(&path, "budget", 2).await;
    store.close().await;
    // After a day alice's normal budget has decayed and is deleted; the budget of her grant stays.
    let store = open_with(&path, policy());
    store.admit(at(DAY), &asked("bob", 1), &mut SessionCounters::default()).await.unwrap();
    until_count(&path, "budget WHERE key LIKE '%=alice'", 0).await;
    until_count(&path, "budget WHERE key LIKE '%grant=%'", 1).await;
    store.close().await;
    let store = open_with(&path, policy());
    assert_eq!(passed_at(&store, DAY, "alice", 60).await, 41);
    store.close().await;
    // When the grant has ended, its budget is deleted, too.
    let store = open_with(&path, policy());
    store.end_exceptions(at(6 * DAY));
    store.admit(at(6 * DAY), &asked("carol", 1), &mut SessionCounters::default()).await.unwrap();
    until_count(&path, "exception", 0).await;
    until_count(&path, "budget", 1).await;
    assert_eq!(acts(&store).await, [Act::Granted, Act::Ended]);
}

#[tokio::test]
async fn expired_exceptions_end_once_and_audit_records_are_deleted_after_a_year() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    store.grant(grant("alice", "200 / 1d", 0, 10)).await;
    store.suspend(suspension("bob", 0, 20)).await;
    store.suspend(suspension("carol", 0, 400 * 86_400)).await;
    for seconds in [9, 10, 11, 20, 30] {
        store.end_exceptions(at(seconds));
    }
    until_count(&path, "exception", 1).await;
    assert_eq!(acts(&store).await, [Act::Granted, Act::Suspended, Act::Suspended, Act::Ended, Act::Ended]);
    store.end_exceptions(at(367 * 86_400));
    until_count(&path, "audit", 0).await;
    until_count(&path, "exception", 1).await;
}

#[tokio::test]
async fn a_limit_shortens_no_suspension_and_repeats_make_one_audit_record() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    store.suspend(suspension("alice", 0, 1_000)).await;
    let by_limit = |since, until| {
        let term = Term { by: By::Limit("l".into()), ..term(since, until) };
        Arc::new(Suspension::strict(owner("alice"), term))
    };
    let until = || store.policy().exceptions.suspension_of(&owner("alice")).unwrap().term.until;
    assert!(store.core.suspend(&[by_limit(10, 500)], at(10)).await);
    assert_eq!(until(), at(1_000));
    for seconds in 1..5 {
        assert!(store.core.suspend(&[by_limit(seconds, 1_000 + seconds)], at(seconds)).await);
    }
    assert_eq!(until(), at(1_004));
    assert_eq!(acts(&store).await, [Act::Suspended, Act::Suspended]);
    store.close().await;
    let store = open(&path).unwrap();
    assert_eq!(store.policy().exceptions.suspension_of(&owner("alice")).unwrap().term.until, at(1_004));
}

#[tokio::test]
async fn exceptions_changed_before_the_file_is_open_override_those_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    store.suspend(suspension("alice", 0, 1_000)).await;
    store.suspend(suspension("bob", 0, 1_000)).await;
    store.suspend(suspension("carol", 0, 1_000)).await;
    store.close().await;
    let aside = folder.path().join("aside.db");
    std::fs::rename(&path, &aside).unwrap();
    std::fs::create_dir(&path).unwrap();
    let store = open(&path).unwrap();
    // The file cannot be opened yet, so the store does not know the suspensions in it.
    let (_, kept) = store.suspend(suspension("alice", 1, 2_000)).await;
    assert!(matches!(&kept, Kept::InMemory(why) if why.contains("state.db")), "{kept:?}");
    store.suspend(suspension("bob", 1, 2_000)).await;
    assert!(store.end_suspension(&owner("bob"), because(), at(2)).await.is_some());
    assert!(store.end_suspension(&owner("carol"), because(), at(2)).await.is_none());
    std::fs::remove_dir(&path).unwrap();
    std::fs::rename(&aside, &path).unwrap();
    super::faults::until(&store, true).await;
    let check = |store: &Store| {
        let policy = store.policy();
        let until = |user| Some(policy.exceptions.suspension_of(&owner(user))?.term.until);
        assert_eq!([until("alice"), until("bob"), until("carol")], [Some(at(2_000)), None, Some(at(1_000))]);
    };
    check(&store);
    store.close().await;
    check(&open(&path).unwrap());
}

#[tokio::test]
async fn exceptions_hold_in_memory_until_the_file_can_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    store.suspend(suspension("bob", 0, 1_000)).await;
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let (_, kept) = store.grant(grant("alice", "200 / 1d", 0, 1_000)).await;
    assert!(matches!(&kept, Kept::InMemory(why) if why.contains("locked")), "{kept:?}");
    assert!(matches!(store.health(), Health::Degraded(_)));
    assert!(store.end_suspension(&owner("bob"), because(), at(1)).await.is_some());
    assert_eq!(passed_at(&store, 2, "alice", 300).await, 199);
    assert_eq!(acts(&store).await, [Act::Suspended, Act::Granted, Act::Released], "the trail knows it");
    other.execute_batch("ROLLBACK").unwrap();
    super::faults::until(&store, true).await;
    store.close().await;
    let store = open(&path).unwrap();
    // In one second the level decays enough for one more recipient.
    assert_eq!(passed_at(&store, 3, "alice", 300).await, 1);
    assert_eq!(store.policy().exceptions.suspensions().count(), 0);
    assert_eq!(acts(&store).await, [Act::Suspended, Act::Granted, Act::Released]);
}

#[tokio::test]
async fn with_on_failure_defer_a_suspension_that_is_not_durable_defers_mail() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let mut one = limit("l", Field::User, "2 / 1d");
    one.ladder = Ladder::new(vec![Rung {
        at: 1.0,
        action: Action::Suspend { time: Length::For(Duration::from_secs(3_600)), is_strict: false },
    }]);
    let options = Options {
        path: path.clone(),
        durability: Durability::Process,
        on_failure: OnFailure::Defer,
        shared: None,
        refusals: RefusalOptions::default(),
        budget_octets: BUDGET_OCTETS,
        outcomes: None,
    };
    let store = Store::open(&options, of(vec![one]), Arc::new(Metrics::new().unwrap())).unwrap();
    assert_eq!(passed_at(&store, 0, "alice", 1).await, 1);
    let vandal = rusqlite::Connection::open(&path).unwrap();
    vandal.execute_batch("ALTER TABLE exception RENAME TO gone").unwrap();
    let over = || async { store.admit(at(1), &asked("alice", 3), &mut SessionCounters::default()).await };
    assert_eq!(over().await.unwrap_err(), Unavailable);
    vandal.execute_batch("ALTER TABLE gone RENAME TO exception").unwrap();
    super::faults::until(&store, true).await;
    assert!(matches!(over().await.unwrap().verdicts[0].ruling, Ruling::Suspended(_)));
}

#[tokio::test]
async fn resetting_an_unreadable_budget_fails() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    assert_eq!(passed_at(&store, 0, "alice", 60).await, 60);
    store.close().await;
    let store = open(&path).unwrap();
    let vandal = rusqlite::Connection::open(&path).unwrap();
    vandal.execute_batch("ALTER TABLE budget RENAME TO gone").unwrap();
    let why = store.reset(("l", &owner("alice")), Loaded::reset, because(), at(1)).await.unwrap_err();
    assert!(why.contains("cannot be read"), "{why}");
    vandal.execute_batch("ALTER TABLE gone RENAME TO budget").unwrap();
    super::faults::until(&store, true).await;
    let (was, kept) = store.reset(("l", &owner("alice")), Loaded::reset, because(), at(1)).await.unwrap();
    assert_eq!((&was[..], kept), (&["60 of 100 recipients per 1d".to_owned()][..], Kept::InFile));
    assert_eq!(passed_at(&store, 1, "alice", 200).await, 99);
    assert_eq!(acts(&store).await, [Act::Reset]);
}

fn open_with(path: &Path, policy: Policy) -> Store {
    let options = super::options(path);
    Store::open(&options, policy, Arc::new(Metrics::new().unwrap())).unwrap()
}

#[tokio::test]
async fn owners_in_a_former_spelling_stay_suspended_and_can_be_released() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    let former = Owner::from_stored("sender=bob@bücher.example");
    let normal = Owner::from_stored("sender=bob@xn--bcher-kva.example");
    store.suspend(Suspension::strict(former.clone(), term(0, 1_000))).await;
    store.close().await;
    let store = open(&path).unwrap();
    assert!(store.policy().exceptions.suspension_of(&normal).is_some());
    assert!(store.policy().exceptions.suspension_of(&former).is_none());
    assert!(store.end_suspension(&normal, because(), at(1)).await.is_some());
    store.close().await;
    let exceptions = open(&path).unwrap().policy().exceptions.clone();
    assert!([&normal, &former].iter().all(|owner| exceptions.suspension_of(owner).is_none()));
}

#[tokio::test]
async fn a_lock_until_released_outlives_a_restart_and_prolongs_no_suspension() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    let lock = |user: &str, since| {
        let term = Term { by: By::Limit("l".into()), until: Timestamp::END_OF_9999, ..term(since, 0) };
        let known_to = KnownTo::parse("user-domain");
        Arc::new(Suspension { is_strict: false, known_to, ..Suspension::strict(owner(user), term) })
    };
    store.suspend(suspension("bob", 0, 1_000)).await;
    assert!(store.core.suspend(&[lock("alice", 1), lock("bob", 1)], at(1)).await);
    store.close().await;
    let store = open(&path).unwrap();
    let policy = store.policy();
    let of = |user| policy.exceptions.suspension_of(&owner(user)).unwrap();
    assert_eq!(**of("alice"), *lock("alice", 1));
    assert_eq!(**of("bob"), suspension("bob", 0, 1_000));
    store.end_exceptions(at(1_000_000_000));
    assert_eq!(store.policy().exceptions.suspensions().count(), 1, "a lock does not expire");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_exception_is_in_force_before_its_batch_can_be_taken() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(open_with(&folder.path().join("state.db"), policy("10 / 1m")));
    // With many suspensions, a change takes some time after it has changed the batch.
    let many: Vec<_> = (0..2_000).map(|n| Arc::new(suspension(&format!("before{n}"), 0, 1_000_000))).collect();
    store.core.suspend(&many, at(0)).await;
    let (taking, taken) = (store.clone(), Arc::new(AtomicUsize::new(0)));
    let count = taken.clone();
    // Takes batches as the database writer does.
    let taker = std::thread::spawn(move || {
        while count.load(Ordering::Relaxed) < 50 {
            let batch = taking.core.pending_exceptions.take();
            let policy = taking.core.policy();
            for key in &batch.changed {
                let ExceptionKey::Suspension(owner) = key else { panic!("{key:?}") };
                assert!(policy.exceptions.suspension_of(owner).is_some(), "{owner} is not in force");
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    for n in 0.. {
        if taker.is_finished() {
            break;
        }
        store.suspend(suspension(&format!("user{n}"), 1, 1_000_000)).await;
    }
    taker.join().unwrap();
    assert!(taken.load(Ordering::Relaxed) >= 50);
}
