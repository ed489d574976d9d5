//! The maintenance thread checkpoints the write-ahead log, and checks that the state file is still at its path. Once
//! after the start, it checks the whole file for damage. It also finds expired budgets, which the writer then deletes.

use super::commit_queue::WriterJob;
use super::core::{Core, KEEP};
use super::file::{self, BudgetRow, File};
use super::hashed_key::HashedKey;
use super::health::Attempt;
use super::options::Durability;
use crate::policy::limit::Limit;
use crate::time::Timestamp;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Handle on the maintenance thread.
pub struct MaintenanceThread {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

/// Time between two rounds of the thread, if the write-ahead log is not too long.
const TICK: Duration = Duration::from_millis(200);
/// Time between two rounds of the thread while the write-ahead log is too long.
const HURRIED_TICK: Duration = Duration::from_millis(20);

/// Time without writes to the write-ahead log after which the load is considered to have ended.
const CALM_AFTER: Duration = Duration::from_secs(1);

/// A checkpoint is due when about this number of octets was written to the write-ahead log since the last checkpoint.
pub const CHECKPOINT_AT_OCTETS: usize = 16 << 20;
/// A checkpoint is due after this time, if anything was written to the write-ahead log since the last checkpoint.
const CHECKPOINT_AFTER: Duration = Duration::from_secs(10);

/// If the write-ahead log has been too long for this time, a reader of the file must be preventing its reset. If there
/// is only load and no such reader, the log is reset within a second.
const HELD_AFTER: Duration = Duration::from_secs(10);

/// Maximum number of pages in the write-ahead log. A longer log must be reset, even if commits have to wait for the
/// reset.
const MAX_WAL_PAGES: i64 = 16_384;

/// Number of rows of the table that are checked for expiry in one round. The check of a million rows takes a minute and
/// a half.
const ROWS_PER_TICK: usize = 2_000;

/// Maximum number of rows that one transaction deletes.
const DELETED_AT_ONCE: usize = 100;

/// Pause between two walks through the table to find expired budgets.
const PAUSE_BETWEEN_WALKS: Duration = Duration::from_secs(600);

struct Task {
    core: Arc<Core>,
    /// Connection for checkpoints and for reading budgets.
    file: Option<File>,
    stop: Receiver<()>,
    checkpoint: CheckpointState,
    walk: Walk,
    /// End of the last walk through the table: the latest time of a transaction, and the time of the monotonic clock.
    walked: Option<(Timestamp, Instant)>,
    checking: Option<Checking>,
}

/// State of the checkpoints of the write-ahead log.
struct CheckpointState {
    /// Time of the last checkpoint of new pages.
    at: Instant,
    /// Value of [`Core::wal_written`] at the last checkpoint.
    written: usize,
    /// True if the last checkpoint copied all pages that the log had when the checkpoint began. The field `written`
    /// shows whether there were commits after that.
    is_whole: bool,
    /// Time when the log became too long; `None` if the log is not too long.
    long_since: Option<Instant>,
    /// Number of pages in the log at the last checkpoint.
    pages: i64,
}

/// Walk through the table of budgets, in its order, to find expired budgets.
#[derive(Default)]
struct Walk {
    /// Key of the last row that was read.
    after: Option<HashedKey>,
    /// For each recorded kind of limit, the time when a limit of this kind was last in force.
    kinds: HashMap<String, Timestamp>,
    /// Kinds of limits for which this walk has found budgets that have not expired.
    found: HashSet<String>,
}

/// The thread that checks the whole file for damage once.
struct Checking {
    thread: JoinHandle<()>,
    interrupt: rusqlite::InterruptHandle,
}

impl MaintenanceThread {
    pub fn start(core: Arc<Core>) -> std::io::Result<Self> {
        let (stop, stopping) = channel();
        let mut task = Task {
            core,
            file: None,
            stop: stopping,
            checkpoint: CheckpointState { at: Instant::now(), written: 0, is_whole: true, long_since: None, pages: 0 },
            walk: Walk::default(),
            walked: None,
            checking: None,
        };
        let thread = std::thread::Builder::new().name("weir-state-keep".to_owned()).spawn(move || task.run())?;
        Ok(Self { stop, thread })
    }

