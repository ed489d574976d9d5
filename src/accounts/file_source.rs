//! The users file as a source of accounts: checks passwords.

use super::cache::LoginCache;
use super::in_flight::{Check, InFlight};
use super::login_networks::Networks;
use super::scram::{self, ScramLogin};
use super::turns::{Turn, Turns};
use super::users_file::{ReadError, ScramUsers, User, Users};
use super::watched_users_file::WatchedUsers;
use super::wrong_passwords::WrongPasswords;
use crate::groups::Groups;
use crate::metrics::PasswordQueue;
use crate::smtp::sasl::{Credentials, Response, Verified};
use ring::hmac;
use std::collections::HashMap;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Checks passwords on threads other than the async threads. The number of concurrent checks is bounded, because each
/// check costs 19 MiB and tens of milliseconds, and any client can cause a check. Client networks take turns.
pub struct FileSource {
    passwords: Arc<Passwords>,
    in_flight: Arc<InFlight>,
    turns: Arc<Turns>,
}

/// The users, a cache of right passwords, and a memory of wrong ones.
struct Passwords {
    users: WatchedUsers,
    cache: LoginCache,
    wrong: WrongPasswords,
    /// Secret of the keys for users that do not exist, in logins by SCRAM-SHA-256.
    scram_secret: Option<hmac::Key>,
}

/// Answer to the question if the users file has a user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    Present,
    Absent,
    /// The file does not have the user, but is perhaps incomplete at this moment.
    Doubtful,
}

/// Maximum time for which a login waits for its turn. It is much shorter than the timeouts of clients.
const TURN_TIMEOUT: Duration = Duration::from_secs(20);

