//! `weir release`: ends a suspension. Also resets the budgets of the limit that began the suspension. Also resets the
//! budgets of limits that would suspend the owner again at the next MAIL.

use super::format;
use crate::policy::Policy;
use crate::policy::budgets::{Key, Loaded, Owner};
use crate::policy::exception::{By, Suspension};
use crate::policy::limit::{Limit, Mode, SUSPICION};
use crate::store::audit::Act;
use crate::store::{Kept, Store};
use crate::terminal::shell_word;
use crate::time::Timestamp;
use std::sync::Arc;
use std::time::Duration;

/// Maximum time to read budgets.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// Ends the suspension of an owner. Returns the text of the answer, and the suspension. Returns `None` if the owner is
/// not suspended.
pub async fn release(
    store: &Store,
    owner: &Owner,
    because: (By, Arc<str>),
    now: Timestamp,
) -> Option<(String, Arc<Suspension>, Kept)> {
    let policy = store.policy();
    let suspension = policy.exceptions.suspension_of(owner).filter(|one| one.term.holds(now))?;
    // Reset the budgets before the suspension ends, because no attempt is charged while the suspension is in force.
    let mut resets = String::new();
    for name in names_to_reset(store, &policy, suspension, now).await {
        resets += &reset(store, &name, owner, because.clone(), now).await;
    }
    let (suspension, kept) = store.end_suspension(owner, because, now).await?;
    Some((format::released(&suspension, now) + &resets, suspension, kept))
}

/// Ends the suspension of a user who has a new password, in the same way.
pub async fn end_on_new_password(store: &Store, suspension: &Suspension, now: Timestamp) {
    let (policy, reason) = (store.policy(), Arc::<str>::from("the password has changed"));
    let (owner, by) = (&suspension.owner, &suspension.term.by);
    for name in names_to_reset(store, &policy, suspension, now).await {
        reset(store, &name, owner, (by.clone(), reason.clone()), now).await;
    }
    // An administrator has perhaps replaced the suspension in the meantime.
    let is_meant = |one: &Suspension| one == suspension;
    store.end_suspension_if(owner, is_meant, (Act::Ended, by.clone(), reason), now).await;
}

/// Returns the names of the limits whose budgets are to be reset, and [`SUSPICION`] if the score of the user is.
async fn names_to_reset(store: &Store, policy: &Policy, suspension: &Suspension, now: Timestamp) -> Vec<Arc<str>> {
    let Suspension { owner, term, .. } = suspension;
    let mut names = Vec::new();
    for limit in policy.limits.iter().filter(|limit| limit.mode == Mode::Enforce) {
        let Some(at) = suspends_from(limit) else { continue };
        let counting = limit.watch.map_or(limit, |watched| &policy.limits[watched]);
        let is_owner = owner.fields().eq(counting.per.iter().map(|field| Some(*field)));
        let is_author = || matches!(&term.by, By::Limit(name) if *name == limit.name);
        if is_owner
            && !names.contains(&counting.name)
            && (is_author() || is_reached(store, policy, counting, at, owner, now).await)
        {
            names.push(counting.name.clone());
            // Otherwise the score of the user would suspend the user again.
            if limit.matcher.has_suspicion() && !names.iter().any(|name| **name == *SUSPICION) {
                names.push(SUSPICION.into());
            }
        }
    }
    names
}

/// Returns the lowest level of a budget at which the limit suspends the owner. The level is a multiple of the limit.
fn suspends_from(limit: &Limit) -> Option<f64> {
    let rungs = limit.ladder.rungs().iter();
    rungs.filter(|rung| rung.action.suspends().is_some()).map(|rung| rung.at).reduce(f64::min)
}

/// Returns whether one more event would raise a budget of the owner to the level `at`, which is a multiple of the
/// limit. Returns false if the budgets cannot be read, so that they are not reset.
async fn is_reached(store: &Store, policy: &Policy, limit: &Limit, at: f64, owner: &Owner, now: Timestamp) -> bool {
    let targets = policy.budgets_of(&limit.name, owner, now).unwrap_or_default();
    let keys: Vec<Key> = targets.iter().map(|target| target.key.clone()).collect();
    // A command must not wait for a disk that does not respond.
    let read = tokio::time::timeout(READ_TIMEOUT, store.look(&keys)).await;
    let budgets = read.unwrap_or_else(|_| Ok(Vec::new())).unwrap_or_default();
    let mut pairs = targets.iter().zip(budgets);
    pairs.any(|(target, budget)| budget.is_some_and(|budget| target.is_reached(at, budget.state, now)))
}

/// Resets the levels of the owner's budgets. The filters keep the values seen. Otherwise, for example, the usual
/// recipients of a released user would be counted as new recipients.
async fn reset(store: &Store, limit: &str, owner: &Owner, because: (By, Arc<str>), now: Timestamp) -> String {
    if store.policy().budgets_of(limit, owner, now).is_err() {
        // The limit has no stored budgets to reset: it counts within a message or connection, or counts concurrent
        // sessions.
        return String::new();
    }
    match store.reset((limit, owner), Loaded::reset_levels, because, now).await {
        Ok((was, _)) => format::reset(limit, owner, &was),
        Err(why) => format!(
            "limit {limit} may suspend {owner} again at once, as its budget is not reset: {why}; \
             try: weir reset {} {}\n",
            shell_word(limit),
            shell_word(&owner.to_string())
        ),
    }
}
