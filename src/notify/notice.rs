//! Notice: the JSON document that targets get.

use super::amounts;
use crate::policy::limit::Quota;
use crate::policy::verdict;
use crate::time::{Timestamp, format_amount};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Number;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Version of the document. Keys can be added without a new version.
const VERSION: u8 = 1;

/// Notice about one budget. A value that is not known is left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Notice {
    pub version: u8,
    /// Unique; the same in each attempt to deliver the notice.
    pub id: String,
    pub event: Event,
    /// Time when the notice was made.
    pub time: Timestamp,
    /// Name of the Weir that has made the notice.
    pub host: String,
    /// Name of the notification.
    pub notify: String,
    #[serde(flatten)]
    pub excess: Excess,
    /// The same in plain text. Not part of the stored notice: the text is made when the notice is delivered.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
}

/// Reason of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// An episode has begun: the level has reached the action `notify`.
    Begin,
    /// An episode has ended: the level has been lower for the limit's period.
    End,
    /// An administrator tests the notification.
    Test,
}

/// The exceeded limit, and the client that exceeded it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Excess {
    pub limit: String,
    pub mode: String,
    /// Fields of `per`, each with its value; empty if the limit has one budget for everybody.
    pub owner: BTreeMap<String, String>,
    /// Level of the budget, and the number with which the level is compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed: Option<Number>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub period: String,
    /// Level and quota for people: `101 recipients`, `100 recipients per day`.
    pub counted: String,
    pub quota: String,
    /// Both together: `101 of 100 recipients per day`. Empty in a notice of an earlier version of Weir.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reached: String,
    /// True if the limit refuses the event.
    pub refuses: bool,
    /// Length of the suspension that the event begins: `1d`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspends_for: Option<String>,
    /// True if this suspension is a lock: mail to recipients known before passes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_lock: bool,
    /// Length of the longest suspension that the limit can begin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub may_suspend_for: Option<String>,
    /// Suspicion score of the user with its signs, if the limit matches on suspicion: `60 points: many 40, guessed 20`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspicion: Option<String>,
    /// True if the level exceeds the limit itself, not only the level of the action.
    pub is_over: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub country: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asn: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Number of events of the episode that reached the action. Only at the end of an episode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
    /// Time when the episode began. Only at its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
}

/// The session in which an event has reached the action `notify`.
pub struct Session<'a> {
    pub id: &'a str,
    pub user: Option<&'a str>,
    pub client: IpAddr,
    pub country: Option<&'a str>,
    pub asn: Option<String>,
}

impl Notice {
    pub fn new(event: Event, host: &str, notify: &str, excess: Excess, now: Timestamp) -> Self {
        let (host, notify) = (host.to_owned(), notify.to_owned());
        Self { version: VERSION, id: new_id(now), event, time: now, host, notify, excess, text: String::new() }
    }

    /// Returns a notice with invented values. Its client has an address for documentation (RFC 5737).
    pub fn test(host: &str, notify: &str, user: &str, now: Timestamp) -> Self {
        let excess = Excess {
            limit: "test".to_owned(),
            mode: "enforce".to_owned(),
            owner: BTreeMap::from([("user".to_owned(), user.to_owned())]),
            used: Some(101.into()),
            allowed: Some(100.into()),
            period: "5m".to_owned(),
            counted: "101 recipients".to_owned(),
            quota: "100 recipients per 5 minutes".to_owned(),
            reached: "101 of 100 recipients per 5 minutes".to_owned(),
            refuses: true,
            is_over: true,
            user: Some(user.to_owned()),
            client: Some(IpAddr::from([203, 0, 113, 7])),
            network: network(IpAddr::from([203, 0, 113, 7])),
            ..Excess::default()
        };
        Self::new(Event::Test, host, notify, excess, now)
    }

