//! Changes of budgets outside decisions: refunds, resets, and merging of two states of one budget.

use super::Policy;
use super::budget::{Budget, Change, Loaded, Slot};
use super::key::Key;
use super::limit::Limit;
use super::verdict::RefundableCharge;
use crate::engine::State;
use crate::time::Timestamp;
use std::sync::Arc;

/// Refunds charges. `loaded` has the budgets of `keys`, which are sorted.
pub fn give_back(charges: &[RefundableCharge], keys: &[Key], loaded: &mut Loaded) {
    for RefundableCharge { key, receipt, rule, .. } in charges {
        let Some(place) = keys.binary_search(key).ok() else { continue };
        let slot = &mut loaded.0[place];
        if let Some(budget) = &mut slot.budget {
            // A level of 0 equals an unused budget.
            let nothing = State { level: 0.0, ..receipt.after };
            budget.state = rule.refund(budget.state, receipt).unwrap_or(nothing);
            slot.change.get_or_insert_default();
        }
    }
}

/// Resets budgets, with all values seen. Returns the former states, in order.
pub fn reset(now: Timestamp, loaded: &mut Loaded) -> Vec<Option<State>> {
    let reset = |slot: &mut Slot| {
        let budget = slot.budget.as_mut()?;
        let before = budget.state;
        // A level of 0 equals an unused budget; the filter starts empty.
        *budget = Budget { state: State { at: now, level: 0.0 }, seen: None };
        slot.change = Some(Change { learnt: Vec::new(), turned: true });
        Some(before)
    };
    loaded.0.iter_mut().map(reset).collect()
}

/// Merges `stored` with the state that was `counted` from 0 while the stored one was out of reach.
pub fn combine(policy: &Policy, key: &Key, stored: Budget, counted: Budget) -> Budget {
    let kind = key.kind();
    let limit = policy.limits.iter().find(|limit| limit.kinds().any(|one| one == kind));
    let Some(rule) = limit.and_then(Limit::rule) else { return stored };
    let now = stored.state.at.max(counted.state.at);
    let level = |state| rule.step(Some(state), now, 0.0).1.level;
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
