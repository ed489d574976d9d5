//! The one thread that writes the state file: group commits to the journal, which is folded into the budgets a slice at a time.

use super::cache::SHARDS;
use super::file::{self, File};
use super::hashed_key::HashedKey;
use super::health::{Attempt, News};
use super::journal::{Entry, Seen};
use super::queue::Errand;
use super::{CATCHING_UP, Core, slow};
use crate::policy::Budget;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A handle on the writer's thread.
pub struct Writer {
    core: Arc<Core>,
    thread: JoinHandle<()>,
}

/// Frees whoever waits for the writer, however it ends.
struct Ending(Arc<Core>);

impl Drop for Ending {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.troubles.note(Attempt::Append, Err("the writer ended by a fault of Weir's own".to_owned()));
        }
        self.0.queue.end();
    }
}

/// What the thread keeps.
struct Task {
    core: Arc<Core>,
    /// `None`: it could not be opened yet.
    file: Option<File>,
    /// Octets in the journal.
    journal: usize,
    pass: Option<Pass>,
    /// When the last pass ended, and what the journal may grow to before the next.
    folded: Instant,
    fold_at: usize,
    /// Changes were lost before they came into the journal: a pass that begins after that brings them home.
    behind: bool,
    /// The queue's, as last seen.
    epoch: u64,
    /// The last commit took longer than replies may wait.
    slow: bool,
    /// What went wrong when it was last tried, and when that was.
    failed: BTreeMap<Attempt, Instant>,
}

/// The journal on its way into the budgets table.
struct Pass {
    /// Of the shard in work; in order, the next one last.
    places: Vec<HashedKey>,
    /// The next shard.
    shard: usize,
    /// The last entry of the journal, and its octets, when the pass began.
    last: i64,
    octets: usize,
    /// Changes were lost before it began, last in this epoch.
    behind: Option<u64>,
    /// Octets written so far, about.
    written: usize,
    /// Budgets whose pages are damaged, and what is wrong with these.
    unfoldable: Vec<HashedKey>,
    fault: Option<String>,
}

/// Rows folded in one transaction: as many as changes come, within these bounds. Commits wait for them.
const LEAST_SLICE: usize = 64;
const MOST_SLICE: usize = 2_000;

/// What a row has beside its key and its filter, in octets.
const ROW: usize = 18;

/// Octets folded in one transaction, about: filters may be large.
const SLICE_OCTETS: usize = 512 << 10;

/// What a folded row, or a commit, adds to the write-ahead log, at most, beside filters and entries.
const PAGE: usize = 4096;

/// Journal entries removed at once.
const DISCARDED: i64 = 64;

/// The journal is folded when it has grown to twice what the last pass had to write, within these bounds (octets); after a while
/// anyway, or when nothing has happened for a moment. What changes often is written more seldom then, and the journal is no larger
/// than the budgets warrant.
const FOLD_AT: std::ops::RangeInclusive<usize> = 4 << 20..=128 << 20;
const FOLD_AFTER: Duration = Duration::from_secs(60);
const IDLE: Duration = Duration::from_secs(1);

/// A journal that has grown to this takes no more: it cannot be folded, or not fast enough.
const MAX_JOURNAL: usize = 256 << 20;

/// How often to try again what failed.
const RETRY: Duration = Duration::from_secs(1);

/// A commit that takes longer is a trouble: replies wait for it.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// How long to fold at the end: what remains then stays in the journal.
const LAST_FOLD: Duration = Duration::from_secs(2);

impl Writer {
    /// With a file that is open and the octets of its journal, or without, to be opened when that can be done.
    pub fn start(core: Arc<Core>, file: Option<(File, usize)>) -> std::io::Result<Self> {
        let (file, journal) = file.map_or((None, 0), |(file, journal)| (Some(file), journal));
        let failed = file.is_none().then(|| (Attempt::Open, Instant::now())).into_iter().collect();
        // What a former process left is brought home first.
        let left = file.as_ref().filter(|_| journal > 0);
        let pass = left.map(|file| Pass::new(file.last_entry(), journal, None));
        let mut task = Task {
            core: core.clone(),
            file,
            journal,
            pass,
            folded: Instant::now(),
            fold_at: *FOLD_AT.start(),
            behind: false,
            epoch: 0,
            slow: false,
            failed,
        };
        let watched = core.clone();
        std::thread::Builder::new().name("weir-state-wait".to_owned()).spawn(move || watch(&watched))?;
        let thread = std::thread::Builder::new().name("weir-state-write".to_owned()).spawn(move || {
            let _ending = Ending(task.core.clone());
            task.run();
        });
        let thread = thread.inspect_err(|_| core.queue.end())?;
        Ok(Self { core, thread })
    }

