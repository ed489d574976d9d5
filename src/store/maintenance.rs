//! The maintenance thread checkpoints the write-ahead log, and checks that the state file is still at its path. Once
//! after the start, it checks the whole file for damage. It also finds expired budgets, which the writer then deletes.

use super::core::{Core, KEEP};
use super::database_job::DatabaseJob;
use super::file::{self, BudgetRow, File};
use super::hashed_key::HashedKey;
use super::health::Attempt;
use super::login_expiry::LoginExpiry;
use super::maintenance_pause::MaintenancePause;
use super::suspicion::SuspicionCounter;
use super::wal_checkpoint::Checkpointer;
use crate::time::Timestamp;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Handle on the maintenance thread.
pub struct MaintenanceThread {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

/// Time between two rounds of the thread, if the write-ahead log is not too long.
const TICK: Duration = Duration::from_millis(200);
/// Time between two rounds of the thread while the write-ahead log is too long.
const HURRIED_TICK: Duration = Duration::from_millis(20);

/// Number of rows of the table that are checked for expiry in one round. The check of a million rows takes a minute and
/// a half.
const ROWS_PER_TICK: usize = 2_000;

/// Maximum number of rows that one transaction deletes.
const DELETED_AT_ONCE: usize = 100;

struct Task {
    core: Arc<Core>,
    /// Connection for checkpoints and for reading budgets.
    file: Option<File>,
    stop: Receiver<()>,
    checkpointer: Checkpointer,
    walk: Walk,
    login_expiry: LoginExpiry,
    maintenance_pause: MaintenancePause,
    checking: Option<Checking>,
    suspicion_counter: SuspicionCounter,
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
            checkpointer: Checkpointer::new(),
            walk: Walk::default(),
            login_expiry: LoginExpiry::default(),
            maintenance_pause: MaintenancePause::default(),
            checking: None,
            suspicion_counter: SuspicionCounter::default(),
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
            let tick = if self.checkpointer.is_urgent(&self.core) { HURRIED_TICK } else { TICK };
            if self.stop.recv_timeout(tick) == Err(RecvTimeoutError::Disconnected) {
                break;
            }
            self.core.metrics.limits.budgets.set(i64::try_from(self.core.cache.len()).unwrap_or(i64::MAX));
            self.core.metrics.limits.budget_octets.set(i64::try_from(self.core.cache.octets()).unwrap_or(i64::MAX));
            self.core.cache.check_changed();
            if self.core.cache.must_fold() {
                self.core.jobs.wake();
            }
            self.core.make_room();
            self.core.cache.drop_empty();
            if let Some(now) = self.core.cache.latest() {
                self.suspicion_counter.count_if_due(&self.core, now);
            }
            if self.core.logins.is_due() {
                self.core.jobs.send(DatabaseJob::WriteLogins);
            }
            if self.core.refusals.is_due() {
                self.core.jobs.send(DatabaseJob::WriteRefusals);
            }
            if self.core.notices.is_due() {
                self.core.jobs.send(DatabaseJob::WriteNotices);
            }
            if self.core.queue_ids.is_due() {
                self.core.jobs.send(DatabaseJob::WriteQueueIds);
            }
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
        let outcome = self.checkpointer.checkpoint(&self.core, file);
        let outcome =
            outcome.map_err(|error| format!("the write-ahead log cannot be checkpointed: {}", file::describe(&error)));
        self.core.health.record(Attempt::Checkpoint, outcome);
        // While the store has an error, or the clock may be wrong, the thread does not search for expired budgets.
        let can_wait = self.core.health.is_degraded() || self.core.clock_doubt().is_some();
        let latest = self.core.cache.latest().max(self.core.logins.latest()).max(self.core.refusals.latest());
        let Some(now) = latest.filter(|_| !can_wait) else { return };
        self.login_expiry.advance(&self.core, file, now);
        if let Some(before) = self.core.refusals.expiry(now) {
            self.core.jobs.send(DatabaseJob::PruneRefusals(before));
        }
        if self.maintenance_pause.is_over(now) {
            match self.walk.advance(&self.core, file, now) {
                Ok(true) => {}
                Ok(false) => (self.walk, self.maintenance_pause) = (Walk::default(), MaintenancePause::begin(now)),
                // The error is only logged, because the loader meets the same error and degrades the health.
                Err(error) => {
                    tracing::debug!(%error, "the walk through the budgets ended early");
                    (self.walk, self.maintenance_pause) = (Walk::default(), MaintenancePause::begin(now));
                }
            }
        }
    }
}

impl Walk {
    /// Reads the next rows and sends the expired budgets to the writer. Returns false after the last row.
    fn advance(&mut self, core: &Core, file: &File, now: Timestamp) -> rusqlite::Result<bool> {
        let policy = core.policy();
        let in_force: HashMap<_, _> = policy.stored_kinds().collect();
        if self.after.is_none() {
            core.jobs.send(DatabaseJob::RecordKinds(in_force.keys().cloned().collect(), now));
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
                (Some(stored), _) => stored.has_forgotten(*state, *epoch, now),
                (None, Some(last)) if *last <= now => now.since(*last) >= KEEP,
                // The recorded time is missing, or it is in the future and so comes from a wrong clock. Record the
                // present time.
                (None, _) => {
                    core.jobs.send(DatabaseJob::RecordKinds(vec![kind.clone()], now));
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
        // Administrators' commands wait for each transaction that deletes rows. Each such transaction therefore deletes
        // only a few rows.
        expired.chunks(DELETED_AT_ONCE).for_each(|rows| core.jobs.send(DatabaseJob::DeleteBudgets(rows.to_vec())));
        self.after = rows.last().map(|row| row.hashed_key.clone());
        let more = rows.len() == ROWS_PER_TICK;
        if !more {
            let gone = |kind: &&String| !in_force.contains_key(*kind) && !self.found.contains(*kind);
            let gone: Vec<String> = self.kinds.keys().filter(gone).cloned().collect();
            if !gone.is_empty() {
                core.jobs.send(DatabaseJob::DeleteKinds(gone));
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
