//! Stored refusals: what was refused, what the limits measured then, what they would say now, and what would let the
//! event pass.

mod now;
mod remedy;
mod text;

pub use now::{LimitNow, Now};
use remedy::KnownOwners;
pub use remedy::{Remedy, RemedyKind};

use super::{Api, ApiError, ErrorCode, Errors, Json, Path, Query};
use crate::clock;
use crate::decisions::DecisionRecord;
use crate::policy::{ClientFilter, UserFilter};
use crate::reference::{MalformedReference, Reference};
use crate::store::{FoundRefusal, MissingRefusal, RefusalFilter, RefusalRow, Store};
use crate::time::{Timestamp, format_duration, parse_time};
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Explanation of a refusal.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct RefusalAnswer {
    /// The decision; that of the first refusal, if refusals are coalesced.
    pub decision: DecisionRecord,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coalesced: Option<Coalesced>,
    /// Number of other stored records that have the same reference. Any of them can be that of the asked refusal.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub others: usize,
    /// What Weir would decide about the same event now.
    pub now: Now,
    /// Sentences about limits that have changed since.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
    /// What would let the event pass. Weir has asked its limits whether each of them does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remedies: Vec<Remedy>,
    /// The explanation for people: lines of at most 80 columns.
    pub message: String,
}

/// Refusals of a flood, of which one record is stored.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Coalesced {
    #[schema(value_type = String, format = DateTime)]
    pub first: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub last: Timestamp,
    /// Number of refusals.
    pub times: u64,
    /// True if refusals of several users or clients are coalesced.
    pub several_owners: bool,
}

/// Page of stored refusals.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct RefusalsAnswer {
    /// The newest refusal first.
    pub refusals: Vec<StoredRefusal>,
    /// Value of `before` for the next page; left out on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<i64>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct StoredRefusal {
    /// ID of the record. A later record has a higher ID.
    pub id: i64,
    pub decision: DecisionRecord,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coalesced: Option<Coalesced>,
}

#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RefusalsQuery {
    /// User, in each spelling that limits count as the same user.
    #[serde(default)]
    pub user: Option<String>,
    /// Address or network of the client.
    #[serde(default)]
    pub client: Option<String>,
    /// Name of the limit.
    #[serde(default)]
    pub limit: Option<String>,
    /// True: lists what limits in shadow or soft mode would have refused, instead of the refusals.
    #[serde(default)]
    pub shadow: bool,
    /// Time, such as `2026-03-01T10:00Z`.
    #[serde(default)]
    pub since: Option<String>,
    /// Value of `next` of the page before.
    #[serde(default)]
    pub before: Option<i64>,
    /// Maximum number of refusals: 1 to 1000.
    #[serde(default)]
    #[param(minimum = 1, maximum = 1000)]
    pub count: Option<usize>,
}

/// Number of refusals on a page, unless the query has another number.
const PAGE: usize = 100;
/// Maximum refusals on a page.
const MAX_PAGE: usize = 1_000;

/// Explains a refusal, by the reference in its reply.
#[utoipa::path(get, path = "/v1/refusals/{reference}",
    params(("reference" = String, Path, description = "The reference, such as mp3x9abc-k3f7q2-1x7k")),
    responses((status = 200, description = "The explanation", body = RefusalAnswer), Errors))]
pub async fn refusal(State(api): State<Api>, Path(reference): Path<String>) -> Result<Json<RefusalAnswer>, ApiError> {
    let server = api.server()?;
    let (store, now) = (&server.store, clock::now());
    let reference: Reference = reference.parse().map_err(|error| malformed(&reference, error))?;
    let found = store.refusal(reference).await;
    let FoundRefusal { row, others } = found.map_err(|missing| unknown(store, &reference, now, missing))?;
    let decision = decision(&row)?;
    let request = decision.policy_request();
    let asked = now::ask(store, &request, now).await.map_err(ApiError::unavailable)?;
    let coalesced = coalesced(&row);
    let known = KnownOwners::of(&decision, coalesced.as_ref(), others);
    let remedies = remedy::find(store, &asked, &decision, known).await.map_err(ApiError::unavailable)?;
    let changes = now::changes(&decision, &asked);
    let now = asked.summary(api.sessions(), api.configuration());
    let mut answer = RefusalAnswer { decision, coalesced, others, now, changes, remedies, message: String::new() };
    answer.message = text::explanation(&answer, &reference.to_string());
    Ok(Json(answer))
}

