//! HTTP for administrators and their machines: `/metrics`, `/healthz`, `/readyz`.

use crate::metrics::Metrics;
use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;

/// Where to listen.
#[derive(Clone, Debug)]
pub struct Options {
    pub address: SocketAddr,
}

/// Tells whether Weir is ready; the error says why not.
pub type Readiness = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Serves until `stop` ends.
pub async fn serve(
    socket: TcpListener,
    metrics: Arc<Metrics>,
    readiness: Readiness,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let plain_text = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    let router = Router::new()
        .route("/metrics", get(move || async move { (plain_text, metrics.render()) }))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(move || async move { ready(&readiness) }));
    axum::serve(socket, router).with_graceful_shutdown(stop).await
}

fn ready(readiness: &Readiness) -> impl IntoResponse + use<> {
    match readiness() {
        Ok(()) => (StatusCode::OK, "ready\n".to_owned()),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n")),
    }
}
