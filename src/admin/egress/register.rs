//! Register of direct ways: lists its entries, registers and quarantines networks.

use crate::admin::exceptions::{checked_reason, checked_term};
use crate::admin::{Api, ApiError, Caller, Errors, ErrorsOrDoubts, Json, Query};
use crate::clock;
use crate::egress::{Way, WayCheck};
use crate::policy::egress::{EgressEntry, EgressKey, EgressRule, MAX_ENTRIES, NetworkText, parse_network};
use crate::policy::exception::{By, Term};
use crate::store::Kept;
use crate::time::{Timestamp, format_wait, parse_time};
use axum::extract::State;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;
use utoipa::{IntoParams, ToSchema};

/// Longest name of the person or office that is responsible for a network, in characters.
const MAX_OWNER_LENGTH: usize = 200;

/// What an entry of the register does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// The network may connect to mail servers outside.
    Out,
    /// Mail servers outside may connect to the network.
    In,
    OutAndIn,
    /// Both directions are closed.
    Quarantine,
}

/// Directions of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Ways {
    Out,
    In,
    OutAndIn,
}

/// Entry of the register.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct EgressLine {
    /// Address or network.
    pub network: String,
    pub rule: Rule,
    /// The person or office that is responsible for the network. Empty if none was named.
    pub owner: String,
    #[schema(format = DateTime)]
    pub since: String,
    /// End; `9999-12-31T23:59:59Z` if the entry stays until it is removed.
    #[schema(format = DateTime)]
    pub until: String,
    /// The administrator, `token:NAME`, or, for a suspension, `limit NAME`.
    pub by: String,
    pub reason: String,
    /// True if it is no entry of the register, but a suspension.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspension: bool,
}

/// The register, and the suspensions that close direct ways.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct EgressAnswer {
    /// Text that changes whenever the entries or the suspensions may have changed.
    pub revision: String,
    /// Entries in force, sorted by network. Left out if they have not changed since the `known` revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries: Option<Vec<EgressLine>>,
    /// Suspended clients, whose direct ways are closed. Left out if they have not changed since the `known` revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspensions: Option<Vec<EgressLine>>,
}

/// Direct ways of an address.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct EgressCheck {
    pub address: String,
    /// To mail servers outside.
    pub out: WayState,
    /// From mail servers outside.
    pub r#in: WayState,
    /// The entry that decides on the way out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_entry: Option<EgressLine>,
    /// The entry that decides on the way in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_entry: Option<EgressLine>,
}

/// State of a direct way. `[egress]` says whether an unregistered address may receive mail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WayState {
    Registered,
    /// Closed by a quarantine or a suspension.
    Quarantined,
    Unregistered,
}

/// Result of an act on the register.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct EgressActAnswer {
    /// What was done, for people. Several lines.
    pub message: String,
    /// The entry that begins or ends.
    pub entry: EgressLine,
    /// The entry that the new one replaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced: Option<EgressLine>,
    /// False if the change holds, but is not in the state file yet.
    pub is_in_state_file: bool,
}

#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EgressQuery {
    /// Revision of the former answer. If nothing has changed, the answer has neither entries nor suspensions.
    #[serde(default)]
    pub known: Option<String>,
}

#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct CheckQuery {
    /// Address of a client.
    pub address: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RegisterRequest {
    /// Address, or network without host bits.
    pub network: String,
    pub ways: Ways,
    /// The person or office that is responsible for the network. Not empty.
    #[schema(min_length = 1, max_length = 200)]
    pub owner: String,
    /// Duration in seconds. Required without `until-removed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(exclusive_minimum = 0.0, maximum = 315_360_000.0)]
    pub for_seconds: Option<f64>,
    /// Until the registration is removed. Excludes `for-seconds`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub until_removed: bool,
    /// For the audit trail. Not empty.
    #[schema(min_length = 1, max_length = 500)]
    pub reason: String,
    /// Register also if this looks like a mistake.
    #[serde(default)]
    pub force: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct QuarantineRequest {
    /// Address, or network without host bits.
    pub network: String,
    /// The person or office that is responsible for the network.
    #[serde(default)]
    #[schema(max_length = 200)]
    pub owner: String,
    /// Duration in seconds. Required without `until-removed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(exclusive_minimum = 0.0, maximum = 315_360_000.0)]
    pub for_seconds: Option<f64>,
    /// Until the quarantine is removed. Excludes `for-seconds`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub until_removed: bool,
    /// For the audit trail. Not empty.
    #[schema(min_length = 1, max_length = 500)]
    pub reason: String,
    /// Quarantine also if this looks like a mistake.
    #[serde(default)]
    pub force: bool,
}

#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RemoveQuery {
    /// Address or network, as in the entry.
    pub network: String,
    /// For the audit trail.
    #[serde(default)]
    pub reason: Option<String>,
}

