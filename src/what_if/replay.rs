//! Replay: asks policy again about the events of the decision log, and follows what would have become of each session,
//! transaction and message.

use super::report::{Counter, Report};
use crate::decisions::DecisionRecord;
use crate::policy::budgets::{RefundWhen, RefundableCharge, SessionCounters};
use crate::policy::request::{PolicyRequest, Stage};
use crate::policy::verdict::{Ruling, Verdict};
use crate::policy::{InMemoryStore, Policy};
use crate::time::Timestamp;
use std::collections::{HashMap, HashSet};
use std::mem::take;
use std::sync::Arc;

/// State of a replay.
pub struct Replay {
    store: InMemoryStore,
    /// Indices of the rates of the limit on trial.
    tried: Vec<usize>,
    sessions: HashMap<Box<str>, Session>,
    counter: Counter,
    since: Option<Timestamp>,
    /// Latest time of a record. Lines of several sessions can be in another order than their times.
    now: Timestamp,
    pub report: Report,
}

/// Consequences of the tried limit for one session.
#[derive(Default)]
struct Session {
    counters: SessionCounters,
    /// Charges that are refunded when the password is right.
    password: Vec<RefundableCharge>,
    /// The connection would have been refused.
    has_no_connection: bool,
    /// The last login would have been refused.
    has_no_login: bool,
    transaction: Transaction,
}

#[derive(Default)]
struct Transaction {
    /// Charges of the transaction, each with the recipient that it was for.
    charges: Vec<(Option<String>, RefundableCharge)>,
    /// MAIL, all recipients, or the whole message would have been refused.
    is_refused: bool,
    refused: HashSet<String>,
    accepted: Vec<Arc<str>>,
}

impl Replay {
    /// Begins a replay with empty budgets.
    pub fn new(policy: Policy, name: &str, since: Option<Timestamp>) -> Self {
        let tried = policy.limits.iter().enumerate().filter(|(_, limit)| *limit.name == *name);
        Self {
            tried: tried.map(|(index, _)| index).collect(),
            store: InMemoryStore::new(policy),
            sessions: HashMap::new(),
            counter: Counter::default(),
            since,
            now: Timestamp::from_micros(i64::MIN),
            report: Report { limit: name.to_owned(), ..Report::default() },
        }
    }

    /// Replays an accepted event.
    pub fn replay(&mut self, record: &DecisionRecord) {
        self.note_time(record);
        let is_counted = self.is_counted(record);
        if is_counted {
            self.report.add_event(record);
        }
        let mut session = self.sessions.remove(&*record.session).unwrap_or_default();
        match record.stage {
            Stage::Connect => session.has_no_connection = self.refuses(&mut session, record, record.policy_request()),
            Stage::Command => drop(self.refuses(&mut session, record, record.policy_request())),
            Stage::Auth => self.log_in(&mut session, record),
            Stage::Mail => self.begin_transaction(&mut session, record),
            Stage::Rcpt => {
                let refused = self.add_recipient(&mut session, record);
                self.report.recipients_refused += u64::from(refused && is_counted);
            }
            Stage::Data => {
                let refused = self.begin_message(&mut session, record);
                self.report.recipients_refused += if is_counted { refused } else { 0 };
            }
            Stage::End => {
                let (is_refused, refused) = self.end_message(&mut session, record);
                if is_counted {
                    self.report.messages_refused += u64::from(is_refused);
                    self.report.recipients_refused += refused;
                }
            }
        }
        self.sessions.insert(record.session.as_str().into(), session);
    }

    /// Charges an event that another limit refused.
    pub fn charge_attempt(&mut self, record: &DecisionRecord) {
        self.note_time(record);
        let session = self.sessions.entry(record.session.as_str().into()).or_default();
        self.store.admit(self.now, &record.policy_request(), &mut session.counters);
    }

    /// Ends a session. Its message, if it had begun one, was not sent.
    pub fn end_session(&mut self, session: &str) {
        if let Some(mut session) = self.sessions.remove(session) {
            self.abandon(&mut session);
        }
    }

    /// Ends the replay, and returns its report.
    pub fn finish(mut self) -> Report {
        self.counter.fill(&mut self.report);
        self.report
    }

    fn note_time(&mut self, record: &DecisionRecord) {
        self.now = self.now.max(record.time);
    }

    fn is_counted(&self, record: &DecisionRecord) -> bool {
        self.since.is_none_or(|since| record.time >= since)
    }

    fn log_in(&mut self, session: &mut Session, record: &DecisionRecord) {
        if session.has_no_connection || session.has_no_login && record.login_right {
            return;
        }
        if record.login_right {
            self.store.give_back(&take(&mut session.password));
        }
        session.has_no_login = self.refuses(session, record, record.policy_request());
        let charges = take(&mut session.transaction.charges).into_iter().map(|(_, charge)| charge);
        session.password = charges.filter(|charge| charge.until == RefundWhen::Password).collect();
    }

    fn begin_transaction(&mut self, session: &mut Session, record: &DecisionRecord) {
        self.abandon(session);
        session.transaction.is_refused =
            session.has_no_connection || session.has_no_login || self.refuses(session, record, record.policy_request());
    }

