//! Kinds of budgets that a store keeps.

use super::lifetime::Lifetime;
use super::limit::Limit;
use super::memory::Memory;
use super::sign::Sign;
use crate::engine::State;
use crate::time::Timestamp;

/// Kind of budgets that a store keeps: the budgets of a limit, a memory, or the points of a sign.
#[derive(Clone, Copy)]
pub enum StoredKind<'a> {
    Limit(&'a Limit),
    Memory(Memory),
    Sign(&'a Sign),
}

impl StoredKind<'_> {
    /// Returns the lifetime of budgets of this kind.
    pub fn lifetime(&self) -> Lifetime {
        match self {
            Self::Limit(limit) => limit.lifetime(),
            Self::Memory(memory) => Lifetime::fixed(memory.rule().lasts()),
            Self::Sign(sign) => Lifetime::fixed(sign.rule.lasts()),
        }
    }

    /// Returns whether a store can delete a budget because every later decision would be the same without the budget.
    /// `epoch` is the time when the newer generation of the budget's filter began, if the budget has a filter.
    pub fn has_forgotten(&self, state: State, epoch: Option<Timestamp>, now: Timestamp) -> bool {
        match self {
            Self::Limit(limit) => limit.has_forgotten(state, epoch, now),
            Self::Memory(memory) => memory.has_forgotten(epoch, now),
            Self::Sign(sign) => sign.rule.has_forgotten(state, now),
        }
    }
}
