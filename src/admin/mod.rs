//! HTTP for administrators and their machines: over TCP `/metrics`, `/healthz`, `/readyz`; over a Unix socket orders, too.

mod acts;
mod serve;
mod socket;

pub use acts::{Act, Acts, Ask, Coming, Outcome};
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

/// Where to listen.
#[derive(Clone, Debug)]
pub struct Options {
    /// For whoever may look, and that is everybody who can connect.
    pub address: Option<SocketAddr>,
    /// For whoever may give orders: a path.
    pub socket: PathBuf,
}

/// Octets of the body of a request that only looks: it needs none.
pub const MAX_LOOK: usize = 4096;

/// Octets of an order: a session of many recipients that is described in JSON.
pub const MAX_ORDER: usize = 2 << 20;

/// Tells whether Weir is ready; the error says why not.
pub type Readiness = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// What everybody may look at.
pub fn looks(metrics: Arc<Metrics>, readiness: Readiness) -> Router {
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
