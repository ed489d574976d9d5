//! `weir reset`: empties one budget.

use super::{ActAnswer, because, format, names, remarks};
use crate::admin::{Api, ApiError, Caller, ErrorsOrDoubts, Json};
use crate::clock;
use crate::policy::budgets::Loaded;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ResetRequest {
    /// Name of the limit.
    pub limit: String,
    /// Key of the budget: `alice`, `user=alice,client=192.0.2.7` if the limit counts per both, or `all`.
    pub key: String,
    /// For the audit trail.
    #[serde(default)]
    #[schema(max_length = 500)]
    pub reason: Option<String>,
    /// Reset also if this looks like a mistake.
    #[serde(default)]
    pub force: bool,
}

/// Empties one budget, as if it had never been charged.
#[utoipa::path(post, path = "/v1/resets", request_body = ResetRequest,
    responses((status = 200, description = "Reset", body = ActAnswer), ErrorsOrDoubts))]
pub async fn reset(
    State(api): State<Api>,
    caller: Caller,
    Json(request): Json<ResetRequest>,
) -> Result<Json<ActAnswer>, ApiError> {
    let (server, now) = (api.server()?, clock::now());
    let policy = server.store.policy();
    let limit = policy.limit(&request.limit)?;
    let owner = limit.owner(&request.key, &policy.normalizer)?;
    policy.budgets_of(&limit.name, &owner, now)?;
    let because = because(&caller, request.reason.as_deref())?;
    let accounts = names::all_accounts(server.accounts.as_ref()).await;
    let remarks = remarks([names::check(&server.store, &owner, &accounts, now).await], request.force)?;
    let done = server.store.reset((&limit.name, &owner), Loaded::reset, because, now).await;
    let (was, kept) = done.map_err(|why| ApiError::unavailable(format!("{why}; nothing was reset")))?;
    let message = format::reset(&limit.name, &owner, &was) + &remarks;
    Ok(Json(ActAnswer { was, ..ActAnswer::new(message, &kept) }))
}
