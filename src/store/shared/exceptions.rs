//! Grants and suspensions that nodes share. Redis has them in a hash, whose fields and values are hashed and sealed like
//! the names of budgets, and the number of changes in a counter beside it. Each node looks at the counter several times a
//! second, and reads the hash when another node has changed it.

use super::connection::Connection;
use super::names::Namer;
use crate::policy::Policy;
use crate::policy::egress::NetworkText;
use crate::policy::exception::Exceptions;
use crate::store::jsonl::{self, Line};
use crate::store::pending_exceptions::{ExceptionKey, ReadExceptions};
use redis::{Cmd, Value, cmd};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Changes the fields of the hash, and counts the change. The arguments are fields, each with its value (empty: the field
/// is removed).
const SOURCE: &str = "\
for i = 1, #ARGV, 2 do
  if ARGV[i + 1] == '' then redis.call('HDEL', KEYS[1], ARGV[i])
  else redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
end
return redis.call('INCR', KEYS[2])
";

/// Returns the policy with the present exceptions.
type Present<'a> = &'a (dyn Fn() -> Arc<Policy> + Sync);

/// Takes exceptions that other nodes have changed, and the keys of those that other nodes have ended.
type Adopt<'a> = &'a (dyn Fn(ReadExceptions, Vec<ExceptionKey>) + Sync);

/// Exceptions of this node as Redis knows them. The lock is held only while the keys are changed or taken.
#[derive(Default)]
pub struct SharedExceptions {
    inner: Mutex<Inner>,
    /// Wakes the sender, because this node has changed an exception.
    pub work: Notify,
}

#[derive(Default)]
struct Inner {
    /// Exceptions that this node has changed, and that are to be sent.
    unsent: HashSet<ExceptionKey>,
    /// Exceptions that Redis had when this node last heard of it. `None`: this node has not heard of it yet.
    known: Option<HashSet<ExceptionKey>>,
    /// Number of changes at that time.
    changes: i64,
}

impl SharedExceptions {
    /// Notes that this node has changed exceptions.
    pub fn send(&self, changed: impl IntoIterator<Item = ExceptionKey>) {
        self.lock().unsent.extend(changed);
        self.work.notify_one();
    }

    /// Sends the changes of this node, and takes those of other nodes. `policy` returns the policy with the present
    /// exceptions, and `adopt` takes what other nodes have changed and ended. Returns an error with the reason if Redis cannot be
    /// used.
    pub async fn exchange(
        &self,
        (policy, adopt): (Present<'_>, Adopt<'_>),
        namer: &Namer,
        connection: &Connection,
    ) -> Result<(), String> {
        let (hash, counter) = (namer.common("exceptions"), namer.common("exceptions:changes"));
        let mut changes = cmd("GET");
        changes.arg(&*counter);
        let changes = match number(send(connection, changes).await?)? {
            Some(changes) => changes,
            // Redis has no exceptions, and has perhaps lost them: it gets all those of this node.
            None => {
                let mut inner = self.lock();
                (inner.known, inner.changes) = (Some(HashSet::new()), 0);
                inner.unsent.extend(keys(&policy().exceptions));
                0
            }
        };
        if changes != self.lock().changes || self.lock().known.is_none() {
            let mut read = cmd("HVALS");
            read.arg(&*hash);
            self.take((policy, adopt), found(send(connection, read).await?, namer)?, changes);
        }
        self.send_changes(policy, namer, connection, (&hash, &counter)).await
    }

    async fn send_changes(
        &self,
        policy: Present<'_>,
        namer: &Namer,
        connection: &Connection,
        (hash, counter): (&[u8], &[u8]),
    ) -> Result<(), String> {
        let unsent: Vec<ExceptionKey> = self.lock().unsent.iter().cloned().collect();
        if unsent.is_empty() {
            return Ok(());
        }
        let mut script = cmd("EVAL");
        script.arg(SOURCE).arg(2).arg(hash).arg(counter);
        let policy = policy();
        for key in &unsent {
            let line = line(&policy.exceptions, key).map(|line| namer.seal(&line)).unwrap_or_default();
            script.arg(namer.field(&field(key))).arg(line);
        }
        let changes = number(send(connection, script).await?)?.unwrap_or(0);
        let inner = &mut *self.lock();
        // If another node has changed something in between, the next exchange reads it.
        inner.changes += i64::from(changes == inner.changes + 1);
        for key in unsent {
            inner.unsent.remove(&key);
            if let Some(known) = &mut inner.known {
                match line(&policy.exceptions, &key).is_some() {
                    true => known.insert(key),
                    false => known.remove(&key),
                };
            }
        }
        Ok(())
    }

    /// Takes the exceptions that Redis has, except those that this node has changed meanwhile.
    fn take(&self, (policy, adopt): (Present<'_>, Adopt<'_>), mut found: ReadExceptions, changes: i64) {
        let inner = &mut *self.lock();
        let keys_of_found = (found.grants.iter().map(ExceptionKey::of_grant))
            .chain(found.suspensions.iter().map(ExceptionKey::of_suspension))
            .chain(found.entries.iter().map(|entry| ExceptionKey::Egress(entry.key())));
        let now: HashSet<ExceptionKey> = keys_of_found.collect();
        // After its start, this node has the exceptions of its own file: others may have ended them meanwhile.
        let known = inner.known.take().unwrap_or_else(|| keys(&policy().exceptions).collect());
        let gone = known.into_iter().filter(|key| !now.contains(key) && !inner.unsent.contains(key)).collect();
        found.grants.retain(|grant| !inner.unsent.contains(&ExceptionKey::of_grant(grant)));
        found.suspensions.retain(|suspension| !inner.unsent.contains(&ExceptionKey::of_suspension(suspension)));
        found.entries.retain(|entry| !inner.unsent.contains(&ExceptionKey::Egress(entry.key())));
        (inner.known, inner.changes) = (Some(now), changes);
        adopt(found, gone);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn keys(exceptions: &Exceptions) -> impl Iterator<Item = ExceptionKey> {
    let grants = exceptions.grants().map(|grant| ExceptionKey::of_grant(grant));
    let suspensions = exceptions.suspensions().map(|suspension| ExceptionKey::of_suspension(suspension));
    let entries = exceptions.egress().entries().map(|entry| ExceptionKey::Egress(entry.key()));
    grants.chain(suspensions).chain(entries).collect::<Vec<_>>().into_iter()
}

/// Returns the text of an exception; `None` if it has ended.
fn line(exceptions: &Exceptions, key: &ExceptionKey) -> Option<String> {
    let line = match key {
        ExceptionKey::Grant(limit, owner) => jsonl::of_grant(exceptions.grant_of(limit, owner)?),
        ExceptionKey::Suspension(owner) => jsonl::of_suspension(exceptions.suspension_of(owner)?),
        ExceptionKey::Egress(key) => jsonl::of_entry(exceptions.egress().get(*key)?),
    };
    Some(line.to_string())
}

/// Returns the field of an exception in the hash.
fn field(key: &ExceptionKey) -> String {
    match key {
        ExceptionKey::Grant(limit, owner) => format!("{limit}\n{}", owner.as_str()),
        ExceptionKey::Suspension(owner) => format!("\n{}", owner.as_str()),
        // No owner begins with a line break.
        ExceptionKey::Egress(key) => {
            let kind = if key.is_quarantine { "quarantine" } else { "registration" };
            format!("\n\n{kind} {}", NetworkText(key.network))
        }
    }
}

/// Reads the values of the hash. A value that this version does not understand is left out, with a warning.
fn found(values: Value, namer: &Namer) -> Result<ReadExceptions, String> {
    let values: Vec<Vec<u8>> = redis::from_redis_value(values).map_err(|error| error.to_string())?;
    let mut found = ReadExceptions::default();
    for value in values {
        match namer.open(&value).and_then(|line| Line::read(&line).ok()) {
            Some(Line::Grant(grant)) => found.grants.push(grant),
            Some(Line::Suspension(suspension)) => found.suspensions.push(suspension),
            Some(Line::EgressEntry(entry)) => found.entries.push(entry),
            _ => {
                tracing::warn!("an exception in Redis cannot be read: it has another secret, or a newer Weir wrote it")
            }
        }
    }
    Ok(found)
}

async fn send(connection: &Connection, command: Cmd) -> Result<Value, String> {
    let mut replies = connection.send(vec![command]).await.map_err(|error| error.to_string())?;
    replies.pop().unwrap_or(Ok(Value::Nil)).map_err(|error| error.to_string())
}

fn number(value: Value) -> Result<Option<i64>, String> {
    redis::from_redis_value(value).map_err(|error| error.to_string())
}
