//! Refusals by limits and suspensions: the reply and the record.

use super::record::{DecidedEvent, Record, Refused, RefusedBy, WouldRefuse};
use super::refusal_reply::{refusal_reply, suspended_reply};
use super::state::{MAX_RECORDED, State};
use crate::policy::request::{Event, Facts, Stage};
use crate::policy::verdict::{LimitHit, Mode, Refusal, Suspended, Verdict};
use crate::reference::SUSPENDED;
use crate::smtp::reply::Reply;
use crate::time::Timestamp;
use std::time::Duration;

impl State {
    /// Records a refusal by a limit. Returns the reply.
    pub(super) fn refused(
        &mut self,
        refusal: Refusal,
        decided: DecidedEvent,
        from: Option<String>,
        to: Option<String>,
    ) -> Reply {
        self.error_limits.count_refusal();
        let stage = decided.stage();
        let reference = self.next_reference(&refusal.limit, stage);
        let (reply, closes) = refusal_reply(&refusal, stage, &self.options.hostname, &reference);
        self.closing |= closes;
        let by = RefusedBy::Limit { refusal: Box::new(refusal), reference, decided: Box::new(decided) };
        self.record_refusal(Refused { stage, from, to, reply: reply.clone(), by });
        reply
    }

    /// Records a refusal of a suspended client, user, sender or user domain. Returns the reply.
    pub(super) fn suspended(
        &mut self,
        suspended: Suspended,
        decided: DecidedEvent,
        from: Option<String>,
        to: Option<String>,
    ) -> Reply {
        self.error_limits.count_refusal();
        let stage = decided.stage();
        let reference = self.next_reference(SUSPENDED, stage);
        let reply = suspended_reply(&suspended, &reference);
        let by = RefusedBy::Suspension { suspended: Box::new(suspended), reference, decided: Box::new(decided) };
        self.record_refusal(Refused { stage, from, to, reply: reply.clone(), by });
        reply
    }

    /// Returns the end of a message of `size` octets as the event on which Weir has decided.
    pub(super) fn decided_end(&mut self, size: u64, now: Timestamp) -> DecidedEvent {
        let facts = self.message_facts();
        let evaluations = self.transaction.as_mut().map(|transaction| std::mem::take(&mut transaction.evaluations));
        let event = Event::End { size: Some(size) };
        DecidedEvent { time: now, facts, event, delay: Duration::ZERO, evaluations: evaluations.unwrap_or_default() }
    }

    /// Records the parts of a verdict that the client does not see: exceeded limits that did not refuse, new
    /// suspensions, notifications, a rise of suspicion. After [`MAX_RECORDED`] exceeded limits the log gets no more lines, so that one
    /// client cannot fill the log.
    ///
    /// `decided` returns the event. It is called only if a limit in shadow or soft mode would have refused the event.
    pub(super) fn record_verdict(&mut self, verdict: &mut Verdict, stage: Stage, decided: impl Fn() -> DecidedEvent) {
        let hits = std::mem::take(&mut verdict.limit_hits);
        let counted: Vec<bool> = (0..hits.len()).map(|at| is_counted(&hits, at, verdict)).collect();
        for (hit, is_counted) in hits.into_iter().zip(counted) {
            self.limit_hits += 1;
            let is_logged = self.limit_hits <= MAX_RECORDED;
            let would_refuse = is_counted && hit.mode != Mode::Enforce && hit.refuses;
            let would_refuse = would_refuse.then(|| {
                let reference = self.reference(&hit.limit, stage, self.limit_hits);
                Box::new(WouldRefuse { reference, decided: decided() })
            });
            self.records.push(Record::LimitExceeded { hit, stage, is_logged, is_counted, would_refuse });
        }
        self.records.extend(verdict.suspensions.drain(..).map(Record::Suspended));
        self.records.extend(verdict.notices.drain(..).map(Record::Noticed));
        self.records.extend(verdict.suspicion_rise.take().map(|rise| Record::BecameSuspicious(Box::new(rise))));
    }
}

impl DecidedEvent {
    /// Returns an event without the numbers that limits measured.
    pub(super) fn unmeasured(time: Timestamp, facts: Facts, event: Event, delay: Duration) -> Self {
        Self { time, facts, event, delay, evaluations: Vec::new() }
    }

    /// Returns the event on which policy has returned a verdict. Takes the evaluations of the verdict.
    pub(super) fn new(time: Timestamp, facts: &Facts, event: Event, verdict: &mut Verdict) -> Self {
        let evaluations = std::mem::take(&mut verdict.evaluations);
        Self { time, facts: facts.clone(), event, delay: verdict.delay, evaluations }
    }

    /// Returns the stage of the event.
    pub fn stage(&self) -> Stage {
        // A refused event has a stage: policy cannot refuse a rejection, which has already happened.
        self.event.stage().unwrap_or(Stage::Command)
    }
}

/// Returns whether the hit at this index counts. A command counts once for each limit, although several rates of the
/// limit can be exceeded: the hit with the strongest action counts, and the first of several such hits.
fn is_counted(hits: &[LimitHit], at: usize, verdict: &Verdict) -> bool {
    let hit = &hits[at];
    // A lower rung of a limit can warn while a higher rung of the same limit refuses. Such a command counts only as
    // refused.
    let is_refused = hit.mode == Mode::Enforce && verdict.is_refused_by(&hit.limit);
    let outranks = |(other_at, other): (usize, &LimitHit)| {
        other.limit == hit.limit
            && (other.strongest > hit.strongest || other.strongest == hit.strongest && other_at < at)
    };
    !is_refused && !hits.iter().enumerate().any(outranks)
}
