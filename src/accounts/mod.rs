//! Who may log in.

pub mod file;

use crate::metrics::Metrics;
use crate::smtp::sasl::Credentials;
use file::{Changed, ReadError, Users};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Where the accounts are.
#[derive(Clone, Debug)]
pub struct Options {
    /// The users file.
    pub file: PathBuf,
}

/// Checks passwords: off the async threads, and only so many at once, since each costs 19 MiB and tens of milliseconds of work
/// that anybody may ask for.
pub struct Accounts {
    path: PathBuf,
    /// Held to look whether the file has changed and to read it again: only on threads that may block.
    users: Arc<Mutex<(Arc<Users>, Changed)>>,
    turns: Arc<Semaphore>,
    metrics: Arc<Metrics>,
}

/// What came of a login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Login {
    /// The user is in these groups.
    Right {
        groups: Arc<[Box<str>]>,
    },
    Wrong,
    /// Too many others are logging in.
    Busy,
}

/// How long a login waits for its turn: well within a client's patience.
const PATIENCE: Duration = Duration::from_secs(20);

impl Accounts {
    pub fn open(options: &Options, metrics: Arc<Metrics>) -> Result<Self, ReadError> {
        let read = Users::read(&options.file)?;
        let at_once = std::thread::available_parallelism().map_or(2, usize::from);
        let users = Arc::new(Mutex::new((Arc::new(read.0), read.1)));
        Ok(Self { path: options.file.clone(), users, turns: Arc::new(Semaphore::new(at_once)), metrics })
    }

    /// Whether this is the password of this user. A user that does not exist takes as long as one that does.
    pub async fn verify(&self, credentials: &Credentials) -> Login {
        let login = self.try_verify(credentials).await;
        let result = match login {
            Login::Right { .. } => "right",
            Login::Wrong => "wrong",
            Login::Busy => "busy",
        };
        self.metrics.logins.with_label_values(&[result]).inc();
        login
    }

    /// Reads the users file again now, if it has changed: a bad one is reported when it is put there, not at the next login.
    pub async fn reload(&self) {
        let (path, users) = (self.path.clone(), self.users.clone());
        let _ = tokio::task::spawn_blocking(move || current(&path, &users)).await;
    }

    /// The groups of a user for whom somebody else vouches; none, where there is no such user.
    pub async fn groups(&self, name: &str) -> Arc<[Box<str>]> {
        let (path, users, name) = (self.path.clone(), self.users.clone(), name.to_owned());
        tokio::task::spawn_blocking(move || current(&path, &users).groups(&name)).await.unwrap_or_default()
    }

    async fn try_verify(&self, credentials: &Credentials) -> Login {
        let turn = tokio::time::timeout(PATIENCE, self.turns.clone().acquire_owned()).await;
        let Ok(Ok(turn)) = turn else { return Login::Busy };
        let (path, users, credentials) = (self.path.clone(), self.users.clone(), credentials.clone());
        let verified = tokio::task::spawn_blocking(move || {
            // The turn is taken along: it ends with the work, also when the client has left meanwhile.
            let _turn = turn;
            current(&path, &users).verify(&credentials)
        });
        match verified.await {
            Ok(Some(groups)) => Login::Right { groups },
            Ok(None) => Login::Wrong,
            Err(_) => Login::Busy,
        }
    }
}

/// The users, read again if their file has changed. A bad file keeps the old ones, and is reported.
fn current(path: &Path, users: &Mutex<(Arc<Users>, Changed)>) -> Arc<Users> {
    let mut held = users.lock().unwrap_or_else(PoisonError::into_inner);
    let changed = Changed::of(path);
    if changed != held.1 {
        held.1 = changed;
        match Users::read(path) {
            Ok((users, _)) => {
                tracing::info!(file = %path.display(), users = users.iter().count(), "users file read again");
                held.0 = Arc::new(users);
            }
            Err(error) => tracing::error!(%error, "users file not taken: the former users stay"),
        }
    }
    held.0.clone()
}
