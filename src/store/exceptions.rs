//! Grants, suspensions, the register of direct ways, and resets. They take effect in memory at once, and the writer
//! then writes them to the file.

use super::audit::{Act, AuditRecord};
use super::core::{COMMIT_TIMEOUT, Core, slow_disk};
use super::database_job::DatabaseJob;
use super::file::{self, File};
use super::hashed_key::HashedKey;
use super::health::{Attempt, Health};
use super::pending_exceptions::{Batch, ExceptionKey, Kept, ReadExceptions, warn_inert_grants};
use super::{Store, Unavailable};
use crate::engine::State;
use crate::policy::budgets::{Key, Loaded, Owner};
use crate::policy::egress::{EgressEntry, EgressKey};
use crate::policy::exception::{By, Exceptions, Grant, NewPassword, PasswordFingerprint, Suspension, Term};
use crate::policy::{NameSearch, Policy};
use crate::time::Timestamp;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::broadcast;
use tokio::sync::oneshot::{Receiver, channel};
use tokio::time::timeout;

/// Age at which audit records are deleted from the file.
const AUDIT_KEPT_FOR: Duration = Duration::from_secs(366 * 86_400);

/// Time between two deletions of old audit records.
const PRUNE_EVERY: Duration = Duration::from_secs(3_600);

/// Maximum time for a search of the state file. The time is enough for about ten million budgets.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(10);

impl Core {
    /// Changes the exceptions in memory and asks the writer to write the change. The receiver gets a message when the
    /// change is in the file, or is closed if the change could not be written.
    fn change_exceptions<R>(&self, change: impl FnOnce(&mut Exceptions, &mut Batch) -> R) -> (R, Receiver<()>) {
        let replacement = self.policy.begin_replacement();
        let mut policy = Policy::clone(&replacement);
        let exceptions = Arc::make_mut(&mut policy.exceptions);
        let mut batch = self.pending_exceptions.batch();
        let before = batch.records.len();
        let changed = change(exceptions, &mut batch);
        let done: Vec<AuditRecord> = batch.records.iter().skip(before).cloned().collect();
        batch.limit_size(exceptions);
        // Remove the channels of commands that no longer wait, because the writer does not remove them while the disk
        // hangs.
        batch.waiting.retain(|waiting| !waiting.is_closed());
        let (sender, written) = channel();
        batch.waiting.push(sender);
        self.pending_exceptions.is_pending.store(true, Ordering::Release);
        let unshared = std::mem::take(&mut batch.unshared);
        self.count_in_force(exceptions, |_| true);
        replacement.put_in_force(Arc::new(policy));
        drop(batch);
        self.shared.iter().for_each(|shared| shared.exceptions.send(unshared.clone()));
        self.jobs.send(DatabaseJob::WriteExceptions);
        done.iter().for_each(AuditRecord::log);
        // If sending fails, there is no reader.
        done.into_iter().for_each(|record| drop(self.acts.send(record)));
        (changed, written)
    }

    fn count_in_force(&self, exceptions: &Exceptions, holds: impl Fn(&Term) -> bool) {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let (grants, suspensions) = (exceptions.grants(), exceptions.suspensions());
        self.metrics.limits.grants_in_force.set(number(grants.filter(|one| holds(&one.term)).count()));
        self.metrics.limits.suspensions_in_force.set(number(suspensions.filter(|one| holds(&one.term)).count()));
    }

