//! Exceptions from the limits, for a time: a grant, by which somebody may send more, and a suspension, by which somebody sends nothing.

use super::field::Field;
use super::key::{Key, Owner};
use super::limit::Limit;
use super::quota::Quota;
use super::terms::Terms;
use super::view::View;
use crate::time::Timestamp;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// All that there are. Those whose time is over hold no more, also while they are still here.
#[derive(Clone, Debug, Default)]
pub struct Exceptions {
    /// By the limit's name, then by whose budget it is.
    grants: HashMap<Arc<str>, HashMap<Owner, Arc<Grant>>>,
    suspensions: HashMap<Owner, Arc<Suspension>>,
    /// The kinds of owners that are suspended.
    suspended: Vec<Field>,
}

/// More, or less, than a limit allows. What it lets through is charged to a budget of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The limit's name.
    pub limit: Arc<str>,
    pub owner: Owner,
    /// Instead of all the limit's own rates, as it is written: `500 / 1d`, `unlimited`.
    pub rate: Arc<str>,
    pub term: Term,
}

/// Whoever it is sends nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspension {
    /// One user, user-domain, client or sender.
    pub owner: Owner,
    pub term: Term,
}

/// From when to when something holds, and who wanted it why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    pub since: Timestamp,
    pub until: Timestamp,
    pub by: By,
    pub reason: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// The limit of this name.
    Limit(Arc<str>),
    /// Somebody, as the command that he gave says.
    Administrator(Arc<str>),
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limit(limit) => write!(f, "limit {limit}"),
            Self::Administrator(name) => f.write_str(name),
        }
    }
}

/// So many suspensions at most: beyond that whoever is over is refused, and not suspended.
pub const MOST_SUSPENSIONS: usize = 10_000;

impl Term {
    pub fn holds(&self, now: Timestamp) -> bool {
        now < self.until
    }
}

impl Grant {
    /// How much it allows in the place of the limit's own rate; `None` if the limit has another kind of rate by now.
    pub fn quota(&self, limit: &Limit) -> Option<Quota> {
        if limit.ordinal > 0 {
            return Some(Quota::Unlimited);
        }
        let quota = Terms::of(limit).quota(&self.rate).ok()?;
        quota.is_like(&limit.quota).then_some(quota)
    }
}

impl Exceptions {
    /// These, but for those whose time is over.
    pub fn new(grants: Vec<Grant>, suspensions: Vec<Suspension>, now: Timestamp) -> Self {
        let mut exceptions = Self::default();
        grants.into_iter().for_each(|grant| exceptions.grant(grant));
        suspensions.into_iter().for_each(|suspension| exceptions.suspend(Arc::new(suspension)));
        exceptions.forget(now);
        exceptions
    }

    /// From now on it holds; in the place of one for the same budget.
    pub fn grant(&mut self, grant: Grant) {
        self.grants.entry(grant.limit.clone()).or_default().insert(grant.owner.clone(), Arc::new(grant));
    }

    /// From now on it holds; in the place of one of the same.
    pub fn suspend(&mut self, suspension: Arc<Suspension>) {
        for field in suspension.owner.fields().flatten() {
            if !self.suspended.contains(&field) {
                self.suspended.push(field);
            }
        }
        self.suspensions.insert(suspension.owner.clone(), suspension);
    }

    /// Ends a grant, and returns it, if there was one.
    pub fn revoke(&mut self, limit: &str, owner: &Owner) -> Option<Arc<Grant>> {
        let grants = self.grants.get_mut(limit)?;
        let revoked = grants.remove(owner);
        self.grants.retain(|_, grants| !grants.is_empty());
        revoked
    }

    /// Ends a suspension, and returns it, if there was one.
    pub fn release(&mut self, owner: &Owner) -> Option<Arc<Suspension>> {
        self.suspensions.remove(owner)
    }

    /// Drops those whose time is over. True: there were any.
    pub fn forget(&mut self, now: Timestamp) -> bool {
        let count = |exceptions: &Self| exceptions.grants().count() + exceptions.suspensions.len();
        let before = count(self);
        self.grants.values_mut().for_each(|grants| grants.retain(|_, grant| grant.term.holds(now)));
        self.grants.retain(|_, grants| !grants.is_empty());
        self.suspensions.retain(|_, suspension| suspension.term.holds(now));
        let suspended =
            |field: &Field| self.suspensions.keys().any(|owner| owner.fields().any(|one| one == Some(*field)));
        self.suspended.retain(suspended);
        count(self) < before
    }

    pub fn grants(&self) -> impl Iterator<Item = &Arc<Grant>> {
        self.grants.values().flat_map(HashMap::values)
    }

    pub fn suspensions(&self) -> impl Iterator<Item = &Arc<Suspension>> {
        self.suspensions.values()
    }

    /// Whether another suspension has room.
    pub fn has_room(&self) -> bool {
        self.suspensions.len() < MOST_SUSPENSIONS
    }

    /// The grant that holds for a budget.
    pub(super) fn granted(&self, limit: &Limit, key: &Key, now: Timestamp) -> Option<&Grant> {
        let grants = self.grants.get(&limit.name)?;
        grants.get(&key.owner()).filter(|grant| grant.term.holds(now)).map(AsRef::as_ref)
    }

    /// The suspension that ends last of those of whoever this is.
    pub(super) fn suspended(&self, view: &View<'_>, now: Timestamp) -> Option<&Arc<Suspension>> {
        let owner = |field: &Field| {
            let value = field.value(view, None)?;
            Some(Owner::from_parts([(field.name(), &*value)].into_iter()))
        };
        let found = self.suspended.iter().filter_map(owner).filter_map(|owner| self.suspensions.get(&owner));
        found.filter(|suspension| suspension.term.holds(now)).max_by_key(|suspension| suspension.term.until)
    }

    pub(super) fn has_suspensions(&self) -> bool {
        !self.suspensions.is_empty()
    }
}
