//! Pace of the two writers: when a fold pass begins, and how far commits may get ahead of it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::Notify;

/// Bounds for the length of the journal at which a fold pass begins. Within these bounds, a pass begins when the
/// journal has twice as many octets as the last pass wrote. In this way, many changes of a budget need only one write to
/// the table, and the journal is not much longer than the table.
const FOLD_AT_OCTETS: std::ops::RangeInclusive<usize> = 4 << 20..=128 << 20;

/// Maximum number of records of a commit that count. The next commits would wait too long for the pass.
const MAX_COUNTED: usize = 2_000;

/// Maximum number of records that are committed during a fold pass in addition to as many as the pass has folded. The
/// next commit waits for the pass: otherwise the journal, and the changed budgets in memory, would grow without a bound
/// while charges are faster than folding.
const MAX_LEAD: usize = 10_000;

pub struct Pace {
    /// Octets of the journal at which the next fold pass begins.
    fold_at_octets: AtomicUsize,
    is_folding: AtomicBool,
    /// Records that were committed during the pass, less those that it has folded.
    lead: AtomicUsize,
    /// True if the pass waits for a commit.
    is_waiting: AtomicBool,
    /// Wakes the commit that waits for the pass.
    folded: Notify,
}

impl Pace {
    pub fn new() -> Self {
        Self {
            fold_at_octets: AtomicUsize::new(*FOLD_AT_OCTETS.start()),
            is_folding: AtomicBool::new(false),
            lead: AtomicUsize::new(0),
            is_waiting: AtomicBool::new(false),
            folded: Notify::new(),
        }
    }

    /// Returns whether a journal of this length has to be folded.
    pub fn is_long(&self, octets: usize) -> bool {
        octets > self.fold_at_octets.load(Ordering::Relaxed)
    }

    pub fn is_folding(&self) -> bool {
        self.is_folding.load(Ordering::Acquire)
    }

    /// Counts committed records. Waits while they are too far ahead of a fold pass.
    pub async fn committed(&self, records: usize) {
        if !self.is_folding() {
            return;
        }
        self.lead.fetch_add(records.min(MAX_COUNTED), Ordering::Relaxed);
        while self.is_folding()
            && self.lead.load(Ordering::Relaxed) > MAX_LEAD
            && !self.is_waiting.load(Ordering::Acquire)
        {
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
            let octets = (2 * written).clamp(*FOLD_AT_OCTETS.start(), *FOLD_AT_OCTETS.end());
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
        for _ in 0..MAX_LEAD / MAX_COUNTED {
            pace.committed(MAX_COUNTED).await;
        }
        pace.committed(1).await;
    }

    /// Returns a pace in whose fold pass a commit waits.
    async fn waiting() -> (Arc<Pace>, tokio::task::JoinHandle<()>) {
        let pace = Arc::new(Pace::new());
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
    async fn a_commit_does_not_wait_for_a_pass_that_waits_for_a_commit() {
        let (pace, commit) = waiting().await;
        let (committed, is_committed) = tokio::sync::oneshot::channel();
        let waiting = tokio::task::spawn_blocking(move || pace.let_wait(|| is_committed.blocking_recv()));
        commit.await.unwrap();
        committed.send(()).unwrap();
        waiting.await.unwrap().unwrap();
    }
}
