//! Reports a session's records: to the log, the metrics, the list of top senders, the store and the hub of decisions.

use super::services::Server;
use super::session_log::SessionLog;
use super::{decision_records, sender_activity};
use crate::clock;
use crate::policy::request::Location;
use crate::session::Record;
use std::net::IpAddr;
use std::sync::Arc;

/// Session from which records come.
pub struct RecordOrigin<'a> {
    pub session: &'a Arc<str>,
    /// Name of the listener.
    pub listener: &'a Arc<str>,
    pub client: IpAddr,
    pub user: Option<&'a str>,
    /// True if the address of the client permits it to send without a login.
    pub is_trusted: bool,
    pub location: Location,
    /// Name of the upstream that was last asked.
    pub via: Option<&'a str>,
}

/// Reports records. `is_sent`: the reply to the client could be sent.
pub fn report(server: &Server, records: &[Record], origin: &RecordOrigin<'_>, is_sent: bool) {
    let RecordOrigin { session, listener, client, user, is_trusted, location, via } = *origin;
    let now = clock::now();
    for record in records {
        if let Record::LoggedIn { origin, .. } = record {
            let (tls, mechanism) = (origin.tls.clone(), origin.mechanism.clone());
            server.store.record_login(now, &origin.facts, tls, mechanism);
        }
    }
    sender_activity::count(&server.top, records, user, client, &server.store.policy().normalizer, now);
    let log = SessionLog {
        metrics: &server.metrics,
        notifier: &server.notifier,
        log_throttle: &server.log_throttle,
        is_stranger: user.is_none() && !is_trusted,
        session,
        listener,
        client,
        user,
        location,
        via,
    };
    for record in records {
        log.report(record, is_sent);
        decision_records::offer(&server.decisions, session, record);
    }
}
