//! What a session recorded, as log lines and metrics.

use crate::metrics::Metrics;
use crate::policy::event::Stage;
use crate::policy::limit::Mode;
use crate::policy::verdict::Remark;
use crate::session::{By, Delivery, Ending, Record, Refused};
use crate::smtp::reply::Reply;
use crate::time::format_duration;
use std::net::IpAddr;

/// Tells the log and the metrics what happened in a session.
pub struct Teller<'a> {
    pub metrics: &'a Metrics,
    pub session: &'a str,
    pub client: IpAddr,
    pub user: Option<&'a str>,
    /// The upstream that was asked last.
    pub via: Option<&'a str>,
}

impl Teller<'_> {
    /// Logs and counts a record. `told` says whether the client could be sent what goes with it.
    pub fn report(&self, record: &Record, told: bool) {
        let Self { session, client, .. } = self;
        match record {
            Record::LoggedIn { user } => tracing::info!(session, %client, user, "logged in"),
            Record::WrongPassword { user } => tracing::warn!(session, %client, user, "wrong password"),
            Record::SpokenFor { peer } => {
                tracing::info!(session, %client, user = self.user, %peer, "client named by XCLIENT")
            }
            Record::Unrecorded { refusals } => {
                tracing::warn!(session, %client, user = self.user, refusals, "refused more often than is logged");
            }
            Record::Refused { refused, is_logged } => self.refused(refused, *is_logged),
            Record::Remarked { remark, stage, is_logged } => self.remarked(remark, *stage, *is_logged),
            Record::Message(delivery) => self.message(delivery, told),
        }
    }

    fn refused(&self, refused: &Refused, is_logged: bool) {
        let Self { metrics, session, client, user, via } = self;
        let Refused { stage, from, to, reply, by } = refused;
        let (from, to, code) = (from.as_deref(), to.as_deref(), reply.code());
        let (refusal, reference) = match by {
            By::Limit { refusal, reference } => (refusal, reference),
            By::Upstream => {
                if *stage == Stage::Rcpt {
                    metrics.recipients.with_label_values(&["upstream-refused"]).inc();
                }
                if is_logged {
                    let stage = stage.name();
                    tracing::info!(session, %client, user, stage, from, to, reply = code, via, upstream = %reply, "refused by upstream");
                }
                return;
            }
            By::Away(reason) => {
                if is_logged {
                    let stage = stage.name();
                    tracing::error!(session, %client, user, stage, from, to, reply = code, reason, "upstream away");
                }
                return;
            }
        };
        let stage = stage.name();
        metrics.refusals.with_label_values(&[&*refusal.limit, stage]).inc();
        if !is_logged {
            return;
        }
        let also = (!refusal.also.is_empty()).then(|| refusal.also.join(","));
        tracing::warn!(
            session,
            %client,
            user,
            stage,
            from,
            to,
            limit = &*refusal.limit,
            also,
            level = refusal.level_text(),
            period = refusal.quota.period(),
            wait = refusal.wait_text(),
            action = refusal.verb.name(),
            reply = code,
            reference,
            "refused"
        );
    }

    /// What a limit says that the client does not hear: in shadow nobody else does, either.
    fn remarked(&self, remark: &Remark, stage: Stage, is_logged: bool) {
        let Self { metrics, session, client, user, .. } = self;
        let (Remark { limit, mode, action, .. }, stage) = (remark, stage.name());
        metrics.remarks.with_label_values(&[&**limit, stage, mode.name()]).inc();
        if !is_logged {
            return;
        }
        let (limit, mode, level, period) = (&**limit, mode.name(), remark.level_text(), remark.quota.period());
        match remark.mode {
            Mode::Shadow => {
                tracing::info!(session, %client, user, stage, limit, mode, level, period, action, "over, in shadow")
            }
            Mode::Soft | Mode::Enforce => {
                tracing::warn!(session, %client, user, stage, limit, mode, level, period, action, "over")
            }
        }
    }

    fn message(&self, delivery: &Delivery, told: bool) {
        let Self { metrics, session, client, user, via } = self;
        let Delivery { from, asked, accepted, size, reply, ending, duration } = delivery;
        let (result, upstream) = match ending {
            Ending::Answered(reply) if reply.is_positive() => ("delivered", Some(reply.to_string())),
            Ending::Answered(reply) => ("refused", Some(reply.to_string())),
            Ending::Away(reason) => ("upstream-away", Some(reason.clone())),
            Ending::TooLarge | Ending::Endless => ("too-large", None),
            Ending::OverLimit(_) => ("over-limit", None),
            Ending::Undecided => ("undecided", None),
            Ending::Ambiguous(_) => ("ambiguous", None),
            Ending::Loop => ("loop", None),
            Ending::ClientGone | Ending::ClientSilent => ("client-gone", None),
            Ending::Stopping => ("stopping", None),
            Ending::Abandoned => ("abandoned", None),
        };
        metrics.messages.with_label_values(&[result]).inc();
        if result == "delivered" {
            metrics.recipients.with_label_values(&["delivered"]).inc_by(*accepted as u64);
        }
        let (reply, duration) = (reply.as_ref().map(Reply::code), format_duration(*duration));
        let found = if let Ending::Ambiguous(what) = ending { Some(what.name()) } else { None };
        // Only worth a word when it is not so: whoever was not told will send the message again.
        let told = Some(false).filter(|_| !told);
        tracing::info!(session, %client, user, from, asked, accepted, size, reply, told, via, upstream, found, duration, result, "message ended");
    }
}
