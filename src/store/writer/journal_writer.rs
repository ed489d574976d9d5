//! Task that appends the changes of many transactions to the journal, in one commit.
//!
//! It is a task of the async runtime, because waking another thread for each commit costs more than the commit. A short
//! commit blocks the runtime's thread for some microseconds. A longer one is made in [`blocking`].

use super::pace::Pace;
use super::{IDLE_AFTER, RETRY_AFTER};
use crate::store::commit_queue::Work;
use crate::store::core::{COMMIT_TIMEOUT, Core};
use crate::store::file::{self, JournalAppender};
use crate::store::health::Attempt;
use crate::store::journal::Entry;
use crate::store::options::Durability;
use std::sync::Arc;
use std::time::Instant;
use tokio::runtime::{Handle, RuntimeFlavor};

/// State of the journal writer.
pub struct JournalWriter {
    core: Arc<Core>,
    pace: Arc<Pace>,
    /// `None` until the state file is open.
    appender: Option<JournalAppender>,
    /// Epoch of the queue when the writer last took work.
    epoch: u64,
    /// True if the last commit took longer than [`COMMIT_TIMEOUT`], the time for which replies wait.
    is_slow: bool,
    /// Time of the last commit, if it failed.
    failed_at: Option<Instant>,
}

/// Maximum octets of an entry whose commit is short.
const SHORT_OCTETS: usize = 256 << 10;

/// Maximum octets of the journal. A longer journal gets no more entries, because folding fails or is not fast enough.
const MAX_JOURNAL_OCTETS: usize = 256 << 20;

impl JournalWriter {
    pub fn new(core: Arc<Core>, pace: Arc<Pace>, appender: Option<JournalAppender>) -> Self {
        Self { core, pace, appender, epoch: 0, is_slow: false, failed_at: None }
    }

    pub async fn run(&mut self) {
        let mut spare = Entry::default();
        loop {
            let Work { mut entry, epoch, idle, stop, appender } =
                self.core.queue.take(IDLE_AFTER, std::mem::take(&mut spare)).await;
            self.appender = appender.or(self.appender.take());
            if epoch != self.epoch {
                self.epoch = epoch;
                self.core.notice_epoch(epoch);
            }
            if stop {
                // At shutdown the last changes are committed without a pause after a failure.
                self.failed_at = None;
            }
            let (records, mut is_committed) = (entry.records(), true);
            if records > 0 || self.is_probe_due(idle) {
                is_committed = match self.is_commit_short(&entry) {
                    true => self.commit(&mut entry),
                    false => blocking(|| self.commit(&mut entry)),
                };
            }
            spare = entry;
            spare.clear();
            let octets = self.appender.as_ref().map(JournalAppender::octets);
            let is_short = octets.is_some_and(|octets| octets <= MAX_JOURNAL_OCTETS);
            if is_committed && is_short && self.failed_at.is_none() && !self.is_slow {
                // This also clears an error that a transaction recorded when its wait timed out.
                self.core.health.record(Attempt::Append, Ok(()));
            }
            if stop {
                break;
            }
            if idle {
                self.appender.iter_mut().for_each(JournalAppender::close_ended_part);
            }
            if is_committed {
                self.pace.committed(records).await;
            }
        }
    }

    /// Returns whether a commit takes only microseconds, if the disk does not hang.
    fn is_commit_short(&self, entry: &Entry) -> bool {
        self.core.options.durability == Durability::Process
            && entry.octets() <= SHORT_OCTETS
            && self.failed_at.is_none()
            && !self.is_slow
            && !self.core.health.is_write_failing()
    }

    /// Returns whether a commit is needed even if there are no changes. Such a commit shows whether an attempt that
    /// failed now succeeds, or whether commits are fast again.
    fn is_probe_due(&self, idle: bool) -> bool {
        self.is_slow && idle || self.failed_at.is_some() && self.may_retry()
    }

    fn may_retry(&self) -> bool {
        self.failed_at.is_none_or(|at| at.elapsed() >= RETRY_AFTER)
    }

    /// Appends the taken changes to the journal, as one entry. If this fails, the waiting transactions continue, and
    /// the health is degraded. Returns whether the changes are durable.
    fn commit(&mut self, entry: &mut Entry) -> bool {
        let is_durable = self.append(entry);
        if !is_durable {
            // Discard after the health is set, because the transactions that continue check the health.
            self.core.queue.discard();
        }
        is_durable
    }

    fn append(&mut self, entry: &mut Entry) -> bool {
        let may_retry = self.may_retry();
        let Some(appender) = self.appender.as_mut().filter(|_| may_retry) else { return false };
        if appender.octets() > MAX_JOURNAL_OCTETS {
            let reason = "the journal has grown too large, since it could not be folded".to_owned();
            self.core.health.record(Attempt::Append, Err(reason));
            return false;
        }
        let began = Instant::now();
        let outcome = appender.append(entry.seal()).map_err(|error| file::describe_journal(&error));
        let time = began.elapsed();
        if self.pace.is_long(appender.octets()) && !self.pace.is_folding() {
            self.core.jobs.wake();
        }
        self.is_slow = time >= COMMIT_TIMEOUT;
        let is_durable = outcome.is_ok();
        let metrics = &self.core.metrics.state;
        metrics.commit_seconds.observe(time.as_secs_f64());
        metrics.commit_failures.inc_by(u64::from(!is_durable));
        if is_durable {
            let histogram = self.core.metrics.state.transaction_seconds.local();
            self.core.queue.complete(|time| histogram.observe(time.as_secs_f64()));
        }
        self.failed_at = (!is_durable).then(Instant::now);
        self.core.health.record(Attempt::Append, outcome);
        if self.is_slow {
            let reason = format!("the disk is slow: a commit took {:.1} s", time.as_secs_f64());
            self.core.health.record(Attempt::Append, Err(reason));
        }
        is_durable
    }
}

/// Runs `work`, which takes long. Meanwhile another thread runs the other tasks of this one.
fn blocking<R>(work: impl FnOnce() -> R) -> R {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::MultiThread => tokio::task::block_in_place(work),
        // There is no other thread.
        _ => work(),
    }
}
