//! Open SMTP sessions.

use super::{Api, ApiError, Errors, Json, Query};
use crate::server::SessionEntry;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Maximum number of sessions in an answer.
const MAX_SESSIONS: usize = 1_000;

#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SessionsQuery {
    /// Id of the last session of the page before.
    #[serde(default)]
    pub after: Option<String>,
    /// Maximum number of sessions in the answer.
    #[serde(default = "default_count")]
    #[param(minimum = 1, maximum = 1_000, default = 100)]
    pub count: usize,
}

fn default_count() -> usize {
    100
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct SessionsAnswer {
    /// The sessions, the oldest first.
    pub sessions: Vec<SessionStatus>,
    /// Number of all open sessions.
    pub total: usize,
    /// Value of `after` for the next page, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct SessionStatus {
    /// Id, as in the log.
    pub session: String,
    pub listener: String,
    /// Address of the client.
    pub client: String,
    #[schema(format = DateTime)]
    pub since: String,
    /// User who has logged in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// Returns the open sessions, page by page.
#[utoipa::path(get, path = "/v1/sessions", params(SessionsQuery),
    responses((status = 200, description = "The sessions", body = SessionsAnswer), Errors))]
pub async fn sessions(
    State(api): State<Api>,
    Query(query): Query<SessionsQuery>,
) -> Result<Json<SessionsAnswer>, ApiError> {
    if !(1..=MAX_SESSIONS).contains(&query.count) {
        return Err(ApiError::refused(format!("count is {}: 1 to {MAX_SESSIONS}", query.count)));
    }
    let server = api.server()?;
    let (page, total) = server.sessions.page(query.after.as_deref().unwrap_or_default(), query.count + 1);
    let mut sessions: Vec<SessionStatus> = page.into_iter().map(SessionStatus::from).collect();
    let has_more = sessions.len() > query.count;
    sessions.truncate(query.count);
    let next = sessions.last().filter(|_| has_more).map(|last| last.session.clone());
    Ok(Json(SessionsAnswer { sessions, total, next }))
}

impl From<SessionEntry> for SessionStatus {
    fn from(SessionEntry { id, listener, client, since, user }: SessionEntry) -> Self {
        Self {
            session: id.to_string(),
            listener: listener.to_string(),
            client: client.to_string(),
            since: since.rfc3339_exact(),
            user: user.map(|user| user.to_string()),
        }
    }
}
