//! Budgets that an administrator resets: all budgets of one owner under one limit.

use super::Limit;
use super::quota::{Likelihood, Quota};
use crate::engine::{State, decay};
use crate::policy::Policy;
use crate::policy::budgets::{Key, KeyRef, Owner};
use crate::policy::matching::Field;
use crate::policy::suspicion::rounded;
use crate::time::{Timestamp, format_amount};

/// Budget to be reset, and its limit.
#[derive(Clone, Debug)]
pub struct ResetTarget {
    pub key: Key,
    /// Quota of the limit. For the budget of a grant, this is the quota of the grant.
    pub quota: Quota,
    limit: Limit,
    /// The budget counts the total of a share, and not the rejected part.
    is_total: bool,
    /// Says to which exception the budget belongs; empty for the owner's usual budget.
    note: &'static str,
    /// Rule of the limit's sign, if the budget has the points of the sign for the user.
    sign: Option<decay::Rule>,
}

/// Name that stands for the suspicion score of a user, in place of the name of a limit.
pub const SUSPICION: &str = "suspicion";

const SUSPENDED: &str = " (while suspended)";

impl Policy {
    /// Returns the limit of this name. If the limit has several rates, returns the limit of the first rate. Returns an
    /// error if the limit has no budgets, or if no limit has this name; the error then lists the existing limits.
    pub fn limit(&self, name: &str) -> Result<&Limit, String> {
        let Some(limit) = self.limits.iter().find(|limit| *limit.name == *name) else {
            let mut names: Vec<&str> =
                self.limits.iter().filter(|limit| limit.watch.is_none()).map(|l| &*l.name).collect();
            names.dedup();
            let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Err(format!("there is no limit \"{name}\"; known: {there}"));
        };
        match limit.watch {
            None => Ok(limit),
            Some(watched) => {
                let other = &self.limits[watched].name;
                Err(format!("limit \"{name}\" has no budgets, it looks at those of \"{other}\": name that one"))
            }
        }
    }

    /// Returns whether this name stands for the suspicion score of a user, and not for a limit.
    pub fn is_suspicion(&self, name: &str) -> bool {
        name == SUSPICION && !self.limits.iter().any(|limit| *limit.name == *name)
    }

    /// Returns the stored budgets of an owner for all rates of this limit, including the budgets of a valid grant
    /// or suspension, and the points of the limit's sign. For the name [`SUSPICION`], returns the points of all signs.
    /// Returns an error with the reason if the limit has no stored budgets.
    pub fn budgets_of(&self, name: &str, owner: &Owner, now: Timestamp) -> Result<Vec<ResetTarget>, String> {
        let signs = self.signs.iter().filter(|sign| *sign.limit == *name || self.is_suspicion(name));
        let mut budgets: Vec<ResetTarget> =
            signs.filter_map(|sign| self.points_of((&sign.limit, sign.rule), owner)).collect();
        for limit in self.limits.iter().filter(|limit| *limit.name == *name && limit.watch.is_none()) {
            let own = Key::of_owner(limit.prefix(), owner);
            if own.is_volatile() {
                return Err(format!("limit \"{name}\" counts what is there at the moment: that ends by itself"));
            }
            if !limit.is_stored() {
                let period = limit.quota.period();
                return Err(format!("limit \"{name}\" counts within a {period}: nothing is kept beyond that"));
            }
            let grant = self.exceptions.granted(limit, owner.as_str(), now);
            let granted = grant.and_then(|grant| Some((own.granted(grant.term.since), grant.quota(limit)?)));
            let suspended = self.exceptions.lenient(owner.as_str(), now);
            let suspended = suspended.map(|suspension| (own.granted(suspension.term.since), limit.quota, SUSPENDED));
            let granted = granted.map(|(key, quota)| (key, quota, " (granted)"));
            for (key, quota, note) in [(own, limit.quota, "")].into_iter().chain(granted).chain(suspended) {
                let budget =
                    |key, is_total| ResetTarget { key, quota, limit: limit.clone(), is_total, note, sign: None };
                if matches!(limit.quota, Quota::Share(_)) {
                    budgets.push(budget(key.of_total(limit.prefix()), true));
                }
                budgets.push(budget(key, false));
            }
        }
        Ok(budgets)
    }

    /// Returns the points of a sign for a user; `None` if the owner has no user.
    fn points_of(&self, (name, rule): (&str, decay::Rule), owner: &Owner) -> Option<ResetTarget> {
        let (_, user) = owner.parts().find(|(field, _)| *field == Field::User.word())?;
        let key = KeyRef::of_sign(name, user, &mut String::new()).owned();
        let limit = self.limits.iter().find(|limit| *limit.name == *name)?.clone();
        Some(ResetTarget { key, quota: Quota::Unlimited, limit, is_total: false, note: "", sign: Some(rule) })
    }
}

impl ResetTarget {
    /// Returns whether one more unit would raise the level to this multiple of the limit. Always false for a share,
    /// because a share has no level of its own.
    pub fn is_reached(&self, at: f64, state: State, now: Timestamp) -> bool {
        if let Quota::Likelihood(Likelihood { rule, .. }) = self.quota {
            return rule.is_over(state.level, at);
        }
        let rule = self.quota.rule().filter(|_| !matches!(self.quota, Quota::Share(_)));
        rule.is_some_and(|rule| rule.at(at).is_over(rule.step(Some(state), now, 1.0).1.level))
    }

    /// Describes the level before the reset, for people; `None` if the budget was empty.
    pub fn was(&self, before: State, now: Timestamp) -> Option<String> {
        if let Some(rule) = &self.sign {
            let points = rounded(rule.level(Some(before), now));
            return (points != "0").then(|| format!("{points} of {} points of suspicion", rounded(rule.most())));
        }
        let others = match self.quota {
            Quota::Regularity(_) => Some("regular over"),
            Quota::Likelihood(_) => Some("of the likelihood"),
            _ => None,
        };
        if let Some(words) = others {
            let text = format!("{} {words} {}{}", self.quota.level(before.level), self.quota.period(), self.note);
            return (before.level > 0.0).then_some(text);
        }
        let rule = self.quota.rule().or_else(|| self.limit.rule())?;
        let level = rule.step(Some(before), now, 0.0).1.level;
        let amount = format_amount(level);
        if amount == "0" {
            return None;
        }
        let (count, period) = (self.limit.count.name(), self.quota.period());
        let text = match self.quota {
            // A share has two averages. Each average is described separately, because neither average is the share
            // itself.
            Quota::Share(share) if self.is_total => format!("{amount} {} in {period}", share.of.name()),
            Quota::Share(_) => format!("{amount} {count} in {period}"),
            Quota::Never | Quota::Unlimited => format!("{amount} {count}"),
            _ => format!("{amount} of {} {count} per {period}", self.quota.most()),
        };
        Some(text + self.note)
    }
}
