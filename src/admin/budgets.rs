//! Budgets of an owner, with the account, the exceptions, the activity and the logins: the answer to `weir show`.

pub use super::budget_row::Applies;
use super::budget_row::{self, BudgetRow};
use super::exceptions::{Exception, OwnerFields, applicability, owner_fields};
use super::logins::LoginLine;
use super::owner_keys::Wanted;
use super::refusals::{self, StoredRefusal};
use super::suspicion;
pub use super::suspicion::{SignRow, SuspicionRow};
use super::top::SenderRow;
use super::{Api, ApiError, Errors, Json, Query};
use crate::accounts::Accounts;
use crate::clock;
use crate::engine::State;
use crate::policy::address::AddressNormalizer;
use crate::policy::budgets::{Key, KeyRef, Owner};
use crate::policy::limit::Limit;
use crate::policy::{BudgetViews, Policy, UserFilter, has_part};
use crate::server::Server;
use crate::store::{FoundBudgets, RefusalFilter, Store};
use crate::time::Timestamp;
use crate::top::{SenderKind, SortBy};
use axum::extract::State as ApiState;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::{IntoParams, ToSchema};

/// Maximum number of budgets that a search finds.
const MAX_FOUND: usize = 1_000;

/// Number of the last refusals in an answer.
const MAX_REFUSALS: usize = 5;

#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct BudgetsQuery {
    /// User, client, sender or domain of users: `alice`, `user=alice`, `client=192.0.2.7`, `sender=bob@example.org`,
    /// `user-domain=example.org`.
    #[param(max_length = 1024)]
    pub owner: String,
}

/// All budgets of an owner, and what else Weir knows about the owner.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct BudgetsAnswer {
    #[schema(format = DateTime)]
    pub time: String,
    /// The owner, in normal form.
    pub owner: OwnerFields,
    /// Account of the user; null if the owner is no user.
    pub account: Option<AccountRow>,
    /// Suspensions in force that refuse the owner's mail.
    pub suspensions: Vec<Exception>,
    /// Grants in force for the owner.
    pub grants: Vec<Exception>,
    /// Budgets, the fullest first.
    pub budgets: Vec<BudgetRow>,
    /// Reason why budgets may be missing; null if none is.
    pub incomplete: Option<String>,
    /// Suspicion score of the user; null if the owner is no user, or if no limit is a sign.
    pub suspicion: Option<SuspicionRow>,
    /// Reason why the suspicion score is not known; null if it is.
    pub suspicion_unknown: Option<String>,
    /// Present activity, if the owner is one of the top senders.
    pub activity: Option<SenderRow>,
    /// Last refusals of the user or client that are stored, the newest first.
    pub refusals: Vec<StoredRefusal>,
    /// Reason why the refusals are not known; null if they are, or if the owner is neither a user nor a client.
    pub refusals_unknown: Option<String>,
    /// Logins of the user, the newest first: one for each network.
    pub logins: Vec<LoginLine>,
    /// Reason why the logins are not known; null if they are, or if the owner is no user.
    pub logins_unknown: Option<String>,
}

/// Account of a user in the users file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct AccountRow {
    /// Null: the users file does not have the user, but another source of accounts perhaps has.
    pub is_known: Option<bool>,
    pub is_disabled: bool,
    pub groups: Vec<String>,
}

/// Returns all budgets of a user, client, sender or domain of users, and what else Weir knows about it.
#[utoipa::path(get, path = "/v1/budgets", params(BudgetsQuery),
    responses((status = 200, description = "The budgets", body = BudgetsAnswer), Errors))]
