//! Parts of requests that browsers send by themselves, or that pages of the dashboard add: the session cookie, the
//! header against requests of foreign web pages (CSRF), and the site of the page that makes the request.

use super::browser_sessions::SessionId;
use super::{ApiError, Caller, ErrorCode};
use axum::http::header::{COOKIE, HeaderName};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method};
use subtle::ConstantTimeEq as _;

/// Name of the cookie.
pub const COOKIE_NAME: &str = "weir-session";

/// Header that each request of a session has, except GET and HEAD.
const CSRF_HEADER: HeaderName = HeaderName::from_static("weir-csrf");

/// Site of the page that makes the request, as the browser sees it.
const SITE_HEADER: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Extension of a request: the session of the browser, whose token is valid.
#[derive(Clone, Debug)]
pub struct LoggedIn {
    pub id: SessionId,
    pub caller: Caller,
}

/// Session cookie of a request.
pub enum Cookie {
    None,
    /// The cookie is malformed, or there are several: a program on another port of the host can set a second one.
    Malformed,
    Session(SessionId),
}

impl Cookie {
    pub fn of(headers: &HeaderMap) -> Self {
        let pairs = headers.get_all(COOKIE).iter().flat_map(|value| value.as_bytes().split(|octet| *octet == b';'));
        let mut values = pairs.filter_map(|pair| {
            let value = pair.trim_ascii().strip_prefix(COOKIE_NAME.as_bytes())?;
            value.strip_prefix(b"=")
        });
        match (values.next(), values.next()) {
            (None, _) => Self::None,
            (Some(value), None) => SessionId::parse(value).map_or(Self::Malformed, Self::Session),
            _ => Self::Malformed,
        }
    }
}

/// Checks that a page of Weir itself makes a request. A page at another port of the same host counts as the same site
/// for cookies: only this header and `Origin` tell it apart. `none`: the administrator has typed the address.
pub fn check_site(head: &Parts) -> Result<(), ApiError> {
    let is_own = |site: &[u8]| site == b"same-origin" || site == b"none";
    match head.headers.get_all(SITE_HEADER).iter().all(|site| is_own(site.as_bytes())) {
        true => Ok(()),
        false => {
            let why = "the request comes from a web page of another site";
            Err(ApiError::new(ErrorCode::Forbidden, why).because("origin"))
        }
    }
}

/// Checks the header of an act. The comparison takes the same time for each value of the right length.
pub fn check_csrf(head: &Parts, id: &SessionId) -> Result<(), ApiError> {
    if [Method::GET, Method::HEAD].contains(&head.method) {
        return Ok(());
    }
    let mut values = head.headers.get_all(CSRF_HEADER).iter();
    let is_right = |value: &[u8]| bool::from(value.ct_eq(id.csrf().as_bytes()));
    match (values.next(), values.next()) {
        (Some(value), None) if is_right(value.as_bytes()) => Ok(()),
        _ => {
            let why = "a request with the session cookie needs the header weir-csrf, with \"csrf\" of GET /session";
            Err(ApiError::new(ErrorCode::Forbidden, why).because("csrf"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn only_one_whole_cookie_is_a_session() {
        let id = format!("{}A", "x".repeat(42));
        let session = format!("weir-session={id}");
        for (cookies, expected) in [
            (vec![], "none"),
            (vec!["".to_owned()], "none"),
            (vec!["other=1; weir-sessions=2; xweir-session=3; weir-session".to_owned()], "none"),
            (vec![session.clone()], "session"),
            (vec![format!("a=b;{session}  ; c=\"d\"")], "session"),
            (vec!["a=b".to_owned(), session.clone()], "session"),
            (vec![format!("{session}; {session}")], "malformed"),
            (vec![session.clone(), session.clone()], "malformed"),
            (vec!["weir-session=".to_owned()], "malformed"),
            (vec![format!("weir-session=\"{id}\"")], "malformed"),
            (vec![format!("weir-session={id}=")], "malformed"),
            (vec![format!("weir-session={id}\u{e9}")], "malformed"),
        ] {
            let mut headers = HeaderMap::new();
            for cookie in &cookies {
                headers.append(COOKIE, HeaderValue::from_bytes(cookie.as_bytes()).unwrap());
            }
            let found = match Cookie::of(&headers) {
                Cookie::None => "none",
                Cookie::Malformed => "malformed",
                Cookie::Session(_) => "session",
            };
            assert_eq!(found, expected, "{cookies:?}");
        }
    }
}
