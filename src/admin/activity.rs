//! Activity of all senders, minute by minute.

use super::{Api, ApiError, Errors, Json, Query};
use crate::clock;
use crate::top::MINUTES;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ActivityQuery {
    /// Number of minutes.
    #[serde(default = "all_minutes")]
    #[param(minimum = 1, maximum = 60, default = 60)]
    pub minutes: u32,
}

fn all_minutes() -> u32 {
    MINUTES as u32
}

/// Sums over all senders for each of the last minutes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ActivityAnswer {
    #[schema(format = DateTime)]
    pub time: String,
    /// The minutes, the oldest first. The last one is the present minute, which is not complete.
    pub minutes: Vec<MinuteRow>,
}

/// Sums over all senders for one minute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct MinuteRow {
    /// Begin of the minute.
    #[schema(format = DateTime)]
    pub time: String,
    /// Messages that the upstream accepted.
    pub messages: u64,
    /// Recipients of these messages.
    pub recipients: u64,
    /// Commands and messages that were refused.
    pub refusals: u64,
    /// Replies that limits delayed.
    pub delays: u64,
}

/// Returns messages, recipients, refusals and delays of each of the last minutes.
#[utoipa::path(get, path = "/v1/activity", params(ActivityQuery),
    responses((status = 200, description = "The minutes", body = ActivityAnswer), Errors))]
pub async fn activity(
    State(api): State<Api>,
    Query(ActivityQuery { minutes }): Query<ActivityQuery>,
) -> Result<Json<ActivityAnswer>, ApiError> {
    if !(1..=MINUTES as u32).contains(&minutes) {
        return Err(ApiError::refused(format!("minutes must be 1 to {MINUTES}, and not {minutes}")));
    }
    let (server, now) = (api.server()?, clock::now());
    let minutes = server.top.minutes(now, minutes as usize).into_iter().map(|(begin, sums)| MinuteRow {
        time: begin.rfc3339(),
        messages: sums.messages,
        recipients: sums.recipients,
        refusals: sums.refusals,
        delays: sums.delays,
    });
    Ok(Json(ActivityAnswer { time: now.rfc3339(), minutes: minutes.collect() }))
}
