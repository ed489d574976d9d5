//! Fullness of the budgets of one limit, for scans of all budgets in memory. A scan sees each budget for well below a
//! microsecond, because no decision on the scanned part of the budgets can be made meanwhile.

use super::budget_view::level_of;
use super::budgets::{KeyRef, Owner, SEPARATOR};
use super::limit::{Limit, Quota};
use super::{BudgetViews, Policy};
use crate::engine::{Rule, State};
use crate::time::Timestamp;

/// Scan of the budgets of one limit.
pub struct FullnessScan<'a> {
    views: BudgetViews<'a>,
    now: Timestamp,
    /// The rates of the limit.
    rates: Vec<RateScan<'a>>,
    has_grants: bool,
}

/// Scan of the budgets of one rate of a limit.
struct RateScan<'a> {
    limit: &'a Limit,
    /// Begin of each part of an owner, such as `user=`.
    fields: Vec<String>,
    /// Rule of the limit's own quota.
    rule: Option<Rule>,
    /// Lowest burst among the limit's quota and all overrides.
    lowest_burst: f64,
}

impl<'a> FullnessScan<'a> {
    /// Begins a scan for the limit of this name.
    pub fn new(policy: &'a Policy, name: &str, now: Timestamp) -> Self {
        let of_name = policy.limits.iter().filter(|limit| *limit.name == *name && limit.is_stored());
        let rates = of_name.map(RateScan::new).collect();
        let has_grants = policy.exceptions.grants().any(|grant| *grant.limit == *name);
        Self { views: BudgetViews::new(policy, now), now, rates, has_grants }
    }

    /// Returns whether the fullness is only an estimate, which is never too low. The overrides of a limit can depend on
    /// the groups, which a key does not tell; and the total of a share is another budget.
    pub fn is_estimate(&self) -> bool {
        self.rates.iter().any(|rate| rate.limit.overrides.is_some() || matches!(rate.limit.quota, Quota::Share(_)))
    }

    /// Returns the level of a budget, divided by the allowed amount. Returns `None` if the budget is not of the limit, or
    /// has no effect: see [`BudgetViews::of`].
    pub fn fullness(&self, key: KeyRef<'_>, state: State) -> Option<f64> {
        let is_of = |rate: &&RateScan<'_>| key.as_str().strip_prefix(rate.limit.prefix()).is_some_and(is_owner);
        let rate = self.rates.iter().find(is_of)?;
        let state = State { at: state.at.min(self.now), ..state };
        if self.has_grants || rate.limit.overrides.is_some() {
            let quota = self.views.of(key, None)?.quota;
            return Some(rate.highest(&quota, state, self.now));
        }
        let owner = Owner::text(key.as_str().strip_prefix(rate.limit.prefix())?);
        rate.has_fields(owner).then(|| level_of(rate.rule, &rate.limit.quota, state, self.now))
    }
}

impl<'a> RateScan<'a> {
    fn new(limit: &'a Limit) -> Self {
        let bursts = limit.quotas().filter_map(|quota| quota.rule()).map(|rule| rule.burst());
        Self {
            limit,
            fields: limit.per.iter().map(|field| format!("{}=", field.name())).collect(),
            rule: limit.quota.rule(),
            lowest_burst: bursts.fold(f64::INFINITY, f64::min),
        }
    }

    /// Returns whether the parts of an owner are the fields of the limit.
    fn has_fields(&self, owner: &str) -> bool {
        let mut parts = owner.split(SEPARATOR).filter(|part| !part.is_empty());
        self.fields.iter().all(|field| parts.next().is_some_and(|part| part.starts_with(&**field)))
            && parts.next().is_none()
    }

    /// Returns the highest fullness that a budget with this quota can have. If the limit has overrides, one of them can
    /// apply instead.
    fn highest(&self, quota: &Quota, state: State, now: Timestamp) -> f64 {
        let rule = quota.rule();
        let fullness = level_of(rule, quota, state, now);
        match rule.filter(|_| self.limit.overrides.is_some()) {
            Some(rule) => fullness * rule.burst() / self.lowest_burst.min(rule.burst()),
            None => fullness,
        }
    }
}

/// Returns whether the rest of a key after its prefix is an owner, and not a part of a longer prefix.
fn is_owner(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with(SEPARATOR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::address::AddressNormalizer;
    use crate::policy::budgets::Key;
    use crate::policy::exception::{By, Grant, Term};
    use crate::policy::limit::{Algorithm, Count};
    use crate::policy::matching::{Field, Zone};
    use crate::time::{Units, parse_rate};
    use std::sync::Arc;
    use std::time::Duration;

    const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

    #[test]
    fn a_scan_has_the_fullness_of_the_views_and_no_budget_of_another_limit() {
        let quota = |text: &str| Quota::rate(Algorithm::Ewma, parse_rate(text, Units::Things).unwrap(), None);
        let limit = |name, per: Vec<Field>, text| Limit::new(name, Count::Recipients, per, quota(text));
        let limits = vec![
            limit("one", vec![Field::User], "100 / 1d"),
            limit("one-more", vec![Field::User], "100 / 1d"),
            limit("both", vec![Field::User, Field::Sender], "10 / 1h"),
        ];
        let mut policy = Policy::new(limits, AddressNormalizer::default(), Zone::default());
        let key = |policy: &Policy, index: usize, owner| {
            Key::of_owner(policy.limits[index].prefix(), &Owner::from_stored(owner))
        };
        let state = State { at: Timestamp::from_micros(NOW.micros() - 3_600_000_000), level: 50.0 };
        let of =
            |policy: &Policy, name, key: &Key| FullnessScan::new(policy, name, NOW).fullness(key.borrowed(), state);
        let (alice, both) = (key(&policy, 0, "user=alice"), key(&policy, 2, "user=alice\u{1f}sender=a@b"));
        let read = |policy: &Policy, key: &Key| {
            let views = BudgetViews::new(policy, NOW);
            views.of(key.borrowed(), None).map(|view| view.read(Some(state), None, NOW).fullness())
        };
        assert_eq!(of(&policy, "one", &alice), read(&policy, &alice));
        assert_eq!(of(&policy, "both", &both), read(&policy, &both));
        assert!(of(&policy, "one", &alice).is_some_and(|full| (0.4..0.5).contains(&full)));
        for (name, index, owner) in [
            ("one", 1, "user=alice"),
            ("one-more", 0, "user=alice"),
            ("one", 0, "client=192.0.2.7"),
            ("one", 0, "user=alice\u{1f}sender=a@b"),
            ("both", 2, "user=alice"),
        ] {
            assert_eq!(of(&policy, name, &key(&policy, index, owner)), None, "{name} {owner}");
        }
        let until = NOW.after(Duration::from_secs(60));
        let term = Term { since: NOW, until, by: By::Administrator("root".into()), reason: "".into() };
        let grant = Grant { limit: "one".into(), owner: alice.owner(), rate: "500 / 1d".into(), term };
        Arc::make_mut(&mut policy.exceptions).grant(grant);
        let granted = alice.granted(NOW);
        assert_eq!((of(&policy, "one", &alice), of(&policy, "one", &granted)), (None, read(&policy, &granted)));
        let bob = key(&policy, 0, "user=bob");
        assert_eq!(of(&policy, "one", &bob), read(&policy, &bob));
    }
}
