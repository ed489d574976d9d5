//! Evidence of a limit: which senders it has refused, or would have refused if its mode were `enforce`.

use super::{Api, ApiError, Errors, Json, Path, Query};
use crate::clock;
use crate::policy::limit::Mode;
use crate::store::OwnerEvidence;
use crate::time::{Timestamp, parse_time};
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EvidenceQuery {
    /// Time, such as `2026-03-01T10:00Z`; a week ago if it is left out.
    #[serde(default)]
    pub since: Option<String>,
    /// Maximum number of senders: 1 to 1000; 100 if it is left out.
    #[serde(default)]
    #[param(minimum = 1, maximum = 1000)]
    pub count: Option<usize>,
}

/// Refusals of a limit, and those that would have been, by their senders.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct EvidenceAnswer {
    pub limit: String,
    /// Mode of the limit now.
    pub mode: Mode,
    #[schema(value_type = String, format = DateTime)]
    pub since: Timestamp,
    /// Time of the oldest record that is kept, of any limit. If it is after `since`, earlier refusals are not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub oldest_record: Option<Timestamp>,
    /// Number of events that the limit has refused, alone or before other limits.
    pub refused: u64,
    /// Number of events that the limit would have refused, while its mode was `shadow` or `soft`.
    pub would_refuse: u64,
    /// Senders, the one with most refusals first.
    pub senders: Vec<SenderEvidence>,
    /// Number of senders that `senders` leaves out.
    pub more_senders: usize,
    /// Refusals in a flood, whose senders are not known; left out if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_senders: Option<EvidenceCounts>,
}

/// Refusals of one sender.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct SenderEvidence {
    /// User, or network of a client without a login: `user=alice`, `client=192.0.2.0/24`.
    pub sender: String,
    #[serde(flatten)]
    pub counts: EvidenceCounts,
}

/// Numbers of refusals, and an example.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct EvidenceCounts {
    pub refused: u64,
    pub would_refuse: u64,
    #[schema(value_type = String, format = DateTime)]
    pub first: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub last: Timestamp,
    /// ID of the latest record, as an example. `/v1/refusals` with `count=1`, and `before` of this ID and 1, lists it; with
    /// `shadow=true` if nothing was refused.
    pub record: i64,
    /// Reference of the latest refusal that has a record of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
}

/// Time of the evidence in microseconds, unless the query has another one.
const WEEK_MICROS: i64 = 7 * 86_400 * 1_000_000;

/// Number of senders, unless the query has another one.
const SENDERS: usize = 100;
/// Maximum number of senders.
const MAX_SENDERS: usize = 1_000;

/// Counts what a limit has refused, or would have refused if its mode were `enforce`.
#[utoipa::path(get, path = "/v1/limits/{name}/evidence",
    params(("name" = String, Path, description = "Name of the limit"), EvidenceQuery),
    responses((status = 200, description = "The evidence", body = EvidenceAnswer), Errors))]
pub async fn evidence(
    State(api): State<Api>,
    Path(name): Path<String>,
    Query(EvidenceQuery { since, count }): Query<EvidenceQuery>,
) -> Result<Json<EvidenceAnswer>, ApiError> {
    let store = &api.server()?.store;
    let count = count.unwrap_or(SENDERS);
    if !(1..=MAX_SENDERS).contains(&count) {
        return Err(ApiError::refused(format!("\"count\" must be from 1 to {MAX_SENDERS}")));
    }
    let since = since.map(|since| parse_time(&since)).transpose().map_err(|error| error.to_string())?;
    let since = since.unwrap_or_else(|| Timestamp::from_micros(clock::now().micros() - WEEK_MICROS));
    let policy = store.policy();
    let limit = policy.limits.iter().find(|limit| *limit.name == *name);
    let limit = limit.ok_or_else(|| ApiError::not_found(format!("there is no limit {}", name.escape_debug())))?;
    if !store.keeps_refusals() {
        return Err(ApiError::unavailable("no refusals are kept: keep-refusals is \"0s\" in [state]".to_owned()));
    }
    let found = store.evidence(&name, since, count).await;
    let (found, oldest_record) =
        found.map_err(|why| ApiError::unavailable(format!("the refusals cannot be read: {why}")))?;
    let senders = found.owners.iter();
    let senders = senders.map(|owner| SenderEvidence { sender: owner.owner.clone(), counts: owner.into() }).collect();
    Ok(Json(EvidenceAnswer {
        limit: name,
        mode: limit.mode,
        since,
        oldest_record,
        refused: found.refused,
        would_refuse: found.would_refuse,
        senders,
        more_senders: found.more_owners,
        other_senders: (found.others.record > 0).then(|| (&found.others).into()),
    }))
}

impl From<&OwnerEvidence> for EvidenceCounts {
    fn from(owner: &OwnerEvidence) -> Self {
        let OwnerEvidence { refused, would_refuse, first, last, record, reference, .. } = owner;
        let time = |millis: u64| Timestamp::from_micros(i64::try_from(millis).unwrap_or(0).saturating_mul(1_000));
        let reference = reference.map(|reference| reference.to_string());
        let (first, last) = (time(*first), time(*last));
        Self { refused: *refused, would_refuse: *would_refuse, first, last, record: *record, reference }
    }
}
