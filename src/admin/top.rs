//! Top senders, and the fullest budgets of a limit.

use super::budget_row::{self, BudgetRow};
use super::{Api, ApiError, Errors, Json, Path, Query};
use crate::clock;
use crate::engine::State;
use crate::policy::budgets::{Key, Owner};
use crate::policy::limit::Limit;
use crate::policy::{BudgetViews, FullnessScan, Policy};
use crate::server::Server;
use crate::store::Store;
use crate::time::Timestamp;
use crate::top::{Amounts, SenderKind, SortBy, TopSender};
use axum::extract::State as ApiState;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use utoipa::{IntoParams, ToSchema};

/// Maximum number of rows in an answer.
pub const MAX_ROWS: u32 = 10_000;

#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TopQuery {
    /// Quantity whose rate orders the senders, the highest first.
    #[serde(default)]
    pub by: SortBy,
    /// Only users, or only clients without a login; default: both.
    #[serde(default)]
    #[param(inline)]
    pub kind: Option<SenderKind>,
    /// Maximum number of senders.
    #[serde(default = "default_rows")]
    #[param(minimum = 1, maximum = 10_000, default = 20)]
    pub rows: u32,
}

#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LimitTopQuery {
    /// Maximum number of budgets.
    #[serde(default = "default_rows")]
    #[param(minimum = 1, maximum = 10_000, default = 20)]
    pub rows: u32,
}

fn default_rows() -> u32 {
    20
}

/// The senders that send or are refused most at present.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct TopAnswer {
    #[schema(format = DateTime)]
    pub time: String,
    pub by: SortBy,
    pub senders: Vec<SenderRow>,
    pub last_hour: LastHour,
}

/// Sums over all senders in the last hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LastHour {
    /// Messages that the upstream accepted.
    pub messages: u64,
    /// Recipients of these messages.
    pub recipients: u64,
    /// Commands and messages that were refused.
    pub refusals: u64,
}

/// Sender, with its activity. Rates are averages over about the last ten minutes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct SenderRow {
    pub kind: SenderKind,
    /// User, or network of a client without a login.
    pub name: String,
    /// Messages per minute that the upstream accepted.
    pub messages_per_minute: f64,
    /// Recipients of these messages per minute.
    pub recipients_per_minute: f64,
    /// Commands and messages per minute that were refused.
    pub refusals_per_minute: f64,
    /// Octets of the accepted messages per minute.
    pub octets_per_minute: f64,
    /// Time since which the sender is active.
    #[schema(format = DateTime)]
    pub since: String,
    /// Time of the last message or refusal.
    #[schema(format = DateTime)]
    pub last: String,
    /// Messages since `since`, and so on.
    pub messages: u64,
    pub recipients: u64,
    pub refusals: u64,
    pub octets: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_refusal: Option<LastRefusalRow>,
}

/// Last refusal of a sender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LastRefusalRow {
    #[schema(format = DateTime)]
    pub time: String,
    /// Name of the limit, or `suspended`, `sender-mismatch` or `upstream`.
    pub by: String,
    pub stage: String,
    /// Reference in the reply; none if the upstream refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
}

/// The fullest budgets of a limit.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LimitTopAnswer {
    #[schema(format = DateTime)]
    pub time: String,
    pub limit: String,
    /// Number of budgets of the limit in memory. Budgets that were not used for long are in the state file alone, and are
    /// not shown.
    pub budgets_in_memory: u64,
    /// The fullest budgets, the fullest first.
    pub budgets: Vec<BudgetRow>,
}

/// Returns the users, and the clients without a login, that send or are refused most.
#[utoipa::path(get, path = "/v1/top", params(TopQuery),
    responses((status = 200, description = "The senders", body = TopAnswer), Errors))]
pub async fn senders(
    ApiState(api): ApiState<Api>,
    Query(TopQuery { by, kind, rows }): Query<TopQuery>,
) -> Result<Json<TopAnswer>, ApiError> {
    let (server, now) = (api.server()?, clock::now());
    let senders = server.top.senders(now, kind, by, checked(rows)?);
    Ok(Json(TopAnswer {
        time: now.rfc3339(),
        by,
        senders: senders.iter().map(SenderRow::from).collect(),
        last_hour: last_hour(&server, now),
    }))
}

/// Returns the fullest budgets of a limit, among those in memory.
#[utoipa::path(get, path = "/v1/limits/{name}/top", params(("name" = String, Path, description = "The limit"), LimitTopQuery),
    responses((status = 200, description = "The budgets", body = LimitTopAnswer), Errors))]
pub async fn of_limit(
    ApiState(api): ApiState<Api>,
    Path(name): Path<String>,
    Query(LimitTopQuery { rows }): Query<LimitTopQuery>,
) -> Result<Json<LimitTopAnswer>, ApiError> {
    let (server, now) = (api.server()?, clock::now());
    let policy = server.store.policy();
    let limit = policy.limit(&name).map_err(ApiError::not_found)?;
    if !limit.is_stored() {
        let period = limit.quota.period();
        let why = format!("limit \"{name}\" counts within a {period}: nothing is kept beyond that");
        return Err(ApiError::refused(why));
    }
    let rows = checked(rows)?;
    let (candidates, budgets_in_memory) = fullest(&server.store, &policy, limit, rows, now).await;
    let mut budgets = Vec::new();
    for (key, state) in candidates {
        let groups = groups(&server, &policy, limit, &key.owner()).await;
        let total = total_key(&policy, &key, now).and_then(|key| server.store.state_in_memory(&key));
        budgets.extend(budget_row::describe(&policy, (&key, Some(state), total), (None, groups.as_deref()), now));
    }
    budgets.sort_by(|one, other| other.fullness().total_cmp(&one.fullness()).then_with(|| one.owner.cmp(&other.owner)));
    budgets.truncate(rows);
    Ok(Json(LimitTopAnswer { time: now.rfc3339(), limit: name, budgets_in_memory, budgets }))
}

