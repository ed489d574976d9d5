//! Recorder of a session: collects the records for the log and the metrics, and makes the replies and references of
//! refusals by limits and suspensions.

use super::record::{DecidedEvent, Record, Refused, RefusedBy, WouldRefuse};
use super::refusal_reply::{refusal_reply, suspended_reply};
use crate::policy::request::Stage;
use crate::policy::verdict::{LimitHit, Mode, Refusal, Suspended, Verdict};
use crate::reference::{Reference, Refusee, SUSPENDED, Tag, number_in};
use crate::smtp::reply::Reply;
use crate::time::Timestamp;
use std::sync::Arc;

/// Records of a session that the driver has not taken yet, and counters of what was recorded.
pub struct Recorder {
    /// Name of the session.
    id: Arc<str>,
    records: Vec<Record>,
    /// Number of refusals by limits and suspensions. Not all of these refusals get a line in the log.
    limit_refusals: u32,
    /// Number of refusals by the upstream. Not all of these refusals get a line in the log.
    upstream_refusals: u32,
    /// Number of exceeded limits that did not refuse. Not all of them get a line in the log.
    limit_hits: u32,
}

/// Party that a refusal concerns, and the time for the reference.
#[derive(Clone, Copy)]
pub struct Occasion<'a> {
    pub refusee: Refusee<'a>,
    pub now: Timestamp,
}

/// Sender and recipient of a refused command, as far as they are known.
pub type Parties = (Option<String>, Option<String>);

/// Maximum number of refusals of one session that each get a log line. Further refusals are only counted.
const MAX_RECORDED: u32 = 100;

impl Recorder {
    pub fn new(id: Arc<str>) -> Self {
        Self { id, records: Vec::new(), limit_refusals: 0, upstream_refusals: 0, limit_hits: 0 }
    }

    pub fn push(&mut self, record: Record) {
        self.records.push(record);
    }

    /// Removes and returns the records that were added since the last call.
    pub fn take(&mut self) -> Vec<Record> {
        std::mem::take(&mut self.records)
    }

    /// Records a refusal by a limit. Returns the reply, and whether the reply ends the session. `hostname` is the name
    /// of this server in the reply.
    pub fn refused(
        &mut self,
        refusal: Refusal,
        decided: DecidedEvent,
        (from, to): Parties,
        occasion: Occasion<'_>,
        hostname: &str,
    ) -> (Reply, bool) {
        let stage = decided.stage();
        let reference = self.next_reference(&refusal.limit, stage, occasion);
        let (reply, closes) = refusal_reply(&refusal, stage, hostname, &reference);
        let by = RefusedBy::Limit { refusal: Box::new(refusal), reference, decided: Box::new(decided) };
        self.record_refusal(Refused { stage, from, to, reply: reply.clone(), by });
        (reply, closes)
    }

    /// Records a refusal of a suspended client, user, sender or user domain. Returns the reply.
    pub fn suspended(
        &mut self,
        suspended: Suspended,
        decided: DecidedEvent,
        (from, to): Parties,
        occasion: Occasion<'_>,
    ) -> Reply {
        let stage = decided.stage();
        let reference = self.next_reference(SUSPENDED, stage, occasion);
        let reply = suspended_reply(&suspended, &reference);
        let by = RefusedBy::Suspension { suspended: Box::new(suspended), reference, decided: Box::new(decided) };
        self.record_refusal(Refused { stage, from, to, reply: reply.clone(), by });
        reply
    }

    /// Records a refusal. After [`MAX_RECORDED`] refusals the log gets no more lines, so that one client cannot fill
    /// the log.
    pub fn record_refusal(&mut self, refused: Refused) {
        let count = match refused.by {
            RefusedBy::Limit { .. } | RefusedBy::Suspension { .. } => self.limit_refusals,
            RefusedBy::Upstream | RefusedBy::Away(_) => {
                self.upstream_refusals += 1;
                self.upstream_refusals
            }
        };
        self.records.push(Record::Refused { refused, is_logged: count <= MAX_RECORDED });
    }

    /// Records the parts of a verdict that the client does not see: exceeded limits that did not refuse, new
    /// suspensions, notifications, a rise of suspicion. After [`MAX_RECORDED`] exceeded limits the log gets no more
    /// lines, so that one client cannot fill the log.
    ///
    /// `decided` returns the event. It is called only if a limit in shadow or soft mode would have refused the event.
    pub fn record_verdict(
        &mut self,
        verdict: &mut Verdict,
        stage: Stage,
        occasion: Occasion<'_>,
        decided: impl Fn() -> DecidedEvent,
    ) {
        let hits = std::mem::take(&mut verdict.limit_hits);
        let counted: Vec<bool> = (0..hits.len()).map(|at| is_counted(&hits, at, verdict)).collect();
        for (hit, is_counted) in hits.into_iter().zip(counted) {
            let is_logged = self.count_hit();
            let would_refuse = is_counted && hit.mode != Mode::Enforce && hit.refuses;
            let would_refuse = would_refuse.then(|| {
                let reference = self.reference(&hit.limit, stage, self.limit_hits, occasion);
                Box::new(WouldRefuse { reference, decided: decided() })
            });
            self.records.push(Record::LimitExceeded { hit, stage, is_logged, is_counted, would_refuse });
        }
        self.records.extend(verdict.suspensions.drain(..).map(Record::Suspended));
        self.records.extend(verdict.notices.drain(..).map(Record::Noticed));
        self.records.extend(verdict.suspicion_rise.take().map(|rise| Record::BecameSuspicious(Box::new(rise))));
    }

    /// Counts an exceeded limit, or another remark, that did not refuse. Returns whether it gets a log line.
    pub fn count_hit(&mut self) -> bool {
        self.limit_hits += 1;
        self.limit_hits <= MAX_RECORDED
    }

    /// Returns whether the last refusal by Weir gets a log line.
    pub fn is_last_refusal_logged(&self) -> bool {
        self.limit_refusals <= MAX_RECORDED
    }

    /// Returns a reference for a refusal, to write in the reply and in the log. `cause` is the name of a limit,
    /// [`SUSPENDED`] or [`SENDER_MISMATCH`](crate::reference::SENDER_MISMATCH).
    pub fn next_reference(&mut self, cause: &str, stage: Stage, occasion: Occasion<'_>) -> String {
        self.limit_refusals += 1;
        self.reference(cause, stage, self.limit_refusals, occasion)
    }

    /// Returns the reference of the refusal with this number in the session.
    fn reference(&self, cause: &str, stage: Stage, count: u32, Occasion { refusee, now }: Occasion<'_>) -> String {
        Reference::new(now, Tag::new(cause, stage.name(), refusee), number_in(&self.id, count)).to_string()
    }

    /// Records the numbers of refusals and of exceeded limits that got no line in the log. Called when the session ends.
    pub fn record_unrecorded(&mut self) {
        let unrecorded = [self.limit_refusals, self.upstream_refusals].map(|count| count.saturating_sub(MAX_RECORDED));
        let (refusals, limit_hits) = (unrecorded.iter().sum(), self.limit_hits.saturating_sub(MAX_RECORDED));
        if refusals > 0 || limit_hits > 0 {
            self.records.push(Record::Unrecorded { refusals, limit_hits });
        }
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