    /// Makes the thread end.
    pub fn stop(self) -> JoinHandle<()> {
        drop(self.stop);
        self.thread
    }
}

impl Task {
    fn run(&mut self) {
        loop {
            let hurries = self.core.is_wal_long.load(Ordering::Relaxed) && self.checkpoint.at.elapsed() < CALM_AFTER;
            if self.stop.recv_timeout(if hurries { HURRIED_TICK } else { TICK }) == Err(RecvTimeoutError::Disconnected)
            {
                break;
            }
            self.core.metrics.limits.budgets.set(i64::try_from(self.core.cache.len()).unwrap_or(i64::MAX));
            self.core.make_room();
            self.core.cache.drop_empty();
            if self.core.is_open() {
                self.check_identity();
                self.maintain();
            }
        }
        if let Some(checking) = self.checking.take() {
            checking.interrupt.interrupt();
            let _ = checking.thread.join();
        }
    }

    /// Checks that the opened file is still at its path. If another program has moved or deleted it, Weir continues to
    /// write to the old file, and the next start of Weir does not find that file.
    fn check_identity(&self) {
        let found = match file::identity(&self.core.options.path) {
            None => {
                Err("the state file has been removed: until Weir is restarted, what is counted ends with this process"
                    .to_owned())
            }
            found if found != self.core.identity() => {
                Err("another file has taken the state file's place: it is used after a restart".to_owned())
            }
            _ => Ok(()),
        };
        self.core.health.record(Attempt::FindFile, found);
    }

