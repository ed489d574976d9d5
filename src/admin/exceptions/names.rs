//! Check of the names in a grant or suspension: one with a typo would have no effect, and nobody would notice.

use crate::policy::budgets::Owner;
use crate::policy::{NameSearch, Policy};
use crate::store::Store;

/// Names of all accounts; `None` if Weir has no accounts.
pub type Accounts = Option<Vec<String>>;

/// Result of the check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checked {
    /// All names are known, or Weir cannot know them: then with a remark.
    Fine(String),
    /// The warning, without a full stop.
    Unknown(String),
}

/// Looks for the names of an owner among the accounts, in all budgets and in the audit trail.
pub async fn check(store: &Store, owner: &Owner, accounts: &Accounts) -> Checked {
    let policy = store.policy();
    let mut search = NameSearch::new(owner, &policy, accounts.is_some());
    let exceptions = &policy.exceptions;
    exceptions.suspensions().for_each(|one| search.see_owner(&one.owner));
    exceptions.grants().for_each(|one| search.see_owner(&one.owner));
    for account in accounts.iter().flatten() {
        search.see_account(&policy.normalizer.user(account));
    }
    let unread = match store.search_names(&mut search).await {
        Ok(()) => String::new(),
        Err(why) => format!(" that can be read (the state file: {why})"),
    };
    let (unknown, unrecorded) = (search.unknown(), search.unrecorded());
    if !unknown.is_empty() {
        let no_account = if accounts.is_some() && search.is_any_user_unknown() { "no account, " } else { "" };
        let meant = search.unknown_user().and_then(|user| similar(user, &policy, accounts.iter().flatten()));
        let meant = meant.map_or(String::new(), |meant| format!(" (did you mean {meant}?)"));
        return Checked::Unknown(format!(
            "{no_account}no budget and no audit record{unread} has {}{meant}",
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
fn similar<'a>(user: &str, policy: &Policy, accounts: impl Iterator<Item = &'a String>) -> Option<&'a String> {
    let distance = |account: &&String| strsim::damerau_levenshtein(&policy.normalizer.user(account), user);
    accounts.min_by_key(distance).filter(|account| distance(account) <= 2)
}
