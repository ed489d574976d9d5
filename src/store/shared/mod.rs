//! Budgets that several nodes share through Redis or Valkey.
//!
//! A transaction reads the budgets that this node has no copy of, decides on the copies, and sends the changes to Redis,
//! which takes them only if no other node was faster ([`cells`], [`script`]). The decisions are those of the engine: Redis
//! computes nothing. One task sends the changes of all transactions ([`sender`]). While Redis cannot be used, this node
//! decides by the states that it last saw, and adds what it has counted when Redis is back.

mod bulk;
mod cells;
mod connection;
mod exceptions;
mod names;
mod options;
mod reader;
mod scan;
mod script;
mod sender;
mod value;

pub use bulk::{BulkError, PutEffect, SharedBulk};
pub use exceptions::FoundExceptions;
pub use options::{SharedOptions, Topology, check_url};

use super::Unavailable;
use super::core::Core;
use super::file::OpenError;
use super::hashed_key::{HashedKey, HashedKeyRef};
use super::health::Attempt;
use super::options::OnFailure;
use super::transaction::Transaction;
use crate::engine::State;
use crate::metrics::{GaugeGuard, StateMetrics};
use crate::policy::Policy;
use crate::policy::budgets::{Budget, Key, KeyRef, Loaded, Slot};
use crate::time::{Timestamp, format_duration};
use cells::{Cells, Outcome, Ran};
use connection::Connection;
use exceptions::SharedExceptions;
use names::Namer;
pub use scan::Skipped;
pub use sender::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::timeout;

/// Budgets that nodes share.
pub struct SharedBudgets {
    options: SharedOptions,
    namer: Namer,
    cells: Cells,
    pub(super) exceptions: SharedExceptions,
    /// Connection to Redis; `None` while there is none. The lock is held only while the connection is taken or replaced.
    connection: Mutex<Option<Connection>>,
    /// Reason why Redis cannot be used, from a task that found it. The lock is held only while it is set or taken.
    failure: Mutex<Option<String>>,
    /// Wakes the sender because of a failure.
    failing: Notify,
    /// True after the first attempt to connect.
    has_tried: watch::Sender<bool>,
}

impl SharedBudgets {
    /// Reads the secret of the site. The task that connects is not started yet.
    pub fn new(options: &SharedOptions, policy: &Policy) -> Result<Self, OpenError> {
        let secret = options.secret().map_err(OpenError::Secret)?;
        let namer = Namer::new(&options.prefix, secret.as_deref());
        Ok(Self {
            options: options.clone(),
            cells: Cells::new(namer.clone(), options.max_age, policy),
            namer,
            exceptions: SharedExceptions::default(),
            connection: Mutex::default(),
            failure: Mutex::default(),
            failing: Notify::new(),
            has_tried: watch::Sender::new(false),
        })
    }

