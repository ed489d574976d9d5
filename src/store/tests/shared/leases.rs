//! Leases of a global limit: nodes decide without Redis, and together never exceed the limit.

use super::*;
use crate::policy::budgets::RefundableCharge;
use crate::policy::exception::By;
use crate::policy::limit::Charge;

const ALL: f64 = 500.0;
const LEASE: f64 = 10.0;

/// A limit for each user, and a limit for all with leases.
fn limits(user: f64) -> Policy {
    let bucket = |amount: f64| {
        let rate = parse_rate(&format!("{amount} / 100000d"), Units::Things).unwrap();
        Quota::rate(Algorithm::TokenBucket, rate, None)
    };
    let mut all = Limit::new("all", Count::Recipients, vec![], bucket(ALL));
    (all.algorithm, all.lease, all.charge) = (Algorithm::TokenBucket, Some(LEASE), Charge::Sent);
    let user = Limit::new("user", Count::Recipients, vec![Field::User], bucket(user));
    of(vec![user, all])
}

fn key(store: &Store) -> Key {
    store.policy().budgets_of("all", &Owner::from_stored(""), at(0)).unwrap()[0].key.clone()
}

async fn level(store: &Store) -> f64 {
    let looked = store.look(&[key(store)]).await.unwrap();
    looked[0].as_ref().map_or(0.0, |budget| budget.state.level.round())
}

