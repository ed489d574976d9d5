//! Folding: the database writer writes the changed budgets into the table, a slice of the budgets at a time. It then
//! deletes the part of the journal that is no longer needed.

use super::database_writer::DatabaseWriter;
use super::journal_writer::commit_now;
use super::pass::Pass;
use crate::policy::budgets::Budget;
use crate::store::commit_queue::Commit;
use crate::store::core::Core;
use crate::store::file;
use crate::store::hashed_key::HashedKey;
use crate::store::health::Attempt;
use crate::store::recovery::OpenFile;
use crate::store::wal_checkpoint::PAGE_OCTETS;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Octets of a row in addition to its key and its filter.
const ROW_OVERHEAD: usize = 18;

/// Approximate maximum octets that are folded in one transaction. The number is limited because filters can be large.
const SLICE_OCTETS: usize = 512 << 10;

/// Time after the end of a fold pass at which the next pass begins, even if the journal is short.
const FOLD_AFTER: Duration = Duration::from_secs(60);

/// Maximum time for folding at shutdown. Changes that are not folded by then stay in the journal, if they could be
/// appended to it.
const FINAL_FOLD_TIME: Duration = Duration::from_secs(2);

impl DatabaseWriter {
    /// Folds the next slice of the pass.
    pub(super) fn fold_next(&mut self) {
        let slice = self.next_slice();
        if slice.is_empty() {
            return;
        }
        // Write every state in the slice to the journal before it is written to the table. Otherwise a crash could leave
        // a budget with the filter of the row and with the level of an older entry.
        if let Some(commit) = self.core.queue.pending() {
            // If the commit fails, the changes are not lost: they are in memory, and the table gets them now.
            self.wait_for(commit);
        }
        let began = Instant::now();
        self.fold(&slice);
        if let Some(pass) = &mut self.pass {
            pass.adapt_slice(began.elapsed());
        }
        self.core.pace.fold(slice.len());
    }

    /// Returns copies of the next budgets to fold, in their present state.
    fn next_slice(&mut self) -> Vec<(HashedKey, Budget)> {
        let Some(pass) = &mut self.pass else { return Vec::new() };
        let rows = self.core.pace.excess().max(pass.slice_rows);
        let (mut slice, mut octets) = (Vec::new(), 0);
        while slice.len() < rows && octets < SLICE_OCTETS {
            let Some(hashed_key) = pass.next(&self.core) else { break };
            if let Some(budget) = self.core.cache.begin_fold(&hashed_key) {
                octets +=
                    ROW_OVERHEAD + hashed_key.key.as_str().len() + budget.seen.as_ref().map_or(0, |seen| seen.octets());
                slice.push((hashed_key, budget));
            }
        }
        pass.written += octets;
        slice
    }

    fn fold(&mut self, slice: &[(HashedKey, Budget)]) {
        let Some(OpenFile { file, .. }) = &mut self.opened else { return };
        let outcome = file.fold(slice);
        let octets = |budget: &Budget| PAGE_OCTETS + budget.seen.as_ref().map_or(0, |seen| seen.octets());
        let written = slice.iter().map(|(_, budget)| octets(budget)).sum();
        self.core.wal_written.fetch_add(written, Ordering::Relaxed);
        let Err(error) = outcome else { return self.core.cache.end_fold(slice, Some(self.core.queue.epoch())) };
        if file::is_page_damage(&error) && slice.len() > 1 {
            // Perhaps only some of the pages are damaged: fold each half of the slice.
            let (one, other) = slice.split_at(slice.len() / 2);
            self.fold(one);
            return self.fold(other);
        }
        self.core.cache.end_fold(slice, None);
        match &mut self.pass {
            Some(pass) if file::is_page_damage(&error) => {
                pass.damaged.extend(slice.iter().map(|(hashed_key, _)| hashed_key.clone()));
                pass.fault = Some(file::describe(&error));
            }
            _ => self.abort_pass(file::describe(&error)),
        }
    }

