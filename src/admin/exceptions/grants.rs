//! `weir grant` and `weir revoke`: begin and end a grant.

use super::{ActAnswer, Exception, applicability, because, format, names, remarks, term};
use crate::admin::{Api, ApiError, Caller, Errors, ErrorsOrDoubts, Json, Query};
use crate::clock;
use crate::policy::exception::Grant;
use crate::policy::limit::{Limit, RateDoubt, RateTerms};
use axum::extract::State;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::sync::Arc;
use utoipa::{IntoParams, ToSchema};

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct GrantRequest {
    /// Name of the limit.
    pub limit: String,
    /// Key of the budget: `alice`, `user=alice,client=192.0.2.7` if the limit counts per both, or `all`.
    pub key: String,
    /// Rate to grant, in the form of the limit's own: `500 / 1d`, `50 / message`, `unlimited`, `0`.
    pub rate: String,
    /// Duration in seconds.
    #[schema(exclusive_minimum = 0.0, maximum = 315_360_000.0)]
    pub for_seconds: f64,
    /// For the audit trail. Not empty.
    #[schema(min_length = 1, max_length = 500)]
    pub reason: String,
    /// Grant also if this looks like a mistake.
    #[serde(default)]
    pub force: bool,
}

#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RevokeQuery {
    /// Name of the limit.
    pub limit: String,
    /// Key of the budget, as in the grant.
    pub key: String,
    /// For the audit trail.
    #[serde(default)]
    pub reason: Option<String>,
}

/// Grants one budget another rate for a limited time.
///
/// Meanwhile its mail is counted separately.
#[utoipa::path(post, path = "/v1/grants", request_body = GrantRequest,
    responses((status = 200, description = "Granted", body = ActAnswer), ErrorsOrDoubts))]
pub async fn grant(
    State(api): State<Api>,
    caller: Caller,
    Json(request): Json<GrantRequest>,
) -> Result<Json<ActAnswer>, ApiError> {
    let (server, now) = (api.server()?, clock::now());
    let policy = server.store.policy();
    let limit = policy.limit(&request.limit)?;
    let owner = limit.owner(&request.key, &policy.normalizer)?;
    let (rate, doubtful) = checked_rate(limit, &request.rate)?;
    let term = term(&caller, request.for_seconds, &request.reason, now)?;
    let grant = Grant { limit: limit.name.clone(), owner, rate, term };
    let accounts = names::all_accounts(server.accounts.as_ref()).await;
    let is_known = names::check(&server.store, &grant.owner, &accounts, now).await;
    let applies = applicability::check(limit, &grant.owner, &accounts, &policy.normalizer);
    let mut message = format::granted(&grant) + &doubtful + &remarks([is_known, applies], request.force)?;
    let exception = Some(Exception::from(&grant));
    let (former, kept) = server.store.grant(grant).await;
    if let Some(former) = &former {
        let _ = writeln!(message, "it takes the place of {} until {}", former.rate, former.term.until.rfc3339());
    }
    let rates = policy.limits.iter().filter(|other| other.name == limit.name).count();
    if rates > 1 {
        let _ = writeln!(message, "meanwhile it stands for all {rates} rates of the limit");
    }
    let replaced = former.as_deref().map(Exception::from);
    Ok(Json(ActAnswer { exception, replaced, ..ActAnswer::new(message, &kept) }))
}

/// Checks the rate of a grant: it must be of the same kind as the limit's rate, and must not be an obvious mistake.
/// Returns the rate and a warning, which is empty if there is nothing to warn of.
fn checked_rate(limit: &Limit, text: &str) -> Result<(Arc<str>, String), String> {
    let text = text.trim();
    let quota = RateTerms::of(limit).quota(text)?;
    if !quota.is_like(&limit.quota) {
        let (amount, period) = (limit.quota.amount(), limit.quota.period());
        return Err(format!(
            "\"{text}\" is another kind of rate than the {amount} per {period} of limit \"{}\"",
            limit.name
        ));
    }
    let is_too_large = quota.may_be_rate()
        && quota.rule().is_some()
        && limit.distinct.is_some_and(|distinct| distinct.filter(limit.count, &quota).is_none());
    if is_too_large {
        return Err(format!("\"{text}\" is too much to remember all that was seen: write less, or unlimited"));
    }
    match limit.rate_doubt(&quota, text) {
        Some(RateDoubt { is_error: true, message, help }) => Err(format!("\"{text}\": {message}; {help}")),
        Some(doubt) => Ok((text.into(), format!("warning: \"{text}\": {}; {}\n", doubt.message, doubt.help))),
        None => Ok((text.into(), String::new())),
    }
}

/// Ends a grant before its time.
#[utoipa::path(delete, path = "/v1/grants", params(RevokeQuery),
    responses((status = 200, description = "Revoked", body = ActAnswer), Errors))]
pub async fn revoke(
    State(api): State<Api>,
    caller: Caller,
    Query(query): Query<RevokeQuery>,
) -> Result<Json<ActAnswer>, ApiError> {
    let (server, now) = (api.server()?, clock::now());
    let (policy, name) = (server.store.policy(), &*query.limit);
    let owner = match policy.limit(name) {
        Ok(limit) => limit.owner(&query.key, &policy.normalizer)?,
        // A grant can outlive its limit.
        Err(why) => {
            let of_limit = policy.exceptions.grants().filter(|grant| *grant.limit == *name);
            of_limit.map(|grant| &grant.owner).find(|owner| owner.to_string() == query.key).cloned().ok_or(why)?
        }
    };
    let because = because(&caller, query.reason.as_deref())?;
    let Some((grant, kept)) = server.store.revoke(name, &owner, because, now).await else {
        let why = format!("there is no grant of {name} for {owner}: weir exceptions lists those that there are");
        return Err(ApiError::refused(why));
    };
    let exception = Some(Exception::from(&*grant));
    Ok(Json(ActAnswer { exception, ..ActAnswer::new(format::revoked(&grant, now), &kept) }))
}