pub async fn of_owner(
    ApiState(api): ApiState<Api>,
    Query(BudgetsQuery { owner }): Query<BudgetsQuery>,
) -> Result<Json<BudgetsAnswer>, ApiError> {
    let (server, now) = (api.server()?, clock::now());
    let policy = server.store.policy();
    let owner = Owner::of_sender(&owner, &policy.normalizer)?;
    let wanted = Wanted::new(&owner).ok_or_else(|| ApiError::refused("nobody is named"))?;
    let user = Some(&*wanted.value).filter(|_| wanted.field == "user");
    let (account, groups) = match user {
        Some(user) => account(server.accounts.as_ref(), user, &policy.normalizer).await,
        None => (None, None),
    };
    let (budgets, incomplete) = budgets(&server.store, &policy, &wanted, groups.as_deref(), now).await;
    let (refusals, refusals_unknown) = refusals(&server.store, &wanted).await;
    let (logins, logins_unknown) = match user {
        Some(user) => logins(&server.store, user, now).await,
        None => (Vec::new(), None),
    };
    let (suspicion, suspicion_unknown) = match user.map(|user| suspicion::row(&server.store, user, &budgets, now)) {
        Some(row) => row.await,
        None => (None, None),
    };
    let exceptions = &policy.exceptions;
    let grants = exceptions.grants().filter(|grant| grant.term.holds(now) && wanted.is_part_of(&grant.owner));
    let suspensions = exceptions.suspensions().filter(|one| one.term.holds(now) && wanted.is_refused_by(&one.owner));
    Ok(Json(BudgetsAnswer {
        // Terms of exceptions are exact, so that "8h left" is 8h at first.
        time: now.rfc3339_exact(),
        owner: owner_fields(&owner),
        account,
        suspensions: suspensions.map(|one| Exception::of_suspension(one, &policy.suspensions)).collect(),
        grants: grants.map(|grant| Exception::from(&**grant)).collect(),
        budgets,
        incomplete,
        suspicion,
        suspicion_unknown,
        activity: activity(&server, &wanted, now),
        refusals,
        refusals_unknown,
        logins,
        logins_unknown,
    }))
}

/// Returns the account of a user, and its groups if they are known. The users file can have another spelling of the name.
async fn account(
    accounts: Option<&Accounts>,
    user: &str,
    normalizer: &AddressNormalizer,
) -> (Option<AccountRow>, Option<Vec<Box<str>>>) {
    let unknown = |is_known| AccountRow { is_known, is_disabled: false, groups: Vec::new() };
    let Some(accounts) = accounts else { return (Some(unknown(None)), None) };
    let filter = UserFilter::new(user, normalizer);
    let Some(found) = accounts.find(move |name| filter.has(name)).await else {
        return (Some(unknown(accounts.knows_all_users().then_some(false))), None);
    };
    let groups = found.groups().to_vec();
    let names = groups.iter().map(ToString::to_string).collect();
    (Some(AccountRow { is_known: Some(true), is_disabled: found.is_disabled(), groups: names }), Some(groups))
}

/// Returns the budgets, and the reason why some may be missing.
async fn budgets(
    store: &Store,
    policy: &Policy,
    wanted: &Wanted,
    groups: Option<&[Box<str>]>,
    now: Timestamp,
) -> (Vec<BudgetRow>, Option<String>) {
    let FoundBudgets { budgets: found, mut incomplete } = search(store, policy, wanted).await;
    let mut states: BTreeMap<Key, Option<State>> = found.into_iter().map(|(key, state)| (key, Some(state))).collect();
    let own = wanted.own_keys(policy, now);
    let missing: Vec<Key> = own.into_iter().filter(|key| !states.contains_key(key)).collect();
    match store.look(&missing).await {
        Ok(read) => {
            let read = read.into_iter().map(|budget| budget.map(|budget| budget.state));
            states.extend(missing.into_iter().zip(read));
        }
        Err(why) => incomplete = Some(why),
    }
    let row = |(key, state): (&Key, &Option<State>)| {
        let total = BudgetViews::new(policy, now).of(key.borrowed(), groups)?.total_key(key);
        let total = total.and_then(|key| states.get(&key).copied().flatten().or_else(|| store.state_in_memory(&key)));
        let subject = wanted.subject(&key.owner());
        let row = budget_row::describe(policy, (key, *state, total), (subject, groups), now)?;
        Some(BudgetRow { lease_rest: store.rest_of_lease(key, now), ..row })
    };
    // A limit that does not apply is of interest only if it has charged the owner before.
    let is_foreign = |row: &BudgetRow| {
        let is_own = row.owner.keys().any(|field| field.split('/').next() == Some(&*wanted.field));
        matches!(row.applies, budget_row::Applies::No { .. }) && (row.changed.is_none() || !is_own)
    };
    let mut rows: Vec<BudgetRow> = states.iter().filter_map(row).filter(|row| !is_foreign(row)).collect();
    rows.extend(within_session(policy, wanted, groups, now));
    rows.sort_by(|one, other| other.fullness().total_cmp(&one.fullness()).then_with(|| one.limit.cmp(&other.limit)));
    (rows, incomplete)
}

