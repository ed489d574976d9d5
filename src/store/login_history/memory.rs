//! The part of the login history that is in memory: logins that are not in the state file yet, and the known origins of
//! users who logged in a short time ago.

use super::MAX_ROWS_PER_COMMIT;
use super::known_origins::KnownOrigins;
use super::row::{LoginKey, LoginRow, Origin};
use crate::bounded_map::BoundedMap;
use crate::policy::LoginHistory;
use crate::policy::request::Novelty;
use crate::time::Timestamp;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::hash::RandomState;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum users whose known origins are in memory: at most 43 MB, and 4 MB with five origins for each user.
const MAX_USERS: usize = 8_192;

/// Maximum rows that wait to be written. While the state file cannot be written, logins from further networks are not
/// remembered.
const MAX_PENDING: usize = 10_000;

/// Time for which logins wait to be written. When the process is killed, the logins of this time are lost.
const WRITE_AFTER: Duration = Duration::from_secs(2);

/// Time after which the writer is asked again to write logins.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Login history in memory.
#[derive(Default)]
pub struct LoginMemory {
    hasher: RandomState,
    /// The lock is confined to this file, and never held across `.await` or an access to the disk.
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Known origins by user. Users without a login are not in the map, so names that nobody has do not fill it.
    known: BoundedMap<Box<str>, UserEntry, MAX_USERS>,
    /// Logins that are not in the file yet. The number of logins in a row is the number since the row was written.
    pending: BTreeMap<LoginKey, LoginRow>,
    /// Rows that the writer is writing now.
    writing: Vec<(LoginKey, LoginRow)>,
    /// Time when `pending` got its first row.
    pending_since: Option<Instant>,
    /// Time when the writer was last asked to write; `None` after the writer has taken rows.
    asked: Option<Instant>,
    /// Number of batches that were taken to be written.
    batches: u64,
    /// Latest time of a login.
    latest: Option<Timestamp>,
}

struct UserEntry {
    origins: KnownOrigins,
    used: Instant,
}

/// Number of batches before a read of the file. If the number has grown after the read, the read has perhaps missed rows
/// that are no longer in memory.
#[derive(Clone, Copy)]
pub struct ReadBegun(u64);

impl LoginMemory {
    /// Remembers a login, and queues it for the writer.
    pub fn record(&self, key: LoginKey, row: LoginRow) {
        let mut inner = self.lock();
        inner.latest = inner.latest.max(Some(row.last));
        if let Some(entry) = inner.known.get_mut(&key.user) {
            entry.origins.add(&self.hasher, &key, &row);
        }
        inner.queue(key, row);
    }

    /// Returns the novelty of a login, if the user's known origins are in memory.
    pub fn novelty(&self, origin: &Origin, history: LoginHistory, now: Timestamp) -> Result<Novelty, ReadBegun> {
        let mut inner = self.lock();
        let batches = inner.batches;
        let entry = inner.known.get_mut(&origin.key.user).ok_or(ReadBegun(batches))?;
        entry.used = Instant::now();
        Ok(entry.origins.novelty(&self.hasher, origin, history, now))
    }

    /// Returns the novelty of a login, with the rows of the file. Keeps the known origins in memory.
    pub fn novelty_with(
        &self,
        rows: Vec<(LoginKey, LoginRow)>,
        ReadBegun(batches): ReadBegun,
        (origin, history, now): (&Origin, LoginHistory, Timestamp),
    ) -> Novelty {
        let mut inner = self.lock();
        let mut origins = KnownOrigins::default();
        let user = &origin.key.user;
        let unwritten: Vec<_> = inner.unwritten(user).collect();
        rows.iter().chain(&unwritten).for_each(|(key, row)| origins.add(&self.hasher, key, row));
        let novelty = origins.novelty(&self.hasher, origin, history, now);
        if !origins.is_empty() && inner.batches == batches {
            let entry = UserEntry { origins, used: Instant::now() };
            inner.known.insert(user.clone(), entry, |entry| entry.used);
        }
        novelty
    }

    /// Returns the logins of a user that are not in the file yet.
    pub fn unwritten(&self, user: &str) -> Vec<(LoginKey, LoginRow)> {
        self.lock().unwritten(user).collect()
    }

    /// Returns whether the writer has to be asked to write logins now. The writer ignores this while it cannot write, so
    /// it is asked again after some time.
    pub fn is_due(&self) -> bool {
        let mut inner = self.lock();
        let is_old = inner.pending_since.is_some_and(|since| since.elapsed() >= WRITE_AFTER);
        let is_asked = inner.asked.is_some_and(|at| at.elapsed() < ASK_AGAIN_AFTER);
        let is_due = !is_asked && (is_old || inner.pending.len() >= MAX_ROWS_PER_COMMIT);
        if is_due {
            inner.asked = Some(Instant::now());
        }
        is_due
    }

    /// Returns whether any login waits to be written.
    pub fn is_pending(&self) -> bool {
        !self.lock().pending.is_empty()
    }

    /// Takes rows to write. The caller must then call [`LoginMemory::written`].
    pub fn take(&self) -> Vec<(LoginKey, LoginRow)> {
        let mut inner = self.lock();
        let mut batch = Vec::new();
        while batch.len() < MAX_ROWS_PER_COMMIT
            && let Some(row) = inner.pending.pop_first()
        {
            batch.push(row);
        }
        if inner.pending.is_empty() {
            inner.pending_since = None;
        }
        (inner.asked, inner.batches) = (None, inner.batches + 1);
        inner.writing.clone_from(&batch);
        batch
    }

    /// Ends the writing of the batch that was taken last. If the batch is not in the file, it is written later.
    pub fn written(&self, is_written: bool) {
        let mut inner = self.lock();
        let batch = std::mem::take(&mut inner.writing);
        if !is_written {
            batch.into_iter().for_each(|(key, row)| inner.queue(key, row));
        }
    }

    /// Returns the latest time of a login since the start.
    pub fn latest(&self) -> Option<Timestamp> {
        self.lock().latest
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn queue(&mut self, key: LoginKey, row: LoginRow) {
        let is_full = self.pending.len() >= MAX_PENDING;
        match self.pending.entry(key) {
            Entry::Occupied(mut pending) => pending.get_mut().merge(row),
            Entry::Vacant(new) if is_full => {
                tracing::debug!(user = &*new.key().user, "the login history is full, and a login is missing");
            }
            Entry::Vacant(new) => {
                new.insert(row);
                self.pending_since.get_or_insert_with(Instant::now);
            }
        }
    }

    fn unwritten(&self, user: &str) -> impl Iterator<Item = (LoginKey, LoginRow)> {
        let first = LoginKey { user: user.into(), network: Box::default() };
        let pending = self.pending.range(first..).take_while(move |(key, _)| *key.user == *user);
        let pending = pending.map(|(key, row)| (key.clone(), row.clone()));
        let writing = self.writing.iter().filter(move |(key, _)| *key.user == *user).cloned();
        pending.chain(writing)
    }
}
