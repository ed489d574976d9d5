//! Commits: appending the changes of transactions to the journal.
//!
//! A session makes a short commit itself, because waking another task or thread costs more than the commit. The journal
//! writer, a task of the async runtime, makes the other commits: those of changes that were made while another commit
//! ran (unless a session with a thread of its own made that one, and makes this one next), long ones, those that have to
//! wait for a fold pass, those while the disk is slow or fails, those after changes were lost, the last ones at shutdown,
//! and those for which no session waits.

use super::{IDLE_AFTER, record_panic};
use crate::store::append_turn::AppendTurn;
use crate::store::commit_queue::{Commit, Work};
use crate::store::core::{COMMIT_TIMEOUT, Core};
use crate::store::file::{self, JournalAppender};
use crate::store::health::Attempt;
use crate::store::options::Durability;
use std::time::Instant;
use tokio::runtime::{Handle, RuntimeFlavor};

/// Maximum octets of the journal. A longer journal gets no more entries, because folding fails or is not fast enough.
const MAX_JOURNAL_OCTETS: usize = 256 << 20;

/// Degrades the health if a commit ends by a panic. It is dropped before the [`Work`] of the commit, because the
/// transactions that continue check the health.
struct PanicGuard<'a>(&'a Core);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        record_panic(self.0, Attempt::Append, "a commit");
    }
}

/// Makes this commit, if no other commit runs and if this takes only microseconds. Otherwise leaves it to the journal
/// writer. If `most` is above 1, then makes short commits that were left meanwhile, up to this number of commits in all. If
/// the disk hangs, the calling thread hangs, too. Returns whether commits take only microseconds at present.
pub fn commit_now(core: &Core, pending: &Commit, most: usize) -> bool {
    let is_fast = || are_commits_fast(core) && !core.pace.has_to_wait();
    let mut work = core.queue.take_now(pending, is_fast());
    for number in 1..=most {
        let Some(mut taken) = work else { break };
        let guard = PanicGuard(core);
        let is_durable = commit(core, &mut taken);
        drop(guard);
        if !is_durable || number == most || !is_fast() {
            taken.end(is_durable);
            break;
        }
        work = taken.end_and_take_left();
    }
    is_fast()
}

/// Runs the journal writer.
pub async fn run(core: &Core) {
    loop {
        let (is_idle, work) = core.queue.take(IDLE_AFTER).await;
        let Some(mut work) = work else { continue };
        let guard = PanicGuard(core);
        let (stop, is_durable) = (work.stop, write(core, &mut work, is_idle));
        drop(guard);
        work.end(is_durable);
        if stop {
            break;
        }
        if is_durable {
            core.pace.wait().await;
        }
    }
}

/// Does the work of the journal writer. Returns false if changes are not durable.
fn write(core: &Core, work: &mut Work, is_idle: bool) -> bool {
    if work.epoch != work.turn.epoch {
        work.turn.epoch = work.epoch;
        core.notice_epoch(work.epoch);
    }
    if work.stop {
        // At shutdown the last changes are committed without a pause after a failure.
        work.turn.failed_at = None;
    }
    let mut is_durable = true;
    if work.entry.records() > 0 || is_probe_due(&work.turn, is_idle) {
        is_durable = match are_commits_fast(core) && work.turn.is_fast() && work.is_short() {
            true => commit(core, work),
            false => blocking(|| commit(core, work)),
        };
    }
    let octets = work.turn.appender.as_ref().map(JournalAppender::octets);
    if is_durable
        && work.turn.failed_at.is_none()
        && !was_too_slow(&work.turn)
        && octets.is_some_and(|octets| octets <= MAX_JOURNAL_OCTETS)
    {
        // This also clears an error that a transaction recorded when its wait timed out.
        core.health.record(Attempt::Append, Ok(()));
    }
    if is_idle {
        work.turn.appender.iter_mut().for_each(JournalAppender::close_ended_part);
    }
    is_durable
}

/// Returns whether a short commit takes only microseconds.
fn are_commits_fast(core: &Core) -> bool {
    core.options.durability == Durability::Process && !core.health.is_write_failing()
}

/// Returns whether the last commit took longer than the time for which replies wait.
fn was_too_slow(turn: &AppendTurn) -> bool {
    turn.last_commit >= COMMIT_TIMEOUT
}

/// Returns whether a commit is needed even if there are no changes. Such a commit shows whether an attempt that failed
/// now succeeds, or whether commits are fast again.
fn is_probe_due(turn: &AppendTurn, is_idle: bool) -> bool {
    was_too_slow(turn) && is_idle || turn.failed_at.is_some() && turn.may_retry()
}

/// Appends the taken changes to the journal, as one entry. If this fails, the health is degraded. Returns whether the
/// changes are durable.
fn commit(core: &Core, work: &mut Work) -> bool {
    let turn = &mut work.turn;
    let may_retry = turn.may_retry();
    let Some(appender) = turn.appender.as_mut().filter(|_| may_retry) else { return false };
    if appender.octets() > MAX_JOURNAL_OCTETS {
        let reason = "the journal has grown too large, since it could not be folded".to_owned();
        core.health.record(Attempt::Append, Err(reason));
        return false;
    }
    let outcome = appender.append(work.entry.seal()).map_err(|error| file::describe_journal(&error));
    let time = work.began.elapsed();
    if core.pace.is_long(appender.octets()) && !core.pace.is_folding() {
        core.jobs.wake();
    }
    turn.last_commit = time;
    let is_durable = outcome.is_ok();
    if is_durable {
        core.pace.count(work.entry.records());
    }
    turn.failed_at = (!is_durable).then(Instant::now);
    let metrics = &core.metrics.state;
    metrics.commit_seconds.observe(time.as_secs_f64());
    if !is_durable {
        metrics.commit_failures.inc();
    }
    core.health.record(Attempt::Append, outcome);
    if was_too_slow(turn) {
        let reason = format!("the disk is slow: a commit took {:.1} s", time.as_secs_f64());
        core.health.record(Attempt::Append, Err(reason));
    }
    is_durable
}

/// Runs `work`, which takes long. Meanwhile another thread runs the other tasks of this one.
fn blocking<R>(work: impl FnOnce() -> R) -> R {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::MultiThread => tokio::task::block_in_place(work),
        // There is no other thread.
        _ => work(),
    }
}
