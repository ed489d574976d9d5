//! Record of a decision: everything that explains the decision later.

use super::limit::{ExceptionRecord, LimitRecord};
use crate::policy::request::{Event, Facts, Stage};
use crate::policy::verdict::{Evaluation, Suspended};
use crate::smtp::reply::Reply;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use utoipa::ToSchema;

/// Decision on one event of a session. The decision log, the event stream and the store of refusals contain this record.
/// A key without a value is left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct DecisionRecord {
    /// Time of the decision.
    #[schema(value_type = String, format = DateTime)]
    pub time: Timestamp,
    pub outcome: Outcome,
    pub stage: Stage,
    /// At the stage auth: true if the login was already found to be right.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub login_right: bool,
    pub session: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listener: Option<String>,
    /// Address of the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub client: Option<IpAddr>,
    /// Country of the client: a code of two letters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub country: Option<String>,
    /// Autonomous system of the client: `AS1853`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asn: Option<String>,
    /// Name in EHLO or HELO.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub helo: Option<String>,
    /// True if the connection was encrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<bool>,
    /// Name of the user. Before the password check, this is only the name that the client claimed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// True if the user had logged in.
    pub authenticated: bool,
    /// True if Weir had an account of the user.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_account: bool,
    /// True if the client had sent the same wrong password a short time before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repeated_password: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Whether the network, the country and the EHLO name of the login were new for the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new_network: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new_country: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new_helo: Option<bool>,
    /// Whether the client was in a login network of the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registered_network: Option<bool>,
    /// Sender of the message; `<>` for a bounce.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Recipient that the event concerns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Recipients that had been accepted, from the stage data on: at most 200, and at most 8192 octets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recipients: Vec<String>,
    /// Number of accepted recipients that `recipients` leaves out.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_recipients: usize,
    /// Size that MAIL declared, in octets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub declared_size: Option<u64>,
    /// Size of the message in octets, at the stage end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Reply to the client, if the decision refuses the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply: Option<ReplyRecord>,
    /// Reference in the reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// Name of the limit whose refusal the reply states. `limits` tells which other limits refuse, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// Delay of the reply, in seconds.
    #[serde(default, skip_serializing_if = "is_no_delay")]
    pub delay_seconds: f64,
    /// Suspension that refuses the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspension: Option<ExceptionRecord>,
    /// Sender as which the user may not send.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mismatch: Option<MismatchRecord>,
    /// Limits that measured the event.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<LimitRecord>,
}

/// Outcome of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Accepted,
    /// A limit refuses the event.
    Refused,
    /// A suspension refuses the event.
    Suspended,
    /// The user may not send as this sender.
    SenderMismatch,
    /// Accepted as far as the limit in `limit` is concerned: its mode is `shadow` or `soft`, and it would have refused
    /// the event in the mode `enforce`.
    WouldRefuse,
}

/// Reply to a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ReplyRecord {
    pub code: u16,
    /// Text with its enhanced code. A line end separates the lines of the reply.
    pub text: String,
}

/// Sender as which a user may not send.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct MismatchRecord {
    /// Part of the message that names the sender: `envelope` or `header`.
    pub part: String,
    /// The address; left out if the From header names no single valid address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

/// Source of a record: the event on which Weir has decided, and the numbers of the limits.
#[derive(Clone, Copy)]
pub struct RecordSource<'a> {
    pub time: Timestamp,
    pub session: &'a str,
    pub facts: &'a Facts,
    pub event: &'a Event,
    pub delay: Duration,
    pub evaluations: &'a [Evaluation],
}

/// Maximum recipients in a record, and maximum octets of these recipients. A message to thousands of recipients must
/// not fill the decision log.
const MAX_RECIPIENTS: usize = 200;
const MAX_RECIPIENT_OCTETS: usize = 8192;

impl DecisionRecord {
    /// Returns the record of an accepted event.
    pub fn accepted(source: RecordSource<'_>) -> Self {
        let RecordSource { time, session, facts, event, delay, evaluations } = source;
        let (recipients, more_recipients) = first_recipients(&facts.recipients);
        Self {
            time,
            outcome: Outcome::Accepted,
            // A rejection by the upstream has no stage, and gets no record.
            stage: event.stage().unwrap_or(Stage::Command),
            login_right: *event == Event::Login,
            session: session.to_owned(),
            listener: text(&facts.listener),
            client: facts.client,
            country: facts.location.country.map(|country| country.to_string()),
            asn: facts.location.asn.map(|asn| asn.to_string()),
            helo: text(&facts.helo),
            tls: facts.tls,
            user: text(&facts.user),
            authenticated: facts.authenticated,
            has_account: facts.has_account,
            repeated_password: facts.is_repeated_password,
            groups: facts.groups.iter().map(ToString::to_string).collect(),
            new_network: facts.novelty.network,
            new_country: facts.novelty.country,
            new_helo: facts.novelty.helo,
            registered_network: facts.registered_network,
            from: text(&facts.sender),
            to: event.recipient().map(ToString::to_string),
            recipients,
            more_recipients,
            declared_size: facts.size,
            size: if let Event::End { size } = event { *size } else { None },
            reply: None,
            reference: None,
            limit: None,
            delay_seconds: delay.as_secs_f64(),
            suspension: None,
            mismatch: None,
            limits: evaluations.iter().map(LimitRecord::from).collect(),
        }
    }

    /// Returns the record of a refused event. `limit`: name of the limit whose refusal the reply states, if a limit
    /// refuses the event.
    pub fn refused(
        source: RecordSource<'_>,
        outcome: Outcome,
        limit: Option<&str>,
        reply: &Reply,
        reference: &str,
    ) -> Self {
        let text = reply.texts().collect::<Vec<_>>().join("\n");
        let reply = Some(ReplyRecord { code: reply.code(), text });
        let (limit, reference) = (limit.map(str::to_owned), Some(reference.to_owned()));
        Self { outcome, reply, reference, limit, ..Self::accepted(source) }
    }

    /// Returns the record of an event that a limit in shadow or soft mode would have refused.
    pub fn would_refuse(source: RecordSource<'_>, limit: &str) -> Self {
        Self { outcome: Outcome::WouldRefuse, limit: Some(limit.to_owned()), ..Self::accepted(source) }
    }

    /// Adds the suspension that refuses the event.
    pub fn with_suspension(self, suspended: &Suspended) -> Self {
        Self { suspension: Some(ExceptionRecord::from(&*suspended.suspension)), ..self }
    }
}

fn text(text: &Option<Arc<str>>) -> Option<String> {
    text.as_deref().map(str::to_owned)
}

/// Returns the first recipients, and the number of the others.
fn first_recipients(recipients: &[Arc<str>]) -> (Vec<String>, usize) {
    let mut octets = 0;
    let has_room = |recipient: &&Arc<str>| {
        octets += recipient.len();
        octets <= MAX_RECIPIENT_OCTETS
    };
    let first: Vec<String> =
        recipients.iter().take(MAX_RECIPIENTS).take_while(has_room).map(ToString::to_string).collect();
    let more = recipients.len() - first.len();
    (first, more)
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

fn is_no_delay(seconds: &f64) -> bool {
    *seconds == 0.0
}
