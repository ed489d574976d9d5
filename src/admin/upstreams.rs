//! Upstreams and their health.

use super::{Api, ApiError, Errors, Json};
use crate::server::Server;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct UpstreamsAnswer {
    /// The upstreams, in the order of the configuration.
    pub upstreams: Vec<UpstreamStatus>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct UpstreamStatus {
    pub name: String,
    pub host: String,
    pub port: u16,
    /// False if the configuration has disabled the upstream.
    pub enabled: bool,
    /// True if the upstream is enabled, and works or has not been tried since Weir started.
    pub up: bool,
    /// Last error, if the upstream is down: its reply, or why it cannot be reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub priority: u16,
    pub weight: u16,
    /// True if the upstream gets only mail that a limit routes to it.
    pub only_routed: bool,
}

/// Returns the upstreams and their health.
#[utoipa::path(get, path = "/v1/upstreams",
    responses((status = 200, description = "The upstreams", body = UpstreamsAnswer), Errors))]
pub async fn upstreams(State(api): State<Api>) -> Result<Json<UpstreamsAnswer>, ApiError> {
    Ok(Json(UpstreamsAnswer { upstreams: all(&*api.server()?) }))
}

/// Returns the status of all upstreams, in the order of the configuration.
pub fn all(server: &Server) -> Vec<UpstreamStatus> {
    let status = |upstream: &std::sync::Arc<crate::relay::Upstream>| {
        let (options, enabled) = (upstream.options(), upstream.is_enabled());
        UpstreamStatus {
            name: options.name.to_string(),
            host: options.host.to_string(),
            port: options.port,
            enabled,
            up: enabled && upstream.standing().is_well,
            error: upstream.last_error().filter(|_| enabled).map(String::from),
            priority: options.priority,
            weight: options.weight,
            only_routed: options.only_routed,
        }
    };
    server.relay.upstreams().iter().map(status).collect()
}
