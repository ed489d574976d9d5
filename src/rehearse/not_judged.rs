//! Limits that a rehearsal cannot judge, because the test message lacks a fact that every real session has.

use super::rehearsal::RehearsedEvent;
use super::report::Report;
use crate::policy::limit::Limit;
use crate::policy::matching::{SkipExplanation, SkipReason};
use crate::policy::request::Stage;

impl Report<'_> {
    /// Returns the name of each limit that is not judged, with the option that lets it be judged.
    pub fn not_judged(&self) -> Vec<(String, &'static str)> {
        let limits = self.setup.policy.limits.iter().enumerate();
        limits
            .filter_map(|(index, limit)| Some((self.setup.policy.display_name(index), self.lack(index, limit)?)))
            .collect()
    }

    fn lack(&self, index: usize, limit: &Limit) -> Option<&'static str> {
        let of_limit = |event: &RehearsedEvent| {
            let reason = event.explained[index].said.as_ref().err()?;
            self.option_for(event, reason)
        };
        self.rehearsal.events.iter().find_map(of_limit).or_else(|| self.option_to_reach(limit.stage))
    }

    /// Returns the missing option because of which the session ends before a stage. Returns `None` if the session
    /// reaches the stage, or if `--stage` or a refusal ends the session.
    fn option_to_reach(&self, stage: Stage) -> Option<&'static str> {
        let last = self.last_stage();
        let is_ended = self.is_refused() || self.test_message.stage.is_some();
        match stage {
            _ if is_ended || last >= stage || stage == Stage::Command => None,
            Stage::Connect | Stage::Auth => Some("--user"),
            _ if last < Stage::Mail => Some("--mail-from"),
            _ => Some("--rcpt-to"),
        }
    }

    /// Returns the last stage of the session.
    pub fn last_stage(&self) -> Stage {
        let stages = self.rehearsal.events.iter().map(|event| event.stage);
        stages.filter(|stage| *stage != Stage::Command).max().unwrap_or(Stage::Connect)
    }

    /// Returns the option that supplies the missing fact, if a limit does not apply to an event because this fact is
    /// unknown. Returns `None` if the limit does not apply for another reason.
    pub fn option_for(&self, event: &RehearsedEvent, reason: &SkipExplanation) -> Option<&'static str> {
        let given = |name: &str| match name {
            // A client sends its EHLO name only after the stage of the connection.
            "helo" if event.stage > Stage::Connect => self.test_message.helo.is_none().then_some("--helo"),
            // In the running Weir, what the history does not tell is unknown in a real session, too.
            "new-network" if !self.is_live => Some("--new-network"),
            "new-country" if !self.is_live => Some("--new-country"),
            "new-helo" if !self.is_live => Some("--new-helo"),
            "listener" => (!self.setup.knows_listener()).then_some("--listener"),
            _ => None,
        };
        match reason.why {
            SkipReason::UnknownSize => Some("--size"),
            SkipReason::Unknown(field) => given(&field.name()),
            // An option can make a table match only if each failed condition fails because its fact is unknown.
            SkipReason::NoMatch => reason.tables.iter().find_map(|table| {
                let options: Option<Vec<_>> =
                    table.iter().map(|(name, value)| given(name).filter(|_| value.is_none())).collect();
                options?.first().copied()
            }),
            _ => None,
        }
    }
}
