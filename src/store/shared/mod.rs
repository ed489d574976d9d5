//! Budgets that several nodes share through Redis or Valkey.
//!
//! A transaction reads the budgets that this node has no copy of ([`reader`]), decides on the copies ([`cells`]), and
//! sends the changes to Redis, which takes them only if no other node was faster ([`script`]). The decisions are those of
//! the engine: Redis computes nothing. While Redis cannot be used, this node decides by the states that it last saw, and
//! adds what it has counted when Redis is back. The transactions themselves, and the task that sends their changes, are in
//! [`sharing`](super::sharing).

mod bulk;
pub mod cells;
pub mod connection;
mod exceptions;
mod names;
mod options;
pub mod reader;
mod reloads;
mod scan;
pub mod script;
mod value;

pub use bulk::{BulkError, PutEffect, SharedBulk};
pub use options::{SharedOptions, Topology, check_url};

use crate::engine::State;
use crate::policy::Policy;
use crate::policy::budgets::{Key, KeyRef};
use crate::time::format_duration;
use cells::{Cells, Outcome};
use connection::Connection;
use exceptions::SharedExceptions;
use names::Namer;
use reloads::SharedReloads;
pub use scan::Skipped;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::timeout;

/// Budgets that nodes share.
pub struct SharedBudgets {
    pub options: SharedOptions,
    pub namer: Namer,
    pub cells: Cells,
    pub exceptions: SharedExceptions,
    pub reloads: SharedReloads,
    /// Connection to Redis; `None` while there is none. The lock is held only while the connection is taken or replaced.
    connection: Mutex<Option<Connection>>,
    /// Reason why Redis cannot be used, from a task that found it. The lock is held only while it is set or taken.
    failure: Mutex<Option<String>>,
    /// Wakes the sender because of a failure.
    failing: Notify,
    /// True after the first attempt to connect.
    pub has_tried: watch::Sender<bool>,
}

impl SharedBudgets {
    /// Reads the secret of the site; the error names its file. The task that connects is not started yet.
    pub fn new(options: &SharedOptions, policy: &Policy) -> Result<Self, String> {
        let secret = options.secret()?;
        let namer = Namer::new(&options.prefix, secret.as_deref());
        log_leases(policy);
        Ok(Self {
            options: options.clone(),
            cells: Cells::new(namer.clone(), options.max_age, policy),
            namer,
            exceptions: SharedExceptions::default(),
            reloads: SharedReloads::default(),
            connection: Mutex::default(),
            failure: Mutex::default(),
            failing: Notify::new(),
            has_tried: watch::Sender::new(false),
        })
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
        log_leases(policy);
    }

    pub fn connection(&self) -> Option<Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set_connection(&self, connection: Option<Connection>) {
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = connection;
    }

    /// Tells the sender that Redis cannot be used.
    pub fn fail(&self, reason: String) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
        self.failing.notify_one();
    }

    /// Waits until a task finds that Redis cannot be used, and returns the reason.
    pub async fn failure(&self) -> String {
        loop {
            if let Some(reason) = self.take_failure() {
                return reason;
            }
            self.failing.notified().await;
        }
    }

    pub fn take_failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub fn is_slow(&self) -> String {
        format!("no reply within {}", format_duration(self.options.deadline))
    }

    /// Waits until the sender has tried to connect once, but not longer than the deadline.
    pub async fn wait_for_first_attempt(&self) {
        if !*self.has_tried.borrow() {
            let mut has_tried = self.has_tried.subscribe();
            // An error means that the deadline is over: the transaction goes on without Redis.
            let _ = timeout(self.options.deadline, has_tried.wait_for(|has_tried| *has_tried)).await;
        }
    }

    /// Waits for all outcomes of a transaction.
    pub async fn outcome(&self, outcomes: Vec<oneshot::Receiver<Outcome>>, began: Instant) -> Outcome {
        let mut all = Outcome::Valid;
        for outcome in outcomes {
            match self.until_deadline(outcome, began).await {
                Some(Outcome::Valid) => {}
                Some(Outcome::Again) => all = Outcome::Again,
                Some(Outcome::InMemory) | None => return Outcome::InMemory,
            }
        }
        all
    }

    /// Waits for a message. After the deadline, it tells the sender that Redis is slow. The message, or its end, then
    /// comes from the sender.
    pub async fn until_deadline<M>(&self, mut message: oneshot::Receiver<M>, began: Instant) -> Option<M> {
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

/// Logs the limits of which this node takes leases: what nodes hold and do not spend is missing elsewhere.
fn log_leases(policy: &Policy) {
    for (limit, _, terms) in policy.leases() {
        tracing::info!(limit = %limit.name, lease = terms.amount, "shared budget is charged ahead");
    }
}
