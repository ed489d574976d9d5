//! Health of the state file.

use super::{Api, ApiError, Errors, Json};
use crate::clock;
use crate::store::Health;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct StateAnswer {
    pub health: StateHealth,
    /// Present errors of the state file, while it is degraded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Number of limits in force.
    pub limits: usize,
    /// Number of grants in force.
    pub grants: usize,
    /// Number of suspensions in force.
    pub suspensions: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StateHealth {
    Good,
    /// Limits are still enforced, but their counts may not be durable.
    Degraded,
}

/// Returns the health of the state file, and how many limits and exceptions are in force.
#[utoipa::path(get, path = "/v1/state",
    responses((status = 200, description = "The state", body = StateAnswer), Errors))]
pub async fn state(State(api): State<Api>) -> Result<Json<StateAnswer>, ApiError> {
    let (server, now) = (api.server()?, clock::now());
    let policy = server.store.policy();
    let (health, reason) = match server.store.health() {
        Health::Good => (StateHealth::Good, None),
        Health::Degraded(reason) => (StateHealth::Degraded, Some(reason)),
    };
    let grants = policy.exceptions.grants().filter(|grant| grant.term.holds(now)).count();
    let suspensions = policy.exceptions.suspensions().filter(|suspension| suspension.term.holds(now)).count();
    Ok(Json(StateAnswer { health, reason, limits: policy.limit_count(), grants, suspensions }))
}
