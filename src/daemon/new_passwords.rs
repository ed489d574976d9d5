//! End of suspensions when the suspended users have new passwords in the users file.
//!
//! The task compares the password hashes in the file with the fingerprints in the state file, so that it also finds a
//! change that was made while Weir was stopped. It gets the fingerprint of a new suspension a few milliseconds after
//! the suspension begins. If the process is killed before that, the fingerprint is that of the password at the next
//! start: a new password from in between does not end the suspension.

use crate::accounts::Accounts;
use crate::admin::exceptions::end_on_new_password;
use crate::clock;
use crate::policy::exception::{NewPassword, PasswordFingerprint, Suspension};
use crate::server::Server;
use crate::store::Store;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::MissedTickBehavior;

/// Interval of looks at the users file, while a new password can end a suspension.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Ends suspensions of users with new passwords, as long as the server lives.
pub async fn watch(server: Weak<Server>) {
    let mut ticks = tokio::time::interval(LOOK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let Some(mut acts) = server.upgrade().map(|server| server.store.acts()) else { return };
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            act = acts.recv() => if let Err(RecvError::Closed) = act { break },
        }
        let Some(server) = server.upgrade() else { break };
        if let Some(accounts) = &server.accounts {
            look(&server.store, accounts).await;
        }
    }
}

/// Gets the missing fingerprints, and ends the suspensions whose users have new passwords.
async fn look(store: &Store, accounts: &Accounts) {
    let (policy, now) = (store.policy(), clock::now());
    if !policy.suspensions.ends_on_new_password {
        return;
    }
    let watched = policy.exceptions.suspensions().filter(|one| one.ends_on_new_password() && one.term.holds(now));
    let watched: Vec<(Arc<str>, Arc<Suspension>)> =
        watched.filter_map(|one| Some((one.user()?.into(), one.clone()))).collect();
    if watched.is_empty() {
        return;
    }
    let users: HashSet<Arc<str>> = watched.iter().map(|(user, _)| user.clone()).collect();
    let normalizer = policy.normalizer.clone();
    let known = accounts.password_fingerprints(move |name| users.get(&*normalizer.user(name)).cloned()).await;
    let known: HashMap<Arc<str>, PasswordFingerprint> =
        known.into_iter().map(|(user, number)| (user, PasswordFingerprint(number))).collect();
    let mut new = Vec::new();
    for (user, suspension) in watched {
        match (suspension.new_password, known.get(&user)) {
            (NewPassword::Ends(None), Some(fingerprint)) => new.push((suspension, *fingerprint)),
            (NewPassword::Ends(Some(former)), Some(present)) if former != *present => {
                end_on_new_password(store, &suspension, now).await;
            }
            _ => {}
        }
    }
    if !new.is_empty() {
        store.set_fingerprints(&new);
    }
}
