//! Policy: limits as data, with their budgets, actions and exceptions, and the decision on each event.
//!
//! A [`Plan`] lists the limits that apply to a run of pipelined events, and their budgets. [`decide`] makes all
//! decisions, and changes nothing but its arguments. A store loads the budgets before the decision and saves them after
//! it.
//!
//! Modules, in the order of a decision: [`address`] normalizes addresses. [`request`] contains the events and facts of
//! a session. [`location`] finds the country of a client. [`limit`] contains the limits of `weir.toml`. [`matching`]
//! determines to which events a limit applies. [`exception`] contains grants and suspensions, `suspension` the rules of
//! the latter, [`egress`] the register of direct ways. `plan` finds limits and budgets. [`budgets`] contains the keys
//! and states of budgets. `decision` measures and charges each event. [`verdict`] contains the result of a decision.

pub mod address;
mod budget_view;
pub mod budgets;
mod decision;
pub mod egress;
pub mod exception;
mod fullness;
mod in_memory;
mod lessons;
mod lifetime;
pub mod limit;
pub mod location;
mod login_history;
pub mod login_networks;
pub mod matching;
mod memory;
mod name_search;
mod plan;
mod record_filter;
pub mod request;
mod sign;
mod stored_kind;
mod suspension;
pub mod suspicion;
mod term;
pub mod verdict;

pub use budget_view::{BudgetReading, BudgetView, BudgetViews, QuotaSource};
pub use decision::{Explained, decide, explain};
pub use fullness::FullnessScan;
pub use in_memory::{InMemoryStore, ReplayedRecipient};
pub use lessons::{Learnt, LearntSums, Lessons, PastRecipient};
pub use lifetime::Lifetime;
pub use login_history::LoginHistory;
pub use memory::{KnownTo, Memory, MemoryRules};
pub use name_search::{NameSearch, has_part};
pub use plan::{ConditionalCheck, NewBudget, Plan};
pub use record_filter::{ClientFilter, UserFilter};
pub use sign::{Sign, SignPoints, SuspicionScore};
pub use stored_kind::StoredKind;
pub use suspicion::{Suspect, SuspicionClass, SuspicionRules};

use crate::engine::regularity::Times;
use crate::engine::{Receipt, State, lease};
use crate::time::Timestamp;
use address::AddressNormalizer;
use budgets::{Budget, Key, KeyRef};
use exception::{Exceptions, SuspensionRules};
use ipnet::IpNet;
use limit::{Action, Count, Limit, Mode, Rung};
use location::Locations;
use login_networks::LoginNetworks;
use matching::{Senders, Zone};
use plan::MatcherSet;
use request::{Event, EventKinds};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Limits in force, and exceptions from them.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    pub limits: Arc<[Limit]>,
    pub exceptions: Arc<Exceptions>,
    /// Normalizer of addresses and logins.
    pub normalizer: AddressNormalizer,
    /// Addresses as which users may send.
    pub senders: Arc<Senders>,
    /// Time zone of `time` conditions.
    pub zone: Zone,
    pub lateness: Lateness,
    pub max_new_budgets: MaxNewBudgets,
    pub locations: Locations,
    pub login_networks: Arc<LoginNetworks>,
    pub login_history: LoginHistory,
    /// Help page for suspended users.
    pub help_url: Option<Arc<str>>,
    pub suspensions: Arc<SuspensionRules>,
    pub suspicion: SuspicionRules,
    /// Signs, which raise suspicion scores.
    signs: Arc<[Sign]>,
    /// Memories that limits name with `known-to`, each once.
    memories: Arc<[Memory]>,
    /// True if any enforced limit can delay replies.
    delays: bool,
    /// True if any limit can lock owners.
    locks: bool,
    /// True if a condition of any limit needs the novelty of a login.
    uses_novelty: bool,
    /// Kinds of events that have an effect on any limit, or that memories learn from.
    event_kinds: EventKinds,
    matcher_set: Arc<MatcherSet>,
}

/// Longest delays of replies. Among the known clients, the shortest timeout is 60 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lateness {
    /// For one command.
    pub command: Duration,
    /// For all commands of a transaction together.
    pub transaction: Duration,
}