    /// Loads the exceptions of the file. An exception that was changed in memory before the file could be opened is not
    /// replaced.
    pub fn load_exceptions(&self, file: &File) {
        let ReadExceptions { grants, suspensions, entries } = match file.exceptions() {
            Ok(read) => read,
            Err(error) => {
                return tracing::error!(
                    error = file::describe(&error),
                    "grants, suspensions and direct ways cannot be read: none holds"
                );
            }
        };
        let replacement = self.policy.begin_replacement();
        let mut policy = Policy::clone(&replacement);
        let exceptions = Arc::make_mut(&mut policy.exceptions);
        let mut batch = self.pending_exceptions.batch();
        let mut rewritten = Vec::new();
        let mut normalize = |owner: &mut Owner, key: &dyn Fn(Owner) -> ExceptionKey| {
            let normal = owner.normalized(&policy.normalizer);
            if normal != *owner {
                let former = std::mem::replace(owner, normal);
                rewritten.extend([key(former), key(owner.clone())]);
            }
            key(owner.clone())
        };
        for mut grant in grants {
            let limit = grant.limit.clone();
            let key = normalize(&mut grant.owner, &|owner| ExceptionKey::Grant(limit.clone(), owner));
            if !batch.changed.contains(&key) {
                exceptions.grant(grant);
            }
        }
        for mut suspension in suspensions {
            let key = normalize(&mut suspension.owner, &ExceptionKey::Suspension);
            if !batch.changed.contains(&key) {
                exceptions.suspend(Arc::new(suspension));
            }
        }
        for entry in entries {
            if !batch.changed.contains(&ExceptionKey::Egress(entry.key())) {
                exceptions.register(Arc::new(entry));
            }
        }
        if !rewritten.is_empty() {
            batch.changed.extend(rewritten);
            self.pending_exceptions.is_pending.store(true, Ordering::Release);
            self.jobs.send(DatabaseJob::WriteExceptions);
        }
        self.count_in_force(exceptions, |_| true);
        let policy = Arc::new(policy);
        replacement.put_in_force(policy.clone());
        drop(batch);
        self.pending_exceptions.is_read.store(true, Ordering::Release);
        warn_inert_grants(&policy);
    }

    /// Takes exceptions that other nodes have changed, and removes those that other nodes have ended. The other nodes have
    /// the audit records.
    pub fn adopt_exceptions(&self, found: ReadExceptions, gone: Vec<ExceptionKey>) {
        let replacement = self.policy.begin_replacement();
        let mut policy = Policy::clone(&replacement);
        let exceptions = Arc::make_mut(&mut policy.exceptions);
        let mut batch = self.pending_exceptions.batch();
        let mut adopted = 0;
        for grant in found.grants {
            if exceptions.grant_of(&grant.limit, &grant.owner).is_none_or(|former| **former != grant) {
                batch.changed.insert(ExceptionKey::of_grant(&grant));
                exceptions.grant(grant);
                adopted += 1;
            }
        }
        for suspension in found.suspensions {
            if exceptions.suspension_of(&suspension.owner).is_none_or(|former| **former != suspension) {
                batch.changed.insert(ExceptionKey::of_suspension(&suspension));
                exceptions.suspend(Arc::new(suspension));
                adopted += 1;
            }
        }
        for entry in found.entries {
            if exceptions.egress().get(entry.key()).is_none_or(|former| **former != entry) {
                batch.changed.insert(ExceptionKey::Egress(entry.key()));
                exceptions.register(Arc::new(entry));
                adopted += 1;
            }
        }
        for key in gone {
            let is_removed = match &key {
                ExceptionKey::Grant(limit, owner) => exceptions.revoke(limit, owner).is_some(),
                ExceptionKey::Suspension(owner) => exceptions.release(owner).is_some(),
                ExceptionKey::Egress(key) => exceptions.unregister(*key).is_some(),
            };
            if is_removed {
                batch.changed.insert(key);
                adopted += 1;
            }
        }
        if adopted == 0 {
            return;
        }
        batch.limit_size(exceptions);
        self.pending_exceptions.is_pending.store(true, Ordering::Release);
        self.count_in_force(exceptions, |_| true);
        let policy = Arc::new(policy);
        replacement.put_in_force(policy.clone());
        drop(batch);
        self.jobs.send(DatabaseJob::WriteExceptions);
        tracing::info!(adopted, "grants, suspensions and direct ways taken over from other nodes");
        warn_inert_grants(&policy);
    }

    /// Waits until a change is in the file, for at most [`COMMIT_TIMEOUT`].
    async fn wait_until_written(&self, written: Receiver<()>) -> Kept {
        match timeout(COMMIT_TIMEOUT, written).await {
            // If the file has been removed from its path, the change is lost when the process ends.
            Ok(Ok(())) => self.health.reason(Attempt::FindFile).map_or(Kept::InFile, Kept::InMemory),
            Ok(Err(_)) => {
                let reason =
                    [Attempt::WriteExceptions, Attempt::Open].into_iter().find_map(|one| self.health.reason(one));
                Kept::InMemory(reason.unwrap_or_else(|| "the state file cannot be written".to_owned()))
            }
            Err(_) => {
                let reason = slow_disk("exceptions could not be written");
                self.health.record(Attempt::WriteExceptions, Err(reason.clone()));
                Kept::InMemory(reason)
            }
        }
    }

