//! Check of the names in a command. If a name had a typing error, the command would have no effect, and nobody would
//! notice.

use crate::accounts;
use crate::groups::Groups;
use crate::policy::budgets::Owner;
use crate::policy::{NameSearch, Policy};
use crate::store::Store;
use crate::time::Timestamp;

/// All accounts; `None` if Weir has no accounts, or if a source of accounts does not tell which users it has.
pub type Accounts = Option<Vec<Account>>;

/// Account of a user.
pub struct Account {
    pub name: String,
    /// Groups in lower case.
    pub groups: Groups,
}

/// Returns all accounts, with the facts that the checks of a command need.
pub async fn all_accounts(accounts: Option<&accounts::Accounts>) -> Accounts {
    let names = accounts?.names().await?;
    Some(names.into_iter().map(|(name, groups)| Account { name, groups }).collect())
}

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checked {
    /// The check found no mistake in the command. The text is a remark for the answer, or empty.
    Fine(String),
    /// The command is probably a mistake. The text is the warning, without a full stop.
    Doubtful(String),
}

/// Searches for the names of an owner in three places: the accounts, the keys of all budgets, and the exceptions that
/// are in force at `now`.
pub async fn check(store: &Store, owner: &Owner, accounts: &Accounts, now: Timestamp) -> Checked {
    let policy = store.policy();
    let mut search = NameSearch::new(owner, &policy, accounts.is_some());
    let exceptions = &policy.exceptions;
    let suspensions = exceptions.suspensions().filter(|one| one.term.holds(now)).map(|one| &one.owner);
    let grants = exceptions.grants().filter(|one| one.term.holds(now)).map(|one| &one.owner);
    suspensions.chain(grants).for_each(|owner| search.see_owner(owner));
    for account in accounts.iter().flatten() {
        search.see_account(&policy.normalizer.user(&account.name));
    }
    let unread = match store.search_names(&mut search).await {
        Ok(()) => String::new(),
        Err(why) => format!(" that can be read (the state file: {why})"),
    };
    let (unknown, unrecorded) = (search.unknown(), search.unrecorded());
    if !unknown.is_empty() {
        let no_account = if accounts.is_some() && search.is_any_user_unknown() { "no account, " } else { "" };
        let meant = search.unknown_user().and_then(|user| similar(user, &policy, accounts.iter().flatten()));
        let meant = meant.map_or(String::new(), |meant| format!(" (did you mean {}?)", meant.name));
        return Checked::Doubtful(format!(
            "{no_account}no budget, no grant and no suspension{unread} has {}{meant}",
            unknown.join(" or ")
        ));
    }
    Checked::Fine(match unrecorded.is_empty() {
        true => String::new(),
        false => {
            format!("Weir cannot tell whether {} is right: nothing records such names\n", unrecorded.join(" and "))
        }
    })
}

/// Returns the account that a mistyped user name probably means.
fn similar<'a>(user: &str, policy: &Policy, accounts: impl Iterator<Item = &'a Account>) -> Option<&'a Account> {
    let distance = |account: &&Account| strsim::damerau_levenshtein(&policy.normalizer.user(&account.name), user);
    accounts.min_by_key(distance).filter(|account| distance(account) <= 2)
}
