//! `weir reload`: reads the configuration again.

use super::{Api, ApiError, Caller, Errors, Json, Reloaded, exceptions};
use crate::clock;
use crate::store::audit::AuditRecord;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ReloadRequest {
    /// For the audit trail.
    #[serde(default)]
    pub reason: Option<String>,
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
    let reloaded = api.reload().await?;
    api.server()?.store.record(AuditRecord::of_reload(clock::now(), caller.by(), reason)).await;
    Ok(Json(reloaded))
}
