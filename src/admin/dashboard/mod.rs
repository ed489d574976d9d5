//! Dashboard: pages for browsers, which use the API alone. Without a session, Weir serves only the login form.

mod assets;
mod files;
mod login;

use super::Credentials;
use axum::Router;
use axum::routing::{get, post};
use std::sync::Arc;

/// State of the handlers.
#[derive(Clone)]
struct Dashboard {
    /// `None` if no tokens file is configured: then nobody can log in.
    credentials: Option<Arc<Credentials>>,
    files: Arc<files::Files>,
}

/// Returns the routes of the dashboard.
pub fn dashboard_router(credentials: Option<Arc<Credentials>>) -> Router {
    Router::new()
        .route("/", get(files::index))
        .route("/assets/{name}", get(files::asset))
        .route("/login", get(login::page).post(login::log_in))
        .route("/logout", post(login::log_out))
        .route("/session", get(login::session))
        .with_state(Dashboard { credentials, files: Arc::new(files::Files::new()) })
}

/// Returns whether a path is one of the dashboard's.
pub fn has_path(path: &str) -> bool {
    ["/", "/login", "/logout", "/session"].contains(&path) || path.starts_with("/assets/")
}
