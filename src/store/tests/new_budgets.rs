//! Tests of the maximum number of new budgets for keys that clients can choose freely.

use super::*;
use crate::policy::MaxNewBudgets;
use crate::policy::budgets::NEW;
use crate::policy::exception::{By, Grant, Term};
use crate::policy::limit::Charge;
use crate::policy::request::Stage;
use std::collections::BTreeMap;

const MAX: u32 = 5;

/// Returns a policy that counts the messages of each sender at MAIL, with a maximum of new budgets.
fn per_sender(rate: &str) -> Policy {
    let rate = parse_rate(rate, Units::Things).unwrap();
    let quota = Quota::rate(Algorithm::Ewma, rate, None);
    let mut limit = Limit::new("l", Count::Messages, vec![Field::Sender], quota);
    (limit.stage, limit.charge) = (Stage::Mail, Charge::Sent);
    let mut policy = of(vec![limit]);
    policy.max_new_budgets = MaxNewBudgets(MAX);
    policy
}

fn open(path: &Path, policy: Policy) -> Store {
    let options = super::options(path);
    Store::open(&options, policy, Arc::new(Metrics::new().unwrap())).unwrap()
}

fn mail(sender: &str) -> PolicyRequest {
    let facts = Facts { client: "192.0.2.7".parse().ok(), sender: Some(sender.into()), ..Facts::default() };
    PolicyRequest { facts, events: vec![Event::Mail], ..PolicyRequest::default() }
}

async fn send(store: &Store, seconds: i64, sender: &str) -> Verdict {
    store.admit(at(seconds), &mail(sender), &mut SessionCounters::default()).await.unwrap().verdicts.remove(0)
}

fn is_passed(verdict: &Verdict) -> bool {
    matches!(verdict.ruling, Ruling::Pass)
}

fn sender(n: u32) -> String {
    format!("{n}@example.net")
}

fn key(sender: &str) -> Key {
    Key::from_parts("l", "messages", "ewma", [("sender", sender)].into_iter()).unwrap()
}

/// Returns the levels of these senders' budgets; `None` for a sender without a budget.
async fn levels(store: &Store, senders: &[&str]) -> Vec<Option<f64>> {
    let keys: Vec<Key> = senders.iter().map(|sender| key(sender)).collect();
    let found = store.look(&keys).await.unwrap();
    found.into_iter().map(|budget| budget.map(|budget| budget.state.level)).collect()
}

fn shared_total(store: &Store) -> u64 {
    store.core.metrics.limits.new_budgets_shared.with_label_values(&["l"]).get()
}

#[tokio::test]
async fn new_keys_beyond_the_bound_share_one_budget() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path, per_sender("3.5 / 1d"));
    let mut passed = BTreeMap::new();
    for n in 0..20 {
        let verdict = send(&store, 0, &sender(n)).await;
        passed.insert(n, is_passed(&verdict));
    }
    // Five senders get their own budgets and pass. Three more senders are charged to the shared budget and pass.
    assert_eq!(passed.values().filter(|passed| **passed).count(), 8, "{passed:?}");
    assert!((0..8).all(|n| passed[&n]), "{passed:?}");
    assert_eq!(shared_total(&store), 15);
    assert_eq!(levels(&store, &["0@example.net", "5@example.net", NEW]).await, [Some(1.0), None, Some(3.0)]);
    // Senders that have their own budgets are not affected.
    assert!(is_passed(&send(&store, 0, &sender(0)).await));
    assert_eq!(levels(&store, &["0@example.net", NEW]).await, [Some(2.0), Some(3.0)]);
    store.close().await;
    let rows: i64 = rusqlite::Connection::open(&path)
        .unwrap()
        .query_row("SELECT count(*) FROM budget", [], |row| row.get(0))
        .unwrap();
    assert_eq!(rows, i64::from(MAX) + 1);
}

#[tokio::test]
async fn keys_in_the_file_alone_are_known() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = open(&path, per_sender("3.5 / 1d"));
    send(&store, 0, "known@example.net").await;
    store.close().await;
    let store = open(&path, per_sender("3.5 / 1d"));
    for n in 0..20 {
        send(&store, 0, &sender(n)).await;
    }
    assert!(is_passed(&send(&store, 0, "known@example.net").await));
    assert_eq!(levels(&store, &["known@example.net"]).await, [Some(2.0)]);
}

#[tokio::test]
async fn the_bound_on_new_budgets_refills_within_an_hour() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("state.db"), per_sender("3.5 / 1d"));
    let own = async |seconds: i64, range: std::ops::Range<u32>| {
        let mut own = 0;
        for n in range {
            send(&store, seconds, &sender(n)).await;
            own += usize::from(levels(&store, &[&sender(n)]).await[0].is_some());
        }
        own
    };
    assert_eq!(own(0, 0..20).await, 5);
    assert_eq!(own(720, 20..40).await, 1);
    assert_eq!(own(3_600, 40..60).await, 4);
    assert_eq!(own(100_000, 60..80).await, 5);
}

#[tokio::test]
async fn refunds_go_back_to_the_shared_budget() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("state.db"), per_sender("3.5 / 1d"));
    for n in 0..MAX {
        send(&store, 0, &sender(n)).await;
    }
    let verdict = send(&store, 0, "late@example.net").await;
    assert_eq!(levels(&store, &[NEW]).await, [Some(1.0)]);
    store.give_back(at(0), &verdict.charges).await.unwrap();
    assert_eq!(levels(&store, &["late@example.net", NEW]).await, [None, Some(0.0)]);
}

