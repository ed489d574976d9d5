//! State shared by the threads of a store.

use super::audit::AuditRecord;
use super::cache::BudgetCache;
use super::commit_queue::Queue;
use super::database_job::DatabaseJob;
use super::file::OpenError;
use super::health::{Attempt, HealthMonitor};
use super::job_queue::JobQueue;
use super::login_history::LoginMemory;
use super::new_budgets::{Excess, NewBudgets};
use super::notices::NoticeMemory;
use super::options::Options;
use super::pace::Pace;
use super::pending_exceptions::{PendingExceptions, warn_inert_grants};
use super::policy_in_force::{PolicyGuard, PolicyInForce};
use super::queue_ids::QueueIdMemory;
use super::refusals::RefusalMemory;
use super::shared::SharedBudgets;
use crate::metrics::Metrics;
use crate::policy::Policy;
use crate::policy::budgets::Key;
use crate::time::{Timestamp, format_duration};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, broadcast};

/// State shared by the threads of a store.
pub struct Core {
    pub options: Options,
    pub policy: PolicyInForce,
    pub cache: BudgetCache,
    /// Budgets that other nodes share; `None` if the budgets are in the state file.
    pub shared: Option<SharedBudgets>,
    pub queue: Queue,
    pub pace: Pace,
    pub jobs: JobQueue,
    pub pending_exceptions: PendingExceptions,
    pub new_budgets: NewBudgets,
    pub logins: LoginMemory,
    pub refusals: Arc<RefusalMemory>,
    pub notices: NoticeMemory,
    pub queue_ids: QueueIdMemory,
    /// Permits for reads of the login history.
    pub login_reads: Arc<Semaphore>,
    /// Permits for reads of the state file for administrators. They are separate, so that no administrator delays logins.
    pub admin_reads: Arc<Semaphore>,
    pub health: HealthMonitor,
    /// Gives the audit records to readers of the event stream.
    pub acts: broadcast::Sender<AuditRecord>,
    pub metrics: Arc<Metrics>,
    /// Device and inode of the opened state file and of its write-ahead log. Not set before the file was opened.
    pub identity: OnceLock<Option<[(u64, u64); 2]>>,
    /// Approximate octets written to the write-ahead log since the start. The maintenance thread uses this number to
    /// decide when to checkpoint.
    pub wal_written: AtomicUsize,
    /// True if the write-ahead log is too long. If so, the loader must end its read transactions soon, so that SQLite
    /// can reset the log.
    pub is_wal_long: AtomicBool,
    /// True if the write-ahead log keeps its length when SQLite resets it, because the load will soon fill it again.
    pub keep_wal: AtomicBool,
    /// The lock is held while the error of [`Attempt::CatchUp`] is set or cleared. Without this lock, the error could be
    /// cleared just after further changes were lost.
    catching_up: Mutex<CatchingUp>,
    /// Time when Weir's steady clock started or last followed a jump, in microseconds since 1970, if the clock may be
    /// wrong: see [`Store::set_clock_doubt`]. `i64::MIN` if the clock is certain.
    pub clock_doubt: AtomicI64,
    /// True if the loader has not answered in time. Until the loader answers again, no transaction waits for it.
    pub is_loader_stuck: AtomicBool,
}

/// Epochs of the queue (see [`Queue::epoch`]) in which changes were lost before they were written to the file.
#[derive(Default)]
struct CatchingUp {
    /// Last epoch that the journal writer has noticed. Nothing from before this epoch is appended any more.
    noticed: u64,
    /// Epoch before which no changes are missing in the file.
    done: u64,
}

/// Maximum audit records that wait for a reader of the event stream. A reader that is slower loses the oldest records.
const MAX_WAITING_ACTS: usize = 256;

/// Maximum reads of the login history at once. If the disk hangs, each read occupies a thread.
const MAX_LOGIN_READS: usize = 4;

/// Maximum number of reads of the state file for administrators at the same time.
const MAX_ADMIN_READS: usize = 2;

