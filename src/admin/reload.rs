//! `weir reload`: reads the configuration again.

use super::{Api, ApiError, Caller, Errors, Json, ReloadOutcome, Reloaded, exceptions};
use crate::clock;
use crate::store::audit::AuditRecord;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ReloadRequest {
    /// For the audit trail.
    #[serde(default)]
    pub reason: Option<String>,
}

/// Adds to the reason of a reload that other parts than the limits were refused.
fn partly(reason: &str) -> Arc<str> {
    let space = if reason.is_empty() { "" } else { " " };
    format!("{reason}{space}(only partly in force: other parts were refused)").into()
}

/// Reads the configuration again.
///
/// If the configuration has errors, the former configuration stays in force, and the answer is the error `refused`.
#[utoipa::path(post, path = "/v1/reload", request_body = ReloadRequest,
    responses((status = 200, description = "The configuration is in force", body = Reloaded), Errors))]
pub async fn reload(
    State(api): State<Api>,
    caller: Caller,
    Json(request): Json<ReloadRequest>,
) -> Result<Json<Reloaded>, ApiError> {
    let reason = exceptions::checked_reason(request.reason.as_deref().unwrap_or_default(), false)?;
    let ReloadOutcome { is_in_force, answer } = api.reload().await;
    if is_in_force {
        let reason = if answer.is_ok() { reason } else { partly(&reason) };
        api.server()?.store.record(AuditRecord::of_reload(clock::now(), caller.by(), reason)).await;
    }
    answer.map(Json)
}
