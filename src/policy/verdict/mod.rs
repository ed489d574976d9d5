//! Verdict of policy on an event.

mod evaluation;
mod refusal;

pub use super::limit::{Code, Mode, Verb};
pub use evaluation::Evaluation;
pub use refusal::{Meaning, Refusal, Suspended, SuspensionNotice};

use super::budgets::{Key, RefundableCharge};
use super::exception::Suspension;
use super::limit::{ActionKind, Notification, Quota, Thing};
use super::{SuspicionClass, SuspicionScore};
use crate::engine::{State, Wait};
use crate::policy::exception::Length;
use crate::time::Timestamp;
use std::sync::Arc;
use std::time::Duration;

/// Verdict on one event.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    pub ruling: Ruling,
    /// Limit hits for the log, not for the client.
    pub limit_hits: Vec<LimitHit>,
    /// Limits that did not apply, because a condition `exceeded` did not hold. Indices in the policy.
    pub not_exceeded: Vec<usize>,
    /// Charges that may be refunded.
    pub charges: Vec<RefundableCharge>,
    /// Keys of the budgets in which a charge for the true size has replaced the charge for the declared size.
    pub trued_up: Vec<Key>,
    /// Keys of the counters that count this session until the session ends.
    pub held: Vec<Key>,
    /// Delay of the reply.
    pub delay: Duration,
    /// Upstream to which mail is routed. A route that is set at MAIL applies to this message. A route that is set at
    /// another event applies to the next message.
    pub route: Option<Arc<str>>,
    /// Suspensions that this event has begun.
    pub suspensions: Vec<Arc<Suspension>>,
    /// Notifications to send.
    pub notices: Vec<Notice>,
    /// Class that the user has reached with this event, if the class is higher than before.
    pub suspicion_rise: Option<SuspicionRise>,
    /// Numbers that each limit measured, if the event is refused or the request wants evaluations.
    pub evaluations: Vec<Evaluation>,
}

#[derive(Clone, Debug, Default)]
pub enum Ruling {
    /// Accept; the event is charged.
    #[default]
    Pass,
    /// Refuse; only limits that count attempts charge the event.
    Refuse(Box<Refusal>),
    /// Refuse a suspended sender; nothing is charged.
    Suspended(Box<Suspended>),
    /// Skip an event that cannot happen because an earlier event was refused, such as RCPT after a refused MAIL.
    /// Nothing is charged.
    Skipped,
}

/// Rise of a user into a class of `[suspicion]`.
#[derive(Clone, Debug)]
pub struct SuspicionRise {
    pub class: SuspicionClass,
    pub score: SuspicionScore,
}

/// Notification to send.
#[derive(Clone, Debug)]
pub struct Notice {
    pub notification: Arc<Notification>,
    /// Key of the budget whose level causes the notification.
    pub key: Option<Key>,
    pub limit: Arc<str>,
    pub thing: Thing,
    /// Level of the rung that notifies, as a multiple of the limit.
    pub at: f64,
    pub mode: Mode,
    /// Level of the budget.
    pub level: f64,
    pub quota: Quota,
    pub consequence: Consequence,
    /// Score of the user before the event, if the limit matches on suspicion.
    pub suspicion: Option<SuspicionScore>,
}

/// Consequence of a limit for the owner of the budget, as far as it is known when the notice is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Consequence {
    /// True if the limit refuses the event.
    pub refuses: bool,
    /// Length of the suspension or lock that begins with the event.
    pub suspends: Option<Length>,
    /// True if this suspension is a lock, which refuses only mail to strangers.
    pub is_lock: bool,
    /// Longest suspension of the limit's rungs, if the owner can be suspended.
    pub may_suspend: Option<Length>,
}

impl Notice {
    /// Returns the time from which the level is below the level of the rung, if no other event comes earlier. For a
    /// quota without a rate, that is the present time: its level ends with the message or the session.
    pub fn over_until(&self, now: Timestamp) -> Timestamp {
        let Quota::Rate { rate, rule } = self.quota else { return now };
        let state = State { at: now, level: self.level };
        match rule.at(self.at).wait(Some(state), now, 0.0) {
            Wait::For(wait) => now.after(wait),
            Wait::Never => now.after(rate.period),
        }
    }
}

/// Limit hit, for the log.
#[derive(Clone, Debug)]
pub struct LimitHit {
    /// Name of the limit that the event exceeds.
    pub limit: Arc<str>,
    /// Index in the policy. The name does not identify the limit, because several rates of a limit have the same name.
    pub index: usize,
    pub mode: Mode,
    /// Level of the budget.
    pub level: f64,
    pub quota: Quota,
    /// Actions, such as `warn, delay 2s`. If the limit is not enforced, the text also contains the verb of its refusal,
    /// which only the log shows.
    pub actions: String,
    /// True if `actions` contains the verb of a refusal.
    pub refuses: bool,
    /// Strongest of these actions.
    pub strongest: ActionKind,
}

impl Verdict {
    /// Returns whether the limit of this name refuses the event, alone or together with other limits.
    pub fn is_refused_by(&self, limit: &str) -> bool {
        let Ruling::Refuse(refusal) = &self.ruling else { return false };
        *refusal.limit == *limit || refusal.also.iter().any(|also| **also == *limit)
    }
}
