//! Login history: for each user, the networks from which the user has logged in, with the first and the latest time.
//!
//! No reply waits for the history to be written. The writer writes the logins of about two seconds in one batch;
//! when the process is killed, the logins of this time are lost. While the state file cannot be written, logins wait in
//! memory, and the excess is dropped.

use super::Store;
use super::core::COMMIT_TIMEOUT;
use super::file::{self, File};
use super::login_history::{LoginKey, LoginRow, MAX_ROWS_PER_USER, Origin};
use crate::policy::request::{Facts, Novelty};
use crate::time::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Time that a login waits for its user's history. After this time, the novelty of the login is unknown.
const READ_TIMEOUT: Duration = COMMIT_TIMEOUT;

impl Store {
    /// Remembers a successful login. Does not wait for the state file.
    pub fn record_login(&self, now: Timestamp, facts: &Facts, tls: Option<Arc<str>>, mechanism: Option<Arc<str>>) {
        let policy = self.core.policy();
        if !policy.login_history.keep.is_zero()
            && let Some(origin) = Origin::of(facts, &policy.normalizer)
        {
            let row = LoginRow::of(&origin, now, tls, mechanism);
            self.core.logins.record(origin.key, row);
        }
    }

    /// Returns which properties of a login are new for its user. Unknown if no limit needs it, or if the state file
    /// cannot be read. Reads the state file only if the user's history is not in memory.
    pub async fn novelty(&self, now: Timestamp, facts: &Facts) -> Novelty {
        let policy = self.core.policy();
        let history = policy.login_history;
        if !policy.uses_novelty() || history.keep.is_zero() {
            return Novelty::default();
        }
        let Some(origin) = Origin::of(facts, &policy.normalizer) else { return Novelty::default() };
        let begun = match self.core.logins.novelty(&origin, history, now) {
            Ok(novelty) => return novelty,
            Err(begun) => begun,
        };
        match self.read_logins(origin.key.user.clone()).await {
            Ok(rows) => self.core.logins.novelty_with(rows, begun, (&origin, history, now)),
            Err(why) => {
                tracing::debug!(why, "the login history cannot be read");
                Novelty::default()
            }
        }
    }

    /// Returns the history of a user, the latest login first. Returns an error with the reason if the state file cannot
    /// be read.
    pub async fn logins(&self, user: &str, now: Timestamp) -> Result<Vec<(LoginKey, LoginRow)>, String> {
        let policy = self.core.policy();
        let user: Box<str> = policy.normalizer.user(user).into();
        // First read the rows in memory. A row that is written in between is merged with itself, so at worst its latest
        // logins count twice.
        let unwritten = self.core.logins.unwritten(&user);
        let mut all: BTreeMap<LoginKey, LoginRow> = self.read_logins(user).await?.into_iter().collect();
        for (key, row) in unwritten {
            match all.get_mut(&key) {
                Some(known) => known.merge(row),
                None => _ = all.insert(key, row),
            }
        }
        let mut rows: Vec<_> = all.into_iter().collect();
        rows.retain(|(_, row)| now.since(row.last) < policy.login_history.keep);
        rows.sort_by_key(|(_, row)| std::cmp::Reverse(row.last));
        rows.truncate(MAX_ROWS_PER_USER);
        Ok(rows)
    }

    /// Reads the rows of a user in the state file.
    async fn read_logins(&self, user: Box<str>) -> Result<Vec<(LoginKey, LoginRow)>, String> {
        let read = move |file: &File| file.logins_of(&user).map_err(|error| file::describe(&error));
        self.read_file(&self.core.login_reads, READ_TIMEOUT, read).await
    }
}
