//! Changes of grants, suspensions and the register of direct ways, and audit records, that are not in the file yet. A
//! change takes effect in memory at once. It is written to the file before the administrator's command is answered. If
//! the file cannot be written then, the change is written as soon as possible.

use super::audit::{Act, AuditRecord};
use crate::policy::Policy;
use crate::policy::budgets::Owner;
use crate::policy::egress::{EgressEntry, EgressKey};
use crate::policy::exception::{Ended, Exceptions, Grant, Suspension};
use crate::time::Timestamp;
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot::Sender;

/// Changes of exceptions that are not in the file yet.
#[derive(Default)]
pub struct PendingExceptions {
    /// The lock is held only while the batch is changed or taken, never while a thread waits. A thread that replaces the
    /// policy is allowed to take this lock. A thread that holds this lock must not begin to replace the policy.
    ///
    /// The thread that adds changes puts the changed exceptions in force before it releases the lock. The reason: the
    /// database writer takes the batch, and then writes the exceptions that are in force.
    pub batch: Mutex<Batch>,
    /// True if the batch has changes; can be read without the lock.
    pub is_pending: AtomicBool,
    /// True when the exceptions of the file have been read. Before, those in memory are not all.
    pub is_read: AtomicBool,
    /// Time when old audit records were last deleted, in microseconds since 1970.
    pub pruned: AtomicI64,
}

/// Changed exceptions, and audit records, to be written to the file in one transaction.
#[derive(Default)]
pub struct Batch {
    /// Keys of the changed exceptions. Each exception is written in the state that it has when the batch is written.
    pub changed: HashSet<ExceptionKey>,
    /// Keys of the exceptions that this node has changed, for the other nodes.
    pub unshared: Vec<ExceptionKey>,
    pub records: VecDeque<AuditRecord>,
    /// Channels of the commands that wait until the batch is written.
    pub waiting: Vec<Sender<()>>,
}

/// Key of an exception.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ExceptionKey {
    /// Grant of this limit for this owner.
    Grant(Arc<str>, Owner),
    Suspension(Owner),
    /// Entry of the register of direct ways.
    Egress(EgressKey),
}

/// Exceptions that were read, from the state file or from Redis.
#[derive(Default)]
pub struct ReadExceptions {
    pub grants: Vec<Grant>,
    pub suspensions: Vec<Suspension>,
    /// Entries of the register of direct ways.
    pub entries: Vec<EgressEntry>,
}

/// Place where a change is kept: in the file, or only in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The change is in the file.
    InFile,
    /// The change is in force, but only in memory so far. The text is the reason.
    InMemory(String),
}

/// Maximum number of audit records in a batch. The maximum is needed while the file cannot be written.
const MAX_PENDING_RECORDS: usize = 20_000;
/// Maximum number of changed exceptions in a batch.
const MAX_PENDING_CHANGES: usize = 50_000;

impl PendingExceptions {
    /// Returns whether there are changes to be written.
    pub fn is_pending(&self) -> bool {
        self.is_pending.load(Ordering::Acquire)
    }

    /// Takes the batch out, so that it can be written. Later changes begin a new batch.
    pub fn take(&self) -> Batch {
        let mut batch = self.batch();
        self.is_pending.store(false, Ordering::Release);
        std::mem::take(&mut batch)
    }

    /// Puts back a batch that could not be written, so that it is tried again. The commands that wait for the batch
    /// stop waiting.
    pub fn put_back(&self, former: Batch) {
        let batch = &mut *self.batch();
        batch.changed.extend(former.changed);
        former.records.into_iter().rev().for_each(|record| batch.records.push_front(record));
        self.is_pending.store(true, Ordering::Release);
    }

    /// Ends the waiting of all commands, because the batch cannot be written at present.
    pub fn give_up(&self) {
        self.batch().waiting.clear();
    }