/// Maximum number of new budgets for each limit whose keys clients can choose freely. A limit is allowed to create this
/// number at once, and the same number again in each hour. All further new keys of the limit share one budget: see
/// [`Plan::with_shared`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxNewBudgets(pub u32);

impl Default for MaxNewBudgets {
    /// The default is far above the number of new clients, senders and recipients that a large site has in an hour. The
    /// budgets that a flood of new keys creates take about 15 MB on disk.
    fn default() -> Self {
        Self(100_000)
    }
}

impl Default for Lateness {
    fn default() -> Self {
        Self { command: Duration::from_secs(20), transaction: Duration::from_secs(45) }
    }
}

impl Policy {
    pub fn new(mut limits: Vec<Limit>, normalizer: AddressNormalizer, zone: Zone) -> Self {
        let mut matcher_set = MatcherSet::default();
        limits.iter_mut().for_each(|limit| limit.prepare(&mut matcher_set));
        let signs = Sign::of_limits(&mut limits).into();
        let is_delay = |rung: &Rung| matches!(rung.action, Action::Delay(_));
        let delays = |limit: &Limit| limit.mode == Mode::Enforce && limit.ladder.rungs().iter().any(is_delay);
        let delays = limits.iter().any(delays);
        let uses_novelty = limits.iter().any(|limit| limit.matcher.needs_novelty());
        let memories = memories(&limits);
        let locks =
            limits.iter().any(|limit| limit.ladder.rungs().iter().any(|rung| matches!(rung.action, Action::Lock(_))));
        let deliveries = (!memories.is_empty()).then(|| Event::Delivered(Arc::from("")));
        let learnt = EventKinds::of(&deliveries);
        let event_kinds = limits.iter().fold(learnt, |kinds, limit| kinds.union(limit.derived.interests));
        let (limits, matcher_set) = (limits.into(), Arc::new(matcher_set));
        let senders = Arc::new(Senders::new(&normalizer));
        let mut policy = Self { limits, normalizer, senders, zone, memories, signs, ..Self::default() };
        (policy.delays, policy.locks, policy.uses_novelty) = (delays, locks, uses_novelty);
        (policy.event_kinds, policy.matcher_set) = (event_kinds, matcher_set);
        policy
    }

    /// Returns whether the client is in a login network of a user. `own`: the login networks that the user's account
    /// itself names. `None`: the user has no login networks, and may log in from anywhere.
    pub fn registered_network(
        &self,
        client: IpAddr,
        user: &str,
        groups: &[Box<str>],
        own: Option<&[IpNet]>,
    ) -> Option<bool> {
        self.login_networks.contain(client, &self.normalizer.user(user), groups, own)
    }

    /// Returns the policy in which only the limit of this name is enforced, and no exceptions hold. If this limit looks at
    /// budgets of other limits, the other limits stay in shadow mode; otherwise they are left out.
    pub fn trying(&self, name: &str) -> Self {
        let is_tried = |limit: &&Limit| *limit.name == *name;
        let looks =
            |limit: &Limit| limit.watch.is_some() || limit.matcher.has_exceeded() || limit.matcher.has_suspicion();
        let keeps_others = self.limits.iter().filter(is_tried).any(looks);
        let kept = self.limits.iter().filter(|limit| keeps_others || is_tried(limit)).cloned();
        let kept =
            kept.map(|limit| Limit { mode: if is_tried(&&limit) { Mode::Enforce } else { Mode::Shadow }, ..limit });
        let Self { limits, mut signs, delays, uses_novelty, event_kinds, matcher_set, .. } =
            Self::new(kept.collect(), self.normalizer.clone(), self.zone.clone());
        // The signs keep the modes of their limits, because the tried limit may match on the score.
        for sign in Arc::make_mut(&mut signs) {
            sign.mode = self.signs.iter().find(|known| known.limit == sign.limit).map_or(sign.mode, |known| known.mode);
        }
        let exceptions = Arc::default();
        Self { limits, signs, delays, uses_novelty, event_kinds, matcher_set, exceptions, ..self.clone() }
    }

