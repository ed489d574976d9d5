//! View of a stored budget for administrators: its limit and owner, the quota in force and its source, and the level.

use super::Policy;
use super::budgets::{Key, KeyRef, Owner, SEPARATOR};
use super::exception::Grant;
use super::limit::{Likelihood, Limit, OverrideRow, Overrides, Quota, Scope};
use crate::engine::{Rule, State, Wait};
use crate::time::Timestamp;
use std::collections::HashMap;

/// Views of budgets under a policy at a time. It finds the limit of a key fast, because a scan has many keys.
pub struct BudgetViews<'a> {
    policy: &'a Policy,
    now: Timestamp,
    /// Indices in the policy of the limits with stored budgets, by the prefix of their keys.
    limits: HashMap<&'a str, usize>,
}

/// Budget of a limit in force.
#[derive(Debug)]
pub struct BudgetView<'a> {
    pub limit: &'a Limit,
    /// Index of the limit in the policy.
    pub index: usize,
    pub quota: Quota,
    pub source: QuotaSource<'a>,
}

/// Source of the quota of a budget.
#[derive(Debug)]
pub enum QuotaSource<'a> {
    /// The limit's own rate.
    Limit,
    /// Row of the limit's overrides.
    Override(&'a Overrides, OverrideRow),
    /// The limit's own rate is assumed. The limit has overrides, and the owner does not tell which row applies. The text
    /// names the column of the file that decides.
    Unknown(&'a Overrides, &'static str),
    Grant(&'a Grant),
}

/// Level of a budget and its consequences. Shares are in per cent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BudgetReading {
    pub level: f64,
    /// Number with which the level is compared; `None` if the quota is unlimited.
    pub allowed: Option<f64>,
    /// Largest whole amount that passes now in one event; `None` if the quota is no number of things.
    pub room: Option<f64>,
    /// Time until one more event of the amount 1 passes, if no other event comes earlier. `None`: no time helps, because
    /// nothing is allowed, or because another session has to end.
    pub wait: Option<Wait>,
}

impl<'a> BudgetViews<'a> {
    pub fn new(policy: &'a Policy, now: Timestamp) -> Self {
        let has_budgets = |(_, limit): &(usize, &Limit)| limit.is_stored();
        let limits = policy.limits.iter().enumerate().filter(has_budgets);
        Self { policy, now, limits: limits.map(|(index, limit)| (limit.prefix(), index)).collect() }
    }

    /// Returns the view of the budget with this key. `groups` are the groups of the owner's account, if they are known.
    /// Returns `None` if the budget has no effect: no limit in force uses it, its grant has ended, a grant replaces it,
    /// or it is the total of a share.
    pub fn of(&self, key: KeyRef<'_>, groups: Option<&[Box<str>]>) -> Option<BudgetView<'a>> {
        let (own, since) = key.ungranted().map_or((key, None), |(own, since)| (own, Some(since)));
        let (prefix, owner) = own.split_prefix();
        let index = *self.limits.get(prefix)?;
        let limit = &self.policy.limits[index];
        let owner = Owner::text(owner);
        if !is_of_fields(limit, owner) {
            return None;
        }
        let (quota, source) = match (self.granted(limit, owner), since) {
            (Some((grant, quota)), Some(since)) if grant.term.since == since => (quota, QuotaSource::Grant(grant)),
            (None, None) => own_quota(limit, owner, groups),
            _ => return None,
        };
        Some(BudgetView { limit, index, quota, source })
    }

    /// Returns the quota of an owner under a limit that keeps no budget beyond a message or connection, and its source.
    pub fn quota_within_session(
        &self,
        limit: &'a Limit,
        owner: &Owner,
        groups: Option<&[Box<str>]>,
    ) -> (Quota, QuotaSource<'a>) {
        match self.granted(limit, owner.as_str()) {
            Some((grant, quota)) => (quota, QuotaSource::Grant(grant)),
            None => own_quota(limit, owner.as_str(), groups),
        }
    }

    fn granted(&self, limit: &Limit, owner: &str) -> Option<(&'a Grant, Quota)> {
        let grant = self.policy.exceptions.granted(limit, owner, self.now)?;
        Some((grant, grant.quota(limit)?))
    }
}

impl BudgetView<'_> {
    /// Returns the level of a budget, divided by the allowed amount. This is faster than [`BudgetView::read`]. If the quota
    /// is a share, returns the rejected part instead, because the total is another budget.
    pub fn fullness(&self, state: State, now: Timestamp) -> f64 {
        level_of(self.quota.rule(), &self.quota, State { at: state.at.min(now), ..state }, now)
    }

