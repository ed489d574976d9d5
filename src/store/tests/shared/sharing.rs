//! Nodes decide like one node.

use super::*;
use crate::policy::InMemoryStore;
use crate::policy::matching::Widths;
use proptest::prelude::*;

/// Limits of several algorithms, and one that counts new recipients.
pub(super) fn many_limits() -> Policy {
    let rate = |text| parse_rate(text, Units::Things).unwrap();
    let bucket = Quota::rate(Algorithm::TokenBucket, rate("20 / 1h"), None);
    let mut distinct = limit("new", Field::User, "12 / 1d");
    distinct.distinct =
        Some(Distinct { remember: Some(Duration::from_secs(86_400)), ..Distinct::new(Field::Recipient) });
    let mut unique = limit("unique", Field::Client(Widths::default()), "30 / 1h");
    unique.distinct = Some(Distinct::new(Field::Recipient));
    of(vec![
        limit("user", Field::User, "15 / 1h"),
        Limit::new("client", Count::Recipients, vec![Field::Client(Widths::default())], bucket),
        Limit::new("all", Count::Recipients, vec![], Quota::rate(Algorithm::Ewma, rate("200 / 1h"), None)),
        distinct,
        unique,
    ])
}

/// Returns a request of a user for recipients with these numbers.
pub(super) fn request(user: u8, recipients: &[u8]) -> PolicyRequest {
    let client = format!("192.0.2.{}", user % 2).parse().ok();
    let facts = Facts { client, user: Some(format!("user{user}").into()), ..Facts::default() };
    let events = recipients.iter().map(|n| Event::Recipient(format!("{n}@example.net").into())).collect();
    PolicyRequest { facts, events, ..PolicyRequest::default() }
}

/// Generates requests: the node, the user, the recipients, and the milliseconds since the previous request.
fn any_requests() -> impl Strategy<Value = Vec<(usize, u8, Vec<u8>, i64)>> {
    let recipients = proptest::collection::vec(0u8..40, 1..6);
    proptest::collection::vec((0usize..3, 0u8..4, recipients, 0i64..2_000_000), 1..60)
}

/// Three nodes in turns decide on any requests exactly as one store in memory: the same verdicts, and the same bits of
/// each state.
#[test]
fn nodes_decide_like_a_store_in_memory() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let redis = runtime.block_on(Redis::launch());
    let cases = ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(cases);
    let outcome = runner.run(&any_requests(), |requests| {
        redis.cli(&["flushall"]);
        let policy = many_limits();
        let _runtime = runtime.enter();
        let nodes = redis.nodes(3, &policy);
        let mut model = InMemoryStore::new(policy.clone());
        let (mut now, mut compared) = (at(0), Vec::new());
        for (node, user, recipients, later) in requests {
            now = Timestamp::from_micros(now.micros() + later * 1_000);
            let request = request(user, &recipients);
            let expected = model.admit(now, &request, &mut SessionCounters::default());
            let decided = runtime.block_on(nodes[node].admit(now, &request, &mut SessionCounters::default())).unwrap();
            compared.push((format!("{:?}", decided.verdicts), format!("{expected:?}")));
        }
        for (key, budget) in model.into_budgets() {
            for node in &nodes {
                let looked = runtime.block_on(node.look(std::slice::from_ref(&key))).unwrap();
                let found = looked[0].as_ref().map(|budget| (budget.state, budget.seen.clone()));
                let expected = Some((budget.state, budget.seen.clone()));
                compared.push((format!("{found:?}"), format!("{expected:?}")));
            }
        }
        runtime.block_on(close(nodes));
        for (found, expected) in compared {
            prop_assert_eq!(found, expected);
        }
        Ok(())
    });
    outcome.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_address_is_in_redis_in_clear_text() {
    let redis = Redis::launch().await;
    let nodes = redis.nodes(1, &many_limits());
    assert_eq!(admit(&nodes[0], "alice@example.org", 2, at(0)).await, 2);
    let everything = redis.cli(&["--raw", "keys", "*"]);
    assert!(everything.starts_with("weir:1:{"), "{everything}");
    for key in everything.lines() {
        let value = redis.cli(&["--raw", "get", key]);
        assert!(!key.contains("alice") && !value.contains("alice"), "{key}: {value}");
    }
    close(nodes).await;
}

/// Redis forgets a budget when nothing is left of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_budget_expires_when_it_has_decayed() {
    let redis = Redis::launch().await;
    let nodes = redis.nodes(1, &policy("100 / 1h"));
    assert_eq!(admit(&nodes[0], "alice", 20, at(0)).await, 20);
    let lifetime: u64 = redis.cli(&["pttl", redis.cli(&["--raw", "keys", "*"]).trim()]).trim().parse().unwrap();
    // A moving average of 20 decides like none after less than ln 20 + 2 periods.
    let expected = (20f64.ln() + 2.0) * 3_600_000.0;
    assert!((expected - 1_000.0..expected + 2_000.0).contains(&(lifetime as f64)), "{lifetime} of {expected}");
    close(nodes).await;
}
