//! Status of the running Weir in one answer.

use super::problems::{Problem, problems, tokens_problem};
use super::top::{LastHour, last_hour};
use super::upstreams::{self, UpstreamStatus};
use super::{Api, ApiError, Errors, Json};
use crate::clock;
use crate::server::ListenerAddress;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Status of the running Weir.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct StatusAnswer {
    #[schema(format = DateTime)]
    pub time: String,
    pub version: String,
    #[schema(format = DateTime)]
    pub started: String,
    pub uptime_seconds: f64,
    /// Problems; none if everything works.
    pub problems: Vec<Problem>,
    pub listeners: Vec<ListenerRow>,
    /// Maximum number of sessions at once, over all listeners.
    pub max_sessions: u64,
    pub upstreams: Vec<UpstreamStatus>,
    /// Number of limits. A limit with several rates counts once.
    pub limits: u64,
    /// Number of suspensions in force.
    pub suspensions: u64,
    /// Number of grants in force.
    pub grants: u64,
    pub last_hour: LastHour,
    pub certificates: Vec<CertificateRow>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ListenerRow {
    pub name: String,
    /// Address and port.
    pub address: String,
    /// Open sessions.
    pub sessions: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct CertificateRow {
    pub file: String,
    #[schema(format = DateTime)]
    pub expires: String,
}

/// Returns the version, the uptime, the listeners, the upstreams, the health of the state file, and present problems.
#[utoipa::path(get, path = "/v1/status",
    responses((status = 200, description = "The status", body = StatusAnswer), Errors))]
pub async fn status(State(api): State<Api>) -> Result<Json<StatusAnswer>, ApiError> {
    let (server, now) = (api.server()?, clock::now());
    let upstreams = upstreams::all(&server);
    let expiries = server.metrics.service.certificate_expiries();
    let policy = server.store.policy();
    let listener = |(name, address): &(String, ListenerAddress)| ListenerRow {
        name: name.clone(),
        address: address.to_string(),
        sessions: server.metrics.connections.open_sessions(name),
    };
    let exceptions = &policy.exceptions;
    let mut problems = problems(&server, &upstreams, &expiries, now);
    problems.extend(tokens_problem(&api).await);
    Ok(Json(StatusAnswer {
        time: now.rfc3339(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started: api.started().rfc3339(),
        uptime_seconds: now.since(api.started()).as_secs() as f64,
        problems,
        listeners: api.listeners().iter().map(listener).collect(),
        max_sessions: server.options.max_connections as u64,
        upstreams,
        limits: policy.limit_count() as u64,
        suspensions: exceptions.suspensions().filter(|one| one.term.holds(now)).count() as u64,
        grants: exceptions.grants().filter(|one| one.term.holds(now)).count() as u64,
        last_hour: last_hour(&server, now),
        certificates: expiries.into_iter().map(|(file, end)| CertificateRow { file, expires: end.rfc3339() }).collect(),
    }))
}