    /// Returns the name of the limit at this index. If the limit has several rates, the name includes the rate.
    pub fn display_name(&self, index: usize) -> String {
        let limit = &self.limits[index];
        let is_one_of_several = |(other, one): (usize, &Limit)| other != index && one.name == limit.name;
        match self.limits.iter().enumerate().any(is_one_of_several) {
            true => format!("{} ({} / {})", limit.name, limit.quota.amount(), limit.quota.period()),
            false => limit.name.to_string(),
        }
    }

    /// Returns whether the limit at this index is one of several rates of a limit. The rates of a limit are neighbours in
    /// the list.
    fn has_several_rates(&self, index: usize) -> bool {
        let is_same = |other: usize| self.limits.get(other).is_some_and(|other| other.name == self.limits[index].name);
        is_same(index + 1) || index.checked_sub(1).is_some_and(is_same)
    }

    /// Returns the number of limits as the configuration has them: a limit with several rates counts once, although the
    /// list has an entry for each rate.
    pub fn limit_count(&self) -> usize {
        self.limits.chunk_by(|one, next| one.name == next.name).count()
    }

    /// Returns the upstreams to which limits route mail.
    pub fn routes(&self) -> impl Iterator<Item = &Arc<str>> {
        let in_force = self.limits.iter().filter(|limit| limit.mode == Mode::Enforce);
        in_force.flat_map(|limit| limit.ladder.rungs()).filter_map(|rung| match &rung.action {
            Action::Route(upstream) => Some(upstream),
            _ => None,
        })
    }

    /// Returns whether any limit needs the novelty of logins.
    pub fn uses_novelty(&self) -> bool {
        self.uses_novelty
    }

    /// Returns whether any limit counts this quantity.
    pub fn counts(&self, count: Count) -> bool {
        self.limits.iter().any(|limit| limit.watch.is_none() && limit.count == count)
    }

    /// Returns whether any limit has a memory, which learns from delivered mail.
    pub fn has_memories(&self) -> bool {
        !self.memories.is_empty()
    }

    /// Returns the kinds of events about which the policy has to be asked. It admits all others, and charges and learns
    /// nothing.
    pub fn decided_kinds(&self) -> EventKinds {
        if self.exceptions.has_suspensions() { EventKinds::ALL } else { self.event_kinds }
    }

    /// Returns the memories that limits name with `known-to`.
    pub fn memories(&self) -> &[Memory] {
        &self.memories
    }

    /// Returns all kinds of budgets that a store keeps, each with the name of the kind (see [`Key::kind`]).
    pub fn stored_kinds(&self) -> impl Iterator<Item = (String, StoredKind<'_>)> {
        let of_limit = |limit| Limit::kinds(limit).map(move |kind| (kind, StoredKind::Limit(limit)));
        let of_memories = self.memories.iter().map(|memory| (memory.kind(), StoredKind::Memory(*memory)));
        let of_signs = self.signs.iter().map(|sign| (sign.kind(), StoredKind::Sign(sign)));
        self.limits.iter().flat_map(of_limit).chain(of_memories).chain(of_signs)
    }

    /// Returns the limits of which nodes take leases, each with the key of its only budget.
    pub fn leases(&self) -> impl Iterator<Item = (&Limit, KeyRef<'_>, lease::Terms)> {
        let stored = self.limits.iter().filter(|limit| limit.is_stored());
        stored.filter_map(|limit| {
            let terms = lease::Terms { rule: limit.quota.rule()?, amount: limit.lease? };
            Some((limit, KeyRef::of_text(limit.prefix()), terms))
        })
    }

