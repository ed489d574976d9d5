//! Audit trail: every act, with its author, time and reason.

use super::exceptions::OwnerFields;
use super::{Api, ApiError, Errors, Json, Query, exceptions};
use crate::store::audit::AuditRecord;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Maximum number of records in an answer.
pub const MAX_RECORDS: u64 = 1_000;

#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AuditQuery {
    /// Number of records, the newest ones: 0 to 1000.
    #[serde(default = "default_last")]
    #[param(minimum = 0, maximum = 1000, default = 100)]
    pub last: u64,
    /// Value of `next` of the page before, which has newer records.
    #[serde(default)]
    pub before: Option<i64>,
}

fn default_last() -> u64 {
    100
}

/// Page of the audit trail.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct AuditAnswer {
    /// The records, the newest at the end, in the form of `weir state dump`.
    pub records: Vec<AuditLine>,
    /// The records for people. Several lines.
    pub message: String,
    /// Value of `before` for the page with older records; left out if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<i64>,
}

/// Record of an act, in the form of `weir state dump`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct AuditLine {
    /// The act: `granted`, `revoked`, `suspended`, `released`, `reset`, `reloaded`, or `ended` for an exception that
    /// has expired. In the register of direct ways: `registered`, `unregistered`, `quarantined`, `unquarantined`, or
    /// `ended`.
    pub audit: String,
    #[schema(format = DateTime)]
    pub at: String,
    /// Limit of a grant or reset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    pub owner: OwnerFields,
    /// Rate of a grant. Or what an entry of the register of direct ways does, and for whom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    /// End of the exception or, if it was ended early, its planned end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub until: Option<String>,
    /// Levels of the owner's budgets before a reset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<String>,
    /// The administrator, `token:NAME`, or `limit NAME`.
    pub by: String,
    pub reason: String,
}

impl From<&AuditRecord> for AuditLine {
    fn from(record: &AuditRecord) -> Self {
        let AuditRecord { at, act, limit, owner, rate, until, was, by, reason } = record;
        let text = |text: &Option<std::sync::Arc<str>>| text.as_deref().map(str::to_owned);
        Self {
            audit: act.name().to_owned(),
            at: at.rfc3339_exact(),
            limit: text(limit),
            owner: exceptions::owner_fields(owner),
            rate: text(rate),
            until: until.map(|until| until.rfc3339_exact()),
            was: text(was),
            by: by.to_string(),
            reason: reason.to_string(),
        }
    }
}

/// Returns the newest records of the audit trail, or the records before those of another page.
#[utoipa::path(get, path = "/v1/audit", params(AuditQuery),
    responses((status = 200, description = "The records", body = AuditAnswer), Errors))]
pub async fn audit(State(api): State<Api>, Query(query): Query<AuditQuery>) -> Result<Json<AuditAnswer>, ApiError> {
    if query.last > MAX_RECORDS {
        return Err(ApiError::refused(format!("last is {}: {MAX_RECORDS} at most", query.last)));
    }
    let last = usize::try_from(query.last).unwrap_or(usize::MAX);
    // One more record than asked tells whether there are older ones.
    let trail = api.server()?.store.trail(query.before, last + 1).await.map_err(ApiError::unavailable)?;
    let (older, trail) = trail.split_at(trail.len().saturating_sub(last));
    // If all records of the page are not in the state file yet, the next page has the newest ones of the file.
    let next = (!older.is_empty()).then(|| trail.iter().find_map(|(id, _)| *id).unwrap_or(i64::MAX));
    let records: Vec<&AuditRecord> = trail.iter().map(|(_, record)| record).collect();
    let message = exceptions::trail(&records);
    Ok(Json(AuditAnswer { records: records.into_iter().map(AuditLine::from).collect(), message, next }))
}
