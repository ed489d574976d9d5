//! What if: how much mail of the decision log a limit would have refused.

use super::{Api, ApiError, Errors, Json, TriedLimit};
use crate::time::parse_time;
use crate::what_if::{self, Report, Trial};
use axum::extract::State;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use utoipa::ToSchema;

/// Maximum number of replays at once. A replay occupies a processor for seconds, which mail needs, too.
pub const MAX_REPLAYS: usize = 1;

/// Maximum time that a replay waits for other replays.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Maximum octets of the text of a limit.
const MAX_LIMIT: usize = 64 << 10;

/// A limit to try.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct WhatIfRequest {
    /// One `[[limit]]` table, as in `weir.toml`. It replaces a limit of the same name, and is tried as if it were
    /// enforced.
    #[schema(
        max_length = 65536,
        examples("[[limit]]\nname = \"tried\"\ncount = \"recipients\"\nper = [\"user\"]\nrate = \"100 / 1h\"\n")
    )]
    pub limit: String,
    /// Time, such as `2026-03-01T10:00Z`: earlier mail fills the budgets, but is not counted. If it is left out, all
    /// mail is counted.
    #[serde(default)]
    pub since: Option<String>,
}

/// Mail that the limit would have refused.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct WhatIfAnswer {
    /// The result in sentences, for people.
    pub message: String,
    /// Warnings about the limit, as `weir check` gives them.
    pub warnings: Vec<String>,
    #[serde(flatten)]
    pub report: Report,
}

/// Tries a limit against the decision log.
///
/// The answer tells how much accepted mail of the log this limit alone would have refused. It needs a decision log of all
/// decisions, in a file: Weir reads its newest 64 MiB, for 10 s at most. Nothing is charged or changed. Over TCP this
/// needs a token that may act, because it costs much.
#[utoipa::path(post, path = "/v1/what-if", request_body = WhatIfRequest,
    responses((status = 200, description = "The result", body = WhatIfAnswer), Errors))]
pub async fn what_if(
    State(api): State<Api>,
    Json(WhatIfRequest { limit, since }): Json<WhatIfRequest>,
) -> Result<Json<WhatIfAnswer>, ApiError> {
    if limit.len() > MAX_LIMIT {
        return Err(ApiError::refused(format!(
            "\"limit\" is longer than {MAX_LIMIT} octets: write one [[limit]] table"
        )));
    }
    let since = since.map(|since| parse_time(&since)).transpose().map_err(|error| format!("\"since\": {error}"))?;
    // The replay must not keep the services of the running Weir, which can stop meanwhile.
    let log = api.server()?.decision_log.as_ref().map(|log| log.options().clone());
    let path = what_if::history(log.as_ref())?.to_owned();
    let permit = permit(&api).await?;
    let replay = move || {
        // The permit belongs to the replay: the client can leave before the end of the replay.
        let _permit = permit;
        let TriedLimit { name, policy, warnings } = api.try_limit(&limit)?;
        let report = what_if::run(&Trial { name, policy, since }, &path)?;
        Ok::<_, String>(WhatIfAnswer { message: report.sentence(), warnings, report })
    };
    let replayed = tokio::task::spawn_blocking(replay).await;
    // The panic itself is in the log.
    let answer = replayed.map_err(|_| ApiError::unavailable("a fault of Weir's own: the log says more"))?;
    Ok(Json(answer?))
}

/// Waits until few enough other replays run.
async fn permit(api: &Api) -> Result<OwnedSemaphorePermit, ApiError> {
    let permit = tokio::time::timeout(MAX_WAIT, api.replay_permit()).await;
    permit.unwrap_or_else(|_| Err(ApiError::unavailable("another limit is being tried: try again later")))
}
