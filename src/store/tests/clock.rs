//! Tests of jumps of the wall clock. A jump that lasts only seconds ends no exception and resets no budget.

use super::*;
use crate::policy::budgets::Owner;
use crate::policy::exception::{By, Grant, Suspension, Term};
use crate::time::steady::Steady;
use forgetting::{count, until_count};

/// A store with the steady time of a simulated machine.
struct Machine {
    store: Store,
    steady: Steady,
    /// Seconds since boot.
    monotonic: i64,
}

const DAY: i64 = 86_400;
const YEAR: i64 = 365 * DAY;

impl Machine {
    fn new(store: Store) -> Self {
        Self { store, steady: Steady::new(at(0), Duration::ZERO), monotonic: 0 }
    }

    /// Lets `seconds` pass while the wall clock is wrong by `wrong` seconds. Calls the store each second, as the server
    /// does. Returns the steady time at the end.
    fn pass(&mut self, seconds: i64, wrong: i64) -> Timestamp {
        let mut now = at(0);
        for _ in 0..seconds {
            self.monotonic += 1;
            let monotonic = Duration::from_secs(self.monotonic.unsigned_abs());
            now = self.steady.look(at(self.monotonic + wrong), monotonic).0;
            self.store.set_clock_doubt(self.steady.doubt());
            self.store.end_exceptions(now);
        }
        now
    }

    /// Returns how many of a user's recipients are accepted at `now`.
    async fn passed(&self, now: Timestamp, user: &str, recipients: usize) -> usize {
        passed(&self.store.admit(now, &asked(user, recipients), &mut SessionCounters::default()).await.unwrap())
    }
}

fn owner(user: &str) -> Owner {
    Owner::from_stored(&format!("user={user}"))
}

fn term(until: i64) -> Term {
    Term { since: at(-DAY), until: at(until), by: By::Administrator("root".into()), reason: "why".into() }
}

async fn make_exceptions(store: &Store, until: i64) {
    let grant = Grant { limit: "l".into(), owner: owner("alice"), rate: "200 / 1d".into(), term: term(until) };
    store.grant(grant).await;
    store.suspend(Suspension::strict(owner("bob"), term(until))).await;
}

#[tokio::test]
async fn a_wall_clock_wrong_for_seconds_ends_no_exception_and_deletes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let mut machine = Machine::new(open(&path).unwrap());
    make_exceptions(&machine.store, DAY).await;
    let now = machine.pass(1_000, 0);
    assert_eq!(machine.passed(now, "carol", 60).await, 60);
    until_count(&path, "budget", 1).await;
    for wrong in [2 * YEAR, -2 * YEAR] {
        let now = machine.pass(5, wrong);
        assert_eq!(machine.passed(now, "bob", 1).await, 0, "he is suspended");
        assert_eq!(machine.passed(now, "carol", 60).await, 40 * usize::from(wrong > 0));
        let now = machine.pass(5, 0);
        assert_eq!(machine.passed(now, "bob", 1).await, 0, "he is suspended");
        assert_eq!(machine.passed(now, "carol", 60).await, 0);
        assert_eq!(machine.store.policy().exceptions.grants().count(), 1);
    }
    machine.store.close().await;
    assert_eq!(["exception", "audit", "budget"].map(|table| count(&path, table)), [2, 2, 1]);
}

#[tokio::test]
async fn a_believed_jump_back_resets_no_budget_and_one_forward_ends_exceptions() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let mut new = limit("new", Field::User, "10.5 / 1d");
    new.distinct = Some(Distinct::new(Field::Recipient));
    let policy = of(vec![limit("l", Field::User, "100 / 1d"), new]);
    let options = super::options(&path);
    let store = Store::open(&options, policy, Arc::new(Metrics::new().unwrap())).unwrap();
    let mut machine = Machine::new(store);
    make_exceptions(&machine.store, DAY).await;
    let now = machine.pass(1_000, 0);
    for _ in 0..7 {
        assert_eq!(machine.passed(now, "carol", 10).await, 10);
    }
    let now = machine.pass(400, -2 * YEAR);
    assert!(now < at(-YEAR), "the jump is believed");
    // The limit on new recipients still knows ten recipients, so it refuses an eleventh recipient. The other limit
    // refuses when 100 recipients have been charged.
    assert_eq!(machine.passed(now, "carol", 11).await, 10);
    assert_eq!(machine.passed(now, "carol", 10).await, 10);
    assert_eq!(machine.passed(now, "carol", 10).await, 9);
    assert_eq!(machine.passed(now, "bob", 1).await, 0, "he is suspended");
    // After the jump back the levels decay with the new time.
    let now = machine.pass(DAY / 2, -2 * YEAR);
    assert_ne!(machine.passed(now, "carol", 10).await, 0);
    let now = machine.pass(400, 2 * YEAR);
    assert_eq!(machine.passed(now, "bob", 1).await, 1);
    until_count(&path, "exception", 0).await;
}

#[tokio::test]
async fn a_process_that_begins_with_a_wrong_clock_deletes_nothing_for_minutes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    make_exceptions(&store, DAY).await;
    store.admit(at(0), &asked("carol", 60), &mut SessionCounters::default()).await.unwrap();
    until_count(&path, "budget", 1).await;
    store.close().await;
    let mut machine = Machine::new(open(&path).unwrap());
    machine.steady = Steady::new(at(2 * YEAR), Duration::ZERO);
    let now = machine.pass(60, 2 * YEAR);
    machine.passed(now, "dave", 1).await;
    until_count(&path, "budget", 2).await;
    // NTP corrects the wall clock.
    let now = machine.pass(100, 0);
    assert!(now < at(YEAR), "the correction is believed");
    assert_eq!(machine.passed(now, "bob", 1).await, 0, "he is suspended");
    assert_eq!(machine.passed(now, "carol", 60).await, 40);
    machine.pass(300, 0);
    machine.store.close().await;
    assert_eq!(["exception", "audit", "budget"].map(|table| count(&path, table)), [2, 2, 2]);
}

#[tokio::test]
async fn exceptions_that_expired_while_weir_was_stopped_end_after_some_minutes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path).unwrap();
    make_exceptions(&store, -1).await;
    store.close().await;
    let mut machine = Machine::new(open(&path).unwrap());
    // A suspension that begins in this process is removed as soon as it has expired.
    let term = Term { since: at(10), ..term(20) };
    machine.store.suspend(Suspension::strict(owner("dave"), term)).await;
    let now = machine.pass(60, 0);
    assert_eq!(machine.passed(now, "bob", 1).await, 1, "what is over holds no more");
    assert_eq!(machine.store.core.metrics.limits.suspensions_in_force.get(), 0);
    until_count(&path, "exception", 2).await;
    machine.pass(300, 0);
    until_count(&path, "exception", 0).await;
    assert_eq!(machine.store.trail(None, 100).await.unwrap().len(), 6);
}
