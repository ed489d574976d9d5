//! Contents of a state file as lines of JSON: budgets, exceptions, their audit trail, and the login history.
//!
//! A budget is
//! `{"limit":"l","count":"recipients","algorithm":"ewma","owner":{"user":"alice"},"at":"2026-11-21T10:00:00Z","level":3.5}`.
//! If the limit counts distinct values, `seen` is the budget's filter in base64. If the limit measures regularity,
//! `times` has the times of the last events. If the budget belongs to a grant, `granted` is the time when the grant
//! began. The line of an exception has the key `exception` (`grant` or `suspension`, or `egress` for an entry of the
//! register of direct ways). A suspension has `strict`, a lock has `known-to`, and, if a new password ends it,
//! `ends-on-new-password`, perhaps with `password-fingerprint`. The line of an audit record has the key `audit`
//! (`granted`, `revoked` and so on). A row of the login history is
//! `{"login":"alice","network":"192.0.2.0/24","first":"2026-11-21T10:00:00Z","last":"2026-11-22T10:00:00Z","logins":7,"country":"AT","tls":"TLSv1.3","mechanism":"PLAIN","helo":["laptop.example"]}`;
//! unknown values are left out. The line of a record of refusals has the key `refusal`: see `refusals/jsonl.rs`.

use super::audit::{Act, AuditRecord};
use super::hashed_key::HashedKey;
use super::journal;
use super::login_history::{self, LoginKey, LoginRow, MAX_NAMES};
use super::refusals::{self, RefusalRow};
use crate::engine::State;
use crate::engine::regularity::Times;
use crate::policy::KnownTo;
use crate::policy::Memory;
use crate::policy::budgets::{Budget, Key, Owner};
use crate::policy::egress::{EgressEntry, EgressRule, NetworkText, parse_network};
use crate::policy::exception::{By, Grant, NewPassword, PasswordFingerprint, Suspension, Term};
use crate::policy::limit::{Algorithm, Count};
use crate::policy::matching::Field;
use crate::time::{Timestamp, parse_time};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Parsed line.
pub enum Line {
    Budget(HashedKey, Budget),
    Grant(Grant),
    Suspension(Suspension),
    EgressEntry(EgressEntry),
    AuditRecord(AuditRecord),
    Login(LoginKey, LoginRow),
    Refusal(Box<RefusalRow>),
}

/// Values of the key `exception`.
const GRANT: &str = "grant";
const SUSPENSION: &str = "suspension";
const EGRESS: &str = "egress";

/// Maximum octets of a text in a line of the login history: a user name with its domain.
const MAX_LOGIN_OCTETS: usize = 1_024;

pub fn of_budget(key: &Key, budget: &Budget) -> Value {
    let granted = key.ungranted();
    let own = granted.as_ref().map_or(key.borrowed(), |(own, _)| *own);
    let mut parts = own.parts();
    let mut next = || parts.next().unwrap_or_default();
    let (limit, count, algorithm) = (next(), next(), next());
    let Budget { state: State { at, level }, seen, times } = budget;
    let mut line = json!({"limit": limit, "count": count, "algorithm": algorithm, "owner": owner(&own.owner()),
        "at": at.rfc3339_exact(), "level": level});
    if let Some(times) = times {
        line["times"] = times.iter().collect::<Vec<_>>().into_iter().map(|time| json!(time)).collect();
    }
    if let Some(seen) = seen {
        line["seen"] = json!(BASE64_STANDARD.encode(journal::seal_seen(seen)));
    }
    if let Some((_, since)) = granted {
        line["granted"] = json!(since.rfc3339_exact());
    }
    line
}

pub fn of_grant(grant: &Grant) -> Value {
    let Grant { limit, owner: of, rate, term } = grant;
    let mut line = of_term(GRANT, of, term);
    (line["limit"], line["rate"]) = (json!(**limit), json!(**rate));
    line
}

pub fn of_suspension(suspension: &Suspension) -> Value {
    let mut line = of_term(SUSPENSION, &suspension.owner, &suspension.term);
    line["strict"] = json!(suspension.is_strict);
    if let Some(known_to) = suspension.known_to {
        line["known-to"] = json!(known_to.name());
    }
    if let NewPassword::Ends(fingerprint) = suspension.new_password {
        line["ends-on-new-password"] = json!(true);
        if let Some(fingerprint) = fingerprint {
            line["password-fingerprint"] = json!(fingerprint.to_string());
        }
    }
    line
}

