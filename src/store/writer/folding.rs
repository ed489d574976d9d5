//! Folding: the writer writes the changed budgets into the table, a slice of the budgets at a time. It then deletes the
//! part of the journal that is no longer needed.

use super::pass::Pass;
use super::{FOLD_AT_OCTETS, MAX_SLICE_ROWS, PAGE_OCTETS, Task};
use crate::policy::budgets::Budget;
use crate::store::file;
use crate::store::hashed_key::HashedKey;
use crate::store::health::Attempt;
use crate::store::journal::{Entry, Seen};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Octets of a row in addition to its key and its filter.
const ROW_OVERHEAD: usize = 18;

/// Approximate maximum octets that are folded in one transaction. The number is limited because filters can be large.
const SLICE_OCTETS: usize = 512 << 10;

/// Time after the end of a fold pass at which the next pass begins, even if the journal is short.
const FOLD_AFTER: Duration = Duration::from_secs(60);

/// Maximum time for folding at shutdown. Changes that are not folded by then stay in the journal.
const FINAL_FOLD_TIME: Duration = Duration::from_secs(2);

impl Task {
    /// Returns copies of the next budgets to fold, at most `rows`, in their present state.
    pub(super) fn next_slice(&mut self, rows: usize) -> Vec<(HashedKey, Budget)> {
        let Some(pass) = &mut self.pass else { return Vec::new() };
        let (mut slice, mut octets) = (Vec::with_capacity(rows), 0);
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

    pub(super) fn fold(&mut self, slice: &[(HashedKey, Budget)]) {
        let Some(file) = self.file.as_mut().filter(|_| !slice.is_empty()) else { return };
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

    /// Aborts the fold pass; the next pass folds the remaining budgets.
    pub(super) fn abort_pass(&mut self, reason: String) {
        self.pass = None;
        self.record(Attempt::Fold, Err(reason));
    }

    /// Continues the fold pass, or begins one if a pass is due.
    pub(super) fn advance(&mut self, idle: bool) {
        let is_allowed = self.may_retry(Attempt::Fold) && !self.failed.contains_key(&Attempt::Append);
        let Some(file) = &mut self.file else { return };
        let Some(pass) = &mut self.pass else {
            let is_due = self.journal_octets > self.fold_at_octets
                || self.behind
                || self.core.cache.must_fold() && self.core.cache.has_changed()
                || (idle || self.last_fold.elapsed() > FOLD_AFTER)
                    && (self.journal_octets > 0 || self.core.cache.has_changed());
            if is_due && is_allowed {
                self.pass =
                    Some(Pass::new(file.end_journal_part(), self.journal_octets, self.behind.then_some(self.epoch)));
            }
            return;
        };
        if !pass.is_folded() {
            return;
        }
        if !pass.damaged.is_empty() {
            let hashed_keys = std::mem::take(&mut pass.damaged);
            return self.keep_in_journal(&hashed_keys);
        }
        match file.discard(pass.part) {
            Ok(()) => self.end_pass(),
            Err(error) => self.abort_pass(file::describe_journal(&error)),
        }
    }

    /// Appends budgets to the journal again, because their pages in the table are damaged. All older journal entries
    /// can then be deleted.
    pub(super) fn keep_in_journal(&mut self, hashed_keys: &[HashedKey]) {
        let mut entry = Entry::default();
        for hashed_key in hashed_keys {
            // Write the present state. In the journal, older states of this budget come before it, and newer states
            // come after it.
            if let Some(budget) = self.core.cache.begin_fold(hashed_key) {
                entry.push(hashed_key.key.borrowed(), &budget, Seen::Whole);
                self.core.cache.end_fold(&[(hashed_key.clone(), budget)], None);
            }
        }
        let Some(file) = &mut self.file else { return };
        match file.append(entry.seal()) {
            Ok(()) => self.journal_octets += entry.octets(),
            Err(error) => self.abort_pass(file::describe_journal(&error)),
        }
    }

    pub(super) fn end_pass(&mut self) {
        let Some(pass) = self.pass.take() else { return };
        self.journal_octets -= pass.octets;
        self.last_fold = Instant::now();
        self.fold_at_octets = (2 * pass.written).clamp(*FOLD_AT_OCTETS.start(), *FOLD_AT_OCTETS.end());
        self.core.metrics.state.journal_octets.set(i64::try_from(self.journal_octets).unwrap_or(i64::MAX));
        self.record(Attempt::Fold, pass.fault.map_or(Ok(()), Err));
        // If changes were lost since the pass began, the file does not contain all changes.
        let Some(epoch) = pass.behind else { return };
        let _catch_up = self.core.catch_up_lock.lock().unwrap_or_else(PoisonError::into_inner);
        if self.core.queue.epoch() == epoch {
            self.behind = false;
            self.core.health.record(Attempt::CatchUp, Ok(()));
        }
    }

    /// Folds budgets before the writer ends, until everything is folded or [`FINAL_FOLD_TIME`] has passed. Changes that
    /// are not folded are in the journal.
    pub(super) fn finish(&mut self) {
        let deadline = Instant::now() + FINAL_FOLD_TIME;
        while Instant::now() < deadline
            && (self.pass.is_some() || self.journal_octets > 0 || self.core.cache.has_changed())
        {
            let slice = self.next_slice(MAX_SLICE_ROWS);
            self.fold(&slice);
            self.advance(true);
            if self.file.is_none() || self.pass.is_none() && !self.failed.is_empty() {
                break;
            }
        }
        self.write_remaining_logins(deadline);
        self.write_remaining_refusals(deadline);
        self.write_remaining_notices(deadline);
        self.write_remaining_queue_ids(deadline);
        if self.core.cache.has_counted_unread() {
            let reason = "some of what was counted could not be added to the file".to_owned();
            self.core.health.record(Attempt::CatchUp, Err(reason));
        }
    }
}
