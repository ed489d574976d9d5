//! Division of a replay among threads. Each thread has the budgets of some users, and decides on their mail in the order
//! of the history, so the decisions are the same as those of one thread.

use super::history_csv::{History, Message, ReadError};
use super::replay::Replay;
use super::totals::Totals;
use crate::policy::limit::{Count, Limit, Quota, Scope};
use crate::policy::matching::Field;
use crate::policy::{KnownTo, Policy};
use foldhash::fast::RandomState;
use std::collections::HashMap;
use std::io::{BufRead, ErrorKind, Read};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::ScopedJoinHandle;

/// Replay of the mail of some users, and its totals.
#[derive(Clone)]
pub struct Part {
    pub replay: Replay,
    pub totals: Totals,
}

/// Octets of a history, or the kind and the text of an error; empty at the end.
type Block = Result<Arc<[u8]>, (ErrorKind, String)>;

/// Number of blocks that can wait for a thread.
const MAX_WAITING: usize = 8;

impl Part {
    /// Sends some of the messages of a history.
    fn replay_some(
        &mut self,
        history: &mut History,
        mut is_own: impl FnMut(&Message) -> bool,
    ) -> Result<(), ReadError> {
        for number in 0.. {
            let Some(mut message) = history.next_message()? else { break };
            if is_own(&message) {
                message.number = number;
                let outcome = self.replay.send(&message, false);
                self.totals.add(&message, &outcome, false);
            }
        }
        Ok(())
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
/// mail of one user.
fn is_of_one_user(limit: &Limit, has_clients: bool) -> bool {
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

/// Replays the rest of a history, divided among these parts. Each thread reads all rows, and sends the mail of its users:
/// this is faster than to pass messages from thread to thread. Returns the parts, and the error that ended the history.
pub fn run(policy: &Policy, history: &mut History, parts: Vec<Part>) -> (Vec<Part>, Result<(), ReadError>) {
    let number = parts.len();
    let (parts, histories, results): (Vec<Part>, Vec<History>, Vec<_>) = std::thread::scope(|scope| {
        let start = |(index, mut part): (usize, Part)| {
            let (blocks, received) = sync_channel(MAX_WAITING);
            let mut history = history.continued(Blocks { received, block: Arc::default(), at: 0 });
            let thread = scope.spawn(move || {
                let mut assignment = Assignment::new(policy, number);
                let result = part.replay_some(&mut history, |message| assignment.thread(message) == index);
                (part, history, result)
            });
            (blocks, thread)
        };
        let (blocks, threads): (Vec<_>, Vec<_>) = parts.into_iter().enumerate().map(start).unzip();
        distribute(history, blocks);
        let join = |thread: ScopedJoinHandle<'_, (Part, History, Result<(), ReadError>)>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    // Each thread has read the same rows.
    for read in histories {
        history.bad = read.bad;
    }
    (parts, results.into_iter().collect())
}

/// Gives each block of the history to all threads, until the end or an error.
fn distribute(history: &mut History, threads: Vec<SyncSender<Block>>) {
    loop {
        let block = history.next_block().map_err(|error| (error.kind(), error.to_string()));
        let is_last = block.as_ref().map_or(true, |block| block.is_empty());
        for thread in &threads {
            // This fails only if the thread has panicked, which joining the thread reports.
            let _ = thread.send(block.clone());
        }
        if is_last {
            return;
        }
    }
}

/// Threads of the users. A new user goes to the thread that has sent to the fewest recipients so far.
struct Assignment<'a> {
    policy: &'a Policy,
    /// Thread of each user, by the name in the history, and by the normalized name.
    by_name: HashMap<Option<Arc<str>>, usize, RandomState>,
    by_normalized: HashMap<Option<Box<str>>, usize, RandomState>,
    /// Number of recipients of each thread.
    loads: Vec<usize>,
}

impl<'a> Assignment<'a> {
    fn new(policy: &'a Policy, threads: usize) -> Self {
        let (by_name, by_normalized) = (HashMap::default(), HashMap::default());
        Self { policy, by_name, by_normalized, loads: vec![0; threads] }
    }

    /// Returns the index of the thread that sends a message.
    fn thread(&mut self, message: &Message) -> usize {
        let known = self.by_name.get(&message.user).copied();
        let thread = known.unwrap_or_else(|| {
            let least = (0..self.loads.len()).min_by_key(|thread| self.loads[*thread]).unwrap_or_default();
            let normalized = message.user.as_deref().map(|user| self.policy.normalizer.user(user).into());
            let thread = *self.by_normalized.entry(normalized).or_insert(least);
            self.by_name.insert(message.user.clone(), thread);
            thread
        });
        self.loads[thread] += message.recipients.len();
        thread
    }
}

/// Input that comes in blocks from another thread.
struct Blocks {
    received: Receiver<Block>,
    block: Arc<[u8]>,
    /// Number of octets of the block that have been read.
    at: usize,
}

impl BufRead for Blocks {
    fn fill_buf(&mut self) -> std::io::Result<&[u8]> {
        if self.at == self.block.len() {
            // Without a sender, the input has ended.
            let block = self.received.recv().unwrap_or_else(|_| Ok(Arc::default()));
            (self.block, self.at) = (block.map_err(|(kind, text)| std::io::Error::new(kind, text))?, 0);
        }
        Ok(&self.block[self.at..])
    }

    fn consume(&mut self, octets: usize) {
        self.at += octets;
    }
}

impl Read for Blocks {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.fill_buf()?.read(buffer)?;
        self.consume(read);
        Ok(read)
    }
}
