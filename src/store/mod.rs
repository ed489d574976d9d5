//! Where the state of budgets lives: hot in memory, durable in SQLite before any reply that depends on it.
//!
//! [`Store::admit`] is the one act of a stage: read what is not in memory ([`loader`]), decide and keep ([`hot`]), commit ([`queue`],
//! [`writer`]). The [`keeper`] looks after the file; what is wrong with it is in [`troubles`].

pub mod archive;
mod entry;
mod file;
mod hot;
mod keeper;
mod loader;
mod place;
mod queue;
mod schema;
mod troubles;
mod writer;

use crate::metrics::Metrics;
use crate::policy::event::Asked;
use crate::policy::key::Key;
use crate::policy::verdict::Verdict;
use crate::policy::{self, Charged, Loaded, Policy, Question};
use crate::time::{Timestamp, format_duration};
use file::File;
pub use file::OpenError;
use hot::{Acted, Hot};
use keeper::Keeper;
use loader::Loader;
use place::Place;
use queue::{Errand, Queue};
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use tokio::time::timeout;
use troubles::{Attempt, Troubles};
use writer::{PATIENCE, Writer};

/// Where and how to keep state.
#[derive(Clone, Debug)]
pub struct Options {
    pub path: PathBuf,
    pub durability: Durability,
    pub on_failure: OnFailure,
}

/// What an acknowledged charge survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The end of the process, however sudden.
    Process,
    /// The end of the power, too: one fsync a commit.
    Power,
}

/// What to do while the state cannot be written or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// Limits go on in memory.
    Allow,
    /// What limits would decide has to wait.
    Defer,
}

/// The budgets of all limits.
pub struct Store {
    core: Arc<Core>,
    loader: Loader,
    writer: Writer,
    keeper: Keeper,
}

/// What the threads of a store share.
struct Core {
    options: Options,
    policy: RwLock<Arc<Policy>>,
    hot: Hot,
    queue: Queue,
    troubles: Troubles,
    metrics: Arc<Metrics>,
    /// What tells the open file from others; empty as long as it could not be opened.
    identity: OnceLock<Option<(u64, u64)>>,
    /// Octets written to the file, about: for whoever brings its write-ahead log home.
    written: AtomicUsize,
    /// Whoever reads the file is to let go of it soon, so that its write-ahead log can begin anew.
    log_is_long: AtomicBool,
}

/// How the store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    Good,
    /// Limits are kept in memory alone, for this reason.
    Degraded(String),
}

/// The state cannot be kept, and mail is to wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unavailable;

impl Store {
    /// Opens the state file, replays its journal and starts the threads.
    ///
    /// If the file cannot be used, limits are kept in memory and it is tried again, as mail has to flow; unless another Weir is using
    /// it.
    pub fn open(options: &Options, policy: Policy, metrics: Arc<Metrics>) -> Result<Self, OpenError> {
        let core = Arc::new(Core {
            options: options.clone(),
            policy: RwLock::new(Arc::new(policy)),
            hot: Hot::default(),
            queue: Queue::default(),
            troubles: Troubles::new(metrics.clone()),
            metrics,
            identity: OnceLock::new(),
            written: AtomicUsize::new(0),
            log_is_long: AtomicBool::new(false),
        });
        let file = match core.open() {
            Ok(opened) => Some(opened),
            Err(error @ OpenError::InUse(_)) => return Err(error),
            Err(error) => {
                core.troubles.note(Attempt::Open, Err(error.to_string()));
                None
            }
        };
        let writer = Writer::start(core.clone(), file).map_err(OpenError::Thread)?;
        let loader = Loader::start(core.clone()).map_err(OpenError::Thread)?;
        let keeper = Keeper::start(core.clone()).map_err(OpenError::Thread)?;
        Ok(Self { core, loader, writer, keeper })
    }

    /// Decides a run of events at `now` and charges what passes, as one act. When this returns, the charges are durable, unless the
    /// store is degraded. Nobody waits for the file for much longer than a second.
    pub async fn admit(&self, now: Timestamp, asked: &Asked) -> Result<Vec<Verdict>, Unavailable> {
        let policy = self.core.policy();
        let question = Question::new(&policy, asked);
        if question.keys().is_empty() {
            return Ok(policy::decide(&policy, now, asked, &question, &mut Loaded::default()));
        }
        let _timer = self.core.metrics.admit_seconds.start_timer();
        let decide = |now, loaded: &mut Loaded| policy::decide(&policy, now, asked, &question, loaded);
        self.act(now, question.keys(), decide).await
    }

    /// Gives back charges, as one act, durable like them.
    pub async fn give_back(&self, now: Timestamp, charges: &[Charged]) -> Result<(), Unavailable> {
        let policy = self.core.policy();
        let mut keys: Vec<Key> = charges.iter().map(|charged| charged.key.clone()).collect();
        keys.sort_unstable();
        keys.dedup();
        self.act(now, &keys, |_, loaded| policy::give_back(&policy, charges, &keys, loaded)).await
    }

