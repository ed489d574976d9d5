//! Scans of all budgets, for administrators. A scan holds the lock of one small part of the cache at a time, and lets
//! other tasks run in between, so that decisions hardly wait.

use super::Store;
use super::cache::SHARDS;
use super::file::{self, File};
use super::hashed_key::HashedKey;
use crate::engine::State;
use crate::policy::budgets::{Key, KeyRef};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Budgets that a search has found.
#[derive(Debug, Default)]
pub struct FoundBudgets {
    pub budgets: Vec<(Key, State)>,
    /// Reason why the search may have missed budgets; `None` if it has seen all of them.
    pub incomplete: Option<String>,
}

/// Maximum time for the part of a search that reads the state file. The time is enough for about two million budgets.
const FILE_TIMEOUT: Duration = Duration::from_secs(2);

/// Number of budgets of the file after which the time is checked again.
const CHECKED_EVERY: usize = 1_000;

impl Store {
    /// Calls `take` with each budget in memory. Of shared budgets, these are the budgets that this node has used. The budgets are read one part after the other, so they are not all of
    /// the same moment.
    pub async fn scan_budgets(&self, mut take: impl FnMut(KeyRef<'_>, State)) {
        if let Some(shared) = &self.core.shared {
            shared.for_each(&mut take);
        }
        for index in 0..SHARDS {
            self.core.cache.for_each_in_shard(index, &mut take);
            tokio::task::yield_now().await;
        }
    }

    /// Finds the budgets whose keys fulfil a condition, in memory and in the state file: at most `at_most`.
    pub async fn find_budgets(
        &self,
        is_wanted: impl Fn(KeyRef<'_>) -> bool + Send + 'static,
        at_most: usize,
    ) -> FoundBudgets {
        let (mut found, mut is_cut) = (HashMap::new(), false);
        self.scan_budgets(|key, state| {
            if is_wanted(key) {
                is_cut |= found.len() >= at_most;
                if !is_cut {
                    found.insert(key.owned(), state);
                }
            }
        })
        .await;
        let mut incomplete = is_cut.then(|| more_than(at_most));
        if !is_cut {
            match self.find_in_file(is_wanted, at_most).await {
                Ok(in_file) => {
                    // A budget in memory is newer than its row. A budget that eviction has removed from memory during
                    // the search is in the file.
                    in_file.budgets.into_iter().for_each(|(key, state)| _ = found.entry(key).or_insert(state));
                    incomplete = in_file.incomplete;
                }
                Err(why) => incomplete = Some(format!("those in the state file are not known: {why}")),
            }
        }
        let mut budgets: Vec<_> = found.into_iter().collect();
        budgets.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        budgets.truncate(at_most);
        FoundBudgets { budgets, incomplete }
    }

    async fn find_in_file(
        &self,
        is_wanted: impl Fn(KeyRef<'_>) -> bool + Send + 'static,
        at_most: usize,
    ) -> Result<FoundBudgets, String> {
        let read = move |file: &File| search_file(file, is_wanted, at_most);
        self.read_file(&self.core.admin_reads, 2 * FILE_TIMEOUT, read).await
    }

    /// Returns the state of a budget, if it is in memory.
    pub fn state_in_memory(&self, key: &Key) -> Option<State> {
        let shared = self.core.shared.as_ref().and_then(|shared| shared.state_in_memory(key));
        shared.or_else(|| self.core.cache.peek(HashedKey::of(key.borrowed())).flatten().map(|budget| budget.state))
    }
}

/// Searches the table of budgets, for a limited time.
fn search_file(file: &File, is_wanted: impl Fn(KeyRef<'_>) -> bool, at_most: usize) -> Result<FoundBudgets, String> {
    let (mut found, mut read, mut why, began) = (Vec::new(), 0, None, Instant::now());
    let take = |key: KeyRef<'_>, state| {
        read += 1;
        if is_wanted(key) {
            if found.len() >= at_most {
                why = Some(more_than(at_most));
                return false;
            }
            found.push((key.owned(), state));
        }
        let is_late = read % CHECKED_EVERY == 0 && began.elapsed() > FILE_TIMEOUT;
        if is_late {
            why = Some(format!("the search of the state file ended after {} s", FILE_TIMEOUT.as_secs()));
        }
        !is_late
    };
    file.for_each_budget(take).map_err(|error| file::describe(&error))?;
    Ok(FoundBudgets { budgets: found, incomplete: why })
}

fn more_than(at_most: usize) -> String {
    format!("there are more than {at_most} budgets")
}
