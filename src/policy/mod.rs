//! Limits as data: what is counted, in whose budget, how much, and what happens to whoever is over.
//!
//! A run of events becomes a [`Plan`]: which limits hold, and whose budgets they are. [`decide`] is pure and the one decision
//! there is: stores load budgets before it and keep them after it.

pub mod action;
pub mod algorithm;
mod budget;
pub mod count;
mod decide;
pub mod domain;
pub mod event;
pub mod exception;
pub mod facts;
pub mod field;
pub mod hours;
pub mod key;
pub mod limit;
mod limit_keys;
mod match_cache;
pub mod matcher;
pub mod networks;
pub mod normalize;
mod normalized_facts;
pub mod overrides;
mod owner_syntax;
pub mod pattern;
mod plan;
pub mod quota;
pub mod rate_syntax;
mod refund;
pub mod request;
pub mod session_counters;
pub mod skip_reason;
pub mod template;
pub mod verdict;

pub use budget::{Budget, Change, Loaded};
pub use decide::decide;
pub use decide::explain::{Explained, Weighed, explain};
pub use owner_syntax::ResetTarget;
pub use plan::{Plan, Unknown};
pub use refund::{combine, give_back, reset};

use action::{Action, Rung};
use count::Count;
use exception::Exceptions;
use hours::Zone;
use limit::{Limit, Mode};
use match_cache::MatcherSet;
use normalize::AddressNormalizer;
use std::sync::Arc;
use std::time::Duration;

/// The limits in force, and the exceptions from them.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    pub limits: Arc<[Limit]>,
    pub exceptions: Arc<Exceptions>,
    /// How addresses and logins are compared.
    pub folding: AddressNormalizer,
    /// Where the hours of limits are.
    pub zone: Zone,
    pub lateness: Lateness,
    pub max_new_budgets: MaxNewBudgets,
    /// Where whoever is suspended finds help.
    pub help_url: Option<Arc<str>>,
    /// Whether answers may be late.
    delays: bool,
    asking: Arc<MatcherSet>,
}

/// How late answers may be at most: the shortest patience of clients that is proven is 60 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lateness {
    /// To a command.
    pub command: Duration,
    /// To all commands of a transaction together.
    pub transaction: Duration,
}

/// The number of budgets that each limit may make at once, and in each hour, for keys that clients can choose freely. More new keys
/// share a budget: see [`Plan::with_shared`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxNewBudgets(pub u32);

impl Default for MaxNewBudgets {
    /// Far more new clients, senders and recipients than a large site sees in an hour. In a flood they take about 15 MB on disk.
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
    pub fn new(mut limits: Vec<Limit>, folding: AddressNormalizer, zone: Zone) -> Self {
        let mut asking = MatcherSet::default();
        limits.iter_mut().for_each(|limit| limit.settle(&mut asking));
        let is_delay = |rung: &Rung| matches!(rung.action, Action::Delay(_));
        let delays = |limit: &Limit| limit.mode == Mode::Enforce && limit.ladder.rungs().iter().any(is_delay);
        let delays = limits.iter().any(delays);
        Self { limits: limits.into(), folding, zone, delays, asking: Arc::new(asking), ..Self::default() }
    }

    /// The name of the limit at this place; one of several rates is told from the others by its rate.
    pub fn title(&self, place: usize) -> String {
        let limit = &self.limits[place];
        let is_one_of_several = |(other, one): (usize, &Limit)| other != place && one.name == limit.name;
        match self.limits.iter().enumerate().any(is_one_of_several) {
            true => format!("{} ({} / {})", limit.name, limit.quota.amount(), limit.quota.period()),
            false => limit.name.to_string(),
        }
    }

    /// The upstreams to which limits route mail.
    pub fn routes(&self) -> impl Iterator<Item = &Arc<str>> {
        let in_force = self.limits.iter().filter(|limit| limit.mode == Mode::Enforce);
        in_force.flat_map(|limit| limit.ladder.rungs()).filter_map(|rung| match &rung.action {
            Action::Route(upstream) => Some(upstream),
            _ => None,
        })
    }

    /// Whether any limit counts this.
    pub fn counts(&self, count: Count) -> bool {
        self.limits.iter().any(|limit| limit.watch.is_none() && limit.count == count)
    }
}
