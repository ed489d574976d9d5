//! Stream of decisions and acts, as server-sent events.

use super::audit::AuditLine;
use super::credentials::Admission;
use super::{Api, ApiError, Errors, Query};
use crate::decisions::{DecisionRecord, Outcome, Reader, Received};
use crate::store::audit::AuditRecord;
use axum::Extension;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream;
use ipnet::IpNet;
use prometheus::IntGauge;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::time::{Interval, interval};
use utoipa::{IntoParams, ToSchema};

/// Maximum number of readers at once. Each reader costs a connection, and the work to serialize each event.
pub const MAX_READERS: usize = 16;

/// Interval of comments on a stream without events, so that proxies keep the connection open, and Weir notices that a
/// reader is gone.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Interval at which a stream checks that its token or session is still valid.
const CREDENTIAL_INTERVAL: Duration = Duration::from_secs(5);

/// Filter of a stream. A record must pass all given conditions.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EventsQuery {
    /// Kind of the records; default: `all`.
    #[serde(default)]
    #[param(inline)]
    pub kind: EventKind,
    /// User, as Weir counts the name.
    #[serde(default)]
    pub user: Option<String>,
    /// Address or network of the client.
    #[serde(default)]
    pub client: Option<String>,
    /// Limit that measured the event, or that the act concerns.
    #[serde(default)]
    pub limit: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// Decisions and acts.
    #[default]
    All,
    /// Decisions on accepted and refused events.
    Decision,
    /// Decisions on refused events.
    Refused,
    /// Acts of administrators and limits.
    Act,
}

/// Data of an event of the stream, for the OpenAPI file. The name of the event tells which of them: `decision`, `act` or
/// `missed`.
#[derive(ToSchema)]
#[schema(as = StreamItem)]
#[serde(untagged)]
#[expect(dead_code, reason = "each event is serialized as the type that it contains")]
pub enum StreamItem {
    Decision(Box<DecisionRecord>),
    Act(Box<AuditLine>),
    Missed(Missed),
}

/// The reader was too slow, and has lost records.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Missed {
    /// Number of lost records, before filtering.
    pub records: u64,
}

/// Streams decisions and acts, from now on.
///
/// Each event has a name (`decision`, `act`, `missed`) and data in JSON. The stream ends when Weir stops, or within
/// seconds when the token or the session ends.
#[utoipa::path(get, path = "/v1/events", params(EventsQuery),
    responses((status = 200, description = "The stream", content_type = "text/event-stream", body = StreamItem), Errors))]
pub async fn events(
    State(api): State<Api>,
    admission: Option<Extension<Admission>>,
    Query(query): Query<EventsQuery>,
) -> Result<impl IntoResponse, ApiError> {
    let filter = Filter::new(query)?;
    let source = {
        // The stream must not keep the server alive when Weir stops.
        let server = api.server()?;
        let decisions = (filter.kind != EventKind::Act).then(|| server.decisions.read(filter.kind.has_accepted()));
        let acts = filter.kind.has_acts().then(|| server.store.acts());
        let place = Place::new(&api, &server.metrics.admin.event_readers)?;
        let (admission, checks) = (admission.map(|Extension(admission)| admission), interval(CREDENTIAL_INTERVAL));
        Source { decisions, acts, filter, admission, checks, api, _place: place }
    };
    // The first comment tells the reader that from now on it gets all records.
    let begin = stream::iter([Ok(Event::default().comment("open"))]);
    let items = stream::unfold(source, |mut source| async move {
        let event = source.next().await?;
        Some((event, source))
    });
    let stream = stream::StreamExt::chain(begin, items);
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE_INTERVAL)))
}

impl EventKind {
    /// Returns the name in a query.
    pub fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Decision => "decision",
            Self::Refused => "refused",
            Self::Act => "act",
        }
    }

    fn has_accepted(self) -> bool {
        matches!(self, Self::All | Self::Decision)
    }

    fn has_acts(self) -> bool {
        matches!(self, Self::All | Self::Act)
    }
}

/// Records for one reader.
struct Source {
    decisions: Option<Reader>,
    acts: Option<broadcast::Receiver<AuditRecord>>,
    filter: Filter,
    /// `None` at the control socket.
    admission: Option<Admission>,
    /// Times at which the admission is checked.
    checks: Interval,
    api: Api,
    _place: Place,
}

