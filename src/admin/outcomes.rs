//! Outcomes of deliveries that the administration gives to Weir.

use super::{Api, ApiError, Errors, Json, json_lines};
use crate::outcomes::{Kind, Outcome};
use crate::queue_id;
use crate::server::{GivenOutcome, OutcomeCounts};
use crate::time::parse_time;
use axum::body::Bytes;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Maximum number of outcomes in one request.
pub const MAX_OUTCOMES: usize = 1000;

/// Maximum number of queue ids that one outcome names.
const MAX_QUEUE_IDS: usize = 50;

/// Kind of an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OutcomeKind {
    /// The smart host has passed the message on.
    Sent,
    /// An attempt to deliver has failed, and the smart host tries again. It counts nowhere but in the metrics.
    Deferred,
    /// The message cannot be delivered: charged by limits with `count = "bounces"`.
    Bounced,
    /// The smart host has given up after many attempts. It counts nowhere but in the metrics.
    Expired,
    /// The recipient has complained: charged by limits with `count = "complaints"`.
    Complained,
}

/// Outcome of a message for one recipient.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct OutcomeLine {
    pub kind: OutcomeKind,
    /// Queue ids that can be the one in the smart host's reply to the message. The first one that Weir knows is used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 50)]
    pub queue_ids: Vec<String>,
    /// `Message-ID` of the message, without angle brackets or with them: used if Weir knows none of the queue ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// Name of the upstream. Left out: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipient: Option<String>,
    /// Other name of the recipient: used if the message has no recipient "recipient".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_name: Option<String>,
    /// Time of the outcome. Left out: now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub at: Option<String>,
    /// True if anyone can have written the outcome, as in a mail: then the recipient, if there is one, must be a
    /// recipient of the message.
    #[serde(default)]
    pub is_of_report: bool,
}

/// Number of outcomes by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct OutcomesAnswer {
    /// Outcomes of messages that Weir knows.
    pub attributed: u64,
    /// Outcomes that had been counted before.
    pub repeated: u64,
    /// Outcomes of no message that Weir knows.
    pub unknown: u64,
}

impl From<OutcomeKind> for Kind {
    fn from(kind: OutcomeKind) -> Self {
        match kind {
            OutcomeKind::Sent => Self::Sent,
            OutcomeKind::Deferred => Self::Deferred,
            OutcomeKind::Bounced => Self::Bounced,
            OutcomeKind::Expired => Self::Expired,
            OutcomeKind::Complained => Self::Complained,
        }
    }
}

/// Counts outcomes of deliveries, which the smart host knows only after it has accepted a message.
///
/// The body has one JSON object in each line, at most 1000. Weir needs `[outcomes]` in its configuration. Each outcome of a
/// message counts once. Over TCP this needs a token that may act.
#[utoipa::path(post, path = "/v1/outcomes",
    request_body(content = OutcomeLine, description = "One object, or several, each in a line of its own"),
    responses((status = 200, description = "Counted", body = OutcomesAnswer), Errors))]
pub async fn outcomes(State(api): State<Api>, body: Bytes) -> Result<Json<OutcomesAnswer>, ApiError> {
    let given = json_lines::read(&body, MAX_OUTCOMES, "outcomes", given)?;
    let server = api.server()?;
    if server.store.outcome_options().is_none() {
        return Err(ApiError::refused("no queue ids are stored: write [outcomes] in weir.toml, and restart Weir"));
    }
    let counted = server.count_outcomes(given).await;
    let OutcomeCounts { attributed, repeated, unknown } =
        counted.map_err(|why| ApiError::unavailable(format!("{why}; nothing was counted")))?;
    Ok(Json(OutcomesAnswer { attributed, repeated, unknown }))
}

fn given(line: OutcomeLine) -> Result<GivenOutcome, String> {
    let OutcomeLine { kind, queue_ids, message_id, upstream, recipient, other_name, at, is_of_report } = line;
    if queue_ids.is_empty() && message_id.is_none() {
        return Err("it names no message: write \"queue-ids\" or \"message-id\"".to_owned());
    }
    if queue_ids.len() > MAX_QUEUE_IDS {
        return Err(format!("at most {MAX_QUEUE_IDS} \"queue-ids\""));
    }
    if let Some(bad) = queue_ids.iter().find(|id| !queue_id::is_queue_id(id)) {
        return Err(format!("\"{}\" is no queue id", bad.escape_debug()));
    }
    let at = at.map(|at| parse_time(&at)).transpose().map_err(|error| format!("\"at\": {error}"))?;
    let outcome = Outcome { kind: kind.into(), queue_ids, message_id, recipient, other_name, at };
    Ok(GivenOutcome { outcome, upstream, is_of_report })
}