    /// Returns the kind of a key's budget; `None` if the policy has no such budgets.
    pub fn stored_kind(&self, key: &Key) -> Option<StoredKind<'_>> {
        let name = key.kind();
        self.stored_kinds().find(|(kind, _)| *kind == name).map(|(_, kind)| kind)
    }

    /// Refunds a charge of a budget, if the limit has a rule by which charges can be refunded: see [`Rule::refund`].
    ///
    /// [`Rule::refund`]: crate::engine::Rule::refund
    pub fn refund(&self, key: &Key, mut budget: Budget, receipt: &Receipt) -> Budget {
        if let Some(StoredKind::Limit(limit)) = self.stored_kind(key)
            && let Some(rule) = limit.rule()
        {
            // A budget with level 0 is equivalent to a budget that was never charged.
            let nothing = State { level: 0.0, ..budget.state };
            budget.state = rule.refund(budget.state, receipt).unwrap_or(nothing);
        }
        budget
    }

    /// Returns by how much the level of a budget is above the one that it would have had without events since `before`.
    /// It is below 0 if charges were refunded.
    pub fn rise(&self, key: &Key, before: State, State { at, level }: State) -> f64 {
        let without = match self.stored_kind(key) {
            Some(StoredKind::Sign(sign)) => sign.rule.level(Some(before), at),
            Some(StoredKind::Limit(limit)) => match limit.rule() {
                Some(rule) => rule.step(Some(before), at, 0.0).1.level,
                // The sum of a likelihood ratio does not decay.
                None => before.level,
            },
            Some(StoredKind::Memory(_)) | None => before.level,
        };
        level - without
    }

    /// Returns what a budget has counted since it was `base`, as a budget that began at 0. [`Policy::merge`] adds the
    /// result to another state of the same budget.
    pub fn counted_since(&self, key: &Key, base: &Budget, budget: Budget) -> Budget {
        let State { at, level } = budget.state;
        let rise = self.rise(key, base.state, budget.state);
        let level = match self.stored_kind(key) {
            Some(StoredKind::Memory(_)) => 0.0,
            // The sum of a likelihood ratio can fall.
            Some(StoredKind::Limit(limit)) if limit.rule().is_none() => rise,
            Some(_) => rise.max(0.0),
            None => level,
        };
        let known = base.times.as_deref();
        let is_new = |time: &Timestamp| known.is_none_or(|known| known.iter().all(|other| other < *time));
        let times = budget.times.map(|times| Arc::new(Times::new(times.iter().filter(is_new).collect())));
        Budget { state: State { at, level }, seen: budget.seen, times }
    }

    /// Merges two budgets of one key. `counted` began at 0 while `stored` could not be read.
    pub fn merge(&self, key: &Key, stored: Budget, counted: Budget) -> Budget {
        match self.stored_kind(key) {
            Some(StoredKind::Memory(_)) => Memory::merged(stored, counted),
            Some(StoredKind::Sign(sign)) => sign.merged(stored, counted),
            Some(StoredKind::Limit(limit)) => match limit.rule() {
                Some(rule) => stored.merged(counted, rule),
                None if matches!(limit.quota, limit::Quota::Likelihood(_)) => {
                    let level = stored.state.level + counted.state.level;
                    Budget { state: State { level, ..counted.state }, ..stored }
                }
                // A limit on regularity has no rule: its budget has the times of the last events.
                None if counted.times.is_some() => Budget { state: counted.state, ..stored.united(counted) },
                None => stored,
            },
            None => stored,
        }
    }

    /// Returns a budget that is at least as full as each of two copies of one key's budget, and that knows the values that
    /// both have seen. The copies may have charges in common, which a sum would count twice. If the result and one of the
    /// copies are united again, nothing changes.
    pub fn larger(&self, key: &Key, stored: Budget, copy: Budget) -> Budget {
        let now = stored.state.at.max(copy.state.at);
        let kind = self.stored_kind(key);
        let level = |state: State| match &kind {
            Some(StoredKind::Limit(limit)) => limit.rule().map(|rule| rule.step(Some(state), now, 0.0).1.level),
            Some(StoredKind::Sign(sign)) => Some(sign.rule.level(Some(state), now)),
            Some(StoredKind::Memory(_)) | None => None,
        };
        let state = match (level(stored.state), level(copy.state)) {
            (Some(of_stored), Some(of_copy)) if of_copy > of_stored => copy.state,
            (Some(_), Some(_)) => stored.state,
            // The level does not decay, or the rule by which it decays is unknown.
            _ => State { at: now, level: stored.state.level.max(copy.state.level) },
        };
        Budget { state, ..stored.larger(copy) }
    }
}

/// Returns the memories that these limits name, each once.
fn memories(limits: &[Limit]) -> Arc<[Memory]> {
    let mut memories: Vec<Memory> = Vec::new();
    for memory in limits.iter().filter_map(|limit| limit.distinct?.known_to) {
        if !memories.contains(&memory) {
            memories.push(memory);
        }
    }
    memories.into()
}
