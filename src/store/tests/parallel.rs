//! Tests that parallel transactions have the same results as if they had run one after the other in some order.

use super::*;
use crate::policy::InMemoryStore;
use crate::policy::budgets::RefundWhen;
use crate::policy::limit::{Charge, Mode, Scope, Share};
use crate::policy::matching::Widths;
use crate::policy::request::Stage;

#[tokio::test(flavor = "multi_thread")]
async fn parallel_decisions_never_exceed_a_limit() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(open(&folder.path().join("state.db")).unwrap());
    let tasks: Vec<_> = (0..200)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                passed(&store.admit(at(0), &asked("alice", 3), &mut SessionCounters::default()).await.unwrap())
            })
        })
        .collect();
    let mut total = 0;
    for task in tasks {
        total += task.await.unwrap();
    }
    // All transactions run at the same time `now`. In any order, the hundredth recipient would raise the rate to 100,
    // which exceeds the limit, as in Exim.
    assert_eq!(total, 99);
}

/// Lets 20,000 events per second arrive for 10 s, each event up to 5 ms late. No more events are accepted than if the
/// events arrived in order.
#[tokio::test]
async fn decisions_out_of_order_do_not_make_time_pass_twice() {
    let folder = tempfile::tempdir().unwrap();
    let options = super::options(&folder.path().join("state.db"));
    let store = Store::open(&options, policy("1K / 1s"), Arc::new(Metrics::new().unwrap())).unwrap();
    let mut total = 0;
    for n in 0..2_000i64 {
        let lag = (n * 7919) % 5_000;
        let now = Timestamp::from_micros(at(0).micros() + n * 5_000 - lag);
        total += passed(&store.admit(now, &asked("alice", 100), &mut SessionCounters::default()).await.unwrap());
    }
    // 11,000 is the envelope E(10 s) of the moving average.
    assert!((10_000..=11_000).contains(&total), "{total}");
}

/// Transactions in the order in which the store ran them. Each entry has the time, the request, the session counters
/// before the transaction, and the verdicts as text.
type Log = std::sync::Mutex<Vec<(Timestamp, PolicyRequest, SessionCounters, String)>>;

/// Returns a policy with a limit per user, a limit per client, and a limit on each user's new recipients.
fn three_limits() -> Policy {
    let mut buckets = limit("clients", Field::Client(Widths::default()), "300 / 1h");
    buckets.algorithm = Algorithm::TokenBucket;
    buckets.quota = Quota::rate(buckets.algorithm, parse_rate("300 / 1h", Units::Things).unwrap(), None);
    let mut strangers = limit("strangers", Field::User, "40 / 1d");
    strangers.distinct = Some(Distinct::new(Field::Recipient));
    of(vec![limit("users", Field::User, "100 / 1d"), buckets, strangers])
}

/// Returns a policy with limits of many forms.
fn many_forms() -> Policy {
    let form = |name: &str, count, per: &[Field], quota| Limit::new(name, count, per.to_vec(), quota);
    let rate = |rate| Quota::rate(Algorithm::Ewma, parse_rate(rate, Units::Things).unwrap(), None);
    let counter = |scope, most| Quota::Counter { scope, most };
    let share = Share { most: 0.3, period: Duration::from_secs(3_600), of: Count::Recipients, at_least: 5.0 };
    let client = Field::Client(Widths::default());
    let mut limits = vec![
        form("attempts", Count::Recipients, &[Field::User], rate("80 / 1h")),
        form("shadow", Count::Recipients, &[client], rate("50 / 1h")),
        form("sent", Count::Messages, &[Field::User, client], rate("40 / 1d")),
        form("octets", Count::Bytes, &[Field::User], rate("9K / 1d")),
        form("at-once", Count::Sessions, &[client], counter(Scope::AtOnce, 90.0)),
        form("in-message", Count::Recipients, &[], counter(Scope::Message, 3.0)),
        form("in-connection", Count::Messages, &[], counter(Scope::Connection, 4.0)),
        form("rejections", Count::Rejections, &[Field::User], Quota::Share(share)),
        form("domains", Count::Messages, &[Field::RecipientDomain], rate("900 / 1d")),
        form("strangers", Count::Recipients, &[Field::User], rate("60 / 1d")),
        form("eye", Count::Messages, &[], Quota::Unlimited),
    ];
    (limits[0].charge, limits[1].mode, limits[2].charge) = (Charge::Attempts, Mode::Shadow, Charge::Sent);
    let month = Some(Duration::from_secs(30 * 86_400));
    limits[9].distinct = Some(Distinct { remember: month, ..Distinct::new(Field::Recipient) });
    (limits[10].watch, limits[10].stage) = (Some(0), Stage::Data);
    of(limits)
}

