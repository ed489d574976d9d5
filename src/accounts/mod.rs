//! Accounts: users, passwords and logins.

mod cache;
pub mod file_metadata;
mod in_flight;
mod password_hash;
mod turns;
pub mod users_file;
mod watched_users_file;

use crate::metrics::Metrics;
use crate::smtp::sasl::{Credentials, Verified};
use cache::LoginCache;
use in_flight::{Check, InFlight, Joined};
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};
use turns::{Turn, Turns};
use users_file::{ReadError, User};
use watched_users_file::WatchedUsers;

/// Configuration of the accounts.
#[derive(Clone, Debug)]
pub struct Options {
    /// The users file.
    pub file: PathBuf,
}

/// Checks passwords on threads other than the async threads. The number of concurrent checks is bounded, because each
/// check costs 19 MiB and tens of milliseconds, and any client can cause a check. Client networks take turns.
pub struct Accounts {
    passwords: Arc<Passwords>,
    in_flight: Arc<InFlight>,
    turns: Arc<Turns>,
    metrics: Arc<Metrics>,
}

/// The users, and a cache of right passwords.
struct Passwords {
    users: WatchedUsers,
    cache: LoginCache,
}

/// Maximum time for which a login waits for its turn. It is much shorter than the timeouts of clients.
const TURN_TIMEOUT: Duration = Duration::from_secs(20);

impl Accounts {
    pub fn open(options: &Options, metrics: Arc<Metrics>) -> Result<Self, ReadError> {
        let passwords = Arc::new(Passwords { users: WatchedUsers::open(&options.file)?, cache: LoginCache::new() });
        let at_once = std::thread::available_parallelism().map_or(2, usize::from);
        Ok(Self { passwords, in_flight: Arc::default(), turns: Turns::new(at_once), metrics })
    }

    /// Checks a password. For a user that does not exist, the check takes the same time as for an existing user.
    ///
    /// Clients of one `network` share their turns. `left` completes when the client no longer waits; a check that has
    /// already begun is still completed.
    pub async fn verify(&self, credentials: &Credentials, network: &str, left: impl Future<Output = ()>) -> Verified {
        let verified = self.try_verify(credentials, network, left).await;
        let result = match verified {
            Verified::Right { .. } => "right",
            Verified::Wrong => "wrong",
            Verified::Unavailable => "busy",
            Verified::ClientLeft => return verified,
        };
        self.metrics.connections.logins.with_label_values(&[result]).inc();
        verified
    }

    /// Reads the users file again now if it has changed, so that an error is logged at once, not at the next login.
    /// `told`: an administrator has said that the file is complete.
    pub async fn reload(&self, told: bool) {
        let passwords = self.passwords.clone();
        let _ = tokio::task::spawn_blocking(move || match told {
            true => passwords.users.reload(),
            false => drop(passwords.users.snapshot()),
        })
        .await;
    }

    /// Returns whether this user has an account.
    pub async fn has(&self, name: &str) -> bool {
        let (passwords, name) = (self.passwords.clone(), name.to_owned());
        tokio::task::spawn_blocking(move || passwords.users.snapshot().users.contains(&name)).await.unwrap_or(false)
    }

    /// Returns the account of this user, disabled or not.
    pub async fn user(&self, name: &str) -> Option<User> {
        let (passwords, name) = (self.passwords.clone(), name.to_owned());
        tokio::task::spawn_blocking(move || passwords.users.snapshot().users.user(&name).cloned()).await.ok()?
    }

    /// Returns the names of all users, each with the user's groups.
    pub async fn names(&self) -> Vec<(String, Arc<[Box<str>]>)> {
        let passwords = self.passwords.clone();
        let named = |user: &User| (user.name.clone(), user.shared_groups());
        let names = move || passwords.users.snapshot().users.iter().map(named).collect();
        tokio::task::spawn_blocking(names).await.unwrap_or_default()
    }

    /// Returns the groups of a user that a trusted proxy names; no groups if there is no such user.
    pub async fn groups(&self, name: &str) -> Arc<[Box<str>]> {
        let (passwords, name) = (self.passwords.clone(), name.to_owned());
        tokio::task::spawn_blocking(move || passwords.users.snapshot().users.groups(&name)).await.unwrap_or_default()
    }

    async fn try_verify(&self, credentials: &Credentials, network: &str, left: impl Future<Output = ()>) -> Verified {
        // A cached password needs no turn, so guesses from the same network do not delay the user of that password.
        let (passwords, sent) = (self.passwords.clone(), credentials.clone());
        let remembered = tokio::task::spawn_blocking(move || passwords.remembered(&sent));
        if let Ok(Some(groups)) = remembered.await {
            return Verified::Right { groups };
        }
        let left = pin!(left);
        let wait = tokio::time::timeout(TURN_TIMEOUT, self.wait(credentials, network, left)).await;
        let (first, turn) = match wait {
            Ok(Ok(begun)) => begun,
            Ok(Err(verified)) => return verified,
            Err(_) => return Verified::Unavailable,
        };
        let (passwords, sent) = (self.passwords.clone(), credentials.clone());
        let check = tokio::task::spawn_blocking(move || passwords.check(&sent, turn));
        let verified = check.await.unwrap_or(Verified::Unavailable);
        first.end(&verified);
        verified
    }

    /// Waits until it is the turn of this login to be checked. For a login that needs no check of its own, returns its
    /// result as the error.
    async fn wait(
        &self,
        credentials: &Credentials,
        network: &str,
        mut left: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<(Check, Turn), Verified> {
        let first = loop {
            let mut outcome = match self.in_flight.join(network, credentials) {
                Joined::First(first) => break first,
                Joined::Again(outcome) => outcome,
            };
            tokio::select! {
                known = outcome.wait_for(Option::is_some) => if let Ok(verified) = known {
                    return Err(verified.clone().unwrap_or(Verified::Unavailable));
                },
                () = &mut left => return Err(Verified::ClientLeft),
            }
        };
        let turn = tokio::select! {
            biased;
            turn = self.turns.acquire(network) => turn,
            () = left => return Err(Verified::ClientLeft),
        };
        match turn {
            Ok(turn) => Ok((first, turn)),
            Err(_full) => {
                first.end(&Verified::Unavailable);
                Err(Verified::Unavailable)
            }
        }
    }
}

impl Passwords {
    /// Returns the groups of a user whose password is in the cache, if the user is still permitted to log in.
    fn remembered(&self, credentials: &Credentials) -> Option<Arc<[Box<str>]>> {
        let snapshot = self.users.snapshot();
        let user = snapshot.users.enabled(&credentials.user)?;
        let is_right = self.cache.contains(user, &credentials.password_forms(), Instant::now());
        is_right.then(|| user.shared_groups())
    }

    /// Checks a password. Keeps the turn until the check ends, even if the client has left.
    fn check(&self, credentials: &Credentials, _turn: Turn) -> Verified {
        // The same user has perhaps logged in while this login waited.
        if let Some(groups) = self.remembered(credentials) {
            return Verified::Right { groups };
        }
        let snapshot = self.users.snapshot();
        match snapshot.users.verify(credentials) {
            Some((user, password)) => {
                self.cache.insert(user, &password, Instant::now());
                Verified::Right { groups: user.shared_groups() }
            }
            None if snapshot.is_doubtful(&credentials.user) => Verified::Unavailable,
            None => Verified::Wrong,
        }
    }
}

#[cfg(test)]
mod tests;
