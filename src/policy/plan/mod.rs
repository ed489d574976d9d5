//! Plan of a decision: the limits that apply to a run of events, and their budgets. The plan is made before any budget
//! is loaded.

mod exceeded;
mod explain;
mod match_cache;
mod memories;
mod planner;
mod prepare;
mod suspicion;

pub(super) use exceeded::Alternative;
pub use exceeded::ConditionalCheck;
pub(super) use match_cache::MatcherSet;
pub(super) use suspicion::can_suspect;

use crate::engine::distinct::{self, Value};
use crate::policy::budgets::{Key, KeyRef, Keys, Loaded, Owner};
use crate::policy::exception::{Grant, Suspension};
use crate::policy::limit::{Effect, Limit, Quota, Scope};
use crate::policy::matching::{SkipReason, Subject};
use crate::policy::request::{Event, EventKinds, PolicyRequest};
use crate::policy::{KnownTo, Memory, Policy};
use crate::time::Timestamp;
use exceeded::Precondition;
use planner::{Planner, USUAL_EVENTS};
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashSet};
use std::ops::Deref;
use std::sync::Arc;

/// Plan of a run of events. A store loads the plan's budgets before the decision.
#[derive(Default)]
pub struct Plan<'a> {
    /// Sorted by the index of the event.
    pub(super) checks: Vec<Check>,
    /// A limit of these checks has conditions `exceeded` or `suspicion`.
    pub(super) is_conditional: bool,
    pub(super) budgets: Vec<PlannedBudget<'a>>,
    /// Keys of stored budgets.
    pub(super) keys: Keys,
    /// Keys of the session's counters.
    pub(super) own: Keys,
    /// Index in `keys` of the user's points of each sign, in the order of [`Policy::signs`]; empty if the events need no
    /// score.
    pub(super) signs: Vec<usize>,
    /// Suspension that applies to this session, if there is one.
    pub(super) suspension: Option<Arc<Suspension>>,
    /// Memories in `keys`, each with its shard and the index of its key.
    memory_keys: Vec<(KnownTo, u32, usize)>,
    /// Limits, as indices in the policy, that an event with a known recipient does not touch: once for each event. Only a
    /// plan that was made by [`Plan::without_known`] has any.
    untouched: Vec<usize>,
    /// Sorted by the index of the event.
    pub(super) memory_entries: Vec<MemoryEntry>,
}

/// Limit that applies to one event.
pub(super) struct Check {
    pub event: usize,
    /// Index in [`Plan::budgets`].
    pub budget: usize,
    pub effect: Effect,
    /// Amount of the event, in units of what the limit counts.
    pub amount: f64,
    pub values: Values,
    /// `None`: the check is made in any case.
    pub precondition: Option<Precondition>,
}

/// Recipient of an event, and a memory that learns the recipient from a delivery, or that decides about a recipient of a
/// locked owner.
pub(super) struct MemoryEntry {
    pub event: usize,
    pub memory: Memory,
    /// Index in [`Plan::keys`] of the memory's key.
    pub key: usize,
    pub value: Value,
    /// The memory knows the recipient. False if the plan was not made by [`Plan::without_known`].
    pub is_known: bool,
}

/// Value of an event, for a limit that counts only new values.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate {
    pub value: Value,
    /// Index in [`Plan::keys`] of the key of the memory that perhaps knows the value; `None` without `known-to`.
    pub memory: Option<usize>,
}

/// Budget of a limit, and its quota.
pub(super) struct PlannedBudget<'a> {
    /// Index of the limit in the policy.
    pub limit: usize,
    pub quota: Allowed<'a>,
    /// Line of the override that gives the quota, from 1; `None` if no override gives it.
    pub row: Option<u32>,
    pub slot: BudgetRef,
    /// Index in [`Plan::keys`] of the key of the total, if the quota is a share.
    pub total: Option<usize>,
    /// Rule of the filter of known values, if the limit counts only new values.
    pub filter: Option<distinct::Rule>,
    /// True if the budget that new keys share is allowed to replace this budget, provided that this budget was never
    /// charged.
    may_share: bool,
}

/// Budget that was never charged, and whose key a client can choose freely.
pub struct NewBudget<'a> {
    pub limit: &'a Limit,
    /// Index in [`Plan::keys`].
    pub index: usize,
    pub key: KeyRef<'a>,
}

/// Quota of a budget. A quota of the configuration is borrowed, because a run of events may need many quotas.
pub(super) enum Allowed<'a> {
    Written(&'a Quota),
    Granted(Box<(Quota, Arc<Grant>)>),
}

