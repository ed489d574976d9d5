//! Effects of events on a limit: the stage at which events are charged, and the earlier stages at which they are
//! checked.

use super::action::Action;
use super::count::Count;
use super::{Charge, Limit};
use crate::policy::request::{Event, Stage};

/// Effect of an event on a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Charges the event, unless a limit refuses it.
    Charge,
    /// Checks whether one more event would pass, and charges nothing.
    Peek,
    /// Charges an event that has happened already.
    Record,
    /// Charges the true size instead of the declared size.
    TrueUp,
    /// Checks the budget of the limit that this limit watches, and charges nothing.
    Watch,
}

impl Effect {
    /// Returns the word for programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Charge => "charge",
            Self::Peek => "look",
            Self::Record => "note",
            Self::TrueUp => "settle",
            Self::Watch => "watch",
        }
    }
}

impl Limit {
    /// Returns the stage at which the limit charges events: `wanted` (the stage from the configuration, or the count's
    /// default), or the stage at which the facts that the limit needs are known.
    pub fn stage_for(&self, wanted: Stage) -> Stage {
        match (self.count, wanted) {
            // A limit that watches another limit checks at the stage that its configuration names.
            (_, stage) if self.watch.is_some() => stage,
            (Count::Messages, _) if self.is_per_recipient() => Stage::Rcpt,
            (Count::Messages | Count::Recipients, stage) if self.matcher.needs_recipients() => stage.max(Stage::Data),
            // A message counts at its first recipient that is new.
            (Count::Messages, _) if self.is_of_new_recipients() => Stage::Rcpt,
            (Count::Messages, Stage::Mail | Stage::Rcpt) if self.matcher.needs_recipient() => Stage::Data,
            (_, stage) => stage,
        }
    }

    /// Returns the effect of an event on the limit.
    pub fn effect(&self, event: &Event) -> Option<Effect> {
        if self.watch.is_some() {
            // AUTH has two events. A limit that watches another limit checks at the event before the password check.
            let is_there = event.stage() == Some(self.stage) && *event != Event::Login;
            return is_there.then_some(Effect::Watch);
        }
        let at = |stage| (self.stage == stage).then_some(Effect::Charge);
        let before = |stage| (self.stage > stage && self.peeks()).then_some(Effect::Peek);
        match (self.count, event) {
            (Count::Commands, event) => event.is_command().then_some(Effect::Charge),
            (Count::Connections, Event::Connect) => Some(Effect::Charge),
            (Count::Sessions, Event::Connect) => at(Stage::Connect),
            (Count::Sessions, Event::Login) => at(Stage::Auth),
            (Count::Logins, Event::Login) => Some(Effect::Charge),
            (Count::Logins, Event::Auth) => self.peeks().then_some(Effect::Peek),
            (Count::LoginFailures, Event::Auth) => Some(Effect::Charge),
            (Count::Messages | Count::Recipients | Count::Bytes, Event::Mail) if self.stage == Stage::Mail => {
                Some(Effect::Charge)
            }
            (Count::Messages | Count::Recipients | Count::Bytes, Event::Mail) => before(Stage::Mail),
            (Count::Messages | Count::Recipients, Event::Recipient(_)) => at(Stage::Rcpt),
            (Count::Messages | Count::Recipients, Event::Message) => at(Stage::Data),
            (Count::Messages | Count::Recipients, Event::End { .. }) => at(Stage::End),
            // A counter per message or connection charges only the true size.
            (Count::Bytes, Event::Message) if self.is_of_session() => at(Stage::Data).and(Some(Effect::Peek)),
            (Count::Bytes, Event::Message) => at(Stage::Data),
            (Count::Bytes, Event::End { .. }) => Some(Effect::TrueUp),
            (Count::Refusals, Event::Recipient(_)) => Some(Effect::Charge),
            (Count::Rejections, Event::Rejected(_))
            | (Count::Bounces, Event::Bounced(_))
            | (Count::Complaints, Event::Complained(_))
            | (Count::BlockedConnections, Event::Blocked(_)) => Some(Effect::Record),
            (count, Event::Mail | Event::Recipient(_)) if count.is_of_past_events() => Some(Effect::Peek),
            // Checks the share of rejected messages.
            (Count::Rejections, Event::Message) if self.share_of() == Some(Count::Messages) => Some(Effect::Peek),
            _ => None,
        }
    }

    /// Returns the stages at which the limit can take an action, each with the configuration's word for the action. An
    /// action can be returned more than once.
    pub fn possible_actions(&self) -> impl Iterator<Item = (Stage, &'static str)> {
        let stages = Event::samples().into_iter().filter_map(|event| Some((event.stage()?, self.effect(&event)?)));
        stages.flat_map(|(stage, effect)| {
            // A peek refuses. Other actions follow at the charge, except for a route, which is chosen at MAIL.
            let is_peek = effect == Effect::Peek && !self.count.is_of_past_events();
            let is_possible = move |action: &Action| {
                !is_peek || action.refuses() || stage == Stage::Mail && matches!(action, Action::Route(_))
            };
            let rungs = self.ladder.rungs().iter().map(|rung| &rung.action);
            rungs.filter(move |action| is_possible(action)).map(move |action| (stage, action.name()))
        })
    }

    /// Returns whether the limit peeks before it charges. A limit with `charge = "attempts"` must not peek, because a
    /// refusal at the peek would prevent the attempt from being counted.
    fn peeks(&self) -> bool {
        self.charge != Charge::Attempts
    }
}
