//! Log lines and metrics of a session's records.

use super::log_throttle::{LogThrottle, Permit};
use crate::clock;
use crate::metrics::Metrics;
use crate::notify::{self, Notifier};
use crate::policy::KnownTo;
use crate::policy::exception;
use crate::policy::exception::{Suspension, Term, UNTIL_RELEASED};
use crate::policy::limit::{Mode, Quota};
use crate::policy::matching::address_text;
use crate::policy::request::{Country, Location, Stage};
use crate::policy::suspicion::rounded;
use crate::policy::verdict::{LimitHit, Notice, SuspicionRise};
use crate::session::{
    Delivery, MessageOutcome, Mismatch, MismatchReason, Record, Refused, RefusedBy, RefusedSender, ReportResult,
};
use crate::smtp::reply::Reply;
use crate::time::{format_amount, format_duration};
use std::net::IpAddr;
use std::sync::Arc;
use tracing::Value;

/// Writer of a session's records to the log and the metrics.
pub struct SessionLog<'a> {
    pub metrics: &'a Metrics,
    pub notifier: &'a Notifier,
    pub log_throttle: &'a LogThrottle,
    /// True if the client has not logged in and is not trusted.
    pub is_stranger: bool,
    pub session: &'a str,
    /// Name of the listener.
    pub listener: &'a str,
    pub client: IpAddr,
    pub user: Option<&'a str>,
    pub location: Location,
    /// Name of the upstream that was last asked.
    pub via: Option<&'a str>,
}