    /// Has the thread end after its last commit.
    pub fn stop(self) -> JoinHandle<()> {
        self.core.queue.stop();
        self.thread
    }
}

/// Frees whoever has waited for too long, as the writer hangs in the disk.
fn watch(core: &Core) {
    while let Some(hanging) = core.queue.watch(PATIENCE) {
        // It is so before they go on, and said after that: the log may lie on the same disk.
        let news = core.troubles.set(Attempt::Append, Err(slow("no commit")));
        let histogram = core.metrics.admit_seconds.local();
        hanging.into_iter().for_each(|waiting| waiting.free(|time| histogram.observe(time.as_secs_f64())));
        drop(histogram);
        news.into_iter().for_each(News::log);
    }
}

impl Task {
    fn run(&mut self) {
        let (mut records, mut spare) = (0, Entry::default());
        loop {
            // What a slice holds is in the journal before it is in the table: the states are taken before the changes.
            let mut slice = self.next_slice(records.clamp(LEAST_SLICE, MOST_SLICE));
            let patience = if self.pass.is_some() { Duration::ZERO } else { IDLE };
            let mut work = self.core.queue.take(patience, std::mem::take(&mut spare));
            if work.epoch != self.epoch {
                self.epoch = work.epoch;
                self.fall_behind();
            }
            if work.stop {
                // The last chance is not waited for.
                self.failed.clear();
            }
            if let Some(file) = &mut self.file {
                // What is folded at leisure after a load may cut it, so that nobody waits for that.
                file.keep_log(self.core.keep_log.load(Ordering::Relaxed));
            }
            records = work.entry.records();
            if records > 0 || self.must_try(work.idle) {
                self.commit(&mut work.entry, &mut slice);
            }
            spare = work.entry;
            spare.clear();
            self.fold(&slice);
            self.advance(work.idle);
            self.write_book();
            self.run_errands(work.errands);
            let has_failed = self.failed.contains_key(&Attempt::Open) || self.failed.contains_key(&Attempt::Append);
            if !has_failed && !self.slow && self.journal <= MAX_JOURNAL {
                // Whoever waited too long may have said so after the commit had come.
                self.core.troubles.note(Attempt::Append, Ok(()));
            }
            if work.stop {
                break;
            }
        }
        self.finish();
    }

    /// Something has changed that is not in the journal.
    fn fall_behind(&mut self) {
        self.behind = true;
        self.core.troubles.note(Attempt::CatchUp, Err(CATCHING_UP.to_owned()));
    }

    /// Whether to commit though there is nothing to be committed: to see whether what went badly goes well again.
    fn must_try(&self, idle: bool) -> bool {
        let failed = |attempt| self.failed.contains_key(&attempt) && self.may_try(attempt);
        self.slow && idle || failed(Attempt::Append) || failed(Attempt::Open)
    }

    fn may_try(&self, attempt: Attempt) -> bool {
        self.failed.get(&attempt).is_none_or(|at| at.elapsed() >= RETRY)
    }

    fn note(&mut self, attempt: Attempt, outcome: Result<(), String>) {
        match &outcome {
            Ok(()) => self.failed.remove(&attempt),
            Err(_) => self.failed.insert(attempt, Instant::now()),
        };
        self.core.troubles.note(attempt, outcome);
    }

    /// Writes what was taken as one entry, and the slice with it. Whether it is in the file then or not: mail flows, and the store says
    /// that it is degraded. What is left of the slice was not written.
    fn commit(&mut self, entry: &mut Entry, slice: &mut Vec<(HashedKey, Budget)>) {
        if !self.may_try(Attempt::Append) || !self.open() {
            return self.core.queue.lose();
        }
        if self.journal > MAX_JOURNAL {
            let reason = "the journal has grown too large, since it could not be folded".to_owned();
            self.core.troubles.note(Attempt::Append, Err(reason));
            return self.core.queue.lose();
        }
        let began = Instant::now();
        let outcome = self.append(entry, slice);
        let time = began.elapsed();
        self.slow = time >= PATIENCE;
        let is_durable = outcome.is_ok();
        if is_durable {
            let histogram = self.core.metrics.admit_seconds.local();
            self.core.queue.answer(|time| histogram.observe(time.as_secs_f64()));
        }
        self.note(Attempt::Append, outcome);
        if !is_durable {
            // Whoever goes on finds that it is so.
            self.core.queue.lose();
        }
        if self.slow {
            let reason = format!("the disk is slow: a commit took {:.1} s", time.as_secs_f64());
            self.core.troubles.note(Attempt::Append, Err(reason));
        }
    }

