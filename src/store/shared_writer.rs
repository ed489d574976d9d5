//! Writer of many budgets into Redis, for commands.

use super::dump_error::DumpError;
use super::shared::{PutEffect, SharedBulk};
use crate::policy::Policy;
use crate::policy::budgets::{Budget, Key};
use crate::time::Timestamp;
use std::collections::BTreeMap;

/// Collects budgets, and writes some at a time.
pub struct SharedWriter<'a> {
    shared: &'a SharedBulk,
    policy: &'a Policy,
    now: Timestamp,
    budgets: Vec<(Key, Budget)>,
    /// Octets of the filters of these budgets.
    octets: usize,
    written: BTreeMap<String, Written>,
}

/// Numbers of written budgets of a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The target had no such budgets.
    pub new: u64,
    /// The target had the budgets, and they have changed.
    pub changed: u64,
    /// The target had the budgets already.
    pub unchanged: u64,
}

/// Number of budgets that are written together.
const BUDGETS_AT_ONCE: usize = 200;

/// Octets of filters from which on the budgets are written.
const FILTER_OCTETS_AT_ONCE: usize = 4 << 20;

impl Written {
    pub fn count(&mut self, effect: PutEffect) {
        match effect {
            PutEffect::New => self.new += 1,
            PutEffect::Changed => self.changed += 1,
            PutEffect::Unchanged => self.unchanged += 1,
        }
    }

    pub fn total(&self) -> u64 {
        self.new + self.changed + self.unchanged
    }
}

impl<'a> SharedWriter<'a> {
    /// `now` is the time of the writing.
    pub fn new(shared: &'a SharedBulk, policy: &'a Policy, now: Timestamp) -> Self {
        Self { shared, policy, now, budgets: Vec::new(), octets: 0, written: BTreeMap::new() }
    }

    /// Writes a budget, at the latest when the writer ends. See [`SharedBulk::put`].
    pub fn put(&mut self, key: Key, budget: Budget) -> Result<(), DumpError> {
        self.octets += budget.seen.as_ref().map_or(0, |filter| filter.octets());
        self.budgets.push((key, budget));
        match self.budgets.len() < BUDGETS_AT_ONCE && self.octets < FILTER_OCTETS_AT_ONCE {
            true => Ok(()),
            false => self.flush(),
        }
    }

    /// Writes the remaining budgets. Returns the numbers of budgets of each kind.
    pub fn end(mut self) -> Result<BTreeMap<String, Written>, DumpError> {
        self.flush()?;
        Ok(self.written)
    }

    fn flush(&mut self) -> Result<(), DumpError> {
        let budgets = std::mem::take(&mut self.budgets);
        self.octets = 0;
        let effects = self.shared.put(self.policy, &budgets, self.now)?;
        for ((key, _), effect) in budgets.iter().zip(effects) {
            self.written.entry(key.kind()).or_default().count(effect);
        }
        Ok(())
    }
}