    /// Begins a fold pass through all changed budgets.
    pub(super) fn begin_pass(&mut self) {
        let Some(OpenFile { journal, .. }) = &self.opened else { return };
        // Read the epoch, and end the part, before the changed budgets are listed: the changes of the entries in this
        // part are then in the cache already.
        let (missing_epoch, octets) = (self.core.missing_epoch(), journal.octets());
        self.pass = Some(Pass::new(journal.end_part(), octets, missing_epoch));
        self.core.pace.begin();
    }

    /// Aborts the fold pass; the next pass folds the remaining budgets.
    fn abort_pass(&mut self, reason: String) {
        self.pass = None;
        self.core.pace.end(None);
        self.record(Attempt::Fold, Err(reason));
    }

    /// Continues the fold pass, or begins one if a pass is due.
    pub(super) fn advance(&mut self, is_idle: bool) {
        let Some(OpenFile { journal, .. }) = &self.opened else { return };
        let Some(pass) = &mut self.pass else {
            let cache = &self.core.cache;
            let is_due = self.core.pace.is_long(journal.octets())
                || self.core.missing_epoch().is_some()
                || cache.must_fold() && cache.has_changed()
                || (is_idle || self.last_fold.elapsed() > FOLD_AFTER) && (journal.octets() > 0 || cache.has_changed());
            if is_due && self.may_retry(Attempt::Fold) {
                self.begin_pass();
            }
            return;
        };
        if !pass.is_folded() {
            return;
        }
        if !pass.damaged.is_empty() {
            let hashed_keys = std::mem::take(&mut pass.damaged);
            let fault = pass.fault.clone().unwrap_or_default();
            if !self.keep_in_journal(&hashed_keys) {
                self.abort_pass(fault);
            }
            return;
        }
        match journal.discard(pass.part, pass.octets) {
            Ok(()) => self.end_pass(),
            Err(error) => self.abort_pass(file::describe_journal(&error)),
        }
    }

    /// Appends budgets to the journal again, because their pages in the table are damaged. All older journal entries
    /// can then be deleted. Returns whether the budgets are durable.
    fn keep_in_journal(&self, hashed_keys: &[HashedKey]) -> bool {
        let Core { cache, queue, .. } = &*self.core;
        let mut commits = Vec::new();
        for hashed_key in hashed_keys {
            commits.extend(cache.append_again(hashed_key, queue));
            if !queue.has_room() && !commits.drain(..).all(|commit| self.wait_for(commit)) {
                return false;
            }
        }
        commits.into_iter().all(|commit| self.wait_for(commit))
    }

    /// Waits for a commit. Returns true if its changes are durable.
    fn wait_for(&self, mut commit: Commit) -> bool {
        commit.outcome().unwrap_or_else(|| {
            self.core.pace.let_wait(|| {
                commit_now(&self.core, &commit, 1);
                commit.wait()
            })
        })
    }

    fn end_pass(&mut self) {
        let Some(pass) = self.pass.take() else { return };
        self.core.pace.end(Some(pass.written));
        self.last_fold = Instant::now();
        self.record(Attempt::Fold, pass.fault.map_or(Ok(()), Err));
        // If changes were lost since the pass began, the file does not contain all changes.
        pass.missing_epoch.into_iter().for_each(|epoch| self.core.end_catch_up(epoch));
    }

    /// Folds budgets before the writer ends, until everything is folded or [`FINAL_FOLD_TIME`] has passed.
    pub(super) fn finish(&mut self) {
        let deadline = Instant::now() + FINAL_FOLD_TIME;
        while let Some(OpenFile { journal, .. }) = &self.opened
            && Instant::now() < deadline
            && (self.pass.is_some() || journal.octets() > 0 || self.core.cache.has_changed())
        {
            self.fold_next();
            self.advance(true);
            if self.pass.is_none() && !self.failed.is_empty() {
                break;
            }
        }
        if let Some(OpenFile { journal, .. }) = &self.opened
            && journal.octets() == 0
            && !self.core.cache.has_changed()
        {
            // The table has all changes, even if the last ones could not be appended to the journal.
            self.core.health.record(Attempt::Append, Ok(()));
            self.core.end_catch_up(self.core.queue.epoch());
        }
        self.write_remaining(deadline);
        if self.core.cache.has_counted_unread() {
            let reason = "some of what was counted could not be added to the file".to_owned();
            self.core.health.record(Attempt::CatchUp, Err(reason));
        }
    }
}