/// Searches for the budgets with further fields than the wanted one, such as those per user and client.
async fn search(store: &Store, policy: &Policy, wanted: &Wanted) -> FoundBudgets {
    let has_more = |limit: &Limit| wanted.is_counted_by(limit) && (limit.per.len() > 1 || wanted.field == "client");
    if !policy.limits.iter().any(|limit| limit.is_stored() && has_more(limit)) {
        return FoundBudgets::default();
    }
    let wanted = wanted.clone();
    let is_wanted = move |key: KeyRef<'_>| wanted.is_counted_in(key);
    store.find_budgets(is_wanted, MAX_FOUND).await
}

/// Returns the limits that count the wanted field within each message or connection, and keep nothing beyond that.
fn within_session<'a>(
    policy: &'a Policy,
    wanted: &'a Wanted,
    groups: Option<&'a [Box<str>]>,
    now: Timestamp,
) -> impl Iterator<Item = BudgetRow> + 'a {
    let (limits, views) = (policy.limits.iter(), BudgetViews::new(policy, now));
    limits.filter(|limit| limit.watch.is_none() && !limit.is_stored()).filter_map(move |limit| {
        // If an owner has further fields, only the wanted owner is known.
        let known = || wanted.is_counted_by(limit).then(|| wanted.owner.clone());
        let owner = wanted.own_owner(policy, limit).or_else(known)?;
        let applies = applicability(limit, wanted.subject(&owner).unwrap_or(&owner), groups).into();
        let (quota, source) = views.quota_within_session(limit, &owner, groups);
        let row = BudgetRow::of_limit(limit, (quota, &source), &owner, applies);
        (!matches!(row.applies, budget_row::Applies::No { .. })).then_some(row)
    })
}

async fn refusals(store: &Store, wanted: &Wanted) -> (Vec<StoredRefusal>, Option<String>) {
    let filter = match &*wanted.field {
        "user" => {
            let user = UserFilter::new(&wanted.value, &store.policy().normalizer);
            RefusalFilter { user: Some(user), ..RefusalFilter::default() }
        }
        "client" => match wanted.value.parse() {
            Ok(client) => RefusalFilter { client: Some(client), ..RefusalFilter::default() },
            Err(why) => return (Vec::new(), Some(why)),
        },
        _ => return (Vec::new(), None),
    };
    if !store.keeps_refusals() {
        return (Vec::new(), Some("keep-refusals is \"0s\" in [state]".to_owned()));
    }
    match refusals::latest(store, filter, MAX_REFUSALS).await {
        Ok(refusals) => (refusals, None),
        Err(why) => (Vec::new(), Some(format!("the refusals cannot be read: {why}"))),
    }
}

async fn logins(store: &Store, user: &str, now: Timestamp) -> (Vec<LoginLine>, Option<String>) {
    if store.policy().login_history.keep.is_zero() {
        return (Vec::new(), Some("login-history is \"0s\" in [accounts]".to_owned()));
    }
    match store.logins(user, now).await {
        Ok(rows) => (rows.iter().map(|(key, row)| LoginLine::new(key, row)).collect(), None),
        Err(why) => (Vec::new(), Some(format!("the login history cannot be read: {why}"))),
    }
}

/// Returns the present activity of the wanted user or client, if it is one of the top senders.
fn activity(server: &Server, wanted: &Wanted, now: Timestamp) -> Option<SenderRow> {
    let kind = match &*wanted.field {
        "user" => SenderKind::User,
        "client" => SenderKind::Client,
        _ => return None,
    };
    let senders = server.top.senders(now, Some(kind), SortBy::default(), usize::MAX);
    let is_wanted = |name: &str| match kind {
        SenderKind::User => *name == *wanted.value,
        SenderKind::Client => has_part(std::iter::once(("client", name)), "client", &wanted.value),
    };
    senders.iter().find(|sender| is_wanted(&sender.name)).map(SenderRow::from)
}
