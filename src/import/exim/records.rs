//! Exim's records of rates. Conditions with the same period, `per_*` option and key share one record, but limits of
//! Weir share no budgets.

use super::super::limit::{Budget, Condition, Limit};
use super::counting::{self, Counted};
use super::key::Owner;
use super::{RatelimitUse, known};
use crate::policy::limit::Charge;
use std::collections::HashMap;

/// Translation of a condition that charges a record.
pub struct Charging<'a> {
    pub one: &'a RatelimitUse<'a>,
    /// Limits into which the condition is translated, each with its owner; or the reason why the condition is not
    /// translated.
    pub limits: Result<Vec<(Limit, Owner)>, String>,
    pub counted: Option<Counted>,
    /// The amount that these limits allow.
    pub most: f64,
    /// Whether Exim also counts mail to which the limits do not apply.
    pub is_part: bool,
    /// Whether Exim counts no mail from the network.
    pub is_never: bool,
    /// Whether the limits are in shadow mode because other conditions count in the same record.
    pub is_shared: bool,
}

/// A record of Exim, with the first condition that charges it.
pub struct Record<'a> {
    pub first: Charging<'a>,
    /// The names that the report has given to the limits.
    pub names: Vec<String>,
    /// Line of another condition that charges the record.
    pub other: Option<usize>,
}

impl Charging<'_> {
    /// Returns the line of the condition.
    pub fn line(&self) -> usize {
        self.one.condition.place.line
    }

    /// Returns whether the limits charge in this way.
    pub fn charges(&self, charge: Charge) -> bool {
        self.counted.as_ref().is_some_and(|counted| counted.charge == charge)
    }

    /// Returns whether Exim counts at another stage than the limits.
    pub fn is_elsewhere(&self) -> bool {
        self.limits.iter().flatten().any(|(limit, _)| {
            matches!(limit.budget, Budget::Own { count, .. }
                if Some(known::charging(count, limit.stage)) != counting::stage(self.one.event))
        })
    }
}

/// Compares the conditions that charge the same record. If their limits do not count in the same way as Exim's record,
/// puts these limits in shadow mode.
pub fn compare(charging: &mut [Charging<'_>]) {
    let refused: HashMap<String, usize> =
        charging.iter().filter(|one| one.limits.is_err()).map(|one| (one.one.argument.record(), one.line())).collect();
    for one in charging.iter_mut() {
        let Some(line) = refused.get(&one.one.argument.record()) else { continue };
        for (limit, _) in one.limits.iter_mut().flatten() {
            limit.comment(format!("Exim's record also has what line {line} counts, which is not translated."));
        }
    }
    let mut first_by_record = HashMap::new();
    for n in 0..charging.len() {
        if charging[n].limits.is_err() || charging[n].is_never {
            continue;
        }
        let first = *first_by_record.entry(charging[n].one.argument.record()).or_insert(n);
        if first == n {
            continue;
        }
        let (before, rest) = charging.split_at_mut(n);
        compare_two(&mut before[first], &mut rest[0]);
    }
}

fn compare_two(first: &mut Charging<'_>, later: &mut Charging<'_>) {
    let is_alike = counts_alike(first, later);
    let is_strict = first.charges(Charge::Attempts) && later.charges(Charge::Attempts);
    let (holds_all_of_later, holds_all_of_first) = (covers(first, later), covers(later, first));
    // Exim counts an event once, even if several conditions count it. So a limit that counts all events of the record
    // counts as Exim does. But if the first condition is leaky, it decides for all conditions which events are counted.
    let is_exact = is_alike && holds_all_of_first && holds_all_of_later;
    let reason = |other: &Charging<'_>, own: &Charging<'_>| match other.line() == own.line() {
        true => format!(
            "Exim adds what it counts at {} and at {} in one record",
            other.one.event.name(),
            own.one.event.name()
        ),
        false => {
            format!("Exim adds this and what line {} counts in one record; here each counts for itself", other.line())
        }
    };
    let (of_first, of_later) = (reason(later, first), reason(first, later));
    if !(is_exact || is_alike && is_strict && holds_all_of_later) {
        shadow(first, &of_first);
    }
    if !(is_exact || is_alike && is_strict && holds_all_of_first) {
        return shadow(later, &of_later);
    }
    let line = first.line();
    if first.charges(Charge::Accepted) && first.most < later.most {
        let words =
            format!("leaky: Exim counts nothing above the limit of line {line}, so that this one is never exceeded");
        return shadow(later, &words);
    }
    for (limit, _) in later.limits.iter_mut().flatten() {
        limit.comment(format!("Exim keeps one record for this and for line {line}; here each counts by itself."));
    }
}

/// Puts the limits of a condition in shadow mode, unless this was already done because of another condition of the
/// record.
fn shadow(charging: &mut Charging<'_>, words: &str) {
    if !std::mem::replace(&mut charging.is_shared, true) {
        let place = &charging.one.condition.place;
        charging.limits.iter_mut().flatten().for_each(|(limit, _)| limit.shadow(place, words));
    }
}

/// Returns whether two conditions count the same amount for each event that both conditions count.
fn counts_alike(a: &Charging<'_>, b: &Charging<'_>) -> bool {
    let amounts = |one: &Charging<'_>| one.counted.as_ref().map(|counted| counted.amount);
    let (Ok(limits), Ok(others)) = (&a.limits, &b.limits) else { return false };
    a.one.event == b.one.event
        && std::ptr::eq(a.one.acl, b.one.acl)
        && amounts(a) == amounts(b)
        && limits.len() == others.len()
        && limits.iter().zip(others).all(|((one, _), (other, _))| is_same_count(one, other))
}

fn is_same_count(one: &Limit, other: &Limit) -> bool {
    let (
        Budget::Own { count, per, charge, distinct, .. },
        Budget::Own { count: count_2, per: per_2, charge: charge_2, distinct: distinct_2, .. },
    ) = (&one.budget, &other.budget)
    else {
        return false;
    };
    (count, per, charge, distinct, one.stage) == (count_2, per_2, charge_2, distinct_2, other.stage)
}

/// Returns whether the limits of one condition count all mail that the limits of another condition count.
fn covers(one: &Charging<'_>, other: &Charging<'_>) -> bool {
    let all = one.limits.iter().flatten().zip(other.limits.iter().flatten());
    all.into_iter().all(|((wide, _), (narrow, _))| {
        let conditions = parts(narrow, &narrow.matches);
        let tables = excepted(narrow);
        parts(wide, &wide.matches).iter().all(|one| conditions.contains(one))
            && excepted(wide).iter().all(|table| tables.contains(table))
    })
}

/// Returns the conditions that are true for only a part of one owner's mail.
fn parts<'c>(limit: &Limit, conditions: &'c [Condition]) -> Vec<&'c Condition> {
    conditions.iter().filter(|condition| !limit.owns(condition.key)).collect()
}

/// Returns the tables of `except` that are true for only a part of one owner's mail.
fn excepted(limit: &Limit) -> Vec<&Vec<Condition>> {
    limit.except.iter().filter(|table| !parts(limit, table).is_empty()).collect()
}
