//! Mail to the report address while it arrives: keeps its beginning, reads the report, and counts the outcomes.

use super::log_throttle::Permit;
use super::outcomes::GivenOutcome;
use super::services::Server;
use crate::outcomes::{MAX_REPORT, ReportError, parse_report};
use crate::session::ReportResult;
use std::net::IpAddr;
use tokio::sync::OwnedSemaphorePermit;

/// Mail to the report address.
pub struct ReportMail {
    /// The first octets, as they were sent after DATA: dots are stuffed.
    octets: Vec<u8>,
    /// `None`: too many reports arrive at once, so that nothing is kept.
    permit: Option<OwnedSemaphorePermit>,
}

impl ReportMail {
    pub fn begin(server: &Server) -> Self {
        Self { octets: Vec::new(), permit: server.outcome_permits.report() }
    }

    /// Adds octets of the mail. Keeps at most [`MAX_REPORT`] octets.
    pub fn add(&mut self, octets: &[u8]) {
        if self.permit.is_some() {
            let room = MAX_REPORT.saturating_sub(self.octets.len());
            self.octets.extend_from_slice(&octets[..octets.len().min(room)]);
        }
    }

    /// Counts the outcomes of a complete mail from this client.
    pub async fn end(self, server: &Server, client: IpAddr) -> ReportResult {
        let Self { octets, permit: Some(_permit) } = self else { return ReportResult::TooMany };
        let parsed = {
            let _reading = server.outcome_permits.read().await;
            // A report of the maximum size takes milliseconds, in which other sessions must go on.
            tokio::task::spawn_blocking(move || parse_report(&unstuffed(&octets))).await
        };
        let outcomes = match parsed {
            Ok(Ok(outcomes)) => outcomes,
            Ok(Err(ReportError::NoReport)) => return ReportResult::NoReport,
            Ok(Err(ReportError::NoMessage)) => return ReportResult::NoMessage,
            // Weir is stopping.
            Err(_) => return ReportResult::Unavailable,
        };
        // Any stranger can send outcomes without a recipient, after guessing a queue id.
        let (outcomes, nameless): (Vec<_>, Vec<_>) =
            outcomes.into_iter().partition(|outcome| outcome.recipient.is_some());
        let given = |outcome| GivenOutcome { outcome, upstream: None, is_of_report: true };
        match server.count_outcomes(outcomes.into_iter().map(given).collect()).await {
            Ok(_) => {
                for outcome in nameless {
                    server.metrics.outcomes.unknown.with_label_values(&[outcome.kind.name()]).inc();
                }
                ReportResult::Counted
            }
            Err(reason) => {
                let message = "report not counted";
                if let Some(Permit { suppressed }) = server.log_throttle.permit(message, client) {
                    tracing::error!(%client, reason, suppressed, "{message}");
                }
                ReportResult::Unavailable
            }
        }
    }
}

/// Removes the dots that the client has added to lines that begin with a dot (RFC 5321 §4.5.2).
fn unstuffed(mail: &[u8]) -> Vec<u8> {
    let lines = mail.split_inclusive(|octet| *octet == b'\n');
    lines.flat_map(|line| line.strip_prefix(b".").unwrap_or(line)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_one_dot_from_the_beginning_of_lines() {
        for (stuffed, plain) in [("", ""), (".", ""), ("..\r\na.\r\n...b\r\n", ".\r\na.\r\n..b\r\n")] {
            assert_eq!(unstuffed(stuffed.as_bytes()), plain.as_bytes(), "{stuffed:?}");
        }
    }
}