pub fn of_entry(entry: &EgressEntry) -> Value {
    let EgressEntry { network, rule, owner: responsible, term } = entry;
    let network = NetworkText(*network).to_string();
    let mut line = of_term(EGRESS, &Owner::from_parts([("client".into(), network.as_str())].into_iter()), term);
    (line["rule"], line["responsible"]) = (json!(rule.name()), json!(**responsible));
    line
}

fn of_term(kind: &str, of: &Owner, term: &Term) -> Value {
    let Term { since, until, by, reason } = term;
    json!({"exception": kind, "owner": owner(of), "since": since.rfc3339_exact(), "until": until.rfc3339_exact(),
        "by": by.to_string(), "reason": **reason})
}

pub fn of_record(record: &AuditRecord) -> Value {
    let AuditRecord { at, act, limit, owner: of, rate, until, was, by, reason } = record;
    let mut line = json!({"audit": act.name(), "at": at.rfc3339_exact(), "owner": owner(of), "by": by.to_string(),
        "reason": **reason});
    for (name, text) in [("limit", limit), ("rate", rate), ("was", was)] {
        if let Some(text) = text {
            line[name] = json!(**text);
        }
    }
    if let Some(until) = until {
        line["until"] = json!(until.rfc3339_exact());
    }
    line
}

pub fn of_login(key: &LoginKey, row: &LoginRow) -> Value {
    let LoginRow { first, last, logins, country, tls, mechanism, helo } = row;
    let mut line = json!({"login": *key.user, "network": *key.network, "first": first.rfc3339_exact(),
        "last": last.rfc3339_exact(), "logins": logins});
    for (name, text) in [("country", country), ("tls", tls), ("mechanism", mechanism)] {
        if let Some(text) = text {
            line[name] = json!(**text);
        }
    }
    if !helo.is_empty() {
        line["helo"] = helo.iter().map(|name| &**name).collect();
    }
    line
}

fn owner(owner: &Owner) -> Map<String, Value> {
    owner.parts().map(|(field, value)| (field.to_owned(), json!(value))).collect()
}

/// A line, parsed as a JSON object.
struct Object(Map<String, Value>);

impl Line {
    /// Parses a line. Returns as error the expected content of the line (such as "a budget"), and the reason why the
    /// line is wrong.
    pub fn read(text: &str) -> Result<Self, (&'static str, String)> {
        let bad = |what: &'static str| move |why: String| (what, why);
        let value: Value = serde_json::from_str(text).map_err(|error| error.to_string()).map_err(bad("a budget"))?;
        let Value::Object(object) = value else { return Err(bad("a budget")("it is not a JSON object".to_owned())) };
        let object = Object(object);
        match (object.0.contains_key("exception"), object.0.contains_key("audit")) {
            (true, _) => object.exception().map_err(bad("an exception")),
            (_, true) => object.record().map_err(bad("a record")),
            _ if object.0.contains_key(refusals::jsonl::KEY) => {
                let row = refusals::jsonl::read(&object.0).map_err(bad("a refusal"))?;
                Ok(Self::Refusal(Box::new(row)))
            }
            _ if object.0.contains_key("login") => object.login().map_err(bad("a login")),
            _ => object.budget().map_err(bad("a budget")),
        }
    }
}

