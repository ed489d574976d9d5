//! HTTP server for administrators and monitoring. The TCP address serves `/metrics`, `/healthz` and `/readyz`. The Unix
//! socket serves these three paths, and also the control requests.

pub mod exceptions;
mod handlers;
pub mod logins;
mod serve;
mod socket;

pub use handlers::{BodyHandler, ControlHandlers, Handler, Outcome, OutcomeFuture};
pub use serve::{MAX_CONNECTIONS, Peer, serve};
pub use socket::{SocketError, SocketFile, bind};

use crate::metrics::Metrics;
use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// Addresses to listen on.
#[derive(Clone, Debug)]
pub struct Options {
    /// TCP address of the read-only routes. Every client that can connect is permitted to read them.
    pub address: Option<SocketAddr>,
    /// Path of the Unix socket for control requests.
    pub socket: PathBuf,
}

/// Maximum length in octets of the body of a read-only request. Such a request needs no body.
pub const MAX_PUBLIC_BODY: usize = 4096;

/// Maximum length in octets of the body of a control request. The body can be a JSON description of a session with many
/// recipients.
pub const MAX_CONTROL_BODY: usize = 2 << 20;

/// Function that checks whether Weir is ready. If Weir is not ready, the function returns an error with the reason.
pub type Readiness = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Returns the read-only routes.
pub fn public_router(metrics: Arc<Metrics>, readiness: Readiness) -> Router {
    let plain_text = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    Router::new()
        .route("/metrics", get(move || async move { (plain_text, metrics.render()) }))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(move || async move { ready(&readiness) }))
}

fn ready(readiness: &Readiness) -> impl IntoResponse + use<> {
    match readiness() {
        Ok(()) => (StatusCode::OK, "ready\n".to_owned()),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n")),
    }
}
