//! Leases of a bucket that several nodes share: a node charges an amount ahead, and then spends it without asking.
//!
//! The amount that is charged ahead lies in the bucket like any other charge, behind all that was in the bucket before.
//! It drains when all that is before it has drained, and what has drained cannot be spent any more. So what all nodes
//! spend never exceeds what one bucket admits, and a lease whose node is gone ends by itself. A rest that a node
//! returns keeps its place in the bucket until another node takes it, because the bucket forgets nothing but what has
//! drained.

use super::{Rule, State};
use crate::time::Timestamp;

/// Terms of the leases of a bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    pub rule: Rule,
    /// Amount that a node takes ahead.
    pub amount: f64,
}

/// Amount of a bucket that is charged ahead.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lease {
    /// Amount that was charged, spent or not. Refunds do not raise the rest above it.
    taken: f64,
    /// Amount that is not spent.
    rest: f64,
    /// State of the bucket without all that lies behind the lease.
    end: State,
}

/// Bucket that nodes share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    /// All charges, spent or not.
    pub state: State,
    /// Rests that nodes have returned.
    pub returned: Option<Lease>,
}

/// Part of the burst by which rounding errors can change a level.
const ROUNDING: f64 = 1e-9;

impl Lease {
    /// Returns a lease whose amount is not spent. `end` is the level of the bucket without all that lies behind the
    /// lease, at this time.
    pub fn new(rest: f64, end: f64, at: Timestamp) -> Self {
        Self { taken: rest, rest, end: State { at, level: end } }
    }

    /// Returns the amount and the level at the end, as [`Lease::new`] takes them. They are those of the time of the bucket.
    pub fn parts(&self) -> (f64, f64) {
        (self.rest, self.end.level)
    }

    /// Returns the time for which the level at the end is valid.
    pub fn at(&self) -> Timestamp {
        self.end.at
    }

    /// Returns the lease with this time, if its own time is later.
    pub fn not_after(self, now: Timestamp) -> Self {
        Self { end: State { at: self.end.at.min(now), ..self.end }, ..self }
    }

    /// Returns the amount that is left at the time of the lease. [`Terms::left`] returns it for later times.
    pub fn left(&self) -> f64 {
        self.rest.min(self.end.level)
    }
}

impl Terms {
    /// Returns the level of a state at a time.
    pub fn level(&self, state: State, now: Timestamp) -> f64 {
        self.rule.step(Some(state), now, 0.0).0.level
    }

    /// Returns the amount of a lease that can be spent.
    pub fn left(&self, lease: Option<Lease>, now: Timestamp) -> f64 {
        lease.map_or(0.0, |lease| lease.rest.min(self.level(lease.end, now)))
    }

    /// Returns the level of the bucket for a node with this lease: without the node's own rest, and what was returned.
    pub fn level_for(&self, bucket: &Bucket, lease: Option<Lease>, now: Timestamp) -> f64 {
        let own = self.left(bucket.returned, now) + self.left(lease, now);
        (self.level(bucket.state, now) - own).max(0.0)
    }

    /// Spends an amount of a lease, or refunds it if it is below 0. Returns `None` if the lease does not cover it.
    pub fn spend(&self, lease: Option<Lease>, amount: f64, now: Timestamp) -> Option<Lease> {
        let lease = lease?;
        let rest = self.left(Some(lease), now) - amount;
        let spent = self.with_rest(lease, rest, now);
        (0.0 <= rest && spent.rest == rest).then_some(spent)
    }

    /// Returns the lease with another rest, as far as the lease has room for it.
    pub fn with_rest(&self, lease: Lease, rest: f64, now: Timestamp) -> Lease {
        Lease { rest: rest.min(lease.taken).min(self.level(lease.end, now)), ..lease }
    }

    /// Charges an amount to the lease of a node and, if this is not enough, to the bucket, together with a new lease: as
    /// much as fits. A refund that the lease cannot take is returned. A negative amount is a refund.
    pub fn charge(
        &self,
        bucket: &Bucket,
        lease: Option<Lease>,
        amount: f64,
        now: Timestamp,
    ) -> (Bucket, Option<Lease>) {
        let (level, returned) = (self.level(bucket.state, now), self.left(bucket.returned, now));
        let need = amount - self.left(lease, now);
        let at = |level| State { at: now, level };
        if need <= 0.0 {
            let lease = lease.map(|lease| self.with_rest(lease, -need, now));
            // The place of a refund in the bucket is unknown. The first place is never wrong.
            let excess = -need - lease.map_or(0.0, |lease| lease.rest);
            let returned = self.joined(bucket.returned, Some(Lease::new(excess, excess, now)), now);
            return (Bucket { state: at(level), returned }, lease);
        }
        if let Some(pool) = bucket.returned.filter(|_| need <= returned) {
            let rest = self.amount.min(returned - need);
            let end = at(self.level(pool.end, now));
            let left = returned - need - rest;
            let returned = (left > 0.0).then_some(Lease { taken: left, rest: left, end });
            return (Bucket { state: at(level), returned }, Some(Lease { taken: need + rest, rest, end }));
        }
        let fresh = need - returned;
        let rest = self.amount.min(self.rule.burst() - level - fresh).max(0.0);
        let state = at(level + fresh + rest);
        (Bucket { state, returned: None }, Some(Lease { taken: fresh + rest, rest, end: state }))
    }

