//! Levels of a sender's budgets in the past.

use super::budget_row::{rate_text, unit};
use super::exceptions::{OwnerFields, owner_fields};
use super::owner_keys::Wanted;
use super::{Api, ApiError, Errors, Json, Query};
use crate::clock;
use crate::policy::Policy;
use crate::policy::budgets::Owner;
use crate::policy::limit::Limit;
use crate::time::Timestamp;
use crate::top::{LevelSeries, Span};
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct HistoryQuery {
    /// User or client: `alice`, `user=alice`, `client=192.0.2.7`.
    #[param(max_length = 1024)]
    pub owner: String,
    /// Time before now.
    #[serde(default)]
    #[param(inline)]
    pub span: HistorySpan,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HistorySpan {
    /// The last hour, with a point every 10 s.
    #[default]
    Hour,
    /// The last day, with a point every 300 s.
    Day,
}

/// Levels of a sender's budgets in the past.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct HistoryAnswer {
    #[schema(format = DateTime)]
    pub time: String,
    /// The owner, in normal form.
    pub owner: OwnerFields,
    pub span: HistorySpan,
    /// Seconds between two points.
    pub interval_seconds: u32,
    /// One row for each rate of each limit. None if the owner was not among the top senders in that time, or if Weir
    /// has just started.
    pub limits: Vec<LevelRow>,
}

/// Levels of one budget, as columns of the same length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LevelRow {
    pub limit: String,
    /// Quota of the limit, without overrides and grants.
    pub rate: String,
    /// Unit of the levels, in the plural.
    pub unit: String,
    pub mode: String,
    /// Begin of each interval, in seconds since 1970. The oldest is the first.
    pub times: Vec<i64>,
    /// Highest level in the interval; null: not known from here to the next time, because the owner was no top sender.
    pub levels: Vec<Option<f64>>,
    /// Number with which the level is compared; null if the quota is unlimited, or if the level is not known.
    pub allowed: Vec<Option<f64>>,
}

/// Returns the levels of a user's or client's budgets in the last hour or day.
///
/// Weir notes the levels of the present 200 top senders in memory: those of the limits whose `per` is the user or the
/// client alone.
#[utoipa::path(get, path = "/v1/history", params(HistoryQuery),
    responses((status = 200, description = "The levels", body = HistoryAnswer), Errors))]
pub async fn history(
    State(api): State<Api>,
    Query(HistoryQuery { owner, span }): Query<HistoryQuery>,
) -> Result<Json<HistoryAnswer>, ApiError> {
    let (server, now) = (api.server()?, clock::now());
    let policy = server.store.policy();
    let owner = Owner::of_sender(&owner, &policy.normalizer)?;
    let wanted = Wanted::new(&owner).ok_or_else(|| ApiError::refused("nobody is named"))?;
    let in_memory = match span {
        HistorySpan::Hour => Span::Hour,
        HistorySpan::Day => Span::Day,
    };
    let series = api.levels().of(&wanted.text(), in_memory, now);
    let mut limits: Vec<LevelRow> =
        series.iter().filter_map(|series| Some(row(limit_of(&policy, series)?, series, in_memory))).collect();
    limits.sort_by(|one, other| one.limit.cmp(&other.limit).then_with(|| one.rate.cmp(&other.rate)));
    Ok(Json(HistoryAnswer {
        time: now.rfc3339(),
        owner: owner_fields(&owner),
        span,
        interval_seconds: in_memory.interval(),
        limits,
    }))
}

/// Returns the limit of a series; `None` if a reload has removed it.
fn limit_of<'a>(policy: &'a Policy, series: &LevelSeries) -> Option<&'a Limit> {
    policy.limits.iter().find(|limit| limit.name == series.limit && limit.ordinal == series.ordinal)
}

fn row(limit: &Limit, series: &LevelSeries, span: Span) -> LevelRow {
    let (mut times, mut levels, mut allowed) = (Vec::new(), Vec::new(), Vec::new());
    let (interval, mut next) = (i64::from(span.interval()), None);
    for (time, level, most) in &series.points {
        let time = Timestamp::whole_seconds(*time);
        if let Some(next) = next.filter(|next| *next < time) {
            times.push(next);
            levels.push(None);
            allowed.push(None);
        }
        next = Some(time + interval);
        times.push(time);
        levels.push(Some(*level));
        allowed.push(Some(*most).filter(|most| most.is_finite()));
    }
    let (rate, unit, mode) = (rate_text(&limit.quota), unit(limit, &limit.quota), limit.mode.name().to_owned());
    LevelRow { limit: limit.name.to_string(), rate, unit, mode, times, levels, allowed }
}