/// Returns the sums over all senders in the last hour.
pub fn last_hour(server: &Server, now: Timestamp) -> LastHour {
    let sums = server.top.last_hour(now);
    LastHour { messages: sums.messages, recipients: sums.recipients, refusals: sums.refusals }
}

fn checked(rows: u32) -> Result<usize, ApiError> {
    match rows {
        1..=MAX_ROWS => Ok(rows as usize),
        _ => Err(ApiError::refused(format!("rows must be 1 to {MAX_ROWS}, and not {rows}"))),
    }
}

/// Number of candidates for each row. A limit whose overrides are by group gives each user another quota, and the scan
/// does not know the groups. The scan therefore finds more budgets than are wanted, by the highest possible fullness.
const CANDIDATES: usize = 10;

/// Finds the budgets of a limit that may be the fullest, in no order. Also returns the number of the limit's budgets in
/// memory.
async fn fullest(
    store: &Store,
    policy: &Policy,
    limit: &Limit,
    rows: usize,
    now: Timestamp,
) -> (Vec<(Key, State)>, u64) {
    let scan = FullnessScan::new(policy, &limit.name, now);
    let wanted = if scan.is_estimate() { (rows * CANDIDATES).min(MAX_ROWS as usize) } else { rows };
    let (mut count, mut lowest, mut found) = (0, f64::NEG_INFINITY, Vec::new());
    store
        .scan_budgets(|key, state| {
            let Some(fullness) = scan.fullness(key, state) else { return };
            count += 1;
            if fullness <= lowest {
                return;
            }
            found.push((fullness, key.owned(), state));
            // Memory is bounded: when there are twice as many as wanted, the lower half is dropped.
            if found.len() >= 2 * wanted {
                found.select_nth_unstable_by(wanted - 1, |(one, ..), (other, ..)| other.total_cmp(one));
                found.truncate(wanted);
                lowest = found.last().map_or(lowest, |(fullness, ..)| *fullness);
            }
        })
        .await;
    found.sort_unstable_by(|(one, ..), (other, ..)| other.total_cmp(one));
    found.truncate(wanted);
    (found.into_iter().map(|(_, key, state)| (key, state)).collect(), count)
}

fn total_key(policy: &Policy, key: &Key, now: Timestamp) -> Option<Key> {
    BudgetViews::new(policy, now).of(key.borrowed(), None)?.total_key(key)
}

/// Returns the groups of the owner's account, if the limit needs them and the users file has them.
pub async fn groups(server: &Server, policy: &Policy, limit: &Limit, owner: &Owner) -> Option<Vec<Box<str>>> {
    let names: HashSet<_> = [&limit.matcher.matches, &limit.matcher.except]
        .into_iter()
        .flatten()
        .flat_map(|table| table.0.iter().map(|condition| condition.name()))
        .collect();
    let is_by_group = limit.overrides.as_deref().is_some_and(|overrides| overrides.rows.is_by_group());
    if !is_by_group && !names.contains("group") {
        return None;
    }
    let (_, user) = owner.parts().find(|(field, _)| *field == "user")?;
    let accounts = server.accounts.as_ref()?;
    // A search through all accounts for each of many budgets would cost too much. The usual reason for two spellings is the
    // default domain.
    let mut found = accounts.recent_user(user).await;
    if let (None, Some((local, domain))) = (&found, user.rsplit_once('@'))
        && policy.normalizer.is_default_domain(Some(domain))
    {
        found = accounts.recent_user(local).await;
    }
    found.map(|user| user.groups().to_vec())
}

impl From<&TopSender> for SenderRow {
    fn from(sender: &TopSender) -> Self {
        let TopSender { kind, name, rates, sums, since, last, last_refusal } = sender;
        let Amounts { messages, recipients, refusals, octets } = *sums;
        // Two decimals are enough, and a rate far below 0.01 is 0 instead of a number such as 1e-30.
        let rounded = |rate: f64| (rate * 100.0).round() / 100.0;
        Self {
            kind: *kind,
            name: name.to_string(),
            messages_per_minute: rounded(rates.messages),
            recipients_per_minute: rounded(rates.recipients),
            refusals_per_minute: rounded(rates.refusals),
            octets_per_minute: rates.octets.round(),
            since: since.rfc3339(),
            last: last.rfc3339(),
            messages,
            recipients,
            refusals,
            octets,
            last_refusal: last_refusal.as_ref().map(|refusal| LastRefusalRow {
                time: refusal.at.rfc3339(),
                by: refusal.by.to_string(),
                stage: refusal.stage.to_owned(),
                reference: refusal.reference.as_deref().map(str::to_owned),
            }),
        }
    }
}