    /// Returns whether the recipient would have been refused.
    fn add_recipient(&mut self, session: &mut Session, record: &DecisionRecord) -> bool {
        let is_refused = session.transaction.is_refused || self.refuses(session, record, record.policy_request());
        let Some(recipient) = &record.to else { return is_refused };
        match is_refused {
            true => drop(session.transaction.refused.insert(recipient.clone())),
            false => session.transaction.accepted.push(recipient.as_str().into()),
        }
        is_refused
    }

    /// Returns the number of recipients that would have been refused because of a refusal of DATA.
    fn begin_message(&mut self, session: &mut Session, record: &DecisionRecord) -> u64 {
        if session.transaction.is_refused {
            return 0;
        }
        self.refund_rejected(session, record);
        let request = session.transaction.request(record);
        let recipients = request.facts.recipients.len() as u64;
        if recipients == 0 {
            session.transaction.is_refused = true;
            return 0;
        }
        session.transaction.is_refused = self.refuses(session, record, request);
        if session.transaction.is_refused { recipients } else { 0 }
    }

    /// Returns whether the message would have been refused, and the number of recipients that would have been refused
    /// only at its end.
    fn end_message(&mut self, session: &mut Session, record: &DecisionRecord) -> (bool, u64) {
        let mut request = session.transaction.request(record);
        let recipients = request.facts.recipients.len() as u64;
        if session.transaction.is_refused || recipients == 0 {
            self.abandon(session);
            return (true, 0);
        }
        let declared = session.transaction.charges.extract_if(.., |(_, charge)| charge.until.is_of_size());
        request.declared = declared.map(|(_, charge)| charge).collect();
        let facts = request.facts.clone();
        if self.refuses(session, record, request) {
            self.abandon(session);
            return (true, recipients);
        }
        let recipients = facts.recipients.clone();
        let delivered = PolicyRequest::delivered(facts, recipients.into_iter());
        self.store.admit(self.now, &delivered, &mut session.counters);
        session.counters.end_message();
        session.transaction = Transaction::default();
        (false, 0)
    }

    /// Ends a transaction whose message was not sent.
    fn abandon(&mut self, session: &mut Session) {
        let transaction = take(&mut session.transaction);
        let charges = transaction.charges.into_iter().map(|(_, charge)| charge);
        let unsent: Vec<_> = charges.filter(|charge| charge.until.is_given_back_unsent()).collect();
        self.store.give_back(&unsent);
        session.counters.end_message();
    }

    /// Refunds the charges for recipients that the upstream had rejected: the record of DATA does not have them.
    fn refund_rejected(&mut self, session: &mut Session, record: &DecisionRecord) {
        if record.more_recipients > 0 {
            return;
        }
        let taken: HashSet<&String> = record.recipients.iter().collect();
        let is_rejected = |(recipient, charge): &mut (Option<String>, RefundableCharge)| {
            charge.until == RefundWhen::Sent && recipient.as_ref().is_some_and(|recipient| !taken.contains(recipient))
        };
        let rejected = session.transaction.charges.extract_if(.., is_rejected);
        let rejected: Vec<_> = rejected.map(|(_, charge)| charge).collect();
        self.store.give_back(&rejected);
    }

    /// Asks policy about an event. Returns whether the event would have been refused.
    fn refuses(&mut self, session: &mut Session, record: &DecisionRecord, request: PolicyRequest) -> bool {
        let is_counted = self.is_counted(record);
        let (tried, mut applies) = (&self.tried, false);
        let (mut verdicts, _) = self.store.replay(self.now, &request, &mut session.counters, |plan| {
            let conditional = plan.conditional_checks().map(|check| check.limit);
            applies = plan.limits_with_peeks().chain(conditional).any(|limit| tried.contains(&limit));
        });
        let Some(verdict) = verdicts.pop() else { return false };
        let owner = owner_of_refusal(&verdict);
        if is_counted {
            self.report.applied += u64::from(applies);
            match &owner {
                Some(owner) => self.counter.refuse(owner, record.time),
                None => self.report.add_delay(verdict.delay),
            }
        }
        let charges = verdict.charges.into_iter().map(|charge| (record.to.clone(), charge));
        session.transaction.charges.extend(charges);
        owner.is_some()
    }
}

impl Transaction {
    /// Returns the request of DATA or the end of the message, without the recipients that would have been refused.
    fn request(&self, record: &DecisionRecord) -> PolicyRequest {
        let mut request = record.policy_request();
        match record.more_recipients {
            0 => request.facts.recipients.retain(|recipient| !self.refused.contains(&**recipient)),
            _ => request.facts.recipients.clone_from(&self.accepted),
        }
        request
    }
}

/// Returns the owner of the budget that refuses the event, or of the suspension; `None` if the event is not refused.
fn owner_of_refusal(verdict: &Verdict) -> Option<String> {
    match &verdict.ruling {
        Ruling::Pass => None,
        Ruling::Skipped => Some(String::new()),
        Ruling::Suspended(suspended) => Some(suspended.suspension.owner.to_string()),
        Ruling::Refuse(_) => {
            let refusing = verdict.evaluations.iter().find(|evaluation| evaluation.refuses());
            let key = refusing.and_then(|evaluation| evaluation.key.as_ref());
            Some(key.map_or_else(|| "all".to_owned(), |key| key.borrowed().owner().to_string()))
        }
    }
}