    /// Returns whether not even one more unit passes at `now`. Returns `None` if the quota is a share, which depends on
    /// another budget, or a regularity, which depends on the time of the unit. This is faster than [`BudgetView::read`].
    pub fn is_full(&self, state: State, now: Timestamp) -> Option<bool> {
        match self.quota {
            Quota::Share(_) | Quota::Regularity(_) => None,
            Quota::Never => Some(true),
            Quota::Likelihood(Likelihood { rule, .. }) => Some(rule.is_over(state.level, 1.0)),
            _ => {
                let state = State { at: state.at.min(now), ..state };
                Some(self.quota.rule().is_some_and(|rule| rule.step(Some(state), now, 1.0).1.over))
            }
        }
    }

    /// Returns the key of the total, if the quota is a share. `key` is the key of the rejected part.
    pub fn total_key(&self, key: &Key) -> Option<Key> {
        matches!(self.quota, Quota::Share(_)).then(|| key.of_total(self.limit.prefix()))
    }

    /// Reads a budget at `now`. `total` is the state of the total if the quota is a share. `None` as a state means that
    /// the budget was never charged.
    pub fn read(&self, state: Option<State>, total: Option<State>, now: Timestamp) -> BudgetReading {
        // As in a decision, a state from the future, which a wrong clock wrote, is a state of now.
        let healed = |state: Option<State>| state.map(|state| State { at: state.at.min(now), ..state });
        let (state, total) = (healed(state), healed(total));
        match self.quota {
            Quota::Share(share) => {
                let Some(rule) = self.quota.rule() else { return BudgetReading::NOTHING };
                let level = |state: Option<State>| rule.step(state, now, 0.0).1;
                let (rejected, all) = (level(state), level(total));
                let level = if all.level > 0.0 { (rejected.level / all.level).min(1.0) } else { 0.0 };
                let is_over = all.over && level >= share.most;
                let wait = if is_over { rule.wait(total, now, 0.0) } else { NO_WAIT };
                let (level, allowed) = self.quota.numbers(level);
                BudgetReading { level, allowed: Some(allowed), room: None, wait: Some(wait) }
            }
            Quota::Never => BudgetReading::NOTHING,
            Quota::Unlimited => {
                let level = self.limit.rule().map_or(0.0, |rule| rule.step(state, now, 0.0).1.level);
                BudgetReading { level, allowed: None, room: None, wait: Some(NO_WAIT) }
            }
            // The regularity of the last events is known only when the next event comes.
            Quota::Regularity(_) => {
                let (level, allowed) = self.quota.numbers(state.map_or(0.0, |state| state.level));
                BudgetReading { level, allowed: Some(allowed), room: None, wait: Some(NO_WAIT) }
            }
            Quota::Likelihood(Likelihood { rule, .. }) => {
                let sum = rule.level(state.map(|state| state.level));
                let (level, allowed) = self.quota.numbers(sum);
                let wait = Some(NO_WAIT).filter(|_| !rule.is_over(sum, 1.0));
                BudgetReading { level, allowed: Some(allowed), room: None, wait }
            }
            Quota::Rate { rule, .. } => of_rule(rule, state, now),
            Quota::Counter { scope, .. } => {
                let Some(rule) = self.quota.rule() else { return BudgetReading::NOTHING };
                let reading = of_rule(rule, state, now);
                let ends_by_itself = scope != Scope::AtOnce || reading.wait == Some(NO_WAIT);
                BudgetReading { wait: reading.wait.filter(|_| ends_by_itself), ..reading }
            }
        }
    }
}

/// Returns the level divided by the burst; 0 without a rule. If the quota is a share, returns the rejected part.
pub(super) fn level_of(rule: Option<Rule>, quota: &Quota, state: State, now: Timestamp) -> f64 {
    if let Quota::Regularity(rule) = quota {
        return state.level / rule.most();
    }
    if let Quota::Likelihood(Likelihood { rule, .. }) = quota {
        return rule.level(Some(state.level)) / rule.limit();
    }
    let Some(rule) = rule else { return 0.0 };
    let level = rule.step(Some(state), now, 0.0).1.level;
    if matches!(quota, Quota::Share(_)) { level } else { level / rule.burst() }
}

const NO_WAIT: Wait = Wait::For(std::time::Duration::ZERO);

impl BudgetReading {
    /// Reading of a quota that allows nothing.
    const NOTHING: Self = Self { level: 0.0, allowed: Some(0.0), room: Some(0.0), wait: None };

    /// Returns how full the budget is: 1 if the level has reached the allowed amount. A quota that allows nothing is
    /// full, and an unlimited quota is empty.
    pub fn fullness(&self) -> f64 {
        match self.allowed {
            None => 0.0,
            Some(allowed) if allowed > 0.0 => self.level / allowed,
            Some(_) => 1.0,
        }
    }
}

