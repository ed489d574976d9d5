//! Log lines, metrics and notices of the verdict on a reported event: an outcome of a delivery, or a blocked
//! connection.

use super::Server;
use super::session_log::SessionLog;
use crate::policy::request::Location;
use crate::policy::verdict::Verdict;
use crate::session::Record;
use crate::store::SentMessage;
use std::net::IpAddr;

impl Server {
    /// Logs and counts the consequences of an outcome for the sender of the message, and gives the notices to the
    /// notifier.
    pub fn report_outcome(&self, message: &SentMessage, location: Location, verdict: Verdict) {
        let log = SessionLog {
            metrics: &self.metrics,
            notifier: &self.notifier,
            log_throttle: &self.log_throttle,
            is_stranger: false,
            // The session ended long ago.
            session: &format!("outcome of {}", message.key.queue_id),
            listener: &message.listener,
            client: message.client,
            user: message.user.as_deref(),
            location,
            via: Some(&message.key.upstream),
        };
        report(&log, verdict);
    }

    /// Logs and counts the consequences of a blocked connection for the client, and gives the notices to the notifier.
    pub fn report_blocked(&self, client: IpAddr, location: Location, verdict: Verdict) {
        let log = SessionLog {
            metrics: &self.metrics,
            notifier: &self.notifier,
            log_throttle: &self.log_throttle,
            is_stranger: true,
            session: "blocked connection",
            listener: "",
            client,
            user: None,
            location,
            via: None,
        };
        report(&log, verdict);
    }
}

fn report(log: &SessionLog<'_>, verdict: Verdict) {
    let Verdict { suspensions, notices, suspicion_rise, .. } = verdict;
    let rise = suspicion_rise.map(|rise| Record::BecameSuspicious(Box::new(rise)));
    let records = suspensions.into_iter().map(Record::Suspended).chain(notices.into_iter().map(Record::Noticed));
    records.chain(rise).for_each(|record| log.report(&record, true));
}