/// Lists stored refusals.
#[utoipa::path(get, path = "/v1/refusals", params(RefusalsQuery),
    responses((status = 200, description = "A page of refusals", body = RefusalsAnswer), Errors))]
pub async fn refusals(
    State(api): State<Api>,
    Query(query): Query<RefusalsQuery>,
) -> Result<Json<RefusalsAnswer>, ApiError> {
    let server = api.server()?;
    let count = query.count.unwrap_or(PAGE);
    if !(1..=MAX_PAGE).contains(&count) {
        return Err(ApiError::refused(format!("\"count\" must be from 1 to {MAX_PAGE}")));
    }
    let RefusalsQuery { user, client, limit, shadow: is_shadow, since, before, .. } = query;
    let since = since.map(|since| parse_time(&since)).transpose().map_err(|error| error.to_string())?;
    let user = user.map(|user| UserFilter::new(&user, &server.store.policy().normalizer));
    let client = client.as_deref().map(str::parse::<ClientFilter>).transpose()?;
    let filter = RefusalFilter { user, client, limit, is_shadow, since, before };
    let found = server.store.refusals(filter, count).await;
    let found = found.map_err(|why| ApiError::unavailable(format!("the refusals cannot be read: {why}")))?;
    let next = found.last().filter(|_| found.len() == count).map(|row| row.id);
    Ok(Json(RefusalsAnswer { refusals: found.iter().filter_map(stored).collect(), next }))
}

/// Returns at most `count` stored refusals that a filter selects, the newest first. Returns an error with the reason if
/// the state file cannot be read.
pub async fn latest(store: &Store, filter: RefusalFilter, count: usize) -> Result<Vec<StoredRefusal>, String> {
    Ok(store.refusals(filter, count).await?.iter().filter_map(stored).collect())
}

/// Returns a stored refusal; `None` if it is of another version of Weir, and cannot be parsed.
fn stored(row: &RefusalRow) -> Option<StoredRefusal> {
    Some(StoredRefusal { id: row.id, decision: decision(row).ok()?, coalesced: coalesced(row) })
}

fn decision(row: &RefusalRow) -> Result<DecisionRecord, ApiError> {
    let parsed = serde_json::from_str(&row.refusal.body);
    parsed.map_err(|error| ApiError::unavailable(format!("the stored refusal is of another version of Weir: {error}")))
}

fn coalesced(row: &RefusalRow) -> Option<Coalesced> {
    let time = |millis: u64| Timestamp::from_micros(i64::try_from(millis).unwrap_or(0).saturating_mul(1_000));
    row.number.is_none().then(|| Coalesced {
        first: time(row.millis),
        last: time(row.last),
        times: row.times,
        several_owners: row.tag.is_none(),
    })
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

fn malformed(text: &str, error: MalformedReference) -> ApiError {
    ApiError::new(ErrorCode::NotFound, format!("\"{}\" is no reference of a refusal: {error}", text.escape_debug()))
}

/// Returns the error that says why a reference has no record.
fn unknown(store: &Store, reference: &Reference, now: Timestamp, missing: MissingRefusal) -> ApiError {
    let keep = store.refusal_options().keep;
    let at = reference.time().rfc3339();
    let why = match missing {
        MissingRefusal::Unreadable(why) => {
            return ApiError::unavailable(format!("the refusals cannot be read: {why}"));
        }
        MissingRefusal::NotKept => "no refusals are kept: keep-refusals is \"0s\" in [state]".to_owned(),
        MissingRefusal::Unknown { .. } if reference.time() > now => {
            format!("{reference} is of {at}, which is in the future: is it copied right?")
        }
        MissingRefusal::Unknown { .. } if now.since(reference.time()) >= keep => {
            format!("{reference} is of {at}, and refusals are kept for {}", format_duration(keep))
        }
        MissingRefusal::Unknown { records: 0, .. } => {
            format!("{reference} is of {at}, and no refusal is stored yet")
        }
        MissingRefusal::Unknown { oldest: Some(oldest), .. } if reference.time() < oldest => {
            format!("{reference} is of {at}, and the oldest refusal that is kept is of {}", oldest.rfc3339())
        }
        MissingRefusal::Unknown { .. } => {
            format!("no refusal with the reference {reference} is stored, of {at}: is it copied right, from this Weir?")
        }
    };
    ApiError::not_found(why)
}
