//! `weir suspend` and `weir release`: begin and end a suspension.

use super::request::{checked_reason, checked_term};
use super::{ActAnswer, Exception, because, format, names, release, remarks};
use crate::admin::{Api, ApiError, Caller, Errors, ErrorsOrDoubts, Json, Query};
use crate::clock;
use crate::policy::budgets::Owner;
use crate::policy::exception::{Suspension, Term};
use crate::policy::{KnownTo, Policy};
use crate::time::Timestamp;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SuspendRequest {
    /// The user, client, sender or domain: `alice` or `user=alice`, `client=192.0.2.7`, `sender=bob@example.org`,
    /// `user-domain=example.org`.
    pub owner: String,
    /// Duration in seconds. Required without `until-released`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(exclusive_minimum = 0.0, maximum = 315_360_000.0)]
    pub for_seconds: Option<f64>,
    /// For the audit trail. Not empty.
    #[schema(min_length = 1, max_length = 500)]
    pub reason: String,
    /// Refuse mail to all recipients, also to those that `[suspensions]` allows. No new password ends the suspension.
    #[serde(default)]
    pub strict: bool,
    /// Stay suspended although the user gets a new password.
    #[serde(default)]
    pub keep: bool,
    /// Suspend until a release, or a new password that ends the suspension. Excludes `for-seconds`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub until_released: bool,
    /// Lock: refuse only mail to strangers. The memory of the owner (`known-to`) decides who is a stranger.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strangers_only: bool,
    /// Suspend also if this looks like a mistake.
    #[serde(default)]
    pub force: bool,
}

#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ReleaseQuery {
    /// The suspended user, client, sender or domain.
    pub owner: String,
    /// For the audit trail.
    #[serde(default)]
    pub reason: Option<String>,
}

/// Suspends a user, client, sender or domain.
///
/// Weir refuses its mail for a limited time, except to the recipients that `[suspensions]` allows. The reply states the
/// reason and the end.
#[utoipa::path(post, path = "/v1/suspensions", request_body = SuspendRequest,
    responses((status = 200, description = "Suspended", body = ActAnswer), ErrorsOrDoubts))]
pub async fn suspend(
    State(api): State<Api>,
    caller: Caller,
    Json(request): Json<SuspendRequest>,
) -> Result<Json<ActAnswer>, ApiError> {
    let (server, now) = (api.server()?, clock::now());
    let policy = server.store.policy();
    let (owner, rules) = (Owner::of_sender(&request.owner, &policy.normalizer)?, &policy.suspensions);
    let reason = checked_reason(&request.reason, true)?;
    let until = match (request.for_seconds, request.until_released) {
        (Some(seconds), false) => now.after(checked_term(seconds)?),
        (None, true) => Timestamp::END_OF_9999,
        _ => return Err("give exactly one of for-seconds and until-released".to_owned().into()),
    };
    let term = Term { since: now, until, by: caller.by(), reason };
    let known_to = if request.strangers_only { Some(memory_of(&policy, &owner, request.strict)?) } else { None };
    let suspension = Suspension { known_to, ..rules.suspension(owner, term, request.strict, request.keep) };
    let accounts = names::all_accounts(server.accounts.as_ref()).await;
    let is_known = names::check(&server.store, &suspension.owner, &accounts, now).await;
    let mut message = format::suspended(&suspension, rules) + &remarks([is_known], request.force)?;
    let exception = Some(Exception::of_suspension(&suspension, rules));
    let (former, kept) = server.store.suspend(suspension).await;
    if let Some(former) = &former {
        message += &format::replaced(former);
    }
    let replaced = former.as_deref().map(|former| Exception::of_suspension(former, rules));
    Ok(Json(ActAnswer { exception, replaced, ..ActAnswer::new(message, &kept) }))
}

/// Returns the memory that decides which recipients are strangers to a locked owner: its own memory, or else that of the
/// whole site. Returns an error if Weir has neither of them.
fn memory_of(policy: &Policy, owner: &Owner, is_strict: bool) -> Result<KnownTo, String> {
    if is_strict {
        return Err("a strict suspension refuses all mail: leave strict or strangers-only out".to_owned());
    }
    let field = owner.fields().flatten().next().map_or("user", |field| field.word());
    let wanted = [KnownTo::parse(field), Some(KnownTo::All)];
    let is_kept = |known_to: &KnownTo| policy.memories().iter().any(|memory| memory.known_to == *known_to);
    wanted.into_iter().flatten().find(is_kept).ok_or_else(|| {
        format!("Weir remembers no recipients of this {field}: no limit has known-to = \"{field}\" or \"all\"")
    })
}

/// Ends a suspension, also one that a limit began.
///
/// Resets the budgets of limits that would suspend the owner again at once.
#[utoipa::path(delete, path = "/v1/suspensions", params(ReleaseQuery),
    responses((status = 200, description = "Released", body = ActAnswer), Errors))]
pub async fn release(
    State(api): State<Api>,
    caller: Caller,
    Query(query): Query<ReleaseQuery>,
) -> Result<Json<ActAnswer>, ApiError> {
    let (server, now) = (api.server()?, clock::now());
    let policy = server.store.policy();
    let whom = Owner::of_sender(&query.owner, &policy.normalizer)?;
    // Compare the texts of the owners, too. Two owners can have the same text and still differ: the field `client` also
    // has a width for the other address family (IPv4 or IPv6), and the text does not contain this width.
    let same = || policy.exceptions.suspensions().map(|one| &one.owner).find(|one| one.to_string() == whom.to_string());
    let owner = policy.exceptions.suspension_of(&whom).map(|one| &one.owner).or_else(same).unwrap_or(&whom);
    let because = because(&caller, query.reason.as_deref())?;
    let Some((message, suspension, kept)) = release::release(&server.store, owner, because, now).await else {
        let why = format!("{whom} is not suspended: weir exceptions lists the suspensions");
        return Err(ApiError::refused(why));
    };
    let exception = Some(Exception::of_suspension(&suspension, &policy.suspensions));
    Ok(Json(ActAnswer { exception, ..ActAnswer::new(message, &kept) }))
}