impl SessionLog<'_> {
    /// Logs and counts a record. `told`: Weir could send the reply to the client.
    pub fn report(&self, record: &Record, told: bool) {
        let Self { session, client, .. } = self;
        match record {
            Record::LoggedIn { user, claimed, is_logged, .. } => {
                let Some(Permit { suppressed }) = self.permit_if(*is_logged, "logged in") else { return };
                let (country, asn) = self.location();
                let user = &**user;
                tracing::info!(session, %client, country, asn, user, claimed, suppressed, "logged in");
            }
            Record::WrongPassword { user, reason } => self.wrong_password(user.as_deref(), *reason),
            Record::LoginBrokenOff { user } => {
                self.metrics.connections.logins.with_label_values(&["wrong"]).inc();
                self.wrong_password(user.as_deref(), Some("broken off by the client"));
            }
            Record::OtherNetwork { user } => {
                self.metrics.connections.logins_from_other_networks.inc();
                let Some(Permit { suppressed }) = self.permit("login from another network") else { return };
                let (country, asn) = self.location();
                tracing::warn!(session, %client, country, asn, user, suppressed, "login from another network");
            }
            Record::ClientNamed { peer } => {
                let Some(Permit { suppressed }) = self.permit("client named by XCLIENT") else { return };
                tracing::info!(session, %client, user = self.user, %peer, suppressed, "client named by XCLIENT");
            }
            Record::Unrecorded { refusals, limit_hits } => {
                self.unrecorded_refusals(*refusals);
                self.unrecorded_hits(*limit_hits);
            }
            Record::SenderMismatch { mismatch, refused, is_logged } => {
                self.sender_mismatch(mismatch, refused.as_deref(), *is_logged);
            }
            Record::Refused { refused, is_logged } => self.refused(refused, *is_logged),
            Record::LimitExceeded { hit, stage, is_logged, is_counted, .. } => {
                if *is_counted {
                    let LimitHit { limit, mode, strongest, .. } = hit;
                    self.metrics.limits.count_hit(limit, stage.name(), mode.name(), strongest.name());
                }
                self.limit_exceeded(hit, *stage, *is_logged);
            }
            Record::LeftDuringDelay { delay } => {
                let Some(Permit { suppressed }) = self.permit("client left during a delay") else { return };
                let delay = format_duration(*delay);
                tracing::info!(session, %client, user = self.user, delay, suppressed, "client left during a delay");
            }
            Record::Noticed(notice) => self.noticed(notice),
            Record::Suspended(suspension) => self.suspended(suspension),
            Record::BecameSuspicious(rise) => self.became_suspicious(rise),
            Record::Message(delivery) => self.message(delivery, told),
        }
    }

    /// Returns the country and the autonomous system of the client, if a database knows them.
    fn location(&self) -> (Option<&str>, Option<String>) {
        (self.location.country.as_ref().map(Country::as_str), self.location.asn.map(|asn| asn.to_string()))
    }

    fn wrong_password(&self, user: Option<&str>, reason: Option<&str>) {
        let Self { session, client, .. } = self;
        let Some(Permit { suppressed }) = self.permit("wrong password") else { return };
        tracing::warn!(session, %client, user, reason, suppressed, "wrong password");
    }

    /// Returns a permit if the throttle permits a line with this message.
    fn permit(&self, message: &'static str) -> Option<Permit> {
        match self.is_stranger {
            true => self.log_throttle.permit(message, self.client),
            false => self.log_throttle.permit_known(message, self.user, self.client),
        }
    }

    /// Does the same as [`Self::permit`] if `is_logged`; otherwise returns `None`, because the session has logged its
    /// maximum of such records, or because a Postfix logs them.
    fn permit_if(&self, is_logged: bool, message: &'static str) -> Option<Permit> {
        if is_logged { self.permit(message) } else { None }
    }

    /// Logs the number of refusals that have no log line of their own. If the throttle suppresses this line, each of
    /// these refusals counts as suppressed.
    fn unrecorded_refusals(&self, refusals: u32) {
        if refusals == 0 {
            return;
        }
        let Self { session, client, user, log_throttle, .. } = self;
        match self.permit("refused more often than is logged") {
            Some(Permit { suppressed }) => {
                tracing::warn!(session, %client, user, refusals, suppressed, "refused more often than is logged");
            }
            None => log_throttle.leave_out("refused", u64::from(refusals)),
        }
    }

    /// Does the same as [`Self::unrecorded_refusals`] for exceeded limits that did not refuse.
    fn unrecorded_hits(&self, times: u32) {
        if times == 0 {
            return;
        }
        let Self { session, client, user, log_throttle, .. } = self;
        match self.permit("over more often than is logged") {
            Some(Permit { suppressed }) => {
                tracing::warn!(session, %client, user, times, suppressed, "over more often than is logged");
            }
            None => log_throttle.leave_out("over", u64::from(times)),
        }
    }

    fn refused(&self, refused: &Refused, is_logged: bool) {
        let Self { metrics, session, client, user, via, .. } = self;
        let Refused { stage, from, to, reply, by } = refused;
        let (from, to, code) = (from.as_deref(), to.as_deref(), reply.code());
        let (refusal, reference) = match by {
            RefusedBy::Limit { refusal, reference, .. } => (refusal, reference),
            RefusedBy::Suspension { suspended, reference, .. } => {
                let stage = stage.name();
                metrics.limits.count_suspended(stage);
                if let Some(Permit { suppressed }) = self.permit_if(is_logged, "refused") {
                    let (owner, left) = (&suspended.suspension.owner, suspended.left_text());
                    let by = &suspended.suspension.term.by;
                    tracing::warn!(session, %client, user, stage, from, to, suspended = %owner, %by, left, reply = code, reference, suppressed, "refused");
                }
                return;
            }
            RefusedBy::Upstream => {
                if *stage == Stage::Rcpt {
                    metrics.mail.recipients.add("upstream-refused", 1);
                }
                if let Some(Permit { suppressed }) = self.permit_if(is_logged, "refused by upstream") {
                    let stage = stage.name();
                    tracing::info!(session, %client, user, stage, from, to, reply = code, via, upstream = %reply, suppressed, "refused by upstream");
                }
                return;
            }
            RefusedBy::Away(reason) => {
                if let Some(Permit { suppressed }) = self.permit_if(is_logged, "upstream away") {
                    let stage = stage.name();
                    tracing::error!(session, %client, user, stage, from, to, reply = code, reason, suppressed, "upstream away");
                }
                return;
            }
        };
        let stage = stage.name();
        metrics.limits.count_refusal(&refusal.limit, &refusal.also, stage, refusal.verb.name());
        let Some(Permit { suppressed }) = self.permit_if(is_logged, "refused") else { return };
        let also = (!refusal.also.is_empty()).then(|| refusal.also.join(","));
        let [used, allowed] = numbers(&refusal.quota, refusal.level);
        tracing::warn!(
            session,
            %client,
            user,
            stage,
            from,
            to,
            limit = &*refusal.limit,
            also,
            used,
            allowed,
            period = period(&refusal.quota),
            wait = refusal.wait_text(),
            action = refusal.verb.name(),
            reply = code,
            reference,
            suppressed,
            "refused"
        );
    }

    /// Logs and counts a sender as which the user may not send.
    fn sender_mismatch(&self, mismatch: &Mismatch, refused: Option<&RefusedSender>, is_logged: bool) {
        let Self { metrics, session, listener, client, user, .. } = self;
        let (part, action) = (mismatch.part.name(), if refused.is_some() { "refuse" } else { "warn" });
        metrics.mail.sender_mismatches.with_label_values(&[*listener, part, action]).inc();
        let Some(Permit { suppressed }) = self.permit_if(is_logged, "sender mismatch") else { return };
        let (from, address) = (mismatch.from.as_deref(), mismatch.address());
        let found = match &mismatch.reason {
            MismatchReason::Address(_) => None,
            MismatchReason::NoAddress => Some("no address"),
            MismatchReason::Malformed => Some("malformed"),
            MismatchReason::TooLong => Some("too long"),
        };
        let (reply, reference) =
            (refused.map(|refused| refused.reply.code()), refused.map(|refused| &refused.reference));
        tracing::warn!(session, listener, %client, user, part, address, found, from, action, reply, reference, suppressed, "sender mismatch");
    }

    /// Logs an exceeded limit that did not refuse.
    fn limit_exceeded(&self, hit: &LimitHit, stage: Stage, is_logged: bool) {
        let Self { session, client, user, .. } = self;
        let (LimitHit { limit, mode, actions, .. }, stage) = (hit, stage.name());
        let message = if *mode == Mode::Shadow { "over, in shadow" } else { "over" };
        let Some(Permit { suppressed }) = self.permit_if(is_logged, message) else { return };
        let (limit, mode, period) = (&**limit, mode.name(), period(&hit.quota));
        let [used, allowed] = numbers(&hit.quota, hit.level);
        match hit.mode {
            Mode::Shadow => {
                tracing::info!(session, %client, user, stage, limit, mode, used, allowed, period, action = actions, suppressed, "over, in shadow")
            }
            Mode::Soft | Mode::Enforce => {
                tracing::warn!(session, %client, user, stage, limit, mode, used, allowed, period, action = actions, suppressed, "over")
            }
        }
    }

    /// Gives a notice to the notifier. Logs and counts the notice if an episode begins with it.
    fn noticed(&self, notice: &Notice) {
        let Self { metrics, notifier, session, client, user, .. } = self;
        let (country, asn) = self.location();
        let source = notify::Session { id: session, user: *user, client: *client, country, asn };
        if !notifier.take(notice, &source, clock::now()) {
            return;
        }
        let (notify, limit) = (&*notice.notification.name, &*notice.limit);
        metrics.limits.notices.with_label_values(&[notify, limit]).inc();
        let Some(Permit { suppressed }) = self.permit("notice") else { return };
        let owner = notice.key.as_ref().map(|key| key.owner().to_string());
        let (mode, period) = (notice.mode.name(), period(&notice.quota));
        let [used, allowed] = numbers(&notice.quota, notice.level);
        tracing::warn!(session, %client, user, notify, limit, owner, mode, used, allowed, period, suppressed, "notice");
    }

    fn suspended(&self, suspension: &Suspension) {
        let Self { metrics, session, client, user, .. } = self;
        let Suspension { owner, term, .. } = suspension;
        let Term { since, by, reason, .. } = term;
        if let exception::By::Limit(limit) = by {
            metrics.limits.suspensions.with_label_values(&[limit]).inc();
        }
        let Some(Permit { suppressed }) = self.permit("suspended") else { return };
        let time = term.left(*since).map_or_else(|| UNTIL_RELEASED.to_owned(), format_duration);
        let known_to = suspension.known_to.map(KnownTo::name);
        tracing::warn!(session, %client, user, suspended = %owner, time, known_to, %by, %reason, suppressed, "suspended");
    }

    fn became_suspicious(&self, SuspicionRise { class, score }: &SuspicionRise) {
        let Self { metrics, session, client, user, .. } = self;
        metrics.suspicion.rises.with_label_values(&[class.name()]).inc();
        let Some(Permit { suppressed }) = self.permit("suspicious") else { return };
        let (class, signs) = (class.name(), score.signs_text());
        let score = rounded(score.points);
        tracing::warn!(session, %client, user, class, score, signs, suppressed, "suspicious");
    }

    fn message(&self, delivery: &Delivery, told: bool) {
        let Self { metrics, session, client, user, via, .. } = self;
        let Delivery { from, asked, recipients, message_id, helo, tls, mechanism, size, reply, outcome, duration } =
            delivery;
        let accepted = recipients.len();
        let (result, upstream) = match outcome {
            MessageOutcome::Answered(reply) if reply.is_positive() => ("delivered", Some(reply.to_string())),
            MessageOutcome::Answered(reply) => ("refused", Some(reply.to_string())),
            MessageOutcome::Away(reason) => ("upstream-away", Some(reason.clone())),
            MessageOutcome::LostBefore => ("upstream-away", None),
            MessageOutcome::Passed => ("passed", None),
            MessageOutcome::Report(ReportResult::Counted) => ("report", None),
            MessageOutcome::Report(ReportResult::NoReport | ReportResult::NoMessage) => ("no-report", None),
            MessageOutcome::Report(ReportResult::TooMany | ReportResult::Unavailable) => ("undecided", None),
            MessageOutcome::TooLarge | MessageOutcome::Endless => ("too-large", None),
            MessageOutcome::OverLimit(_) => ("over-limit", None),
            MessageOutcome::Suspended(_) => ("suspended", None),
            MessageOutcome::SenderMismatch(_) => ("sender-mismatch", None),
            MessageOutcome::Undecided => ("undecided", None),
            MessageOutcome::Ambiguous(_) => ("ambiguous", None),
            MessageOutcome::Loop => ("loop", None),
            MessageOutcome::Continuation => ("continuation", None),
            MessageOutcome::ClientGone | MessageOutcome::ClientSilent => ("client-gone", None),
            MessageOutcome::TooSlow(_) | MessageOutcome::TooLong(_) | MessageOutcome::Revoked => ("too-slow", None),
            MessageOutcome::Stopping => ("stopping", None),
            MessageOutcome::Abandoned => ("abandoned", None),
        };
        metrics.mail.messages.add(result, 1);
        let is_sent = matches!(result, "delivered" | "passed");
        if is_sent {
            metrics.mail.recipients.add(result, accepted as u64);
        }
        // Weir does not see the message of a Postfix, and does not always learn its size.
        if result == "delivered" {
            metrics.mail.size.observe(*size as f64);
            metrics.mail.duration.observe(duration.as_secs_f64());
        }
        // The throttle does not apply to sent messages, because the administrator of the upstream or of Postfix perhaps
        // asks for the line of such a message. That server limits the number of these lines.
        let permit = if is_sent { Some(Permit { suppressed: None }) } else { self.permit("message ended") };
        let Some(Permit { suppressed }) = permit else { return };
        let (from, mechanism, helo, tls) = (&**from, mechanism.as_deref(), helo.as_deref(), tls.as_deref());
        let (country, asn) = self.location();
        let (reply, duration) = (reply.as_ref().map(Reply::code), duration.as_secs_f64());
        let (to, more_recipients) = recipient_list(recipients);
        let found = if let MessageOutcome::Ambiguous(ambiguity) = outcome { Some(ambiguity.name()) } else { None };
        // The key `told` is logged only if it is false: then the client did not get the reply, and will send the
        // message again.
        let told = Some(false).filter(|_| !told);
        let client = address_text(*client);
        tracing::info!(
            session,
            client,
            country,
            asn,
            user,
            auth = mechanism,
            helo,
            tls,
            from,
            to,
            more_recipients,
            message_id,
            asked,
            accepted,
            size,
            reply,
            told,
            via,
            upstream,
            found,
            duration,
            result,
            suppressed,
            "message ended"
        );
    }
}

