//! Batches of several nodes, whose replies arrive in an order that a real Redis shows rarely.

use super::reading::{ReadBudget, ReadFilter};
use super::*;
use crate::policy::address::AddressNormalizer;
use crate::policy::budgets::Owner;
use crate::policy::limit::{Algorithm, Count, Limit, Quota};
use crate::policy::matching::{Field, Zone};
use crate::store::shared::value::{Stored, version};
use crate::time::{Units, parse_rate};
use std::collections::BTreeMap;

const LEASE: f64 = 10.0;
const SLOW: &str = "500 / 100000d";
const FAST: &str = "500 / 500s";

/// Budgets that the nodes share: one of a user, and one of all.
struct Site {
    stored: BTreeMap<Key, Vec<u8>>,
    policy: Policy,
    /// True if each budget is a part of its own, as in a Cluster.
    by_tag: bool,
}

fn policy(rate: &str) -> Policy {
    let bucket = |rate: &str| Quota::rate(Algorithm::TokenBucket, parse_rate(rate, Units::Things).unwrap(), None);
    let mut all = Limit::new("all", Count::Recipients, vec![], bucket(rate));
    (all.algorithm, all.lease) = (Algorithm::TokenBucket, Some(LEASE));
    let mut user = Limit::new("user", Count::Recipients, vec![Field::User], bucket("1000 / 100000d"));
    user.algorithm = Algorithm::TokenBucket;
    Policy::new(vec![user, all], AddressNormalizer::default(), Zone::default())
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(seconds * 1_000_000)
}

impl Site {
    fn new(rate: &str, by_tag: bool) -> Self {
        Self { stored: BTreeMap::new(), policy: policy(rate), by_tag }
    }

    fn without_leases(mut self) -> Self {
        let without = |limit: &Limit| Limit { lease: None, ..limit.clone() };
        let limits = self.policy.limits.iter().map(without).collect();
        self.policy = Policy::new(limits, AddressNormalizer::default(), Zone::default());
        self
    }

    fn key(&self, limit: &str) -> Key {
        let owner = if limit == "all" { "" } else { "user=alice" };
        self.policy.budgets_of(limit, &Owner::from_stored(owner), at(0)).unwrap()[0].key.clone()
    }

    fn node(&self) -> Cells {
        let cells = Cells::new(Namer::new("weir", None), Duration::from_secs(1), &self.policy);
        cells.set_back(&self.policy);
        self.read(&cells);
        cells
    }

    fn read(&self, node: &Cells) {
        let read = |limit| {
            let key = self.key(limit);
            let confirmed = Confirmed::decode(self.stored.get(&key).map(Vec::as_slice));
            ReadBudget { key, confirmed, filter: ReadFilter::None }
        };
        node.take_read(["all", "user"].map(read).into(), Instant::now(), &self.policy);
    }

    /// Charges an amount to these budgets, or refunds it if it is below 0.
    fn charge(&self, node: &Cells, limits: &[&str], amount: f64, now: i64) {
        let keys: Vec<Key> = limits.iter().map(|limit| self.key(limit)).collect();
        let keys: Vec<KeyRef<'_>> = keys.iter().map(Key::borrowed).collect();
        let rule = self.policy.limits[1].rule().unwrap();
        let ran = node.run((at(now), Instant::now()), &keys, |now, loaded| {
            for index in 0..limits.len() {
                let mut slot: Slot = loaded.take(index);
                let (mut state, _) = rule.step(slot.budget.as_ref().map(|budget| budget.state), now, 0.0);
                state.level = (state.level + amount).max(0.0);
                slot.budget = Some(Budget { state, ..slot.budget.unwrap_or(Budget::new(state)) });
                slot.change = Some(Change::default());
                loaded.put(index, slot);
            }
        });
        assert!(!matches!(ran, Ran::NotLoaded { .. }));
    }

    /// Does what Redis does with a part.
    fn write(&mut self, part: &Part) -> Reply {
        let version = |sent: &SentCell| self.stored.get(&sent.key).and_then(|octets| version(octets)).unwrap_or(0);
        if part.0.iter().any(|sent| version(sent) != sent.expected) {
            return Reply::Conflict(part.0.iter().map(|sent| self.stored.get(&sent.key).cloned()).collect());
        }
        for sent in &part.0 {
            let write = sent.write.as_ref().map(|write| write.state.clone());
            self.stored.extend(write.map(|state| (sent.key.clone(), state)));
        }
        Reply::Done
    }

    fn finish(&mut self, node: &Cells, batch: Batch) {
        let mut replies = Vec::new();
        for group in &batch.groups {
            let mut of_group: Vec<Reply> = Vec::new();
            for part in group {
                let is_sent = of_group.first().is_none_or(|first| matches!(first, Reply::Done));
                of_group.push(if is_sent { self.write(part) } else { Reply::NotSent });
            }
            replies.push(of_group);
        }
        if !node.settle(batch, replies, &self.policy).to_load.is_empty() {
            self.read(node);
        }
    }

    fn send(&mut self, node: &Cells) {
        while let Some(batch) = node.take_batch(self.by_tag) {
            self.finish(node, batch);
        }
    }

    fn rest(&self, node: &Cells, now: i64) -> f64 {
        node.rest_of_lease(self.key("all").borrowed(), at(now)).unwrap_or(0.0)
    }