    /// From now on these limits hold. Budgets of limits that stay keep their history.
    pub fn set_policy(&self, policy: Policy) {
        self.core.set_policy(policy);
    }

    pub fn health(&self) -> Health {
        self.core.troubles.health()
    }

    /// Commits what is left, folds the journal and closes the file.
    pub async fn close(self) {
        let stop = move || {
            self.keeper.stop();
            self.loader.stop();
            self.writer.stop();
        };
        // Joining threads blocks.
        let _ = tokio::task::spawn_blocking(stop).await;
    }

    /// Does something with these budgets, which are read first if need be.
    async fn act<R>(
        &self,
        now: Timestamp,
        keys: &[Key],
        mut act: impl FnMut(Timestamp, &mut Loaded) -> R,
    ) -> Result<R, Unavailable> {
        let places: Vec<Place> = keys.iter().cloned().map(Place::of).collect();
        let Core { hot, queue, troubles, options, .. } = &*self.core;
        loop {
            let degraded = troubles.any();
            if degraded && options.on_failure == OnFailure::Defer {
                return Err(Unavailable);
            }
            // While it is degraded nobody waits.
            match hot.act(now, &places, queue, !degraded, &mut act) {
                Acted::Free(answer) => return Ok(answer),
                Acted::Changed(answer, commit) => {
                    let committed = timeout(PATIENCE, commit).await;
                    if committed.is_err() {
                        let slow = format!("the disk is slow: no commit within {}", format_duration(PATIENCE));
                        troubles.note(Attempt::Append, Err(slow));
                    }
                    let is_durable = matches!(committed, Ok(Ok(())));
                    return if is_durable || options.on_failure == OnFailure::Allow {
                        Ok(answer)
                    } else {
                        Err(Unavailable)
                    };
                }
                Acted::Missing { read, waits } => self.load(read, waits).await,
            }
        }
    }

    /// Has budgets read, and waits until these and others are. What does not come in time counts from nothing.
    async fn load(&self, read: Vec<Place>, waits: Vec<tokio::sync::oneshot::Receiver<()>>) {
        let places = read.clone();
        let is_asked = read.is_empty() || self.loader.read(read);
        let all = async {
            for wait in waits {
                // Dropped when it is read.
                let _ = wait.await;
            }
        };
        if !is_asked || timeout(PATIENCE, all).await.is_err() {
            self.core.hot.insert_unread(&places);
            let slow = format!("the disk is slow: budgets could not be read within {}", format_duration(PATIENCE));
            self.core.troubles.note(Attempt::Load, Err(slow));
        }
    }
}

impl Core {
    /// Opens the file and takes in what a former process left in its journal: with that, its octets.
    fn open(&self) -> Result<(File, usize), OpenError> {
        let file = File::open(&self.options)?;
        let sqlite = |error| OpenError::Sqlite(self.options.path.clone(), error);
        let (replayed, damaged, octets) = file.replay().map_err(sqlite)?;
        for seq in damaged {
            tracing::error!(entry = seq, "an entry of the state file's journal is damaged: its charges are lost");
        }
        let epoch = self.queue.epoch();
        replayed.0.into_iter().for_each(|(place, budget)| self.hot.replay(place, budget, epoch));
        self.metrics.journal_octets.set(i64::try_from(octets).unwrap_or(i64::MAX));
        let known = file.kinds().map_err(sqlite)?;
        self.tell_gone(known.into_iter().map(|(kind, _)| kind));
        let _ = self.identity.set(file::identity(&self.options.path));
        Ok((file, octets))
    }

    fn is_open(&self) -> bool {
        self.identity.get().is_some()
    }

    fn identity(&self) -> Option<(u64, u64)> {
        self.identity.get().copied().flatten()
    }

    fn policy(&self) -> Arc<Policy> {
        self.policy.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_policy(&self, policy: Policy) {
        let mut place = self.policy.write().unwrap_or_else(PoisonError::into_inner);
        let former = std::mem::replace(&mut *place, Arc::new(policy));
        drop(place);
        let former: Vec<String> = former.limits.iter().map(|limit| limit.kind()).collect();
        if let Some(now) = self.hot.latest() {
            self.queue.send(Errand::Note(former.clone(), now));
        }
        self.tell_gone(former.into_iter());
    }

    /// Says which of these limits are no longer in force, or mean something else.
    fn tell_gone(&self, former: impl Iterator<Item = String>) {
        let in_force: HashSet<String> = self.policy().limits.iter().map(|limit| limit.kind()).collect();
        for limit in former.filter(|kind| !in_force.contains(kind)) {
            let keep = format_duration(keeper::KEEP);
            tracing::warn!(limit, "no such limit any more: its budgets are kept for {keep}, if it comes back");
        }
    }
}

#[cfg(test)]
mod tests;