/// Returns the lists of events of a session, in their order.
fn dialogue(recipients: usize) -> Vec<Vec<Event>> {
    let to = |n: usize| Event::Recipient(format!("r{n}@example{}.net", n % 3).into());
    let envelope = [Event::Mail].into_iter().chain((0..recipients).map(to)).collect();
    vec![
        vec![Event::Connect],
        envelope,
        vec![Event::Rejected(Some("r0@example0.net".into()))],
        vec![Event::Message],
        vec![Event::End { size: Some(700) }],
    ]
}

/// Runs a thousand tasks, which decide on requests of this many users and clients. Checks that the verdicts, and the
/// file afterwards, are the same as after a serial run. The serial run has the order in which the store ran the
/// transactions.
async fn is_serial(policy: fn() -> Policy, users: u64, clients: u64) {
    let folder = tempfile::tempdir().unwrap();
    let options = super::options(&folder.path().join("state.db"));
    let store = Store::open(&options, policy(), Arc::new(Metrics::new().unwrap())).unwrap();
    let (store, log, policy) = (Arc::new(store), Arc::new(Log::default()), Arc::new(policy()));
    let tasks: Vec<_> = (0..1000u64)
        .map(|task| {
            let (store, log, policy) = (store.clone(), log.clone(), policy.clone());
            tokio::spawn(async move {
                let random = task.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
                let mut asked = asked(&format!("user{}", random % users), 0);
                asked.facts.client = Some(std::net::Ipv4Addr::from((random >> 16) as u32 % clients as u32).into());
                (asked.facts.size, asked.facts.recipients) = (Some(500), vec!["r0@example0.net".into()]);
                let mut counters = SessionCounters::default();
                for events in dialogue(1 + (random >> 8) as usize % 4) {
                    asked.events = events;
                    let now = Timestamp::from_micros(at(0).micros() + (task / 7) as i64 * 1_000_000);
                    let plan = Plan::new(&policy, &asked, now);
                    let decide = |now, loaded: &mut Loaded| {
                        let before = counters.clone();
                        let verdicts = policy::decide(&policy, now, &asked, &plan, loaded, &mut counters);
                        // The budgets are locked here, so transactions that share a budget are logged in the order in
                        // which they ran.
                        log.lock().unwrap().push((now, asked.clone(), before, format!("{verdicts:?}")));
                    };
                    store.transact(now, plan.keys(), decide).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    Arc::into_inner(store).unwrap().close().await;

    let mut serial = InMemoryStore::new(Policy::clone(&policy));
    let log = Arc::into_inner(log).unwrap().into_inner().unwrap();
    assert_eq!(log.len(), 5000);
    for (now, asked, mut counters, told) in log {
        assert_eq!(format!("{:?}", serial.admit(now, &asked, &mut counters)), told);
    }
    // Volatile budgets are not in the file.
    let budgets: std::collections::BTreeMap<_, _> =
        serial.into_budgets().filter(|(key, _)| !key.is_volatile()).collect();
    let file = File::open_to_read(&options.path).unwrap();
    let mut kept = std::collections::BTreeMap::new();
    file.rows_between(i64::MIN, i64::MAX, |hashed_key, budget| drop(kept.insert(hashed_key.key, budget))).unwrap();
    assert_eq!(kept, budgets);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_thousand_tasks_on_one_budget_are_serializable() {
    is_serial(three_limits, 1, 1).await;
    is_serial(many_forms, 1, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_thousand_tasks_on_many_budgets_are_serializable() {
    is_serial(three_limits, 20, 7).await;
    is_serial(many_forms, 20, 7).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parallel_refunds_remove_their_charges_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let store = Arc::new(open(&path).unwrap());
    let limits = policy("100 / 1d");
    let plan = Plan::new(&limits, &asked("alice", 1), at(0));
    let keys: Vec<Key> = plan.keys().map(|key| key.owned()).collect();
    // Each task charges 3 and refunds 2, all at the same time `now`.
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let (store, keys) = (store.clone(), keys.clone());
            tokio::spawn(async move {
                let charge = |now, loaded: &mut Loaded| {
                    let before = loaded.states().next().flatten();
                    let (policy, asked) = (policy("100 / 1d"), asked("alice", 2));
                    let plan = Plan::new(&policy, &asked, now);
                    policy::decide(&policy, now, &asked, &plan, loaded, &mut SessionCounters::default());
                    crate::engine::Receipt { before, after: loaded.states().next().flatten().unwrap() }
                };
                store.admit(at(0), &asked("alice", 1), &mut SessionCounters::default()).await.unwrap();
                let receipt = store.transact(at(0), keys.iter().map(Key::borrowed), charge).await.unwrap();
                let rule = policy("100 / 1d").limits[0].quota.rule().unwrap();
                let charged = RefundableCharge { key: keys[0].clone(), receipt, rule, until: RefundWhen::Sent };
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
