//! The book of exceptions: who is granted more, who is suspended, and what was done about that. Memory decides; the file follows,
//! before whoever did it is answered, or as soon as it can be written.

use super::audit::{Act, AuditRecord};
use super::file::{self, File};
use super::hashed_key::HashedKey;
use super::health::Attempt;
use super::queue::Errand;
use super::writer::PATIENCE;
use super::{Core, Store, Unavailable, slow};
use crate::policy::exception::{By, Exceptions, Grant, Suspension, Term};
use crate::policy::key::{Key, Owner};
use crate::policy::{self, Loaded, Policy};
use crate::time::Timestamp;
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot::{Receiver, Sender, channel};
use tokio::time::timeout;

/// What the file does not know yet.
#[derive(Default)]
pub struct PendingExceptions {
    /// The lock is held to add to the page and to take it, never over anything that waits. Whoever changes the policy's exceptions
    /// may take it, not the other way round.
    page: Mutex<Page>,
    /// Whether there is anything on it: to look at without the lock.
    any: AtomicBool,
    /// When what is old was last forgotten: microseconds.
    pruned: AtomicI64,
}

/// What is to be written together.
#[derive(Default)]
pub struct Page {
    /// Whose exceptions have changed: of this limit, or suspensions. The file is to have them as the memory does.
    pub touched: HashSet<(Option<Arc<str>>, Owner)>,
    pub records: VecDeque<AuditRecord>,
    /// Who waits until it is written.
    waiting: Vec<Sender<()>>,
}

/// Whether something that was done outlives the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It is in the file.
    InFile,
    /// It holds, in memory alone as yet, for this reason.
    InMemory(String),
}

/// So much waits at most for a file that cannot be written; beyond that the oldest is left out.
const MOST_RECORDS: usize = 20_000;
const MOST_TOUCHED: usize = 50_000;

/// How long it is remembered what was done.
const REMEMBERED: Duration = Duration::from_secs(366 * 86_400);

/// How often what is older is forgotten.
const PRUNED_EVERY: Duration = Duration::from_secs(3_600);

impl PendingExceptions {
    /// Whether there is anything to be written.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Takes what is to be written.
    pub fn take(&self) -> Page {
        let mut page = self.page();
        self.any.store(false, Ordering::Release);
        std::mem::take(&mut page)
    }

    /// It could not be written, and is to be tried again. Nobody waits for that.
    pub fn put_back(&self, former: Page) {
        let page = &mut *self.page();
        page.touched.extend(former.touched);
        former.records.into_iter().rev().for_each(|record| page.records.push_front(record));
        self.any.store(true, Ordering::Release);
    }

    /// Whoever waits goes on: it cannot be written at the moment.
    pub fn give_up(&self) {
        self.page().waiting.clear();
    }

