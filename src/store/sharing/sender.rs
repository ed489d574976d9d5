//! Task that keeps the connection to Redis, and sends the changes of all transactions.

use super::{load, record};
use crate::back_off::BackOff;
use crate::store::core::Core;
use crate::store::shared::cells::{Batch, Part, Reply};
use crate::store::shared::connection::Connection;
use crate::store::shared::{SharedBudgets, script};
use crate::time::{Timestamp, format_duration};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, timeout};

/// Handle on the task.
pub struct Sender {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// Pause before a new attempt to connect.
const BACK_OFF: BackOff = BackOff { first: Duration::from_millis(100), max: Duration::from_secs(5) };

/// Maximum time for an attempt to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Time after which this node looks for exceptions and reloads of other nodes. A server that is gone is noticed after
/// this time, too, if there is no traffic.
const EXCHANGE_INTERVAL: Duration = Duration::from_millis(250);

/// Number of budgets that are read together to add what this node owes.
const OWED_AT_ONCE: usize = 500;

/// Reason for degraded health while the charges made without Redis are not in Redis.
const CATCHING_UP: &str = "what was counted meanwhile is still to be added";

impl Sender {
    pub fn start(core: Arc<Core>) -> Self {
        let (stop, mut stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            if let Some(shared) = &core.shared {
                run(&core, shared, &mut stopped).await;
            }
        });
        Self { stop, task }
    }

    /// Ends the task, after it has sent the changes that are waiting.
    pub async fn stop(self) {
        drop(self.stop);
        // An error means that the task has panicked, and there is nothing to wait for.
        let _ = self.task.await;
    }
}

async fn run(core: &Arc<Core>, shared: &SharedBudgets, stopped: &mut oneshot::Receiver<()>) {
    let mut failures = 0;
    loop {
        // Sessions wait for the end of the first attempt, and after it the state says that Redis is away.
        let limit = if *shared.has_tried.borrow() { CONNECT_TIMEOUT } else { shared.options.deadline };
        let opened = timeout(limit, Connection::open(&shared.options)).await;
        match opened {
            Ok(Ok(connection)) => {
                failures = 0;
                serve(core, shared, connection, stopped).await;
                if stopped.is_terminated() {
                    return;
                }
            }
            Ok(Err(reason)) => record(core, Err(reason)),
            Err(_) => record(core, Err(format!("no connection within {}", format_duration(limit)))),
        }
        shared.has_tried.send_replace(true);
        failures += 1;
        tokio::select! {
            _ = &mut *stopped => return,
            () = tokio::time::sleep(BACK_OFF.after(failures)) => {}
        }
    }
}

/// Sends changes over a connection, until it fails, or until the task is stopped and has sent everything.
async fn serve(core: &Arc<Core>, shared: &SharedBudgets, connection: Connection, stopped: &mut oneshot::Receiver<()>) {
    let _ = shared.take_failure();
    shared.set_connection(Some(connection.clone()));
    let owing = shared.cells.set_back(&core.policy());
    let mut is_owing = !owing.is_empty();
    record(core, if is_owing { Err(CATCHING_UP.to_owned()) } else { Ok(()) });
    shared.has_tried.send_replace(true);
    if is_owing {
        let core = core.clone();
        tokio::spawn(async move {
            for keys in owing.chunks(OWED_AT_ONCE) {
                load(core.clone(), keys.to_vec()).await;
            }
        });
    }
    let mut is_due = true;
    let mut exchanges = tokio::time::interval(EXCHANGE_INTERVAL);
    exchanges.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        if let Some(batch) = shared.cells.take_batch(connection.is_cluster()) {
            let sending = timeout(shared.options.deadline, send(&connection, &batch));
            let sent = tokio::select! {
                sent = sending => sent.unwrap_or_else(|_| Err(shared.is_slow())),
                reason = shared.failure() => Err(reason),
            };
            match sent {
                Ok(replies) => {
                    let settled = shared.cells.settle(batch, replies, &core.policy());
                    core.metrics.state.conflicts.inc_by(settled.conflicts as u64);
                    if !settled.to_load.is_empty() {
                        tokio::spawn(load(core.clone(), settled.to_load));
                    }
                }
                Err(reason) => return leave(core, shared, Some(batch), reason),
            }
        }
        if is_owing && !shared.cells.owes() {
            is_owing = false;
            record(core, Ok(()));
        }
        if is_due {
            is_due = false;
            look_after_leases(core, shared, stopped.is_terminated());
            // Transactions wait meanwhile. If one has waited for too long, it ends the exchange.
            let exchanged = tokio::select! {
                exchanged = exchange(core, shared, &connection) => exchanged,
                reason = shared.failure() => Err(reason),
            };
            if let Err(reason) = exchanged {
                return leave(core, shared, None, reason);
            }
        }
        if stopped.is_terminated() && !shared.cells.is_collecting() {
            // A budget that another node has changed must be read before the rest of its lease can be returned.
            let leased = shared.cells.leased();
            if leased.is_empty() {
                return;
            }
            load(core.clone(), leased).await;
        }
        tokio::select! {
            () = shared.cells.work.notified() => {}
            () = shared.exceptions.work.notified() => is_due = true,
            _ = exchanges.tick() => is_due = true,
            reason = shared.failure() => return leave(core, shared, None, reason),
            _ = &mut *stopped, if !stopped.is_terminated() => is_due = true,
        }
    }
}

