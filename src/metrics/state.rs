//! Metrics of the state file.

use super::builder::Builder;
use prometheus::{Error, Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

/// Metrics of the state file.
pub struct StateMetrics {
    /// 1 while the state file or Redis has a problem, otherwise 0.
    pub degraded: IntGauge,
    /// Seconds of a transaction (a decision with charges, or a refund), and of the wait until its changes were durable,
    /// or until the session stopped waiting. Includes the time to load budgets from the file, but not the time in which
    /// the session did something else. A session waits once for several transactions.
    pub transaction_seconds: Histogram,
    /// Sessions that wait until their changes are durable.
    pub transactions_waiting: IntGauge,
    /// Seconds of a commit to the state file. One commit writes the changes of many transactions.
    pub commit_seconds: Histogram,
    /// Commits that failed. Their changes are in memory only.
    pub commit_failures: IntCounter,
    /// Tasks of the writer other than commits that failed, by the task.
    pub task_failures: IntCounterVec,
    /// Records of refusals that were dropped, because too many waited to be written.
    pub refusals_dropped: IntCounter,
    /// Decisions that ran again, because another node had changed their budgets in Redis.
    pub conflicts: IntCounter,
    /// Decisions that were given up with a temporary error, because other nodes changed their budgets all the time.
    pub conflicts_given_up: IntCounter,
    /// For each limit: amount of this node's lease that it has not spent.
    pub lease_rest: IntGaugeVec,
    /// Octets of changes in the state file's journal that are not yet in its table of budgets.
    pub journal_octets: IntGauge,
    /// Octets of the state file's write-ahead log.
    pub wal_octets: IntGauge,
    /// 1 while a reader of the state file prevents the reset of its write-ahead log.
    pub wal_held: IntGauge,
}

/// Upper bounds of the histograms' buckets, in seconds. A session waits for at most a second.
const SECONDS: [f64; 10] = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0];

impl StateMetrics {
    pub(super) fn new(build: &Builder<'_>) -> Result<Self, Error> {
        Ok(Self {
            degraded: build.gauge("weir_state_degraded", "1 while the state file or Redis has a problem")?,
            transaction_seconds: build.histogram(
                "weir_state_transaction_seconds",
                "Time of a decision with charges or refunds, and of the wait until they were durable or given up",
                &SECONDS,
            )?,
            transactions_waiting: build.gauge(
                "weir_state_transactions_waiting",
                "Sessions that wait until their charges and refunds are durable",
            )?,
            commit_seconds: build.histogram(
                "weir_state_commit_seconds",
                "Time of a commit to the state file; one commit writes many charges and refunds",
                &SECONDS,
            )?,
            commit_failures: build
                .counter("weir_state_commit_failures_total", "Commits to the state file that failed")?,
            task_failures: build.counters(
                "weir_state_task_failures_total",
                "Tasks of the state file other than commits that failed",
                &["task"],
            )?,
            refusals_dropped: build.counter(
                "weir_state_refusals_dropped_total",
                "Records of refusals that were dropped, because too many waited to be written",
            )?,
            conflicts: build.counter(
                "weir_state_conflicts_total",
                "Groups of decisions that ran again, because another node had changed their budgets in Redis",
            )?,
            conflicts_given_up: build.counter(
                "weir_state_conflicts_given_up_total",
                "Decisions given up with a temporary error, because other nodes changed their budgets all the time",
            )?,
            lease_rest: build.gauges(
                "weir_state_lease_rest",
                "Amount that this node has charged ahead to a shared budget, and not spent",
                &["limit"],
            )?,
            journal_octets: build.gauge(
                "weir_state_journal_bytes",
                "Changes in the state file's journal that are not in its table of budgets yet",
            )?,
            wal_octets: build.gauge("weir_state_wal_bytes", "Length of the state file's write-ahead log")?,
            wal_held: build.gauge(
                "weir_state_wal_held",
                "1 while a reader of the state file prevents the reset of its write-ahead log",
            )?,
        })
    }
}
