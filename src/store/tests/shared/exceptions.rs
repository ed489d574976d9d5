//! Grants, suspensions and the register of direct ways of one node are in force on all nodes.

use super::*;
use crate::policy::egress::{EgressEntry, EgressRule, parse_network};
use crate::policy::exception::{By, Grant, Suspension, Term};

fn term(since: i64, until: i64) -> Term {
    Term { since: at(since), until: at(until), by: By::Administrator("root".into()), reason: "why".into() }
}

fn because() -> (By, Arc<str>) {
    (By::Administrator("carol".into()), "enough".into())
}

fn is_suspended(store: &Store, user: &str) -> bool {
    store.policy().exceptions.suspension_of(&owner(user)).is_some()
}

#[tokio::test(flavor = "multi_thread")]
async fn exceptions_of_one_node_are_in_force_on_all_nodes() {
    let redis = Redis::launch().await;
    let nodes = redis.nodes(2, &policy("10 / 1d"));
    let grant = Grant { limit: "l".into(), owner: owner("alice"), rate: "100 / 1d".into(), term: term(0, 86_400) };
    nodes[0].grant(grant.clone()).await;
    nodes[1].suspend(Suspension::strict(owner("bob"), term(0, 86_400))).await;
    until(|| nodes[1].policy().exceptions.grant_of("l", &owner("alice")).is_some_and(|one| **one == grant)).await;
    until(|| is_suspended(&nodes[0], "bob")).await;
    // Both nodes charge the budget of the grant.
    assert_eq!(admit(&nodes[0], "alice", 60, at(1)).await, 60);
    assert_eq!(admit(&nodes[1], "alice", 60, at(1)).await, 39);
    assert_eq!(admit(&nodes[0], "bob", 1, at(1)).await, 0);
    nodes[0].end_suspension(&owner("bob"), because(), at(2)).await.unwrap();
    until(|| !is_suspended(&nodes[1], "bob")).await;
    assert_eq!(admit(&nodes[1], "bob", 1, at(3)).await, 1);
    let everything = redis.cli(&["--raw", "hgetall", "weir:1:{common}:exceptions"]);
    assert!(!everything.contains("alice"), "{everything}");
    close(nodes).await;
}

/// A node that was away takes over what has changed meanwhile, and gives what it has changed itself.
#[tokio::test(flavor = "multi_thread")]
async fn exceptions_are_exchanged_after_an_absence() {
    let mut redis = Redis::launch().await;
    let mut nodes = redis.nodes(2, &policy("10 / 1d"));
    nodes[0].suspend(Suspension::strict(owner("alice"), term(0, 86_400))).await;
    until(|| is_suspended(&nodes[1], "alice")).await;
    // The second node stops. The first one ends the suspension.
    nodes.pop().unwrap().close().await;
    nodes[0].end_suspension(&owner("alice"), because(), at(1)).await.unwrap();
    until(|| redis.cli(&["hlen", "weir:1:{common}:exceptions"]).trim() == "0").await;
    let path = redis.folder.path().join("node1.db");
    nodes.push(Store::open(&redis.options(&path), policy("10 / 1d"), Arc::new(Metrics::new().unwrap())).unwrap());
    until(|| !is_suspended(&nodes[1], "alice")).await;
    // Redis stops. Each node suspends another user.
    redis.kill();
    nodes[0].suspend(Suspension::strict(owner("bob"), term(2, 86_400))).await;
    nodes[1].suspend(Suspension::strict(owner("carol"), term(2, 86_400))).await;
    redis.relaunch().await;
    for node in &nodes {
        until(|| is_suspended(node, "bob") && is_suspended(node, "carol")).await;
    }
    close(nodes).await;
}

/// A Redis that has lost its data gets the exceptions of the nodes again.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_without_data_gets_the_exceptions_again() {
    let redis = Redis::launch().await;
    let nodes = redis.nodes(2, &policy("10 / 1d"));
    nodes[0].suspend(Suspension::strict(owner("alice"), term(0, 86_400))).await;
    until(|| is_suspended(&nodes[1], "alice")).await;
    redis.cli(&["flushall"]);
    until(|| redis.cli(&["hlen", "weir:1:{common}:exceptions"]).trim() == "1").await;
    nodes[1].suspend(Suspension::strict(owner("bob"), term(0, 86_400))).await;
    until(|| is_suspended(&nodes[0], "bob")).await;
    assert!(nodes.iter().all(|node| is_suspended(node, "alice")));
    close(nodes).await;
}

/// The end of an exception without an end was 1970 on the other nodes.
#[tokio::test(flavor = "multi_thread")]
async fn exceptions_without_an_end_and_the_register_are_shared() {
    let redis = Redis::launch().await;
    let nodes = redis.nodes(2, &policy("10 / 1d"));
    let endless = Term { until: Timestamp::END_OF_9999, ..term(0, 0) };
    nodes[0].suspend(Suspension::strict(owner("alice"), endless.clone())).await;
    let (network, rule) = (parse_network("192.0.2.0/24").unwrap(), EgressRule::Out);
    let entry = EgressEntry { network, rule, owner: "physics".into(), term: endless.clone() };
    nodes[0].register(entry.clone()).await;
    let exceptions = |node: &Store| node.policy().exceptions.clone();
    until(|| exceptions(&nodes[1]).egress().get(entry.key()).is_some_and(|one| **one == entry)).await;
    until(|| exceptions(&nodes[1]).suspension_of(&owner("alice")).is_some_and(|one| one.term == endless)).await;
    nodes[1].unregister(entry.key(), because(), at(1)).await.unwrap();
    until(|| exceptions(&nodes[0]).egress().is_empty()).await;
    close(nodes).await;
}