/// Returns the leases that are not needed, or all, and reads the budgets of the others: so this node notices a reset by
/// another node, and knows how full they are.
fn look_after_leases(core: &Arc<Core>, shared: &SharedBudgets, is_stopping: bool) {
    shared.cells.return_leases(is_stopping);
    show_rests(core, shared);
    let leased = shared.cells.leased();
    if !leased.is_empty() && !is_stopping {
        tokio::spawn(load(core.clone(), leased));
    }
}

/// Shows the rests of the leases in the metrics.
fn show_rests(core: &Core, shared: &SharedBudgets) {
    let now = core.cache.latest().unwrap_or(Timestamp::from_micros(0));
    let mut rests: BTreeMap<&str, f64> = BTreeMap::new();
    let policy = core.policy();
    for (limit, key, _) in policy.leases() {
        *rests.entry(&limit.name).or_default() += shared.cells.rest_of_lease(key, now).unwrap_or(0.0);
    }
    for (limit, rest) in rests {
        core.metrics.state.lease_rest.with_label_values(&[limit]).set(rest as i64);
    }
}

/// Exchanges exceptions and reloads with other nodes. Also shows whether Redis replies.
async fn exchange(core: &Core, shared: &SharedBudgets, connection: &Connection) -> Result<(), String> {
    let (policy, adopt) = (|| Arc::clone(&core.policy()), |found, gone| core.adopt_exceptions(found, gone));
    let exchange = async {
        shared.exceptions.exchange((&policy, &adopt), &shared.namer, connection).await?;
        shared.reloads.exchange(&shared.namer, connection).await
    };
    timeout(shared.options.deadline, exchange).await.unwrap_or_else(|_| Err(shared.is_slow()))
}

/// Makes transactions go on without Redis. Records the reason first, so that no transaction goes on before.
fn leave(core: &Core, shared: &SharedBudgets, batch: Option<Batch>, reason: String) {
    record(core, Err(reason));
    shared.set_connection(None);
    shared.cells.set_away(batch, &core.policy());
    show_rests(core, shared);
}

/// Sends a batch, and returns the replies to the parts of each group. Returns an error with the reason if Redis has not
/// done all of it.
///
/// If a group has several parts, its first part is sent first: most conflicts are there, and nothing has to be refunded
/// then.
async fn send(connection: &Connection, batch: &Batch) -> Result<Vec<Vec<Reply>>, String> {
    let first: Vec<&Part> = batch.groups.iter().filter_map(|parts| parts.first()).collect();
    let mut first = send_parts(connection, &first).await?.into_iter();
    // A group that was merged into another one has no parts.
    let of_first = |parts: &Vec<Part>| parts.first().and_then(|_| first.next()).into_iter().collect();
    let mut replies: Vec<Vec<Reply>> = batch.groups.iter().map(of_first).collect();
    let is_done = |replies: &[Reply]| matches!(replies, [Reply::Done]);
    let others = batch.groups.iter().zip(&replies).filter(|(_, replies)| is_done(replies));
    let others: Vec<&Part> = others.flat_map(|(parts, _)| &parts[1..]).collect();
    let mut others = send_parts(connection, &others).await?.into_iter();
    for (parts, replies) in batch.groups.iter().zip(&mut replies) {
        match is_done(replies) {
            true => replies.extend(others.by_ref().take(parts.len() - 1)),
            false => replies.resize_with(parts.len(), || Reply::NotSent),
        }
    }
    Ok(replies)
}

/// Sends parts, and returns their replies. Returns an error with the reason if Redis has not done all of it.
async fn send_parts(connection: &Connection, parts: &[&Part]) -> Result<Vec<Reply>, String> {
    match parts.is_empty() {
        true => Ok(Vec::new()),
        false => script::send(connection, parts).await?.into_iter().collect(),
    }
}