    /// Begins suspensions that limits demand. Returns whether the suspensions are in the file.
    pub async fn suspend(&self, suspensions: &[Arc<Suspension>], now: Timestamp) -> bool {
        let time = (now, self.clock_doubt());
        let (_, written) = self.change_exceptions(|exceptions, batch| {
            suspensions.iter().for_each(|one| batch.suspend(exceptions, one, time))
        });
        // While the file cannot be written, do not wait for it.
        !self.health.is_write_failing() && self.wait_until_written(written).await == Kept::InFile
    }
}

/// Actions that administrators command.
impl Store {
    /// Begins a grant. If the new grant replaces a grant of the same limit and owner, returns the replaced grant.
    pub async fn grant(&self, grant: Grant) -> (Option<Arc<Grant>>, Kept) {
        let now = grant.term.since;
        let (former, written) = self.core.change_exceptions(|exceptions, batch| {
            let former =
                exceptions.grant_of(&grant.limit, &grant.owner).filter(|former| former.term.holds(now)).cloned();
            batch.add_grant(&grant);
            batch.add_record(AuditRecord::of_grant(Act::Granted, &grant, now, None));
            exceptions.grant(grant);
            former
        });
        (former, self.core.wait_until_written(written).await)
    }

    /// Ends a grant early and returns it. `None` if there is no such grant.
    pub async fn revoke(
        &self,
        limit: &str,
        owner: &Owner,
        (by, reason): (By, Arc<str>),
        now: Timestamp,
    ) -> Option<(Arc<Grant>, Kept)> {
        let doubt = self.core.clock_doubt();
        let (revoked, written) = self.core.change_exceptions(|exceptions, batch| {
            batch.end_expired(exceptions, now, doubt);
            let grant = exceptions.revoke(limit, owner)?;
            batch.add_grant(&grant);
            batch.add_record(AuditRecord::of_grant(Act::Revoked, &grant, now, Some((by, reason))));
            Some(grant)
        });
        Some((revoked?, self.core.wait_until_written(written).await))
    }

    /// Begins a suspension. If the new suspension replaces a suspension of the same owner, returns the replaced
    /// suspension.
    pub async fn suspend(&self, suspension: Suspension) -> (Option<Arc<Suspension>>, Kept) {
        let now = suspension.term.since;
        let (former, written) = self.core.change_exceptions(|exceptions, batch| {
            let former = exceptions.suspension_of(&suspension.owner).filter(|former| former.term.holds(now)).cloned();
            batch.add_suspension(&suspension);
            batch.add_record(AuditRecord::of_suspension(Act::Suspended, &suspension, now, None));
            exceptions.suspend(Arc::new(suspension));
            former
        });
        (former, self.core.wait_until_written(written).await)
    }

    /// Ends an owner's suspension early and returns it, whether an administrator or a limit began it. `None` if the
    /// owner is not suspended.
    pub async fn end_suspension(
        &self,
        owner: &Owner,
        (by, reason): (By, Arc<str>),
        now: Timestamp,
    ) -> Option<(Arc<Suspension>, Kept)> {
        self.end_suspension_if(owner, |_| true, (Act::Released, by, reason), now).await
    }

    /// Ends an owner's suspension early and returns it, if `is_meant` returns true for it. `act` is the act in the audit
    /// trail.
    pub async fn end_suspension_if(
        &self,
        owner: &Owner,
        is_meant: impl FnOnce(&Suspension) -> bool,
        (act, by, reason): (Act, By, Arc<str>),
        now: Timestamp,
    ) -> Option<(Arc<Suspension>, Kept)> {
        let doubt = self.core.clock_doubt();
        let (ended, written) = self.core.change_exceptions(|exceptions, batch| {
            batch.end_expired(exceptions, now, doubt);
            exceptions.suspension_of(owner).filter(|one| is_meant(one))?;
            let suspension = exceptions.release(owner)?;
            batch.add_suspension(&suspension);
            batch.add_record(AuditRecord::of_suspension(act, &suspension, now, Some((by, reason))));
            Some(suspension)
        });
        Some((ended?, self.core.wait_until_written(written).await))
    }

    /// Returns an error with the reason if the exceptions of the state file are not known, because it could not be read
    /// since the start.
    pub fn check_exceptions_are_read(&self) -> Result<(), String> {
        if self.core.pending_exceptions.is_read.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.health() {
            Health::Degraded(why) => Err(format!("the register in the state file is not known: {why}")),
            _ => Err("the register in the state file is not known yet".to_owned()),
        }
    }

