//! `weir reset`: empties one budget.

use super::{ActAnswer, because, format, names, remarks};
use crate::admin::{Api, ApiError, Caller, ErrorsOrDoubts, Json};
use crate::clock;
use crate::policy::Policy;
use crate::policy::budgets::{Loaded, Owner};
use crate::policy::limit::SUSPICION;
use crate::policy::matching::Field;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ResetRequest {
    /// Name of the limit, or `suspicion` for the suspicion score of a user. A limit that is a sign gets both empty: the
    /// budget, and the points of the sign.
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
    let (name, owner) = target(&policy, &request)?;
    policy.budgets_of(&name, &owner, now)?;
    let because = because(&caller, request.reason.as_deref())?;
    let accounts = names::all_accounts(server.accounts.as_ref()).await;
    let remarks = remarks([names::check(&server.store, &owner, &accounts, now).await], request.force)?;
    let done = server.store.reset((&name, &owner), Loaded::reset, because, now).await;
    let (was, kept) = done.map_err(|why| ApiError::unavailable(format!("{why}; nothing was reset")))?;
    let message = format::reset(&name, &owner, &was) + &remarks;
    Ok(Json(ActAnswer { was, ..ActAnswer::new(message, &kept) }))
}

/// Returns the name of the limit, or [`SUSPICION`], and the owner.
fn target(policy: &Policy, request: &ResetRequest) -> Result<(Arc<str>, Owner), String> {
    if !policy.is_suspicion(&request.limit) {
        let limit = policy.limit(&request.limit)?;
        return Ok((limit.name.clone(), limit.owner(&request.key, &policy.normalizer)?));
    }
    let owner = Owner::of_sender(&request.key, &policy.normalizer)?;
    match owner.fields().eq([Some(Field::User)]) {
        true if policy.signs().is_empty() => Err("no limit has an action suspect: there are no scores".to_owned()),
        true => Ok((SUSPICION.into(), owner)),
        false => Err(format!("{SUSPICION} is the score of a user: name a user, as in alice or user=alice")),
    }
}