/// Reason for degraded health after the disk has recovered, while charges made before the recovery are not yet in the
/// file.
const CATCHING_UP: &str = "what was counted meanwhile is still to be written";

/// Consequences of replacing the policy.
pub struct Replaced {
    /// The replaced policy. Decisions that have begun still use it. Dropping the last reference can take a long time.
    pub former: Arc<Policy>,
    /// The kinds of limits that are no longer in force, or whose limits now count something else (see
    /// [`Limit::kinds`](crate::policy::limit::Limit::kinds)). A kind is a limit's name, count, algorithm and fields,
    /// such as `l/recipients/ewma/user`. The budgets of these kinds are kept for [`KEEP`].
    pub gone: Vec<String>,
    /// The grants that have no effect under the new policy, each with the reason.
    pub inert: Vec<String>,
}

/// Maximum time that a transaction waits for a commit. A reply waits for the same time. A slower commit degrades the
/// health.
pub const COMMIT_TIMEOUT: Duration = Duration::from_secs(1);

/// Time for which the budgets of a removed limit are kept, because the administrator may restore the limit.
pub const KEEP: Duration = Duration::from_secs(30 * 86_400);

impl Core {
    /// Creates the state, with no budgets in memory. The file is not opened yet.
    pub fn new(options: &Options, policy: Policy, metrics: Arc<Metrics>) -> Result<Self, OpenError> {
        let shared = options
            .shared
            .as_ref()
            .map(|shared| SharedBudgets::new(shared, &policy))
            .transpose()
            .map_err(OpenError::Secret)?;
        Ok(Self {
            options: options.clone(),
            shared,
            policy: PolicyInForce::new(policy),
            cache: BudgetCache::new(options.budget_octets),
            queue: Queue::default(),
            pace: Pace::default(),
            jobs: JobQueue::default(),
            pending_exceptions: PendingExceptions::default(),
            new_budgets: NewBudgets::default(),
            logins: LoginMemory::default(),
            notices: NoticeMemory::default(),
            queue_ids: QueueIdMemory::default(),
            refusals: Arc::new(RefusalMemory::new(options.refusals, metrics.state.refusals_dropped.clone())),
            login_reads: Arc::new(Semaphore::new(MAX_LOGIN_READS)),
            admin_reads: Arc::new(Semaphore::new(MAX_ADMIN_READS)),
            health: HealthMonitor::new(metrics.clone()),
            acts: broadcast::Sender::new(MAX_WAITING_ACTS),
            metrics,
            identity: OnceLock::new(),
            wal_written: AtomicUsize::new(0),
            is_wal_long: AtomicBool::new(false),
            keep_wal: AtomicBool::new(true),
            catching_up: Mutex::default(),
            clock_doubt: AtomicI64::new(i64::MIN),
            is_loader_stuck: AtomicBool::new(false),
        })
    }

    /// Drops budgets from memory if they take too much memory. Degrades the health if changes are lost.
    pub fn make_room(&self) {
        let lost = self.cache.make_room(self.health.is_write_failing());
        match lost {
            0 if self.cache.is_crowded() => {}
            0 => self.health.record(Attempt::HoldInMemory, Ok(())),
            _ => {
                let reason = format!("memory is full: {lost} budgets that could not be written or read were dropped");
                self.health.record(Attempt::HoldInMemory, Err(reason));
            }
        }
    }

    /// Makes the writers write to the file all changes that are only in memory, within about a second. The health is
    /// degraded until these changes are written.
    pub fn catch_up(&self) {
        let _catching_up = self.catching_up();
        self.health.record(Attempt::CatchUp, Err(CATCHING_UP.to_owned()));
        self.queue.begin_epoch();
    }

    /// Makes the database writer write to the file the changes that were lost before `epoch`. Called by the journal
    /// writer when nothing from before this epoch is appended any more.
    pub fn notice_epoch(&self, epoch: u64) {
        let mut catching_up = self.catching_up();
        if catching_up.noticed == catching_up.done {
            self.health.record(Attempt::CatchUp, Err(CATCHING_UP.to_owned()));
            self.jobs.wake();
        }
        catching_up.noticed = epoch;
    }

