//! Caller of a request: an administrator at the control socket, or the holder of a token.

use super::{ApiError, ErrorCode};
use crate::policy::exception::By;
use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::Response;
use std::sync::Arc;

/// Caller of a request, whom the listener's gate has admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Name for the audit trail.
    pub name: Arc<str>,
    /// False if the caller may only read.
    pub may_act: bool,
}

/// Header of a request over the control socket: the name of the administrator, for the audit trail.
pub const ADMINISTRATOR_HEADER: &str = "weir-administrator";

/// Maximum length of an administrator's name, in characters.
const MAX_NAME_LENGTH: usize = 64;

impl Caller {
    /// Returns whether the caller has a token, and calls over TCP. The name of a caller at the control socket has no colon:
    /// see [`check_name`].
    pub fn is_remote(&self) -> bool {
        self.name.contains(':')
    }

    pub fn by(&self) -> By {
        By::Administrator(self.name.clone())
    }
}

/// Checks an administrator's name: one word that fits into one log line.
pub fn check_name(name: &str) -> Result<(), String> {
    match name.chars().count() {
        0 => Err("the name of the administrator is empty".to_owned()),
        count if count > MAX_NAME_LENGTH => {
            Err(format!("the name of the administrator has {count} characters: {MAX_NAME_LENGTH} at most"))
        }
        _ if name.contains(|c: char| c.is_whitespace() || c.is_control() || c == ':') => {
            Err(format!("the administrator is \"{}\": write one name", name.escape_debug()))
        }
        _ => Ok(()),
    }
}

/// Returns the caller of a request. Without a caller, the request was not admitted.
impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| ApiError::new(ErrorCode::Unauthorized, "not admitted"))
    }
}

/// Middleware of the routes that read.
pub async fn require_caller(_caller: Caller, request: Request, next: Next) -> Response {
    next.run(request).await
}

/// Middleware of acts: carries out a request to its end, even if its client leaves before the answer, so that no act is
/// done in part, or done without its audit record.
pub async fn to_its_end(request: Request, next: Next) -> Result<Response, ApiError> {
    let done = tokio::spawn(next.run(request)).await;
    // The panic itself is in the log.
    done.map_err(|_| ApiError::unavailable("a fault of Weir's own: the log says more"))
}

/// Middleware of the routes that act.
pub async fn require_actor(caller: Caller, request: Request, next: Next) -> Result<Response, ApiError> {
    match caller.may_act {
        true => Ok(next.run(request).await),
        false => {
            let why = format!("{} may only read: weir token add NAME --act makes a token that may act", caller.name);
            Err(ApiError::new(ErrorCode::Forbidden, why).because("read-only"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_word() {
        for (name, is_good) in [
            ("root", true),
            ("Jürgen", true),
            ("", false),
            ("limit x", false),
            ("a\u{7}", false),
            ("token:x", false),
            (&"x".repeat(64), true),
            (&"x".repeat(65), false),
        ] {
            assert_eq!(check_name(name).is_ok(), is_good, "{name:?}");
        }
    }
}
