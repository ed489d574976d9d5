//! Present problems of the running Weir, each with its remedy.

use super::Api;
use super::tokens::{ReadError, Tokens};
use super::upstreams::UpstreamStatus;
use crate::server::Server;
use crate::store::Health;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::time::Instant;
use utoipa::ToSchema;

/// Problem that an administrator should solve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Problem {
    pub code: ProblemCode,
    /// Sentence that says what is wrong.
    pub message: String,
    /// Sentence that says what to do.
    pub remedy: String,
}

/// Kind of a problem, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ProblemCode {
    /// The state file cannot be read or written.
    StateDegraded,
    /// Listeners cannot accept connections.
    ConnectionsNotAccepted,
    /// The configuration file is invalid, and a former one is in force.
    ConfigurationInvalid,
    /// The decision log cannot be written.
    DecisionLogLost,
    /// An enabled upstream is down.
    UpstreamDown,
    /// Notices cannot be delivered to a target.
    NoticesFail,
    /// No upstream is enabled.
    NoUpstream,
    /// A certificate has expired.
    CertificateExpired,
    /// The tokens file is refused.
    TokensRefused,
}

impl ProblemCode {
    fn remedy(self) -> &'static str {
        match self {
            Self::StateDegraded => {
                "Weir counts in memory. Free space on the disk of the state file, or repair the disk: Weir then recovers \
                 by itself."
            }
            Self::ConnectionsNotAccepted => {
                "Raise the limit of open files (LimitNOFILE= of the service), or lower max-connections of [session]."
            }
            Self::ConfigurationInvalid => "Run weir check, mend the file, then run weir reload.",
            Self::DecisionLogLost => "Free space on the disk of the log, or correct the owner and mode of its folder.",
            Self::UpstreamDown => {
                "Look at the upstream's own log, and at the network between. Weir tries the upstream again by itself."
            }
            Self::NoticesFail => {
                "Mend the target of the notices. Weir tries again by itself, and mail is not affected."
            }
            Self::NoUpstream => "Set enabled = true for an upstream, then run weir reload.",
            Self::CertificateExpired => "Renew the certificate, then run weir reload.",
            Self::TokensRefused => "Mend the tokens file: Weir reads it again by itself.",
        }
    }

    fn with(self, message: impl Into<String>) -> Problem {
        Problem { code: self, message: message.into(), remedy: self.remedy().to_owned() }
    }
}

/// Returns the problem of the tokens file, if it has errors.
pub async fn tokens_problem(api: &Api) -> Option<Problem> {
    let path = api.tokens()?.to_owned();
    let read = tokio::task::spawn_blocking(move || Tokens::read(&path)).await.ok()?;
    match read {
        Err(ReadError::Io(_, error)) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => {
            let message = format!("the tokens file is refused, and no token is accepted: {error}");
            Some(ProblemCode::TokensRefused.with(message))
        }
        Ok(_) => None,
    }
}

/// Returns the problems of the server. `expiries` are the certificates with their ends.
pub fn problems(
    server: &Server,
    upstreams: &[UpstreamStatus],
    expiries: &[(String, Timestamp)],
    now: Timestamp,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    if let Health::Degraded(why) = server.store.health() {
        problems.push(ProblemCode::StateDegraded.with(format!("state degraded: {why}")));
    }
    if let Some(why) = server.accept_errors.current_error(Instant::now()) {
        problems.push(ProblemCode::ConnectionsNotAccepted.with(format!("connections cannot be accepted: {why}")));
    }
    if server.metrics.service.config_good.get() == 0 {
        let message = "the configuration file is invalid, and a former one is in force";
        problems.push(ProblemCode::ConfigurationInvalid.with(message));
    }
    if let Some(why) = server.decision_log.as_ref().and_then(|log| log.error()) {
        let message = format!("the decision log cannot be written, and its lines are lost: {why}");
        problems.push(ProblemCode::DecisionLogLost.with(message));
    }
    let down = upstreams.iter().filter(|upstream| upstream.enabled && !upstream.up);
    problems.extend(down.map(|UpstreamStatus { name, error, .. }| {
        let why = error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        ProblemCode::UpstreamDown.with(format!("upstream {name} is down{why}"))
    }));
    problems.extend(server.notifier.failing().iter().map(|failing| ProblemCode::NoticesFail.with(failing.to_string())));
    if !upstreams.iter().any(|upstream| upstream.enabled) {
        problems.push(ProblemCode::NoUpstream.with("no upstream is enabled"));
    }
    let expired = expiries.iter().filter(|(_, end)| *end <= now);
    problems.extend(expired.map(|(file, end)| {
        ProblemCode::CertificateExpired.with(format!("the certificate {file} has expired on {}", end.rfc3339()))
    }));
    problems
}
