//! Grants, suspensions and audit records that have to be written to the file. Memory decides. The file follows before
//! the command that made the change is answered, or as soon as it can be written.

use super::audit::{Act, AuditRecord};
use crate::policy::Policy;
use crate::policy::budgets::Owner;
use crate::policy::exception::{Exceptions, Grant, Suspension};
use crate::time::Timestamp;
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot::Sender;

/// Changes of exceptions that are not in the file.
#[derive(Default)]
pub struct PendingExceptions {
    /// Held to add to the batch and to take it, never over anything that waits. The holder of the policy's lock may
    /// take this one, not the other way round.
    pub batch: Mutex<Batch>,
    /// The batch is not empty; readable without the lock.
    pub is_pending: AtomicBool,
    /// Time when old audit records were last deleted, in microseconds.
    pub pruned: AtomicI64,
}

/// Changes to be written together.
#[derive(Default)]
pub struct Batch {
    /// Keys of changed exceptions: limit and owner of a grant, owner of a suspension. The file gets their present
    /// state.
    pub changed: HashSet<(Option<Arc<str>>, Owner)>,
    pub records: VecDeque<AuditRecord>,
    /// Commands that wait until the batch is written.
    pub waiting: Vec<Sender<()>>,
}

/// Whether a change outlives the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The change is in the file.
    InFile,
    /// The change holds, but in memory alone as yet, for this reason.
    InMemory(String),
}

/// Bounds on a batch that cannot be written; beyond them the oldest is left out.
const MAX_PENDING_RECORDS: usize = 20_000;
const MAX_PENDING_CHANGES: usize = 50_000;

impl PendingExceptions {
    /// Returns whether there is a batch to be written.
    pub fn is_pending(&self) -> bool {
        self.is_pending.load(Ordering::Acquire)
    }

    /// Takes the batch.
    pub fn take(&self) -> Batch {
        let mut batch = self.batch();
        self.is_pending.store(false, Ordering::Release);
        std::mem::take(&mut batch)
    }

    /// Puts back a batch that could not be written, and frees the commands that wait for it. It is tried again.
    pub fn put_back(&self, former: Batch) {
        let batch = &mut *self.batch();
        batch.changed.extend(former.changed);
        former.records.into_iter().rev().for_each(|record| batch.records.push_front(record));
        self.is_pending.store(true, Ordering::Release);
    }

    /// Frees all commands that wait, because the batch cannot be written at present.
    pub fn give_up(&self) {
        self.batch().waiting.clear();
    }

    pub fn batch(&self) -> MutexGuard<'_, Batch> {
        self.batch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Batch {
    /// Tells the waiting commands that the batch is in the file.
    pub fn written(self) {
        self.waiting.into_iter().for_each(|waiting| _ = waiting.send(()));
    }

    pub fn add_record(&mut self, record: AuditRecord) {
        self.records.push_back(record);
    }

    /// Leaves out the oldest beyond the bounds.
    pub fn limit_size(&mut self, exceptions: &Exceptions) {
        self.records.drain(..self.records.len().saturating_sub(MAX_PENDING_RECORDS));
        if self.changed.len() > MAX_PENDING_CHANGES {
            // An exception that has ended then stays in the file: it is loaded with its end, and ends once more.
            self.changed.retain(|(limit, owner)| match limit {
                Some(limit) => exceptions.grant_of(limit, owner).is_some(),
                None => exceptions.suspension_of(owner).is_some(),
            });
        }
    }

    pub fn add_grant(&mut self, grant: &Grant) {
        self.changed.insert((Some(grant.limit.clone()), grant.owner.clone()));
    }

    pub fn add_suspension(&mut self, suspension: &Suspension) {
        self.changed.insert((None, suspension.owner.clone()));
    }

    /// Ends the exceptions that have certainly expired.
    pub fn end_expired(&mut self, exceptions: &mut Exceptions, now: Timestamp, doubt: Option<Timestamp>) {
        let (grants, suspensions) = exceptions.forget(now, doubt);
        for grant in grants {
            self.add_grant(&grant);
            self.add_record(AuditRecord::of_grant(Act::Ended, &grant, now, None));
        }
        for suspension in suspensions {
            self.add_suspension(&suspension);
            self.add_record(AuditRecord::of_suspension(Act::Ended, &suspension, now, None));
        }
    }

    /// Suspends an owner as a limit orders, if there is room and no present suspension ends later.
    pub fn suspend(
        &mut self,
        exceptions: &mut Exceptions,
        suspension: &Arc<Suspension>,
        (now, doubt): (Timestamp, Option<Timestamp>),
    ) {
        let former = exceptions.suspension_of(&suspension.owner).filter(|former| former.term.holds(now));
        if former.is_some_and(|former| former.term.until >= suspension.term.until) {
            return;
        }
        // A client that goes on trying extends its suspension each time: only the first gets a record.
        let is_new = former.is_none_or(|former| former.term.by != suspension.term.by);
        if former.is_none() && !exceptions.has_room() {
            self.end_expired(exceptions, now, doubt);
            if !exceptions.has_room() {
                return;
            }
        }
        exceptions.suspend(suspension.clone());
        self.add_suspension(suspension);
        if is_new {
            self.add_record(AuditRecord::of_suspension(Act::Suspended, suspension, now, None));
        }
    }
}

/// Logs and returns the grants that have no effect under these limits.
pub fn warn_inert_grants(policy: &Policy) -> Vec<String> {
    let inert = policy.exceptions.grants().filter_map(|grant| Some((grant, policy.why_inert(grant)?)));
    let tell = |(grant, why): (&Arc<Grant>, &str)| {
        let (limit, owner) = (&grant.limit, &grant.owner);
        tracing::warn!(limit = &**limit, %owner, why, "a grant has no effect");
        format!("the grant of {limit} for {owner} has no effect: {why}")
    };
    inert.map(tell).collect()
}
