//! What becomes of budgets beside decisions: charges are given back, two counts of one budget are made one.

use super::Policy;
use super::decide::{Budget, Loaded};
use super::key::Key;
use crate::engine::{Receipt, State};
use std::sync::Arc;

/// A charge that may be given back, by its budget.
#[derive(Clone, Debug)]
pub struct Charged {
    pub key: Key,
    pub receipt: Receipt,
}

/// Gives back charges; `loaded` are the budgets of these keys. Charges of limits that are gone, or that count distinct values, stay.
pub fn give_back(policy: &Policy, charges: &[Charged], keys: &[Key], loaded: &mut Loaded) {
    for Charged { key, receipt } in charges {
        let Some(place) = keys.iter().position(|one| one == key) else { continue };
        let (slot, kind) = (&mut loaded.0[place], key.kind());
        let limit = policy.limits.iter().find(|limit| limit.distinct.is_none() && limit.kind() == kind);
        if let (Some(limit), Some(budget)) = (limit, &mut slot.budget) {
            // A level of nothing is decided on as if there had never been one.
            let nothing = State { level: 0.0, ..receipt.after };
            budget.state = limit.rule.refund(budget.state, receipt).unwrap_or(nothing);
            slot.change.get_or_insert_default();
        }
    }
}

/// One budget of two: `stored`, and what was `counted` from nothing while that was out of reach.
pub fn combine(policy: &Policy, key: &Key, stored: Budget, counted: Budget) -> Budget {
    let kind = key.kind();
    let Some(limit) = policy.limits.iter().find(|limit| limit.kind() == kind) else { return stored };
    let now = stored.state.at.max(counted.state.at);
    let level = |state| limit.rule.step(Some(state), now, 0.0).1.level;
    let state = State { at: now, level: level(stored.state) + level(counted.state) };
    let seen = match (stored.seen, counted.seen) {
        (Some(mut stored), Some(counted)) => {
            Arc::make_mut(&mut stored).unite(&counted);
            Some(stored)
        }
        (stored, counted) => stored.or(counted),
    };
    Budget { state, seen }
}
