//! Refusals by limits and suspensions: the reply, and its consequences for the session.

use super::record::DecidedEvent;
use super::recorder::{Occasion, Parties};
use super::state::State;
use crate::policy::request::{Event, Facts, Stage};
use crate::policy::verdict::{Refusal, Suspended, Verdict};
use crate::reference::Refusee;
use crate::smtp::reply::Reply;
use crate::time::Timestamp;
use std::net::IpAddr;
use std::time::Duration;

impl State {
    /// Records a refusal by a limit. Returns the reply.
    pub(super) fn refused(&mut self, refusal: Refusal, decided: DecidedEvent, parties: Parties) -> Reply {
        self.error_limits.count_refusal();
        let Self { recorder, user, client, now, options, .. } = self;
        let occasion = Occasion { refusee: refusee(user.as_deref(), *client), now: *now };
        let (reply, closes) = recorder.refused(refusal, decided, parties, occasion, &options.hostname);
        self.closing |= closes;
        reply
    }

    /// Records a refusal of a suspended client, user, sender or user domain. Returns the reply.
    pub(super) fn suspended(&mut self, suspended: Suspended, decided: DecidedEvent, parties: Parties) -> Reply {
        self.error_limits.count_refusal();
        let Self { recorder, user, client, now, .. } = self;
        let occasion = Occasion { refusee: refusee(user.as_deref(), *client), now: *now };
        recorder.suspended(suspended, decided, parties, occasion)
    }

    /// Returns the end of a message of `size` octets as the event on which Weir has decided.
    pub(super) fn decided_end(&mut self, size: u64, now: Timestamp) -> DecidedEvent {
        let facts = self.message_facts();
        let evaluations = self.transaction.as_mut().map(|transaction| std::mem::take(&mut transaction.evaluations));
        let event = Event::End { size: Some(size) };
        DecidedEvent { time: now, facts, event, delay: Duration::ZERO, evaluations: evaluations.unwrap_or_default() }
    }

    /// Records the parts of a verdict that the client does not see. `decided` returns the event.
    pub(super) fn record_verdict(&mut self, verdict: &mut Verdict, stage: Stage, decided: impl Fn() -> DecidedEvent) {
        let Self { recorder, user, client, now, .. } = self;
        let occasion = Occasion { refusee: refusee(user.as_deref(), *client), now: *now };
        recorder.record_verdict(verdict, stage, occasion, decided);
    }

    /// Returns a reference for a refusal, to write in the reply and in the log. `cause` is
    /// [`SENDER_MISMATCH`](crate::reference::SENDER_MISMATCH).
    pub(super) fn next_reference(&mut self, cause: &str, stage: Stage) -> String {
        let Self { recorder, user, client, now, .. } = self;
        let occasion = Occasion { refusee: refusee(user.as_deref(), *client), now: *now };
        recorder.next_reference(cause, stage, occasion)
    }
}

fn refusee(user: Option<&str>, client: IpAddr) -> Refusee<'_> {
    user.map_or(Refusee::Client(client), Refusee::User)
}

impl DecidedEvent {
    /// Returns an event without the numbers that limits measured.
    pub fn unmeasured(time: Timestamp, facts: Facts, event: Event, delay: Duration) -> Self {
        Self { time, facts, event, delay, evaluations: Vec::new() }
    }

    /// Returns the event on which policy has returned a verdict. Takes the evaluations of the verdict.
    pub fn new(time: Timestamp, facts: &Facts, event: Event, verdict: &mut Verdict) -> Self {
        let evaluations = std::mem::take(&mut verdict.evaluations);
        Self { time, facts: facts.clone(), event, delay: verdict.delay, evaluations }
    }

    /// Returns the stage of the event.
    pub fn stage(&self) -> Stage {
        // A refused event has a stage: policy cannot refuse a rejection, which has already happened.
        self.event.stage().unwrap_or(Stage::Command)
    }
}
