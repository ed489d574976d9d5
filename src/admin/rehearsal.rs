//! `weir test --live`: what each limit would do to a message.

use super::{Api, ApiError, Errors, Json};
use crate::clock;
use crate::policy::request::Facts;
use crate::rehearse::live::{self, Live, Played};
use crate::rehearse::test_message::{Account, TestMessage};
use crate::server::Server;
use crate::store::Store;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use utoipa::ToSchema;

/// Maximum number of tests at once. A test can occupy a processor for a second, which mail needs, too.
pub const MAX_TESTS: usize = 1;

/// Maximum time that a test waits for other tests.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Description of a session with one message. The keys are the options of `weir test`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TestRequest {
    /// IP address of the client.
    #[schema(examples("192.0.2.7"))]
    pub client: String,
    /// User who logs in, with the right password; none: no login.
    #[serde(default)]
    pub user: Option<String>,
    /// Groups of the user, in addition to those of the account.
    #[serde(default)]
    #[schema(max_items = 100)]
    pub group: Vec<String>,
    /// Envelope sender; `<>` is the null sender of bounces.
    #[serde(default)]
    pub mail_from: Option<String>,
    /// Envelope recipients.
    #[serde(default)]
    #[schema(max_items = 1_000)]
    pub rcpt_to: Vec<String>,
    /// Message size in octets.
    #[serde(default)]
    pub size: Option<u64>,
    /// Last stage of the session: connect, auth, mail, rcpt, data or end.
    #[serde(default)]
    pub stage: Option<String>,
    /// Client's name in EHLO.
    #[serde(default)]
    pub helo: Option<String>,
    /// Name of the listener; needed if there are several.
    #[serde(default)]
    pub listener: Option<String>,
    /// Whether the connection is encrypted.
    #[serde(default)]
    pub tls: bool,
    /// Whether the client's network is new for the user; default: as the login history says.
    #[serde(default)]
    pub new_network: Option<bool>,
    /// Whether the client's country is new for the user.
    #[serde(default)]
    pub new_country: Option<bool>,
    /// Whether the client's name in EHLO is new for the user.
    #[serde(default)]
    pub new_helo: Option<bool>,
    /// Time of the session, such as `2026-03-01T10:00Z`; default: now.
    #[serde(default)]
    pub at: Option<String>,
}

/// Result of a test.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct TestAnswer {
    /// True if anything would be refused.
    pub refused: bool,
    /// Report for people. Several lines.
    pub message: String,
    /// Report for programs, as `weir test --json` prints it.
    #[schema(value_type = Object)]
    pub report: Map<String, Value>,
}

/// Tests what each limit would do to a message.
///
/// Nothing is sent or charged. Over TCP this needs a token that may act, because a test of many recipients costs much.
#[utoipa::path(post, path = "/v1/test", request_body = TestRequest,
    responses((status = 200, description = "The result", body = TestAnswer), Errors))]
pub async fn test(State(api): State<Api>, Json(request): Json<TestRequest>) -> Result<Json<TestAnswer>, ApiError> {
    let mut test_message = parse(&request)?;
    let _permit = permit(&api).await?;
    let server = api.server()?;
    if let (Some(user), Some(accounts)) = (&test_message.user, &server.accounts) {
        let user = accounts.user(user).await;
        let missing = if accounts.knows_all_users() { Account::Missing } else { Account::Unchecked };
        test_message.account =
            user.map_or(missing, |user| Account::known(user.is_disabled(), user.groups(), user.login_networks()));
    }
    add_novelty(&server, &mut test_message).await;
    let live = Live::new(Arc::clone(&server.store.policy()), api.sessions(), test_message, clock::now());
    let live::Answer { refused, text, report } = play(live, &server.store).await?;
    let Value::Object(report) = report else { return Err(ApiError::unavailable("there is no report")) };
    Ok(Json(TestAnswer { refused, message: text, report }))
}

/// Plays a rehearsal on a blocking thread, until it has all budgets that it needs.
async fn play(mut live: Live, store: &Store) -> Result<live::Answer, ApiError> {
    loop {
        let run = move || {
            let played = live.play();
            (live, played)
        };
        let played = tokio::task::spawn_blocking(run).await;
        // The panic itself is in the log.
        let (returned, played) =
            played.map_err(|_| ApiError::unavailable("a fault of Weir's own: the log says more"))?;
        live = returned;
        // After missing budgets are loaded, the session can need further budgets, because it can take another course: a
        // refused recipient is not counted at DATA.
        match played? {
            Played::Complete(answer) => return Ok(answer),
            Played::Missing(missing) => live.load(missing, store).await.map_err(ApiError::unavailable)?,
        }
    }
}

/// Waits until few enough other tests run.
async fn permit(api: &Api) -> Result<OwnedSemaphorePermit, ApiError> {
    let permit = tokio::time::timeout(MAX_WAIT, api.test_permit()).await;
    permit.unwrap_or_else(|_| Err(ApiError::unavailable("other tests are running: try again later")))
}

fn parse(request: &TestRequest) -> Result<TestMessage, ApiError> {
    let value = serde_json::to_value(request).map_err(|error| ApiError::refused(error.to_string()))?;
    Ok(TestMessage::from_json(&value)?)
}

/// Completes the novelty of a test message with the login history.
async fn add_novelty(server: &Server, test_message: &mut TestMessage) {
    let facts = Facts {
        client: Some(test_message.client),
        user: test_message.user.as_deref().map(Into::into),
        helo: test_message.helo.as_deref().map(Into::into),
        ..Facts::default()
    };
    let (known, given) = (server.store.novelty(clock::now(), &facts).await, &mut test_message.novelty);
    given.network = given.network.or(known.network);
    given.country = given.country.or(known.country);
    given.helo = given.helo.or(known.helo);
}