impl From<EgressRule> for Rule {
    fn from(rule: EgressRule) -> Self {
        match rule {
            EgressRule::Out => Self::Out,
            EgressRule::In => Self::In,
            EgressRule::OutAndIn => Self::OutAndIn,
            EgressRule::Quarantine => Self::Quarantine,
        }
    }
}

impl From<&EgressEntry> for EgressLine {
    fn from(EgressEntry { network, rule, owner, term }: &EgressEntry) -> Self {
        Self {
            network: NetworkText(*network).to_string(),
            rule: (*rule).into(),
            owner: owner.to_string(),
            since: term.since.rfc3339_exact(),
            until: term.until.rfc3339_exact(),
            by: term.by.to_string(),
            reason: term.reason.to_string(),
            suspension: false,
        }
    }
}

impl TryFrom<&EgressLine> for EgressEntry {
    type Error = String;

    fn try_from(line: &EgressLine) -> Result<Self, String> {
        let EgressLine { network, rule, owner, since, until, by, reason, suspension: _ } = line;
        let rule = match rule {
            Rule::Out => EgressRule::Out,
            Rule::In => EgressRule::In,
            Rule::OutAndIn => EgressRule::OutAndIn,
            Rule::Quarantine => EgressRule::Quarantine,
        };
        let time = |text: &str| parse_time(text).map_err(|error| error.to_string());
        let (since, until, by) = (time(since)?, time(until)?, By::from_stored(by));
        let term = Term { since, until, by, reason: reason.as_str().into() };
        Ok(Self { network: parse_network(network)?, rule, owner: owner.as_str().into(), term })
    }
}

/// Returns the register of direct ways, and the suspensions that close direct ways.
#[utoipa::path(get, path = "/v1/egress", params(EgressQuery),
    responses((status = 200, description = "The register", body = EgressAnswer), Errors))]
pub async fn list(State(api): State<Api>, Query(query): Query<EgressQuery>) -> Result<Json<EgressAnswer>, ApiError> {
    let (server, now) = (api.server()?, clock::now());
    server.store.check_exceptions_are_read().map_err(ApiError::unavailable)?;
    let policy = server.store.policy();
    let exceptions = &policy.exceptions;
    // Numbers of changes begin anew when Weir starts.
    let revision = format!("{}-{}", api.started().micros(), exceptions.egress_changes());
    if query.known.as_deref() == Some(&*revision) {
        return Ok(Json(EgressAnswer { revision, entries: None, suspensions: None }));
    }
    let entries = exceptions.egress().entries().filter(|entry| entry.term.holds(now));
    let entries = Some(entries.map(|entry| EgressLine::from(&**entry)).collect());
    let mut suspensions: Vec<EgressEntry> =
        exceptions.quarantines_of_suspensions().filter(|entry| entry.term.holds(now)).collect();
    suspensions.sort_by_key(|entry| entry.network);
    let of_suspension = |entry| EgressLine { suspension: true, ..EgressLine::from(entry) };
    let suspensions = Some(suspensions.iter().map(of_suspension).collect());
    Ok(Json(EgressAnswer { revision, entries, suspensions }))
}

/// Returns the direct ways of an address, and the entries that decide.
#[utoipa::path(get, path = "/v1/egress/check", params(CheckQuery),
    responses((status = 200, description = "The ways", body = EgressCheck), Errors))]
