//! Pace of commits and of fold passes: when a pass begins, and how far commits may get ahead of it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::Notify;

/// Bounds for the length of the journal at which a fold pass begins. Within these bounds, a pass begins when the
/// journal has [`FOLD_AT_RATIO`] times as many octets as the last pass wrote. In this way, many changes of a budget need
/// only one write to the table.
const FOLD_AT_OCTETS: std::ops::RangeInclusive<usize> = 4 << 20..=128 << 20;

const FOLD_AT_RATIO: usize = 4;

/// Number of records that are committed during a fold pass, in addition to as many as the pass has folded, from which on
/// each commit waits for a slice of the pass. Otherwise the journal, and the changed budgets in memory, would grow
/// without a bound while charges are faster than folding.
const MAX_LEAD: usize = 10_000;

/// Pace of commits and of fold passes. The database writer sets it, and commits keep to it.
pub struct Pace {
    /// Octets of the journal at which the next fold pass begins.
    fold_at_octets: AtomicUsize,
    is_folding: AtomicBool,
    /// Records that were committed during the pass, less those that it has folded.
    lead: AtomicUsize,
    /// True if the pass waits for a commit.
    is_waiting: AtomicBool,
    /// True if the writers have to end.
    is_stopping: AtomicBool,
    /// Wakes the commit that waits for the pass.
    folded: Notify,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            fold_at_octets: AtomicUsize::new(*FOLD_AT_OCTETS.start()),
            is_folding: AtomicBool::new(false),
            lead: AtomicUsize::new(0),
            is_waiting: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
            folded: Notify::new(),
        }
    }
}

impl Pace {
    /// Returns whether a journal of this length has to be folded.
    pub fn is_long(&self, octets: usize) -> bool {
        octets > self.fold_at_octets.load(Ordering::Relaxed)
    }

    pub fn is_folding(&self) -> bool {
        self.is_folding.load(Ordering::Acquire)
    }

    /// Counts committed records.
    pub fn count(&self, records: usize) {
        if self.is_folding() {
            self.lead.fetch_add(records, Ordering::Relaxed);
        }
    }

    /// Returns whether the next commit has to wait, because the commits are too far ahead of a fold pass.
    pub fn has_to_wait(&self) -> bool {
        let is_set = |flag: &AtomicBool| flag.load(Ordering::Acquire);
        is_set(&self.is_folding) && self.excess() > 0 && !is_set(&self.is_waiting) && !is_set(&self.is_stopping)
    }

    /// Waits while commits are too far ahead of a fold pass.
    pub async fn wait(&self) {
        while self.has_to_wait() {
            self.folded.notified().await;
        }
    }

    /// Lets the fold pass wait for a commit. Meanwhile no commit waits for the pass.
    pub fn let_wait<R>(&self, wait: impl FnOnce() -> R) -> R {
        self.is_waiting.store(true, Ordering::Release);
        self.folded.notify_one();
        let result = wait();
        self.is_waiting.store(false, Ordering::Release);
        result
    }

    /// Returns the number of budgets by which the pass has to catch up.
    pub fn excess(&self) -> usize {
        self.lead.load(Ordering::Relaxed).saturating_sub(MAX_LEAD)
    }

    /// Ends all waiting for the pass.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.folded.notify_one();
    }

    /// A fold pass begins.
    pub fn begin(&self) {
        self.lead.store(0, Ordering::Relaxed);
        self.is_folding.store(true, Ordering::Release);
    }

    /// Counts budgets that the pass has folded.
    pub fn fold(&self, budgets: usize) {
        // This never fails, because the function always returns a number.
        let _ = self.lead.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |lead| Some(lead.saturating_sub(budgets)));
        self.folded.notify_one();
    }

    /// The pass has ended. `written` are the octets that it has written to the table; `None` if it has failed.
    pub fn end(&self, written: Option<usize>) {
        if let Some(written) = written {
            let octets = (FOLD_AT_RATIO * written).clamp(*FOLD_AT_OCTETS.start(), *FOLD_AT_OCTETS.end());
            self.fold_at_octets.store(octets, Ordering::Relaxed);
        }
        self.is_folding.store(false, Ordering::Release);
        self.folded.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// Commits as many records as may be committed in addition to those that are folded, and one more.
    async fn commit_too_many(pace: &Pace) {
        pace.count(MAX_LEAD);
        pace.wait().await;
        pace.count(1);
        pace.wait().await;
    }

    /// Returns a pace in whose fold pass a commit waits.
    async fn waiting() -> (Arc<Pace>, tokio::task::JoinHandle<()>) {
        let pace = Arc::new(Pace::default());
        commit_too_many(&pace).await;
        pace.begin();
        let commit = tokio::spawn({
            let pace = pace.clone();
            async move { commit_too_many(&pace).await }
        });
        tokio::task::yield_now().await;
        assert!(!commit.is_finished());
        (pace, commit)
    }

    #[tokio::test]
    async fn a_commit_that_is_too_far_ahead_waits_until_budgets_are_folded() {
        let (pace, commit) = waiting().await;
        assert_eq!(pace.excess(), 1);
        pace.fold(1);
        commit.await.unwrap();
    }

    #[tokio::test]
    async fn a_commit_does_not_wait_for_a_pass_that_has_ended() {
        let (pace, commit) = waiting().await;
        pace.end(None);
        commit.await.unwrap();
    }

    #[tokio::test]
    async fn a_commit_does_not_wait_while_the_writers_end() {
        let (pace, commit) = waiting().await;
        pace.stop();
        commit.await.unwrap();
    }

    #[tokio::test]
    async fn a_commit_does_not_wait_for_a_pass_that_waits_for_a_commit() {
        let (pace, commit) = waiting().await;
        let (committed, is_committed) = tokio::sync::oneshot::channel();
        let waiting = tokio::task::spawn_blocking(move || pace.let_wait(|| is_committed.blocking_recv()));
        commit.await.unwrap();
        committed.send(()).unwrap();
        waiting.await.unwrap().unwrap();
    }
}
