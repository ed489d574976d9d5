//! Nodes without Redis: limits hold for each node, and charges are added later.

use super::*;
use crate::policy::limit::Charge;

fn bucket(rate: &str) -> Policy {
    let quota = Quota::rate(Algorithm::TokenBucket, parse_rate(rate, Units::Things).unwrap(), None);
    of(vec![Limit::new("l", Count::Recipients, vec![Field::User], quota)])
}

async fn until_degraded(store: &Store) {
    let began = Instant::now();
    while store.health() == Health::Good {
        assert!(began.elapsed() < Duration::from_secs(10));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_go_on_from_the_state_last_seen_and_merge_their_charges() {
    let mut redis = Redis::launch().await;
    let nodes = redis.nodes(2, &bucket("100 / 1000d"));
    for node in &nodes {
        assert_eq!(admit(node, "alice", 20, at(0)).await, 20);
    }
    assert_eq!(admit(&nodes[0], "alice", 1, at(0)).await, 1);
    redis.kill();
    for node in &nodes {
        until_degraded(node).await;
    }
    // The first node has seen 41. The second one has seen 40.
    assert_eq!(admit(&nodes[0], "alice", 100, at(0)).await, 59);
    assert_eq!(admit(&nodes[1], "alice", 10, at(0)).await, 10);
    // A user that the nodes have not seen counts from 0.
    assert_eq!(admit(&nodes[1], "bob", 30, at(0)).await, 30);
    redis.relaunch().await;
    for node in &nodes {
        until_good(node).await;
    }
    let key = nodes[0].policy().budgets_of("l", &owner("alice"), at(0)).unwrap()[0].key.clone();
    for node in &nodes {
        assert_eq!(node.look(std::slice::from_ref(&key)).await.unwrap()[0].as_ref().unwrap().state.level, 110.0);
        assert_eq!(admit(node, "alice", 1, at(0)).await, 0);
    }
    assert_eq!(admit(&nodes[0], "bob", 100, at(0)).await, 70);
    close(nodes).await;
}

/// If Redis does not reply, no transaction waits longer than the deadline.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_hangs_delays_nobody_longer_than_the_deadline() {
    let redis = Redis::launch().await;
    let nodes = redis.nodes(1, &bucket("100 / 1000d"));
    assert_eq!(admit(&nodes[0], "alice", 20, at(0)).await, 20);
    redis.signal(Signal::STOP);
    let began = Instant::now();
    assert_eq!(admit(&nodes[0], "alice", 100, at(0)).await, 80);
    let waited = began.elapsed();
    assert!(waited < Duration::from_millis(1_900), "{waited:?}");
    assert!(matches!(nodes[0].health(), Health::Degraded(reason) if reason.contains("Redis")));
    redis.signal(Signal::CONT);
    until_good(&nodes[0]).await;
    // Redis may have got the charges before it was stopped, so they may count twice, and never less than once.
    assert_eq!(admit(&nodes[0], "alice", 1, at(0)).await, 0);
    close(nodes).await;
}

/// Another node changes a budget, and then Redis is slow, so that half of the deadline has passed when this node hears of
/// the change. A decision is given up then. What has happened, and a refund, are charged nevertheless.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_refused_is_not_given_up() {
    let redis = Redis::launch().await;
    let path = redis.folder.path().join("slow.db");
    let mut slow = redis.options(&path);
    slow.shared.as_mut().unwrap().deadline = Duration::from_secs(3);
    let recipients = Limit { charge: Charge::Sent, ..bucket("100 / 1000d").limits[0].clone() };
    let rejections = Limit::new("rejections", Count::Rejections, recipients.per.clone(), recipients.quota);
    let policy = of(vec![recipients, rejections]);
    let store = Store::open(&slow, policy.clone(), Arc::new(Metrics::new().unwrap())).unwrap();
    let other = redis.nodes(1, &policy).remove(0);
    let decided = store.admit(at(0), &asked("alice", 20), &mut SessionCounters::default()).await.unwrap();
    let rejected = PolicyRequest { events: vec![Event::Rejected(None)], ..asked("alice", 0) };
    store.admit(at(0), &rejected, &mut SessionCounters::default()).await.unwrap();
    for node in [&other, &store] {
        assert_eq!(admit(node, "bob", 1, at(0)).await, 1);
    }
    assert_eq!(admit(&other, "alice", 4, at(0)).await, 4);
    other.admit(at(0), &rejected, &mut SessionCounters::default()).await.unwrap();
    assert_eq!(admit(&other, "bob", 1, at(0)).await, 1);
    redis.signal(Signal::STOP);
    let charges: Vec<RefundableCharge> = decided.verdicts.iter().flat_map(|verdict| verdict.charges.clone()).collect();
    let (mut counters, mut others) = (SessionCounters::default(), SessionCounters::default());
    let bobs = asked("bob", 1);
    let (refunded, charged, refused, ()) = tokio::join!(
        store.give_back(at(0), &charges),
        store.admit(at(0), &rejected, &mut counters),
        store.admit(at(0), &bobs, &mut others),
        async {
            tokio::time::sleep(Duration::from_millis(1_600)).await;
            redis.signal(Signal::CONT);
        },
    );
    assert_eq!((refunded, charged.is_ok(), refused.unwrap_err()), (Ok(()), true, Unavailable));
    assert_eq!((store.health(), store.core.metrics.state.conflicts_given_up.get()), (Health::Good, 1));
    for (limit, user, level) in [("l", "alice", 4.0), ("rejections", "alice", 3.0), ("l", "bob", 3.0)] {
        let key = policy.budgets_of(limit, &owner(user), at(0)).unwrap()[0].key.clone();
        let seen = other.look(&[key]).await.unwrap().remove(0).unwrap().state.level;
        // A transaction that runs again counts at its own time.
        assert!((level - 0.001..=level).contains(&seen), "{limit} of {user}: {seen}");
    }
    close(vec![store, other]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_defer_nothing_is_decided_without_redis() {
    let mut redis = Redis::launch().await;
    let path = redis.folder.path().join("node.db");
    let options = Options { on_failure: OnFailure::Defer, ..redis.options(&path) };
    let store = Store::open(&options, bucket("100 / 1000d"), Arc::new(Metrics::new().unwrap())).unwrap();
    assert_eq!(admit(&store, "alice", 20, at(0)).await, 20);
    redis.kill();
    until_degraded(&store).await;
    let refused = store.admit(at(0), &asked("alice", 1), &mut SessionCounters::default()).await;
    assert_eq!(refused.unwrap_err(), Unavailable);
    redis.relaunch().await;
    until_good(&store).await;
    assert_eq!(admit(&store, "alice", 100, at(0)).await, 80);
    store.close().await;
}

/// The charges of a node that is gone are in Redis.
#[tokio::test(flavor = "multi_thread")]
async fn charges_outlive_a_node() {
    let redis = Redis::launch().await;
    let policy = new_recipients("51 / 1000d", Some(Duration::from_secs(864_000)));
    let nodes = redis.nodes(1, &policy);
    assert_eq!(admit(&nodes[0], "alice", 50, at(0)).await, 50);
    close(nodes).await;
    let nodes = redis.nodes(1, &policy);
    // The recipients are known, and a further one is new.
    assert_eq!(admit(&nodes[0], "alice", 50, at(0)).await, 50);
    assert_eq!(admit(&nodes[0], "alice", 51, at(0)).await, 50);
    close(nodes).await;
}
