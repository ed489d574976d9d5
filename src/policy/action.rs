//! What happens to whoever is over: a ladder of rungs, each with the level from which it acts.

use super::budget::Budget;
use super::template::Template;
use crate::engine::{Rule, State};
use crate::time::Timestamp;
use std::sync::Arc;
use std::time::Duration;

/// Rungs, the lowest first.
#[derive(Clone, Debug, PartialEq)]
pub struct Ladder {
    rungs: Vec<Rung>,
    /// Where the first one is: most events are far from that, and look no further.
    lowest: f64,
}

/// What is done from a level on.
#[derive(Clone, Debug, PartialEq)]
pub struct Rung {
    /// Times the limit. 1 is the algorithm's own "over".
    pub at: f64,
    pub action: Action,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A line in the log, and a count.
    Warn,
    /// In these words, or in the standard ones.
    Refuse(Verb, Option<Arc<Template>>),
    /// The answer is late.
    Delay(Delay),
    /// From the next MAIL on the mail goes by this upstream.
    Route(Arc<str>),
    /// Whoever has the budget sends nothing for so long.
    Suspend(Duration),
    /// Somebody is told.
    Notify(Arc<Notification>),
}

/// Who is told, and how often at most.
#[derive(Clone, Debug, PartialEq)]
pub struct Notification {
    /// Its name in the configuration.
    pub name: Arc<str>,
    pub mail: Option<Mailbox>,
    /// A URL.
    pub webhook: Option<Box<str>>,
    /// For one budget.
    pub at_most: Rule,
}

impl Notification {
    /// One more notice of a budget: what is to be remembered of it, if it may go out. `former` is what was remembered before.
    pub fn goes_out(&self, former: Option<&Budget>, now: Timestamp) -> Option<Budget> {
        // One from the future is that of a clock that was wrong: nothing would go out until then.
        let former = former.map(|budget| State { at: budget.state.at.min(now), ..budget.state });
        let (state, outcome) = self.at_most.step(former, now, 1.0);
        (!outcome.over).then_some(Budget { state, seen: None })
    }
}

/// Whom a notice goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mailbox {
    /// Whoever is over.
    User,
    Address(Box<str>),
}

/// How something is refused; the later ones are stronger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// For now.
    Defer,
    /// For good.
    Deny,
    /// And whoever it is sends nothing more for a while.
    Suspend,
    /// And the connection is closed.
    Drop,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Delay {
    For(Duration),
    /// So long for each so many units above the rung.
    Per {
        time: Duration,
        units: f64,
    },
    /// Until the event would fit.
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
    /// The word in the configuration.
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

    /// Whether what it acts on does not happen.
    pub fn refuses(&self) -> bool {
        matches!(self, Self::Refuse(..) | Self::Suspend(_))
    }
}

impl Ladder {
    /// Rungs in any order.
    pub fn new(mut rungs: Vec<Rung>) -> Self {
        rungs.sort_by(|a, b| a.at.total_cmp(&b.at));
        let lowest = rungs.first().map_or(f64::INFINITY, |rung| rung.at);
        Self { rungs, lowest }
    }

    /// Whoever is over is told to come again.
    pub fn standard() -> Self {
        Self::new(vec![Rung { at: 1.0, action: Action::Refuse(Verb::Defer, None) }])
    }

    pub fn rungs(&self) -> &[Rung] {
        &self.rungs
    }

    /// Where the first rung is.
    pub fn lowest(&self) -> f64 {
        self.lowest
    }

    /// The rungs that are reached.
    pub fn reached(&self, is_over: impl Fn(f64) -> bool) -> impl Iterator<Item = &Rung> {
        self.rungs.iter().take_while(move |rung| is_over(rung.at))
    }
}