fn rest(store: &Store) -> f64 {
    store.rest_of_lease(&key(store), at(0)).unwrap().round()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_taken_spent_and_returned() {
    let redis = Redis::launch().await;
    let mut nodes = redis.nodes(2, &limits(1_000.0));
    assert_eq!(admit(&nodes[0], "alice", 1, at(0)).await, 1);
    assert_eq!((rest(&nodes[0]), rest(&nodes[1])), (LEASE, 0.0));
    assert_eq!(admit(&nodes[0], "alice", 4, at(0)).await, 4);
    assert_eq!(rest(&nodes[0]), LEASE - 4.0);
    assert_eq!((level(&nodes[0]).await, level(&nodes[1]).await), (5.0, 11.0));
    // The rest is missing on the other node, which takes what there is.
    assert_eq!(admit(&nodes[1], "alice", 500, at(0)).await, 489);
    assert_eq!(admit(&nodes[0], "alice", 1, at(0)).await, 1);
    nodes.remove(0).close().await;
    assert_eq!(admit(&nodes[0], "alice", 500, at(0)).await, 5);
    close(nodes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_limit_refuses_is_not_spent() {
    let redis = Redis::launch().await;
    let nodes = redis.nodes(1, &limits(5.0));
    assert_eq!(admit(&nodes[0], "alice", 8, at(0)).await, 5);
    assert_eq!((level(&nodes[0]).await, rest(&nodes[0])), (5.0, LEASE));
    assert_eq!(admit(&nodes[0], "bob", 8, at(0)).await, 5);
    assert_eq!((level(&nodes[0]).await, rest(&nodes[0])), (10.0, LEASE - 5.0));
    close(nodes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_ends_the_leases_of_all_nodes() {
    let redis = Redis::launch().await;
    let nodes = redis.nodes(3, &limits(1_000.0));
    for node in &nodes {
        assert_eq!(admit(node, "alice", 1, at(0)).await, 1);
    }
    let because = (By::Administrator("root".into()), "".into());
    nodes[1].reset(("all", &Owner::from_stored("")), Loaded::reset, because, at(0)).await.unwrap();
    until(|| nodes.iter().all(|node| rest(node) == 0.0)).await;
    assert_eq!(admit(&nodes[2], "alice", 600, at(0)).await, 500);
    assert_eq!(admit(&nodes[0], "alice", 1, at(0)).await, 0);
    close(nodes).await;
}

/// The level alone does not show the reset.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_from_before_a_reset_ends_if_the_level_is_the_same_again() {
    let redis = Redis::launch().await;
    let nodes = redis.nodes(2, &limits(1_000.0));
    assert_eq!(admit(&nodes[0], "alice", 1, at(0)).await, 1);
    let because = (By::Administrator("root".into()), "".into());
    nodes[1].reset(("all", &Owner::from_stored("")), Loaded::reset, because, at(0)).await.unwrap();
    assert_eq!(admit(&nodes[1], "alice", 1, at(0)).await, 1);
    until(|| rest(&nodes[0]) == 0.0).await;
    assert_eq!((level(&nodes[1]).await, rest(&nodes[1])), (1.0, LEASE));
    close(nodes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_without_leases_returns_the_rest() {
    let redis = Redis::launch().await;
    let nodes = redis.nodes(2, &limits(1_000.0));
    assert_eq!(admit(&nodes[0], "alice", 1, at(0)).await, 1);
    assert_eq!(admit(&nodes[1], "alice", 500, at(0)).await, 489);
    let without = Policy::new(
        limits(1_000.0).limits.iter().map(|limit| Limit { lease: None, ..limit.clone() }).collect(),
        AddressNormalizer::default(),
        Zone::default(),
    );
    nodes.iter().for_each(|node| drop(node.set_policy(without.clone())));
    until(|| nodes.iter().all(|node| node.rest_of_lease(&key(node), at(0)).is_none())).await;
    assert_eq!(admit(&nodes[1], "alice", 500, at(0)).await, 10);
    close(nodes).await;
}

/// Without Redis, a node cannot know whether its lease is still good. What it counts meanwhile is added later.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_gives_up_its_lease_when_redis_is_away() {
    let mut redis = Redis::launch().await;
    let nodes = redis.nodes(2, &limits(1_000.0));
    assert_eq!(admit(&nodes[0], "alice", 1, at(0)).await, 1);
    let mut charged = 1.0;
    for spent in [4, 8] {
        let given_up = rest(&nodes[0]);
        redis.kill();
        until(|| nodes.iter().all(|node| node.health() != Health::Good)).await;
        assert_eq!(rest(&nodes[0]), 0.0);
        assert_eq!(admit(&nodes[0], "alice", spent, at(0)).await, spent);
        redis.relaunch().await;
        for node in &nodes {
            until_good(node).await;
        }
        charged += given_up + spent as f64;
        assert_eq!(level(&nodes[1]).await, charged + rest(&nodes[0]));
    }
    close(nodes).await;
}

/// Sessions on two users through three nodes, whose budgets they change at the same time, so that decisions run again. Some
/// charges are refunded. At the end, exactly what was admitted is charged.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn decisions_that_run_again_spend_once() {
    let redis = Redis::launch().await;
    let nodes: Arc<Vec<Store>> = Arc::new(redis.nodes(3, &limits(400.0)));
    let session = |n: usize| {
        let nodes = nodes.clone();
        tokio::spawn(async move {
            let (mut admitted, node) = (0, &nodes[n % 3]);
            for round in 0..10 {
                let asked = asked(&format!("user{}", n / 3 % 2), 1);
                let decided = node.admit(at(0), &asked, &mut SessionCounters::default()).await.unwrap();
                let charges: Vec<RefundableCharge> = decided.verdicts[0].charges.clone();
                match (n + round).is_multiple_of(5) && !charges.is_empty() {
                    true => node.give_back(at(0), &charges).await.unwrap(),
                    false => admitted += passed(&decided),
                }
            }
            admitted
        })
    };
    let sessions: Vec<_> = (0..90).map(session).collect();
    let mut admitted = 0;
    for session in sessions {
        admitted += session.await.unwrap();
    }
    let conflicts: u64 = nodes.iter().map(|node| node.core.metrics.state.conflicts.get()).sum();
    assert!(conflicts > 0, "the nodes did not compete");
    close(Arc::try_unwrap(nodes).ok().unwrap()).await;
    let nodes = redis.nodes(1, &limits(1_000.0));
    println!("{admitted} admitted, {conflicts} conflicts, level {}", level(&nodes[0]).await);
    assert!(admitted <= 500 && level(&nodes[0]).await == admitted as f64);
    // A refund is of one user's decision; the next one gets what it has returned.
    assert_eq!(admitted + admit(&nodes[0], "carol", 500, at(0)).await, 500);
    close(nodes).await;
}