    /// Returns what the nodes have charged to the budget of all, without what they and others can still spend.
    fn charged(&self, nodes: &[&Cells]) -> f64 {
        let (stored, _) = Stored::decode(&self.stored[&self.key("all")]).unwrap();
        let rests: f64 = nodes.iter().map(|node| self.rest(node, 0)).sum();
        (stored.state.level - stored.returned.map_or(0.0, |returned| returned.left()) - rests).round()
    }
}

#[test]
fn a_lease_is_given_up_if_the_reply_to_its_return_is_lost() {
    let mut site = Site::new(SLOW, false);
    let one = site.node();
    site.charge(&one, &["all"], 1.0, 0);
    site.send(&one);
    one.return_leases(true);
    let batch = one.take_batch(false).unwrap();
    assert!(matches!(site.write(&batch.groups[0][0]), Reply::Done));
    one.set_away(Some(batch), &site.policy);
    one.set_back(&site.policy);
    site.read(&one);
    site.send(&one);
    assert_eq!(site.rest(&one, 0), 0.0);
    assert!(site.charged(&[&one]) >= 1.0);
}

#[test]
fn what_a_node_owes_is_charged_although_its_group_runs_again() {
    let mut site = Site::new(SLOW, true);
    let (one, other) = (site.node(), site.node());
    one.set_away(None, &site.policy);
    site.charge(&one, &["all"], 20.0, 0);
    one.set_back(&site.policy);
    site.read(&one);
    site.charge(&other, &["user"], 1.0, 0);
    site.send(&other);
    // The part of all is written, and that of the user is not.
    site.charge(&one, &["user", "all"], 1.0, 0);
    site.send(&one);
    site.read(&one);
    site.charge(&one, &["user", "all"], 1.0, 0);
    site.send(&one);
    assert_eq!(site.charged(&[&one]), 21.0);
}

/// The part of all is written, and that of the user is not. Another node takes what was refunded before it is put back.
#[test]
fn a_refund_that_runs_again_refunds_once() {
    for mut site in [Site::new(SLOW, true), Site::new(SLOW, true).without_leases()] {
        let (one, other) = (site.node(), site.node());
        site.charge(&one, &["user", "all"], 100.0, 0);
        site.send(&one);
        one.return_leases(true);
        site.send(&one);
        site.read(&other);
        site.charge(&other, &["user"], 1.0, 0);
        site.send(&other);
        site.charge(&one, &["user", "all"], -5.0, 0);
        let batch = one.take_batch(true).unwrap();
        site.finish(&one, batch);
        site.read(&other);
        site.charge(&other, &["all"], 15.0, 0);
        site.send(&other);
        site.send(&one);
        site.read(&one);
        site.charge(&one, &["user", "all"], -5.0, 0);
        site.send(&one);
        assert_eq!(site.charged(&[&one, &other]), 100.0 + 15.0 - 5.0);
    }
}

/// A decision runs again, and meanwhile its lease has changed so that Redis has to be told. Another node is faster there,
/// too.
#[test]
fn what_was_spent_of_a_lease_is_put_back_although_another_node_is_faster_twice() {
    for amount in [-3.0, 3.0] {
        let mut site = Site::new(SLOW, false);
        let (one, other) = (site.node(), site.node());
        for amount in [5.0, 3.0] {
            site.charge(&one, &["user", "all"], amount, 0);
            site.send(&one);
        }
        site.read(&other);
        site.charge(&other, &["user"], 1.0, 0);
        site.send(&other);
        site.charge(&one, &["user", "all"], amount, 0);
        let batch = one.take_batch(false).unwrap();
        let (spent, left) = (site.rest(&one, 0), 12.0);
        site.charge(&one, &["all"], if amount < 0.0 { spent } else { left }, 0);
        site.finish(&one, batch);
        site.charge(&other, &["all"], 1.0, 0);
        site.send(&other);
        site.send(&one);
        site.read(&one);
        let before = site.charged(&[&one, &other]);
        site.charge(&one, &["user", "all"], amount, 0);
        site.send(&one);
        assert_eq!(site.charged(&[&one, &other]), before + amount);
        // The second charge of this node is certain only as far as the lease covered it; the rest runs again.
        let certain = if amount < 0.0 { spent } else { 0.0 };
        assert_eq!(before, 8.0 + 1.0 + certain, "{amount}");
    }
}

#[test]
fn a_time_of_a_wrong_clock_is_corrected() {
    let mut site = Site::new("500 / 1d", false);
    let wrong = site.node();
    site.charge(&wrong, &["all"], 100.0, 10 * 86_400);
    site.send(&wrong);
    let right = site.node();
    for hour in 0..3 {
        site.charge(&right, &["all"], 20.0, hour * 3_600);
        site.send(&right);
        site.read(&right);
    }
    let (stored, _) = Stored::decode(&site.stored[&site.key("all")]).unwrap();
    assert!(stored.state.at <= at(2 * 3_600), "{:?}", stored.state);
}

#[test]
fn a_reload_with_a_lower_rate_does_not_revive_a_lease() {
    let mut site = Site::new(FAST, false);
    let one = site.node();
    site.charge(&one, &["all"], 1.0, 0);
    site.send(&one);
    assert!(site.rest(&one, 9) < 3.0);
    one.set_policy(&policy(SLOW));
    site.read(&one);
    assert_eq!(site.rest(&one, 9), 0.0);
}