    pub fn batch(&self) -> MutexGuard<'_, Batch> {
        self.batch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ExceptionKey {
    pub fn of_grant(grant: &Grant) -> Self {
        Self::Grant(grant.limit.clone(), grant.owner.clone())
    }

    pub fn of_suspension(suspension: &Suspension) -> Self {
        Self::Suspension(suspension.owner.clone())
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

    /// Reduces the batch to its maximum size. If there are too many audit records, removes the oldest records. If there
    /// are too many changed exceptions, removes changes of exceptions that have ended.
    pub fn limit_size(&mut self, exceptions: &Exceptions) {
        self.records.drain(..self.records.len().saturating_sub(MAX_PENDING_RECORDS));
        if self.changed.len() > MAX_PENDING_CHANGES {
            // An exception that was ended early then stays in the file, and the next process loads it. It ends at its
            // original time, unless that time is already over.
            self.changed.retain(|key| match key {
                ExceptionKey::Grant(limit, owner) => exceptions.grant_of(limit, owner).is_some(),
                ExceptionKey::Suspension(owner) => exceptions.suspension_of(owner).is_some(),
                ExceptionKey::Egress(key) => exceptions.egress().get(*key).is_some(),
            });
        }
    }

    pub fn add_grant(&mut self, grant: &Grant) {
        self.add(ExceptionKey::of_grant(grant));
    }

    pub fn add_suspension(&mut self, suspension: &Suspension) {
        self.add(ExceptionKey::of_suspension(suspension));
    }

    pub fn add_entry(&mut self, entry: &EgressEntry) {
        self.add(ExceptionKey::Egress(entry.key()));
    }

    fn add(&mut self, key: ExceptionKey) {
        self.unshared.push(key.clone());
        self.changed.insert(key);
    }

    /// Ends the exceptions that have expired. If the clock may be wrong (`doubt`), exceptions whose end is uncertain
    /// are not ended.
    pub fn end_expired(&mut self, exceptions: &mut Exceptions, now: Timestamp, doubt: Option<Timestamp>) {
        let Ended { grants, suspensions, entries } = exceptions.forget(now, doubt);
        for grant in grants {
            self.add_grant(&grant);
            self.add_record(AuditRecord::of_grant(Act::Ended, &grant, now, None));
        }
        for suspension in suspensions {
            self.add_suspension(&suspension);
            self.add_record(AuditRecord::of_suspension(Act::Ended, &suspension, now, None));
        }
        for entry in entries {
            self.add_entry(&entry);
            self.add_record(AuditRecord::of_entry(Act::Ended, &entry, now, None));
        }
    }

    /// Begins a suspension that a limit demands. Does nothing if a suspension of the owner stays as it is (see
    /// [`Suspension::following`]), or if the number of suspensions has reached its maximum.
    pub fn suspend(
        &mut self,
        exceptions: &mut Exceptions,
        suspension: &Arc<Suspension>,
        (now, doubt): (Timestamp, Option<Timestamp>),
    ) {
        let former = exceptions.suspension_of(&suspension.owner).filter(|former| former.term.holds(now)).cloned();
        let next = match &former {
            None => suspension.clone(),
            Some(former) => match suspension.following(former) {
                Some(next) => Arc::new(next),
                None => return,
            },
        };
        // A client that is suspended and continues to try may extend its suspension each time. Only the first
        // suspension gets an audit record.
        let is_new = former.as_ref().is_none_or(|former| former.term.by != suspension.term.by);
        if former.is_none() && !exceptions.has_room() {
            self.end_expired(exceptions, now, doubt);
            if !exceptions.has_room() {
                return;
            }
        }
        exceptions.suspend(next);
        self.add_suspension(suspension);
        if is_new {
            self.add_record(AuditRecord::of_suspension(Act::Suspended, suspension, now, None));
        }
    }
}

/// Logs and returns the grants that have no effect under this policy.
pub fn warn_inert_grants(policy: &Policy) -> Vec<String> {
    let inert = policy.exceptions.grants().filter_map(|grant| Some((grant, policy.why_inert(grant)?)));
    let tell = |(grant, why): (&Arc<Grant>, &str)| {
        let (limit, owner) = (&grant.limit, &grant.owner);
        tracing::warn!(limit = &**limit, %owner, why, "a grant has no effect");
        format!("the grant of {limit} for {owner} has no effect: {why}")
    };
    inert.map(tell).collect()
}
