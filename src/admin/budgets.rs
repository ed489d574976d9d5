//! Budgets of an owner, with the account, the exceptions, the activity and the logins: the answer to `weir show`.

pub use super::budget_row::Applies;
use super::budget_row::{self, BudgetRow};
use super::exceptions::{Exception, OwnerFields, applicability, owner_fields};
use super::logins::LoginLine;
use super::refusals::{self, StoredRefusal};
use super::top::SenderRow;
use super::{Api, ApiError, Errors, Json, Query};
use crate::accounts::Accounts;
use crate::clock;
use crate::engine::State;
use crate::policy::address::AddressNormalizer;
use crate::policy::budgets::{Key, KeyRef, Owner};
use crate::policy::limit::Limit;
use crate::policy::matching::Field;
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

/// Owner as a search finds it: one field with its value.
#[derive(Clone)]
struct Wanted {
    owner: Owner,
    /// Name of the field, without the widths of networks.
    field: String,
    value: String,
    /// Domain of the wanted user or sender, with the field whose budgets the domain shares: `user-domain`.
    domain: Option<(&'static str, String)>,
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
        activity: activity(&server, &wanted, now),
        refusals,
        refusals_unknown,
        logins,
        logins_unknown,
    }))
}

impl Wanted {
    fn new(owner: &Owner) -> Option<Self> {
        let (field, value) = owner.parts().next()?;
        let field = field.split('/').next().unwrap_or_default().to_owned();
        let domain_field = match &*field {
            "user" => Some("user-domain"),
            "sender" => Some("sender-domain"),
            _ => None,
        };
        let domain = value.rsplit_once('@').map(|(_, domain)| domain.to_owned());
        Some(Self { owner: owner.clone(), field, value: value.to_owned(), domain: domain_field.zip(domain) })
    }

    /// Returns whether the budget of a key counts mail of the wanted owner: its own budget, or one that it shares with its
    /// domain.
    fn is_counted_in(&self, key: KeyRef<'_>) -> bool {
        let parts = || key.owners().filter_map(|part| part.split_once('='));
        let has_field = parts().any(|(name, _)| name.split('/').next() == Some(&*self.field));
        match &self.domain {
            _ if has_field => has_part(parts(), &self.field, &self.value),
            Some((field, domain)) => has_part(parts(), field, domain),
            None => false,
        }
    }

    /// Returns the names that decide whether a limit applies to the budget of an owner.
    fn subject<'a>(&'a self, owner: &Owner) -> Option<&'a Owner> {
        let has_field = owner.parts().any(|(name, _)| name.split('/').next() == Some(&*self.field));
        (!has_field).then_some(&self.owner)
    }

    fn is_part_of(&self, owner: &Owner) -> bool {
        has_part(owner.parts(), &self.field, &self.value)
    }

    /// Returns whether a suspension of this owner refuses the wanted owner's mail. The suspension of a domain refuses the
    /// mail of all its users.
    fn is_refused_by(&self, owner: &Owner) -> bool {
        let domain = self.domain.as_ref().filter(|(field, _)| *field == "user-domain");
        self.is_part_of(owner) || domain.is_some_and(|(field, domain)| has_part(owner.parts(), field, domain))
    }

    /// Returns whether budgets of a limit have the wanted field, or the field of its domain, in their owner.
    fn is_counted_by(&self, limit: &Limit) -> bool {
        let is_of = |word: &str| word == self.field || self.domain.as_ref().is_some_and(|(field, _)| word == *field);
        limit.watch.is_none() && limit.per.iter().any(|field| is_of(field.word()))
    }
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
    let own = own_keys(policy, wanted, now);
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
        budget_row::describe(policy, (key, *state, total), (subject, groups), now)
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

/// Returns the keys of the budgets whose owner is the wanted field alone, or its domain, or all, charged or not: also
/// those of grants.
fn own_keys(policy: &Policy, wanted: &Wanted, now: Timestamp) -> Vec<Key> {
    let mut keys = Vec::new();
    for limit in policy.limits.iter().filter(|limit| limit.is_stored() && limit.per.len() <= 1) {
        // A network that is wider than the networks which the limit counts has many budgets: the search finds them.
        let Some(owner) = own_owner(policy, limit, wanted) else { continue };
        let own = Key::of_owner(limit.prefix(), &owner);
        let grant = policy
            .exceptions
            .grant_of(&limit.name, &owner)
            .filter(|grant| grant.term.holds(now) && grant.quota(limit).is_some());
        let key = grant.map_or_else(|| own.clone(), |grant| own.granted(grant.term.since));
        keys.extend(BudgetViews::new(policy, now).of(key.borrowed(), None).and_then(|view| view.total_key(&key)));
        keys.push(key);
    }
    keys
}

/// Returns the owner of the budget that a limit with at most one field has for the wanted owner.
fn own_owner(policy: &Policy, limit: &Limit, wanted: &Wanted) -> Option<Owner> {
    let text = match (&limit.per[..], &wanted.domain) {
        _ if limit.watch.is_some() => return None,
        ([], _) => "all".to_owned(),
        ([Field::Client(_)], _) if wanted.field == "client" => wanted.value.split('/').next()?.to_owned(),
        ([field], _) if field.word() == wanted.field => format!("{}={}", wanted.field, wanted.value),
        ([one], Some((field, domain))) if one.word() == *field => format!("{field}={domain}"),
        _ => return None,
    };
    limit.owner(&text, &policy.normalizer).ok()
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
        // Of an owner with further fields, only the wanted one is known.
        let known = || wanted.is_counted_by(limit).then(|| wanted.owner.clone());
        let owner = own_owner(policy, limit, wanted).or_else(known)?;
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