    fn append(&mut self, entry: &mut Entry, slice: &mut Vec<(HashedKey, Budget)>) -> Result<(), String> {
        let Some(file) = &mut self.file else { return Err("the state file is not open".to_owned()) };
        let entry = entry.seal();
        match file.append(entry, slice) {
            Ok(()) => {
                self.core.hot.end_fold(slice, Some(self.core.queue.epoch()));
                self.core.written.fetch_add(slice.len() * PAGE, Ordering::Relaxed);
                slice.clear();
            }
            // It may be the slice that cannot be written.
            Err(_) if !slice.is_empty() => file.append(entry, &[]).map_err(|error| file::words(&error))?,
            Err(error) => return Err(file::words(&error)),
        }
        self.journal += entry.len();
        self.core.metrics.journal_octets.set(i64::try_from(self.journal).unwrap_or(i64::MAX));
        self.core.written.fetch_add(entry.len() + PAGE, Ordering::Relaxed);
        Ok(())
    }

    /// Opens the file, if it is not open and it is time to try. False: it is not open.
    fn open(&mut self) -> bool {
        if self.file.is_some() {
            return true;
        }
        if !self.may_try(Attempt::Open) {
            return false;
        }
        let opened = self.core.open().map_err(|error| error.to_string());
        let outcome = opened.map(|(file, journal)| (self.file, self.journal) = (Some(file), journal));
        self.fall_behind();
        self.note(Attempt::Open, outcome);
        self.file.is_some()
    }

    /// The budgets to be written next, as they are now.
    fn next_slice(&mut self, rows: usize) -> Vec<(HashedKey, Budget)> {
        let Some(pass) = &mut self.pass else { return Vec::new() };
        let (mut slice, mut octets) = (Vec::with_capacity(rows), 0);
        while slice.len() < rows && octets < SLICE_OCTETS {
            let Some(place) = pass.next(&self.core) else { break };
            if let Some(budget) = self.core.hot.begin_fold(&place) {
                octets += ROW + place.key.as_str().len() + budget.seen.as_ref().map_or(0, |seen| seen.octets());
                slice.push((place, budget));
            }
        }
        pass.written += octets;
        slice
    }

    fn fold(&mut self, slice: &[(HashedKey, Budget)]) {
        let Some(file) = self.file.as_mut().filter(|_| !slice.is_empty()) else { return };
        let outcome = file.fold(slice);
        self.core.written.fetch_add(slice.len() * PAGE, Ordering::Relaxed);
        let Err(error) = outcome else { return self.core.hot.end_fold(slice, Some(self.core.queue.epoch())) };
        if file::is_local(&error) && slice.len() > 1 {
            // Other pages may be whole.
            let (one, other) = slice.split_at(slice.len() / 2);
            self.fold(one);
            return self.fold(other);
        }
        self.core.hot.end_fold(slice, None);
        match &mut self.pass {
            Some(pass) if file::is_local(&error) => {
                pass.unfoldable.extend(slice.iter().map(|(place, _)| place.clone()));
                pass.fault = Some(file::words(&error));
            }
            _ => self.give_up(file::words(&error)),
        }
    }

    /// Ends the pass before its end: what is left of it is for the next one.
    fn give_up(&mut self, reason: String) {
        if let Some(pass) = self.pass.take() {
            self.core.hot.put_back(pass.places.into_iter());
        }
        self.note(Attempt::Fold, Err(reason));
    }

    /// Goes on with the pass, or begins one if it is time.
    fn advance(&mut self, idle: bool) {
        let is_allowed = self.may_try(Attempt::Fold) && !self.failed.contains_key(&Attempt::Append);
        let is_crowded = self.core.hot.is_crowded();
        let Some(file) = &mut self.file else { return };
        let Some(pass) = &mut self.pass else {
            let is_due = self.journal > self.fold_at
                || self.behind
                || is_crowded && self.core.hot.has_changed()
                || (idle || self.folded.elapsed() > FOLD_AFTER) && (self.journal > 0 || self.core.hot.has_changed());
            if is_due && is_allowed {
                self.pass = Some(Pass::new(file.last_entry(), self.journal, self.behind.then_some(self.epoch)));
            }
            return;
        };
        if !pass.is_folded() {
            return;
        }
        if !pass.unfoldable.is_empty() {
            let places = std::mem::take(&mut pass.unfoldable);
            return self.keep_in_journal(&places);
        }
        match file.discard(pass.last, DISCARDED) {
            Ok(true) => {}
            Ok(false) => self.end_pass(),
            Err(error) => self.give_up(file::words(&error)),
        }
    }