    /// Runs a transaction on these budgets, until Redis has its changes or cannot be used.
    pub async fn transact<T: Transaction>(
        &self,
        core: &Arc<Core>,
        now: Timestamp,
        keys: &[HashedKeyRef<'_>],
        transaction: &mut T,
    ) -> Result<T::Answer, Unavailable> {
        let began = Instant::now();
        let has_to_be_durable = core.options.on_failure == OnFailure::Defer;
        self.wait_for_first_attempt().await;
        loop {
            if has_to_be_durable && self.cells.is_away() {
                return Err(Unavailable);
            }
            match self.run(core, (now, began), keys, transaction) {
                Ran::Done(answer, outcomes) => match self.outcome(&core.metrics.state, outcomes, began).await {
                    Outcome::Valid => return Ok(answer),
                    Outcome::InMemory if has_to_be_durable => return Err(Unavailable),
                    Outcome::InMemory => return Ok(answer),
                    // A further run must have time left, so that it does not take other nodes for a slow Redis.
                    Outcome::Again if began.elapsed() > self.options.deadline / 2 => {
                        transaction.undo();
                        core.metrics.state.conflicts_given_up.inc();
                        return Err(Unavailable);
                    }
                    Outcome::Again => transaction.undo(),
                },
                Ran::InMemory(_) if has_to_be_durable => return Err(Unavailable),
                Ran::InMemory(answer) => return Ok(answer),
                Ran::NotLoaded { to_load, waits } => {
                    transaction.undo();
                    if !to_load.is_empty() {
                        tokio::spawn(load(core.clone(), to_load));
                    }
                    for wait in waits {
                        self.until_deadline(wait, began).await;
                    }
                }
            }
        }
    }

    /// Runs a transaction once. Budgets of things that exist at present, such as open sessions, are those of this node.
    fn run<T: Transaction>(
        &self,
        core: &Core,
        (now, began): (Timestamp, Instant),
        keys: &[HashedKeyRef<'_>],
        transaction: &mut T,
    ) -> Ran<T::Answer> {
        let (own, shared): (Vec<usize>, Vec<usize>) = (0..keys.len()).partition(|index| keys[*index].key.is_volatile());
        let own_keys: Vec<HashedKeyRef<'_>> = own.iter().map(|index| keys[*index]).collect();
        let shared_keys: Vec<KeyRef<'_>> = shared.iter().map(|index| keys[*index].key).collect();
        let act = |now, of_node: &mut Loaded| {
            self.cells.run((now, began), &shared_keys, |now, of_all: &mut Loaded| {
                let mut slots: Vec<Slot> = (0..keys.len()).map(|_| Slot::from(None)).collect();
                own.iter().enumerate().for_each(|(from, to)| slots[*to] = of_node.take(from));
                shared.iter().enumerate().for_each(|(from, to)| slots[*to] = of_all.take(from));
                let mut loaded = Loaded::from_slots(slots.into_iter());
                let answer = transaction.run(now, &mut loaded);
                own.iter().enumerate().for_each(|(to, from)| of_node.put(to, loaded.take(*from)));
                shared.iter().enumerate().for_each(|(to, from)| of_all.put(to, loaded.take(*from)));
                answer
            })
        };
        core.cache.run_volatile((now, began), &own_keys, act)
    }

    /// Returns a copy of these budgets in the state that Redis has.
    pub async fn look(&self, core: &Arc<Core>, keys: &[Key]) -> Vec<Option<Budget>> {
        // Volatile budgets of other nodes are unknown.
        let mut copy = |_, loaded: &mut Loaded| loaded.budgets().map(|budget| budget.cloned()).collect();
        let hashed: Vec<HashedKeyRef<'_>> = keys.iter().map(|key| HashedKey::of(key.borrowed())).collect();
        self.cells.expire(keys);
        let now = core.cache.latest().unwrap_or(Timestamp::from_micros(0));
        self.transact(core, now, &hashed, &mut copy)
            .await
            .unwrap_or_else(|Unavailable| keys.iter().map(|key| self.cells.peek(key.borrowed()).flatten()).collect())
    }

    /// Calls `take` with each budget of which this node has a copy.
    pub fn for_each(&self, take: impl FnMut(KeyRef<'_>, State)) {
        self.cells.for_each(take);
    }

    /// Returns the state of a budget, if this node has a copy.
    pub fn state_in_memory(&self, key: &Key) -> Option<State> {
        self.cells.peek(key.borrowed()).flatten().map(|budget| budget.state)
    }

    pub fn set_policy(&self, policy: &Policy) {
        self.cells.set_policy(policy);
    }

    fn connection(&self) -> Option<Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_connection(&self, connection: Option<Connection>) {
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = connection;
    }

    /// Tells the sender that Redis cannot be used.
    fn fail(&self, reason: String) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
        self.failing.notify_one();
    }

    /// Waits until a task finds that Redis cannot be used, and returns the reason.
    async fn failure(&self) -> String {
        loop {
            if let Some(reason) = self.take_failure() {
                return reason;
            }
            self.failing.notified().await;
        }
    }

    fn take_failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn is_slow(&self) -> String {
        format!("no reply within {}", format_duration(self.options.deadline))
    }

    /// Waits until the sender has tried to connect once, but not longer than the deadline.
    async fn wait_for_first_attempt(&self) {
        if !*self.has_tried.borrow() {
            let mut has_tried = self.has_tried.subscribe();
            // An error means that the deadline is over: the transaction goes on without Redis.
            let _ = timeout(self.options.deadline, has_tried.wait_for(|has_tried| *has_tried)).await;
        }
    }

    /// Waits for all outcomes of a transaction.
    async fn outcome(
        &self,
        metrics: &StateMetrics,
        outcomes: Vec<oneshot::Receiver<Outcome>>,
        began: Instant,
    ) -> Outcome {
        if outcomes.is_empty() {
            return Outcome::Valid;
        }
        let _waiting = GaugeGuard::new(&metrics.transactions_waiting);
        let mut all = Outcome::Valid;
        for outcome in outcomes {
            match self.until_deadline(outcome, began).await {
                Some(Outcome::Valid) => {}
                Some(Outcome::Again) => all = Outcome::Again,
                Some(Outcome::InMemory) | None => return Outcome::InMemory,
            }
        }
        if all == Outcome::Valid {
            metrics.transaction_seconds.observe(began.elapsed().as_secs_f64());
        }
        all
    }

    /// Waits for a message. After the deadline, it tells the sender that Redis is slow. The message, or its end, then
    /// comes from the sender.
    async fn until_deadline<M>(&self, mut message: oneshot::Receiver<M>, began: Instant) -> Option<M> {
        let left = self.options.deadline.saturating_sub(began.elapsed());
        match timeout(left, &mut message).await {
            Ok(received) => received.ok(),
            Err(_) => {
                self.fail(self.is_slow());
                message.await.ok()
            }
        }
    }
}

/// Reads budgets into memory.
async fn load(core: Arc<Core>, keys: Vec<Key>) {
    let Some(shared) = &core.shared else { return };
    let Some(connection) = shared.connection() else { return };
    let since = Instant::now();
    let read = reader::read(&connection, shared.cells.wanted(keys));
    // The other half of the deadline is for the transactions that wait.
    match timeout(shared.options.deadline / 2, read).await {
        Ok(Ok(read)) => shared.cells.take_read(read, since, &core.policy()),
        Ok(Err(reason)) => shared.fail(reason),
        Err(_) => shared.fail(shared.is_slow()),
    }
}

/// Records in the health whether Redis can be used.
fn record(core: &Core, outcome: Result<(), String>) {
    core.health.record(Attempt::Share, outcome.map_err(|reason| format!("Redis: {reason}")));
}
