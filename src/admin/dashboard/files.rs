//! Serves the files of the dashboard. A request names a file of the table: no path leads to the disk.

use super::Dashboard;
use super::assets::{ASSETS, Asset, Readers};
use crate::admin::browser_request::LoggedIn;
use crate::admin::{ApiError, ErrorCode, Path};
use axum::Extension;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderMap, IF_NONE_MATCH};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Redirect, Response};
use ring::digest::{SHA256, digest};
use std::collections::BTreeMap;

/// Files by their names.
pub struct Files(BTreeMap<&'static str, File>);

struct File {
    asset: &'static Asset,
    content_type: &'static str,
    /// Hash of the content, in quotes.
    etag: String,
}

impl Files {
    pub fn new() -> Self {
        Self(ASSETS.iter().map(|asset| (asset.name, File::new(asset))).collect())
    }

    /// Returns the content of a file as text. The files of the pages are UTF-8.
    pub fn text(&self, name: &str) -> &'static str {
        self.0.get(name).and_then(|file| std::str::from_utf8(file.asset.content).ok()).unwrap_or_default()
    }
}

impl File {
    fn new(asset: &'static Asset) -> Self {
        let content_type = match asset.name.rsplit('.').next() {
            Some("html") => "text/html; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("js") => "text/javascript; charset=utf-8",
            Some("svg") => "image/svg+xml",
            Some("png") => "image/png",
            _ => "text/plain; charset=utf-8",
        };
        let hash = digest(&SHA256, asset.content);
        let hash: String = hash.as_ref().iter().take(16).map(|octet| format!("{octet:02x}")).collect();
        Self { asset, content_type, etag: format!("\"{hash}\"") }
    }

    /// Answers with the file, or with 304 if the browser has it. The browser asks each time: the file changes with the
    /// version of Weir, and after the end of the session the browser must not show it.
    fn answer(&self, headers: &HeaderMap) -> Response {
        let cache = [(CACHE_CONTROL, "private, no-cache"), (ETAG, &*self.etag)];
        let has_it = |tags: &str| tags.split(',').any(|tag| tag.trim().trim_start_matches("W/") == self.etag);
        let tags = headers.get_all(IF_NONE_MATCH).iter().filter_map(|tags| tags.to_str().ok());
        match tags.into_iter().any(has_it) {
            true => (StatusCode::NOT_MODIFIED, cache).into_response(),
            false => (cache, [(CONTENT_TYPE, self.content_type)], self.asset.content).into_response(),
        }
    }
}

/// Answers with the page of the dashboard, or sends the browser to the login form.
pub async fn index(
    State(dashboard): State<Dashboard>,
    session: Option<Extension<LoggedIn>>,
    headers: HeaderMap,
) -> Response {
    match dashboard.files.0.get("index.html").filter(|_| session.is_some()) {
        Some(file) => file.answer(&headers),
        None => Redirect::to("/login").into_response(),
    }
}

/// Answers with a file that a page needs.
pub async fn asset(
    State(dashboard): State<Dashboard>,
    session: Option<Extension<LoggedIn>>,
    Path(name): Path<String>,
    (uri, headers): (Uri, HeaderMap),
) -> Result<Response, ApiError> {
    let file = dashboard.files.0.get(&*name).filter(|file| !file.asset.name.ends_with(".html"));
    // Without a session, the answer does not tell which files exist.
    match file {
        Some(file) if file.asset.readers == Readers::All || session.is_some() => Ok(file.answer(&headers)),
        None if session.is_some() => Err(ApiError::not_found(format!("there is no {}", uri.path().escape_debug()))),
        _ => {
            let why = "the dashboard needs a session: log in at /login";
            Err(ApiError::new(ErrorCode::Unauthorized, why).because("no-session"))
        }
    }
}
