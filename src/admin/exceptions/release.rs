//! `weir release`: ends a suspension, and resets the budget of the limit that began it. Otherwise the next MAIL would
//! begin it again.

use super::format;
use crate::policy::Policy;
use crate::policy::budgets::{Loaded, Owner};
use crate::policy::exception::{By, Suspension};
use crate::policy::limit::Limit;
use crate::store::Store;
use crate::time::Timestamp;
use std::sync::Arc;

/// Releases an owner; `None` if the owner is not suspended.
pub async fn release(store: &Store, owner: &Owner, because: (By, Arc<str>), now: Timestamp) -> Option<String> {
    let policy = store.policy();
    let suspension = policy.exceptions.suspension_of(owner).filter(|one| one.term.holds(now));
    let limit = suspension.and_then(|one| suspending(&policy, one));
    // Before the release: while the suspension holds, no attempt is charged.
    let reset = match limit {
        Some(limit) => reset(store, limit, owner, because.clone(), now).await,
        None => String::new(),
    };
    let (suspension, kept) = store.end_suspension(owner, because, now).await?;
    Some(format::released(&suspension, now) + &reset + &format::kept(&kept))
}

/// Returns the limit whose budget led to a suspension, if the limit still counts per this owner.
fn suspending<'p>(policy: &'p Policy, suspension: &Suspension) -> Option<&'p Limit> {
    let By::Limit(name) = &suspension.term.by else { return None };
    let limit = policy.limits.iter().find(|limit| limit.name == *name)?;
    let limit = limit.watch.map_or(limit, |watched| &policy.limits[watched]);
    suspension.owner.fields().eq(limit.per.iter().map(|field| Some(*field))).then_some(limit)
}

/// Resets the levels of the owner's budgets. Values seen stay known, or people to whom a released user has always
/// written would count as new.
async fn reset(store: &Store, limit: &Limit, owner: &Owner, because: (By, Arc<str>), now: Timestamp) -> String {
    if store.policy().budgets_of(&limit.name, owner, now).is_err() {
        // A counter of a message or a connection is gone already.
        return String::new();
    }
    match store.reset((&limit.name, owner), Loaded::reset_levels, because, now).await {
        Ok((was, _)) => format::reset(&limit.name, owner, &was),
        Err(why) => format!(
            "limit {} may suspend {owner} again at once, as its budget is not reset: {why}; \
             try: weir reset {} {owner}\n",
            limit.name, limit.name
        ),
    }
}