    /// Returns the last epoch that was noticed, if changes that were lost before it are missing in the file.
    pub fn missing_epoch(&self) -> Option<u64> {
        let catching_up = self.catching_up();
        (catching_up.noticed != catching_up.done).then_some(catching_up.noticed)
    }

    /// Records that no changes from before `epoch` are missing in the file.
    pub fn end_catch_up(&self, epoch: u64) {
        let mut catching_up = self.catching_up();
        if self.queue.epoch() == epoch {
            catching_up.done = epoch;
            self.health.record(Attempt::CatchUp, Ok(()));
        }
    }

    fn catching_up(&self) -> MutexGuard<'_, CatchingUp> {
        self.catching_up.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn clock_doubt(&self) -> Option<Timestamp> {
        Some(self.clock_doubt.load(Ordering::Relaxed)).filter(|at| *at != i64::MIN).map(Timestamp::from_micros)
    }

    /// Counts and logs the new keys that have to share a budget. Returns these keys.
    pub fn share(&self, excess: Vec<Excess>, policy: &Policy) -> impl Iterator<Item = Key> {
        for Excess { limit, is_to_be_logged, .. } in &excess {
            self.metrics.limits.new_budgets_shared.with_label_values(&[limit]).inc();
            if *is_to_be_logged {
                let max_new_budgets = policy.max_new_budgets.0;
                tracing::warn!(
                    %limit,
                    max_new_budgets,
                    "more than max-new-budgets new clients, senders or recipients in an hour: further ones share one budget"
                );
            }
        }
        excess.into_iter().map(|excess| excess.key)
    }

    pub fn is_open(&self) -> bool {
        self.identity.get().is_some()
    }

    pub fn identity(&self) -> Option<[(u64, u64); 2]> {
        self.identity.get().copied().flatten()
    }

    pub fn policy(&self) -> PolicyGuard {
        self.policy.read()
    }

    pub fn set_policy(&self, mut policy: Policy) -> Replaced {
        let replacement = self.policy.begin_replacement();
        policy.exceptions = replacement.exceptions.clone();
        let policy = Arc::new(policy);
        let former = replacement.put_in_force(policy.clone());
        self.shared.iter().for_each(|shared| shared.set_policy(&policy));
        // A limit that is gone has no lease. The others are measured again.
        self.metrics.state.lease_rest.reset();
        let kinds: Vec<String> = former.stored_kinds().map(|(kind, _)| kind).collect();
        // If the clock may be wrong, the present time is not recorded as the time when these kinds of limits were last
        // in force. If that time were too early, the budgets of these limits would be deleted too early.
        if let Some(now) = self.cache.latest().filter(|_| self.clock_doubt().is_none()) {
            self.jobs.send(DatabaseJob::RecordKinds(kinds.clone(), now));
        }
        Replaced { former, gone: self.warn_removed_limits(kinds.into_iter()), inert: warn_inert_grants(&policy) }
    }

    /// Logs and returns the kinds in `former` (see [`Limit::kinds`](crate::policy::limit::Limit::kinds)) for which no
    /// limit is in force.
    pub fn warn_removed_limits(&self, former: impl Iterator<Item = String>) -> Vec<String> {
        let in_force: HashSet<String> = self.policy().stored_kinds().map(|(kind, _)| kind).collect();
        let gone: Vec<String> = former.filter(|kind| !in_force.contains(kind)).collect();
        for limit in &gone {
            let keep = format_duration(KEEP);
            tracing::warn!(limit, "limit removed: its budgets are kept for {keep}, in case it comes back");
        }
        gone
    }
}

pub fn slow_disk(what: &str) -> String {
    format!("the disk is slow: {what} within {}", format_duration(COMMIT_TIMEOUT))
}
