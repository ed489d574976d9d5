//! Division of a replay among threads. Each thread has the budgets of some users, and decides on their mail in the order
//! of the history, so the decisions are the same as those of one thread.

use super::history_csv::{History, Message, ReadError};
use super::replay::Replay;
use super::totals::Totals;
use crate::policy::limit::{Count, Limit, Quota, Scope};
use crate::policy::matching::Field;
use crate::policy::{KnownTo, Policy};
use foldhash::fast::FixedState;
use std::hash::BuildHasher as _;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Replay of the mail of some users, and its totals.
#[derive(Clone)]
pub struct Part {
    pub replay: Replay,
    pub totals: Totals,
}

/// Number of messages that a thread gets at a time.
const BATCH: usize = 512;

/// Number of batches that can wait for a thread.
const MAX_WAITING: usize = 8;

impl Part {
    fn send(&mut self, message: &Message) {
        let outcome = self.replay.send(message, false);
        self.totals.add(message, &outcome, false);
    }

    /// Adds the totals of another part.
    pub fn and(mut self, other: Self) -> Self {
        self.replay.tallies.iter_mut().zip(other.replay.tallies).for_each(|(tally, other)| tally.merge(other));
        self.totals.merge(other.totals);
        self
    }
}

/// Returns the number of threads among which a replay of this history can be divided. It is 1 if users share any budget or
/// memory.
pub fn number(policy: &Policy, history: &History) -> usize {
    let is_divisible = policy.limits.iter().all(|limit| is_of_one_user(limit, history.has_clients()));
    if is_divisible { std::thread::available_parallelism().map_or(1, usize::from) } else { 1 }
}

/// Returns whether no two users share a budget or memory of the limit in a replay. All mail without a login counts as the
/// mail of one user. `has_clients`: messages can name a client.
pub fn is_of_one_user(limit: &Limit, has_clients: bool) -> bool {
    let is_counted = matches!(limit.count, Count::Messages | Count::Recipients | Count::Bytes | Count::Refusals);
    let is_stored = limit.quotas().any(|quota| match quota {
        Quota::Never | Quota::Unlimited | Quota::Counter { scope: Scope::Message | Scope::Connection, .. } => false,
        Quota::Counter { scope: Scope::AtOnce, .. }
        | Quota::Rate { .. }
        | Quota::Share(_)
        | Quota::Regularity(_)
        | Quota::Likelihood(_) => true,
    });
    // A limit that watches another one has no budget of its own.
    let has_budgets = is_counted && is_stored && limit.watch.is_none();
    let is_of_user = limit.per.contains(&Field::User);
    // Without clients in the history, no budget per client has an owner.
    let is_of_nobody = !has_clients && limit.per.iter().any(|field| matches!(field, Field::Client(_)));
    let memory = limit.distinct.and_then(|distinct| distinct.known_to);
    let has_own_memory = memory.is_none_or(|memory| memory.known_to == KnownTo::Each(Field::User));
    // A suspension can be that of a client or sender, with which several users send.
    let suspends_others = !is_of_user && limit.ladder.longest_suspension().is_some();
    has_own_memory && !suspends_others && (!has_budgets || is_of_user || is_of_nobody)
}

/// Replays the rest of a history, divided among these parts. Returns the parts, and the error that ended the history.
pub fn run(policy: &Policy, history: &mut History, parts: Vec<Part>) -> (Vec<Part>, Result<(), ReadError>) {
    std::thread::scope(|scope| {
        let start = |part| {
            let (batches, received) = sync_channel(MAX_WAITING);
            (batches, scope.spawn(|| replay(part, received)))
        };
        let (batches, threads): (Vec<_>, Vec<_>) = parts.into_iter().map(start).unzip();
        let result = divide(policy, history, &batches);
        // The threads end when the channels end.
        drop(batches);
        let join = |thread: std::thread::ScopedJoinHandle<'_, Part>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        (threads.into_iter().map(join).collect(), result)
    })
}

fn replay(mut part: Part, batches: Receiver<Vec<Message>>) -> Part {
    batches.iter().flatten().for_each(|message| part.send(&message));
    part
}

/// Reads the history, and gives each message to the thread of its user.
fn divide(policy: &Policy, history: &mut History, threads: &[SyncSender<Vec<Message>>]) -> Result<(), ReadError> {
    let mut batches: Vec<Vec<Message>> = threads.iter().map(|_| Vec::with_capacity(BATCH)).collect();
    // A send fails only if the thread has panicked, which joining the thread reports.
    let send = |thread: usize, batch| drop(threads[thread].send(batch));
    let mut number = 0;
    let result = loop {
        let mut message = match history.next_message() {
            Ok(Some(message)) => message,
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        };
        message.number = number;
        number += 1;
        let user = message.user.as_deref().map(|user| policy.normalizer.user(user));
        let thread = (FixedState::default().hash_one(user) % threads.len() as u64) as usize;
        batches[thread].push(message);
        if batches[thread].len() == BATCH {
            send(thread, std::mem::replace(&mut batches[thread], Vec::with_capacity(BATCH)));
        }
    };
    batches.into_iter().enumerate().for_each(|(thread, batch)| send(thread, batch));
    result
}