    fn page(&self) -> MutexGuard<'_, Page> {
        self.page.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Page {
    /// It is in the file.
    pub fn written(self) {
        self.waiting.into_iter().for_each(|waiting| _ = waiting.send(()));
    }

    fn add(&mut self, record: AuditRecord) {
        self.records.push_back(record);
    }

    /// Leaves out the oldest, where there is too much.
    fn bound(&mut self, exceptions: &Exceptions) {
        self.records.drain(..self.records.len().saturating_sub(MOST_RECORDS));
        if self.touched.len() > MOST_TOUCHED {
            // What has ended stays in the file then: it is read with that, and ends once more.
            self.touched.retain(|(limit, owner)| match limit {
                Some(limit) => exceptions.grant_of(limit, owner).is_some(),
                None => exceptions.suspension_of(owner).is_some(),
            });
        }
    }

    fn grant(&mut self, grant: &Grant) {
        self.touched.insert((Some(grant.limit.clone()), grant.owner.clone()));
    }

    fn suspension(&mut self, suspension: &Suspension) {
        self.touched.insert((None, suspension.owner.clone()));
    }

    /// Ends what is over for certain.
    fn end(&mut self, exceptions: &mut Exceptions, now: Timestamp, doubt: Option<Timestamp>) {
        let (grants, suspensions) = exceptions.forget(now, doubt);
        for grant in grants {
            self.grant(&grant);
            self.add(AuditRecord::of_grant(Act::Ended, &grant, now, None));
        }
        for suspension in suspensions {
            self.suspension(&suspension);
            self.add(AuditRecord::of_suspension(Act::Ended, &suspension, now, None));
        }
    }

    /// Somebody is suspended by a limit, if there is room for that, and unless he is for longer.
    fn suspend(
        &mut self,
        exceptions: &mut Exceptions,
        suspension: &Arc<Suspension>,
        (now, doubt): (Timestamp, Option<Timestamp>),
    ) {
        let former = exceptions.suspension_of(&suspension.owner).filter(|former| former.term.holds(now));
        if former.is_some_and(|former| former.term.until >= suspension.term.until) {
            return;
        }
        // Who tries again and again is suspended for longer and longer: that is worth one line.
        let is_new = former.is_none_or(|former| former.term.by != suspension.term.by);
        if former.is_none() && !exceptions.has_room() {
            self.end(exceptions, now, doubt);
            if !exceptions.has_room() {
                return;
            }
        }
        exceptions.suspend(suspension.clone());
        self.suspension(suspension);
        if is_new {
            self.add(AuditRecord::of_suspension(Act::Suspended, suspension, now, None));
        }
    }
}

impl Core {
    /// Changes the exceptions, and has written what is then on the page. The answer says when it is.
    fn except<R>(&self, change: impl FnOnce(&mut Exceptions, &mut Page) -> R) -> (R, Receiver<()>) {
        let mut place = self.policy.write().unwrap_or_else(PoisonError::into_inner);
        let mut policy = Policy::clone(&place);
        let exceptions = Arc::make_mut(&mut policy.exceptions);
        let mut page = self.book.page();
        let before = page.records.len();
        let changed = change(exceptions, &mut page);
        let done: Vec<AuditRecord> = page.records.iter().skip(before).cloned().collect();
        page.bound(exceptions);
        // While the disk hangs, nobody empties it.
        page.waiting.retain(|waiting| !waiting.is_closed());
        let (sender, written) = channel();
        page.waiting.push(sender);
        self.book.any.store(true, Ordering::Release);
        drop(page);
        self.count(exceptions, |_| true);
        *place = Arc::new(policy);
        drop(place);
        self.queue.send(Errand::PendingExceptions);
        done.iter().for_each(AuditRecord::log);
        (changed, written)
    }

    fn count(&self, exceptions: &Exceptions, holds: impl Fn(&Term) -> bool) {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let (grants, suspensions) = (exceptions.grants(), exceptions.suspensions());
        self.metrics.grants_in_force.set(number(grants.filter(|one| holds(&one.term)).count()));
        self.metrics.suspensions_in_force.set(number(suspensions.filter(|one| holds(&one.term)).count()));
    }

    /// Takes in what the file has. What was done before it could be opened came later, and stays.
    pub(super) fn take_in_exceptions(&self, file: &File) {
        let (grants, suspensions) = match file.exceptions() {
            Ok(read) => read,
            Err(error) => {
                return tracing::error!(
                    error = file::words(&error),
                    "grants and suspensions cannot be read: none holds"
                );
            }
        };
        let mut place = self.policy.write().unwrap_or_else(PoisonError::into_inner);
        let mut policy = Policy::clone(&place);
        let exceptions = Arc::make_mut(&mut policy.exceptions);
        let mut page = self.book.page();
        let is_newer = |page: &Page, limit: Option<&Arc<str>>, owner: &Owner| {
            page.touched.contains(&(limit.cloned(), owner.clone()))
        };
        let mut rewritten = Vec::new();
        let mut normalize = |limit: Option<&Arc<str>>, owner: &mut Owner| {
            let normal = owner.normalized(&policy.folding);
            if normal != *owner {
                let former = std::mem::replace(owner, normal);
                rewritten.extend([(limit.cloned(), former), (limit.cloned(), owner.clone())]);
            }
        };
        for mut grant in grants {
            normalize(Some(&grant.limit), &mut grant.owner);
            if !is_newer(&page, Some(&grant.limit), &grant.owner) {
                exceptions.grant(grant);
            }
        }
        for mut suspension in suspensions {
            normalize(None, &mut suspension.owner);
            if !is_newer(&page, None, &suspension.owner) {
                exceptions.suspend(Arc::new(suspension));
            }
        }
        if !rewritten.is_empty() {
            page.touched.extend(rewritten);
            self.book.any.store(true, Ordering::Release);
            self.queue.send(Errand::PendingExceptions);
        }
        self.count(exceptions, |_| true);
        let policy = Arc::new(policy);
        *place = policy.clone();
        drop((page, place));
        tell_inert(&policy);
    }

