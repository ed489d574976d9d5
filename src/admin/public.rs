//! Routes that every client may read: metrics and health.

use crate::metrics::Metrics;
use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use std::sync::Arc;

/// Function that checks whether Weir is ready. If Weir is not ready, the function returns an error with the reason.
pub type Readiness = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Returns the routes that every client may read.
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
