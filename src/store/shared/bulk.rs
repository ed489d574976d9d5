//! Access to all budgets in Redis for commands that no mail waits for: they enumerate the budgets, and write many.

use super::cells::{Part, ReadBudget, Reply, SentCell, Wanted};
use super::connection::Connection;
use super::names::Namer;
use super::options::SharedOptions;
use super::scan::{Scan, Skipped};
use super::{reader, script};
use crate::policy::budgets::{Budget, Key};
use crate::policy::{Lifetime, Policy};
use crate::time::Timestamp;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Budgets in Redis, for such a command. Its methods block until Redis has replied.
pub struct SharedBulk {
    runtime: tokio::runtime::Runtime,
    connection: Connection,
    namer: Namer,
    servers: Vec<String>,
}

/// Error of such a command.
#[derive(Debug)]
pub enum BulkError {
    /// The secret of the site cannot be read.
    Secret(String),
    /// The process has no resources to connect.
    System(std::io::Error),
    /// Servers, and the reason why they cannot be used.
    Redis(String, String),
}

/// Effect of [`SharedBulk::put`] on a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutEffect {
    /// Redis had no such budget.
    New,
    /// Redis had the budget in another state.
    Changed,
    /// Redis had the budget in this state, or in a fuller one.
    Unchanged,
}

/// Maximum time for the connection and for each group of commands.
const PATIENCE: Duration = Duration::from_secs(30);

/// Number of attempts to write a budget that nodes change at the same time.
const ATTEMPTS: usize = 50;

impl fmt::Display for BulkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Secret(why) => write!(f, "secret-file of [state]: {why}"),
            Self::System(error) => write!(f, "cannot connect to Redis: {error}"),
            Self::Redis(servers, why) => write!(f, "Redis {servers}: {why}"),
        }
    }
}

impl SharedBulk {
    /// Connects to Redis.
    pub fn open(options: &SharedOptions) -> Result<Self, BulkError> {
        let secret = options.secret().map_err(BulkError::Secret)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(BulkError::System)?;
        let options = SharedOptions { deadline: PATIENCE, ..options.clone() };
        let opened = runtime.block_on(within(async { Connection::open(&options).await }));
        let connection = opened.map_err(|why| BulkError::Redis(options.servers.join(", "), why))?;
        let namer = Namer::new(&options.prefix, secret.as_deref());
        Ok(Self { runtime, connection, namer, servers: options.servers })
    }

    /// Returns the addresses of the servers, for messages.
    pub fn servers(&self) -> String {
        self.servers.join(", ")
    }

    /// Calls `take` with all budgets, some hundred at a time, until `take` returns an error. Returns what was left out.
    /// [`Scan`] says which states `take` gets.
    pub fn each<E: From<BulkError>>(
        &self,
        mut take: impl FnMut(Vec<(Key, Budget)>) -> Result<(), E>,
    ) -> Result<Skipped, E> {
        let begun = within(Scan::begin(&self.connection, &self.namer));
        let mut scan = self.runtime.block_on(begun).map_err(|why| self.error(why))?;
        while let Some(budgets) = self.runtime.block_on(within(scan.next())).map_err(|why| self.error(why))? {
            take(budgets)?;
        }
        Ok(scan.skipped())
    }

    /// Writes budgets. If Redis has one of them already, it has the [larger](Policy::larger) of both afterwards. Returns
    /// the effect on each budget, in their order. After an error, some budgets may have been written.
    pub fn put(&self, policy: &Policy, budgets: &[(Key, Budget)], now: Timestamp) -> Result<Vec<PutEffect>, BulkError> {
        let put = Put::new(policy, &self.namer, budgets, now);
        self.runtime.block_on(within(put.run(&self.connection))).map_err(|why| self.error(why))
    }

    fn error(&self, why: String) -> BulkError {
        BulkError::Redis(self.servers(), why)
    }
}

async fn within<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    timeout(PATIENCE, work).await.unwrap_or_else(|_| Err(format!("no reply within {} s", PATIENCE.as_secs())))
}

/// Writing of budgets that is under way.
struct Put<'a> {
    policy: &'a Policy,
    namer: &'a Namer,
    lifetimes: HashMap<String, Lifetime>,
    budgets: &'a [(Key, Budget)],
    now: Timestamp,
    /// Indices of the budgets that are not written yet.
    left: HashMap<&'a Key, usize>,
    effects: Vec<PutEffect>,
}

impl<'a> Put<'a> {
    fn new(policy: &'a Policy, namer: &'a Namer, budgets: &'a [(Key, Budget)], now: Timestamp) -> Self {
        let lifetimes = policy.stored_kinds().map(|(kind, stored)| (kind, stored.lifetime())).collect();
        let left = budgets.iter().enumerate().map(|(index, (key, _))| (key, index)).collect();
        Self { policy, namer, lifetimes, budgets, now, left, effects: vec![PutEffect::Unchanged; budgets.len()] }
    }

    async fn run(mut self, connection: &Connection) -> Result<Vec<PutEffect>, String> {
        for _ in 0..ATTEMPTS {
            let names = |key: &Key| Arc::new(self.namer.names(key.borrowed()));
            let wanted = self.left.keys().map(|key| Wanted { key: (*key).clone(), names: names(key), filter: None });
            let read = reader::read(connection, wanted.collect()).await?;
            let writes: Vec<_> = read.into_iter().filter_map(|found| self.write(found)).collect();
            let parts: Vec<&Part> = writes.iter().map(|(_, _, part)| part).collect();
            let replies = script::send(connection, &parts).await?;
            for ((index, effect, _), reply) in writes.iter().zip(replies) {
                // After a conflict, the budget is read again.
                if let Reply::Done = reply? {
                    self.left.remove(&self.budgets[*index].0);
                    self.effects[*index] = *effect;
                }
            }
            if self.left.is_empty() {
                return Ok(self.effects);
            }
        }
        Err("nodes change a budget too fast; try again".to_owned())
    }

    /// Returns the write of a budget that was read, with the budget's index; `None` if nothing is to be written.
    fn write(&mut self, found: ReadBudget) -> Option<(usize, PutEffect, Part)> {
        let index = *self.left.get(&found.key)?;
        let (key, budget) = &self.budgets[index];
        let (budget, effect) = match found.stored() {
            Some(stored) => {
                let larger = self.policy.larger(key, stored.clone(), budget.clone());
                if larger == stored {
                    self.left.remove(key);
                    return None;
                }
                (larger, PutEffect::Changed)
            }
            None => (budget.clone(), PutEffect::New),
        };
        let lifetime = self.lifetimes.get(&key.kind()).copied().unwrap_or(Lifetime::UNKNOWN);
        let names = Arc::new(self.namer.names(key.borrowed()));
        let sent = SentCell::whole((key, names), &found.confirmed, &budget, lifetime, self.now);
        Some((index, effect, Part(vec![sent])))
    }
}