    /// Returns the bucket after a node has returned the rest of its lease.
    pub fn give_back(&self, bucket: &Bucket, lease: Option<Lease>, now: Timestamp) -> Bucket {
        let state = State { at: now, level: self.level(bucket.state, now) };
        Bucket { state, returned: self.joined(bucket.returned, lease, now) }
    }

    /// Returns the difference of two levels that can be a rounding error.
    pub fn rounding(&self) -> f64 {
        self.rule.burst() * ROUNDING
    }

    /// Joins the rests of two leases. The rest of the result is never more than the rests of both, however late it is.
    fn joined(&self, one: Option<Lease>, other: Option<Lease>, now: Timestamp) -> Option<Lease> {
        let parts = |lease: Lease| (self.left(Some(lease), now), self.level(lease.end, now));
        let mut all = [one, other].into_iter().flatten().map(parts).filter(|(rest, _)| *rest > 0.0);
        let (rest, end) = all.next()?;
        let (rest, end) = all.next().map_or((rest, end), |(more, other)| {
            // Both could lie where the first of them ends. But they do not overlap, so that not more than what drains from
            // now on can be missing.
            (rest + more, end.min(other).max(rest + more))
        });
        Some(Lease::new(rest, end, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::bucket;
    use proptest::prelude::*;

    const NODES: usize = 4;
    const BURST: f64 = 100.0;

    #[derive(Clone, Debug)]
    enum Act {
        Charge(usize, u8),
        /// Refunds the charge with this number, counted from the last one of the node.
        Refund(usize, usize),
        GiveBack(usize),
        Kill(usize),
    }

    /// Nodes that share a bucket, and all charges that were admitted and not refunded: node, time and amount.
    struct Site {
        terms: Terms,
        bucket: Bucket,
        leases: [Option<Lease>; NODES],
        admitted: Vec<(usize, Timestamp, f64)>,
    }

    impl Site {
        fn new(rate: f64, amount: f64) -> Self {
            let terms = Terms { rule: Rule::Bucket(bucket::Rule::new(BURST, rate)), amount };
            let state = State { at: at(0), level: 0.0 };
            let bucket = Bucket { state, returned: None };
            Self { terms, bucket, leases: [None; NODES], admitted: Vec::new() }
        }

        fn charge(&mut self, node: usize, amount: f64, now: Timestamp) -> bool {
            let lease = self.leases[node];
            if let Some(lease) = self.terms.spend(lease, amount, now) {
                self.leases[node] = Some(lease);
            } else if self.terms.level_for(&self.bucket, lease, now) + amount <= BURST {
                (self.bucket, self.leases[node]) = self.terms.charge(&self.bucket, lease, amount, now);
            } else {
                return false;
            }
            self.admitted.push((node, now, amount));
            true
        }

        fn act(&mut self, act: &Act, now: Timestamp) {
            match *act {
                Act::Charge(node, amount) => _ = self.charge(node, f64::from(amount), now),
                Act::Refund(node, number) => {
                    let mut own = (0..self.admitted.len()).rev().filter(|index| self.admitted[*index].0 == node);
                    let Some(index) = own.nth(number) else { return };
                    let (_, then, amount) = self.admitted.remove(index);
                    // Only the part that has not drained since is returned, as in a refund of a bucket.
                    let amount = self.terms.level(State { at: then, level: amount }, now);
                    let lease = self.leases[node];
                    match self.terms.spend(lease, -amount, now) {
                        Some(lease) => self.leases[node] = Some(lease),
                        None => (self.bucket, self.leases[node]) = self.terms.charge(&self.bucket, lease, -amount, now),
                    }
                }
                Act::GiveBack(node) => {
                    self.bucket = self.terms.give_back(&self.bucket, self.leases[node].take(), now);
                }
                Act::Kill(node) => self.leases[node] = None,
            }
        }

        /// Returns the highest level of a bucket with all admitted charges.
        fn highest(&self) -> f64 {
            let step = |(state, highest): (Option<State>, f64), (_, now, amount): &(usize, Timestamp, f64)| {
                let (state, outcome) = self.terms.rule.step(state, *now, *amount);
                (Some(state), highest.max(outcome.level))
            };
            self.admitted.iter().fold((None, 0.0), step).1
        }
    }

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_micros(millis * 1_000)
    }

    fn any_act() -> impl Strategy<Value = Act> {
        prop_oneof![
            12 => (0..NODES, 1u8..30).prop_map(|(node, amount)| Act::Charge(node, amount)),
            3 => (0..NODES, 0..4usize).prop_map(|(node, number)| Act::Refund(node, number)),
            3 => (0..NODES).prop_map(Act::GiveBack),
            1 => (0..NODES).prop_map(Act::Kill),
        ]
    }

    /// Acts, each with the milliseconds since the former one: bursts, and pauses in which much or all drains.
    fn any_acts() -> impl Strategy<Value = Vec<(i64, Act)>> {
        let pause = prop_oneof![4 => 0i64..20, 2 => 0i64..3_000, 1 => 0i64..60_000];
        proptest::collection::vec((pause, any_act()), 1..200)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

        /// In each window, the nodes together admit no more than one bucket.
        #[test]
        fn nodes_with_leases_never_admit_more_than_one_bucket(
            acts in any_acts(), amount in 0.0f64..60.0, rate in prop_oneof![Just(0.0), 0.01f64..20.0]
        ) {
            let (mut site, mut now) = (Site::new(rate, amount), 0);
            for (pause, act) in acts {
                now += pause;
                site.act(&act, at(now));
                let highest = site.highest();
                prop_assert!(highest <= BURST * (1.0 + ROUNDING), "{act:?} at {now}: {highest}");
            }
        }

        /// A node that is alone admits exactly what a bucket without leases admits.
        #[test]
        fn a_node_alone_decides_as_without_leases(
            charges in proptest::collection::vec((0i64..3_000, 1u8..40), 1..200), amount in 0.0f64..60.0
        ) {
            let (mut site, mut now, mut state) = (Site::new(5.0, amount), 0, None);
            for (pause, amount) in charges {
                now += pause;
                let (next, outcome) = site.terms.rule.step(state, at(now), f64::from(amount));
                // A sum that is rounded elsewhere decides otherwise only at the brim.
                prop_assume!((outcome.level - BURST).abs() > BURST * ROUNDING);
                prop_assert_eq!(site.charge(0, f64::from(amount), at(now)), !outcome.over, "at {}", now);
                if !outcome.over {
                    state = Some(next);
                }
            }
        }
    }

    #[test]
    fn a_node_that_gets_no_lease_takes_exactly_what_it_needs() {
        let mut site = Site::new(0.0, 10.0);
        assert!(site.charge(0, 85.0, at(0)), "the first node has a rest of 10");
        assert!(site.charge(1, 3.0, at(0)) && site.charge(1, 2.0, at(0)));
        assert!(!site.charge(1, 1.0, at(0)));
        for _ in 0..10 {
            assert!(site.charge(0, 1.0, at(0)));
        }
        assert!(!site.charge(0, 1.0, at(0)));
        assert_eq!(site.highest(), BURST);
    }

    /// The places of refunds are unknown, but nothing of them is lost.
    #[test]
    fn refunds_that_a_lease_cannot_take_are_not_lost() {
        let mut site = Site::new(0.0, 0.0);
        (0..4).for_each(|_| assert!(site.charge(0, 25.0, at(0))));
        (0..3).for_each(|_| site.act(&Act::Refund(0, 0), at(0)));
        site.act(&Act::GiveBack(0), at(0));
        assert!(site.charge(1, 75.0, at(0)) && !site.charge(1, 1.0, at(0)));
    }

    #[test]
    fn another_node_takes_what_a_node_has_returned() {
        let mut site = Site::new(0.0, 50.0);
        assert!(site.charge(0, 50.0, at(0)) && !site.charge(1, 1.0, at(0)));
        site.act(&Act::GiveBack(0), at(0));
        assert!(site.charge(1, 50.0, at(0)) && !site.charge(0, 1.0, at(0)));
    }

    #[test]
    fn the_lease_of_a_killed_node_drains() {
        let mut site = Site::new(1.0, 50.0);
        assert!(site.charge(0, 50.0, at(0)));
        site.act(&Act::Kill(0), at(0));
        assert!(!site.charge(1, 30.0, at(29_000)) && site.charge(1, 30.0, at(30_000)));
    }
}
