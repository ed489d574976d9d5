//! The replies to whoever a limit refuses.

use super::record::{Record, Refused, RefusedBy};
use super::replies::{refusal_reply, suspended_reply};
use super::{MAX_RECORDED, State};
use crate::policy::event::Stage;
use crate::policy::verdict::{Refusal, Suspended, Verdict};
use crate::smtp::reply::Reply;

impl State {
    /// The reply to whoever is over a limit, and the record of it.
    pub(super) fn refused(
        &mut self,
        refusal: Refusal,
        stage: Stage,
        from: Option<String>,
        to: Option<String>,
    ) -> Reply {
        self.patience.count_refusal();
        let reference = self.next_reference();
        let (reply, closes) = refusal_reply(&refusal, stage, &self.options.hostname, &reference);
        self.closing |= closes;
        let by = RefusedBy::Limit { refusal: Box::new(refusal), reference };
        self.record_refusal(Refused { stage, from, to, reply: reply.clone(), by });
        reply
    }

    /// The reply to whoever is suspended, and the record of it.
    pub(super) fn suspended(
        &mut self,
        suspended: Suspended,
        stage: Stage,
        from: Option<String>,
        to: Option<String>,
    ) -> Reply {
        self.patience.count_refusal();
        let reference = self.next_reference();
        let reply = suspended_reply(&suspended, &reference);
        let by = RefusedBy::Suspension { suspended: Box::new(suspended), reference };
        self.record_refusal(Refused { stage, from, to, reply: reply.clone(), by });
        reply
    }

    /// Records what limits say that the client does not hear. Who is over again and again does not fill the log.
    pub(super) fn remark(&mut self, verdict: &mut Verdict, stage: Stage) {
        for remark in std::mem::take(&mut verdict.remarks) {
            self.remarks += 1;
            self.records.push(Record::LimitExceeded { remark, stage, is_logged: self.remarks <= MAX_RECORDED });
        }
        self.records.extend(verdict.suspensions.drain(..).map(Record::Suspended));
        self.records.extend(verdict.notices.drain(..).map(Record::Noticed));
    }
}