    /// Adds an entry to the register of direct ways. If the new entry replaces one of the same key, returns the
    /// replaced entry.
    pub async fn register(&self, entry: EgressEntry) -> (Option<Arc<EgressEntry>>, Kept) {
        let (now, key) = (entry.term.since, entry.key());
        let act = if key.is_quarantine { Act::Quarantined } else { Act::Registered };
        let (former, written) = self.core.change_exceptions(|exceptions, batch| {
            let former = exceptions.egress().get(key).filter(|former| former.term.holds(now)).cloned();
            batch.add_entry(&entry);
            batch.add_record(AuditRecord::of_entry(act, &entry, now, None));
            exceptions.register(Arc::new(entry));
            former
        });
        (former, self.core.wait_until_written(written).await)
    }

    /// Removes an entry of the register of direct ways early, and returns it. `None` if there is no such entry.
    pub async fn unregister(
        &self,
        key: EgressKey,
        (by, reason): (By, Arc<str>),
        now: Timestamp,
    ) -> Option<(Arc<EgressEntry>, Kept)> {
        let doubt = self.core.clock_doubt();
        let act = if key.is_quarantine { Act::Unquarantined } else { Act::Unregistered };
        let (removed, written) = self.core.change_exceptions(|exceptions, batch| {
            batch.end_expired(exceptions, now, doubt);
            let entry = exceptions.unregister(key)?;
            batch.add_entry(&entry);
            batch.add_record(AuditRecord::of_entry(act, &entry, now, Some((by, reason))));
            Some(entry)
        });
        Some((removed?, self.core.wait_until_written(written).await))
    }

    /// Sets the password fingerprints of suspensions that lack one. Does not wait until they are in the file. Does
    /// nothing to a suspension that has been replaced.
    pub fn set_fingerprints(&self, fingerprints: &[(Arc<Suspension>, PasswordFingerprint)]) {
        let change = |exceptions: &mut Exceptions, batch: &mut Batch| {
            for (suspension, fingerprint) in fingerprints {
                if exceptions.suspension_of(&suspension.owner).is_some_and(|one| one == suspension) {
                    let new_password = NewPassword::Ends(Some(*fingerprint));
                    let marked = Arc::new(Suspension { new_password, ..Suspension::clone(suspension) });
                    batch.add_suspension(&marked);
                    exceptions.suspend(marked);
                }
            }
        };
        drop(self.core.change_exceptions(change));
    }

    /// Resets the budgets that a limit has for an owner. Returns the levels before the reset, as text. `reset` is
    /// [`Loaded::reset`], which empties the budgets wholly, or [`Loaded::reset_levels`], which keeps the values seen.
    /// Returns an error with the reason if the budgets cannot be reset.
    pub async fn reset(
        &self,
        (limit, owner): (&str, &Owner),
        reset: fn(&mut Loaded, Timestamp) -> Vec<Option<State>>,
        (by, reason): (By, Arc<str>),
        now: Timestamp,
    ) -> Result<(Vec<String>, Kept), String> {
        let mut budgets = self.core.policy().budgets_of(limit, owner, now)?;
        budgets.sort_by(|one, other| one.key.cmp(&other.key));
        let keys: Vec<Key> = budgets.iter().map(|budget| budget.key.clone()).collect();
        let done = self
            .transact(now, keys.iter().map(Key::borrowed), |now, loaded: &mut Loaded| (now, reset(loaded, now)))
            .await;
        let (now, before) = done.map_err(|Unavailable| "the state cannot be written at the moment".to_owned())?;
        if keys.iter().any(|key| self.core.cache.is_unread(&HashedKey::of(key.clone()))) {
            return Err("the budget cannot be read at the moment: try again when the state file can be".to_owned());
        }
        let was = budgets.iter().zip(before).filter_map(|(budget, before)| budget.was(before?, now));
        let was: Vec<String> = was.collect();
        let record = AuditRecord {
            at: now,
            act: Act::Reset,
            limit: Some(limit.into()),
            owner: owner.clone(),
            rate: None,
            until: None,
            was: Some(if was.is_empty() { "empty".into() } else { was.join(", ").into() }),
            by,
            reason,
        };
        let kept = self.record(record).await;
        let lag = self.core.health.reason(Attempt::Append).filter(|_| kept == Kept::InFile);
        Ok((was, lag.map_or(kept, Kept::InMemory)))
    }

    /// Begins to read the audit records, from now on.
    pub fn acts(&self) -> broadcast::Receiver<AuditRecord> {
        self.core.acts.subscribe()
    }

