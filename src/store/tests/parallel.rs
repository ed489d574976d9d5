//! What parallel acts get is what some order gives.

use super::*;

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