pub async fn check(State(api): State<Api>, Query(query): Query<CheckQuery>) -> Result<Json<EgressCheck>, ApiError> {
    let (server, now) = (api.server()?, clock::now());
    server.store.check_exceptions_are_read().map_err(ApiError::unavailable)?;
    let policy = server.store.policy();
    let text = query.address.trim();
    let address: IpAddr = text.parse().map_err(|_| format!("\"{}\" is not an address", text.escape_debug()))?;
    let suspensions: Vec<EgressEntry> = policy.exceptions.quarantines_of_suspensions().collect();
    let entries = policy.exceptions.egress().entries().map(|entry| &**entry).chain(&suspensions);
    let check = WayCheck::of(entries, address, now);
    let ((out, out_entry), (r#in, in_entry)) = (state(check.out), state(check.incoming));
    Ok(Json(EgressCheck { address: address.to_canonical().to_string(), out, r#in, out_entry, in_entry }))
}

fn state(way: Way<'_>) -> (WayState, Option<EgressLine>) {
    match way {
        Way::Registered(entry) => (WayState::Registered, Some(entry.into())),
        Way::Quarantined(entry) => (WayState::Quarantined, Some(entry.into())),
        Way::Unregistered => (WayState::Unregistered, None),
    }
}

/// Registers a network for a direct way.
///
/// Replaces a former registration of the same network.
#[utoipa::path(post, path = "/v1/egress/registrations", request_body = RegisterRequest,
    responses((status = 200, description = "Registered", body = EgressActAnswer), ErrorsOrDoubts))]
pub async fn register(
    State(api): State<Api>,
    caller: Caller,
    Json(request): Json<RegisterRequest>,
) -> Result<Json<EgressActAnswer>, ApiError> {
    let RegisterRequest { network, ways, owner, for_seconds, until_removed, reason, force } = request;
    let rule = match ways {
        Ways::Out => EgressRule::Out,
        Ways::In => EgressRule::In,
        Ways::OutAndIn => EgressRule::OutAndIn,
    };
    let owner = checked_owner(&owner)?;
    if owner.is_empty() {
        return Err("the owner is empty: name who is responsible for the network".to_owned().into());
    }
    let term = term(&caller, (for_seconds, until_removed), &reason)?;
    add(&api, EgressEntry { network: parse_network(&network)?, rule, owner, term }, force).await
}

/// Quarantines a network: closes its direct ways, also those of registered addresses.
///
/// Replaces a former quarantine of the same network.
#[utoipa::path(post, path = "/v1/egress/quarantines", request_body = QuarantineRequest,
    responses((status = 200, description = "Quarantined", body = EgressActAnswer), ErrorsOrDoubts))]
pub async fn quarantine(
    State(api): State<Api>,
    caller: Caller,
    Json(request): Json<QuarantineRequest>,
) -> Result<Json<EgressActAnswer>, ApiError> {
    let QuarantineRequest { network, owner, for_seconds, until_removed, reason, force } = request;
    let term = term(&caller, (for_seconds, until_removed), &reason)?;
    let (network, rule, owner) = (parse_network(&network)?, EgressRule::Quarantine, checked_owner(&owner)?);
    add(&api, EgressEntry { network, rule, owner, term }, force).await
}

/// Removes a registration before its end.
#[utoipa::path(delete, path = "/v1/egress/registrations", params(RemoveQuery),
    responses((status = 200, description = "Removed", body = EgressActAnswer), Errors))]
pub async fn unregister(
    State(api): State<Api>,
    caller: Caller,
    Query(query): Query<RemoveQuery>,
) -> Result<Json<EgressActAnswer>, ApiError> {
    remove(&api, &caller, &query, false).await
}

/// Removes a quarantine before its end.
#[utoipa::path(delete, path = "/v1/egress/quarantines", params(RemoveQuery),
    responses((status = 200, description = "Removed", body = EgressActAnswer), Errors))]
pub async fn unquarantine(
    State(api): State<Api>,
    caller: Caller,
    Query(query): Query<RemoveQuery>,
) -> Result<Json<EgressActAnswer>, ApiError> {
    remove(&api, &caller, &query, true).await
}