    /// Waits until a page is written, but not for long.
    async fn written(&self, written: Receiver<()>) -> Kept {
        match timeout(PATIENCE, written).await {
            // In a file that has been removed it does not last.
            Ok(Ok(())) => self.troubles.reason(Attempt::Find).map_or(Kept::InFile, Kept::InMemory),
            Ok(Err(_)) => {
                let reason =
                    [Attempt::PendingExceptions, Attempt::Open].into_iter().find_map(|one| self.troubles.reason(one));
                Kept::InMemory(reason.unwrap_or_else(|| "the state file cannot be written".to_owned()))
            }
            Err(_) => {
                let reason = slow("exceptions could not be written");
                self.troubles.note(Attempt::PendingExceptions, Err(reason.clone()));
                Kept::InMemory(reason)
            }
        }
    }

    /// Those of whom limits say so are suspended from now on. False: that is not in the file.
    pub(super) async fn suspend(&self, suspensions: &[Arc<Suspension>], now: Timestamp) -> bool {
        let time = (now, self.clock_doubt());
        let (_, written) =
            self.except(|exceptions, page| suspensions.iter().for_each(|one| page.suspend(exceptions, one, time)));
        // While it cannot be written nobody waits.
        !self.troubles.with_writing() && self.written(written).await == Kept::InFile
    }
}

/// Says which grants have no effect under these limits, and returns that.
pub(super) fn tell_inert(policy: &Policy) -> Vec<String> {
    let inert = policy.exceptions.grants().filter_map(|grant| Some((grant, policy.why_inert(grant)?)));
    let tell = |(grant, why): (&Arc<Grant>, &str)| {
        let (limit, owner) = (&grant.limit, &grant.owner);
        tracing::warn!(limit = &**limit, %owner, why, "a grant has no effect");
        format!("the grant of {limit} for {owner} has no effect: {why}")
    };
    inert.map(tell).collect()
}

/// What administrators have done.
impl Store {
    /// From now on a grant holds, in the place of one for the same budget, which is returned.
    pub async fn grant(&self, grant: Grant) -> (Option<Arc<Grant>>, Kept) {
        let now = grant.term.since;
        let (former, written) = self.core.except(|exceptions, page| {
            let former =
                exceptions.grant_of(&grant.limit, &grant.owner).filter(|former| former.term.holds(now)).cloned();
            page.grant(&grant);
            page.add(AuditRecord::of_grant(Act::Granted, &grant, now, None));
            exceptions.grant(grant);
            former
        });
        (former, self.core.written(written).await)
    }

    /// Ends a grant before its time, and returns it; `None` if there is none.
    pub async fn revoke(
        &self,
        limit: &str,
        owner: &Owner,
        (by, reason): (By, Arc<str>),
        now: Timestamp,
    ) -> Option<(Arc<Grant>, Kept)> {
        let doubt = self.core.clock_doubt();
        let (revoked, written) = self.core.except(|exceptions, page| {
            page.end(exceptions, now, doubt);
            let grant = exceptions.revoke(limit, owner)?;
            page.grant(&grant);
            page.add(AuditRecord::of_grant(Act::Revoked, &grant, now, Some((by, reason))));
            Some(grant)
        });
        Some((revoked?, self.core.written(written).await))
    }

    /// From now on somebody sends nothing. What held for him before is returned.
    pub async fn suspend(&self, suspension: Suspension) -> (Option<Arc<Suspension>>, Kept) {
        let now = suspension.term.since;
        let (former, written) = self.core.except(|exceptions, page| {
            let former = exceptions.suspension_of(&suspension.owner).filter(|former| former.term.holds(now)).cloned();
            page.suspension(&suspension);
            page.add(AuditRecord::of_suspension(Act::Suspended, &suspension, now, None));
            exceptions.suspend(Arc::new(suspension));
            former
        });
        (former, self.core.written(written).await)
    }