fn of_rule(rule: Rule, state: Option<State>, now: Timestamp) -> BudgetReading {
    let level = rule.step(state, now, 0.0).1.level;
    let passes = |amount: u64| !rule.step(state, now, amount as f64).1.over;
    let wait = if passes(1) { NO_WAIT } else { rule.wait(state, now, 1.0) };
    BudgetReading { level, allowed: Some(rule.burst()), room: Some(largest(rule.burst(), passes)), wait: Some(wait) }
}

/// Returns the largest whole amount up to `most` for which `passes` is true. If `passes` is true for an amount, it must
/// also be true for all smaller amounts.
fn largest(most: f64, passes: impl Fn(u64) -> bool) -> f64 {
    let (mut good, mut bad) = (0, most as u64 + 1);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        if passes(middle) {
            good = middle;
        } else {
            bad = middle;
        }
    }
    good as f64
}

/// Returns whether the parts of an owner are the fields of the limit's `per`. They are not if `per` has been changed: the
/// budgets of before are kept for some time.
fn is_of_fields(limit: &Limit, owner: &str) -> bool {
    let mut parts = owner.split(SEPARATOR).filter(|part| !part.is_empty());
    let mut has_part = |name: &str| {
        let part = parts.next().and_then(|part| part.split_once('='));
        part.is_some_and(|(field, _)| field == name)
    };
    limit.per.iter().all(|field| has_part(&field.name())) && parts.next().is_none()
}

