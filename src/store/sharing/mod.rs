//! Transactions on budgets that nodes share, and the task that sends their changes to Redis.

mod sender;

pub use sender::Sender;

use super::Unavailable;
use super::core::Core;
use super::hashed_key::{HashedKey, HashedKeyRef};
use super::health::Attempt;
use super::options::OnFailure;
use super::shared::cells::{Outcome, Ran};
use super::shared::{SharedBudgets, reader};
use super::transaction::Transaction;
use crate::metrics::GaugeGuard;
use crate::policy::budgets::{Budget, Key, KeyRef, Loaded, Slot};
use crate::time::Timestamp;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Time for which a transaction that cannot be refused runs again, if other nodes change its budgets all the time.
const PATIENCE: Duration = Duration::from_secs(4);

/// Runs a transaction on these budgets, until Redis has its changes or cannot be used. If other nodes change the budgets
/// all the time, it gives up: after half of the deadline if the transaction can be refused, and else after [`PATIENCE`].
pub async fn transact<T: Transaction>(
    core: &Arc<Core>,
    shared: &SharedBudgets,
    mut now: Timestamp,
    keys: &[HashedKeyRef<'_>],
    transaction: &mut T,
) -> Result<T::Answer, Unavailable> {
    let since = Instant::now();
    let mut began = since;
    let _waiting = GaugeGuard::new(&core.metrics.state.transactions_waiting);
    let has_to_be_durable = core.options.on_failure == OnFailure::Defer;
    shared.wait_for_first_attempt().await;
    loop {
        if has_to_be_durable && shared.cells.is_away() {
            return Err(Unavailable);
        }
        match run(core, shared, (now, began), keys, transaction) {
            Ran::Done(answer, outcomes) if outcomes.is_empty() => return Ok(answer),
            Ran::Done(answer, outcomes) => match shared.outcome(outcomes, began).await {
                Outcome::Valid => {
                    core.metrics.state.transaction_seconds.observe(since.elapsed().as_secs_f64());
                    return Ok(answer);
                }
                Outcome::InMemory if has_to_be_durable => return Err(Unavailable),
                Outcome::InMemory => return Ok(answer),
                // A further run must have time left, so that it does not take other nodes for a slow Redis.
                Outcome::Again if began.elapsed() > shared.options.deadline / 2 => {
                    transaction.undo();
                    if transaction.can_be_refused() || since.elapsed() > PATIENCE {
                        core.metrics.state.conflicts_given_up.inc();
                        return Err(Unavailable);
                    }
                    (now, began) = (now.after(began.elapsed()), Instant::now());
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
                    shared.until_deadline(wait, began).await;
                }
            }
        }
    }
}

/// Runs a transaction once. Budgets of things that exist at present, such as open sessions, are those of this node.
fn run<T: Transaction>(
    core: &Core,
    shared: &SharedBudgets,
    (now, began): (Timestamp, Instant),
    keys: &[HashedKeyRef<'_>],
    transaction: &mut T,
) -> Ran<T::Answer> {
    let (own, others): (Vec<usize>, Vec<usize>) = (0..keys.len()).partition(|index| keys[*index].key.is_volatile());
    let own_keys: Vec<HashedKeyRef<'_>> = own.iter().map(|index| keys[*index]).collect();
    let shared_keys: Vec<KeyRef<'_>> = others.iter().map(|index| keys[*index].key).collect();
    let act = |now, of_node: &mut Loaded| {
        shared.cells.run((now, began), &shared_keys, |now, of_all: &mut Loaded| {
            let mut slots: Vec<Slot> = (0..keys.len()).map(|_| Slot::from(None)).collect();
            own.iter().enumerate().for_each(|(from, to)| slots[*to] = of_node.take(from));
            others.iter().enumerate().for_each(|(from, to)| slots[*to] = of_all.take(from));
            let mut loaded = Loaded::from_slots(slots.into_iter());
            let answer = transaction.run(now, &mut loaded);
            own.iter().enumerate().for_each(|(to, from)| of_node.put(to, loaded.take(*from)));
            others.iter().enumerate().for_each(|(to, from)| of_all.put(to, loaded.take(*from)));
            answer
        })
    };
    core.cache.run_volatile((now, began), &own_keys, act)
}

/// Transaction that copies budgets.
struct Look;

impl Transaction for Look {
    type Answer = Vec<Option<Budget>>;

    /// Volatile budgets of other nodes are unknown.
    fn run(&mut self, _: Timestamp, loaded: &mut Loaded) -> Self::Answer {
        loaded.budgets().map(|budget| budget.cloned()).collect()
    }

    fn can_be_refused(&self) -> bool {
        true
    }
}

/// Returns a copy of these budgets in the state that Redis has.
pub async fn look(core: &Arc<Core>, shared: &SharedBudgets, keys: &[Key]) -> Vec<Option<Budget>> {
    let hashed: Vec<HashedKeyRef<'_>> = keys.iter().map(|key| HashedKey::of(key.borrowed())).collect();
    shared.cells.expire(keys);
    let now = core.cache.latest().unwrap_or(Timestamp::from_micros(0));
    transact(core, shared, now, &hashed, &mut Look)
        .await
        .unwrap_or_else(|Unavailable| keys.iter().map(|key| shared.cells.peek(key.borrowed()).flatten()).collect())
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