impl Allowed<'_> {
    /// Returns the grant that the quota comes from, if it comes from a grant.
    pub fn grant(&self) -> Option<&Arc<Grant>> {
        if let Self::Granted(granted) = self { Some(&granted.1) } else { None }
    }
}

impl Deref for Allowed<'_> {
    type Target = Quota;

    fn deref(&self) -> &Quota {
        match self {
            Self::Written(quota) => quota,
            Self::Granted(granted) => &granted.0,
        }
    }
}

/// Reference to a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BudgetRef {
    /// In the store: index in [`Plan::keys`].
    Stored(usize),
    /// In the session: index in [`Plan::own`].
    Message(usize),
    Connection(usize),
    /// No budget: the quota accumulates nothing.
    None,
}

/// Values of an event, if the limit counts only new values.
pub(super) enum Values {
    /// The limit counts all events.
    All,
    One(Candidate),
    Many(Vec<Candidate>),
}

impl Values {
    fn as_mut_slice(&mut self) -> &mut [Candidate] {
        match self {
            Self::All => &mut [],
            Self::One(candidate) => std::slice::from_mut(candidate),
            Self::Many(candidates) => candidates,
        }
    }
}

impl Candidate {
    pub fn new(value: Value) -> Self {
        Self { value, memory: None }
    }
}

/// Function that returns whether a memory knows a recipient. The key is that of the memory's shard for the recipient.
pub type IsKnown<'k> = dyn Fn(KeyRef<'_>, &Memory, Value) -> bool + 'k;

/// Maximum initial capacity for budgets, and for checks.
const MAX_INITIAL_CAPACITY: usize = 64;

impl<'a> Plan<'a> {
    pub fn new(policy: &'a Policy, request: &PolicyRequest, now: Timestamp) -> Self {
        Self::build(policy, request, now, None, None)
    }

    /// Makes a plan without the checks of limits with `known-to` for recipients that their memories know. Such a check
    /// touches no budget, so the decision is the same, and fewer budgets are loaded.
    pub fn without_known(policy: &'a Policy, request: &PolicyRequest, now: Timestamp, is_known: &IsKnown<'_>) -> Self {
        Self::build(policy, request, now, None, Some(is_known))
    }

    /// Makes a plan in which the new keys in `shared` get no budgets of their own. Instead, all keys in `shared` that
    /// belong to the same limit share one budget. The key of the shared budget has [`NEW`](super::budgets::NEW) in place
    /// of each value that clients can choose.
    pub fn with_shared(
        policy: &'a Policy,
        request: &PolicyRequest,
        now: Timestamp,
        shared: Option<&HashSet<Key>>,
    ) -> Self {
        Self::build(policy, request, now, shared, None)
    }

    fn build(
        policy: &'a Policy,
        request: &PolicyRequest,
        now: Timestamp,
        shared: Option<&HashSet<Key>>,
        is_known: Option<&IsKnown<'_>>,
    ) -> Self {
        let mut plan = Self::default();
        let kinds = EventKinds::of(&request.events);
        // A replay delivers later, when it knows which recipients were accepted.
        let learns = policy.has_memories()
            && (is_known.is_some() || request.events.iter().any(|event| matches!(event, Event::Delivered(_))));
        if !policy.decided_kinds().has_any(kinds) && !learns {
            return plan;
        }
        // A run of events seldom needs more budgets, even under a policy with many limits.
        let most = policy.limits.len().min(MAX_INITIAL_CAPACITY);
        let checks = (policy.limits.len() * request.events.len()).min(MAX_INITIAL_CAPACITY);
        (plan.checks, plan.budgets) = (Vec::with_capacity(checks), Vec::with_capacity(most));
        plan.keys = Keys::with_capacity(most);
        if is_known.is_some() {
            plan.untouched = Vec::with_capacity(most);
        }
        let planner = Planner::new(policy, request, now, shared);
        plan.suspension = policy.exceptions.suspended(&planner.facts, now).cloned();
        if learns || policy.locks || plan.suspension.as_ref().is_some_and(|suspension| suspension.is_lock()) {
            plan.add_memory_entries(&planner, is_known);
        }
        let subjects: SmallVec<[_; USUAL_EVENTS]> = (0..request.events.len()).map(|at| planner.subject(at)).collect();
        // Limits that look at other limits' budgets come after those limits in the policy.
        let is_of_interest = |limit: &Limit| limit.derived.interests.has_any(kinds);
        let limits = policy.limits.iter().enumerate().filter(|(_, limit)| is_of_interest(limit));
        for (index, limit) in limits.filter(|(_, limit)| !planner.is_for_others(limit, &subjects)) {
            plan.apply(&planner, &subjects, index, limit);
        }
        plan.checks.sort_by_key(|check| check.event);
        plan.add_signs(&planner);
        plan
    }