/// Place of a reader among those that are permitted, until it is dropped.
struct Place {
    _permit: OwnedSemaphorePermit,
    readers: IntGauge,
}

impl Place {
    fn new(api: &Api, readers: &IntGauge) -> Result<Self, ApiError> {
        let permit = api.reader_permit()?;
        readers.inc();
        Ok(Self { _permit: permit, readers: readers.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.readers.dec();
    }
}

impl Source {
    /// Waits for the next record that passes the filter. Returns `None` when Weir stops, or when the token or the session
    /// has ended.
    async fn next(&mut self) -> Option<Result<Event, axum::Error>> {
        loop {
            let item = tokio::select! {
                received = next_decision(&mut self.decisions) => match received? {
                    Received::Record(record) => self.filter.passes(&record).then(|| event("decision", &*record)),
                    Received::Missed(records) => Some(event("missed", &Missed { records })),
                },
                act = next_act(&mut self.acts) => match act {
                    Ok(act) => self.filter.passes_act(&act).then(|| event("act", &AuditLine::from(&act))),
                    Err(RecvError::Lagged(records)) => Some(event("missed", &Missed { records })),
                    Err(RecvError::Closed) => return None,
                },
                _ = self.checks.tick(), if self.admission.is_some() => match &self.admission {
                    Some(admission) if !admission.holds().await => return None,
                    _ => None,
                },
                () = self.api.stopped() => return None,
            };
            if item.is_some() {
                return item;
            }
        }
    }
}

/// Returns an event. Its line with the name comes first, and then its line with the data.
fn event(name: &str, data: &impl Serialize) -> Result<Event, axum::Error> {
    Event::default().event(name).json_data(data)
}

async fn next_decision(reader: &mut Option<Reader>) -> Option<Received> {
    match reader {
        Some(reader) => reader.next().await,
        None => std::future::pending().await,
    }
}

async fn next_act(acts: &mut Option<broadcast::Receiver<AuditRecord>>) -> Result<AuditRecord, RecvError> {
    match acts {
        Some(acts) => acts.recv().await,
        None => std::future::pending().await,
    }
}

/// Checked filter of a stream.
struct Filter {
    kind: EventKind,
    user: Option<String>,
    client: Option<IpNet>,
    limit: Option<String>,
}

impl Filter {
    fn new(EventsQuery { kind, user, client, limit }: EventsQuery) -> Result<Self, String> {
        let client = client.as_deref().map(parse_network).transpose()?;
        Ok(Self { kind, user, client, limit })
    }

    fn passes(&self, record: &DecisionRecord) -> bool {
        let is_of_limit = |name: &String| {
            record.limit.as_ref() == Some(name) || record.limits.iter().any(|limit| limit.limit == *name)
        };
        (self.kind != EventKind::Refused || record.outcome != Outcome::Accepted)
            && self.has_user(record.user.as_deref())
            && self.client.is_none_or(|network| record.client.is_some_and(|client| network.contains(&client)))
            && self.limit.as_ref().is_none_or(is_of_limit)
    }

    fn passes_act(&self, record: &AuditRecord) -> bool {
        let value = |field: &str| record.owner.parts().find(|(name, _)| *name == field).map(|(_, value)| value);
        let is_within = |network: IpNet| {
            let client = value("client").and_then(|client| parse_network(client).ok());
            client.is_some_and(|client| network.contains(&client) || client.contains(&network))
        };
        self.has_user(value("user"))
            && self.client.is_none_or(is_within)
            && self.limit.as_deref().is_none_or(|limit| record.limit.as_deref() == Some(limit))
    }

    fn has_user(&self, user: Option<&str>) -> bool {
        self.user.as_ref().is_none_or(|wanted| user.is_some_and(|user| user.to_lowercase() == wanted.to_lowercase()))
    }
}

/// Parses an address or a network.
fn parse_network(text: &str) -> Result<IpNet, String> {
    let address = text.parse::<IpAddr>().map(|address| IpNet::from(address.to_canonical()));
    let network = address.or_else(|_| text.parse::<IpNet>());
    network.map_err(|_| format!("client is \"{}\": write an address or a network", text.escape_debug()))
}
