//! Logins in progress: if many connections of one network log in with the same name and password at once, one password
//! check answers all of them.
//!
//! So a mail program that opens twenty connections needs a single entry in the queue of checks.

use crate::smtp::sasl::{Credentials, Verified};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Key of equal logins: the client's network and the credentials.
type Key = (Box<str>, Credentials);

/// The result that the other logins wait for; `None` until it is known.
type Outcome = watch::Receiver<Option<Verified>>;

/// The logins in progress.
#[derive(Default)]
pub struct InFlight {
    /// The lock is confined to this file, and never held across `.await`.
    checks: Mutex<HashMap<Key, Outcome>>,
}

/// The role of a login.
enum Joined {
    /// No equal login is in progress: the caller has to check this login.
    First(Check),
    /// An equal login is being checked. The channel closes without a result if that check is dropped.
    Again(Outcome),
}

/// Check of the first of several equal logins.
pub struct Check {
    in_flight: Arc<InFlight>,
    key: Key,
    outcome: watch::Sender<Option<Verified>>,
}

impl InFlight {
    fn join(self: &Arc<Self>, network: &str, credentials: &Credentials) -> Joined {
        match self.lock().entry((network.into(), credentials.clone())) {
            Entry::Occupied(entry) => Joined::Again(entry.get().clone()),
            Entry::Vacant(entry) => {
                let (outcome, known) = watch::channel(None);
                let key = entry.key().clone();
                entry.insert(known);
                Joined::First(Check { in_flight: self.clone(), key, outcome })
            }
        }
    }

    /// Returns the check of a login, if no equal login is in progress. Otherwise waits for the result of that login, and
    /// returns it as the error. `left` completes when the client no longer waits.
    pub async fn first(
        self: &Arc<Self>,
        network: &str,
        credentials: &Credentials,
        mut left: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<Check, Verified> {
        loop {
            let mut outcome = match self.join(network, credentials) {
                Joined::First(first) => return Ok(first),
                Joined::Again(outcome) => outcome,
            };
            tokio::select! {
                known = outcome.wait_for(Option::is_some) => if let Ok(verified) = known {
                    return Err(verified.clone().unwrap_or(Verified::Unavailable));
                },
                () = &mut left => return Err(Verified::ClientLeft),
            }
        }
    }

    /// Returns whether an equal login is in progress.
    pub fn contains(&self, network: &str, credentials: &Credentials) -> bool {
        self.lock().contains_key(&(network.into(), credentials.clone()))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Outcome>> {
        self.checks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Check {
    /// Sends the result to the other logins.
    pub fn end(self, verified: &Verified) {
        self.outcome.send_replace(Some(verified.clone()));
    }
}

impl Drop for Check {
    fn drop(&mut self) {
        // Remove the key before the channel closes, so that one of the waiting logins becomes the first.
        self.in_flight.lock().remove(&self.key);
    }
}