    fn maintain(&mut self) {
        if self.file.is_none() {
            match File::open_for_checkpoint(&self.core.options.path) {
                Ok(file) => self.file = Some(file),
                Err(error) => return self.core.health.record(Attempt::Checkpoint, Err(error.to_string())),
            }
            self.checking = Checking::start(&self.core);
        }
        let Some(file) = &self.file else { return };
        let outcome = checkpoint(&self.core, file, &mut self.checkpoint);
        let outcome =
            outcome.map_err(|error| format!("the write-ahead log cannot be checkpointed: {}", file::describe(&error)));
        self.core.health.record(Attempt::Checkpoint, outcome);
        // While the store has an error, or the clock may be wrong, the thread does not search for expired budgets.
        let can_wait = self.core.health.is_degraded() || self.core.clock_doubt().is_some();
        let Some(now) = self.core.cache.latest().filter(|_| !can_wait) else { return };
        let rested = |(then, at): (Timestamp, Instant)| {
            now.since(then) >= PAUSE_BETWEEN_WALKS
                || then.since(now) >= PAUSE_BETWEEN_WALKS
                || at.elapsed() >= PAUSE_BETWEEN_WALKS
        };
        if self.walked.is_none_or(rested) {
            match self.walk.advance(&self.core, file, now) {
                Ok(true) => {}
                Ok(false) => (self.walk, self.walked) = (Walk::default(), Some((now, Instant::now()))),
                // The error is only logged, because the loader meets the same error and degrades the health.
                Err(error) => {
                    tracing::debug!(%error, "the walk through the budgets ended early");
                    (self.walk, self.walked) = (Walk::default(), Some((now, Instant::now())));
                }
            }
        }
    }
}

/// Checkpoints the write-ahead log (copies its pages into the file), if enough was written to the log since the last
/// checkpoint. Commits need not wait. If the log is too long, this function also asks the writer to copy the last
/// pages, so that the next commit can reset the log.
///
/// SQLite resets the log only at a commit. Until then the log keeps its length. After a load has ended, the next commit
/// that resets a long log also truncates it.
fn checkpoint(core: &Core, file: &File, state: &mut CheckpointState) -> rusqlite::Result<()> {
    let written = core.wal_written.load(Ordering::Relaxed);
    let new = written.wrapping_sub(state.written);
    let time = state.at.elapsed();
    let kept = core.keep_wal.load(Ordering::Relaxed);
    let keep = should_keep_wal_length(core.options.durability, kept, new, time);
    core.keep_wal.store(keep, Ordering::Relaxed);
    let length = file::wal_path(&core.options.path).metadata().map_or(0, |metadata| metadata.len());
    core.metrics.state.wal_octets.set(length.cast_signed());
    let is_to_be_cut = !keep && time >= CALM_AFTER && length > CHECKPOINT_AT_OCTETS as u64;
    let is_to_begin_anew = is_to_be_cut || core.is_wal_long.load(Ordering::Relaxed);
    let is_due = match new {
        0 => is_to_begin_anew && !state.is_whole,
        new => is_to_begin_anew || new >= CHECKPOINT_AT_OCTETS || time >= CHECKPOINT_AFTER,
    };
    if !is_due {
        return Ok(());
    }
    let (pages, copied) = file.checkpoint()?;
    let at = if new > 0 { Instant::now() } else { state.at };
    let is_long = pages > MAX_WAL_PAGES;
    let has_grown = pages > state.pages;
    *state = CheckpointState { at, written, is_whole: copied >= pages, long_since: state.long_since, pages };
    state.report_held_wal(core, is_long, has_grown);
    core.is_wal_long.store(is_long, Ordering::Relaxed);
    if (is_long || is_to_be_cut) && new > 0 {
        // Copy also the pages that were written during the first checkpoint, so that the writer has to copy only a few.
        file.checkpoint()?;
        core.queue.send_job(WriterJob::Checkpoint);
    }
    Ok(())
}

impl CheckpointState {
    /// Logs that a program that reads the file prevents the reset of the write-ahead log, and logs when the log has
    /// been reset. The log takes more and more of the disk, but charges are still durable, so the health is not
    /// degraded.
    ///
    /// Called after a checkpoint. When all pages are copied, the next commit resets the log, unless a reader still
    /// needs the log. So if a log is long but does not grow, perhaps there has been no commit yet.
    fn report_held_wal(&mut self, core: &Core, is_long: bool, has_grown: bool) {
        let was_held = core.metrics.state.wal_held.get() > 0;
        if !is_long {
            self.long_since = None;
            if was_held {
                core.metrics.state.wal_held.set(0);
                tracing::info!("the write-ahead log of the state file has been reset");
            }
            return;
        }
        let since = *self.long_since.get_or_insert_with(Instant::now);
        if has_grown && !was_held && since.elapsed() >= HELD_AFTER {
            core.metrics.state.wal_held.set(1);
            tracing::warn!(
                bytes = core.metrics.state.wal_octets.get(),
                "a program that reads the state file prevents the reset of its write-ahead log, which grows: \
                 end that program, such as a shell of sqlite3"
            );
        }
    }
}

/// Returns whether the write-ahead log must keep its length when SQLite resets it. `new` is the number of octets
/// written to the log since the last checkpoint. `time` is the time since that checkpoint. `kept` is the result of the
/// previous call.
///
/// Under load, the log will soon have the same length again. If the log keeps its length, the file system has less
/// work. Without load, the old pages of a long log leave the kernel's page cache. A commit overwrites only parts of
/// such pages, because frames of the log are longer than pages. The kernel must therefore first read these pages from
/// the disk. This takes several times as long as appending to a short log. But if each commit is synced to the disk,
/// appending takes longer than overwriting. Appending makes the file longer, so the file system must also sync its own
/// journal.
pub fn should_keep_wal_length(durability: Durability, kept: bool, new: usize, time: Duration) -> bool {
    let is_fast = new as u128 * CHECKPOINT_AFTER.as_millis() > CHECKPOINT_AT_OCTETS as u128 * time.as_millis();
    durability == Durability::Power || is_fast || kept && time < CALM_AFTER
}

impl Walk {
    /// Reads the next rows and sends the expired budgets to the writer. Returns false after the last row.
    fn advance(&mut self, core: &Core, file: &File, now: Timestamp) -> rusqlite::Result<bool> {
        let policy = core.policy();
        let kinds = |limit| Limit::kinds(limit).map(move |kind| (kind, limit));
        let in_force: HashMap<_, _> = policy.limits.iter().flat_map(kinds).collect();
        if self.after.is_none() {
            core.queue.send_job(WriterJob::RecordKinds(in_force.keys().cloned().collect(), now));
            self.kinds = file.kinds()?.into_iter().collect();
        }
        let rows = file.rows_after(self.after.as_ref(), ROWS_PER_TICK)?;
        // Read the exceptions after the rows. Otherwise, if a grant began after the exceptions were read and before the
        // rows were read, the grant's budget would be deleted.
        let exceptions = core.policy().exceptions.clone();
        let mut expired = Vec::new();
        for BudgetRow { hashed_key, state, epoch } in &rows {
            let kind = hashed_key.key.kind();
            let is_expired = match (in_force.get(&kind), self.kinds.get(&kind)) {
                // The budget of a grant is needed until the grant ends, regardless of the time for which the limit
                // remembers.
                _ if hashed_key.key.ungranted().is_some() => !exceptions.needs(&hashed_key.key, now),
                (Some(limit), _) => limit.has_forgotten(*state, *epoch, now),
                (None, Some(last)) if *last <= now => now.since(*last) >= KEEP,
                // The recorded time is missing, or it is in the future and so comes from a wrong clock. Record the
                // present time.
                (None, _) => {
                    core.queue.send_job(WriterJob::RecordKinds(vec![kind.clone()], now));
                    self.kinds.insert(kind.clone(), now);
                    false
                }
            };
            if is_expired {
                expired.push((hashed_key.clone(), state.at));
            } else if !self.found.contains(&kind) {
                self.found.insert(kind);
            }
        }
        // Commits of charges wait for each transaction that deletes rows. Each such transaction therefore deletes only
        // a few rows.
        expired.chunks(DELETED_AT_ONCE).for_each(|rows| core.queue.send_job(WriterJob::DeleteBudgets(rows.to_vec())));
        self.after = rows.last().map(|row| row.hashed_key.clone());
        let more = rows.len() == ROWS_PER_TICK;
        if !more {
            let gone = |kind: &&String| !in_force.contains_key(*kind) && !self.found.contains(*kind);
            let gone: Vec<String> = self.kinds.keys().filter(gone).cloned().collect();
            if !gone.is_empty() {
                core.queue.send_job(WriterJob::DeleteKinds(gone));
            }
        }
        Ok(more)
    }
}

impl Checking {
    fn start(core: &Arc<Core>) -> Option<Self> {
        let file = File::open_to_read(&core.options.path).ok()?;
        let (interrupt, core) = (file.interrupt_handle(), core.clone());
        let check = move || match file.quick_check() {
            Ok(None) => tracing::debug!("state file checked: it is whole"),
            Ok(Some(fault)) => core.health.record(Attempt::Check, Err(damaged(&fault))),
            // Weir is stopping and has interrupted the check.
            Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::OperationInterrupted) => {}
            Err(error) if file::is_page_damage(&error) => {
                core.health.record(Attempt::Check, Err(damaged(&error.to_string())))
            }
            // Any other error also occurs in other operations, which degrade the health.
            Err(error) => tracing::warn!(%error, "the state file could not be checked"),
        };
        let thread = std::thread::Builder::new().name("weir-state-check".to_owned()).spawn(check).ok()?;
        Some(Self { thread, interrupt })
    }
}

fn damaged(fault: &str) -> String {
    format!("the state file is damaged: {}; {}", fault.replace('\n', " "), file::ADVICE)
}
