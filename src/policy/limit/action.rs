//! Actions of a limit: a ladder of rungs, each with the level from which it acts.

use super::template::Template;
use crate::engine::{Rule, State};
use crate::policy::budgets::Budget;
use crate::time::Timestamp;
use std::sync::Arc;
use std::time::Duration;

/// Ladder of a limit: its rungs, the lowest first.
#[derive(Clone, Debug, PartialEq)]
pub struct Ladder {
    rungs: Vec<Rung>,
    /// Level of the first rung. Most events stay far below it, and need no other comparison.
    lowest: f64,
}

/// Action of a limit, from a level on.
#[derive(Clone, Debug, PartialEq)]
pub struct Rung {
    /// Multiple of the limit; 1 is the algorithm's own "over".
    pub at: f64,
    pub action: Action,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Logs a line and counts a metric.
    Warn,
    /// Refuses with this text, or with the standard one.
    Refuse(Verb, Option<Arc<Template>>),
    /// Delays the reply.
    Delay(Delay),
    /// Routes the mail to this upstream, from the next MAIL on.
    Route(Arc<str>),
    /// Suspends the owner of the budget for this long.
    Suspend(Duration),
    /// Sends a notification.
    Notify(Arc<Notification>),
}

/// Notification: its name, and its highest rate.
#[derive(Clone, Debug, PartialEq)]
pub struct Notification {
    /// Name in the configuration.
    pub name: Arc<str>,
    /// Rate per budget.
    pub at_most: Rule,
}

impl Notification {
    /// Counts one more notification of a budget. Returns the state to remember if the notification may be sent.
    /// `former` is the state remembered before.
    pub fn goes_out(&self, former: Option<&Budget>, now: Timestamp) -> Option<Budget> {
        // A state from the future was stored by a wrong clock: without this, nothing would be sent until then.
        let former = former.map(|budget| State { at: budget.state.at.min(now), ..budget.state });
        let (state, outcome) = self.at_most.step(former, now, 1.0);
        (!outcome.over).then_some(Budget { state, seen: None })
    }
}

/// Kinds of refusal, the weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// Temporary: 4xx.
    Defer,
    /// Permanent: 5xx.
    Deny,
    /// Permanent, and suspends the sender for a while.
    Suspend,
    /// Refuses, and closes the connection.
    Drop,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Delay {
    For(Duration),
    /// `time` for each `units` above the rung.
    Per {
        time: Duration,
        units: f64,
    },
    /// Until the event fits.
    UntilFree,
}

impl Verb {
    pub fn name(self) -> &'static str {
        match self {
            Self::Defer => "defer",
            Self::Deny => "deny",
            Self::Suspend => "suspend",
            Self::Drop => "drop",
        }
    }
}

impl Action {
    /// Returns the word in the configuration.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Warn => "warn",
            Self::Refuse(verb, _) => verb.name(),
            Self::Delay(_) => "delay",
            Self::Route(_) => "route",
            Self::Suspend(_) => "suspend",
            Self::Notify(_) => "notify",
        }
    }

    /// Returns whether the action refuses the event.
    pub fn refuses(&self) -> bool {
        matches!(self, Self::Refuse(..) | Self::Suspend(_))
    }
}

impl Ladder {
    /// Takes rungs in any order.
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

    /// Returns whether a rung suspends the owner of the budget.
    pub fn suspends(&self) -> bool {
        self.rungs.iter().any(|rung| matches!(rung.action, Action::Suspend(_)))
    }

    /// Returns the level of the first rung.
    pub fn lowest(&self) -> f64 {
        self.lowest
    }

    /// Returns the rungs that are reached.
    pub fn reached(&self, is_over: impl Fn(f64) -> bool) -> impl Iterator<Item = &Rung> {
        self.rungs.iter().take_while(move |rung| is_over(rung.at))
    }
}