/// Maximum recipients in one line, and maximum octets of these recipients. The line lists recipients because
/// administrators ask who wrote to an address. The number is limited because a message to thousands of recipients must
/// not fill the log.
const MAX_LISTED: usize = 100;
const MAX_LISTED_OCTETS: usize = 4096;

/// Returns the first recipients, separated by commas, and the number of the remaining recipients.
fn recipient_list(recipients: &[Arc<str>]) -> (Option<String>, Option<usize>) {
    let mut octets = 0;
    let is_listed = |recipient: &&Arc<str>| {
        octets += recipient.len() + 1;
        octets <= MAX_LISTED_OCTETS
    };
    let listed: Vec<&str> = recipients.iter().take(MAX_LISTED).take_while(is_listed).map(|to| &**to).collect();
    let more = recipients.len() - listed.len();
    ((!listed.is_empty()).then(|| listed.join(",")), (more > 0).then_some(more))
}

/// Returns the period of a quota; `None` if it has none, because a key without a value is left out.
fn period(quota: &Quota) -> Option<String> {
    Some(quota.period()).filter(|period| !period.is_empty())
}

/// Returns the used and the allowed amount, as numbers with at most one decimal.
fn numbers(quota: &Quota, level: f64) -> [Box<dyn Value>; 2] {
    let (used, allowed) = quota.numbers(level);
    [used, allowed].map(|amount| -> Box<dyn Value> {
        // Whole numbers are logged without a decimal.
        match format_amount(amount).parse::<u64>() {
            Ok(whole) => Box::new(whole),
            Err(_) => Box::new((amount * 10.0).round() / 10.0),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_lists_recipients_up_to_a_bound_and_counts_the_others() {
        let recipients = |count: usize, length: usize| -> Vec<Arc<str>> {
            (0..count).map(|n| format!("{n:0>length$}@example.net").into()).collect()
        };
        assert_eq!(recipient_list(&[]), (None, None));
        assert_eq!(recipient_list(&recipients(2, 1)), (Some("0@example.net,1@example.net".to_owned()), None));
        let (to, more) = recipient_list(&recipients(1_000, 3));
        assert_eq!((to.unwrap().split(',').count(), more), (MAX_LISTED, Some(900)));
        let (to, more) = recipient_list(&recipients(MAX_LISTED, 300));
        let to = to.unwrap();
        assert!(to.len() <= MAX_LISTED_OCTETS && to.split(',').count() + more.unwrap() == MAX_LISTED, "{}", to.len());
    }
}
