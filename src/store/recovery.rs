//! Recovery: opens the state file, restores the budgets in its journal, and restores its exceptions.

use super::core::Core;
use super::file::{self, File, OpenError, OpenJournal};
use super::journal_damage::warn_damaged;
use std::sync::Arc;

/// The state file, open for writing.
pub struct OpenFile {
    pub file: File,
    pub journal: Arc<OpenJournal>,
}

impl Core {
    /// Opens the file, loads its exceptions, and inserts the budgets of its journal into the cache. The journal
    /// contains the budgets that the previous process has not folded.
    pub fn open(&self) -> Result<OpenFile, OpenError> {
        let file = File::open(&self.options)?;
        let sqlite = |error| OpenError::Sqlite(self.options.path.clone(), error);
        let known = file.kinds().map_err(sqlite)?;
        let replayed = file.replay().map_err(|error| OpenError::Io(self.options.path.clone(), error));
        let (replayed, damaged, octets) = replayed?;
        damaged.iter().for_each(|entry| warn_damaged(entry));
        let (epoch, policy) = (self.queue.epoch(), self.policy());
        for (hashed_key, budget) in replayed.0 {
            let key = hashed_key.key.clone();
            self.cache.replay(hashed_key, budget, epoch, |stored, counted| policy.merge(&key, stored, counted));
        }
        self.warn_removed_limits(known.into_iter().map(|(kind, _)| kind));
        self.load_exceptions(&file);
        let _ = self.identity.set(file::identity(&self.options.path));
        let journal = file.open_journal(self.options.durability, octets, self.metrics.state.journal_octets.clone());
        Ok(OpenFile { file, journal })
    }
}