    /// Adds a record of an act that changes no exception to the audit trail.
    pub async fn record(&self, record: AuditRecord) -> Kept {
        let (_, written) = self.core.change_exceptions(|_, batch| batch.add_record(record));
        self.core.wait_until_written(written).await
    }

    /// Returns the newest `last` audit records, the newest at the end, each with its ID. A record that is not in the state
    /// file yet has no ID. With `before`, returns only records in the file whose ID is lower. Returns an error with the
    /// reason if the records cannot be read.
    pub async fn trail(&self, before: Option<i64>, last: usize) -> Result<Vec<(Option<i64>, AuditRecord)>, String> {
        // First read the records in memory, which are not in the file yet, and then read the file. A record that is
        // written to the file in between is found twice, and not missed.
        let mut unwritten = self.core.pending_exceptions.batch().records.clone();
        if before.is_some() {
            unwritten.clear();
        }
        let path = self.core.options.path.clone();
        let read = move || match File::open_to_read(&path) {
            Ok(file) => file.audit_trail(before, last).map_err(|error| file::describe(&error)),
            Err(error) => Err(error.to_string()),
        };
        let trail = match self.core.is_open() {
            true => tokio::task::spawn_blocking(read).await.map_err(|error| error.to_string())??,
            false => Vec::new(),
        };
        let newest = &trail[trail.len().saturating_sub(unwritten.len())..];
        unwritten.retain(|record| !newest.iter().any(|(_, written)| written == record));
        let mut trail: Vec<_> = trail.into_iter().map(|(id, record)| (Some(id), record)).collect();
        trail.extend(unwritten.into_iter().map(|record| (None, record)));
        Ok(trail.split_off(trail.len().saturating_sub(last)))
    }

    /// Searches for names among all budgets. If the state file cannot be read, returns an error with the reason. In this
    /// case, the budgets in memory have been searched. The audit trail is not searched, because it also has the names
    /// that an administrator mistyped.
    pub async fn search_names(&self, search: &mut NameSearch) -> Result<(), String> {
        self.core.cache.for_each_key(|key| search.see_key(key));
        if search.is_done() {
            return Ok(());
        }
        // A command must not wait for a disk that hangs.
        if let Health::Degraded(why) = self.health() {
            return Err(why);
        }
        let (path, mut in_file) = (self.core.options.path.clone(), search.clone());
        let read = move || {
            let file = File::open_to_read(&path).map_err(|error| error.to_string())?;
            file.search_names(&mut in_file).map_err(|error| file::describe(&error))?;
            Ok::<_, String>(in_file)
        };
        let read = timeout(SEARCH_TIMEOUT, tokio::task::spawn_blocking(read)).await;
        *search = read
            .map_err(|_| "the disk is slow".to_owned())?
            .map_err(|error: tokio::task::JoinError| error.to_string())??;
        Ok(())
    }

    /// Removes expired exceptions, and deletes old audit records. The server calls this function regularly. An expired
    /// exception has no effect even before it is removed.
    ///
    /// While the clock may be wrong ([`Store::set_clock_doubt`]), the only exceptions that are removed are those that
    /// began after Weir's steady clock started or last followed a jump. No records are deleted during this time.
    pub fn end_exceptions(&self, now: Timestamp) {
        let Core { pending_exceptions, jobs, .. } = &*self.core;
        let doubt = self.core.clock_doubt();
        if self.core.policy().exceptions.any_ended(now, doubt) {
            // Drop the receiver: no command waits for this change.
            drop(self.core.change_exceptions(|exceptions, batch| batch.end_expired(exceptions, now, doubt)));
        }
        if doubt.is_some() {
            // Expired exceptions may still be in memory; the metrics must not count them.
            return self.core.count_in_force(&self.core.policy().exceptions, |term| term.holds(now));
        }
        let pruned = Timestamp::from_micros(pending_exceptions.pruned.load(Ordering::Relaxed));
        if now.since(pruned) >= PRUNE_EVERY || pruned.since(now) >= PRUNE_EVERY {
            pending_exceptions.pruned.store(now.micros(), Ordering::Relaxed);
            let remembered = i64::try_from(AUDIT_KEPT_FOR.as_micros()).unwrap_or(i64::MAX);
            jobs.send(DatabaseJob::PruneAudit(Timestamp::from_micros(now.micros().saturating_sub(remembered))));
        }
    }
}
