//! Exceptions (grants and suspensions) and resets: the requests of administrators, and the list of the exceptions in
//! force.

mod applicability;
mod format;
pub mod grants;
mod names;
mod release;
mod request;
pub mod resets;
pub mod suspensions;

pub use applicability::{Applicability, applicability};
pub use format::{kept, trail};
pub use names::Account;
pub use release::end_on_new_password;
pub use request::{checked_reason, checked_term, parse_term};

use super::{Api, ApiError, Caller, Errors, Json};
use crate::clock;
use crate::policy::budgets::Owner;
use crate::policy::exception::{By, Grant, Suspension, SuspensionRules, Term};
use crate::store::Kept;
use crate::time::Timestamp;
use axum::extract::State;
use names::Checked;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use utoipa::ToSchema;

/// Fields of an owner with their values, such as `{"user": "alice"}`. Empty for the one budget of all.
pub type OwnerFields = BTreeMap<String, String>;

/// Grant or suspension, in the form of `weir state dump`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Exception {
    pub exception: ExceptionKind,
    /// Limit of a grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    pub owner: OwnerFields,
    /// Rate of a grant, as in the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    #[schema(format = DateTime)]
    pub since: String,
    /// End; `9999-12-31T23:59:59Z` if only a release or a new password ends it.
    #[schema(format = DateTime)]
    pub until: String,
    /// The administrator, `token:NAME`, or `limit NAME`.
    pub by: String,
    pub reason: String,
    /// For a suspension: true if it refuses mail to all recipients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
    /// For a lock: the memory, as in `known-to`, whose recipients the owner may still write to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known_to: Option<String>,
    /// Recipients to which a suspended owner may write under the present configuration: patterns as in
    /// `allow-recipients` of `[suspensions]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_recipients: Vec<String>,
    /// True if a new password of the suspended user ends the suspension.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ends_on_new_password: bool,
    /// Reason why a grant has no effect under the present configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_effect: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ExceptionKind {
    Grant,
    Suspension,
}

/// The exceptions in force.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ExceptionsAnswer {
    /// Grants, then suspensions, each sorted by their end, the earliest end first.
    pub exceptions: Vec<Exception>,
    /// The exceptions for people. Several lines.
    pub message: String,
}

/// Result of an act.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ActAnswer {
    /// What was done, for people. Several lines.
    pub message: String,
    /// The exception that begins or ends; none for a reset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exception: Option<Exception>,
    /// The exception that the new one replaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced: Option<Exception>,
    /// Levels of the budgets before a reset, such as `10 of 10 recipients per 1d`.
    #[serde(default)]
    pub was: Vec<String>,
    /// False if the change holds, but is not in the state file yet.
    pub is_in_state_file: bool,
}

impl ActAnswer {
    fn new(message: String, kept: &Kept) -> Self {
        let message = message + &format::kept(kept);
        Self { message, exception: None, replaced: None, was: Vec::new(), is_in_state_file: *kept == Kept::InFile }
    }
}

impl Exception {
    /// Returns whether only a command, or a new password, ends the exception.
    pub fn is_until_released(&self) -> bool {
        self.until == Timestamp::END_OF_9999.rfc3339_exact()
    }

    fn of_term(exception: ExceptionKind, owner: &Owner, term: &Term) -> Self {
        Self {
            exception,
            limit: None,
            owner: owner_fields(owner),
            rate: None,
            since: term.since.rfc3339_exact(),
            until: term.until.rfc3339_exact(),
            by: term.by.to_string(),
            reason: term.reason.to_string(),
            strict: None,
            known_to: None,
            allowed_recipients: Vec::new(),
            ends_on_new_password: false,
            without_effect: None,
        }
    }
}

impl From<&Grant> for Exception {
    fn from(Grant { limit, owner, rate, term }: &Grant) -> Self {
        let (limit, rate) = (Some(limit.to_string()), Some(rate.to_string()));
        Self { limit, rate, ..Self::of_term(ExceptionKind::Grant, owner, term) }
    }
}