fn own_quota<'a>(limit: &'a Limit, owner: &str, groups: Option<&[Box<str>]>) -> (Quota, QuotaSource<'a>) {
    let Some(overrides) = limit.overrides.as_deref() else { return (limit.quota, QuotaSource::Limit) };
    let parts = owner.split(SEPARATOR).filter_map(|part| part.split_once('='));
    match overrides.rows.find_for_owner(parts, groups) {
        Ok(Some(row)) => {
            let quota = overrides.quota(row, limit.ordinal).copied();
            (quota.unwrap_or(limit.quota), QuotaSource::Override(overrides, row))
        }
        Ok(None) => (limit.quota, QuotaSource::Limit),
        Err(column) => (limit.quota, QuotaSource::Unknown(overrides, column)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::address::AddressNormalizer;
    use crate::policy::exception::{By, Term};
    use crate::policy::limit::{Algorithm, Count, OverrideRows};
    use crate::policy::matching::{Field, PatternTable, Shape, Zone};
    use crate::time::{Units, parse_rate};
    use std::sync::Arc;
    use std::time::Duration;

    const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

    fn rate(algorithm: Algorithm, text: &str) -> Quota {
        Quota::rate(algorithm, parse_rate(text, Units::Things).unwrap(), None)
    }

    fn state(level: f64, seconds_ago: i64) -> Option<State> {
        Some(State { at: Timestamp::from_micros(NOW.micros() - seconds_ago * 1_000_000), level })
    }

    fn policy(limits: Vec<Limit>) -> Policy {
        Policy::new(limits, AddressNormalizer::default(), Zone::default())
    }

    fn key(policy: &Policy, index: usize, owner: &str) -> Key {
        Key::of_owner(policy.limits[index].prefix(), &Owner::from_stored(owner))
    }

    fn reading(quota: Quota, before: Option<State>) -> BudgetReading {
        let policy = policy(vec![Limit::new("l", Count::Recipients, vec![Field::User], quota)]);
        let (views, key) = (BudgetViews::new(&policy, NOW), key(&policy, 0, "user=alice"));
        views.of(key.borrowed(), None).unwrap().read(before, None, NOW)
    }

    #[test]
    fn what_has_room_passes_and_one_more_does_not() {
        for quota in [rate(Algorithm::Ewma, "100 / 1h"), rate(Algorithm::TokenBucket, "100 / 1h")] {
            for (level, ago) in [(0.0, 0), (40.0, 0), (99.0, 600), (250.0, 1_800), (250.0, 60)] {
                let BudgetReading { room, wait, .. } = reading(quota, state(level, ago));
                let rule = quota.rule().unwrap();
                let over = |amount| rule.step(state(level, ago), NOW, amount).1.over;
                let room = room.unwrap();
                assert!(room == 0.0 || !over(room), "{level} {ago}: {room}");
                assert!(over(room + 1.0), "{level} {ago}: {room}");
                assert_eq!(wait == Some(NO_WAIT), room >= 1.0, "{level} {ago}");
            }
        }
    }

    #[test]
    fn quotas_without_a_number_say_so() {
        let never = reading(Quota::Never, None);
        assert_eq!((never.fullness(), never.wait, never.room), (1.0, None, Some(0.0)));
        let unlimited = reading(Quota::Unlimited, None);
        assert_eq!((unlimited.fullness(), unlimited.allowed, unlimited.wait), (0.0, None, Some(NO_WAIT)));
        let at_once = Quota::Counter { scope: Scope::AtOnce, most: 3.0 };
        assert_eq!(reading(at_once, state(2.0, 60)).room, Some(1.0));
        assert_eq!(reading(at_once, state(3.0, 60)).wait, None, "only the end of a session helps");
    }

    #[test]
    fn a_state_from_the_future_is_one_of_now() {
        let quota = rate(Algorithm::TokenBucket, "100 / 1h");
        assert_eq!(reading(quota, state(40.0, -999)), reading(quota, state(40.0, 0)));
    }

    #[test]
    fn a_grant_replaces_the_budget_and_an_ended_one_gives_it_back() {
        let mut policy =
            policy(vec![Limit::new("l", Count::Recipients, vec![Field::User], rate(Algorithm::Ewma, "100 / 1d"))]);
        let (own, since) = (key(&policy, 0, "user=alice"), Timestamp::from_micros(NOW.micros() - 1));
        let until = NOW.after(Duration::from_secs(60));
        let term = Term { since, until, by: By::Administrator("root".into()), reason: "".into() };
        let grant = Grant { limit: "l".into(), owner: own.owner(), rate: "500 / 1d".into(), term };
        Arc::make_mut(&mut policy.exceptions).grant(grant);
        let granted = own.granted(since);
        let seen = |now| {
            let views = BudgetViews::new(&policy, now);
            [&own, &granted].map(|key| views.of(key.borrowed(), None).map(|view| view.quota.amount()))
        };
        assert_eq!(seen(NOW), [None, Some("500".to_owned())]);
        assert_eq!(seen(until), [Some("100".to_owned()), None]);
    }

    #[test]
    fn overrides_follow_from_the_owner_or_the_groups() {
        let rows = |by_group: bool| {
            let mut table = PatternTable::new(if by_group { Shape::Name } else { Shape::Address });
            let name = if by_group { "staff" } else { "alice" };
            table.insert(name, OverrideRow { index: 0, line: 2 }).unwrap();
            let rows = if by_group { OverrideRows::Group(table) } else { OverrideRows::Field(Field::User, table) };
            let quotas = vec![rate(Algorithm::Ewma, "500 / 1d")];
            Some(Arc::new(Overrides::new("o.csv", Arc::new(rows), quotas, 1)))
        };
        let limit = |name, overrides| {
            let limit = Limit::new(name, Count::Recipients, vec![Field::User], rate(Algorithm::Ewma, "100 / 1d"));
            Limit { overrides, ..limit }
        };
        let policy = policy(vec![limit("by-user", rows(false)), limit("by-group", rows(true))]);
        let views = BudgetViews::new(&policy, NOW);
        let (staff, none): (&[Box<str>], &[Box<str>]) = (&["staff".into()], &[]);
        for (index, owner, groups, allowed, source) in [
            (0, "user=alice", None, "500", "o.csv 2"),
            (0, "user=bob", None, "100", "limit"),
            (1, "user=alice", Some(staff), "500", "o.csv 2"),
            (1, "user=alice", Some(none), "100", "limit"),
            (1, "user=alice", None, "100", "unknown group"),
        ] {
            let view = views.of(key(&policy, index, owner).borrowed(), groups).unwrap();
            let got = match view.source {
                QuotaSource::Limit => "limit".to_owned(),
                QuotaSource::Override(overrides, row) => format!("{} {}", overrides.file, row.line),
                QuotaSource::Unknown(_, column) => format!("unknown {column}"),
                QuotaSource::Grant(_) => "grant".to_owned(),
            };
            assert_eq!((view.quota.amount().as_str(), got.as_str()), (allowed, source), "{index} {owner}");
        }
        let others = key(&policy, 0, "user=alice\u{1f}client=192.0.2.7");
        assert!(views.of(others.borrowed(), None).is_none(), "the limit counted per something else before");
    }

    #[test]
    fn a_share_is_read_from_both_budgets() {
        let share = crate::policy::limit::Share {
            most: 0.3,
            period: Duration::from_secs(86_400),
            of: Count::Recipients,
            at_least: 20.0,
        };
        let policy = policy(vec![Limit::new("l", Count::Rejections, vec![Field::User], Quota::Share(share))]);
        let views = BudgetViews::new(&policy, NOW);
        let own = key(&policy, 0, "user=alice");
        let view = views.of(own.borrowed(), None).unwrap();
        let full = view.read(state(40.0, 0), state(100.0, 0), NOW);
        assert_eq!((full.level.round(), full.allowed), (40.0, Some(30.0)));
        assert!(matches!(full.wait, Some(Wait::For(wait)) if wait > Duration::from_secs(3_600)), "{full:?}");
        assert_eq!(view.read(state(9.0, 0), state(10.0, 0), NOW).wait, Some(NO_WAIT), "too few to judge");
    }
}
