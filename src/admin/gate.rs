//! Gate of a listener: decides on the head of each request, before its body is read, who the caller is and how long
//! the body may be.

use super::caller::{ADMINISTRATOR_HEADER, check_name};
use super::{ApiError, Caller, ControlPeer, ErrorCode};
use axum::http::request::Parts;

/// Gate of a listener.
#[derive(Clone, Debug)]
pub enum Gate {
    /// Gate of the control socket: the permissions of its file are the authorization.
    Socket,
    /// Gate of the TCP address.
    Tcp,
}

/// Maximum length in octets of the body of a request from a stranger. The open routes need no body.
const MAX_OPEN_BODY: usize = 4096;

/// Maximum length in octets of the body of an admitted request. The body can be a description of a session with many
/// recipients.
const MAX_BODY: usize = 2 << 20;

impl Gate {
    /// Decides on the head of a request, and adds the [`Caller`] to it. Returns the maximum length of the body in
    /// octets.
    pub async fn admit(&self, head: &mut Parts) -> Result<usize, ApiError> {
        if !is_of_api(head.uri.path()) {
            return Ok(MAX_OPEN_BODY);
        }
        let caller = match self {
            Self::Socket => administrator(head)?,
            Self::Tcp => return Err(ApiError::new(ErrorCode::Unauthorized, "there is no API over TCP")),
        };
        head.extensions.insert(caller);
        Ok(MAX_BODY)
    }
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
