//! Lessons for memories: recipients of the past, which the memories of `known-to` learn.

use super::{Api, ApiError, Caller, Errors, Json};
use crate::clock;
use crate::policy::{LearntSums, Lessons, PastRecipient, Policy};
use crate::time::parse_time;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use utoipa::ToSchema;

/// Maximum number of recipients in one request.
pub const MAX_RECIPIENTS: usize = 5_000;

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LearnRequest {
    #[schema(max_items = 5000)]
    pub recipients: Vec<TaughtRecipient>,
}

/// Recipient to whom mail of these owners was delivered, or who wrote to the user. A memory whose owner is missing does
/// not learn the recipient.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TaughtRecipient {
    #[schema(max_length = 1024)]
    pub recipient: String,
    /// Time of the last mail; now if it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub time: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 1024)]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 45)]
    pub client: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 1024)]
    pub sender: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LearnAnswer {
    /// Memories that have learnt.
    pub memories: Vec<LearntMemory>,
    /// Number of recipients that were last seen before the time to remember.
    pub too_old: u64,
    /// Number of recipients whose owners are unknown to all memories.
    pub without_owner: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LearntMemory {
    /// Value of `known-to`.
    pub known_to: String,
    /// Number of recipients that the memory did not know before.
    pub new: usize,
    /// Owners of these recipients; empty text for the memory of the whole site.
    pub owners: Vec<String>,
}

/// Makes the memories of all limits with `known-to` learn recipients.
#[utoipa::path(post, path = "/v1/memories/recipients", request_body = LearnRequest,
    responses((status = 200, description = "Learnt", body = LearnAnswer), Errors))]
pub async fn learn(
    State(api): State<Api>,
    caller: Caller,
    Json(request): Json<LearnRequest>,
) -> Result<Json<LearnAnswer>, ApiError> {
    let (server, now) = (api.server()?, clock::now());
    let policy = server.store.policy();
    let lessons = lessons(&policy, &request)?;
    let learnt = server.store.teach(now, &lessons).await;
    let learnt = learnt.map_err(|_| ApiError::unavailable("the state cannot be written at the moment"))?;
    let answer = LearnAnswer::new(&lessons, &learnt.into_iter().collect());
    let new: usize = answer.memories.iter().map(|memory| memory.new).sum();
    tracing::info!(by = %caller.by(), recipients = request.recipients.len(), new, "memories learnt recipients");
    Ok(Json(answer))
}

/// Returns the lessons of a request.
fn lessons(policy: &Policy, request: &LearnRequest) -> Result<Lessons, ApiError> {
    if !policy.has_memories() {
        return Err(ApiError::refused("no limit has known-to, so there is no memory that could learn"));
    }
    if request.recipients.len() > MAX_RECIPIENTS {
        return Err(ApiError::refused(format!("more than {MAX_RECIPIENTS} recipients: send several requests")));
    }
    let now = clock::now();
    let past: Result<Vec<PastRecipient>, String> = request.recipients.iter().map(|one| one.past(now)).collect();
    Ok(Lessons::new(policy, past.map_err(ApiError::refused)?.iter(), now))
}

impl TaughtRecipient {
    fn past(&self, now: crate::time::Timestamp) -> Result<PastRecipient, String> {
        let Self { recipient, time, user, client, sender } = self;
        let names = [Some(recipient), user.as_ref(), sender.as_ref()];
        if names.into_iter().flatten().any(|name| name.is_empty() || name.contains(char::is_control)) {
            return Err("a name is empty or has control characters".to_owned());
        }
        let at = time.as_deref().map_or(Ok(now), parse_time).map_err(|error| error.to_string())?;
        let client = client.as_deref().map(str::parse::<IpAddr>).transpose();
        let client = client.map_err(|_| "a client is not an IP address".to_owned())?.map(|ip| ip.to_canonical());
        let text = |text: &Option<String>| text.as_deref().map(Into::into);
        Ok(PastRecipient { at, user: text(user), client, sender: text(sender), recipient: recipient.as_str().into() })
    }
}

impl From<&PastRecipient> for TaughtRecipient {
    fn from(past: &PastRecipient) -> Self {
        Self {
            recipient: past.recipient.to_string(),
            time: Some(past.at.rfc3339_exact()),
            user: past.user.as_deref().map(Into::into),
            client: past.client.map(|client| client.to_string()),
            sender: past.sender.as_deref().map(Into::into),
        }
    }
}

impl LearnAnswer {
    pub fn new(lessons: &Lessons, sums: &LearntSums) -> Self {
        let memories = sums.iter().map(|(known_to, new, owners)| {
            let owners = owners.iter().map(ToString::to_string).collect();
            LearntMemory { known_to: known_to.to_owned(), new, owners }
        });
        Self { memories: memories.collect(), too_old: lessons.too_old, without_owner: lessons.without_owner }
    }
}