    /// Ends a suspension before its time, whoever began it, and returns it; `None` if there is none.
    pub async fn end_suspension(
        &self,
        owner: &Owner,
        (by, reason): (By, Arc<str>),
        now: Timestamp,
    ) -> Option<(Arc<Suspension>, Kept)> {
        let doubt = self.core.clock_doubt();
        let (ended, written) = self.core.except(|exceptions, page| {
            page.end(exceptions, now, doubt);
            let suspension = exceptions.release(owner)?;
            page.suspension(&suspension);
            page.add(AuditRecord::of_suspension(Act::Released, &suspension, now, Some((by, reason))));
            Some(suspension)
        });
        Some((ended?, self.core.written(written).await))
    }

    /// Empties the budgets of an owner, as if nothing had ever been counted, and says how full they were. The error says why that
    /// cannot be done.
    pub async fn reset(
        &self,
        limit: &str,
        owner: &Owner,
        (by, reason): (By, Arc<str>),
        now: Timestamp,
    ) -> Result<(Vec<String>, Kept), String> {
        let mut budgets = self.core.policy().budgets_of(limit, owner, now)?;
        budgets.sort_by(|one, other| one.key.cmp(&other.key));
        let keys: Vec<Key> = budgets.iter().map(|budget| budget.key.clone()).collect();
        let done = self
            .act(now, keys.iter().map(Key::borrowed), |now, loaded: &mut Loaded| (now, policy::reset(now, loaded)))
            .await;
        let (now, before) = done.map_err(|Unavailable| "the state cannot be written at the moment".to_owned())?;
        if keys.iter().any(|key| self.core.hot.is_unread(&HashedKey::of(key.clone()))) {
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
        let (_, written) = self.core.except(|_, page| page.add(record));
        let kept = self.core.written(written).await;
        let lag = self.core.troubles.reason(Attempt::Append).filter(|_| kept == Kept::InFile);
        Ok((was, lag.map_or(kept, Kept::InMemory)))
    }

    /// What was done last, the latest at the end. The error says why that is not known.
    pub async fn trail(&self, last: usize) -> Result<Vec<AuditRecord>, String> {
        // First, as what is written meanwhile is then found twice, and not missed.
        let unwritten = self.core.book.page().records.clone();
        let path = self.core.options.path.clone();
        let read = move || match File::read(&path) {
            Ok(file) => file.trail(last).map_err(|error| file::words(&error)),
            Err(error) => Err(error.to_string()),
        };
        let mut trail = match self.core.is_open() {
            true => tokio::task::spawn_blocking(read).await.map_err(|error| error.to_string())??,
            false => Vec::new(),
        };
        let newest = trail.split_off(trail.len().saturating_sub(unwritten.len()));
        let unwritten = unwritten.into_iter().filter(|record| !newest.contains(record)).collect::<Vec<_>>();
        trail.extend(newest.into_iter().chain(unwritten));
        Ok(trail.split_off(trail.len().saturating_sub(last)))
    }

    /// Ends what is over at that time, and forgets what was done long ago. To be called every now and then: what is over holds no
    /// more anyway.
    ///
    /// While the clock is in doubt ([`Store::set_clock_doubt`]) only what began since then is ended, and nothing is forgotten.
    pub fn end_exceptions(&self, now: Timestamp) {
        let Core { book, queue, .. } = &*self.core;
        let doubt = self.core.clock_doubt();
        if self.core.policy().exceptions.any_ended(now, doubt) {
            // Nobody waits for it.
            drop(self.core.except(|exceptions, page| page.end(exceptions, now, doubt)));
        }
        if doubt.is_some() {
            // Those that are over are still here, and do not count.
            return self.core.count(&self.core.policy().exceptions, |term| term.holds(now));
        }
        let pruned = Timestamp::from_micros(book.pruned.load(Ordering::Relaxed));
        if now.since(pruned) >= PRUNED_EVERY || pruned.since(now) >= PRUNED_EVERY {
            book.pruned.store(now.micros(), Ordering::Relaxed);
            let remembered = i64::try_from(REMEMBERED.as_micros()).unwrap_or(i64::MAX);
            queue.send(Errand::Prune(Timestamp::from_micros(now.micros().saturating_sub(remembered))));
        }
    }

    /// Tells the store whether `now` may turn out to be wrong, and since when it has not jumped; `None`: it is certain. In doubt the
    /// store decides as always, and removes nothing on account of its age.
    pub fn set_clock_doubt(&self, doubt: Option<Timestamp>) {
        self.core.clock_doubt.store(doubt.map_or(i64::MIN, Timestamp::micros), Ordering::Relaxed);
    }
}
