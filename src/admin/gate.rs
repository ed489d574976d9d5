//! Gate of a listener: decides on the head of each request, before its body is read, who the caller is and how long
//! the body may be.

use super::browser_request::{Cookie, LoggedIn, check_csrf, check_site};
use super::caller::{ADMINISTRATOR_HEADER, check_name};
use super::credentials::{Admission, Credentials};
use super::error::Reason;
use super::hosts::Hosts;
use super::{ApiError, Caller, ControlPeer, ErrorCode, dashboard};
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
    credentials: Option<Arc<Credentials>>,
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

    /// Gate of the TCP address.
    pub fn of_tcp(server: &Arc<Server>, credentials: Option<Arc<Credentials>>, hosts: Hosts) -> Self {
        Self { tcp: Some(Arc::new(TcpGate { credentials, hosts })), ..Self::of_socket(server) }
    }

    /// Decides on the head of a request. Adds the [`Caller`] to a request for the API, and the session to a request for
    /// the dashboard that has one. Returns the maximum length of the body in octets.
    pub async fn admit(&self, head: &mut Parts) -> Result<usize, ApiError> {
        if is_of_api(head.uri.path()) {
            let caller = match &self.tcp {
                None => administrator(head)?,
                Some(gate) => {
                    let (caller, admission) = gate.caller(head).await?;
                    head.extensions.insert(admission);
                    caller
                }
            };
            head.extensions.insert(caller);
            return Ok(MAX_BODY);
        }
        if let Some(gate) = self.tcp.as_ref().filter(|_| dashboard::has_path(head.uri.path())) {
            gate.hosts.check(head)?;
            if let Some(session) = gate.session(head).await {
                head.extensions.insert(session);
            }
        }
        Ok(MAX_OPEN_BODY)
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
    /// Returns the caller of a request for the API: the holder of its token, or of its session.
    async fn caller(&self, head: &Parts) -> Result<(Caller, Admission), ApiError> {
        self.hosts.check(head)?;
        if let Some(token) = bearer(head) {
            return self.holder(&token).await;
        }
        if let Cookie::None = Cookie::of(&head.headers) {
            let why = "the API over TCP needs a token: Authorization: Bearer TOKEN";
            return Err(ApiError::new(ErrorCode::Unauthorized, why).because("no-token"));
        }
        check_site(head)?;
        let Some(LoggedIn { id, caller }) = self.session(head).await else {
            let why = "the session has ended: log in again at /login";
            return Err(ApiError::new(ErrorCode::Unauthorized, why).because("no-session"));
        };
        check_csrf(head, &id)?;
        let credentials = self.credentials.clone().ok_or_else(ApiError::wrong_token)?;
        Ok((caller, Admission::by_session(credentials, id)))
    }

    async fn holder(&self, token: &[u8]) -> Result<(Caller, Admission), ApiError> {
        let credentials = self.credentials.clone().ok_or_else(ApiError::wrong_token)?;
        let caller = credentials.clone().holder_of_token(token).await.ok_or_else(ApiError::wrong_token)?;
        Ok((caller, Admission::by_token(credentials, token)))
    }

    /// Returns the session of the browser that makes a request, if it has not ended.
    async fn session(&self, head: &Parts) -> Option<LoggedIn> {
        let Cookie::Session(id) = Cookie::of(&head.headers) else { return None };
        let caller = self.credentials.clone()?.holder_of_session(&id).await?;
        Some(LoggedIn { id, caller })
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
