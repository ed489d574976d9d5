//! Actions of a limit: a ladder of rungs. Each rung has an action, and the level of the budget from which the action is
//! taken.

use super::template::Template;
use crate::engine::{Rule, State};
use crate::policy::budgets::Budget;
use crate::policy::suspicion::Suspect;
use crate::policy::term::Length;
use crate::time::Timestamp;
use std::sync::Arc;
use std::time::Duration;

/// Ladder of a limit: its rungs, the lowest first.
#[derive(Clone, Debug, PartialEq)]
pub struct Ladder {
    rungs: Vec<Rung>,
    /// Level of the first rung. Most events stay below it, so that one comparison is enough.
    lowest: f64,
}

/// Action of a limit, and the level of the budget from which the action is taken.
#[derive(Clone, Debug, PartialEq)]
pub struct Rung {
    /// Level, as a multiple of the limit. At the level 1, the algorithm itself reports that the limit is exceeded.
    pub at: f64,
    pub action: Action,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Writes a log line and increments a metric.
    Warn,
    /// Refuses the event with this text, or with the standard text.
    Refuse(Verb, Option<Arc<Template>>),
    /// Delays the reply.
    Delay(Delay),
    /// Routes the mail to this upstream, from the next MAIL on.
    Route(Arc<str>),
    /// Suspends the owner of the budget. If the suspension is strict, no mail of the owner passes.
    Suspend { time: Length, is_strict: bool },
    /// Refuses mail of the owner of the budget to recipients that the limit's memory does not know.
    Lock(Length),
    /// Sends a notification.
    Notify(Arc<Notification>),
    /// Raises the suspicion score of the user.
    Suspect(Suspect),
}

/// Notification: its name, and perhaps its highest rate.
#[derive(Clone, Debug, PartialEq)]
pub struct Notification {
    /// Name in the configuration.
    pub name: Arc<str>,
    /// Highest rate of notifications about one budget; `None` if only episodes bound them.
    pub at_most: Option<Rule>,
}

impl Notification {
    /// Counts one more notification about a budget. `former` is the state that the previous call returned. Returns the
    /// new state if the notification is permitted, otherwise `None`.
    pub fn goes_out(&self, former: Option<&Budget>, now: Timestamp) -> Option<Budget> {
        // A wrong clock may have stored a time in the future. Without this correction, nothing would be sent until that
        // time.
        let former = former.map(|budget| State { at: budget.state.at.min(now), ..budget.state });
        let Some(at_most) = self.at_most else {
            return Some(Budget::new(State { at: now, level: 0.0 }));
        };
        let (state, outcome) = at_most.step(former, now, 1.0);
        (!outcome.over).then_some(Budget::new(state))
    }
}

/// Kinds of refusal, the weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// Temporary: 4xx.
    Defer,
    /// Permanent: 5xx.
    Deny,
    /// Permanent: 5xx. Also locks the owner of the budget.
    Lock,
    /// Permanent: 5xx. Also suspends the owner of the budget.
    Suspend,
    /// Refuses, and closes the connection.
    Drop,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Delay {
    For(Duration),
    /// Delays by `time` for every `units` units by which the level exceeds the level of the rung.
    Per {
        time: Duration,
        units: f64,
    },
    /// Delays until the level has fallen so much that the event passes.
    UntilFree,
}

/// Kinds of actions, the weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ActionKind {
    Warn,
    Suspect,
    Notify,
    Route,
    Delay,
    Refuse(Verb),
}

impl ActionKind {
    /// Returns the word in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Warn => "warn",
            Self::Suspect => "suspect",
            Self::Notify => "notify",
            Self::Route => "route",
            Self::Delay => "delay",
            Self::Refuse(verb) => verb.name(),
        }
    }
}

impl Verb {
    /// Returns whether the refusal begins a suspension or a lock.
    pub fn suspends(self) -> bool {
        matches!(self, Self::Lock | Self::Suspend)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Defer => "defer",
            Self::Deny => "deny",
            Self::Lock => "lock",
            Self::Suspend => "suspend",
            Self::Drop => "drop",
        }
    }
}

impl Action {
    pub fn kind(&self) -> ActionKind {
        match self {
            Self::Warn => ActionKind::Warn,
            Self::Refuse(verb, _) => ActionKind::Refuse(*verb),
            Self::Delay(_) => ActionKind::Delay,
            Self::Route(_) => ActionKind::Route,
            Self::Suspend { .. } => ActionKind::Refuse(Verb::Suspend),
            Self::Lock(_) => ActionKind::Refuse(Verb::Lock),
            Self::Notify(_) => ActionKind::Notify,
            Self::Suspect(_) => ActionKind::Suspect,
        }
    }

    /// Returns the word in the configuration.
    pub fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// Returns the length of the suspension or the lock that the action begins.
    pub fn suspends(&self) -> Option<Length> {
        match self {
            Self::Suspend { time, .. } | Self::Lock(time) => Some(*time),
            _ => None,
        }
    }

    /// Returns whether the action refuses the event.
    pub fn refuses(&self) -> bool {
        matches!(self, Self::Refuse(..) | Self::Suspend { .. } | Self::Lock(_))
    }
}

impl Ladder {
    /// Creates a ladder from rungs in any order.
    pub fn new(mut rungs: Vec<Rung>) -> Self {
        rungs.sort_by(|a, b| a.at.total_cmp(&b.at));
        let lowest = rungs.first().map_or(f64::INFINITY, |rung| rung.at);
        Self { rungs, lowest }
    }

    /// Returns the default ladder: `defer` at the limit.
    pub fn standard() -> Self {
        Self::new(vec![Rung { at: 1.0, action: Action::Refuse(Verb::Defer, None) }])
    }

    pub fn rungs(&self) -> &[Rung] {
        &self.rungs
    }

    /// Returns whether a rung suspends or locks the owner of the budget.
    pub fn suspends(&self) -> bool {
        self.longest_suspension().is_some()
    }

    /// Returns the longest suspension or lock of all rungs; `None` if no rung begins one.
    pub fn longest_suspension(&self) -> Option<Length> {
        self.rungs.iter().filter_map(|rung| rung.action.suspends()).max()
    }

    /// Returns the level of the first rung.
    pub fn lowest(&self) -> f64 {
        self.lowest
    }

    /// Returns the rungs that an event reaches. `is_over` returns whether the event exceeds a level. The level is a
    /// multiple of the limit.
    pub fn reached(&self, is_over: impl Fn(f64) -> bool) -> impl Iterator<Item = &Rung> {
        self.rungs.iter().take_while(move |rung| is_over(rung.at))
    }
}
