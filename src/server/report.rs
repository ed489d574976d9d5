//! What a session recorded, as log lines and metrics.

use crate::metrics::Metrics;
use crate::session::{By, Delivery, Ending, Record, Refused};
use crate::smtp::reply::Reply;
use crate::time::{format_amount, format_duration};
use std::net::IpAddr;

/// Logs and counts a record of this session.
pub fn report(record: &Record, metrics: &Metrics, session: &str, client: IpAddr, user: Option<&str>) {
    match record {
        Record::WrongPassword { user } => tracing::warn!(session, %client, user, "wrong password"),
        Record::Refused(refused) => refusal(refused, metrics, session, client, user),
        Record::Message(delivery) => message(delivery, metrics, session, client, user),
    }
}

fn refusal(refused: &Refused, metrics: &Metrics, session: &str, client: IpAddr, user: Option<&str>) {
    let Refused { stage, from, to, reply, by } = refused;
    let (stage, from, to) = (stage.name(), from.as_deref(), to.as_deref());
    let code = reply.code();
    let (refusal, reference) = match by {
        By::Limit { refusal, reference } => (refusal, reference),
        By::Upstream => {
            metrics.recipients.with_label_values(&["upstream-refused"]).inc();
            return tracing::info!(session, %client, user, stage, from, to, reply = code, upstream = %reply, "refused by upstream");
        }
        By::Away(reason) => {
            return tracing::error!(session, %client, user, stage, from, to, reply = code, reason, "upstream away");
        }
    };
    metrics.refusals.with_label_values(&[&*refusal.limit, stage]).inc();
    let level = format!("{}/{}", format_amount(refusal.level), format_amount(refusal.rate.amount));
    tracing::warn!(
        session,
        %client,
        user,
        stage,
        from,
        to,
        limit = &*refusal.limit,
        level,
        period = format_duration(refusal.rate.period),
        wait = refusal.wait_text(),
        action = "defer",
        reply = code,
        reference,
        "refused"
    );
}

fn message(delivery: &Delivery, metrics: &Metrics, session: &str, client: IpAddr, user: Option<&str>) {
    let Delivery { from, asked, accepted, size, reply, ending, duration } = delivery;
    let (result, upstream) = match ending {
        Ending::Answered(reply) if reply.is_positive() => ("delivered", Some(reply.to_string())),
        Ending::Answered(reply) => ("refused", Some(reply.to_string())),
        Ending::Away(reason) => ("upstream-away", Some(reason.clone())),
        Ending::TooLarge | Ending::Endless => ("too-large", None),
        Ending::Ambiguous(_) => ("ambiguous", None),
        Ending::ClientGone | Ending::ClientSilent => ("client-gone", None),
    };
    metrics.messages.with_label_values(&[result]).inc();
    metrics.recipients.with_label_values(&["accepted"]).inc_by(*accepted as u64);
    let (reply, duration) = (reply.as_ref().map(Reply::code), format_duration(*duration));
    tracing::info!(session, %client, user, from, asked, accepted, size, reply, upstream, duration, result, "message ended");
}
