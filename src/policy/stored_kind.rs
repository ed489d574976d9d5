//! Kinds of budgets that a store keeps.

use super::limit::Limit;
use super::memory::Memory;
use super::sign::Sign;
use crate::engine::regularity;
use crate::engine::{Rule, State};
use crate::time::Timestamp;
use std::time::Duration;

/// Kind of budgets that a store keeps: the budgets of a limit, a memory, or the points of a sign.
#[derive(Clone, Copy)]
pub enum StoredKind<'a> {
    Limit(&'a Limit),
    Memory(Memory),
    Sign(&'a Sign),
}

/// Time after which a store can forget a budget, if nothing changes the budget meanwhile. See
/// [`StoredKind::has_forgotten`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lifetime {
    /// Rule by which the level decays; `None` if the level does not decay by a rule of this kind.
    rule: Option<Rule>,
    at_least: Duration,
}

impl Lifetime {
    /// Returns a lifetime that depends on a rule, but is at least as long as the second time.
    pub(super) fn new(rule: Option<Rule>, at_least: Duration) -> Self {
        Self { rule, at_least }
    }

    fn fixed(at_least: Duration) -> Self {
        Self { rule: None, at_least }
    }

    /// Lifetime of a budget whose limit is not in the policy.
    pub const UNKNOWN: Self = Self { rule: None, at_least: regularity::REMEMBERED };

    /// Returns the time after which a store can forget a budget with this level. It can be longer than necessary.
    pub fn of(&self, level: f64) -> Duration {
        let decay = self.rule.map_or(0.0, |rule| rule.forgets_after(level));
        let decay = Duration::try_from_secs_f64(decay).unwrap_or(Duration::MAX);
        decay.max(self.at_least).min(regularity::REMEMBERED)
    }
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