#[tokio::test]
async fn requests_that_make_no_budget_do_not_count() {
    let folder = tempfile::tempdir().unwrap();
    let mut policy = per_sender("3.5 / 1d");
    policy.limits = Arc::from([Limit { stage: Stage::Data, ..policy.limits[0].clone() }]);
    let mut policy = Policy::new(policy.limits.to_vec(), AddressNormalizer::default(), Zone::default());
    policy.max_new_budgets = MaxNewBudgets(MAX);
    let store = open(&folder.path().join("state.db"), policy);
    // At MAIL a limit of messages charges nothing.
    for n in 0..20 {
        send(&store, 0, &sender(n)).await;
    }
    assert_eq!(shared_total(&store), 0);
}

#[tokio::test]
async fn a_granted_key_never_shares() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("state.db"), per_sender("3.5 / 1d"));
    for n in 0..20 {
        send(&store, 0, &sender(n)).await;
    }
    let term =
        Term { since: at(0), until: at(3_600), by: By::Administrator("root".into()), reason: "newsletter".into() };
    let owner = key("list@example.net").owner();
    let mut policy = Policy::clone(&store.policy());
    let mut exceptions = (*policy.exceptions).clone();
    exceptions.grant(Grant { limit: "l".into(), owner, rate: "10.5 / 1d".into(), term });
    policy.exceptions = Arc::new(exceptions);
    store.core.policy.begin_replacement().put_in_force(Arc::new(policy));
    for _ in 0..10 {
        assert!(is_passed(&send(&store, 1, "list@example.net").await));
    }
}

#[tokio::test]
async fn keys_that_clients_cannot_choose_are_not_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let mut policy = policy("3.5 / 1d");
    policy.max_new_budgets = MaxNewBudgets(MAX);
    let store = open(&folder.path().join("state.db"), policy);
    for n in 0..20 {
        assert_eq!(
            passed(&store.admit(at(0), &asked(&format!("user{n}"), 3), &mut SessionCounters::default()).await.unwrap()),
            3
        );
    }
}

#[tokio::test]
async fn users_do_not_share_budgets_with_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let rate = parse_rate("3.5 / 1d", Units::Things).unwrap();
    let quota = Quota::rate(Algorithm::Ewma, rate, None);
    let mut policy = of(vec![Limit::new("l", Count::Recipients, vec![Field::User, Field::Recipient], quota)]);
    policy.max_new_budgets = MaxNewBudgets(MAX);
    let store = open(&folder.path().join("state.db"), policy);
    // Mallory's first five recipients use up the maximum of new budgets. Further recipients share one budget, in which
    // three recipients fit.
    assert_eq!(passed(&store.admit(at(0), &asked("mallory", 5), &mut SessionCounters::default()).await.unwrap()), 5);
    let mut others = asked("mallory", 20);
    others.events.drain(..5);
    assert_eq!(passed(&store.admit(at(0), &others, &mut SessionCounters::default()).await.unwrap()), 3);
    let key =
        |user| Key::from_parts("l", "recipients", "ewma", [("user", user), ("recipient", NEW)].into_iter()).unwrap();
    assert_eq!(passed(&store.admit(at(0), &asked("alice", 2), &mut SessionCounters::default()).await.unwrap()), 2);
    let found = store.look(&[key("mallory"), key("alice")]).await.unwrap();
    let levels: Vec<_> = found.iter().map(|budget| budget.as_ref().map(|budget| budget.state.level)).collect();
    assert_eq!(levels, [Some(3.0), Some(2.0)]);
}

#[tokio::test]
async fn keys_without_budgets_are_dropped_from_memory() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("state.db"), per_sender("3.5 / 1d"));
    for n in 0..25_000 {
        send(&store, 0, &sender(n)).await;
    }
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while store.core.cache.len() > 20_000 {
        assert!(tokio::time::Instant::now() < deadline, "{} slots", store.core.cache.len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(levels(&store, &["0@example.net", NEW]).await, [Some(1.0), Some(3.0)]);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(24))]

    /// With any messages at any times, no budget exceeds its limit. No key that has its own budget uses the shared
    /// budget, and no more new budgets are created than the maximum allows.
    #[test]
    fn sharing_budgets_never_exceeds_a_limit(sent in proptest::collection::vec((0u32..30, 0i64..2_000), 1..120), most in 1u32..6) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let folder = tempfile::tempdir().unwrap();
            // The limit is a token bucket, because the number of messages that a token bucket admits is easily
            // computed.
            let rate = parse_rate(&format!("{most} / 100000d"), Units::Things).unwrap();
            let mut limit =
                Limit::new("l", Count::Messages, vec![Field::Sender], Quota::rate(Algorithm::TokenBucket, rate, None));
            (limit.stage, limit.algorithm) = (Stage::Mail, Algorithm::TokenBucket);
            let mut policy = of(vec![limit]);
            policy.max_new_budgets = MaxNewBudgets(MAX);
            let store = open(&folder.path().join("state.db"), policy);
            let key = |sender: &str| Key::from_parts("l", "messages", "token-bucket", [("sender", sender)].into_iter()).unwrap();
            let (mut now, mut by_budget) = (0, BTreeMap::<String, u32>::new());
            for (n, later) in sent {
                now += later;
                let sender = sender(n);
                let passed = is_passed(&send(&store, now, &sender).await);
                let has_own = store.look(&[key(&sender)]).await.unwrap()[0].is_some();
                assert!(has_own || !by_budget.contains_key(&sender), "{sender} was known");
                let budget = if has_own { sender } else { NEW.to_owned() };
                let count = by_budget.entry(budget).or_default();
                *count += u32::from(passed);
                assert!(*count <= most, "{count} of {most}");
            }
            let made = by_budget.keys().filter(|key| *key != NEW).count() as f64;
            let allowed = f64::from(MAX) * (1.0 + now as f64 / 3_600.0);
            assert!(made <= allowed, "{made} of {allowed}");
        });
    }
}