    /// What cannot be written to the table goes into the journal once more, so that all that was there before can go.
    fn keep_in_journal(&mut self, places: &[HashedKey]) {
        let mut entry = Entry::default();
        for place in places {
            // As it is now: what was journalled since is older, or comes later.
            if let Some(budget) = self.core.hot.begin_fold(place) {
                entry.push(place.key.borrowed(), &budget, Seen::Whole);
                self.core.hot.end_fold(&[(place.clone(), budget)], None);
            }
        }
        let Some(file) = &mut self.file else { return };
        match file.append(entry.seal(), &[]) {
            Ok(()) => self.journal += entry.octets(),
            Err(error) => self.give_up(file::words(&error)),
        }
    }

    fn end_pass(&mut self) {
        let Some(pass) = self.pass.take() else { return };
        self.journal -= pass.octets;
        self.folded = Instant::now();
        self.fold_at = (2 * pass.written).clamp(*FOLD_AT.start(), *FOLD_AT.end());
        self.core.metrics.journal_octets.set(i64::try_from(self.journal).unwrap_or(i64::MAX));
        self.note(Attempt::Fold, pass.fault.map_or(Ok(()), Err));
        // Unless more was lost since the pass began.
        let Some(epoch) = pass.behind else { return };
        let _stirring = self.core.stirring.lock().unwrap_or_else(PoisonError::into_inner);
        if self.core.queue.epoch() == epoch {
            self.behind = false;
            self.core.troubles.note(Attempt::CatchUp, Ok(()));
        }
    }

    /// Writes what was done about exceptions.
    fn write_book(&mut self) {
        let core = self.core.clone();
        if !core.book.any() {
            // Whoever waited too long may have said so after it was written.
            return self.note(Attempt::PendingExceptions, Ok(()));
        }
        if !self.may_try(Attempt::PendingExceptions) || !self.open() {
            return core.book.give_up();
        }
        let Some(file) = &mut self.file else { return };
        let page = core.book.take();
        // As they are now: what is changed after this stands on the next page.
        match file.write_page(&page, &core.policy().exceptions) {
            Ok(()) => {
                self.core.written.fetch_add((page.touched.len() + page.records.len()) * PAGE, Ordering::Relaxed);
                self.note(Attempt::PendingExceptions, Ok(()));
                page.written();
            }
            Err(error) => {
                let reason = format!("grants and suspensions could not be written: {}", file::words(&error));
                self.note(Attempt::PendingExceptions, Err(reason));
                core.book.put_back(page);
            }
        }
    }

    /// Where the file cannot be written they are not done: they come again by themselves.
    fn run_errands(&mut self, errands: Vec<Errand>) {
        let Some(file) = self.file.as_mut().filter(|_| self.failed.is_empty()) else { return };
        for errand in errands {
            let outcome = match errand {
                Errand::Forget(mut rows) => {
                    // What is in memory alone may build on them.
                    rows.retain(|(place, _)| self.core.hot.is_folded(place));
                    file.forget(&rows)
                }
                Errand::Checkpoint => file.checkpoint().map(|_| ()),
                Errand::Note(names, now) => file.note_kinds(&names, now),
                Errand::Drop(names) => file.drop_kinds(&names),
                Errand::Prune(before) => file.prune(before),
                // It is written before all errands, or as soon as it can be.
                Errand::PendingExceptions => Ok(()),
            };
            // What fails here fails elsewhere, too.
            if let Err(error) = outcome {
                tracing::debug!(%error, "an errand of the state file failed");
            }
        }
    }

    /// Nothing more will come: folds what there is time for. The rest is in the journal.
    fn finish(&mut self) {
        let deadline = Instant::now() + LAST_FOLD;
        while Instant::now() < deadline && (self.pass.is_some() || self.journal > 0 || self.core.hot.has_changed()) {
            let slice = self.next_slice(MOST_SLICE);
            self.fold(&slice);
            self.advance(true);
            if self.file.is_none() || self.pass.is_none() && !self.failed.is_empty() {
                break;
            }
        }
        if self.core.hot.has_counted_unread() {
            let reason = "some of what was counted could not be added to the file".to_owned();
            self.core.troubles.note(Attempt::CatchUp, Err(reason));
        }
    }
}

impl Pass {
    fn new(last: i64, octets: usize, behind: Option<u64>) -> Self {
        Self { places: Vec::new(), shard: 0, last, octets, behind, written: 0, unfoldable: Vec::new(), fault: None }
    }

    fn next(&mut self, core: &Core) -> Option<HashedKey> {
        while self.places.is_empty() && self.shard < SHARDS {
            self.places = core.hot.take_changed(self.shard);
            self.places.reverse();
            self.shard += 1;
        }
        self.places.pop()
    }

    fn is_folded(&self) -> bool {
        self.places.is_empty() && self.shard == SHARDS
    }
}
