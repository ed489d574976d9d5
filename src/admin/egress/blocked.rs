//! Blocked connections that a watcher of the edge gives to Weir.

use crate::admin::{Api, ApiError, Errors, Json, json_lines};
use crate::egress::BlockedConnection;
use crate::server::BlockedCounts;
use crate::time::parse_time;
use axum::body::Bytes;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use utoipa::ToSchema;

/// Maximum number of blocked connections in one request.
pub const MAX_BLOCKED: usize = 1000;

/// TCP connection that the edge has blocked.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct BlockedLine {
    /// Time at which it was blocked. Left out: now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub at: Option<String>,
    /// IPv4 or IPv6 address of the client.
    pub client: String,
    /// IPv4 or IPv6 address to which the client wanted to connect.
    pub destination: String,
    /// Port to which the client wanted to connect. It does not matter to limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// Number of blocked connections by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct BlockedAnswer {
    pub counted: u64,
    /// Connections that were blocked more than an hour ago, and do not count.
    pub too_old: u64,
}

/// Counts connections that the edge has blocked, for limits with `count = "blocked-connections"`.
///
/// The body has one JSON object in each line, at most 1000. Over TCP this needs a token that may act.
#[utoipa::path(post, path = "/v1/egress/blocked",
    request_body(content = BlockedLine, description = "One object, or several, each in a line of its own"),
    responses((status = 200, description = "Counted", body = BlockedAnswer), Errors))]
pub async fn blocked(State(api): State<Api>, body: Bytes) -> Result<Json<BlockedAnswer>, ApiError> {
    let blocked = json_lines::read(&body, MAX_BLOCKED, "blocked connections", connection)?;
    let counted = api.server()?.count_blocked(&blocked).await;
    let BlockedCounts { counted, too_old } = counted
        .map_err(|_| ApiError::unavailable("the state file cannot be written; perhaps not everything was counted"))?;
    Ok(Json(BlockedAnswer { counted, too_old }))
}

fn connection(line: BlockedLine) -> Result<BlockedConnection, String> {
    let BlockedLine { at, client, destination, port } = line;
    let address = |name: &str, text: &str| match text.parse::<IpAddr>() {
        Ok(address) => Ok(address.to_canonical()),
        Err(_) => Err(format!("\"{name}\": \"{}\" is no address", text.escape_debug())),
    };
    let at = at.map(|at| parse_time(&at)).transpose().map_err(|error| format!("\"at\": {error}"))?;
    let (client, destination) = (address("client", &client)?, address("destination", &destination)?);
    Ok(BlockedConnection { at, client, destination, port })
}
