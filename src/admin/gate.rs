//! Gate of a listener: decides on the head of each request, before its body is read, who the caller is and how long
//! the body may be.

use super::caller::{ADMINISTRATOR_HEADER, check_name};
use super::error::Reason;
use super::hosts::Hosts;
use super::tokens::{Rights, WatchedTokens};
use super::{ApiError, Caller, ControlPeer, ErrorCode};
use crate::server::Server;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::response::Response;
use prometheus::IntCounterVec;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

/// Gate of a listener. A clone is cheap.
#[derive(Clone)]
pub struct Gate {
    /// `None` for the control socket: the permissions of its file are the authorization.
    tcp: Option<Arc<TcpGate>>,
    server: Weak<Server>,
    /// Counts refused requests, by reason.
    refused: IntCounterVec,
}

/// Gate of the TCP address.
struct TcpGate {
    /// `None` if no tokens file is configured.
    tokens: Option<WatchedTokens>,
    hosts: Hosts,
}

/// Maximum length in octets of the body of a request from a stranger. The open routes need no body.
const MAX_OPEN_BODY: usize = 4096;

/// Maximum length in octets of the body of an admitted request. The body can be a description of a session with many
/// recipients.
const MAX_BODY: usize = 2 << 20;

/// Maximum length of a token in octets. Weir's own have 48.
const MAX_TOKEN: usize = 256;

impl Gate {
    /// Gate of the control socket.
    pub fn of_socket(server: &Arc<Server>) -> Self {
        Self { tcp: None, server: Arc::downgrade(server), refused: server.metrics.admin.refused.clone() }
    }

    /// Gate of the TCP address, with the tokens of a file.
    pub fn of_tcp(server: &Arc<Server>, tokens: Option<WatchedTokens>, hosts: Hosts) -> Self {
        Self { tcp: Some(Arc::new(TcpGate { tokens, hosts })), ..Self::of_socket(server) }
    }

    /// Decides on the head of a request, and adds the [`Caller`] to it. Returns the maximum length of the body in
    /// octets.
    pub async fn admit(&self, head: &mut Parts) -> Result<usize, ApiError> {
        if !is_of_api(head.uri.path()) {
            return Ok(MAX_OPEN_BODY);
        }
        let caller = match &self.tcp {
            None => administrator(head)?,
            Some(gate) => {
                gate.hosts.check(head)?;
                gate.clone().holder(bearer(head)).await?
            }
        };
        head.extensions.insert(caller);
        Ok(MAX_BODY)
    }

    /// Counts a refused request. Logs it if a stranger may be at work.
    pub fn observe(&self, response: &Response, client: Option<SocketAddr>) {
        let Some(Reason(reason)) = response.extensions().get::<Reason>() else { return };
        self.refused.with_label_values(&[*reason]).inc();
        let status = response.status();
        let (Some(client), true, Some(server)) = (client, [401, 403].contains(&status.as_u16()), self.server.upgrade())
        else {
            return;
        };
        if let Some(permit) = server.log_throttle.permit("API request refused", client.ip()) {
            tracing::warn!(%client, reason, suppressed = permit.suppressed, "API request refused");
        }
    }
}

impl TcpGate {
    /// Returns the holder of a token.
    async fn holder(self: Arc<Self>, token: Option<Vec<u8>>) -> Result<Caller, ApiError> {
        let Some(token) = token else {
            let why = "the API over TCP needs a token: Authorization: Bearer TOKEN";
            return Err(ApiError::new(ErrorCode::Unauthorized, why).because("no-token"));
        };
        let find = move || self.tokens.as_ref().and_then(|tokens| tokens.find(&token));
        let found = tokio::task::spawn_blocking(find).await.ok().flatten();
        let (name, rights) = found.ok_or_else(|| {
            ApiError::new(ErrorCode::Unauthorized, "the token is wrong, or was removed").because("wrong-token")
        })?;
        Ok(Caller { name: format!("token:{name}").into(), may_act: rights == Rights::Act })
    }
}

/// Returns the token of a request. A malformed header has a token that is wrong.
fn bearer(head: &Parts) -> Option<Vec<u8>> {
    let mut values = head.headers.get_all(AUTHORIZATION).iter();
    let value = values.next()?.as_bytes();
    let (scheme, token) = value.split_at_checked("Bearer ".len()).unwrap_or((value, b""));
    let is_good = scheme.eq_ignore_ascii_case(b"Bearer ") && token.len() <= MAX_TOKEN && values.next().is_none();
    Some(if is_good { token.to_vec() } else { Vec::new() })
}

/// Returns whether a path is one of the API's.
fn is_of_api(path: &str) -> bool {
    path.strip_prefix("/v1").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the administrator at the control socket: as the request says, since several administrators can be the same
/// system user, or else the system user.
fn administrator(head: &Parts) -> Result<Caller, ApiError> {
    let name = match head.headers.get(ADMINISTRATOR_HEADER) {
        Some(name) => String::from_utf8_lossy(name.as_bytes()).into_owned(),
        None => head.extensions.get::<ControlPeer>().map_or_else(|| "unknown".to_owned(), ControlPeer::name),
    };
    check_name(&name)?;
    Ok(Caller { name: name.into(), may_act: true })
}