impl Object {
    fn budget(&self) -> Result<Line, String> {
        self.only(&["limit", "count", "algorithm", "owner", "at", "level", "seen", "times", "granted"])?;
        let owners = self.owners()?;
        let (count, algorithm) = (self.word("count")?, self.word("algorithm")?);
        if !Count::ALL.iter().any(|known| known.name() == count) {
            return Err(format!("\"{count}\" is not a count"));
        }
        // The field whose distinct values are counted can follow after the name of the algorithm.
        let first = algorithm.split(' ').next();
        if !Algorithm::ALL
            .iter()
            .map(|known| known.name())
            .chain(["share", Memory::ALGORITHM])
            .any(|known| Some(known) == first)
        {
            return Err(format!("\"{algorithm}\" is not an algorithm"));
        }
        let key = Key::from_parts(self.word("limit")?, count, algorithm, owners.into_iter());
        let mut key = key.ok_or("its limit, count, algorithm and owner make no key")?;
        if self.0.contains_key("granted") {
            key = key.granted(self.time("granted")?);
        }
        let at = self.time("at")?;
        let level = self.0.get("level").and_then(Value::as_f64).filter(|level| *level >= 0.0);
        let level = level.ok_or("\"level\" must be a number of at least 0")?;
        let seen = match self.0.contains_key("seen") {
            false => None,
            true => {
                let bytes = BASE64_STANDARD.decode(self.word("seen")?).map_err(|error| format!("\"seen\": {error}"))?;
                Some(journal::unseal_seen(&bytes).ok_or("\"seen\" is damaged")?)
            }
        };
        let times = match self.0.get("times") {
            None => None,
            Some(times) => {
                let times: Vec<Timestamp> =
                    serde_json::from_value(times.clone()).map_err(|error| format!("\"times\": {error}"))?;
                Some(Arc::new(Times::new(times)))
            }
        };
        Ok(Line::Budget(HashedKey::of(key), Budget { state: State { at, level }, seen, times }))
    }

    fn exception(&self) -> Result<Line, String> {
        self.only(&[
            "exception",
            "limit",
            "owner",
            "rate",
            "since",
            "until",
            "by",
            "reason",
            "strict",
            "ends-on-new-password",
            "password-fingerprint",
            "known-to",
            "rule",
            "responsible",
        ])?;
        let term = Term {
            since: self.time("since")?,
            until: self.time("until")?,
            by: By::from_stored(self.word("by")?),
            reason: self.word("reason")?.into(),
        };
        let owner = self.owner()?;
        match self.word("exception")? {
            GRANT => {
                let (limit, rate) = (self.word("limit")?.into(), self.word("rate")?.into());
                Ok(Line::Grant(Grant { limit, owner, rate, term }))
            }
            SUSPENSION => {
                // Lines of before version 7 of the state file lack these keys.
                let (is_strict, new_password) = (self.flag("strict")?.unwrap_or(true), self.new_password()?);
                let known_to = match self.0.contains_key("known-to") {
                    true => Some(KnownTo::parse(self.word("known-to")?).ok_or("\"known-to\" is no memory")?),
                    false => None,
                };
                Ok(Line::Suspension(Suspension { owner, term, is_strict, known_to, new_password }))
            }
            EGRESS => {
                let mut parts = owner.parts();
                let (Some(("client", client)), None) = (parts.next(), parts.next()) else {
                    return Err("\"owner\" must have a client, and nothing else".to_owned());
                };
                let network = parse_network(client)?;
                let rule = EgressRule::parse(self.word("rule")?).ok_or("\"rule\" is not known")?;
                let owner = self.word("responsible")?;
                if owner.contains(char::is_control) || owner.is_empty() && rule != EgressRule::Quarantine {
                    return Err("\"responsible\" is empty, or has a control character".to_owned());
                }
                Ok(Line::EgressEntry(EgressEntry { network, rule, owner: owner.into(), term }))
            }
            other => Err(format!("\"exception\" must be \"grant\", \"suspension\" or \"egress\", not \"{other}\"")),
        }
    }

    fn new_password(&self) -> Result<NewPassword, String> {
        if self.flag("ends-on-new-password")? != Some(true) {
            return Ok(NewPassword::Keeps);
        }
        if !self.0.contains_key("password-fingerprint") {
            return Ok(NewPassword::Ends(None));
        }
        let fingerprint = PasswordFingerprint::parse(self.word("password-fingerprint")?);
        let why = "\"password-fingerprint\" must be four hexadecimal digits";
        Ok(NewPassword::Ends(Some(fingerprint.ok_or(why)?)))
    }

    fn flag(&self, name: &str) -> Result<Option<bool>, String> {
        let bad = || format!("\"{name}\" is not true or false");
        self.0.get(name).map(|value| value.as_bool().ok_or_else(bad)).transpose()
    }

