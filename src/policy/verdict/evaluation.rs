//! Evaluation: the numbers that one limit measured for one event.

use super::Refusal;
use crate::policy::SuspicionScore;
use crate::policy::budgets::Key;
use crate::policy::exception::Grant;
use crate::policy::limit::{Effect, Mode, Quota, Thing};
use std::sync::Arc;

/// Effect of an event on the budget of one limit.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// Index of the limit in the policy that decided.
    pub limit: usize,
    pub name: Arc<str>,
    /// The limit's own quota, if the limit has several rates. The name and this quota identify the rate.
    pub rate: Option<Quota>,
    pub mode: Mode,
    pub thing: Thing,
    pub effect: Effect,
    /// Key of the budget; `None` if the quota accumulates nothing.
    pub key: Option<Key>,
    pub quota: Quota,
    /// Row of the override that applies: `bulk-hosts.csv, line 3`.
    pub row: Option<String>,
    /// Grant that replaces the limit's quota.
    pub grant: Option<Arc<Grant>>,
    /// Level before the event, amount of the event, and level after the event, in units of what is counted.
    pub level: f64,
    pub amount: f64,
    pub after: f64,
    /// Refusal that this limit would cause if it were the only limit.
    pub refusal: Option<Box<Refusal>>,
    /// Other actions: `warn`, `delay 2s`.
    pub actions: Vec<String>,
    /// Score of the user before the event, if the limit matches on suspicion.
    pub suspicion: Option<SuspicionScore>,
}

impl Evaluation {
    /// Returns whether the limit refuses the event. A limit that is not enforced refuses nothing.
    pub fn refuses(&self) -> bool {
        self.mode == Mode::Enforce && self.refusal.is_some()
    }
}
