//! Reloads that nodes share. A node that was told to read its configuration again counts this in Redis; the other nodes
//! notice it, and read theirs. Nothing is counted for a file that a node has found changed: each node looks at its own.

use super::connection::Connection;
use super::names::Namer;
use redis::{Value, cmd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use tokio::sync::Notify;

/// Reloads of this node, and those of other nodes.
#[derive(Default)]
pub struct SharedReloads {
    /// True if this node was told to reload, and Redis does not know it yet.
    is_unsent: AtomicBool,
    /// Number in Redis when this node last looked; `None` before the first look. The lock is held only while it is read
    /// or set.
    known: Mutex<Option<i64>>,
    /// Wakes the task that reloads, because another node was told to reload.
    pub asked: Notify,
}

impl SharedReloads {
    /// Notes that this node was told to reload.
    pub fn send(&self) {
        self.is_unsent.store(true, Ordering::Release);
    }

    /// Counts a reload of this node, and notices those of others. Returns an error with the reason if Redis cannot be
    /// used.
    pub async fn exchange(&self, namer: &Namer, connection: &Connection) -> Result<(), String> {
        let is_own = self.is_unsent.load(Ordering::Acquire);
        let mut command = cmd(if is_own { "INCR" } else { "GET" });
        command.arg(&*namer.common("reloads"));
        let mut replies = connection.send(vec![command]).await.map_err(|error| error.to_string())?;
        let reply = replies.pop().unwrap_or(Ok(Value::Nil)).map_err(|error| error.to_string())?;
        let number: Option<i64> = redis::from_redis_value(reply).map_err(|error| error.to_string())?;
        if is_own {
            self.is_unsent.store(false, Ordering::Release);
        }
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).replace(number.unwrap_or(0));
        // A number that is lower than before is that of a Redis that has lost its data.
        if known.is_some_and(|known| number.unwrap_or(0) - i64::from(is_own) > known) {
            self.asked.notify_one();
        }
        Ok(())
    }
}