impl FileSource {
    pub fn open(path: &Path, queue: PasswordQueue) -> Result<Self, ReadError> {
        let (users, scram_secret) = (WatchedUsers::open(path)?, scram::new_secret());
        let (cache, wrong) = (LoginCache::new(), WrongPasswords::new());
        let passwords = Arc::new(Passwords { users, cache, wrong, scram_secret });
        let at_once = std::thread::available_parallelism().map_or(2, usize::from);
        Ok(Self { passwords, in_flight: Arc::default(), turns: Turns::new(at_once, queue) })
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

    /// Returns whether the file has this user.
    pub async fn presence(&self, name: &str) -> Presence {
        let (passwords, name) = (self.passwords.clone(), name.to_owned());
        let presence = tokio::task::spawn_blocking(move || {
            let snapshot = passwords.users.snapshot();
            match snapshot.users.contains(&name) {
                true => Presence::Present,
                false if snapshot.is_doubtful(&name) => Presence::Doubtful,
                false => Presence::Absent,
            }
        });
        presence.await.unwrap_or(Presence::Doubtful)
    }

    /// Returns the account of this user, disabled or not.
    pub async fn user(&self, name: &str) -> Option<User> {
        let (passwords, name) = (self.passwords.clone(), name.to_owned());
        tokio::task::spawn_blocking(move || passwords.users.snapshot().users.user(&name).cloned()).await.ok()?
    }

    /// Returns the account that this user had a fraction of a second ago, or has now. A login must not rely on it.
    pub async fn recent_user(&self, name: &str) -> Option<User> {
        self.recent_users().await?.user(name).cloned()
    }

    /// Returns the first account whose name `is_wanted` accepts, disabled or not.
    pub async fn find(&self, is_wanted: impl Fn(&str) -> bool + Send + 'static) -> Option<User> {
        let passwords = self.passwords.clone();
        let find = move || passwords.users.snapshot().users.iter().find(|user| is_wanted(&user.name)).cloned();
        tokio::task::spawn_blocking(find).await.ok()?
    }

    /// Returns the names of all users, each with the user's groups.
    pub async fn names(&self) -> Vec<(String, Groups)> {
        let passwords = self.passwords.clone();
        let named = |user: &User| (user.name.clone(), user.shared_groups());
        let names = move || passwords.users.snapshot().users.iter().map(named).collect();
        tokio::task::spawn_blocking(names).await.unwrap_or_default()
    }

    /// Returns a fingerprint of the stored password of each wanted user that has a password. `wanted` returns the name
    /// under which a user is wanted. A name that several users have gets no fingerprint.
    pub async fn password_fingerprints(
        &self,
        wanted: impl Fn(&str) -> Option<Arc<str>> + Send + 'static,
    ) -> HashMap<Arc<str>, u16> {
        let passwords = self.passwords.clone();
        let found = tokio::task::spawn_blocking(move || {
            let mut found: HashMap<Arc<str>, Option<u16>> = HashMap::new();
            for user in passwords.users.snapshot().users.iter() {
                let Some(name) = wanted(&user.name) else { continue };
                let fingerprint = user.password_fingerprint();
                found.entry(name).and_modify(|one| *one = None).or_insert(fingerprint);
            }
            found
        });
        let found = found.await.unwrap_or_default();
        found.into_iter().filter_map(|(name, fingerprint)| Some((name, fingerprint?))).collect()
    }

    /// Returns the groups of a user that a trusted proxy names; no groups if there is no such user.
    pub async fn groups(&self, name: &str) -> Groups {
        self.recent_users().await.map(|users| users.groups(name)).unwrap_or_default()
    }

    /// Returns the login networks that the line of this user names, if it names any.
    pub async fn login_networks(&self, name: &str) -> Option<Networks> {
        self.recent_users().await?.user(name)?.login_networks()
    }

    /// Returns the users a fraction of a second ago, or now. Only if it is time for a look at the file, another thread
    /// has to look.
    async fn recent_users(&self) -> Option<Arc<Users>> {
        if let Some(users) = self.passwords.users.recent() {
            return Some(users);
        }
        let passwords = self.passwords.clone();
        tokio::task::spawn_blocking(move || passwords.users.snapshot().users).await.ok()
    }

    /// Returns how many users have keys for SCRAM-SHA-256. Does not block.
    pub fn scram_users(&self) -> ScramUsers {
        self.passwords.users.scram_users()
    }

    /// Takes a client's message of SCRAM-SHA-256. `login` is the state of the exchange: at its beginning it is `None`. A
    /// login costs a few microseconds, since the client derives the keys, so it waits for no turn.
    pub async fn advance_scram(&self, login: &mut Option<ScramLogin>, message: &Response) -> Verified {
        let (passwords, former, message) = (self.passwords.clone(), login.take(), message.clone());
        let step = tokio::task::spawn_blocking(move || {
            let snapshot = passwords.users.snapshot();
            scram::step(&snapshot, passwords.scram_secret.as_ref(), former, &message)
        });
        let (verified, next) = step.await.unwrap_or((Verified::Unavailable, None));
        *login = next;
        verified
    }

    /// Checks a password. For a user that does not exist, the check takes the same time as for an existing user.
    ///
    /// Clients of one `network` share their turns. `left` completes when the client no longer waits; a check that has
    /// already begun is still completed.
    pub async fn verify(&self, credentials: &Credentials, network: &str, left: impl Future<Output = ()>) -> Verified {
        // A cached password needs no turn, so guesses from the same network do not delay the user of that password.
        let (passwords, sent, from) = (self.passwords.clone(), credentials.clone(), network.to_owned());
        let remembered = tokio::task::spawn_blocking(move || passwords.remembered(&sent, &from));
        if let Ok(Some(verified)) = remembered.await {
            return verified;
        }
        let left = pin!(left);
        let wait = tokio::time::timeout(TURN_TIMEOUT, self.wait(credentials, network, left)).await;
        let (first, turn) = match wait {
            Ok(Ok(begun)) => begun,
            Ok(Err(verified)) => return verified,
            Err(_) => return Verified::Unavailable,
        };
        let (passwords, sent, from) = (self.passwords.clone(), credentials.clone(), network.to_owned());
        let check = tokio::task::spawn_blocking(move || passwords.check(&sent, &from, turn));
        let verified = check.await.unwrap_or(Verified::Unavailable);
        first.end(&verified);
        verified
    }

    /// Returns whether an equal login is being checked.
    pub fn is_checking(&self, credentials: &Credentials, network: &str) -> bool {
        self.in_flight.contains(network, credentials)
    }

    /// Waits until it is the turn of this login to be checked. For a login that needs no check of its own, returns its
    /// result as the error.
    async fn wait(
        &self,
        credentials: &Credentials,
        network: &str,
        mut left: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<(Check, Turn), Verified> {
        let first = self.in_flight.first(network, credentials, left.as_mut()).await?;
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
    /// Returns the result of an earlier check of this password, if the result is still in force.
    fn remembered(&self, credentials: &Credentials, network: &str) -> Option<Verified> {
        let (snapshot, now) = (self.users.snapshot(), Instant::now());
        let forms = credentials.password_forms();
        let is_right = |user: &&User| self.cache.contains(&user.name, user.hash_text(), &forms, now);
        if let Some(user) = snapshot.users.enabled(&credentials.user).filter(is_right) {
            return Some(user.right());
        }
        let is_doubtful = snapshot.is_doubtful(&credentials.user);
        let is_wrong = || self.wrong.contains(credentials, network, &snapshot.users.state_of(&credentials.user), now);
        (!is_doubtful && is_wrong()).then_some(Verified::Wrong { reason: None })
    }

    /// Checks a password. Keeps the turn until the check ends, even if the client has left.
    fn check(&self, credentials: &Credentials, network: &str, _turn: Turn) -> Verified {
        // The same user has perhaps logged in while this login waited.
        if let Some(verified) = self.remembered(credentials, network) {
            return verified;
        }
        let snapshot = self.users.snapshot();
        match snapshot.users.verify(credentials) {
            Some((user, password)) => {
                self.cache.insert(&user.name, user.hash_text(), &password, Instant::now());
                user.right()
            }
            None if snapshot.is_doubtful(&credentials.user) => Verified::Unavailable,
            None => {
                let stored = snapshot.users.state_of(&credentials.user);
                self.wrong.insert(credentials, network, &stored, Instant::now());
                Verified::Wrong { reason: None }
            }
        }
    }
}

#[cfg(test)]
mod tests;
