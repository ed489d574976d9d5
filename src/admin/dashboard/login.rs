//! Login with a token, and the session of a browser.

use super::Dashboard;
use crate::admin::browser_request::{COOKIE_NAME, LoggedIn, check_csrf, check_site};
use crate::admin::{ApiError, Caller, ErrorCode, Json};
use axum::Extension;
use axum::extract::{Form, FromRequest as _, Request, State};
use axum::http::StatusCode;
use axum::http::header::{ORIGIN, REFERRER_POLICY, SET_COOKIE};
use axum::http::request::Parts;
use axum::response::{Html, IntoResponse, Redirect, Response};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// The form of a login.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Login {
    token: String,
}

/// Session of a browser, for the pages.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct SessionAnswer {
    /// Name of the token, as the audit trail has it.
    name: String,
    /// False if the token may only read.
    may_act: bool,
    /// Value of the header `weir-csrf` of each act.
    csrf: String,
    version: &'static str,
}

impl From<&LoggedIn> for SessionAnswer {
    fn from(LoggedIn { id, caller: Caller { name, may_act } }: &LoggedIn) -> Self {
        Self { name: name.to_string(), may_act: *may_act, csrf: id.csrf(), version: env!("CARGO_PKG_VERSION") }
    }
}

/// Maximum length of a token in octets, as for the header `Authorization`.
const MAX_TOKEN: usize = 256;

/// Comment in the login form, in whose place a message stands.
const MESSAGE: &str = "<!--message-->";

const NO_TOKENS: &str = "No tokens file is configured, so no browser can log in. Set tokens = \"tokens\" in [admin] of \
    weir.toml, restart Weir, and make a token: weir token add NAME --act";

/// Answers with the login form. A browser that has a session gets the dashboard.
pub async fn page(State(dashboard): State<Dashboard>, session: Option<Extension<LoggedIn>>) -> Response {
    match session {
        Some(_) => Redirect::to("/").into_response(),
        None => form(&dashboard, dashboard.credentials.is_none().then_some(NO_TOKENS)),
    }
}

/// Returns the login form with a message, which has no text of a client.
fn form(dashboard: &Dashboard, message: Option<&str>) -> Response {
    let message = message.map(|text| format!("<p id=\"message\" role=\"alert\">{text}</p>")).unwrap_or_default();
    let page = dashboard.files.text("login.html").replacen(MESSAGE, &message, 1);
    // With "no-referrer", browsers would send the form with "Origin: null".
    ([(REFERRER_POLICY, "same-origin")], Html(page)).into_response()
}

/// Logs a browser in with the form. The browser gets the dashboard, or the form again with a message.
pub async fn log_in(State(dashboard): State<Dashboard>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let begun = match check_site(&head) {
        Ok(()) => begin(&dashboard, Request::from_parts(head.clone(), body)).await,
        Err(error) => Err(error),
    };
    match begun {
        Ok(session) => (set_cookie(&head, &session.id.cookie(), ""), Redirect::to("/")).into_response(),
        Err(error) => {
            let page = form(&dashboard, Some(&error.message));
            // The answer has the status and the reason for the metric, but the page as its body.
            let mut answer = error.into_response().map(|_| axum::body::Body::empty());
            answer.headers_mut().extend(page.headers().clone());
            *answer.body_mut() = page.into_body();
            answer
        }
    }
}

/// Checks the token of a login, and begins a session. A former session of the browser ends.
async fn begin(dashboard: &Dashboard, request: Request) -> Result<LoggedIn, ApiError> {
    let former = request.extensions().get::<LoggedIn>().cloned();
    let client = request.extensions().get::<SocketAddr>().copied();
    let token = token(request).await?;
    let credentials = dashboard.credentials.clone();
    let credentials =
        credentials.ok_or_else(|| ApiError::new(ErrorCode::Unauthorized, NO_TOKENS).because("wrong-token"))?;
    let token = if token.len() <= MAX_TOKEN { token } else { String::new() };
    let begun = credentials.clone().log_in(token.trim().as_bytes()).await;
    let begun = begun.map_err(|error| ApiError::unavailable(format!("no random numbers: {error}")))?;
    let (id, caller) = begun.ok_or_else(ApiError::wrong_token)?;
    if let Some(former) = former {
        credentials.log_out(&former.id);
    }
    let client = client.map(|client| client.to_string()).unwrap_or_default();
    tracing::info!(client, by = %caller.name, "dashboard login");
    Ok(LoggedIn { id, caller })
}

/// Returns the token in the body of a login. The errors do not contain the body.
async fn token(request: Request) -> Result<String, ApiError> {
    let login = Form::<Login>::from_request(request, &()).await;
    let why = "a login is a form with the field token";
    login.map(|Form(login)| login.token).map_err(|_| ApiError::new(ErrorCode::BadRequest, why))
}

/// Returns the header that sets the session cookie. The admin listener itself speaks no TLS. A proxy perhaps does, and
/// then the browser's own `Origin` says so: a client that forges it harms only itself, unlike with `X-Forwarded-Proto`.
fn set_cookie(head: &Parts, value: &str, further: &str) -> [(axum::http::HeaderName, String); 1] {
    let is_https = head.headers.get(ORIGIN).is_some_and(|origin| origin.as_bytes().starts_with(b"https://"));
    let secure = if is_https { "; Secure" } else { "" };
    [(SET_COOKIE, format!("{COOKIE_NAME}={value}; Path=/; HttpOnly; SameSite=Strict{secure}{further}"))]
}

/// Ends the session of a browser.
pub async fn log_out(State(dashboard): State<Dashboard>, head: Parts) -> Result<impl IntoResponse, ApiError> {
    check_site(&head)?;
    if let (Some(session), Some(credentials)) = (head.extensions.get::<LoggedIn>(), &dashboard.credentials) {
        check_csrf(&head, &session.id)?;
        credentials.log_out(&session.id);
        tracing::info!(by = %session.caller.name, "dashboard logout");
    }
    Ok((StatusCode::NO_CONTENT, set_cookie(&head, "", "; Max-Age=0")))
}

/// Answers with the session of a browser.
pub async fn session(session: Option<Extension<LoggedIn>>) -> Result<impl IntoResponse, ApiError> {
    let why = "there is no session: log in at /login";
    let none = || ApiError::new(ErrorCode::Unauthorized, why).because("no-session");
    let Extension(session) = session.ok_or_else(none)?;
    Ok(Json(SessionAnswer::from(&session)))
}