async fn add(api: &Api, entry: EgressEntry, is_forced: bool) -> Result<Json<EgressActAnswer>, ApiError> {
    let store = &api.server()?.store;
    let policy = store.policy();
    let register = policy.exceptions.egress();
    if register.len() >= MAX_ENTRIES && register.get(entry.key()).is_none() {
        return Err(ApiError::refused(format!("the register has {MAX_ENTRIES} entries, which is the maximum")));
    }
    let mut message = String::new();
    if is_wide(entry.network) {
        let doubt = format!("{} is a very large network", NetworkText(entry.network));
        match is_forced {
            true => _ = writeln!(message, "warning: {doubt}"),
            false => return Err(ApiError::doubtful(vec![doubt])),
        }
    }
    let line = EgressLine::from(&entry);
    let what = if entry.key().is_quarantine { "quarantined" } else { "registered" };
    let _ = writeln!(message, "{what}: {}", described(&entry, entry.term.since));
    let suspensions: Vec<EgressEntry> = policy.exceptions.quarantines_of_suspensions().collect();
    let others = register.entries().map(|entry| &**entry).chain(&suspensions);
    if let (false, Way::Quarantined(quarantine)) =
        (entry.key().is_quarantine, WayCheck::of(others, entry.network.addr(), entry.term.since).out)
    {
        let _ = writeln!(message, "meanwhile it stays closed: {}", described(quarantine, entry.term.since));
    }
    let now = entry.term.since;
    let (replaced, kept) = store.register(entry).await;
    if let Some(former) = &replaced {
        let _ = writeln!(message, "it takes the place of: {}", described(former, now));
    }
    Ok(Json(answer(message, line, replaced.as_deref(), &kept)))
}

async fn remove(
    api: &Api,
    caller: &Caller,
    query: &RemoveQuery,
    is_quarantine: bool,
) -> Result<Json<EgressActAnswer>, ApiError> {
    let network = parse_network(&query.network)?;
    let reason = checked_reason(query.reason.as_deref().unwrap_or_default(), false)?;
    let (key, now) = (EgressKey { network, is_quarantine }, clock::now());
    let Some((entry, kept)) = api.server()?.store.unregister(key, (caller.by(), reason), now).await else {
        let is = if is_quarantine { "quarantined" } else { "registered" };
        let network = NetworkText(network);
        return Err(ApiError::refused(format!("{network} is not {is}: weir egress list prints the register")));
    };
    let message = format!("removed: {}\n", described(&entry, now));
    Ok(Json(answer(message, EgressLine::from(&*entry), None, &kept)))
}

fn answer(message: String, entry: EgressLine, replaced: Option<&EgressEntry>, kept: &Kept) -> EgressActAnswer {
    let message = message + &crate::admin::exceptions::kept(kept);
    EgressActAnswer {
        message,
        entry,
        replaced: replaced.map(EgressLine::from),
        is_in_state_file: *kept == Kept::InFile,
    }
}

/// Returns a line about an entry, for people.
pub fn described(entry: &EgressEntry, now: Timestamp) -> String {
    let EgressEntry { network, rule, owner, term } = entry;
    let owner = if owner.is_empty() { String::new() } else { format!(" for {owner}") };
    let until = match term.left(now) {
        Some(left) => format!("{} left, until {}", format_wait(left), term.until.rfc3339()),
        None => "until removed".to_owned(),
    };
    let reason = if term.reason.is_empty() { String::new() } else { format!(": {}", term.reason) };
    format!("{}  {}{owner}, {until}, by {}{reason}", NetworkText(*network), rule.name(), term.by)
}

/// Returns whether the network is probably larger than what one entry is meant for.
fn is_wide(network: IpNet) -> bool {
    network.prefix_len() < if matches!(network, IpNet::V4(_)) { 8 } else { 32 }
}

fn checked_owner(owner: &str) -> Result<Arc<str>, String> {
    let owner = owner.trim();
    match owner.chars().count() {
        count if count > MAX_OWNER_LENGTH => Err(format!("owner has {count} characters: {MAX_OWNER_LENGTH} at most")),
        _ if owner.contains(char::is_control) => {
            Err(format!("owner has a control character in it: \"{}\"", owner.escape_debug()))
        }
        _ => Ok(owner.into()),
    }
}

fn term(caller: &Caller, (for_seconds, until_removed): (Option<f64>, bool), reason: &str) -> Result<Term, String> {
    let (now, reason) = (clock::now(), checked_reason(reason, true)?);
    let until = match (for_seconds, until_removed) {
        (Some(seconds), false) => now.after(checked_term(seconds)?),
        (None, true) => Timestamp::END_OF_9999,
        _ => return Err("give exactly one of for-seconds and until-removed".to_owned()),
    };
    Ok(Term { since: now, until, by: caller.by(), reason })
}