    /// Returns the JSON of the stored notice, without the text.
    pub fn stored(&self) -> String {
        // A notice has no keys or values that JSON cannot represent.
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl Excess {
    pub fn new(notice: &verdict::Notice, session: &Session<'_>) -> Self {
        let owner = notice.key.as_ref().map(|key| key.owner());
        let parts = owner.iter().flat_map(|owner| owner.parts());
        // The key `client/24/56` has the widths of networks, which the value shows, too.
        let word = |field: &str| field.split('/').next().unwrap_or_default().to_owned();
        let (used, allowed) = notice.quota.numbers(notice.level);
        Self {
            limit: notice.limit.to_string(),
            mode: notice.mode.name().to_owned(),
            owner: parts.map(|(field, value)| (word(field), printable(value))).collect(),
            used: number(used),
            allowed: number(allowed),
            period: notice.quota.period(),
            counted: amounts::counted(notice),
            quota: amounts::quota(notice),
            reached: amounts::reached(notice),
            refuses: notice.consequence.refuses,
            suspends_for: notice.consequence.suspends.map(|time| time.to_string()),
            is_lock: notice.consequence.is_lock,
            may_suspend_for: notice.consequence.may_suspend.map(|time| time.to_string()),
            suspicion: notice.suspicion.as_ref().map(ToString::to_string),
            is_over: is_over(&notice.quota, notice.level),
            user: session.user.map(printable),
            client: Some(session.client),
            network: network(session.client),
            country: session.country.map(str::to_owned),
            asn: session.asn.clone(),
            session: Some(session.id.to_owned()),
            times: None,
            since: None,
        }
    }

    /// Returns the owner of the budget for people: `alice@example.org`, or `client 192.0.2.7, sender bob@example.org`.
    pub fn subject(&self) -> String {
        let parts: Vec<String> = self.owner.iter().map(|(field, value)| format!("{field} {value}")).collect();
        match self.owner.get("user") {
            Some(user) if self.owner.len() == 1 => user.clone(),
            _ if parts.is_empty() => "all mail together".to_owned(),
            _ => parts.join(", "),
        }
    }

    /// Returns [`Excess::reached`], also for a notice of an earlier version of Weir.
    pub fn reached_text(&self) -> String {
        match self.reached.is_empty() {
            true => format!("{}, of {}", self.counted, self.quota),
            false => self.reached.clone(),
        }
    }

    /// Returns the login of the user who is concerned: in the client's spelling, if the client has logged in as the
    /// owner of the budget.
    pub fn login(&self) -> Option<&str> {
        let owner = self.owner.get("user").map(String::as_str);
        self.user.as_deref().or(owner)
    }
}

fn is_over(quota: &Quota, level: f64) -> bool {
    match (quota, quota.rule()) {
        (Quota::Rate { .. } | Quota::Counter { .. }, Some(rule)) => rule.is_over(level),
        _ => {
            let (used, allowed) = quota.numbers(level);
            used > allowed
        }
    }
}

/// Returns a number with at most one decimal; `None` if it is not finite.
fn number(amount: f64) -> Option<Number> {
    match format_amount(amount).parse::<u64>() {
        Ok(whole) => Some(whole.into()),
        Err(_) => Number::from_f64((amount * 10.0).round() / 10.0),
    }
}

/// Returns a text that clients have given, without control characters and characters that change the direction of text,
/// and at most [`MAX_TEXT`] characters long: it stands in headers and lines of mails.
fn printable(text: &str) -> String {
    let is_fit = |c: char| {
        !c.is_control() && !matches!(c, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().take(MAX_TEXT).map(|c| if is_fit(c) { c } else { '?' }).collect()
}

/// Maximum characters of a value in a notice: an address has at most 320 octets.
const MAX_TEXT: usize = 320;

/// Returns the network of a client: IPv4 /24 or IPv6 /56, as in the login history.
fn network(client: IpAddr) -> Option<String> {
    let length = if client.is_ipv4() { 24 } else { 56 };
    IpNet::new(client, length).ok().map(|network| network.trunc().to_string())
}

/// Returns a new ID: the time in milliseconds, and 80 random bits, both in hexadecimal digits.
fn new_id(now: Timestamp) -> String {
    let mut random = [0; 10];
    // Without random bits, the time alone makes the ID: equal IDs are then improbable, but possible.
    let _ = getrandom::fill(&mut random);
    let random: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{:x}-{random}", now.micros() / 1_000)
}
