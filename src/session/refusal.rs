//! Refusals by limits and suspensions: the reply and the record.

use super::record::{Record, Refused, RefusedBy};
use super::refusal_reply::{refusal_reply, suspended_reply};
use super::state::{MAX_RECORDED, State};
use crate::policy::request::Stage;
use crate::policy::verdict::{Mode, Refusal, Suspended, Verdict};
use crate::reference::SUSPENDED;
use crate::smtp::reply::Reply;
use std::sync::Arc;

impl State {
    /// Records a refusal by a limit. Returns the reply.
    pub(super) fn refused(
        &mut self,
        refusal: Refusal,
        stage: Stage,
        from: Option<String>,
        to: Option<String>,
    ) -> Reply {
        self.error_limits.count_refusal();
        let reference = self.next_reference(&refusal.limit, stage);
        let (reply, closes) = refusal_reply(&refusal, stage, &self.options.hostname, &reference);
        self.closing |= closes;
        let by = RefusedBy::Limit { refusal: Box::new(refusal), reference };
        self.record_refusal(Refused { stage, from, to, reply: reply.clone(), by });
        reply
    }

    /// Records a refusal of a suspended client, user, sender or user domain. Returns the reply.
    pub(super) fn suspended(
        &mut self,
        suspended: Suspended,
        stage: Stage,
        from: Option<String>,
        to: Option<String>,
    ) -> Reply {
        self.error_limits.count_refusal();
        let reference = self.next_reference(SUSPENDED, stage);
        let reply = suspended_reply(&suspended, &reference);
        let by = RefusedBy::Suspension { suspended: Box::new(suspended), reference };
        self.record_refusal(Refused { stage, from, to, reply: reply.clone(), by });
        reply
    }

    /// Records the parts of a verdict that the client does not see: exceeded limits that did not refuse, new
    /// suspensions, notifications. After [`MAX_RECORDED`] exceeded limits the log gets no more lines, so that one
    /// client cannot fill the log.
    pub(super) fn record_verdict(&mut self, verdict: &mut Verdict, stage: Stage) {
        let mut counted: Vec<Arc<str>> = Vec::new();
        for hit in std::mem::take(&mut verdict.limit_hits) {
            self.limit_hits += 1;
            let is_logged = self.limit_hits <= MAX_RECORDED;
            // A lower rung of a limit can warn while a higher rung of the same limit refuses. Such a command counts
            // only as refused.
            let is_refused = hit.mode == Mode::Enforce && verdict.is_refused_by(&hit.limit);
            let is_counted = !is_refused && !counted.contains(&hit.limit);
            counted.push(hit.limit.clone());
            self.records.push(Record::LimitExceeded { hit, stage, is_logged, is_counted });
        }
        self.records.extend(verdict.suspensions.drain(..).map(Record::Suspended));
        self.records.extend(verdict.notices.drain(..).map(Record::Noticed));
    }
}