impl Exception {
    /// Describes a suspension under these rules.
    pub fn of_suspension(suspension: &Suspension, rules: &SuspensionRules) -> Self {
        let Suspension { owner, term, is_strict, .. } = suspension;
        Self {
            strict: Some(*is_strict),
            known_to: suspension.known_to.map(|known_to| known_to.name().to_owned()),
            allowed_recipients: allowed_recipients(suspension, rules).map(str::to_owned).collect(),
            ends_on_new_password: rules.ends_on_new_password && suspension.ends_on_new_password(),
            ..Self::of_term(ExceptionKind::Suspension, owner, term)
        }
    }
}

/// Returns the recipients to which a suspended owner may write: patterns as in the configuration.
fn allowed_recipients<'a>(suspension: &Suspension, rules: &'a SuspensionRules) -> impl Iterator<Item = &'a str> {
    rules.allowed.patterns().take(if suspension.is_strict { 0 } else { usize::MAX })
}

/// Returns the fields of an owner.
pub fn owner_fields(owner: &Owner) -> OwnerFields {
    owner.parts().map(|(field, value)| (field.to_owned(), value.to_owned())).collect()
}

/// Returns the author and the reason of an act. The reason is empty if none is given.
fn because(caller: &Caller, reason: Option<&str>) -> Result<(By, Arc<str>), String> {
    Ok((caller.by(), checked_reason(reason.unwrap_or_default(), false)?))
}

/// Returns the term of an exception. The term begins at `now` and lasts for `seconds`.
fn term(caller: &Caller, seconds: f64, reason: &str, now: Timestamp) -> Result<Term, String> {
    let until = now.after(request::checked_term(seconds)?);
    Ok(Term { since: now, until, by: caller.by(), reason: checked_reason(reason, true)? })
}

/// Returns the remarks of the checks, for the answer. If a check has a doubt and the request has no `force`, returns an
/// error with the doubts.
fn remarks<const N: usize>(checks: [Checked; N], is_forced: bool) -> Result<String, ApiError> {
    let (mut remarks, mut doubts) = (String::new(), Vec::new());
    for check in checks {
        match check {
            Checked::Fine(remark) => remarks += &remark,
            Checked::Doubtful(warning) if is_forced => remarks += &format!("warning: {warning}\n"),
            Checked::Doubtful(warning) => doubts.push(warning),
        }
    }
    match doubts.is_empty() {
        true => Ok(remarks),
        false => Err(ApiError::doubtful(doubts)),
    }
}

/// Returns the grants and suspensions in force.
#[utoipa::path(get, path = "/v1/exceptions",
    responses((status = 200, description = "The exceptions", body = ExceptionsAnswer), Errors))]
pub async fn list(State(api): State<Api>) -> Result<Json<ExceptionsAnswer>, ApiError> {
    let (policy, now) = (api.server()?.store.policy(), clock::now());
    let mut grants: Vec<_> = policy.exceptions.grants().filter(|grant| grant.term.holds(now)).collect();
    let mut suspensions: Vec<_> = policy.exceptions.suspensions().filter(|one| one.term.holds(now)).collect();
    grants.sort_by_key(|grant| grant.term.until);
    suspensions.sort_by_key(|suspension| suspension.term.until);
    let message = format::in_force(&policy, &grants, &suspensions, now);
    let of_grant = |grant: &&Arc<Grant>| {
        let without_effect = policy.why_inert(grant).map(str::to_owned);
        Exception { without_effect, ..Exception::from(&***grant) }
    };
    let of_suspension = |suspension: &&Arc<Suspension>| Exception::of_suspension(suspension, &policy.suspensions);
    let exceptions = grants.iter().map(of_grant).chain(suspensions.iter().map(of_suspension)).collect();
    Ok(Json(ExceptionsAnswer { exceptions, message }))
}