    /// Returns the keys of the stored budgets that the events check or charge.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = KeyRef<'_>> {
        self.keys.iter()
    }

    /// Returns the budgets that were never charged and whose keys clients can choose freely, except budgets with
    /// overrides or grants.
    pub fn new_budgets(&self, policy: &'a Policy, loaded: &Loaded) -> Vec<NewBudget<'_>> {
        let is_absent = |index: usize| loaded.0.get(index).is_some_and(|slot| slot.budget.is_none() && !slot.is_unread);
        let mut absent: BTreeMap<usize, (usize, bool)> = BTreeMap::new();
        for planned in &self.budgets {
            let BudgetRef::Stored(index) = planned.slot else { continue };
            if is_absent(index) && planned.total.is_none_or(is_absent) {
                absent.entry(index).or_insert((planned.limit, true)).1 &= planned.may_share;
            }
        }
        let may_share = absent.into_iter().filter(|(_, (_, may_share))| *may_share);
        let new = may_share.map(|(index, (limit, _))| {
            let limit = policy.limits[limit].watch.unwrap_or(limit);
            NewBudget { limit: &policy.limits[limit], index, key: self.keys.get(index) }
        });
        new.collect()
    }

    /// Returns the limits that count or watch an event, as indices in the policy. An index occurs once for each event.
    /// Limits with preconditions are left out: see [`Plan::conditional_checks`].
    pub fn limits(&self) -> impl Iterator<Item = usize> {
        let is_counted = |check: &&Check| check.effect != Effect::Peek && check.precondition.is_none();
        let untouched = self.untouched.iter().copied();
        self.checks.iter().filter(is_counted).map(|check| self.budgets[check.budget].limit).chain(untouched)
    }

    /// Returns the same as [`Plan::limits`], and also the limits that only peek at an event.
    pub fn limits_with_peeks(&self) -> impl Iterator<Item = usize> {
        let checks = self.checks.iter().filter(|check| check.precondition.is_none());
        checks.map(|check| self.budgets[check.budget].limit).chain(self.untouched.iter().copied())
    }

    /// Adds the checks of one limit for all events. `subjects` has the facts of each event, and `index` is the index of
    /// this limit in the policy.
    fn apply(&mut self, planner: &Planner<'a, '_>, subjects: &[Subject<'_, '_>], index: usize, limit: &'a Limit) {
        let depends = limit.derived.depends_on_recipient
            || limit.watch.is_some_and(|at| planner.policy.limits[at].derived.depends_on_recipient);
        // A limit that does not depend on the recipient has the same budget for all events, or no budget for all
        // events.
        let mut known: Option<Option<(usize, Option<Precondition>)>> = None;
        let began = self.budgets.len();
        for (at, (event, subject)) in planner.request.events.iter().zip(subjects).enumerate() {
            let Some(effect) = planner.effect(limit, event) else { continue };
            // The event is too early to check the limit. At MAIL, it is unknown whether later recipients are excepted
            // or have overrides. At AUTH, it is unknown which groups the user has.
            let is_early = match (effect, event) {
                (Effect::Peek, Event::Mail) => depends || limit.derived.waits_for_recipients,
                (Effect::Peek, Event::Auth) => limit.derived.waits_for_login,
                _ => false,
            };
            if is_early {
                continue;
            }
            if effect == Effect::Charge && limit.derived.skips_known && self.knows(limit, at) {
                if planner.counts(limit, effect, at, subject) {
                    self.untouched.push(index);
                }
                continue;
            }
            if depends || known.is_none() {
                let budget = match planner.holds(limit, at, subject) {
                    true => self.budget_index(planner, index, limit, (at, subject), began).ok(),
                    false => None,
                };
                let has_precondition = limit.derived.has_precondition;
                let conditional = |budget| {
                    (budget, if has_precondition { self.precondition(planner, limit, at, subject) } else { None })
                };
                known = Some(budget.map(conditional));
            }
            let Some((budget, precondition)) = known.clone().flatten() else { continue };
            let (Ok(amount), Ok(values)) = (planner.amount(limit, effect, at), self.values(planner, limit, at)) else {
                continue;
            };
            self.is_conditional |= limit.derived.has_precondition;
            self.checks.push(Check { event: at, budget, effect, amount, values, precondition });
        }
    }

    /// Returns the index of the limit's budget for an event. Adds the budget if the plan does not have this budget yet.
    /// The budgets from index `began` on belong to this limit.
    fn budget_index(
        &mut self,
        planner: &Planner<'a, '_>,
        index: usize,
        limit: &'a Limit,
        (at, subject): (usize, &Subject<'_, '_>),
        began: usize,
    ) -> Result<usize, SkipReason> {
        let charging = limit.watch.map_or(limit, |watched| &planner.policy.limits[watched]);
        let owners = planner.cache.owners(charging.derived.owners, at, subject).map_err(SkipReason::Unknown)?;
        let granted = planner.policy.exceptions.granted(charging, Owner::text(owners), planner.facts.now());
        let suspended = planner.suspended_since(charging, owners);
        let (quota, row, since) = match granted.and_then(|grant| Some((grant.quota(charging)?, grant.clone()))) {
            Some(granted) => {
                let since = granted.1.term.since;
                (Allowed::Granted(granted.into()), None, Some(since))
            }
            None => {
                let (quota, row) = planner.quota(charging, at, subject);
                (Allowed::Written(quota), row, None)
            }
        };
        let since = suspended.or(since);
        let mut buffer = planner.buffer.borrow_mut();
        let has_account = planner.request.facts.has_account;
        let has_chosen_key =
            charging.derived.has_chosen_keys && since.is_none() && (!has_account || charging.has_chosen_key(true));
        let shared = if has_chosen_key { planner.shared_owners(charging, owners, &mut buffer) } else { None };
        let has_own_numbers =
            !matches!(quota, Allowed::Written(quota) if std::ptr::eq(quota, &raw const charging.quota));
        let may_share = has_chosen_key && shared.is_none() && !has_own_numbers;
        let owners = shared.as_deref().unwrap_or(owners);
        let key = Key::of(&charging.derived.prefix, owners, since, &mut buffer);
        // Limits share no budgets, except that one limit can look at the budgets of another limit.
        let first = if limit.watch.is_some() { 0 } else { began };
        let same = |planned: &PlannedBudget<'_>| self.key(planned.slot).is_some_and(|known| known == key);
        let known = self.budgets[first..].iter().find(|planned| same(planned));
        let known = known.map(|known| (known.slot, known.total));
        // Recipients of one message can have different overrides and the same budget. In this case, there is one entry
        // for each override.
        let is_it = |planned: &PlannedBudget<'_>| {
            planned.limit == index && planned.row == row && *planned.quota == *quota && same(planned)
        };
        if let Some(it) = self.budgets[first..].iter().position(is_it) {
            return Ok(first + it);
        }
        let (slot, total) = known.unwrap_or_else(|| self.add_key(&quota, key, &charging.derived.prefix));
        let filter = limit.distinct.and_then(|distinct| distinct.filter(limit.count, &quota));
        self.budgets.push(PlannedBudget { limit: index, quota, row, slot, total, filter, may_share });
        Ok(self.budgets.len() - 1)
    }

    /// Adds the key of a new budget, and returns a reference to the budget. If the quota is a share, also adds the key
    /// of the total, and returns the index of that key.
    fn add_key(&mut self, quota: &Quota, key: KeyRef<'_>, prefix: &str) -> (BudgetRef, Option<usize>) {
        match quota {
            Quota::Never | Quota::Unlimited => (BudgetRef::None, None),
            Quota::Counter { scope: Scope::Message, .. } => (BudgetRef::Message(self.own.push(key)), None),
            Quota::Counter { scope: Scope::Connection, .. } => (BudgetRef::Connection(self.own.push(key)), None),
            Quota::Rate { .. }
            | Quota::Regularity(_)
            | Quota::Likelihood(_)
            | Quota::Counter { scope: Scope::AtOnce, .. } => (BudgetRef::Stored(self.keys.push(key)), None),
            Quota::Share(_) => {
                let total = key.of_total(prefix);
                (BudgetRef::Stored(self.keys.push(key)), Some(self.keys.push(total.borrowed())))
            }
        }
    }

    pub(super) fn key(&self, slot: BudgetRef) -> Option<KeyRef<'_>> {
        match slot {
            BudgetRef::Stored(index) => Some(self.keys.get(index)),
            BudgetRef::Message(index) | BudgetRef::Connection(index) => Some(self.own.get(index)),
            BudgetRef::None => None,
        }
    }
}