    fn record(&self) -> Result<Line, String> {
        self.only(&["audit", "at", "limit", "owner", "rate", "until", "was", "by", "reason"])?;
        let act = self.word("audit")?;
        let maybe = |name: &str| self.0.contains_key(name).then(|| self.word(name).map(Arc::from)).transpose();
        Ok(Line::AuditRecord(AuditRecord {
            at: self.time("at")?,
            act: Act::parse(act).ok_or_else(|| format!("\"{act}\" is not an action"))?,
            limit: maybe("limit")?,
            owner: self.owner()?,
            rate: maybe("rate")?,
            until: self.0.contains_key("until").then(|| self.time("until")).transpose()?,
            was: maybe("was")?,
            by: By::from_stored(self.word("by")?),
            reason: self.word("reason")?.into(),
        }))
    }

    fn login(&self) -> Result<Line, String> {
        self.only(&["login", "network", "first", "last", "logins", "country", "tls", "mechanism", "helo"])?;
        let text = |name| match self.word(name)? {
            text if text.is_empty() || text.len() > MAX_LOGIN_OCTETS || text.contains(char::is_control) => {
                Err(format!("\"{name}\" is empty or too long, or has a control character"))
            }
            text => Ok(text),
        };
        let maybe = |name| self.0.contains_key(name).then(|| text(name).map(Arc::from)).transpose();
        let logins = self.0.get("logins").and_then(Value::as_u64).filter(|logins| *logins > 0);
        let row = LoginRow {
            first: self.time("first")?,
            last: self.time("last")?,
            logins: logins.ok_or("\"logins\" must be a number of at least 1")?,
            country: maybe("country")?,
            tls: maybe("tls")?,
            mechanism: maybe("mechanism")?,
            helo: self.names("helo")?,
        };
        Ok(Line::Login(LoginKey { user: text("login")?.into(), network: text("network")?.into() }, row))
    }

    /// Returns the EHLO names of a login.
    fn names(&self, name: &str) -> Result<Vec<Arc<str>>, String> {
        let Some(names) = self.0.get(name) else { return Ok(Vec::new()) };
        let names = names.as_array().filter(|names| names.len() <= MAX_NAMES);
        let names = names.ok_or_else(|| format!("\"{name}\" must be a list of at most {MAX_NAMES} names"))?;
        let is_name = |text: &&str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
        let parsed = names.iter().map(|one| one.as_str().filter(is_name).map(login_history::name));
        parsed.collect::<Option<_>>().ok_or_else(|| format!("\"{name}\" has a value that is no name"))
    }

    fn only(&self, names: &[&str]) -> Result<(), String> {
        match self.0.keys().find(|name| !names.contains(&name.as_str())) {
            Some(name) => Err(format!("\"{name}\" is not known")),
            None => Ok(()),
        }
    }

    fn word(&self, name: &str) -> Result<&str, String> {
        match self.0.get(name).map(Value::as_str) {
            Some(Some(word)) => Ok(word),
            Some(None) => Err(format!("\"{name}\" is not a string")),
            None => Err(format!("\"{name}\" is missing")),
        }
    }

    fn time(&self, name: &str) -> Result<Timestamp, String> {
        parse_time(self.word(name)?).map_err(|error| error.to_string())
    }

    /// Returns the fields of "owner" and their values, in the order in which budget keys have them.
    fn owners(&self) -> Result<Vec<(&str, &str)>, String> {
        let owner = self.0.get("owner").and_then(Value::as_object).ok_or("\"owner\" must be a JSON object")?;
        let owners = owner.iter().map(|(owner, value)| value.as_str().map(|value| (owner.as_str(), value)));
        let mut owners: Vec<_> = owners.collect::<Option<_>>().ok_or("the values of \"owner\" must be strings")?;
        let is_known = |name: &str| name == Memory::SHARD || Field::parse(name).is_some();
        if let Some((owner, _)) = owners.iter().find(|(name, _)| !is_known(name)) {
            return Err(format!("\"owner\" has the unknown field \"{owner}\""));
        }
        owners.sort_by_key(|(name, _)| (*name == Memory::SHARD, Field::parse(name)));
        Ok(owners)
    }

    fn owner(&self) -> Result<Owner, String> {
        let owners = self.owners()?;
        match owners.iter().find(|(_, value)| value.chars().any(char::is_control)) {
            Some((_, value)) => Err(format!("\"owner\" has a control character in \"{}\"", value.escape_debug())),
            None => Ok(Owner::from_parts(owners.into_iter().map(|(field, value)| (field.into(), value)))),
        }
    }
}
